// SPDX-License-Identifier: Apache-2.0
//! The entries of a tar archive from an untrusted source: POSIX ustar and pax (IEEE Std 1003.1-2017, `pax`), and GNU
//! tar's long names and large numbers. Nothing is written here.

use super::archive::{BLOCK, Refusal, cut_short, fill, has_checksum, octal};
use std::ffi::OsString;
use std::io::{self, Read};
use std::os::unix::ffi::OsStringExt;
use std::path::{Component, PathBuf};

/// The most bytes of one extended header or long name.
const MOST_EXTENDED: u64 = 1 << 20;
/// The most bytes of a name, Linux's `PATH_MAX`.
const LONGEST_NAME: usize = 4096;

/// The kind of an entry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Kind {
    /// A regular file.
    File,
    /// A further name of the file at a path below the archive's root.
    HardLink(PathBuf),
    /// A symbolic link with its target, which may lead anywhere.
    Link(PathBuf),
    /// A directory.
    Directory,
    /// A character or block device.
    Device,
    /// A named pipe.
    Fifo,
}

/// An entry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// Its path below the archive's root, without `.` and `..`; empty for the root itself.
    pub name: PathBuf,
    /// Its kind.
    pub kind: Kind,
    /// The permissions, with the set-user-ID, set-group-ID and sticky bits.
    pub mode: u32,
    /// The user id of its owner.
    pub uid: u32,
    /// The group id of its owner.
    pub gid: u32,
    /// The time of its last change, in seconds since 1970.
    pub mtime: i64,
    /// The bytes of its content.
    pub size: u64,
    /// The attribute `security.capability` of a program.
    pub capability: Option<Vec<u8>>,
}

/// The entries of an archive, in its order.
#[derive(Debug)]
pub struct Entries<R> {
    from: R,
    /// The bytes of the current entry's content that are not read.
    content: u64,
    padding: u64,
    /// The bytes read.
    offset: u64,
}

/// What extended headers replace in the next entry.
#[derive(Debug, Default)]
struct Extended {
    name: Option<Vec<u8>>,
    link: Option<Vec<u8>>,
    size: Option<u64>,
    uid: Option<u64>,
    gid: Option<u64>,
    mtime: Option<i64>,
    capability: Option<Vec<u8>>,
}

impl<R: Read> Entries<R> {
    /// The entries of an archive.
    pub fn new(from: R) -> Self {
        Self {
            from,
            content: 0,
            padding: 0,
            offset: 0,
        }
    }

    /// The next entry; `None` at the archive's end. The rest of the last entry's content is skipped.
    ///
    /// # Errors
    /// When the archive is cut short or malformed, or has an entry of an unsupported kind.
    pub fn next_entry(&mut self) -> Result<Option<Entry>, Refusal> {
        let mut extended = Extended::default();
        loop {
            self.skip()?;
            let mut block = [0; BLOCK];
            fill(&mut self.from, &mut block, "a header")?;
            self.offset += BLOCK as u64;
            if block.iter().all(|byte| *byte == 0) {
                return Ok(None);
            }
            let header = Header(&block);
            header.check()?;
            let size = header.number(124, 12, "size")?;
            self.begin(size)?;
            match block.get(156) {
                Some(b'x') => extended.read(&self.extension()?)?,
                Some(b'g') => drop(self.extension()?),
                Some(b'L') => extended.name = Some(without_end(self.extension()?)),
                Some(b'K') => extended.link = Some(without_end(self.extension()?)),
                _ => {
                    let entry = header.entry(extended)?;
                    self.begin(entry.size)?;
                    return Ok(Some(entry));
                }
            }
        }
    }

    /// The content of the current entry, of [`Entry::size`] bytes. A shorter content is an error of the next entry.
    pub fn content(&mut self) -> impl Read {
        Content(self)
    }

    /// The bytes read so far. After [`Entries::next_entry`], the offset of the entry's content.
    pub fn offset(&self) -> u64 {
        self.offset
    }

    fn begin(&mut self, size: u64) -> Result<(), Refusal> {
        let padded = size.checked_next_multiple_of(BLOCK as u64);
        let padded = padded.ok_or_else(|| malformed("an entry is larger than any file"))?;
        (self.content, self.padding) = (size, padded - size);
        Ok(())
    }

    fn extension(&mut self) -> Result<Vec<u8>, Refusal> {
        if self.content > MOST_EXTENDED {
            let size = self.content;
            return Err(malformed(format!(
                "an extended header has {size} bytes, and {MOST_EXTENDED} are allowed"
            )));
        }
        let mut bytes = Vec::new();
        // A short content is reported by the next `skip`.
        let _ = self.content().read_to_end(&mut bytes);
        Ok(bytes)
    }

    fn skip(&mut self) -> Result<(), Refusal> {
        let rest = self.content + self.padding;
        (self.content, self.padding) = (0, 0);
        let skipped = io::copy(&mut (&mut self.from).take(rest), &mut io::sink());
        self.offset += rest;
        match skipped {
            Ok(bytes) if bytes == rest => Ok(()),
            _ => Err(cut_short("a file")),
        }
    }
}

struct Content<'a, R>(&'a mut Entries<R>);

impl<R: Read> Read for Content<'_, R> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let read = (&mut self.0.from).take(self.0.content).read(into)?;
        self.0.content -= read as u64;
        self.0.offset += read as u64;
        Ok(read)
    }
}

struct Header<'a>(&'a [u8; BLOCK]);

impl Header<'_> {
    fn field(&self, from: usize, length: usize) -> &[u8] {
        let bytes = self.0.get(from..from + length).unwrap_or_default();
        let end = bytes.iter().position(|byte| *byte == 0);
        bytes.get(..end.unwrap_or(bytes.len())).unwrap_or_default()
    }

    fn check(&self) -> Result<(), Refusal> {
        if has_checksum(self.0) && self.field(257, 5) == b"ustar" {
            Ok(())
        } else {
            Err(malformed("a header is not one of a tar archive"))
        }
    }

    /// A number in octal digits, or in GNU tar's base 256.
    fn number(&self, from: usize, length: usize, what: &str) -> Result<u64, Refusal> {
        let bytes = self.0.get(from..from + length).unwrap_or_default();
        let wrong = || malformed(format!("a {what} is not a number"));
        match bytes.split_first() {
            Some((0x80, digits)) => digits
                .iter()
                .try_fold(0u64, |number, byte| {
                    number.checked_mul(256)?.checked_add(u64::from(*byte))
                })
                .ok_or_else(wrong),
            _ => match self.field(from, length) {
                [] => Ok(0),
                digits => octal(digits).ok_or_else(wrong),
            },
        }
    }

    fn entry(&self, extended: Extended) -> Result<Entry, Refusal> {
        let name = extended.name.unwrap_or_else(|| {
            let name = self.field(0, 100);
            // GNU tar has other fields in the place of the prefix.
            if self.0.get(257..263) == Some(b"ustar\0") && !self.field(345, 155).is_empty() {
                [self.field(345, 155), b"/", name].concat()
            } else {
                name.to_vec()
            }
        });
        let shown = String::from_utf8_lossy(&name).into_owned();
        let link = extended
            .link
            .unwrap_or_else(|| self.field(157, 100).to_vec());
        let kind = match self.0.get(156).copied().unwrap_or(0) {
            b'0' | b'7' | 0 => Kind::File,
            b'1' => Kind::HardLink(below(link)?),
            b'2' => Kind::Link(path(link)?),
            b'3' | b'4' => Kind::Device,
            b'5' => Kind::Directory,
            b'6' => Kind::Fifo,
            b'S' => return Err(sparse(&shown)),
            other => {
                let kind = char::from(other);
                return Err(malformed(format!(
                    "{shown:?} is of an unknown type ({kind:?})"
                )));
            }
        };
        let size = match (extended.size, &kind) {
            (Some(size), Kind::File) => size,
            (None, Kind::File) => self.number(124, 12, "size")?,
            // POSIX: other entries have no content, whatever their size says.
            _ => 0,
        };
        let id = |given: Option<u64>, from: usize, what: &str| {
            let id = given.map_or_else(|| self.number(from, 8, what), Ok)?;
            u32::try_from(id)
                .map_err(|_| malformed(format!("the {what} of {shown:?} is too large")))
        };
        let mode = self.number(100, 8, "mode")? & 0o7777;
        let mtime = match extended.mtime {
            Some(mtime) => mtime,
            // A time before 1970 is of no use to a program.
            None => self
                .number(136, 12, "time")
                .ok()
                .and_then(|time| i64::try_from(time).ok())
                .unwrap_or(0),
        };
        Ok(Entry {
            name: below(name)?,
            kind,
            mode: u32::try_from(mode).unwrap_or(0),
            uid: id(extended.uid, 108, "user id")?,
            gid: id(extended.gid, 116, "group id")?,
            mtime,
            size,
            capability: extended.capability,
        })
    }
}

impl Extended {
    /// Reads the records of a pax header, each `LENGTH KEY=VALUE` and a newline.
    fn read(&mut self, mut records: &[u8]) -> Result<(), Refusal> {
        let wrong = || malformed("an extended header is malformed");
        while !records.is_empty() {
            let blank = records.iter().position(|byte| *byte == b' ');
            let length: usize = blank
                .and_then(|at| str::from_utf8(records.get(..at)?).ok()?.parse().ok())
                .ok_or_else(wrong)?;
            let record = blank
                .and_then(|at| records.get(at + 1..length)?.strip_suffix(b"\n"))
                .ok_or_else(wrong)?;
            records = records.get(length..).ok_or_else(wrong)?;
            let equals = record.iter().position(|byte| *byte == b'=');
            let (key, value) = equals.map(|at| record.split_at(at)).ok_or_else(wrong)?;
            self.set(key, value.get(1..).unwrap_or_default())?;
        }
        Ok(())
    }

    fn set(&mut self, key: &[u8], value: &[u8]) -> Result<(), Refusal> {
        let number = || -> Result<u64, Refusal> {
            let text = str::from_utf8(value).ok();
            text.and_then(|text| text.parse().ok())
                .ok_or_else(|| malformed("a number of an extended header is malformed"))
        };
        match key {
            b"path" => self.name = Some(value.to_vec()),
            b"linkpath" => self.link = Some(value.to_vec()),
            b"size" => self.size = Some(number()?),
            b"uid" => self.uid = Some(number()?),
            b"gid" => self.gid = Some(number()?),
            b"mtime" => {
                let text = String::from_utf8_lossy(value);
                let seconds = text.split('.').next().unwrap_or_default();
                self.mtime = seconds.parse().ok();
            }
            b"SCHILY.xattr.security.capability" => self.capability = Some(value.to_vec()),
            _ if key.starts_with(b"GNU.sparse.") => return Err(sparse("an entry")),
            _ => {}
        }
        Ok(())
    }
}

fn sparse(name: &str) -> Refusal {
    malformed(format!(
        "{name} is a sparse file in GNU tar's form; pack it without --sparse"
    ))
}

fn malformed(why: impl Into<String>) -> Refusal {
    Refusal::Malformed(why.into())
}

/// The text of a GNU long name, which ends with a zero byte.
fn without_end(mut bytes: Vec<u8>) -> Vec<u8> {
    let end = bytes.iter().position(|byte| *byte == 0);
    bytes.truncate(end.unwrap_or(bytes.len()));
    bytes
}

fn path(bytes: Vec<u8>) -> Result<PathBuf, Refusal> {
    if bytes.len() >= LONGEST_NAME || bytes.contains(&0) {
        return Err(malformed(format!(
            "a name has {} bytes or a zero byte, and fewer than {LONGEST_NAME} are allowed",
            bytes.len()
        )));
    }
    Ok(OsString::from_vec(bytes).into())
}

/// A path below the archive's root. An absolute path starts there.
fn below(bytes: Vec<u8>) -> Result<PathBuf, Refusal> {
    let path = path(bytes)?;
    let mut below = PathBuf::new();
    for part in path.components() {
        match part {
            Component::Normal(name) => below.push(name),
            Component::RootDir | Component::CurDir => {}
            Component::ParentDir | Component::Prefix(_) => {
                return Err(malformed(format!("the name {path:?} leads outside")));
            }
        }
    }
    Ok(below)
}

#[cfg(test)]
mod tests {
    use super::super::archive::{entry, header};
    use super::*;
    use proptest::prelude::*;
    use std::path::Path;
    use std::process::Command;

    fn all(archive: &[u8]) -> Result<Vec<(Entry, Vec<u8>)>, Refusal> {
        let mut entries = Entries::new(archive);
        let mut found = Vec::new();
        while let Some(entry) = entries.next_entry()? {
            let mut content = Vec::new();
            entries.content().read_to_end(&mut content).unwrap();
            found.push((entry, content));
        }
        Ok(found)
    }

    fn ended(mut archive: Vec<u8>) -> Vec<u8> {
        archive.extend([0; 2 * BLOCK]);
        archive
    }

    fn refused(archive: &[u8]) -> String {
        match all(archive) {
            Err(Refusal::Malformed(why)) => why,
            other => panic!("{other:?}"),
        }
    }

    fn pax(records: &[(&str, &str)]) -> Vec<u8> {
        let text: String = records
            .iter()
            .map(|(key, value)| {
                let bare = key.len() + value.len() + 3;
                let digits = (bare + 2).to_string().len();
                let length = bare + digits;
                format!("{length} {key}={value}\n")
            })
            .collect();
        entry("pax", b'x', text.as_bytes())
    }

    #[test]
    fn names_owners_and_links_are_those_that_tar_packed_in_every_format() {
        let from = tempfile::tempdir().unwrap();
        let long = "l".repeat(120);
        std::fs::create_dir(from.path().join(&long)).unwrap();
        std::fs::write(from.path().join(&long).join(&long), "content").unwrap();
        std::fs::hard_link(
            from.path().join(&long).join(&long),
            from.path().join("hard"),
        )
        .unwrap();
        std::os::unix::fs::symlink(format!("/{long}/../x"), from.path().join("soft")).unwrap();
        for format in ["gnu", "pax"] {
            let packed = Command::new("tar")
                .arg(format!("--format={format}"))
                .args([
                    "--owner=:3000000",
                    "--group=:7",
                    "--sort=name",
                    "-cf",
                    "-",
                    "-C",
                ])
                .arg(from.path())
                .arg(".")
                .output()
                .unwrap();
            let entries = all(&packed.stdout).unwrap();
            let names: Vec<_> = entries
                .iter()
                .map(|(entry, _)| (entry.name.display().to_string(), entry.kind.clone()))
                .collect();
            let file = PathBuf::from("hard");
            assert_eq!(
                names,
                [
                    (String::new(), Kind::Directory),
                    ("hard".to_owned(), Kind::File),
                    (long.clone(), Kind::Directory),
                    (format!("{long}/{long}"), Kind::HardLink(file)),
                    (
                        "soft".to_owned(),
                        Kind::Link(format!("/{long}/../x").into())
                    ),
                ]
            );
            assert_eq!(entries[1].1, b"content");
            assert_eq!((entries[1].0.uid, entries[1].0.gid), (3_000_000, 7));
        }
    }

    #[test]
    fn a_name_that_leads_outside_is_refused_and_an_absolute_one_starts_at_the_root() {
        for name in ["../x", "a/../../x", "a/.."] {
            for archive in [
                entry(name, b'0', b""),
                [pax(&[("path", name)]), entry("a", b'0', b"")].concat(),
                header("a", b'1', 0, 0o644, name),
            ] {
                assert!(refused(&ended(archive)).contains("outside"), "{name}");
            }
        }
        let found = all(&ended(entry("/etc/./passwd", b'0', b""))).unwrap();
        assert_eq!(found[0].0.name, Path::new("etc/passwd"));
    }

    #[test]
    fn sparse_files_unknown_types_and_long_headers_are_refused_by_name() {
        assert!(refused(&ended(entry("a", b'S', b""))).contains("--sparse"));
        let sparse = [pax(&[("GNU.sparse.major", "1")]), entry("a", b'0', b"")].concat();
        assert!(refused(&ended(sparse)).contains("--sparse"));
        assert!(refused(&ended(entry("a", b'Z', b""))).contains("unknown type"));
        for kind in *b"xgLK" {
            let why = refused(&header("a", kind, 1 << 30, 0o644, ""));
            assert!(why.contains("1048576 are allowed"), "{why}");
        }
        let long = "n".repeat(5000);
        let long = [entry("a", b'L', long.as_bytes()), entry("a", b'0', b"")].concat();
        assert!(refused(&ended(long)).contains("4096"));
    }

    #[test]
    fn an_archive_that_is_cut_short_is_refused_wherever_it_is_cut() {
        let whole = ended([pax(&[("path", "b")]), entry("a", b'0', b"12345")].concat());
        for length in 0..4 * BLOCK {
            let why = refused(&whole[..length]);
            assert!(
                why.contains("ends within") || why.contains("malformed"),
                "{length}: {why}"
            );
        }
    }

    #[test]
    fn a_size_that_no_file_can_have_is_refused() {
        let mut huge = header("a", b'0', 0, 0o644, "");
        huge[124..136].fill(0xff);
        huge[124] = 0x80;
        // The checksum is one of the new header.
        huge[148..156].fill(b' ');
        let sum: u64 = huge.iter().map(|byte| u64::from(*byte)).sum();
        huge[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
        assert!(refused(&huge).contains("not a number"));
        let huge = [
            pax(&[("size", "18446744073709551615")]),
            entry("a", b'0', b""),
        ]
        .concat();
        assert!(refused(&huge).contains("larger than any file"));
    }

    proptest! {
        #[test]
        fn no_bytes_make_it_panic(bytes in proptest::collection::vec(any::<u8>(), 0..2048), at in 0usize..2048) {
            let _ = all(&bytes);
            let mut archive = ended([pax(&[("path", "b"), ("size", "5")]), entry("a", b'0', b"12345")].concat());
            if let (Some(place), Some(byte)) = (archive.get_mut(at), bytes.first()) {
                *place = *byte;
            }
            let _ = all(&archive);
        }
    }
}
