// SPDX-License-Identifier: Apache-2.0
//! Finds an image in an OCI image layout (image-spec 1.1: directory or archive) or in an archive of `docker save`:
//! its configuration and its layers, with the digests that both must have.

use super::stream::{self, Hashed, Plain};
use super::{digest_of, invalid};
use crate::image::{BOUNDS, MOST_RATIO, cache_dir};
use rustix::fs::{Mode, OFlags};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, BufReader, Read};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use vtax_files::Dir;
use vtax_host::HostError;
use vtax_host::untrusted::archive::Refusal;
use vtax_host::untrusted::tar::{Entries, Kind};

/// The most bytes of a JSON document of an image.
const MOST_DOCUMENT: u64 = 4 << 20;
/// The most files of an archive, each a layer or a document.
const MOST_MEMBERS: usize = 10_000;
/// The most layers of an image.
const MOST_LAYERS: usize = 512;
/// The deepest nesting of indexes.
const MOST_INDEXES: usize = 4;

/// An image in a directory or an archive.
#[derive(Debug)]
pub(super) struct Layout {
    store: Store,
    /// The digest of its configuration, the image ID of podman and docker, without `sha256:`.
    pub digest: String,
    /// Its configuration.
    pub config: Config,
    /// Its layers, the lowest first.
    pub layers: Vec<Layer>,
}

/// A layer.
#[derive(Debug)]
pub(super) struct Layer {
    /// Its file in the layout.
    pub name: PathBuf,
    /// The SHA-256 of the file; `None` where the format has none.
    pub digest: Option<String>,
    /// The SHA-256 of the uncompressed archive.
    pub diff_id: String,
}

/// The parts of an image's configuration that vtax uses.
#[derive(Debug, Default, Deserialize)]
pub(super) struct Config {
    #[serde(default)]
    architecture: String,
    #[serde(default)]
    os: String,
    /// How a container of it runs.
    pub config: Option<Execution>,
    rootfs: Option<RootFs>,
}

/// How a container of an image runs.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct Execution {
    /// The user and group, by name or number.
    pub user: Option<String>,
    /// The environment, each `NAME=value`.
    pub env: Option<Vec<String>>,
    /// The program with its first arguments.
    pub entrypoint: Option<Vec<String>>,
    /// The arguments that follow, or the program.
    pub cmd: Option<Vec<String>>,
    /// The working directory.
    pub working_dir: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
struct RootFs {
    #[serde(default)]
    diff_ids: Vec<String>,
}

#[derive(Debug, Deserialize)]
struct Index {
    #[serde(default)]
    manifests: Vec<Descriptor>,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Descriptor {
    #[serde(default)]
    media_type: String,
    digest: String,
    platform: Option<Platform>,
    artifact_type: Option<String>,
    #[serde(default)]
    annotations: BTreeMap<String, String>,
}

#[derive(Debug, Clone, Deserialize)]
struct Platform {
    architecture: String,
    os: String,
    variant: Option<String>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Manifest {
    config: Descriptor,
    #[serde(default)]
    layers: Vec<Descriptor>,
    artifact_type: Option<String>,
}

impl Manifest {
    /// Whether it is the manifest of an image, not of a signature or of another document about one: all of its layers are
    /// archives.
    fn is_image(&self) -> bool {
        let of_archive =
            |layer: &Descriptor| layer.media_type.is_empty() || layer.media_type.contains(".tar");
        self.artifact_type.is_none() && self.layers.iter().all(of_archive)
    }
}

/// An entry of the `manifest.json` of `docker save`.
#[derive(Debug, PartialEq, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Saved {
    config: String,
    #[serde(default)]
    layers: Vec<String>,
    #[serde(default)]
    repo_tags: Option<Vec<String>>,
}

impl Layout {
    /// Opens an image.
    ///
    /// # Errors
    /// When it is not an image of one of the formats, is damaged, is one of several, or is of another architecture.
    pub fn open(path: &Path) -> Result<Self, HostError> {
        let store = Store::open(path)?;
        let layout = match (store.has("index.json"), store.has("manifest.json")) {
            (true, _) => Self::of_oci(store)?,
            (false, true) => Self::of_docker(store)?,
            (false, false) => {
                return Err(store.invalid(
                    "it has neither index.json nor manifest.json; \
                     write one with `podman save --format oci-archive -o FILE.tar NAME`",
                ));
            }
        };
        layout.check()?;
        Ok(layout)
    }

    fn of_oci(store: Store) -> Result<Self, HostError> {
        let mut index: Index = store.json(Path::new("index.json"))?;
        for _ in 0..MOST_INDEXES {
            let descriptor = choose(&store, index)?;
            let blob = blob(&store, &descriptor.digest)?;
            if descriptor.media_type.contains("index") || descriptor.media_type.contains("list") {
                index = store.digested(&blob, &descriptor.digest)?;
                continue;
            }
            let manifest: Manifest = store.digested(&blob, &descriptor.digest)?;
            let digest = hex(&store, &manifest.config.digest)?;
            let name = self::blob(&store, &manifest.config.digest)?;
            let config: Config = store.digested(&name, &manifest.config.digest)?;
            let files = manifest.layers.iter().map(|layer| {
                if layer.media_type.contains("encrypted") {
                    let digest = &layer.digest;
                    return Err(store.invalid(&format!("its layer {digest} is encrypted")));
                }
                Ok((
                    self::blob(&store, &layer.digest)?,
                    Some(hex(&store, &layer.digest)?),
                ))
            });
            let files = files.collect::<Result<Vec<_>, HostError>>()?;
            return Self::with_layers(store, digest, config, files);
        }
        Err(store.invalid("its indexes are nested too deeply"))
    }

    fn of_docker(store: Store) -> Result<Self, HostError> {
        let mut saved: Vec<Saved> = store.json(Path::new("manifest.json"))?;
        let tags: Vec<String> = saved
            .iter_mut()
            .flat_map(|one| one.repo_tags.take().unwrap_or_default())
            .collect();
        // One image under two tags.
        saved.dedup();
        let [one] = saved.as_slice() else {
            return Err(store.several(saved.len(), tags));
        };
        let name = store.inside(&one.config)?;
        let bytes = store.document(&name)?;
        let digest = digest_of(&bytes);
        // The file's name is the digest, as `HEX.json`, `sha256:HEX` or `blobs/sha256/HEX`, or it says nothing.
        let stem = name.file_stem().unwrap_or_default().to_string_lossy();
        let named = stem.strip_prefix("sha256:").unwrap_or(&stem);
        if is_hex(named) && named != digest {
            return Err(store.invalid(&format!(
                "{} has the SHA-256 {digest}, so it is damaged: save the image again",
                name.display()
            )));
        }
        let config = store.parsed(&name, &bytes)?;
        let files = one
            .layers
            .iter()
            .map(|layer| Ok((store.inside(layer)?, None)));
        let files = files.collect::<Result<Vec<_>, HostError>>()?;
        Self::with_layers(store, digest, config, files)
    }

    fn with_layers(
        store: Store,
        digest: String,
        config: Config,
        files: Vec<(PathBuf, Option<String>)>,
    ) -> Result<Self, HostError> {
        let rootfs = config.rootfs.as_ref();
        let diff_ids = rootfs.map_or(&[][..], |rootfs| rootfs.diff_ids.as_slice());
        if files.len() != diff_ids.len() || files.len() > MOST_LAYERS {
            return Err(store.invalid(&format!(
                "it has {} layers, its configuration names {}, and {MOST_LAYERS} are allowed",
                files.len(),
                diff_ids.len()
            )));
        }
        let layers = files
            .into_iter()
            .zip(diff_ids)
            .map(|((name, digest), diff_id)| {
                Ok(Layer {
                    name,
                    digest,
                    diff_id: hex(&store, diff_id)?,
                })
            });
        let layers = layers.collect::<Result<_, HostError>>()?;
        Ok(Self {
            store,
            digest,
            config,
            layers,
        })
    }

    fn check(&self) -> Result<(), HostError> {
        let found = format!("{}/{}", self.config.os, self.config.architecture);
        let needed = format!("linux/{}", architecture());
        if found == needed {
            return Ok(());
        }
        Err(self.store.invalid(&format!(
            "it is for {found}, and this host runs {needed}: build it with `podman build --platform {needed}`"
        )))
    }

    /// Opens a layer's file.
    ///
    /// # Errors
    /// When it is missing.
    pub fn layer(&self, layer: &Layer) -> Result<Box<dyn Read + Send>, HostError> {
        self.store.open_file(&layer.name)
    }
}

/// The architecture of this host, as images name it.
fn architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}

/// The manifest or index for this host.
fn choose(store: &Store, index: Index) -> Result<Descriptor, HostError> {
    let needed = format!("linux/{}", architecture());
    let named = |platform: &Platform| {
        let Platform {
            os,
            architecture,
            variant,
        } = platform;
        match variant {
            None => format!("{os}/{architecture}"),
            Some(variant) => format!("{os}/{architecture}/{variant}"),
        }
    };
    let about_images = index.manifests.into_iter().filter(|one| {
        let is_known = one.platform.as_ref().is_none_or(|of| of.os != "unknown");
        let is_reference = one.annotations.contains_key("vnd.docker.reference.type");
        is_known && !is_reference && one.artifact_type.is_none()
    });
    let (mut fitting, others): (Vec<_>, Vec<_>) = about_images.partition(|one| {
        let platform = one.platform.as_ref();
        platform.is_none_or(|of| {
            of.os == "linux" && of.architecture == architecture() && level_of(of) <= own_level()
        })
    });
    // One image under two tags.
    fitting.sort_by(|a, b| a.digest.cmp(&b.digest));
    fitting.dedup_by(|a, b| a.digest == b.digest);
    if fitting.len() > 1 {
        // What is no image is left out, such as the signature of one.
        fitting.retain(|one| {
            let blob = blob(store, &one.digest).ok();
            let manifest =
                blob.and_then(|blob| store.digested::<Manifest>(&blob, &one.digest).ok());
            manifest.is_none_or(|manifest| manifest.is_image())
        });
        // The plain variant, or else the highest that this processor runs.
        let level = |one: &Descriptor| one.platform.as_ref().map_or(0, level_of);
        let plain = fitting.iter().any(|one| level(one) == 0);
        let highest = fitting.iter().map(level).max().unwrap_or(0);
        let best = if plain { 0 } else { highest };
        fitting.retain(|one| level(one) == best);
    }
    match fitting.as_slice() {
        [one] => Ok(one.clone()),
        [] if !others.is_empty() => {
            let others = others.iter().filter_map(|one| one.platform.as_ref());
            let others: Vec<String> = others.map(named).collect();
            Err(store.invalid(&format!(
                "it is for {}, and this host runs {needed}{}",
                others.join(", "),
                match own_level() {
                    0 | 1 => String::new(),
                    level => format!("/v{level}"),
                }
            )))
        }
        several => {
            let names = several.iter().filter_map(|one| {
                one.annotations
                    .get("org.opencontainers.image.ref.name")
                    .cloned()
            });
            Err(store.several(several.len(), names.collect()))
        }
    }
}

/// The level of the processor that a variant needs: `v3` is 3, and no variant 0. Variants of other forms fit no host.
fn level_of(platform: &Platform) -> u8 {
    match platform.variant.as_deref() {
        None | Some("" | "v1") => 0,
        Some(variant) => {
            let level = variant
                .strip_prefix('v')
                .and_then(|level| level.parse().ok());
            level.unwrap_or(u8::MAX)
        }
    }
}

/// The level of this processor (x86-64 psABI, "Micro-Architecture Levels").
#[cfg(target_arch = "x86_64")]
fn own_level() -> u8 {
    use std::arch::is_x86_feature_detected as has;
    let v2 = has!("cmpxchg16b") && has!("popcnt") && has!("sse4.2") && has!("ssse3");
    let v3 = has!("avx2") && has!("bmi1") && has!("bmi2") && has!("f16c") && has!("fma");
    let v3 = v3 && has!("lzcnt") && has!("movbe");
    let v4 = has!("avx512f") && has!("avx512bw") && has!("avx512cd");
    let v4 = v4 && has!("avx512dq") && has!("avx512vl");
    match (v2, v3, v4) {
        (true, true, true) => 4,
        (true, true, false) => 3,
        (true, false, _) => 2,
        (false, ..) => 1,
    }
}

/// The variants of this architecture are versions of its instructions, of which every host runs version 8.
#[cfg(not(target_arch = "x86_64"))]
fn own_level() -> u8 {
    8
}

fn is_hex(text: &str) -> bool {
    let is_digit = |byte: u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
    text.len() == 64 && text.bytes().all(is_digit)
}

/// The hexadecimal digits of a digest.
fn hex(store: &Store, digest: &str) -> Result<String, HostError> {
    let hex = digest.strip_prefix("sha256:").filter(|hex| is_hex(hex));
    hex.map(str::to_owned)
        .ok_or_else(|| store.invalid(&format!("`{digest}` is not a SHA-256 digest")))
}

/// The file of a blob.
fn blob(store: &Store, digest: &str) -> Result<PathBuf, HostError> {
    Ok(Path::new("blobs/sha256").join(hex(store, digest)?))
}

/// The files of a layout.
#[derive(Debug)]
struct Store {
    /// The layout's path, for messages.
    path: PathBuf,
    files: Files,
}

#[derive(Debug)]
enum Files {
    Directory(Dir),
    Archive(Arc<File>, BTreeMap<PathBuf, Member>),
}

/// A file of an archive.
#[derive(Debug, Clone)]
enum Member {
    /// Its place in the archive.
    At { offset: u64, size: u64 },
    /// A link to another file, as `docker save` writes for a repeated layer.
    Link(PathBuf),
}

impl Store {
    fn open(path: &Path) -> Result<Self, HostError> {
        let about = std::fs::metadata(path).map_err(HostError::file("read", path))?;
        if about.is_dir() {
            return Ok(Self {
                path: path.to_owned(),
                files: Files::Directory(Dir::open(path)?),
            });
        }
        let file = archive(path)?;
        let mut members = BTreeMap::new();
        let mut entries = Entries::new(BufReader::new(&file));
        let wrong = |refusal| match refusal {
            Refusal::Malformed(why) => {
                invalid(path, &format!("as an archive, {why}: save the image again"))
            }
            Refusal::Store(error) => error.into(),
        };
        while let Some(entry) = entries.next_entry().map_err(wrong)? {
            let member = match entry.kind {
                Kind::File => Member::At {
                    offset: entries.offset(),
                    size: entry.size,
                },
                Kind::Link(target) => Member::Link(target),
                _ => continue,
            };
            members.insert(entry.name, member);
            if members.len() > MOST_MEMBERS {
                return Err(invalid(
                    path,
                    &format!("it has more than {MOST_MEMBERS} files, which no image has"),
                ));
            }
        }
        Ok(Self {
            path: path.to_owned(),
            files: Files::Archive(Arc::new(file), members),
        })
    }

    fn invalid(&self, problem: &str) -> HostError {
        invalid(&self.path, problem)
    }

    fn several(&self, count: usize, names: Vec<String>) -> HostError {
        let names = if names.is_empty() {
            String::new()
        } else {
            format!(" ({})", names.join(", "))
        };
        self.invalid(&format!(
            "it has {count} images{names}, and one is needed: save it alone with `podman save -o FILE.tar NAME`"
        ))
    }

    fn has(&self, name: &str) -> bool {
        match &self.files {
            Files::Directory(dir) => dir.contains(name),
            Files::Archive(_, members) => members.contains_key(Path::new(name)),
        }
    }

    /// A path of a `manifest.json`, which must stay in the archive.
    fn inside(&self, name: &str) -> Result<PathBuf, HostError> {
        let path = Path::new(name);
        let is_inside = path
            .components()
            .all(|part| matches!(part, std::path::Component::Normal(_)));
        if is_inside && path.file_name().is_some() {
            Ok(path.to_owned())
        } else {
            Err(self.invalid(&format!("the path {name:?} leads outside")))
        }
    }

    fn open_file(&self, name: &Path) -> Result<Box<dyn Read + Send>, HostError> {
        let missing = || {
            let name = name.display();
            self.invalid(&format!("{name} is missing in it: save the image again"))
        };
        match &self.files {
            Files::Directory(dir) if !dir.contains(name) => Err(missing()),
            Files::Directory(dir) => Ok(Box::new(dir.file(name)?)),
            Files::Archive(file, members) => {
                let mut member = members.get(name).ok_or_else(missing)?;
                if let Member::Link(target) = member {
                    let folder = name.parent().unwrap_or(Path::new(""));
                    member = members.get(&resolved(folder, target)).ok_or_else(missing)?;
                }
                let Member::At { offset, size } = member else {
                    return Err(missing());
                };
                Ok(Box::new(Part {
                    file: Arc::clone(file),
                    at: *offset,
                    left: *size,
                }))
            }
        }
    }

    fn document(&self, name: &Path) -> Result<Vec<u8>, HostError> {
        let mut bytes = Vec::new();
        let file = self.open_file(name)?;
        file.take(MOST_DOCUMENT + 1)
            .read_to_end(&mut bytes)
            .map_err(HostError::file("read", self.path.join(name)))?;
        if bytes.len() as u64 > MOST_DOCUMENT {
            Err(self.invalid(&format!(
                "{} is larger than {MOST_DOCUMENT} bytes",
                name.display()
            )))
        } else {
            Ok(bytes)
        }
    }

    fn parsed<T: for<'a> Deserialize<'a>>(
        &self,
        name: &Path,
        bytes: &[u8],
    ) -> Result<T, HostError> {
        serde_json::from_slice(bytes)
            .map_err(|cause| self.invalid(&format!("{}: {cause}", name.display())))
    }

    fn json<T: for<'a> Deserialize<'a>>(&self, name: &Path) -> Result<T, HostError> {
        self.parsed(name, &self.document(name)?)
    }

    /// A document with the digest that it must have.
    fn digested<T: for<'a> Deserialize<'a>>(
        &self,
        name: &Path,
        digest: &str,
    ) -> Result<T, HostError> {
        let bytes = self.document(name)?;
        let found = digest_of(&bytes);
        if found != hex(self, digest)? {
            return Err(self.invalid(&format!(
                "{} has the SHA-256 {found}, so it is damaged: save the image again",
                name.display()
            )));
        }
        self.parsed(name, &bytes)
    }
}

/// Opens an archive. A compressed one is unpacked into a file without a name, in the cache.
fn archive(path: &Path) -> Result<File, HostError> {
    let wrong = |cause: rustix::io::Errno| HostError::file("read", path)(cause.into());
    // A pipe without a writer would block otherwise. A link that the user names is followed.
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let file = File::from(rustix::fs::open(path, flags, Mode::empty()).map_err(wrong)?);
    let about = file.metadata().map_err(HostError::file("read", path))?;
    if !about.is_file() {
        return Err(invalid(
            path,
            "it is neither a directory nor a regular file",
        ));
    }
    let mut first = [0; 4];
    let read = file.read_at(&mut first, 0);
    let read = read.map_err(HostError::file("read", path))?;
    if !stream::is_compressed(first.get(..read).unwrap_or_default()) {
        return Ok(file);
    }
    let folder = cache_dir().and_then(|cache| Ok(Dir::create(&cache).map(|_| cache)?));
    let folder = folder.unwrap_or_else(|_| std::env::temp_dir());
    let mut unpacked =
        tempfile::tempfile_in(&folder).map_err(HostError::file("create", &folder))?;
    let plain = Plain::from_file(Box::new(file), path, BOUNDS.free)?;
    let mut bounded = Hashed::new(plain, BOUNDS.bytes);
    let copied = io::copy(&mut bounded, &mut unpacked);
    if bounded.is_over || bounded.source().is_bomb {
        return Err(invalid(
            path,
            &format!(
                "it unpacks to more than {} GiB, or to more than {MOST_RATIO} times its size",
                BOUNDS.bytes >> 30
            ),
        ));
    }
    copied.map_err(HostError::file("unpack", path))?;
    bounded.finish().0.finish(path)?;
    io::Seek::rewind(&mut unpacked).map_err(HostError::file("read", path))?;
    Ok(unpacked)
}

/// The path of a relative link below the archive's root, by its text alone.
fn resolved(folder: &Path, target: &Path) -> PathBuf {
    let mut path = folder.to_owned();
    for part in target.components() {
        match part {
            std::path::Component::ParentDir => drop(path.pop()),
            std::path::Component::Normal(name) => path.push(name),
            _ => {}
        }
    }
    path
}

/// A part of a file, read without moving the position that others share.
#[derive(Debug)]
struct Part {
    file: Arc<File>,
    at: u64,
    left: u64,
}

impl Read for Part {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let most = usize::try_from(self.left).unwrap_or(usize::MAX);
        let length = into.len().min(most);
        let read = self
            .file
            .read_at(into.get_mut(..length).unwrap_or_default(), self.at)?;
        self.at += read as u64;
        self.left -= read as u64;
        Ok(read)
    }
}
