// SPDX-License-Identifier: Apache-2.0
//! A guest's image: one validated 512-byte boot sector.

mod assemble;
mod disk;
mod profile;

pub use assemble::{assemble, assemble_source};
pub use disk::{DiskFormat, write_disk};
pub use profile::Profile;

use crate::error::{Error, Result};
use std::fs;
use std::path::Path;

/// Size of a boot sector in bytes.
pub const SECTOR: usize = 512;

/// The address where the firmware loads the boot sector, which its code must assume.
pub const ORIGIN: u16 = 0x7C00;

/// The last two bytes of every boot sector, in order.
pub const SIGNATURE: [u8; 2] = [0x55, 0xAA];

/// The table of shipped images: their names, sources and bytes.
macro_rules! shipped {
    ($($name:literal),*) => {
        [$((
            $name,
            include_str!(concat!("../../images/", $name, ".asm")),
            include_bytes!(concat!("../../images/", $name, ".img")),
        )),*]
    };
}

const SHIPPED: [(&str, &str, &[u8; SECTOR]); 6] =
    shipped!["echo", "idle", "idle-pit", "spin", "web", "working"];

/// A boot sector that has passed its checks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Image {
    name: String,
    bytes: [u8; SECTOR],
}

impl Image {
    /// Checks size and signature.
    ///
    /// # Errors
    /// [`Error::Image`] when `bytes` are not 512, or do not end in 0x55 0xAA.
    pub fn from_bytes(name: impl Into<String>, bytes: &[u8]) -> Result<Self> {
        let name = name.into();
        let Ok(sector) = <[u8; SECTOR]>::try_from(bytes) else {
            let problem = format!("it has {} bytes; a boot sector has {SECTOR}", bytes.len());
            let remedy = "end the source with `times 510 - ($ - $$) db 0` and `dw 0xAA55`, \
                          and keep code and data within 510 bytes";
            return Err(Error::image(&name, problem, remedy));
        };
        let [.., low, high] = sector;
        if [low, high] != SIGNATURE {
            let problem =
                format!("it ends in {low:#04x} {high:#04x}, not in the boot signature 0x55 0xaa");
            let remedy = "end the source with `dw 0xAA55`";
            return Err(Error::image(&name, problem, remedy));
        }
        Ok(Self {
            name,
            bytes: sector,
        })
    }

    /// A shipped image.
    #[must_use]
    pub fn shipped(name: &str) -> Option<Self> {
        let (name, _, bytes) = SHIPPED.iter().find(|(known, ..)| *known == name)?;
        Some(Self {
            name: (*name).to_owned(),
            bytes: **bytes,
        })
    }

    /// The names of the shipped images.
    pub fn shipped_names() -> impl Iterator<Item = &'static str> {
        SHIPPED.iter().map(|(name, ..)| *name)
    }

    /// A shipped image by name, or a file: `.asm` and `.toml` are built, anything else is read.
    ///
    /// # Errors
    /// [`Error::Image`] when it is no boot sector, [`Error::File`] when it cannot be read, and the errors of
    /// [`assemble`].
    pub fn open(name_or_path: &str) -> Result<Self> {
        if let Some(image) = Self::shipped(name_or_path) {
            return Ok(image);
        }
        let path = Path::new(name_or_path);
        let extension = path.extension().and_then(|e| e.to_str());
        match extension {
            Some("asm") => assemble(path),
            Some("toml") => {
                let text = read(path)?;
                let profile = Profile::parse(name_or_path, &String::from_utf8_lossy(&text))?;
                assemble_source(name_or_path, &profile.to_assembly())
            }
            _ if !path.exists() => {
                let names: Vec<_> = Self::shipped_names().collect();
                let remedy = format!("shipped are: {}", names.join(", "));
                let problem = "neither a shipped image nor a file";
                Err(Error::image(name_or_path, problem, &remedy))
            }
            _ => Self::from_bytes(name_or_path, &read(path)?),
        }
    }

    /// The image's name or path.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The boot sector.
    #[must_use]
    pub fn bytes(&self) -> &[u8; SECTOR] {
        &self.bytes
    }
}

fn read(path: &Path) -> Result<Vec<u8>> {
    fs::read(path).map_err(Error::file("read", path))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_image_of_another_size_is_refused_with_both_sizes() {
        let error = Image::from_bytes("short", &[0; 511])
            .unwrap_err()
            .to_string();
        assert!(
            error.contains("511 bytes") && error.contains("512"),
            "{error}"
        );
    }

    #[test]
    fn an_image_without_signature_is_refused_with_what_it_ends_in() {
        let error = Image::from_bytes("blank", &[0x11; SECTOR])
            .unwrap_err()
            .to_string();
        assert!(
            error.contains("0x11 0x11") && error.contains("0x55 0xaa"),
            "{error}"
        );
    }

    #[test]
    fn an_unknown_name_lists_the_shipped_images() {
        let error = Image::open("wbe").unwrap_err().to_string();
        assert!(
            error.contains("web") && error.contains("idle-pit"),
            "{error}"
        );
    }

    #[test]
    fn nasm_reproduces_every_shipped_image_exactly() {
        for (name, source, bytes) in SHIPPED {
            match assemble_source(name, source) {
                Ok(built) => assert_eq!(built.bytes(), bytes, "{name}"),
                Err(Error::Program { problem, .. }) if problem.contains("not installed") => {
                    eprintln!("SKIPPED: nasm is not installed (Debian package nasm)");
                    return;
                }
                Err(other) => panic!("{name}: {other}"),
            }
        }
    }
}
