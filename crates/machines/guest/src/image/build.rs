// SPDX-License-Identifier: Apache-2.0
//! Builds an image: mmdebstrap installs the tree, mke2fs packs it, without loop devices and without mounts in this
//! namespace.

use super::{Recipe, RecipeFile, initrd, kernel};
use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use vtax_host::roots::PATH;
use vtax_host::{HostError, Roots, rootless};
use vtax_jail::{JailError, OneOwner};

/// The required space in MiB: a tree of 420 MB, its image, mmdebstrap's downloads, and room for a longer recipe.
pub(super) const NEEDED_MIB: u64 = 2048;

/// Room beside the image below for the files that an image above it gets, in MiB.
pub(super) const ROOM_MIB: u64 = 512;

/// Room for writes in the image beyond the tree itself. The file is sparse.
const HEADROOM_MIB: u64 = 256;

/// Paths that no trial reads; they make up a third of the download's unpacked size.
const EXCLUDED: [&str; 6] = [
    "/usr/share/doc/*",
    "/usr/share/info/*",
    "/usr/share/lintian/*",
    "/usr/share/locale/*",
    "/usr/share/man/*",
    "/var/cache/apt/*.bin",
];

const BUILDING: &str = ".building-";

/// The prefix of the directories of unfinished builds of this recipe.
pub(super) fn building_prefix(hash: &str) -> String {
    format!("{BUILDING}{hash}-")
}

/// The name that a directory of an unfinished build will have; `None` for other directories.
pub(super) fn built_in(directory: &str) -> Option<&str> {
    let (hash, _) = directory.strip_prefix(BUILDING)?.rsplit_once('-')?;
    Some(hash)
}

/// Builds `images/<hash>`. The caller holds the recipe's lock.
pub(super) fn build(
    images: &Path,
    recipe: &Recipe,
    hash: &str,
    progress: &mut dyn FnMut(&str),
) -> Result<(), HostError> {
    require_programs_and_rights()?;
    require_space(images, NEEDED_MIB)?;
    let building = Building::new(images, hash)?;
    let dir = building.path();
    // The tree of root is read by QEMU, by runtimes, by services that drop root and by other users. That of a user has
    // programs with set-user-ID of this user, which no other user must reach.
    let mode = if rootless::is_root() { 0o755 } else { 0o700 };
    fs::set_permissions(dir, fs::Permissions::from_mode(mode))
        .map_err(HostError::file("write", dir))?;
    write(&dir.join(super::RECIPE), recipe.to_toml()?.as_bytes())?;
    let log = dir.join("build.log");
    let root = dir.join("root");

    let result = (|| {
        install(recipe, &root, &log, progress)?;
        for file in &recipe.files {
            add(&root, file)?;
        }
        if let Some(release) = &recipe.kernel {
            replace_kernel(release, &root, dir, &log, progress)?;
        }
        let version = take_kernel(&root, &dir.join("vmlinuz"))?;
        write(
            &dir.join("initrd"),
            &initrd::boot(
                &root,
                &root.join("lib/modules").join(&version),
                &recipe.modules,
            )?,
        )?;
        progress("packing the tree into an ext4 image");
        pack(&root, &dir.join("root.ext4"), &log)
    })();
    if let Err(error) = result {
        // The directory is removed; its log is kept under a name with the recipe's hash.
        let kept = images.join(format!("failed-{}.log", hash.get(..12).unwrap_or(hash)));
        let note = match fs::rename(&log, &kept) {
            Ok(()) => format!("\nthe whole log: {}", kept.display()),
            Err(_) => String::new(),
        };
        return Err(match error {
            HostError::Program {
                command,
                status,
                output,
            } => HostError::Program {
                command,
                status,
                output: output + &note,
            },
            other => other,
        });
    }

    publish(building, &images.join(hash))
}

/// The directory of an image that is being made, which is removed unless it is published.
pub(super) struct Building(PathBuf);

impl Building {
    /// Creates the directory for the image `hash` in `images`.
    ///
    /// # Errors
    /// When it cannot be created.
    pub fn new(images: &Path, hash: &str) -> Result<Self, HostError> {
        let made = tempfile::Builder::new()
            .prefix(&building_prefix(hash))
            .tempdir_in(images)
            .map_err(HostError::file("create", images))?;
        Ok(Self(made.keep()))
    }

    /// Its path.
    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Building {
    fn drop(&mut self) {
        // What cannot be removed is removed before the next build.
        let _ = vtax_files::remove_all(&self.0);
    }
}

/// Gives a complete image its final name, once its content is on the disk.
pub(super) fn publish(building: Building, done: &Path) -> Result<(), HostError> {
    let dir = building.path();
    let handle = File::open(dir).map_err(HostError::file("read", dir))?;
    rustix::fs::syncfs(&handle).map_err(|cause| HostError::file("sync", dir)(cause.into()))?;
    fs::rename(dir, done).map_err(HostError::file("create", done))?;
    Ok(())
}

/// Checks that this process can make images.
///
/// # Errors
/// When a program is missing, or the process is neither root's nor in a user namespace of its own.
pub(super) fn require_programs_and_rights() -> Result<(), HostError> {
    let missing = [
        ("mmdebstrap", "mmdebstrap"),
        ("mke2fs", "e2fsprogs"),
        ("setpriv", "util-linux"),
        ("unshare", "util-linux"),
        ("mount", "mount"),
    ]
    .into_iter()
    .filter(|(program, _)| Roots::host().program(program).is_none());
    let (programs, mut packages): (Vec<_>, Vec<_>) = missing.unzip();
    if !programs.is_empty() {
        packages.dedup();
        return Err(HostError::Missing {
            what: format!("what builds the guest image ({})", programs.join(", ")),
            remedy: format!("sudo apt-get install {}", packages.join(" ")),
        });
    }
    if !rootless::is_root() {
        rootless::enter()?;
    }
    Ok(())
}

/// Checks that a directory has space for an image.
///
/// # Errors
/// When fewer than `needed_mib` are free.
pub(super) fn require_space(images: &Path, needed_mib: u64) -> Result<(), HostError> {
    let stat = rustix::fs::statvfs(images)
        .map_err(|cause| HostError::file("read", images)(cause.into()))?;
    let free_mib = stat.f_bavail.saturating_mul(stat.f_frsize) >> 20;
    if free_mib >= needed_mib {
        return Ok(());
    }
    Err(HostError::Missing {
        what: format!(
            "space for the guest image in {} ({free_mib} MiB free, {needed_mib} MiB needed)",
            images.display()
        ),
        remedy: "free some, or set VTAX_CACHE_DIR to a directory on a larger disk".into(),
    })
}

/// Runs mmdebstrap with all of its output in the log.
fn install(
    recipe: &Recipe,
    root: &Path,
    log: &Path,
    progress: &mut dyn FnMut(&str),
) -> Result<(), HostError> {
    let mut command = mmdebstrap(&recipe.packages, root.parent().unwrap_or(root))?;
    let (suite, count) = (&recipe.suite, recipe.packages.len());
    let [before, after] = devices();
    if recipe.unpacked {
        progress(&format!(
            "unpacking the agent and the kernel of VMs from Debian {suite}"
        ));
        command.arg("--variant=extract");
    } else {
        progress(&format!(
            "installing Debian {suite} with {count} packages (a minute or two)"
        ));
        if rootless::has_one_owner() {
            progress("all files of the image belong to root, since one id is mapped");
        }
        command.args(before).args(after);
    }
    command.arg(suite).arg(root).args(sources(suite));
    // The guest boots with vtax's own initial RAM disk; Debian's takes long to build.
    command.env("INITRD", "No");
    run_logged(command, log, progress)?;
    if recipe.unpacked {
        // The script of the kernel's package does it where it is installed.
        depend(root, log, progress)?;
    }
    Ok(())
}

/// Writes the table of dependencies of each kernel's modules, by the program of the tree.
fn depend(root: &Path, log: &Path, progress: &mut dyn FnMut(&str)) -> Result<(), HostError> {
    let modules = root.join("lib/modules");
    let entries = fs::read_dir(&modules).map_err(HostError::file("read", &modules))?;
    for entry in entries {
        let entry = entry.map_err(HostError::file("read", &modules))?;
        let mut command = Command::new("chroot");
        command.arg(root).arg("depmod").arg(entry.file_name());
        // A user's own has no directories of administration.
        command.env("PATH", PATH);
        run_logged(command, log, progress)?;
    }
    Ok(())
}

/// Replaces the kernel and the modules of the tree at `root`. The packages of the release are unpacked in `dir`.
fn replace_kernel(
    release: &str,
    root: &Path,
    dir: &Path,
    log: &Path,
    progress: &mut dyn FnMut(&str),
) -> Result<(), HostError> {
    progress(&format!("taking the kernel of Debian {release}"));
    let tree = dir.join("kernel");
    let suite = release.strip_suffix("-backports").unwrap_or(release);
    let mut command = mmdebstrap(&[format!("{}/{release}", kernel::PACKAGE)], dir)?;
    // The packages are unpacked and not installed.
    command.arg("--variant=extract").arg(suite).arg(&tree);
    command.args(kernel::with_release(sources(suite), suite, release));
    run_logged(command, log, progress)?;
    kernel::exchange(&tree, root)?;
    vtax_files::remove_all(&tree)?;
    depend(root, log, progress)
}

/// The mmdebstrap command that installs these packages, without the suite, the destination and the sources. Its own files
/// are in the directory `building`.
///
/// Where the user namespace of this process has one owner, calls that change owners succeed without effect.
///
/// # Errors
/// When the filter of these calls cannot be built.
pub(super) fn mmdebstrap(packages: &[String], building: &Path) -> Result<Command, HostError> {
    // mmdebstrap mounts the host's /sys and /dev/shm in the tree. In namespaces of its own these mounts are
    // invisible outside, and end with all of its processes when it is killed.
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "KILL", "unshare", "--mount", "--propagation"]);
    command.args(["private", "--pid", "--fork", "--kill-child", "--mount-proc"]);
    command.args(["mmdebstrap", "--variant=minbase", "--verbose"]);
    if rootless::user().is_some() {
        // apt downloads as another user where there is one.
        command.args(["--mode=root", "--aptopt=APT::Sandbox::User \"root\""]);
        command.env("TMPDIR", building);
    } else {
        command.arg("--mode=auto");
    }
    if rootless::has_one_owner() {
        let wrong =
            |cause: JailError| HostError::process("start", "mmdebstrap")(io::Error::other(cause));
        let filter = OneOwner::new().map_err(wrong)?;
        // SAFETY: the function makes system calls alone, and allocates nothing.
        unsafe { command.pre_exec(move || filter.apply()) };
    }
    command.args(EXCLUDED.map(|pattern| format!("--dpkgopt=path-exclude={pattern}")));
    // Copyright files stay, as licences require.
    command.arg("--dpkgopt=path-include=/usr/share/doc/*/copyright");
    command.args(proxies().iter().map(|option| format!("--aptopt={option}")));
    command.arg(format!("--include={}", packages.join(",")));
    command.env("LC_ALL", "C.UTF-8");
    Ok(command)
}

/// The options of mmdebstrap for a system in which programs run, where a user without root makes it: no user namespace
/// makes devices, so that those of this host are shown. The first options come before the hooks of a caller, which see them,
/// and the others after these.
pub(super) fn devices() -> [Vec<String>; 2] {
    if rootless::is_root() {
        return [Vec::new(), Vec::new()];
    }
    let names = "null zero full random urandom tty";
    let each = |what: &str| format!("for name in {names}; do {what}; done");
    let show = each("touch \"$1/dev/$name\"; mount --bind /dev/$name \"$1/dev/$name\"");
    let hide = each("umount \"$1/dev/$name\"");
    [
        vec![
            "--skip=chroot/mount/dev".to_owned(),
            format!("--setup-hook=mkdir -p \"$1/dev\"; {show}"),
        ],
        vec![format!("--customize-hook={hide}")],
    ]
}

/// Proxy settings of this machine's apt, which mmdebstrap does not read.
fn proxies() -> Vec<String> {
    lines_of(
        "apt-config",
        &[
            "dump",
            "--format",
            "%f \"%v\";%n",
            "Acquire::http::Proxy",
            "Acquire::https::Proxy",
        ],
    )
    .into_iter()
    .filter(|line| !line.contains("\"\""))
    .collect()
}

/// The apt sources of this machine that provide `suite`, so that its own mirror is used.
pub(super) fn sources(suite: &str) -> Vec<String> {
    let targets = lines_of(
        "apt-get",
        &[
            "indextargets",
            "--format",
            "$(REPO_URI) $(RELEASE) $(COMPONENT)",
            "Created-By: Packages",
        ],
    );
    sources_from(&targets, suite)
}

/// The sources for `suite`; empty where the machine has no Debian mirror, and mmdebstrap uses its default.
fn sources_from(targets: &[String], suite: &str) -> Vec<String> {
    let mut lines = Vec::new();
    let mut mirror = None;
    for target in targets {
        let mut words = target.split_whitespace();
        let (Some(uri), Some(release), Some("main")) = (words.next(), words.next(), words.next())
        else {
            continue;
        };
        let archive = uri.trim_end_matches('/').rsplit('/').next();
        if archive == Some("debian") {
            mirror.get_or_insert(uri);
        }
        let ours = release
            .strip_prefix(suite)
            .is_some_and(|rest| matches!(rest, "" | "-updates" | "-security"));
        if ours && matches!(archive, Some("debian" | "debian-security")) {
            let line = format!("deb {uri} {release} main");
            if !lines.contains(&line) {
                lines.push(line);
            }
        }
    }
    match mirror {
        // A mirror of another release also has this suite.
        Some(mirror)
            if !lines
                .iter()
                .any(|line| line.ends_with(&format!(" {suite} main"))) =>
        {
            lines.insert(0, format!("deb {mirror} {suite} main"));
            lines
        }
        Some(_) => lines,
        None => Vec::new(),
    }
}

/// The output lines of a program; none if it fails, since the caller has a default.
fn lines_of(program: &str, arguments: &[&str]) -> Vec<String> {
    let output = Command::new(program)
        .args(arguments)
        .stderr(Stdio::null())
        .output();
    output
        .ok()
        .filter(|output| output.status.success())
        .map(|output| {
            String::from_utf8_lossy(&output.stdout)
                .lines()
                .map(str::to_owned)
                .collect()
        })
        .unwrap_or_default()
}

/// Runs a program with both its outputs appended to the log; its `I: …` lines are progress, and each tenth of what ninja
/// builds.
pub(super) fn run_logged(
    mut command: Command,
    log: &Path,
    progress: &mut dyn FnMut(&str),
) -> Result<(), HostError> {
    let line = shown(&command);
    let mut file = vtax_files::append(log)?;
    writeln!(file, "$ {line}").map_err(HostError::file("write", log))?;
    // One pipe for both outputs keeps their order.
    let (reader, writer) = std::io::pipe().map_err(HostError::file("create", "a pipe"))?;
    let second = writer
        .try_clone()
        .map_err(HostError::file("create", "a pipe"))?;
    command.stdin(Stdio::null()).stdout(writer).stderr(second);
    let child = command.spawn();
    // The command holds the writing ends; the reading below ends only if no process but the program has them.
    drop(command);
    let mut child = child.map_err(HostError::process("start", format!("`{line}`")))?;
    let mut reader = BufReader::new(reader);
    let mut bytes = Vec::new();
    let mut copied = Ok(());
    let mut tenths = 0;
    loop {
        bytes.clear();
        match reader.read_until(b'\n', &mut bytes) {
            Ok(0) => break,
            Ok(_) => {
                // A full disk must not stop the reading, or the program would block.
                if copied.is_ok() {
                    copied = file.write_all(&bytes);
                }
                if let Some(step) = step(&String::from_utf8_lossy(&bytes), &mut tenths) {
                    progress(&step);
                }
            }
            Err(cause) if cause.kind() == std::io::ErrorKind::Interrupted => {}
            Err(cause) => {
                copied = Err(cause);
                break;
            }
        }
    }
    let status = child
        .wait()
        .map_err(HostError::process("wait for", format!("`{line}`")))?;
    copied.map_err(HostError::file("write", log))?;
    if status.success() {
        return Ok(());
    }
    Err(HostError::Program {
        command: line,
        status: status.to_string(),
        output: crate::image::tail(log),
    })
}

/// The message about a line of a program's output, if it has one. `tenths` is the last reported tenth of the steps of ninja.
fn step(line: &str, tenths: &mut u64) -> Option<String> {
    let line = line.trim_end();
    if let Some(step) = line.strip_prefix("I: ") {
        // What mmdebstrap does with its own options.
        let is_own = ["running --", "skipping "]
            .iter()
            .any(|own| step.starts_with(own));
        return (!is_own).then(|| step.to_owned());
    }
    // Such as `[12/1043] Compiling C object …`.
    let (count, _) = line.strip_prefix('[')?.split_once("] ")?;
    let (done, of) = count.split_once('/')?;
    let (done, of): (u64, u64) = (done.trim().parse().ok()?, of.parse().ok()?);
    let before = std::mem::replace(tenths, done.saturating_mul(10).checked_div(of)?);
    (*tenths > before).then(|| format!("  {done} of {of} parts"))
}

fn shown(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    words
        .map(|word| word.to_string_lossy().into_owned())
        .collect::<Vec<_>>()
        .join(" ")
}

/// Creates directories one by one, since a symbolic link in the tree could lead out of it, into the host's own
/// files.
fn create_directories(root: &Path, inside: &Path) -> Result<PathBuf, HostError> {
    let mut path = root.to_owned();
    for part in inside.strip_prefix("/").unwrap_or(inside) {
        path.push(part);
        match fs::symlink_metadata(&path) {
            Ok(metadata) if metadata.is_dir() => {}
            Ok(_) => {
                return Err(HostError::Setting(format!(
                    "image recipe: {} is not a directory in the image; name the directory it leads to",
                    Path::new("/").join(inside).display()
                )));
            }
            Err(_) => {
                fs::create_dir(&path).map_err(HostError::file("create", &path))?;
                let mode = fs::Permissions::from_mode(0o755);
                fs::set_permissions(&path, mode).map_err(HostError::file("write", &path))?;
            }
        }
    }
    Ok(path)
}

/// Adds a file of a recipe to the tree, in the place of an entry of its path.
fn add(root: &Path, file: &RecipeFile) -> Result<(), HostError> {
    let mode = if file.executable { 0o755 } else { 0o644 };
    put(root, &file.path, mode, file.text.as_bytes())
}

/// Adds a file to the tree, in the place of an entry of its path.
pub(super) fn put(root: &Path, path: &str, mode: u32, content: &[u8]) -> Result<(), HostError> {
    let inside = Path::new(path);
    let parent = create_directories(root, inside.parent().unwrap_or(inside))?;
    let path = parent.join(inside.file_name().unwrap_or_default());
    // A package may have put a link there that leads out of the tree.
    if path.symlink_metadata().is_ok() {
        fs::remove_file(&path).map_err(HostError::file("remove", &path))?;
    }
    write(&path, content)?;
    fs::set_permissions(&path, fs::Permissions::from_mode(mode))
        .map_err(HostError::file("write", &path))
}

fn write(path: &Path, content: &[u8]) -> Result<(), HostError> {
    Ok(vtax_files::write_scratch(path, content)?)
}

/// Copies the tree's kernel out and returns its version. Debian's cloud kernel is packed by LZ4, which unpacks fast
/// even under emulation.
fn take_kernel(root: &Path, destination: &Path) -> Result<String, HostError> {
    let boot = root.join("boot");
    let kernels: Vec<(String, PathBuf)> = fs::read_dir(&boot)
        .map_err(HostError::file("read", &boot))?
        .filter_map(Result::ok)
        .filter_map(|entry| {
            let version = entry
                .file_name()
                .to_str()?
                .strip_prefix("vmlinuz-")?
                .to_owned();
            Some((version, entry.path()))
        })
        .collect();
    let [(version, kernel)] = kernels.as_slice() else {
        return Err(HostError::Setting(format!(
            "image recipe: the packages bring {} kernels, and one is needed; linux-image-cloud-amd64 brings one",
            kernels.len()
        )));
    };
    fs::copy(kernel, destination).map_err(HostError::file("create", destination))?;
    Ok(version.clone())
}

/// The bytes for each inode of a file system of this size, mke2fs's default.
const BYTES_OF_INODE: u64 = 16384;

/// Packs the tree into a raw ext4 image.
pub(super) fn pack(root: &Path, image: &Path, log: &Path) -> Result<(), HostError> {
    let tree = Extent::in_directory(root)?;
    let size = tree.bytes + (HEADROOM_MIB << 20);
    // An eighth more for the file system's own structures.
    let mib = (size + size / 8).div_ceil(1 << 20);
    let mut command = Command::new("setpriv");
    command.args([
        "--pdeathsig",
        "KILL",
        "mke2fs",
        "-q",
        "-t",
        "ext4",
        "-L",
        "vtax",
    ]);
    // No journal: every VM discards its writes. No lazy initialisation: the guest's kernel would finish it during a
    // trial.
    command.args(["-O", "^has_journal", "-E", "lazy_itable_init=0", "-m", "0"]);
    // Of a tree of small files the inodes of a usual file system of its size are too few.
    let usual = size / BYTES_OF_INODE;
    if tree.entries > usual / 2 {
        command.args(["-N", &(tree.entries + usual).to_string()]);
    }
    command
        .arg("-d")
        .arg(root)
        .arg(image)
        .arg(format!("{mib}M"));
    command.env("PATH", PATH);
    run_logged(command, log, &mut |_| {})
}

/// What a tree takes in a file system.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
struct Extent {
    /// Bytes in blocks of 4 KiB, with inodes and names.
    bytes: u64,
    /// Files, directories and links.
    entries: u64,
}

impl Extent {
    fn in_directory(dir: &Path) -> Result<Self, HostError> {
        let mut total = Self {
            bytes: 4096,
            entries: 1,
        };
        for entry in fs::read_dir(dir).map_err(HostError::file("read", dir))? {
            let entry = entry.map_err(HostError::file("read", dir))?;
            let path = entry.path();
            let metadata = path
                .symlink_metadata()
                .map_err(HostError::file("read", &path))?;
            let inside = if metadata.is_dir() {
                Self::in_directory(&path)?
            } else {
                Self {
                    bytes: metadata.len().next_multiple_of(4096),
                    entries: 1,
                }
            };
            // An inode has 256 bytes, and an entry of a directory 8 beside its name.
            let name = entry.file_name().len() as u64;
            total.bytes += inside.bytes + 256 + (8 + name).next_multiple_of(4);
            total.entries += inside.entries;
        }
        Ok(total)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn targets(lines: &[&str]) -> Vec<String> {
        lines.iter().map(|line| (*line).to_owned()).collect()
    }

    #[test]
    #[ignore = "takes 6 s: make test-all"]
    fn a_tree_of_many_small_files_is_packed_with_an_inode_for_each() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().join("root");
        for directory in 0..100 {
            let directory = root.join(directory.to_string());
            fs::create_dir_all(&directory).unwrap();
            for file in 0..1000 {
                fs::write(directory.join(file.to_string()), "").unwrap();
            }
        }
        assert_eq!(Extent::in_directory(&root).unwrap().entries, 100 * 1001 + 1);
        let log = folder.path().join("log");
        let packed = pack(&root, &folder.path().join("root.ext4"), &log);
        packed.unwrap_or_else(|cause| panic!("{cause}: {}", fs::read_to_string(log).unwrap()));
    }

    #[test]
    fn the_mirror_of_this_machine_is_used() {
        let targets = targets(&[
            "http://mirror.test/debian/ bookworm main",
            "http://mirror.test/debian/ bookworm main",
            "http://mirror.test/debian/ bookworm-updates main",
            "http://mirror.test/debian-security/ bookworm-security main",
            "http://mirror.test/debian/ bookworm contrib",
            "http://mirror.test/debian/ bookworm-backports main",
            "http://other.test/apt nodistro main",
        ]);
        assert_eq!(
            sources_from(&targets, "bookworm"),
            [
                "deb http://mirror.test/debian/ bookworm main",
                "deb http://mirror.test/debian/ bookworm-updates main",
                "deb http://mirror.test/debian-security/ bookworm-security main",
            ]
        );
    }

    #[test]
    fn a_machine_of_another_release_gets_the_suite_from_its_own_mirror() {
        let targets = targets(&["http://mirror.test/debian trixie main"]);
        assert_eq!(
            sources_from(&targets, "bookworm"),
            ["deb http://mirror.test/debian bookworm main"]
        );
    }

    #[test]
    fn a_machine_without_a_debian_mirror_leaves_the_choice_to_mmdebstrap() {
        let targets = targets(&["http://other.test/ubuntu jammy main", "garbage", ""]);
        assert!(sources_from(&targets, "bookworm").is_empty());
    }

    #[test]
    fn a_file_is_never_written_through_a_link_that_leaves_the_tree() {
        let dir = tempfile::tempdir().unwrap();
        let (root, host) = (dir.path().join("root"), dir.path().join("host"));
        fs::create_dir_all(&root).unwrap();
        fs::create_dir_all(&host).unwrap();
        std::os::unix::fs::symlink(&host, root.join("etc")).unwrap();
        std::os::unix::fs::symlink(host.join("target"), root.join("motd")).unwrap();
        let file = |path: &str| RecipeFile {
            path: path.into(),
            executable: false,
            text: "x".into(),
        };
        assert!(
            add(&root, &file("/etc/motd"))
                .unwrap_err()
                .to_string()
                .contains("not a directory")
        );
        add(&root, &file("/motd")).unwrap();
        assert_eq!(fs::read_dir(&host).unwrap().count(), 0);
        assert_eq!(fs::read(root.join("motd")).unwrap(), b"x");
    }

    #[test]
    fn a_failed_program_shows_the_end_of_its_log() {
        let dir = tempfile::tempdir().unwrap();
        let mut command = Command::new("sh");
        command.args([
            "-c",
            "echo I: one step; echo E: no such package >&2; exit 3",
        ]);
        let mut steps = Vec::new();
        let error = run_logged(command, &dir.path().join("log"), &mut |step| {
            steps.push(step.to_owned())
        })
        .unwrap_err();
        assert_eq!(steps, ["one step"]);
        let text = error.to_string();
        assert!(
            text.contains("exit status: 3") && text.contains("no such package"),
            "{text}"
        );
    }

    #[test]
    fn each_tenth_of_what_ninja_builds_is_progress() {
        let mut tenths = 0;
        let mut steps = |of: u64| -> Vec<String> {
            let lines = (1..=of).map(|done| format!("[{done}/{of}] Compiling C object a.c.o\n"));
            lines.filter_map(|line| step(&line, &mut tenths)).collect()
        };
        let printed = steps(1043);
        assert_eq!(printed.len(), 10);
        assert_eq!(printed.first().unwrap(), "  105 of 1043 parts");
        assert_eq!(printed.last().unwrap(), "  1043 of 1043 parts");
        // A second ninja.
        assert_eq!(steps(20).len(), 10);
        for line in [
            "[1/0] ",
            "[a/b] ",
            "[8/9]",
            "[",
            "I:",
            "9/9] ",
            "[18446744073709551615/1] ",
        ] {
            step(line, &mut tenths);
        }
    }

    #[test]
    fn too_little_space_is_reported_with_both_numbers() {
        // /proc has no free space on any machine.
        let text = require_space(Path::new("/proc"), NEEDED_MIB)
            .unwrap_err()
            .to_string();
        assert!(
            text.contains("0 MiB free, 2048 MiB needed") && text.contains("VTAX_CACHE_DIR"),
            "{text}"
        );
    }
}
