//! Tests that find out in their course that they cannot go on.

use std::panic::resume_unwind;
use std::sync::{Mutex, PoisonError};

/// What unwinds a test that cannot go on.
pub(crate) struct Skip(pub(crate) String);

/// What the test of this process left out, a reason each.
static IN_PART: Mutex<Vec<String>> = Mutex::new(Vec::new());

/// Ends the test as ignored, with this reason. To be called in the test's own thread.
pub fn skip_with(reason: &str) -> ! {
    eprintln!("skipped: {reason}");
    // Without the panic's message, which `panic_any` would print.
    resume_unwind(Box::new(Skip(reason.to_owned())))
}

/// Notes that the test leaves out a part: it goes on, and where it passes it counts as ignored, with this reason.
pub fn skip_in_part(reason: &str) {
    let mut parts = IN_PART.lock().unwrap_or_else(PoisonError::into_inner);
    parts.push(reason.to_owned());
}

/// The reasons of [`skip_in_part`], joined; none where the test did all.
pub(crate) fn left_out() -> Option<String> {
    let parts = IN_PART.lock().unwrap_or_else(PoisonError::into_inner);
    (!parts.is_empty()).then(|| parts.join("; "))
}
