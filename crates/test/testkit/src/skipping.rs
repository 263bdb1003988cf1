// SPDX-License-Identifier: Apache-2.0
//! Skipping at run time: tests that detect that they cannot continue.

use std::panic::resume_unwind;
use std::sync::{Mutex, PoisonError};

/// The panic payload of a test that cannot continue: the reason.
pub(crate) struct Skip(pub(crate) String);

/// The reasons for the parts that this process's test left out.
static IN_PART: Mutex<Vec<String>> = Mutex::new(Vec::new());

/// Ends the test as ignored, with this reason. Must be called in the test's own thread.
pub fn skip_with(reason: &str) -> ! {
    eprintln!("skipped: {reason}");
    // `resume_unwind` prints no panic message; `panic_any` would.
    resume_unwind(Box::new(Skip(reason.to_owned())))
}

/// Records that the test leaves out a part. The test continues; if it passes, it counts as ignored, with this reason.
pub fn skip_in_part(reason: &str) {
    let mut parts = IN_PART.lock().unwrap_or_else(PoisonError::into_inner);
    parts.push(reason.to_owned());
}

/// The reasons of [`skip_in_part`], joined; `None` where the test left nothing out.
pub(crate) fn left_out() -> Option<String> {
    let parts = IN_PART.lock().unwrap_or_else(PoisonError::into_inner);
    (!parts.is_empty()).then(|| parts.join("; "))
}
