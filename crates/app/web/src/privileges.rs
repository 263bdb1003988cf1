// SPDX-License-Identifier: Apache-2.0
//! The capabilities of the thread that serves the network: it may read files as root, and no more. Other threads read
//! the host's counters and start runs.

use rustix::thread::{CapabilitySet, CapabilitySets, capabilities, set_capabilities};

/// Drops every capability of this thread, and of threads that it starts, except the one to read files. Returns whether
/// it had others.
///
/// # Errors
/// When the kernel rejects the change.
pub fn drop_capabilities() -> std::io::Result<bool> {
    let held = capabilities(None)?;
    let kept = held.permitted & CapabilitySet::DAC_READ_SEARCH;
    if held.permitted == kept {
        return Ok(false);
    }
    set_capabilities(
        None,
        CapabilitySets {
            effective: kept,
            permitted: kept,
            inheritable: CapabilitySet::empty(),
        },
    )?;
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_drops_its_capabilities_and_no_other_does() {
        let before = capabilities(None).unwrap();
        std::thread::spawn(move || {
            let had = drop_capabilities().unwrap();
            let after = capabilities(None).unwrap();
            assert_eq!(had, before.permitted != after.permitted);
            assert!(CapabilitySet::DAC_READ_SEARCH.contains(after.permitted));
            assert_eq!(after.effective, after.permitted);
            assert!(!drop_capabilities().unwrap(), "nothing is left to drop");
        })
        .join()
        .unwrap();
        assert_eq!(capabilities(None).unwrap(), before);
    }
}
