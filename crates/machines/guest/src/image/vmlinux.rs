// SPDX-License-Identifier: Apache-2.0
//! The image's kernel as an ELF file, for VMMs that cannot load a compressed one.

use super::GuestFiles;
use super::{initrd, lock};
use std::fs;
use std::path::{Path, PathBuf};
use vtax_host::HostError;

/// Returns the unpacked kernel of an image, and creates it beside the image unless it exists.
///
/// # Errors
/// When the kernel's compression is unknown, its unpacker is missing, or the image's directory cannot be written.
pub fn vmlinux(files: &GuestFiles) -> Result<PathBuf, HostError> {
    beside(files, "vmlinux", || unpacked(&files.kernel))
}

/// Whether QEMU starts this unpacked kernel: the file has the note of PVH, the entry without a boot loader
/// (`XEN_ELFNOTE_PHYS32_ENTRY`, Xen's `public/elfnote.h`).
pub fn has_pvh_entry(vmlinux: &Path) -> bool {
    fs::read(vmlinux).is_ok_and(|elf| notes(&elf).any(has_entry))
}

/// The segments of notes of an ELF file of 64 bits, little-endian (`elf(5)`).
fn notes(elf: &[u8]) -> impl Iterator<Item = &[u8]> {
    const NOTE: u64 = 4;
    let number = |at: usize, length: usize| -> Option<u64> {
        let mut bytes = [0; 8];
        bytes
            .get_mut(..length)?
            .copy_from_slice(elf.get(at..at.checked_add(length)?)?);
        Some(u64::from_le_bytes(bytes))
    };
    let size = move |at, length| number(at, length).and_then(|number| usize::try_from(number).ok());
    let count = number(56, 2).unwrap_or(0) as usize;
    (0..count).filter_map(move |index| {
        let header = size(32, 8)?.checked_add(size(54, 2)?.checked_mul(index)?)?;
        if number(header, 4)? != NOTE {
            return None;
        }
        let from = size(header.checked_add(8)?, 8)?;
        elf.get(from..from.checked_add(size(header.checked_add(32)?, 8)?)?)
    })
}

/// Whether a note in a segment is the one of PVH: the lengths of its name and its content, its type 18, and `Xen`.
fn has_entry(notes: &[u8]) -> bool {
    let is_entry = |note: &[u8]| {
        note.starts_with(&[4, 0, 0, 0]) && note.get(8..16) == Some(b"\x12\0\0\0Xen\0".as_slice())
    };
    notes.windows(16).any(is_entry)
}

/// Returns a file in the image's directory, and creates it unless it exists.
pub(super) fn beside(
    files: &GuestFiles,
    name: &str,
    content: impl FnOnce() -> Result<Vec<u8>, HostError>,
) -> Result<PathBuf, HostError> {
    let folder = files.kernel.parent().unwrap_or(Path::new("/"));
    let path = folder.join(name);
    if !path.is_file() {
        let _lock = lock(folder, name, &mut |_| ())?;
        // Replaced atomically, so that a file of this name is always complete.
        vtax_files::write(&path, &content()?)?;
    }
    Ok(path)
}

/// Unpacks the ELF file from a compressed kernel image.
fn unpacked(kernel: &Path) -> Result<Vec<u8>, HostError> {
    let packed = fs::read(kernel).map_err(HostError::file("read", kernel))?;
    let unknown = |what: &str| HostError::Invalid {
        what: format!("the packed kernel {}", kernel.display()),
        problem: format!("{what}; another kernel or image is needed"),
    };
    let (payload, suffix) = payload(&packed).map_err(unknown)?;
    let folder = tempfile::tempdir().map_err(HostError::file("create", "/tmp"))?;
    let file = folder.path().join("vmlinux").with_extension(suffix);
    vtax_files::write_scratch(&file, payload)?;
    let elf = initrd::uncompressed(&file)?;
    if elf.starts_with(b"\x7fELF") {
        Ok(elf)
    } else {
        Err(unknown("what is in it is no ELF file"))
    }
}

/// The compressed kernel in a bzImage and the file name suffix of its format (the kernel's x86 boot
/// protocol: `HdrS`, `payload_offset` and `payload_length`, since 2.08).
fn payload(image: &[u8]) -> Result<(&[u8], &'static str), &'static str> {
    let number = |at: usize| -> Option<usize> {
        let bytes = image.get(at..at + 4)?.try_into().ok()?;
        usize::try_from(u32::from_le_bytes(bytes)).ok()
    };
    if image.get(0x202..0x206) != Some(b"HdrS") {
        return Err("it is no bzImage");
    }
    let sectors = match image.get(0x1F1) {
        Some(0) | None => 4,
        Some(sectors) => usize::from(*sectors),
    };
    let place = || {
        let from = (sectors + 1) * 512 + number(0x248)?;
        image.get(from..from.checked_add(number(0x24C)?)?)
    };
    let payload = place().ok_or("it is cut off")?;
    // In every format but gzip, which includes it, the unpacked size follows the payload.
    let sized = payload.get(..payload.len().saturating_sub(4));
    let sized = sized.unwrap_or_default();
    match payload {
        [0x1F, 0x8B, ..] => Ok((payload, "gz")),
        [0xFD, b'7', b'z', b'X', b'Z', ..] => Ok((sized, "xz")),
        [0x28, 0xB5, 0x2F, 0xFD, ..] => Ok((sized, "zst")),
        // The legacy frame, which older kernels use.
        [0x02, 0x21, 0x4C, 0x18, ..] => Ok((sized, "lz4")),
        _ => Err("it is packed by neither gzip, xz, zstd nor lz4"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A bzImage of one setup sector around `payload`.
    fn image(payload: &[u8]) -> Vec<u8> {
        let mut image = vec![0; 1024];
        image[0x1F1] = 1;
        image[0x202..0x206].copy_from_slice(b"HdrS");
        image[0x24C..0x250].copy_from_slice(&(payload.len() as u32).to_le_bytes());
        image.extend(payload);
        image
    }

    #[test]
    fn the_payload_is_found_and_its_format_reported() {
        let gzip = [0x1F, 0x8B, 1, 2, 3, 4, 5];
        assert_eq!(payload(&image(&gzip)), Ok((&gzip[..], "gz")));
        let xz = [0xFD, b'7', b'z', b'X', b'Z', 0, 9, 1, 2, 3, 4];
        assert_eq!(payload(&image(&xz)), Ok((&xz[..7], "xz")));
        let lz4 = [0x02, 0x21, 0x4C, 0x18, 9, 1, 2, 3, 4];
        assert_eq!(payload(&image(&lz4)), Ok((&lz4[..5], "lz4")));
    }

    #[test]
    fn what_is_no_kernel_or_cut_off_or_packed_otherwise_is_refused() {
        assert!(payload(&[]).unwrap_err().contains("bzImage"));
        assert!(payload(&image(b"LZO!....")).unwrap_err().contains("gzip"));
        let mut short = image(&[0x1F, 0x8B, 0, 0]);
        short.truncate(1026);
        assert!(payload(&short).unwrap_err().contains("cut off"));
        short.truncate(0x248);
        assert!(payload(&short).unwrap_err().contains("cut off"));
    }

    #[test]
    fn a_kernel_with_the_note_of_pvh_is_told_from_others() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("vmlinux");
        // A header, one program header, and its note of 20 bytes at 120.
        let mut elf = vec![0; 140];
        elf[..4].copy_from_slice(b"\x7fELF");
        elf[32] = 64;
        elf[54] = 56;
        elf[56] = 1;
        elf[64] = 4;
        elf[72] = 120;
        elf[96] = 20;
        elf[120..140].copy_from_slice(b"\x04\0\0\0\x04\0\0\0\x12\0\0\0Xen\0\0\0\x10\0");
        let has_entry = |elf: &[u8]| {
            fs::write(&file, elf).unwrap();
            has_pvh_entry(&file)
        };
        assert!(has_entry(&elf));
        for length in 0..elf.len() {
            assert!(!has_entry(&elf[..length]));
        }
        // Each of what makes the note: its segment's type, place and length, its own type, its name.
        for (at, byte) in [
            (64, 1),
            (72, 255),
            (79, 255),
            (96, 8),
            (103, 255),
            (128, 17),
            (132, b'G'),
        ] {
            let mut other = elf.clone();
            other[at] = byte;
            assert!(!has_entry(&other), "byte {at} is {byte}");
        }
    }

    #[test]
    fn a_kernel_of_the_legacy_format_of_lz4_is_unpacked_without_a_program() {
        let folder = tempfile::tempdir().unwrap();
        // A literal block: its length, its token and eleven bytes (the LZ4 frame format, "legacy frame").
        let block = b"\xB0\x7fELF, small";
        let mut packed = vec![0x02, 0x21, 0x4C, 0x18];
        packed.extend(u32::try_from(block.len()).unwrap().to_le_bytes());
        packed.extend(block);
        // The size that the kernel's build adds.
        packed.extend(11_u32.to_le_bytes());
        let kernel = folder.path().join("vmlinuz");
        fs::write(&kernel, image(&packed)).unwrap();
        assert_eq!(unpacked(&kernel).unwrap(), b"\x7fELF, small");
        // A block that ends early.
        packed.truncate(12);
        packed.extend([0; 4]);
        fs::write(&kernel, image(&packed)).unwrap();
        unpacked(&kernel).unwrap_err();
    }

    #[test]
    fn a_kernel_is_unpacked_by_the_tool_of_its_format() {
        let folder = tempfile::tempdir().unwrap();
        let elf = folder.path().join("elf");
        fs::write(&elf, b"\x7fELF and the rest").unwrap();
        let gzip = std::process::Command::new("gzip")
            .arg("-kn")
            .arg(&elf)
            .status();
        assert!(gzip.unwrap().success());
        let packed = fs::read(elf.with_extension("gz")).unwrap();
        let kernel = folder.path().join("vmlinuz");
        fs::write(&kernel, image(&packed)).unwrap();
        assert_eq!(unpacked(&kernel).unwrap(), b"\x7fELF and the rest");
    }
}
