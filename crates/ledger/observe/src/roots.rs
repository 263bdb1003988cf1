// SPDX-License-Identifier: Apache-2.0
//! The mount points of the host's trees: the only file with the paths `/proc`, `/sys` and `/dev`, so that all code that
//! reads the host also runs on a fake tree in a test.

use std::fs;
use std::path::{Path, PathBuf};

/// The trees that describe a host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Roots {
    /// procfs, `/proc`.
    pub proc: PathBuf,
    /// sysfs, `/sys`.
    pub sys: PathBuf,
    /// Device nodes, `/dev`.
    pub dev: PathBuf,
    /// Configuration, `/etc`.
    pub etc: PathBuf,
    /// Kernels and their configurations, `/boot`.
    pub boot: PathBuf,
    /// Run-time state of services, `/run`.
    pub run: PathBuf,
    /// Persistent state of services, `/var/lib`.
    pub lib: PathBuf,
    /// The directories in which programs are searched, first match wins.
    pub path: Vec<PathBuf>,
}

/// The search path for programs, independent of the caller's `$PATH`, so that a trial runs the same programs on every
/// host and for every user. A program elsewhere is given by its absolute path.
pub const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

impl Roots {
    /// The trees of this host.
    pub fn host() -> Self {
        Self {
            path: std::env::split_paths(PATH).collect(),
            ..Self::below(Path::new("/"))
        }
    }

    /// Trees below `directory` with the same layout as `/`; programs only in its `bin`.
    pub fn below(directory: &Path) -> Self {
        Self {
            proc: directory.join("proc"),
            sys: directory.join("sys"),
            dev: directory.join("dev"),
            etc: directory.join("etc"),
            boot: directory.join("boot"),
            run: directory.join("run"),
            lib: directory.join("var/lib"),
            path: vec![directory.join("bin")],
        }
    }

    /// The trimmed text of a file of procfs; `None` where it is missing or unreadable.
    pub fn proc_text(&self, file: &str) -> Option<String> {
        text(&self.proc.join(file))
    }

    /// The trimmed text of a file of sysfs; `None` where it is missing or unreadable.
    pub fn sys_text(&self, file: &str) -> Option<String> {
        text(&self.sys.join(file))
    }

    /// Maps a path as the kernel names it (`/sys/fs/cgroup/cpu`) into these trees.
    pub fn resolve(&self, path: &Path) -> PathBuf {
        for (prefix, root) in [
            ("/proc", &self.proc),
            ("/sys", &self.sys),
            ("/dev", &self.dev),
        ] {
            if let Ok(rest) = path.strip_prefix(prefix) {
                // `join("")` would add a trailing slash.
                return if rest.as_os_str().is_empty() {
                    root.clone()
                } else {
                    root.join(rest)
                };
            }
        }
        path.to_owned()
    }

    /// The first executable file called `program` in the search path; an absolute path is not searched.
    pub fn program(&self, program: &str) -> Option<PathBuf> {
        use std::os::unix::fs::PermissionsExt;
        self.path
            .iter()
            .map(|directory| directory.join(program))
            .find(|candidate| {
                fs::metadata(candidate).is_ok_and(|metadata| {
                    metadata.is_file() && metadata.permissions().mode() & 0o111 != 0
                })
            })
    }
}

impl Default for Roots {
    fn default() -> Self {
        Self::host()
    }
}

/// The trimmed text of a file; `None` where it is missing or unreadable.
pub fn text(path: &Path) -> Option<String> {
    fs::read(path)
        .ok()
        .map(|bytes| String::from_utf8_lossy(&bytes).trim().to_owned())
}

/// The names in a directory, sorted with numbers in numeric order; empty where it is missing.
pub fn names(directory: &Path) -> Vec<String> {
    let mut names: Vec<String> = fs::read_dir(directory)
        .map(|entries| {
            entries
                .flatten()
                .filter_map(|entry| entry.file_name().into_string().ok())
                .collect()
        })
        .unwrap_or_default();
    names.sort_by_key(|name| {
        let stem = name.trim_end_matches(|c: char| c.is_ascii_digit());
        let number = name
            .get(stem.len()..)
            .and_then(|digits| digits.parse::<u64>().ok());
        (stem.to_owned(), number)
    });
    names
}

/// The number in names like `cpu7`; `None` for `cpufreq` or `cpu`.
pub fn numbered(name: &str, prefix: &str) -> Option<u32> {
    let digits = name.strip_prefix(prefix)?;
    digits
        .bytes()
        .all(|byte| byte.is_ascii_digit())
        .then(|| digits.parse().ok())
        .flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernel_paths_are_found_below_the_injected_roots() {
        let roots = Roots::below(Path::new("/fake"));
        assert_eq!(
            roots.resolve(Path::new("/sys/fs/cgroup")),
            Path::new("/fake/sys/fs/cgroup")
        );
        assert_eq!(roots.resolve(Path::new("/proc")), Path::new("/fake/proc"));
        assert_eq!(
            roots.resolve(Path::new("/cgroup/cpu")),
            Path::new("/cgroup/cpu")
        );
    }

    #[test]
    fn only_executable_files_are_programs() {
        use std::os::unix::fs::PermissionsExt;
        let directory = tempfile::tempdir().unwrap();
        let roots = Roots::below(directory.path());
        let file = directory.path().join("bin/runc");
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(&file, "").unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o644)).unwrap();
        assert_eq!(roots.program("runc"), None);
        fs::set_permissions(&file, fs::Permissions::from_mode(0o755)).unwrap();
        assert_eq!(roots.program("runc"), Some(file));
    }

    #[test]
    fn what_only_the_callers_path_has_is_found_by_its_whole_path_alone() {
        // Tests run from a file whose directory is in no search path.
        let own = std::env::current_exe().unwrap();
        let name = own.file_name().unwrap().to_str().unwrap();
        let host = Roots::host();
        assert_eq!(host.program(name), None);
        assert_eq!(host.program(own.to_str().unwrap()), Some(own));
        assert!(host.program("sh").is_some());
    }

    #[test]
    fn names_sort_in_numeric_order() {
        let directory = tempfile::tempdir().unwrap();
        for name in ["cpu10", "cpu2", "cpufreq", "cpu0"] {
            fs::create_dir(directory.path().join(name)).unwrap();
        }
        assert_eq!(
            names(directory.path()),
            ["cpu0", "cpu2", "cpu10", "cpufreq"]
        );
    }

    #[test]
    fn only_numbered_names_have_a_number() {
        assert_eq!(numbered("cpu12", "cpu"), Some(12));
        assert_eq!(numbered("cpufreq", "cpu"), None);
        assert_eq!(numbered("cpu", "cpu"), None);
    }
}
