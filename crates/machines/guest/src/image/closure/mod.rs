// SPDX-License-Identifier: Apache-2.0
//! The image of a VM with files of this host: those that a command uses, with the agent that vtax controls a VM by.
//!
//! Platforms on this host's kernel show its files in place ([`crate::platform::host_root`]). A VM has no such view, so
//! that the files are copied: each with the links and directories that lead to it, owned by root. The agent and its
//! libraries come from vtax's image, into a directory of their own, since this host's libraries may be older or newer.
//! The kernel is that of this host where it can be read.

mod content;
mod host_kernel;
mod parts;

use super::above::{self, Making};
use super::{GuestFiles, INITRD, KERNEL_FILE, cache_dir, find, initrd, key};
use content::Content;
use host_kernel::HostKernel;
use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use vtax_host::HostError;

/// The version of this builder, which changes whenever the same files result in a different image.
const BUILDER: &str = "host 1";

/// What a VM gets of this host.
#[derive(Debug)]
pub struct Wanted<'a> {
    /// The same guest on a platform of this host's kernel: its working directory, and the files of the plan.
    pub on_host: &'a GuestFiles,
    /// The files and directories that the commands used, by absolute paths that may lead over links. Those that are
    /// missing, cannot be read or are no files are left out.
    pub used: &'a BTreeSet<PathBuf>,
    /// Whether the guest boots the kernel of this host where it can be read.
    pub hosts_kernel: bool,
}

/// An image with files of this host.
#[derive(Debug)]
pub struct Closure {
    /// The files that a guest is booted from.
    pub files: GuestFiles,
    /// `sha256:` and the digest of the content.
    pub digest: String,
    /// The number of regular files.
    pub count: usize,
    /// Their size in bytes.
    pub bytes: u64,
    /// The release of the kernel, where it is that of this host.
    pub kernel: Option<String>,
}

/// Returns an image with files of this host. Makes it if the cache has none with their content. `base` is vtax's image,
/// which has the agent. `progress` receives lines while it is made.
///
/// # Errors
/// When the files are beyond the bounds of an image or change while they are copied, when `base` lacks the agent, or
/// when the image cannot be stored.
pub fn ensure(
    wanted: &Wanted<'_>,
    base: &GuestFiles,
    progress: &mut dyn FnMut(&str),
) -> Result<Closure, HostError> {
    let directory = wanted
        .on_host
        .directory
        .as_deref()
        .unwrap_or(Path::new("/"));
    let mut content = Content::new(Path::new("/"), directory);
    if let Some(files) = &wanted.on_host.files {
        content.mount(files)?;
    }
    content.add(directory);
    for file in wanted.used {
        content.add(file);
    }
    content.check()?;
    let digest = content.digest(&mut |_, content| io::copy(content, &mut io::sink()).map(drop))?;
    let kernel = if wanted.hosts_kernel {
        HostKernel::find(
            Path::new("/"),
            &rustix::system::uname().release().to_string_lossy(),
        )
    } else {
        None
    };
    let of_kernel = kernel.as_ref().map_or("", |kernel| &kernel.identity);
    let hash = key(&[BUILDER, &base.recipe, of_kernel, &digest]);
    let fill = |making: &Making<'_>, progress: &mut dyn FnMut(&str)| {
        progress(&format!(
            "copying {} files of this host ({} MiB) into an image for VMs",
            content.count(),
            content.bytes() >> 20
        ));
        content.copy(making.root, &digest)?;
        parts::add(making.root, &base.root)?;
        let write = |name: &str, bytes: &[u8]| {
            vtax_files::write_scratch(&making.dir.join(name), bytes).map_err(HostError::from)
        };
        let read = |path: &Path| fs::read(path).map_err(HostError::file("read", path));
        match &kernel {
            Some(kernel) => {
                write(KERNEL_FILE, &read(&kernel.file)?)?;
                let names = &kernel.modules;
                write(INITRD, &initrd::boot(&base.root, &kernel.directory, names)?)
            }
            None => {
                write(KERNEL_FILE, &read(&base.kernel)?)?;
                write(INITRD, &read(&base.initrd)?)
            }
        }
    };
    let room = content.bytes().saturating_mul(2) >> 20;
    let files = above::ensure(&cache_dir()?, &hash, Some(room), find, fill, progress)?;
    Ok(Closure {
        files: GuestFiles {
            directory: wanted.on_host.directory.clone(),
            ..files
        },
        count: content.count(),
        bytes: content.bytes(),
        kernel: kernel.map(|kernel| kernel.release),
        digest,
    })
}
