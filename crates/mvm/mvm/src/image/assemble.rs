// SPDX-License-Identifier: Apache-2.0
//! Assembles a boot sector with nasm.

use super::{Image, ORIGIN, SECTOR};
use crate::error::{Error, Result, start_problem};
use std::fs;
use std::path::Path;
use std::process::Command;

/// Assembles a file.
///
/// # Errors
/// [`Error::File`] when it cannot be read, and the errors of [`assemble_source`].
pub fn assemble(path: &Path) -> Result<Image> {
    let source = fs::read_to_string(path).map_err(Error::file("read", path))?;
    assemble_source(&path.to_string_lossy(), &source)
}

/// Assembles source text. `name` is its name in errors and in the image.
///
/// # Errors
/// [`Error::Program`] when nasm is missing or refuses the source, with its own messages;
/// [`Error::Image`] when the source has another origin than 0x7C00, or the result is no boot sector.
pub fn assemble_source(name: &str, source: &str) -> Result<Image> {
    check_origin(name, source)?;
    let folder = tempfile::tempdir().map_err(Error::temporary_directory)?;
    let input = folder.path().join("image.asm");
    let output = folder.path().join("image.img");
    vtax_files::write_scratch(&input, source)
        .map_err(|error| Error::file("write", &input)(error.cause))?;
    let run = Command::new("nasm")
        .args(["-f", "bin", "-o"])
        .arg(&output)
        .arg(&input)
        .output();
    let remedy = "install Debian package nasm, or use a shipped image";
    let run = run.map_err(|cause| Error::program("nasm", start_problem(&cause), remedy))?;
    if !run.status.success() {
        let printed = String::from_utf8_lossy(&run.stderr).replace(&*input.to_string_lossy(), name);
        let too_long = printed.contains("TIMES value") && printed.contains("negative");
        let remedy = if too_long {
            let room = SECTOR - 2;
            format!("code and data do not fit the {room} bytes before the signature: shorten them")
        } else {
            format!("correct {name}")
        };
        return Err(Error::program("nasm", printed.trim(), &remedy));
    }
    let bytes = fs::read(&output).map_err(Error::file("read", &output))?;
    Image::from_bytes(name, &bytes)
}

/// Checks the origin in the source, because a flat binary does not contain it.
fn check_origin(name: &str, source: &str) -> Result<()> {
    let remedy =
        format!("start the source with `org {ORIGIN:#06X}`, where firmware loads boot sectors");
    let problem = |problem: String| Err(Error::image(name, problem, &remedy));
    let statements = source.lines().map(|line| line.split(';').next());
    for statement in statements.flatten() {
        let statement = statement.trim().to_ascii_lowercase();
        let statement = statement.trim_start_matches('[').trim_end_matches(']');
        let Some(operand) = statement
            .strip_prefix("org")
            .filter(|rest| rest.starts_with([' ', '\t']))
        else {
            continue;
        };
        return match number(operand.trim()) {
            Some(value) if value == u32::from(ORIGIN) => Ok(()),
            Some(value) => problem(format!("its origin is {value:#06x}")),
            None => {
                let operand = operand.trim();
                problem(format!("its origin `{operand}` is not a plain number"))
            }
        };
    }
    problem("it names no origin".to_owned())
}

/// Reads a number in nasm's syntax.
fn number(text: &str) -> Option<u32> {
    let text = text.replace('_', "");
    if let Some(hex) = text.strip_prefix("0x").or_else(|| text.strip_prefix('$')) {
        return u32::from_str_radix(hex, 16).ok();
    }
    if let Some(hex) = text.strip_suffix('h') {
        return u32::from_str_radix(hex, 16).ok();
    }
    text.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_source_with_another_origin_is_refused_before_assembling() {
        for (source, expected) in [
            ("bits 16\nhlt", "names no origin"),
            ("org 0x100\nhlt", "origin is 0x0100"),
            ("; org 0x7C00\n org start\n", "not a plain number"),
        ] {
            let error = check_origin("x.asm", source).unwrap_err().to_string();
            assert!(
                error.contains(expected) && error.contains("0x7C00"),
                "{error}"
            );
        }
    }

    #[test]
    fn every_way_to_write_the_origin_is_understood() {
        for source in [
            "org 0x7C00",
            "ORG 7c00h ; here",
            "[org 31744]",
            "\torg\t$7C00",
        ] {
            check_origin("x.asm", source).unwrap();
        }
    }

    #[test]
    fn source_that_does_not_fit_says_so() {
        let source = "org 0x7C00\ntimes 511 db 1\ntimes 510 - ($ - $$) db 0\ndw 0xAA55";
        match assemble_source("long.asm", source) {
            Err(Error::Program { problem, .. }) if problem.contains("not installed") => {
                eprintln!("SKIPPED: nasm is not installed (Debian package nasm)");
            }
            outcome => {
                let error = outcome.unwrap_err().to_string();
                assert!(
                    error.contains("510 bytes") && error.contains("long.asm"),
                    "{error}"
                );
            }
        }
    }
}
