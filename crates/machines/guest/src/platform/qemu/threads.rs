// SPDX-License-Identifier: Apache-2.0
//! Translation of thread ids from QEMU's PID namespace to the host's.

use vtax_host::HostError;
use vtax_host::cell::process::threads;

/// Translates thread ids that QEMU reported.
///
/// # Errors
/// When an id belongs to none of the process's threads: the first such id.
pub(super) fn on_host(process: u32, named: &[u32]) -> Result<Vec<u32>, HostError> {
    let known = threads(process);
    named
        .iter()
        .map(|id| {
            known.get(id).copied().ok_or_else(|| HostError::Protocol {
                peer: "QEMU".into(),
                detail: format!("it names a thread {id}, which process {process} does not have"),
            })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_thread_is_an_error_that_names_it() {
        let text = on_host(std::process::id(), &[u32::MAX])
            .unwrap_err()
            .to_string();
        assert!(text.contains(&u32::MAX.to_string()), "{text}");
    }
}
