// SPDX-License-Identifier: Apache-2.0
//! Writes `newc` archives, the format of initial RAM disks
//! (Linux `Documentation/driver-api/early-userspace/buffer-format.rst`).

/// An archive in memory.
#[derive(Debug, Default)]
pub struct Archive {
    bytes: Vec<u8>,
    inode: u32,
}

const DIRECTORY: u32 = 0o040_000;
const REGULAR: u32 = 0o100_000;
const SYMLINK: u32 = 0o120_000;
const CHARACTER: u32 = 0o020_000;

impl Archive {
    /// Adds a directory.
    pub fn directory(&mut self, name: &str) {
        self.entry(name, DIRECTORY | 0o755, (0, 0), b"");
    }

    /// Adds a file that can be executed.
    pub fn executable(&mut self, name: &str, content: &[u8]) {
        self.entry(name, REGULAR | 0o755, (0, 0), content);
    }

    /// Adds a symbolic link.
    pub fn symlink(&mut self, name: &str, target: &str) {
        self.entry(name, SYMLINK | 0o777, (0, 0), target.as_bytes());
    }

    /// Adds a character device.
    pub fn character_device(&mut self, name: &str, major: u32, minor: u32) {
        self.entry(name, CHARACTER | 0o600, (major, minor), b"");
    }

    /// Returns the archive with its end mark.
    pub fn finish(mut self) -> Vec<u8> {
        self.inode = 0;
        self.entry("TRAILER!!!", 0, (0, 0), b"");
        self.bytes
    }

    fn entry(&mut self, name: &str, mode: u32, device: (u32, u32), content: &[u8]) {
        // The format has 32-bit lengths. The largest file in an archive is a program.
        let size = u32::try_from(content.len()).unwrap_or(u32::MAX);
        let name_size = u32::try_from(name.len() + 1).unwrap_or(u32::MAX);
        let links = if mode & 0o170_000 == DIRECTORY { 2 } else { 1 };
        self.bytes.extend_from_slice(b"070701");
        let fields = [
            self.inode, mode, 0, 0, links, 0, size, 0, 0, device.0, device.1, name_size, 0,
        ];
        for field in fields {
            self.bytes
                .extend_from_slice(format!("{field:08x}").as_bytes());
        }
        self.inode += 1;
        self.bytes.extend_from_slice(name.as_bytes());
        self.bytes.push(0);
        self.pad();
        self.bytes.extend_from_slice(content);
        self.pad();
    }

    fn pad(&mut self) {
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::process::{Command, Stdio};

    #[test]
    fn another_implementation_reads_the_archive_back() {
        let mut archive = Archive::default();
        archive.directory("bin");
        archive.executable("bin/odd", b"abcde");
        archive.symlink("bin/link", "odd");
        archive.character_device("console", 5, 1);
        let bytes = archive.finish();
        let Ok(mut reader) = Command::new("cpio")
            .args(["--list", "--verbose", "--quiet"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
        else {
            eprintln!("SKIPPED: the program cpio is missing");
            return;
        };
        reader.stdin.take().unwrap().write_all(&bytes).unwrap();
        let output = reader.wait_with_output().unwrap();
        assert!(output.status.success());
        let listing = String::from_utf8(output.stdout).unwrap();
        let lines: Vec<&str> = listing.lines().collect();
        assert_eq!(lines.len(), 4, "{listing}");
        assert!(lines[0].starts_with("drwxr-xr-x"));
        assert!(lines[1].starts_with("-rwxr-xr-x") && lines[1].contains(" 5 "));
        assert!(lines[2].contains("bin/link -> odd"));
        assert!(lines[3].starts_with("crw-------") && lines[3].contains("5,   1"));
    }

    #[test]
    fn every_entry_starts_on_a_multiple_of_four() {
        let mut archive = Archive::default();
        for length in 0..9 {
            archive.executable(&"n".repeat(length + 1), &vec![0xff; length]);
        }
        assert_eq!(archive.finish().len() % 4, 0);
    }
}
