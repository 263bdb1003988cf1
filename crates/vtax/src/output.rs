// SPDX-License-Identifier: Apache-2.0
//! Standard output: a failed write is an error of the command, never a panic.

use std::fmt::Arguments;
use std::io::{self, Write};

/// Writes formatted text to standard output; [`out!`] and [`outln!`] call it.
///
/// # Errors
/// When standard output cannot be written: a full disk, a closed descriptor.
pub fn write(text: Arguments<'_>) -> io::Result<()> {
    let mut out = io::stdout().lock();
    out.write_fmt(text)
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

/// Standard output for code that takes a writer, with errors that name it.
#[derive(Debug)]
pub struct Stdout;

impl Write for Stdout {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        io::stdout().write(bytes).map_err(cannot_write)
    }

    fn flush(&mut self) -> io::Result<()> {
        io::stdout().flush().map_err(cannot_write)
    }
}

/// `print!` that returns an error instead of a panic.
macro_rules! out {
    ($($text:tt)*) => { $crate::output::write(format_args!($($text)*)) };
}

/// `println!` that returns an error instead of a panic.
macro_rules! outln {
    () => { $crate::output::write(format_args!("\n")) };
    ($($text:tt)*) => { $crate::output::write(format_args!("{}\n", format_args!($($text)*))) };
}

pub(crate) use {out, outln};
