// SPDX-License-Identifier: Apache-2.0
//! Images of containers as guests: an OCI image, an archive of it, a root directory, or an image of podman or docker.
//!
//! A guest with an image has the shared root file system, with the agent and the programs by which vtax drives a
//! guest, and below it the image's root directory `/image`. The commands of a workload run in the image, as the image's
//! user, with its environment and in its working directory. So an image needs neither a shell nor a libc, and every
//! platform runs the same files: native and containers the tree, a VM the same tree packed as its root disk.
//!
//! Images are untrusted. Each layer is unpacked by itself, compared with its digests, and then merged with those below. All
//! paths are resolved with the image's directory as their root, and the bytes, the files, the depth and the compression of an
//! image are bounded. Only root can enter the directory of an image, since it may have programs with set-user-ID.

mod enter;
mod layout;
mod lost;
mod program;
mod stream;

pub use enter::{CAPABILITIES, DIRECTORY, ENTER, MOUNTS, NOTHING};

use super::above::{self, Making};
use super::build::put;
use super::logged::run_logged;
use super::tree::Tree;
use super::{
    BOUNDS, Bounds, GuestFiles, MOST_DEPTH, MOST_RATIO, cache_dir, find, hexadecimal, key,
};
use crate::image;
use layout::{Config, Execution, Layout};
use lost::Lost;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::fmt;
use std::fs;
use std::io::{self, Read};
use std::path::{Component, Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::str::FromStr;
use stream::{Hashed, Plain};
use vtax_files::Dir;
use vtax_host::settings::{Domain, Parameter, Settings};
use vtax_host::untrusted::archive::Refusal;
use vtax_host::untrusted::tar::{self, Entries};
use vtax_host::{HostError, rootless};

/// The image of a guest.
pub const PARAMETER: Parameter = Parameter::unset(
    "image",
    Domain::Text("an image: oci:DIR, oci:FILE.tar, dir:ROOT, podman:NAME, host or host:DIR"),
)
.help("the image whose files and commands the guest runs, instead of those of vtax's own; `host` are those of this host, `host:DIR` \
     with DIR as the working directory");

/// The working directory in the files of this host, where these are the image of a guest.
pub fn host_directory(settings: &Settings) -> Option<PathBuf> {
    match PARAMETER.given(settings)?.parse() {
        Ok(Source::Host(directory)) => Some(directory),
        _ => None,
    }
}

/// The image of a guest whose commands enter it: not the files of this host, which are the guest's own root.
pub fn entered(settings: &Settings) -> Option<&str> {
    let given = PARAMETER.given(settings)?;
    host_directory(settings).is_none().then_some(given)
}

/// The version of this builder, which changes whenever the same image results in different files.
const BUILDER: &str = "3";
/// The file that describes an unpacked image, beside its tree.
const ABOUT: &str = "image.json";

/// The source of an image, as a plan names it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Source {
    /// An OCI image layout: a directory or an archive of it, or an archive of `docker save`.
    Oci(PathBuf),
    /// A root directory.
    Directory(PathBuf),
    /// An image that podman or docker has on this host.
    Podman(String),
    /// The files of this host, with this working directory.
    Host(PathBuf),
}

impl FromStr for Source {
    type Err = HostError;

    fn from_str(text: &str) -> Result<Self, HostError> {
        let wrong = || {
            let docker = text.strip_prefix("docker:").filter(|name| !name.is_empty());
            let way = match docker {
                Some(name) => {
                    let file = name.rsplit('/').next().unwrap_or(name);
                    let file = file.split([':', '@']).next().unwrap_or(file);
                    format!(
                        "save it first, `docker save -o {file}.tar {name}`, then write oci:{file}.tar"
                    )
                }
                None if text.ends_with(".tar") => format!("write oci:{text}"),
                None if text.starts_with("host:") => {
                    "write host:DIR with an absolute path of a directory".to_owned()
                }
                None => "write oci:DIR, oci:FILE.tar, dir:ROOT, podman:NAME or host".to_owned(),
            };
            HostError::Setting(format!("`{text}` is not an image: {way}"))
        };
        if text == "host" {
            return Ok(Self::Host("/".into()));
        }
        match text.split_once(':') {
            Some((_, "")) => Err(wrong()),
            Some(("host", path)) => {
                // Without `..`, by which a path has several names.
                let path = Path::new(path);
                let is_plain = path.is_absolute()
                    && path.components().all(|part| part != Component::ParentDir);
                is_plain
                    .then(|| Self::Host(path.to_owned()))
                    .ok_or_else(wrong)
            }
            Some(("oci", path)) => Ok(Self::Oci(path.into())),
            Some(("dir", path)) => Ok(Self::Directory(path.into())),
            // A name that begins with `-` would be an option.
            Some(("podman", name)) if !name.starts_with('-') => Ok(Self::Podman(name.to_owned())),
            _ => Err(wrong()),
        }
    }
}

impl Source {
    /// Returns the source with a relative path resolved below `folder`.
    #[must_use]
    pub fn below(self, folder: &Path) -> Self {
        match self {
            Self::Oci(path) => Self::Oci(folder.join(path)),
            Self::Directory(path) => Self::Directory(folder.join(path)),
            Self::Podman(_) | Self::Host(_) => self,
        }
    }
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Oci(path) => write!(f, "oci:{}", path.display()),
            Self::Directory(path) => write!(f, "dir:{}", path.display()),
            Self::Podman(name) => write!(f, "podman:{name}"),
            Self::Host(directory) => write!(f, "host:{}", directory.display()),
        }
    }
}

/// An image that guests boot with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unpacked {
    /// The files of the guest.
    pub files: GuestFiles,
    /// The facts about the image.
    pub about: AboutImage,
}

/// The facts about an unpacked image.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AboutImage {
    /// `sha256:` and the digest: of the configuration, which is the image ID of podman and docker, or of a root
    /// directory's files.
    pub digest: String,
    /// The entry point: its program and arguments.
    pub entry_point: Vec<String>,
    /// The directories of its programs, as in the variable `PATH`.
    pub path: String,
    /// Its working directory.
    pub directory: String,
}

impl Unpacked {
    /// Checks that the image has a program of a command, with its interpreter. `image` names it in errors.
    ///
    /// # Errors
    /// When the image lacks one.
    pub fn check_program(&self, image: &str, word: &str) -> Result<(), HostError> {
        let tree = Tree::open(&self.files.root.join(DIRECTORY.trim_start_matches('/')))?;
        let AboutImage {
            path, directory, ..
        } = &self.about;
        program::check(&tree, image, word, path, Path::new(directory))
    }
}

/// Checks that there is such an image, without unpacking it.
///
/// # Errors
/// When there is none, or it is damaged or of another architecture.
pub fn check(source: &Source) -> Result<(), HostError> {
    Content::open(source).map(drop)
}

/// Returns the guest of an image, above the files of the shared image. Unpacks it if the cache has none of its digest.
/// `progress` receives lines while it is unpacked.
///
/// # Errors
/// When there is no such image, it is damaged, of another architecture or beyond the bounds, or it cannot be stored.
pub fn ensure(
    source: &Source,
    base: &GuestFiles,
    progress: &mut dyn FnMut(&str),
) -> Result<Unpacked, HostError> {
    ensure_in(&cache_dir()?, source, base, progress)
}

/// As [`ensure`], in another cache.
///
/// # Errors
/// As [`ensure`].
pub fn ensure_in(
    cache: &Path,
    source: &Source,
    base: &GuestFiles,
    progress: &mut dyn FnMut(&str),
) -> Result<Unpacked, HostError> {
    let content = Content::open(source)?;
    let digest = content.digest()?;
    let hash = key(&[BUILDER, &base.recipe, &digest]);
    above::ensure(
        cache,
        &hash,
        Some(above::room_mib(base)),
        unpacked,
        |making, progress| {
            above::link(cache, base, making, progress)?;
            fill(source, content, digest, making, progress)
        },
        progress,
    )
}

/// An image in the cache.
fn unpacked(cache: &Path, hash: &str) -> Option<Unpacked> {
    let files = find(cache, hash)?;
    let dir = Dir::open(files.root.parent()?).ok()?;
    let about = dir.read(ABOUT, 1 << 20).ok()?;
    let about = serde_json::from_slice(&about).ok()?;
    Some(Unpacked { files, about })
}

/// Adds the image and its programs to a guest's root.
fn fill(
    source: &Source,
    content: Content,
    digest: String,
    making: &Making<'_>,
    progress: &mut dyn FnMut(&str),
) -> Result<(), HostError> {
    let Making { dir, root } = *making;
    let place = root.join(DIRECTORY.trim_start_matches('/'));
    fs::create_dir(&place).map_err(HostError::file("create", &place))?;
    progress(&format!("unpacking the image {source}"));
    let tree = Tree::open(&place)?;
    let (execution, lost) = content.unpack(&tree, dir, progress)?;
    for line in lost.lines() {
        progress(&line);
    }
    for file in enter::complete(&tree, &execution, Path::new(&source.to_string()))? {
        put(root, file.path, file.mode, &file.content)?;
    }
    let about = AboutImage {
        digest: format!("sha256:{digest}"),
        entry_point: enter::entry_point(&execution),
        path: enter::path(&execution),
        directory: enter::directory(&execution),
    };
    let about = serde_json::to_vec(&about)
        .map_err(|cause| HostError::file("write", ABOUT)(io::Error::other(cause)))?;
    Ok(vtax_files::write_scratch(&dir.join(ABOUT), about)?)
}

/// The content of an image.
enum Content {
    Layers(Box<Layout>),
    Directory(PathBuf),
    /// An image of an engine, with its digest.
    Engine {
        engine: &'static str,
        name: String,
        digest: String,
    },
}

impl Content {
    fn open(source: &Source) -> Result<Self, HostError> {
        match source {
            Source::Oci(path) => Ok(Self::Layers(Box::new(Layout::open(path)?))),
            Source::Directory(path) => {
                let about = fs::metadata(path).map_err(HostError::file("read", path))?;
                if about.is_dir() {
                    Ok(Self::Directory(path.clone()))
                } else {
                    Err(invalid(
                        path,
                        "it is not a directory; an archive is `oci:FILE.tar`",
                    ))
                }
            }
            Source::Podman(name) => engine(name),
            Source::Host(path) => Err(invalid(path, "the files of this host are not unpacked")),
        }
    }

    fn digest(&self) -> Result<String, HostError> {
        match self {
            Self::Layers(layout) => Ok(layout.digest.clone()),
            Self::Engine { digest, .. } => Ok(digest.clone()),
            Self::Directory(path) => {
                let mut hashed = Hashed::new(Packed::start(path)?, BOUNDS.bytes);
                io::copy(&mut hashed, &mut io::sink()).map_err(HostError::file("read", path))?;
                let (packed, _, digest) = hashed.finish();
                packed.finish()?;
                Ok(digest)
            }
        }
    }

    /// Unpacks it. Returns how it runs, and what it lacks. `dir` is for temporary files.
    fn unpack(
        self,
        tree: &Tree,
        dir: &Path,
        progress: &mut dyn FnMut(&str),
    ) -> Result<(Execution, Lost), HostError> {
        match self {
            Self::Layers(layout) => unpack(&layout, tree, dir, BOUNDS),
            Self::Directory(path) => {
                let packed = Packed::start(&path)?;
                let mut hashed = Hashed::new(packed, BOUNDS.bytes);
                let mut left = BOUNDS;
                let lost = apply(&mut hashed, &path, &mut left, &mut |entry, content, _| {
                    // A root directory is no layer, and has nothing to remove.
                    if image::layer::is_whiteout_entry(entry) {
                        Ok(true)
                    } else {
                        tree.add(entry, content)
                    }
                })?;
                hashed.finish().0.finish()?;
                Ok((Execution::default(), lost))
            }
            Self::Engine {
                engine,
                name,
                digest,
            } => {
                progress(&format!("exporting {name} from {engine}"));
                let archive = dir.join("exported.tar");
                let mut command = Command::new(engine);
                command.arg("save");
                command.args((engine == "podman").then_some("--format=docker-archive"));
                command.arg("--output").arg(&archive).arg(&name);
                run_logged(command, &dir.join("build.log"), &mut |_| {})?;
                let layout = Layout::open(&archive)?;
                if layout.digest != digest {
                    return Err(HostError::Busy {
                        what: format!("the image {name} of {engine} changed while it was exported"),
                        remedy: "start the run again".to_owned(),
                    });
                }
                let unpacked = unpack(&layout, tree, dir, BOUNDS);
                let removed = fs::remove_file(&archive);
                let unpacked = unpacked?;
                removed.map_err(HostError::file("remove", &archive))?;
                Ok(unpacked)
            }
        }
    }
}

/// Finds an image that podman or docker has. Nothing is pulled.
fn engine(name: &str) -> Result<Content, HostError> {
    let mut failed = String::new();
    for engine in ["podman", "docker"] {
        let output = Command::new(engine)
            .args(["image", "inspect", "--format", "{{.Id}}", name])
            .stdin(Stdio::null())
            .output();
        let output = match output {
            Ok(output) => output,
            Err(cause) => {
                failed.push_str(&format!("{engine}: {cause}\n"));
                continue;
            }
        };
        let id = String::from_utf8_lossy(&output.stdout);
        let id = id.trim().trim_start_matches("sha256:");
        if output.status.success() && id.len() == 64 {
            return Ok(Content::Engine {
                engine,
                name: name.to_owned(),
                digest: id.to_owned(),
            });
        }
        let printed = String::from_utf8_lossy(&output.stderr);
        failed.push_str(&format!("{engine}: {}\n", printed.trim()));
    }
    Err(HostError::Missing {
        what: format!(
            "the image {name} of podman or docker ({})",
            failed.trim().replace('\n', "; ")
        ),
        remedy: format!(
            "pull or build it, and look for it in `podman images`: vtax pulls nothing, and a container \
                         becomes an image by `podman commit CONTAINER {name}`"
        ),
    })
}

/// A root directory as one archive, packed by tar in a fixed order.
struct Packed {
    child: Child,
    output: std::process::ChildStdout,
    path: PathBuf,
}

impl Packed {
    fn start(path: &Path) -> Result<Self, HostError> {
        let mut command = Command::new("tar");
        command
            .args([
                "--create",
                "--file=-",
                "--one-file-system",
                "--numeric-owner",
            ])
            .args([
                "--sort=name",
                "--format=pax",
                "--pax-option=delete=atime,delete=ctime",
            ])
            .args([
                "--xattrs",
                "--xattrs-include=security.capability",
                "--warning=no-file-ignored",
            ])
            .arg("--directory")
            .arg(path)
            .arg(".")
            .env("LC_ALL", "C")
            .stdin(Stdio::null())
            .stdout(Stdio::piped());
        let mut child = command
            .spawn()
            .map_err(HostError::process("start", "tar"))?;
        let output = child.stdout.take();
        let output = output.ok_or_else(|| invalid(path, "tar has no output"))?;
        Ok(Self {
            child,
            output,
            path: path.to_owned(),
        })
    }

    fn finish(mut self) -> Result<(), HostError> {
        let status = self
            .child
            .wait()
            .map_err(HostError::process("wait for", "tar"))?;
        if status.success() {
            Ok(())
        } else {
            Err(invalid(
                &self.path,
                &format!(
                    "tar cannot read all of it ({status}): stop what changes it, or take a copy"
                ),
            ))
        }
    }
}

impl Read for Packed {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.output.read(into)
    }
}

impl Drop for Packed {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Unpacks all layers into a tree, each first into a directory below `dir`. Returns how the image runs, and what it lacks.
fn unpack(
    layout: &Layout,
    tree: &Tree,
    dir: &Path,
    bounds: Bounds,
) -> Result<(Execution, Lost), HostError> {
    let mut left = bounds;
    let mut lost = Lost::default();
    let staging = dir.join("layer");
    for layer in &layout.layers {
        fs::create_dir(&staging).map_err(HostError::file("create", &staging))?;
        let own = image::layer::Layer::new(&staging, tree)?;
        let plain = Plain::from_file(layout.layer(layer)?, &layer.name, bounds.free)?;
        let mut hashed = Hashed::new(plain, left.bytes);
        let applied = apply(
            &mut hashed,
            &layer.name,
            &mut left,
            &mut |entry, content, left| {
                own.add(entry, content, &mut || {
                    take_entry(left, &layer.name).map_err(io::Error::other)
                })
            },
        );
        if hashed.source().is_bomb {
            return Err(invalid(
                &layer.name,
                &format!(
                    "it unpacks to more than {} MiB and {MOST_RATIO} times its size: build the image without files of \
                     nothing but zeros",
                    bounds.free >> 20
                ),
            ));
        }
        lost.add(applied?);
        let (plain, bytes, diff_id) = hashed.finish();
        left.bytes = bytes;
        let digest = plain.finish(&layer.name)?;
        let digest = digest.unwrap_or_else(|| diff_id.clone());
        let wanted = layer.digest.as_ref().unwrap_or(&digest);
        for (found, wanted) in [(&digest, wanted), (&diff_id, &layer.diff_id)] {
            if found != wanted {
                return Err(invalid(
                    &layer.name,
                    &format!(
                        "its SHA-256 is {found}, and the image names {wanted}, so it is damaged: \
                         save the image again"
                    ),
                ));
            }
        }
        own.merge()?;
        vtax_files::remove_all(&staging)?;
    }
    let Config { config, .. } = &layout.config;
    Ok((config.clone().unwrap_or_default(), lost))
}

/// Takes one entry from those that an image may have.
fn take_entry(left: &mut Bounds, name: &Path) -> Result<(), HostError> {
    let rest = left.entries.checked_sub(1);
    left.entries = rest.ok_or_else(|| {
        let most = BOUNDS.entries;
        invalid(
            name,
            &format!("the image has more than {most} files and directories"),
        )
    })?;
    Ok(())
}

/// Adds an entry of an archive; returns false for a device, which is left out.
type Sink<'a> =
    &'a mut dyn FnMut(&tar::Entry, &mut dyn Read, &mut Bounds) -> Result<bool, HostError>;

/// Adds all entries of one archive. Returns what could not be made.
fn apply<R: Read>(
    from: &mut Hashed<R>,
    name: &Path,
    left: &mut Bounds,
    add: Sink<'_>,
) -> Result<Lost, HostError> {
    let applied = apply_entries(&mut Entries::new(&mut *from), name, left, add);
    let lost = match applied {
        // Beyond its bound, the archive reads as one that is cut short.
        _ if from.is_over => Lost::default(),
        Ok(lost) => lost,
        Err(error) => return Err(error),
    };
    // What follows the archive's end is part of the digest.
    let rest = io::copy(from, &mut io::sink()).map_err(HostError::file("read", name));
    if from.is_over {
        let most = BOUNDS.bytes >> 30;
        return Err(invalid(
            name,
            &format!("the image has more than {most} GiB"),
        ));
    }
    rest?;
    Ok(lost)
}

fn apply_entries(
    entries: &mut Entries<impl Read>,
    name: &Path,
    left: &mut Bounds,
    add: Sink<'_>,
) -> Result<Lost, HostError> {
    let mut lost = Lost::default();
    while let Some(mut entry) = entries
        .next_entry()
        .map_err(|refusal| refused(refusal, name))?
    {
        take_entry(left, name)?;
        let levels = entry.name.components().count();
        if levels > MOST_DEPTH {
            return Err(invalid(
                name,
                &format!("it has a path of {levels} levels, and {MOST_DEPTH} are allowed"),
            ));
        }
        lost.fit(&mut entry, rootless::has_id);
        lost.devices += u64::from(!add(&entry, &mut entries.content(), left)?);
    }
    Ok(lost)
}

fn refused(refusal: Refusal, name: &Path) -> HostError {
    match refusal {
        Refusal::Malformed(why) => invalid(name, &format!("as a layer, {why}")),
        Refusal::Store(error) => error.into(),
    }
}

fn invalid(path: &Path, problem: &str) -> HostError {
    HostError::Invalid {
        what: format!("the image {}", path.display()),
        problem: problem.to_owned(),
    }
}

/// The SHA-256 of bytes, in hexadecimal.
fn digest_of(bytes: &[u8]) -> String {
    hexadecimal(Sha256::new().chain_update(bytes))
}

#[cfg(test)]
mod tests;
