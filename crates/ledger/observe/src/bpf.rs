// SPDX-License-Identifier: Apache-2.0
//! Conversion of the BPF loader's errors to [`ObserveError`].

use crate::ObserveError;
use std::error::Error;

/// The text of an error and all its causes; the loader reports the detail in the causes.
pub fn chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let printed = error.to_string();
        if !text.contains(&printed) {
            text.push_str(": ");
            text.push_str(&printed);
        }
        cause = error.source();
    }
    text
}

/// Explains why `what` does not work: a missing privilege, or the loader's own error.
pub fn explain(what: &str, error: &dyn Error) -> ObserveError {
    let text = chain(error);
    if text.contains("Operation not permitted") || text.contains("Permission denied") {
        return ObserveError::Permission {
            what: what.to_owned(),
            remedy: "run as root or with CAP_BPF and CAP_PERFMON".to_owned(),
        };
    }
    ObserveError::unavailable(what, text)
}
