// SPDX-License-Identifier: Apache-2.0
//! Standard output of the commands: a failed write is an error of the command, never a panic. What is for people goes
//! through [`terminal::stdout`], what is for programs through [`terminal::data`].

use std::fmt::Arguments;
use std::io::{self, ErrorKind, Write};
use std::path::Path;
use vtax_core::terminal;
use vtax_files::FileError;

/// Writes formatted text for people to standard output; [`out!`] and [`outln!`] call it.
///
/// # Errors
/// When standard output cannot be written: a full disk, a closed descriptor.
pub fn write(text: Arguments<'_>) -> io::Result<()> {
    let mut out = terminal::stdout();
    out.write_all(text.to_string().as_bytes())
        .and_then(|()| out.flush())
        .map_err(cannot_write)
}

/// Adds the failed operation to the cause.
pub fn cannot_write(cause: io::Error) -> io::Error {
    io::Error::new(
        cause.kind(),
        format!("cannot write to standard output: {cause}"),
    )
}

/// Adds the file to the cause. An error of another kind than the kernel's is of what was to be written.
pub fn cannot_write_to(path: &Path) -> impl Fn(io::Error) -> io::Error {
    move |cause| match cause.kind() {
        ErrorKind::Other => cause,
        _ => FileError::of("write", path)(cause).into(),
    }
}

/// Writes a line for programs to standard output: JSON.
///
/// # Errors
/// As [`write()`].
pub fn write_data(line: &str) -> io::Result<()> {
    let mut out = terminal::data();
    out.write_all(format!("{line}\n").as_bytes())
        .and_then(|()| out.flush())
        .map_err(cannot_write)
}

/// `print!` for people that returns an error instead of a panic.
macro_rules! out {
    ($($text:tt)*) => { $crate::output::write(format_args!($($text)*)) };
}

/// `println!` for people that returns an error instead of a panic.
macro_rules! outln {
    () => { $crate::output::write(format_args!("\n")) };
    ($($text:tt)*) => { $crate::output::write(format_args!("{}\n", format_args!($($text)*))) };
}

/// Ends a command with an error in words.
macro_rules! fail {
    ($($text:tt)*) => { return Err(format!($($text)*).into()) };
}

pub(crate) use {fail, out, outln};
