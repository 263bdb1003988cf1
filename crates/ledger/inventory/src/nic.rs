// SPDX-License-Identifier: Apache-2.0
//! Recognition of the vtax NIC, a process beside a monitor that works for the guests whose memory it maps.

use std::collections::HashSet;
use vtax_kernel::Process;
use vtax_kernel::text;

/// A mapped file: its device, in the kernel's format, and its inode.
pub(super) type File = (Vec<u8>, u64);

/// Whether a command line is that of a NIC process, as opposed to its clients `ctl` and `top`.
pub(super) fn is_nic(arguments: &[Vec<u8>]) -> bool {
    let mut words = arguments.iter().map(Vec::as_slice);
    let first = match words.next().map(super::base_name) {
        Some(b"vtax-nic") => words.next(),
        Some(b"vtax") if words.next() == Some(b"nic") => words.next(),
        _ => None,
    };
    first.is_some_and(|first| first.starts_with(b"-"))
}

/// The files, devices excluded, that a process maps shared. Only the monitor can pass on a guest's memory, so a mapping
/// cannot be forged, unlike a name or a command line.
pub(super) fn shared_files(process: Process<'_>) -> HashSet<File> {
    let table = std::fs::read(process.path("maps")).unwrap_or_default();
    let shared = |line: &[u8]| {
        let mut fields = text::fields(line).skip(1);
        let (rights, device, inode) = (fields.next()?, fields.nth(1)?, fields.next()?);
        let path = fields.next().unwrap_or_default();
        let is_device = path.starts_with(b"anon_inode:")
            || path.starts_with(b"/dev/")
                && !path.starts_with(b"/dev/shm/")
                && !path.starts_with(b"/dev/hugepages/");
        let inode = text::number(inode).filter(|inode| *inode != 0)?;
        (rights == b"rw-s" && !is_device).then(|| (device.to_vec(), inode))
    };
    text::lines(&table).filter_map(shared).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_nic_is_known_by_its_name_and_its_clients_are_not() {
        for (text, expected) in [
            ("vtax-nic --socket-path /run/vm1 --tap t", true),
            ("/usr/bin/vtax nic --config /etc/nic.toml", true),
            ("vtax-nic ctl --socket /a", false),
            ("vtax nic top --socket /a", false),
            ("vtax mvm --socket-path /a", false),
            ("vtax-nic", false),
        ] {
            let line: Vec<Vec<u8>> = text.split(' ').map(|part| part.into()).collect();
            assert_eq!(is_nic(&line), expected, "{text}");
        }
    }

    #[test]
    fn memory_that_is_shared_counts_and_devices_and_programs_do_not() {
        let proc = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(proc.path().join("7")).unwrap();
        let maps = "\
            7f00-7f10 rw-s 00000000 00:01 77      /memfd:memory-backend-memfd (deleted)\n\
            7f10-7f20 rw-s 00000000 00:2b 5 /dev/hugepages/vm\n\
            7f20-7f30 rw-s 00000000 00:0e 1057 anon_inode:kvm-vcpu:0\n\
            7f30-7f40 rw-s 00000000 00:05 9 /dev/vfio/1\n\
            7f40-7f50 rw-p 00000000 fe:01 12 /usr/bin/x\n\
            7f50-7f60 rw-s 00000000 00:00 0\n\
            nonsense\n";
        std::fs::write(proc.path().join("7/maps"), maps).unwrap();
        let files = shared_files(Process::new(proc.path(), 7));
        let expected = [(b"00:01".to_vec(), 77), (b"00:2b".to_vec(), 5)];
        assert_eq!(files, HashSet::from(expected));
    }
}
