// SPDX-License-Identifier: Apache-2.0
//! Unpacks a plain `ustar` archive from another machine (POSIX.1-1988; GNU tar's own format is the same for short
//! names). Only regular files with safe names are accepted. No file is written outside the directory, through a link,
//! with more permissions than data files need, or beyond a size limit.

use std::io::{self, Read};
use std::path::{Component, Path, PathBuf};
use vtax_files::{Dir, FileError};

pub(super) const BLOCK: usize = 512;

/// The reason for refusing an archive.
#[derive(Debug)]
pub enum Refusal {
    /// The archive is malformed, contains an unsupported entry, or exceeds the budget.
    Malformed(String),
    /// This host could not store a file.
    Store(FileError),
}

/// The remaining limits for one machine, over all of its archives.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Budget {
    /// Bytes of file contents.
    pub bytes: u64,
    /// Entries with a header: files, directories and others.
    pub entries: u64,
}

impl Budget {
    /// The budget of a run: far more than twice the output of the longest run.
    pub const RUN: Self = Self {
        bytes: 16 << 30,
        entries: 1_000_000,
    };

    fn take(&mut self, entry: &Entry) -> Result<(), Refusal> {
        let name = entry.name.display();
        let exhausted = |what: String| Refusal::Malformed(format!("{what}, at {name}"));
        self.entries = self
            .entries
            .checked_sub(1)
            .ok_or_else(|| exhausted("it has too many entries".to_owned()))?;
        self.bytes = self.bytes.checked_sub(entry.size).ok_or_else(|| {
            let (size, left) = (entry.size, self.bytes);
            exhausted(format!(
                "it has too many bytes ({size}, and {left} may come)"
            ))
        })?;
        Ok(())
    }
}

/// Unpacks the `wanted` files, selected by their paths below an existing directory, and creates the directories that
/// they need. Each file replaces an existing file or link of its name, and is stored whole or not at all.
///
/// # Errors
/// When the archive is cut short or malformed, has a path outside the directory, contains anything but files and
/// directories, or exceeds the budget. Files before the error are unpacked.
pub fn unpack(
    mut from: impl Read,
    into: &Dir,
    wanted: &dyn Fn(&Path) -> bool,
    budget: &mut Budget,
) -> Result<(), Refusal> {
    let mut block = [0; BLOCK];
    loop {
        fill(&mut from, &mut block, "a header")?;
        if block.iter().all(|byte| *byte == 0) {
            return Ok(());
        }
        let entry = Entry::read(&block)?;
        budget.take(&entry)?;
        if let Kind::Directory = entry.kind {
            continue;
        }
        let mut content = (&mut from).take(entry.size);
        if wanted(&entry.name) {
            store(&mut content, into, &entry.name)?;
        } else {
            io::copy(&mut content, &mut io::sink()).map_err(|_| cut_short("a file"))?;
        }
        if content.limit() > 0 {
            return Err(cut_short(&entry.name.display().to_string()));
        }
        let padding = (BLOCK - usize::try_from(entry.size % BLOCK as u64).unwrap_or(0)) % BLOCK;
        let rest = block.get_mut(..padding).unwrap_or_default();
        fill(&mut from, rest, "padding")?;
    }
}

/// Stores one file; a truncated one is not stored.
fn store(content: &mut io::Take<impl Read>, into: &Dir, name: &Path) -> Result<(), Refusal> {
    if let Some(parent) = name.parent() {
        into.create_dir(parent).map_err(Refusal::Store)?;
    }
    let mut file = into.replace(name).map_err(Refusal::Store)?;
    io::copy(content, file.file()).map_err(|cause| {
        Refusal::Store(FileError {
            action: "write",
            path: into.path().join(name),
            cause,
        })
    })?;
    if content.limit() > 0 {
        return Ok(());
    }
    file.finish().map_err(Refusal::Store)
}

pub(super) fn fill(from: &mut impl Read, block: &mut [u8], what: &str) -> Result<(), Refusal> {
    from.read_exact(block).map_err(|_| cut_short(what))
}

pub(super) fn cut_short(what: &str) -> Refusal {
    Refusal::Malformed(format!("it ends within {what}"))
}

enum Kind {
    Directory,
    File,
}

struct Entry {
    name: PathBuf,
    size: u64,
    kind: Kind,
}

impl Entry {
    fn read(block: &[u8; BLOCK]) -> Result<Self, Refusal> {
        let field = |from: usize, length: usize| -> &[u8] {
            let bytes = block.get(from..from + length).unwrap_or_default();
            let end = bytes.iter().position(|byte| *byte == 0);
            bytes.get(..end.unwrap_or(bytes.len())).unwrap_or_default()
        };
        let malformed = |what: String| Refusal::Malformed(what);
        if !has_checksum(block) || field(257, 5) != b"ustar" {
            return Err(malformed("a header is not one of a ustar archive".into()));
        }
        let text = |bytes: &[u8]| {
            String::from_utf8(bytes.to_vec()).map_err(|_| malformed("a name is not UTF-8".into()))
        };
        let (prefix, name) = (text(field(345, 155))?, text(field(0, 100))?);
        let whole = if prefix.is_empty() {
            name
        } else {
            format!("{prefix}/{name}")
        };
        let name: PathBuf = Path::new(&whole)
            .components()
            .filter(|part| *part != Component::CurDir)
            .collect();
        if !name
            .components()
            .all(|part| matches!(part, Component::Normal(_)))
        {
            return Err(malformed(format!("the name {whole:?} leads outside")));
        }
        let size = octal(field(124, 12))
            .ok_or_else(|| malformed(format!("the size of {whole:?} is not a number")))?;
        let kind = match block.get(156) {
            Some(b'0' | 0) if name.file_name().is_none() => {
                return Err(malformed("a file has no name".into()));
            }
            Some(b'0' | 0) => Kind::File,
            Some(b'5') if size == 0 => Kind::Directory,
            other => {
                let kind = other.map_or(' ', |byte| char::from(*byte));
                return Err(malformed(format!(
                    "{whole:?} is neither a file nor a directory (type {kind:?})"
                )));
            }
        };
        Ok(Self { name, size, kind })
    }
}

/// Whether the checksum of a header is right. It covers the header with blanks in its own place.
pub(super) fn has_checksum(block: &[u8; BLOCK]) -> bool {
    let is_own = |at: usize| (148..156).contains(&at);
    let sum: u64 = block
        .iter()
        .enumerate()
        .map(|(at, byte)| u64::from(if is_own(at) { b' ' } else { *byte }))
        .sum();
    let field = block.get(148..156).unwrap_or_default();
    let digits = field.split(|byte| *byte == 0).next().unwrap_or_default();
    octal(digits) == Some(sum)
}

pub(super) fn octal(field: &[u8]) -> Option<u64> {
    let text = str::from_utf8(field).ok()?.trim_matches(' ');
    u64::from_str_radix(text, 8).ok()
}

/// A header and its content, as `tar --format=ustar` writes them.
#[cfg(any(test, feature = "testing"))]
pub fn entry(name: &str, kind: u8, content: &[u8]) -> Vec<u8> {
    let mut block = header(name, kind, content.len() as u64, 0o644, "");
    block.extend_from_slice(content);
    block.resize(block.len().next_multiple_of(BLOCK), 0);
    block
}

/// A header alone, with any size and mode, and with a link's target. Its owner is the user of this process, so that tests
/// need no root.
#[cfg(any(test, feature = "testing"))]
pub fn header(name: &str, kind: u8, size: u64, mode: u32, link: &str) -> Vec<u8> {
    let mut block = vec![0; BLOCK];
    let mut put = |at: usize, bytes: &[u8]| {
        if let Some(field) = block.get_mut(at..at + bytes.len()) {
            field.copy_from_slice(bytes);
        }
    };
    put(0, name.as_bytes());
    put(100, format!("{mode:07o}\0").as_bytes());
    put(
        108,
        format!("{:07o}\0", rustix::process::geteuid().as_raw()).as_bytes(),
    );
    put(
        116,
        format!("{:07o}\0", rustix::process::getegid().as_raw()).as_bytes(),
    );
    put(124, format!("{size:011o}\0").as_bytes());
    put(148, b"        ");
    put(156, &[kind]);
    put(157, link.as_bytes());
    put(257, b"ustar\x0000");
    let sum: u64 = block.iter().map(|byte| u64::from(*byte)).sum();
    if let Some(field) = block.get_mut(148..156) {
        field.copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    }
    block
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::fs;
    use std::os::unix::fs::{PermissionsExt, symlink};
    use std::process::{Command, Stdio};

    const SMALL: Budget = Budget {
        bytes: 1 << 20,
        entries: 100,
    };

    fn unpack_all(archive: &[u8], into: &Path) -> Result<(), Refusal> {
        unpack(
            archive,
            &Dir::open(into).unwrap(),
            &|_| true,
            &mut SMALL.clone(),
        )
    }

    fn ended(mut archive: Vec<u8>) -> Vec<u8> {
        archive.extend([0; 2 * BLOCK]);
        archive
    }

    fn refused(archive: &[u8]) -> String {
        let into = tempfile::tempdir().unwrap();
        match unpack_all(archive, into.path()) {
            Err(Refusal::Malformed(why)) => {
                assert_eq!(fs::read_dir(into.path()).unwrap().count(), 0, "{why}");
                why
            }
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn what_tar_packs_is_unpacked_unchanged() {
        let from = tempfile::tempdir().unwrap();
        fs::create_dir_all(from.path().join("trials/0000")).unwrap();
        fs::write(from.path().join("run.json"), "{}").unwrap();
        let odd = vec![7; 1234];
        fs::write(from.path().join("trials/0000/samples"), &odd).unwrap();
        for format in ["ustar", "gnu"] {
            let Ok(packed) = Command::new("tar")
                .arg(format!("--format={format}"))
                .args(["-cf", "-", "-C"])
                .arg(from.path())
                .arg(".")
                .stderr(Stdio::inherit())
                .output()
            else {
                eprintln!("SKIPPED: the program tar is missing");
                return;
            };
            let into = tempfile::tempdir().unwrap();
            unpack_all(&packed.stdout, into.path()).unwrap();
            let read = |name: &str| fs::read(into.path().join(name)).unwrap();
            assert_eq!(read("trials/0000/samples"), odd);
            assert_eq!(read("run.json"), b"{}");
        }
    }

    #[test]
    fn an_archive_that_is_cut_short_is_refused_wherever_it_is_cut() {
        let whole = ended(entry("a", b'0', b"12345"));
        for length in 0..2 * BLOCK {
            let into = tempfile::tempdir().unwrap();
            let why = unpack_all(&whole[..length], into.path());
            assert!(
                matches!(&why, Err(Refusal::Malformed(why)) if why.contains("ends within")),
                "{length}: {why:?}"
            );
            // A file that is stored lacks at most its padding.
            let has_come = into.path().join("a").exists();
            assert_eq!(has_come, length >= BLOCK + 5, "{length}");
            assert!(fs::read_dir(into.path()).unwrap().count() <= 1);
        }
    }

    #[test]
    fn nothing_is_written_outside() {
        for name in ["../x", "/etc/x", "a/../../x", "a/.."] {
            let why = refused(&ended(entry(name, b'0', b"x")));
            assert!(why.contains("outside"), "{why}");
        }
    }

    #[test]
    fn links_hard_links_and_devices_are_refused() {
        for kind in *b"123467xgLKS" {
            let why = refused(&ended(entry("a", kind, b"")));
            assert!(why.contains("neither"), "{why}");
        }
    }

    #[test]
    fn a_link_to_a_directory_that_was_there_before_is_not_followed() {
        let outside = tempfile::tempdir().unwrap();
        let into = tempfile::tempdir().unwrap();
        symlink(outside.path(), into.path().join("trials")).unwrap();
        let archive = ended(entry("trials/x", b'0', b"x"));
        assert!(matches!(
            unpack_all(&archive, into.path()),
            Err(Refusal::Store(..))
        ));
        assert_eq!(fs::read_dir(outside.path()).unwrap().count(), 0);
    }

    #[test]
    fn a_link_in_the_place_of_a_file_is_replaced_and_its_target_stays_as_it_was() {
        let outside = tempfile::NamedTempFile::new().unwrap();
        let into = tempfile::tempdir().unwrap();
        symlink(outside.path(), into.path().join("a")).unwrap();
        fs::write(into.path().join("c"), "one").unwrap();
        fs::hard_link(into.path().join("c"), into.path().join("d")).unwrap();
        let archive = [("a", b"x"), ("b", b"y"), ("c", b"z")]
            .map(|(name, content)| entry(name, b'0', content));
        unpack_all(&ended(archive.concat()), into.path()).unwrap();
        assert_eq!(fs::read(outside.path()).unwrap(), b"");
        for (name, content) in [("a", "x"), ("b", "y"), ("c", "z"), ("d", "one")] {
            let path = into.path().join(name);
            assert!(fs::symlink_metadata(&path).unwrap().is_file());
            assert_eq!(fs::read_to_string(path).unwrap(), content);
        }
    }

    #[test]
    fn no_mode_of_an_archive_is_kept() {
        let into = tempfile::tempdir().unwrap();
        let mut archive = header("d", b'5', 0, 0o7777, "");
        for mode in [0o4755, 0o2755, 0o1777, 0o7777, 0] {
            archive.extend(header(&format!("d/{mode:o}"), b'0', 0, mode, ""));
        }
        unpack_all(&ended(archive), into.path()).unwrap();
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o7777;
        assert_eq!(mode(&into.path().join("d")) & !0o775, 0);
        let files = fs::read_dir(into.path().join("d")).unwrap().flatten();
        let modes: Vec<u32> = files.map(|file| mode(&file.path())).collect();
        assert_eq!(modes.len(), 5);
        assert!(modes.iter().all(|mode| mode & !0o664 == 0), "{modes:?}");
    }

    #[test]
    fn what_is_not_wanted_is_passed_over() {
        let into = tempfile::tempdir().unwrap();
        let archive = ["x/a", "b", "x/c"].map(|name| entry(name, b'0', b"12345"));
        let wanted = |name: &Path| name == Path::new("b");
        unpack(
            ended(archive.concat()).as_slice(),
            &Dir::open(into.path()).unwrap(),
            &wanted,
            &mut SMALL.clone(),
        )
        .unwrap();
        let names: Vec<_> = fs::read_dir(into.path()).unwrap().flatten().collect();
        assert!(names.len() == 1 && names[0].file_name() == "b", "{names:?}");
    }

    #[test]
    fn a_name_that_comes_twice_is_the_later_file() {
        let into = tempfile::tempdir().unwrap();
        let archive = [entry("a", b'0', b"first"), entry("a", b'0', b"2nd")].concat();
        unpack_all(&ended(archive), into.path()).unwrap();
        assert_eq!(fs::read(into.path().join("a")).unwrap(), b"2nd");
    }

    #[test]
    fn a_file_in_the_place_of_a_directory_and_the_reverse_are_errors() {
        for (first, second) in [("a", "a/b"), ("a/b", "a")] {
            let into = tempfile::tempdir().unwrap();
            let archive = [entry(first, b'0', b"x"), entry(second, b'0', b"y")].concat();
            let refused = unpack_all(&ended(archive), into.path());
            assert!(matches!(refused, Err(Refusal::Store(..))), "{refused:?}");
            assert_eq!(fs::read(into.path().join(first)).unwrap(), b"x");
        }
    }

    #[test]
    fn a_huge_file_is_refused_before_it_comes() {
        for size in [(1 << 20) + 1, 0o77_777_777_777] {
            let why = refused(&header("a", b'0', size, 0o644, ""));
            assert!(why.contains("too many bytes"), "{why}");
        }
        // GNU tar's encoding of larger sizes.
        let mut other = header("a", b'0', 0, 0o644, "");
        other[124] = 0x80;
        assert!(!refused(&other).is_empty());
    }

    #[test]
    fn one_budget_bounds_the_bytes_and_entries_of_several_archives() {
        let into = tempfile::tempdir().unwrap();
        let one = ended([entry("d", b'5', b""), entry("a", b'0', &[7; 600])].concat());
        let mut budget = Budget {
            bytes: 1500,
            entries: 6,
        };
        let mut next = || {
            unpack(
                one.as_slice(),
                &Dir::open(into.path()).unwrap(),
                &|_| true,
                &mut budget,
            )
        };
        next().unwrap();
        next().unwrap();
        let many = format!("{:?}", next().unwrap_err());
        assert!(many.contains("too many bytes"), "{many}");
        budget = Budget {
            bytes: 1500,
            entries: 1,
        };
        let many = unpack(
            one.as_slice(),
            &Dir::open(into.path()).unwrap(),
            &|_| false,
            &mut budget,
        );
        assert!(format!("{many:?}").contains("too many entries"), "{many:?}");
    }

    proptest! {
        #[test]
        fn no_bytes_make_it_panic(bytes in proptest::collection::vec(any::<u8>(), 0..2048), at in 0usize..2048) {
            let into = tempfile::tempdir().unwrap();
            let _ = unpack_all(&bytes, into.path());
            // A valid header but for one byte.
            let mut archive = ended(entry("a", b'0', b"12345"));
            if let (Some(place), Some(byte)) = (archive.get_mut(at), bytes.first()) {
                *place = *byte;
            }
            let _ = unpack_all(&archive, into.path());
        }
    }
}
