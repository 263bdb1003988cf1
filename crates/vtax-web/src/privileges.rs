//! What the thread that answers the network may do on this host: read, as root reads, and nothing else
//! that only root may do. Who reads the host's counters and who starts runs are other threads.

use rustix::thread::{CapabilitySet, CapabilitySets, capabilities, set_capabilities};

/// Takes from this thread, and from those that it starts, every capability but that to read files.
/// Returns whether there was any to take.
///
/// # Errors
/// When the kernel refuses.
pub fn give_up() -> std::io::Result<bool> {
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
    fn a_thread_gives_up_what_it_does_not_need_and_no_other_does() {
        let before = capabilities(None).unwrap();
        std::thread::spawn(move || {
            let had = give_up().unwrap();
            let after = capabilities(None).unwrap();
            assert_eq!(had, before.permitted != after.permitted);
            assert!(CapabilitySet::DAC_READ_SEARCH.contains(after.permitted));
            assert_eq!(after.effective, after.permitted);
            assert!(!give_up().unwrap(), "nothing is left to give up");
        })
        .join()
        .unwrap();
        assert_eq!(capabilities(None).unwrap(), before);
    }
}
