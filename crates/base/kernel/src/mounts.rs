// SPDX-License-Identifier: Apache-2.0
//! The mounts of a process: the parser of `/proc/PID/mountinfo` (proc_pid_mountinfo(5)).

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;

/// One line of mountinfo.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mount {
    /// The directory of the file system that is mounted.
    pub root: PathBuf,
    /// The mount point.
    pub point: PathBuf,
    /// The type of file system, such as `cgroup2`.
    pub kind: String,
    /// The file system's own options.
    pub options: Vec<String>,
}

/// Parses a table of mounts; other lines are skipped.
pub fn parse(table: &[u8]) -> impl Iterator<Item = Mount> {
    table.split(|byte| *byte == b'\n').filter_map(mount)
}

fn mount(line: &[u8]) -> Option<Mount> {
    let mut fields = line.split(|byte| *byte == b' ');
    let path = |field| PathBuf::from(OsString::from_vec(unescape(field)));
    // Skips the mount's number, its parent's number and the device.
    let (root, point) = (path(fields.nth(3)?), path(fields.next()?));
    // The mount's own options, then optional fields up to a dash; the source is not needed.
    fields.find(|field| *field == b"-")?;
    let (kind, options) = (fields.next()?, fields.nth(1)?);
    Some(Mount {
        root,
        point,
        kind: String::from_utf8_lossy(kind).into_owned(),
        options: String::from_utf8_lossy(options)
            .split(',')
            .map(str::to_owned)
            .collect(),
    })
}

/// Undoes the kernel's octal escapes (`mangle_path` of `fs/seq_file.c`): blanks, backslashes and
/// `#` in paths are written as `\040`.
fn unescape(mut field: &[u8]) -> Vec<u8> {
    let mut plain = Vec::with_capacity(field.len());
    while let Some((&first, rest)) = field.split_first() {
        let (byte, rest) = match (first, rest) {
            (b'\\', [a @ b'0'..=b'3', b @ b'0'..=b'7', c @ b'0'..=b'7', rest @ ..]) => {
                (((a & 3) << 6) | ((b & 7) << 3) | (c & 7), rest)
            }
            _ => (first, rest),
        };
        plain.push(byte);
        field = rest;
    }
    plain
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::os::unix::ffi::OsStrExt;
    use std::path::Path;

    #[test]
    fn a_line_with_and_without_optional_fields_is_read_and_garbage_is_passed_over() {
        let table = b"36 35 98:0 /a /b\\040c rw,noatime master:1 shared:2 - cgroup name rw,cpu\ngarbage\n\n\
            37 35 0:9 / /d rw - tmpfs tmpfs rw\n1 2 3 4 5 6 - x\n";
        let found: Vec<Mount> = parse(table).collect();
        assert_eq!(found.len(), 2);
        assert_eq!(found[0].root, Path::new("/a"));
        assert_eq!(found[0].point, Path::new("/b c"));
        assert_eq!(found[0].kind, "cgroup");
        assert_eq!(found[0].options, ["rw", "cpu"]);
        assert_eq!(found[1].point, Path::new("/d"));
    }

    proptest! {
        #[test]
        fn every_path_comes_back_as_it_was(path in prop::collection::vec(1_u8.., 0..40), all in any::<bool>()) {
            // The kernel escapes only the bytes that would break the line; the parser accepts any escaped byte.
            let escaped: Vec<u8> = path
                .iter()
                .flat_map(|byte| if all || b" \t\n\\#".contains(byte) {
                    format!("\\{byte:03o}").into_bytes()
                } else {
                    vec![*byte]
                })
                .collect();
            let line = [b"1 2 0:3 / ", escaped.as_slice(), b" rw - ext4 /dev/x rw"].concat();
            let found: Vec<Mount> = parse(&line).collect();
            prop_assert_eq!(found[0].point.as_os_str().as_bytes(), path);
        }

        #[test]
        fn any_table_is_read_without_a_panic(table in prop::collection::vec(any::<u8>(), 0..200)) {
            parse(&table).for_each(drop);
        }
    }
}
