// SPDX-License-Identifier: Apache-2.0
//! The log of a piece of code, for tests.

use crate::Line;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use tracing::Dispatch;
use tracing::level_filters::LevelFilter;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::SubscriberExt as _;

/// Returns what `run` logs on this thread, at any level, as lines of the journal: `<4>vtax_host::journal: …`.
///
/// # Panics
/// Where `run` does.
pub fn logged(run: impl FnOnce()) -> String {
    logged_by(Targets::new().with_default(LevelFilter::TRACE), run)
}

pub(crate) fn logged_by(filter: Targets, run: impl FnOnce()) -> String {
    #[derive(Clone, Default)]
    struct Buffer(Arc<Mutex<Vec<u8>>>);
    impl io::Write for Buffer {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            locked(&self.0).extend_from_slice(bytes);
            Ok(bytes.len())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
    // While there is one log alone, tracing takes it for the log of every thread: an event that another thread, which
    // has no log, comes to first would be off for good.
    static SECOND: OnceLock<Dispatch> = OnceLock::new();
    SECOND.get_or_init(|| Dispatch::new(tracing_subscriber::registry()));
    let buffer = Buffer::default();
    let writer = buffer.clone();
    let lines = tracing_subscriber::fmt::layer()
        .with_ansi(false)
        .event_format(Line::of_the_journal())
        .with_writer(move || writer.clone());
    let subscriber = tracing_subscriber::registry().with(filter).with(lines);
    tracing::subscriber::with_default(subscriber, run);
    String::from_utf8_lossy(&locked(&buffer.0)).into_owned()
}

fn locked(buffer: &Mutex<Vec<u8>>) -> MutexGuard<'_, Vec<u8>> {
    buffer.lock().unwrap_or_else(PoisonError::into_inner)
}
