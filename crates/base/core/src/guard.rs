// SPDX-License-Identifier: Apache-2.0
//! Calls of code that panics on damaged input: decoders of other projects.

use std::cell::Cell;
use std::panic::{self, AssertUnwindSafe};
use std::sync::Once;

/// A guarded call ended with a panic.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Panicked;

thread_local! {
    /// How many guarded calls this thread is in.
    static DEPTH: Cell<usize> = const { Cell::new(0) };
}

/// Calls `part`, and returns [`Panicked`] where it panics. The panic's message and stack are not printed: the caller
/// reports what could not be read. What `part` changed must not be used after a panic.
///
/// # Errors
/// When `part` panics.
pub fn guarded<T>(part: impl FnOnce() -> T) -> Result<T, Panicked> {
    static SILENT: Once = Once::new();
    SILENT.call_once(|| {
        let before = panic::take_hook();
        panic::set_hook(Box::new(move |panic| {
            // A thread whose local values are gone is in no guarded call.
            if DEPTH.try_with(Cell::get).unwrap_or(0) == 0 {
                before(panic);
            }
        }));
    });
    DEPTH.with(|depth| depth.set(depth.get() + 1));
    let ended = panic::catch_unwind(AssertUnwindSafe(part));
    DEPTH.with(|depth| depth.set(depth.get() - 1));
    ended.map_err(|_| Panicked)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_is_an_error_and_the_next_call_is_guarded_too() {
        for _ in 0..2 {
            let empty: &[u8] = &[];
            assert_eq!(guarded(|| empty[usize::MAX % 7]), Err(Panicked));
        }
        assert_eq!(guarded(|| guarded(|| 1)), Ok(Ok(1)));
        assert_eq!(DEPTH.with(Cell::get), 0);
    }
}
