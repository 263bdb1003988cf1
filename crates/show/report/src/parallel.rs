// SPDX-License-Identifier: Apache-2.0
//! Reads many trials or directories on all processors: reading is mostly decoding.

use std::sync::mpsc::sync_channel;
use std::sync::{Mutex, PoisonError};
use std::thread::{available_parallelism, scope};
use vtax_results::ResultsError;

/// Most results that the readers may be ahead of the collector.
const MOST_AHEAD: usize = 16;

/// Reads each item, and gives what was read to `take` in the order in which it is ready.
///
/// # Errors
/// The first one of `take`, which ends the reading.
pub(crate) fn read_each<T: Sync, R: Send>(
    items: &[T],
    read: impl Fn(&T) -> R + Sync,
    take: impl FnMut(R) -> Result<(), ResultsError>,
) -> Result<(), ResultsError> {
    let threads = available_parallelism().map_or(1, usize::from);
    let queue = Mutex::new(items.iter());
    scope(|scope| {
        let (sender, receiver) = sync_channel(MOST_AHEAD);
        for _ in 0..threads.min(items.len()) {
            let (queue, read, sender) = (&queue, &read, sender.clone());
            scope.spawn(move || {
                loop {
                    let next = queue.lock().unwrap_or_else(PoisonError::into_inner).next();
                    let Some(item) = next else { return };
                    // The receiver is dropped after an error.
                    if sender.send(read(item)).is_err() {
                        return;
                    }
                }
            });
        }
        drop(sender);
        receiver.into_iter().try_for_each(take)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::PathBuf;

    #[test]
    fn each_item_is_read_once_and_an_error_ends_the_reading() {
        let items: Vec<u32> = (0..100).collect();
        let mut found = Vec::new();
        let taken = read_each(
            &items,
            |item| item * 2,
            |double| {
                found.push(double);
                Ok(())
            },
        );
        found.sort_unstable();
        assert!(taken.is_ok() && found == items.iter().map(|item| item * 2).collect::<Vec<_>>());
        let mut taken = 0;
        let ended = read_each(
            &items,
            |item| *item,
            |_| {
                taken += 1;
                Err(ResultsError::NotARun(PathBuf::new()))
            },
        );
        assert!(ended.is_err() && taken == 1);
    }
}
