//! Unpacks what comes out of an emulated host: a plain `ustar` archive (POSIX.1-1988), of which
//! only directories and regular files with tame names are taken. The host is ours, but what ran
//! in it need not be: nothing that it writes may reach beyond the directory of the results.

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Component, Path, PathBuf};

const BLOCK: usize = 512;

/// Why an archive is refused.
#[derive(Debug)]
pub(crate) enum Refusal {
    /// It is not what the protocol says.
    Malformed(String),
    /// This host could not store it.
    Store(PathBuf, io::Error),
}

/// Unpacks an archive into an existing directory, replacing files that are there.
///
/// # Errors
/// When it is cut short or malformed, names anything outside, or holds anything but files and
/// directories. What came before the fault is unpacked.
pub(crate) fn unpack(mut from: impl Read, into: &Path) -> Result<(), Refusal> {
    let mut block = [0; BLOCK];
    loop {
        fill(&mut from, &mut block, "a header")?;
        if block.iter().all(|byte| *byte == 0) {
            return Ok(());
        }
        let entry = Entry::read(&block)?;
        let path = into.join(&entry.name);
        match entry.kind {
            Kind::Directory => create_directories(into, &entry.name)?,
            Kind::File => {
                if let Some(parent) = entry.name.parent() {
                    create_directories(into, parent)?;
                }
                // A link that was there before is replaced, not followed.
                match fs::remove_file(&path) {
                    Ok(()) => {}
                    Err(cause) if cause.kind() == io::ErrorKind::NotFound => {}
                    Err(cause) => return Err(Refusal::Store(path, cause)),
                }
                let mut file =
                    File::create_new(&path).map_err(|cause| Refusal::Store(path.clone(), cause))?;
                let copied = io::copy(&mut (&mut from).take(entry.size), &mut file)
                    .map_err(|cause| Refusal::Store(path.clone(), cause))?;
                if copied < entry.size {
                    return Err(cut_short(&entry.name.display().to_string()));
                }
                let padding =
                    (BLOCK - usize::try_from(entry.size % BLOCK as u64).unwrap_or(0)) % BLOCK;
                let rest = block.get_mut(..padding).unwrap_or_default();
                fill(&mut from, rest, "padding")?;
            }
        }
    }
}

fn fill(from: &mut impl Read, block: &mut [u8], what: &str) -> Result<(), Refusal> {
    from.read_exact(block).map_err(|_| cut_short(what))
}

fn cut_short(what: &str) -> Refusal {
    Refusal::Malformed(format!("it ends within {what}"))
}

/// Makes directories one by one, so that a link among them is noticed.
fn create_directories(into: &Path, name: &Path) -> Result<(), Refusal> {
    let mut path = into.to_owned();
    for part in name {
        path.push(part);
        match fs::symlink_metadata(&path) {
            Ok(there) if there.is_dir() => {}
            Ok(_) => {
                return Err(Refusal::Malformed(format!(
                    "{} is there and no directory",
                    path.display()
                )));
            }
            Err(_) => {
                fs::create_dir(&path).map_err(|cause| Refusal::Store(path.clone(), cause))?;
            }
        }
    }
    Ok(())
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
        let checksum = octal(field(148, 8));
        // The checksum is over the header with blanks in its own place.
        let sum: u64 = block
            .iter()
            .enumerate()
            .map(|(at, byte)| {
                u64::from(if (148..156).contains(&at) {
                    b' '
                } else {
                    *byte
                })
            })
            .sum();
        if checksum != Some(sum) || field(257, 5) != b"ustar" {
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
            Some(b'0' | 0) if name.as_os_str().is_empty() => {
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

fn octal(field: &[u8]) -> Option<u64> {
    let text = str::from_utf8(field).ok()?.trim_matches(' ');
    u64::from_str_radix(text, 8).ok()
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::process::{Command, Stdio};

    /// A header and its content, as `tar --format=ustar` writes them.
    pub(crate) fn entry(name: &str, kind: u8, content: &[u8]) -> Vec<u8> {
        let mut block = vec![0; BLOCK];
        block[..name.len()].copy_from_slice(name.as_bytes());
        block[100..108].copy_from_slice(b"0000644\0");
        block[124..136].copy_from_slice(format!("{:011o}\0", content.len()).as_bytes());
        block[156] = kind;
        block[257..265].copy_from_slice(b"ustar\x0000");
        block[148..156].fill(b' ');
        let sum: u64 = block.iter().map(|byte| u64::from(*byte)).sum();
        block[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
        block.extend_from_slice(content);
        block.resize(block.len().next_multiple_of(BLOCK), 0);
        block
    }

    fn ended(mut archive: Vec<u8>) -> Vec<u8> {
        archive.extend([0; 2 * BLOCK]);
        archive
    }

    fn refused(archive: &[u8]) -> String {
        let into = tempfile::tempdir().unwrap();
        match unpack(archive, into.path()) {
            Err(Refusal::Malformed(why)) => why,
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
        let Ok(packed) = Command::new("tar")
            .args(["--format=ustar", "-cf", "-", "-C"])
            .arg(from.path())
            .arg(".")
            .stderr(Stdio::inherit())
            .output()
        else {
            eprintln!("SKIPPED: the program tar is missing");
            return;
        };
        let into = tempfile::tempdir().unwrap();
        unpack(packed.stdout.as_slice(), into.path()).unwrap();
        assert_eq!(
            fs::read(into.path().join("trials/0000/samples")).unwrap(),
            odd
        );
        assert_eq!(fs::read(into.path().join("run.json")).unwrap(), b"{}");
    }

    #[test]
    fn an_archive_that_is_cut_short_is_refused_wherever_it_is_cut() {
        let whole = ended(entry("a", b'0', b"12345"));
        for length in 0..2 * BLOCK {
            assert!(
                refused(&whole[..length]).contains("ends within"),
                "{length}"
            );
        }
    }

    #[test]
    fn nothing_is_written_outside() {
        for name in ["../x", "/etc/x", "a/../../x"] {
            let why = refused(&ended(entry(name, b'0', b"x")));
            assert!(why.contains("outside"), "{why}");
        }
    }

    #[test]
    fn links_and_devices_are_refused() {
        for kind in *b"123467xgL" {
            let why = refused(&ended(entry("a", kind, b"")));
            assert!(why.contains("neither"), "{why}");
        }
    }

    #[test]
    fn a_link_that_was_there_before_is_not_followed() {
        let outside = tempfile::tempdir().unwrap();
        let into = tempfile::tempdir().unwrap();
        std::os::unix::fs::symlink(outside.path(), into.path().join("trials")).unwrap();
        let archive = ended(entry("trials/x", b'0', b"x"));
        assert!(unpack(archive.as_slice(), into.path()).is_err());
        assert!(!outside.path().join("x").exists());
    }

    proptest! {
        #[test]
        fn no_bytes_make_it_panic(bytes in proptest::collection::vec(any::<u8>(), 0..2048), at in 0usize..2048) {
            let into = tempfile::tempdir().unwrap();
            let _ = unpack(bytes.as_slice(), into.path());
            // A header that is right but for one byte.
            let mut archive = ended(entry("a", b'0', b"12345"));
            if let (Some(place), Some(byte)) = (archive.get_mut(at), bytes.first()) {
                *place = *byte;
            }
            let _ = unpack(archive.as_slice(), into.path());
        }
    }
}
