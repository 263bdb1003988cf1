// SPDX-License-Identifier: Apache-2.0
//! Whether an image has a program that a plan runs in it, before anything runs.

use crate::image::tree::{RESOLVE, Tree};
use rustix::fs::{Mode, OFlags, openat2};
use std::fs::File;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::{Path, PathBuf};
use vtax_host::HostError;

/// The longest first line of a script that Linux reads (`BINPRM_BUF_SIZE`).
const MOST_LINE: usize = 256;
/// The most program headers of a program that are read.
const MOST_HEADERS: u16 = 64;

/// Checks that a program is in an image, with its interpreter: a word with `/` relative to the image's working directory, or
/// a name in the directories of `path`. `image` names the image in errors.
///
/// # Errors
/// What the image lacks.
pub(super) fn check(
    tree: &Tree,
    image: &str,
    word: &str,
    path: &str,
    directory: &Path,
) -> Result<(), HostError> {
    let lacks = |problem| {
        Err(HostError::NotInImage {
            image: image.to_owned(),
            problem,
        })
    };
    let candidates: Vec<PathBuf> = if word.contains('/') {
        vec![directory.join(word)]
    } else {
        path.split(':')
            .map(|folder| directory.join(folder).join(word))
            .collect()
    };
    let mut refused = None;
    for candidate in candidates {
        let Some(file) = open(tree, &candidate) else {
            continue;
        };
        let is_executable = file
            .metadata()
            .is_ok_and(|about| about.is_file() && about.permissions().mode() & 0o111 != 0);
        if !is_executable {
            refused = refused.or(Some(()));
            continue;
        }
        return match interpreter(&file) {
            Some(interpreter) if open(tree, &directory.join(&interpreter)).is_none() => {
                let shown = interpreter.to_string_lossy().escape_default().to_string();
                lacks(format!(
                    "the interpreter `{shown}` of `{word}` is not in the image"
                ))
            }
            _ => Ok(()),
        };
    }
    lacks(match (refused, word.contains('/')) {
        (Some(()), _) => format!("`{word}` in the image is no executable file"),
        (None, true) => format!("`{word}` is not in the image"),
        (None, false) => format!("`{word}` is not in the image (PATH {path})"),
    })
}

/// Opens a file as the image's programs see it. A pipe or device is not waited for.
fn open(tree: &Tree, path: &Path) -> Option<File> {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    openat2(&tree.root, path, flags, Mode::empty(), RESOLVE)
        .ok()
        .map(File::from)
}

/// The program that the kernel starts in the place of a script or of a dynamically linked program
/// (`fs/binfmt_script.c`; ELF, `PT_INTERP`). `None` for another program.
fn interpreter(file: &File) -> Option<PathBuf> {
    let mut first = [0; MOST_LINE];
    let read = file.read_at(&mut first, 0).ok()?;
    let first = first.get(..read)?;
    if let Some(line) = first.strip_prefix(b"#!") {
        let line = line.split(|byte| *byte == b'\n').next()?;
        let words = line.trim_ascii_start();
        let end = words.iter().position(|byte| matches!(byte, b' ' | b'\t'));
        let word = words.get(..end.unwrap_or(words.len()))?;
        return Some(PathBuf::from(std::ffi::OsStr::from_bytes(word)));
    }
    // A little-endian program of 64 bits (System V ABI, "ELF Header" and "Program Header").
    if !first.starts_with(b"\x7fELF\x02\x01") {
        return None;
    }
    let wide = |bytes: &[u8], at: usize| -> Option<u64> {
        Some(u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?))
    };
    let short = |at: usize| -> Option<u16> {
        Some(u16::from_le_bytes(first.get(at..at + 2)?.try_into().ok()?))
    };
    let (headers, size, number) = (wide(first, 32)?, short(54)?, short(56)?);
    for index in 0..number.min(MOST_HEADERS) {
        let at = headers.checked_add(u64::from(index).checked_mul(u64::from(size))?)?;
        let mut header = [0; 56];
        file.read_exact_at(&mut header, at).ok()?;
        const INTERPRETER: u64 = 3;
        if wide(&header, 0)? & 0xffff_ffff != INTERPRETER {
            continue;
        }
        let length = usize::try_from(wide(&header, 32)?).ok()?;
        let mut name = vec![0; length.min(4096)];
        file.read_exact_at(&mut name, wide(&header, 8)?).ok()?;
        let end = name.iter().position(|byte| *byte == 0)?;
        return Some(PathBuf::from(std::ffi::OsStr::from_bytes(name.get(..end)?)));
    }
    None
}
