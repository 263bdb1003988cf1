//! QEMU tells thread ids as its own PID namespace counts them; the host counts otherwise.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use vtax_host::HostError;

/// The host's thread id for each of a process's threads, by the id that it has in the innermost
/// PID namespace (`NSpid` in `/proc/PID/task/TID/status`, proc(5)).
///
/// # Errors
/// When the process is gone.
pub(super) fn by_inner_id(process: u32) -> Result<BTreeMap<u32, u32>, HostError> {
    by_inner_id_below(&Path::new("/proc").join(process.to_string()).join("task"))
}

fn by_inner_id_below(tasks: &Path) -> Result<BTreeMap<u32, u32>, HostError> {
    let entries = fs::read_dir(tasks).map_err(HostError::file("read", tasks))?;
    Ok(entries
        .filter_map(Result::ok)
        .filter_map(|entry| {
            let host: u32 = entry.file_name().to_str()?.parse().ok()?;
            // A thread that ends in between is not one of those that QEMU tells of.
            let status = fs::read_to_string(entry.path().join("status")).ok()?;
            Some((inner_id(&status)?, host))
        })
        .collect())
}

/// The last of `NSpid: 4242 17 3`: the namespaces come from the reader's inwards.
fn inner_id(status: &str) -> Option<u32> {
    status
        .lines()
        .find_map(|line| line.strip_prefix("NSpid:"))?
        .split_whitespace()
        .last()?
        .parse()
        .ok()
}

/// Translates ids that QEMU told.
///
/// # Errors
/// The first id that none of the process's threads has.
pub(super) fn on_host(process: u32, told: &[u32]) -> Result<Vec<u32>, HostError> {
    let known = by_inner_id(process)?;
    told.iter()
        .map(|id| {
            known.get(id).copied().ok_or_else(|| HostError::Protocol {
                peer: "QEMU".into(),
                detail: format!("it tells of a thread {id}, which process {process} does not have"),
            })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_innermost_id_is_the_one_that_qemu_tells() {
        assert_eq!(
            inner_id("Name:\tCPU 0/TCG\nNSpid:\t4242\t17\t3\nThreads:\t1\n"),
            Some(3)
        );
        assert_eq!(inner_id("NSpid:\t4242\n"), Some(4242));
        assert_eq!(inner_id("Name: x\n"), None);
        assert_eq!(inner_id("NSpid:\tgarbage\n"), None);
    }

    #[test]
    fn a_thread_that_ends_meanwhile_is_left_out() {
        let tasks = tempfile::tempdir().unwrap();
        for (thread, status) in [
            ("100", Some("NSpid: 100 5")),
            ("101", None),
            ("x", Some("NSpid: 1 1")),
        ] {
            let dir = tasks.path().join(thread);
            fs::create_dir(&dir).unwrap();
            if let Some(status) = status {
                fs::write(dir.join("status"), status).unwrap();
            }
        }
        assert_eq!(
            by_inner_id_below(tasks.path()).unwrap(),
            BTreeMap::from([(5, 100)])
        );
    }

    #[test]
    fn an_unknown_thread_is_an_error_that_names_it() {
        let text = on_host(std::process::id(), &[u32::MAX])
            .unwrap_err()
            .to_string();
        assert!(text.contains(&u32::MAX.to_string()), "{text}");
    }
}
