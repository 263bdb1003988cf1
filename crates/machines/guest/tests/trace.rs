// SPDX-License-Identifier: Apache-2.0
//! The files that commands use, found by dry runs of them, as root and as an ordinary user.

use crate::common::{line, need_cells};
use rustix::process::geteuid;
use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::{PermissionsExt, chown, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};
use tempfile::TempDir;
use vtax_guest::image::{GuestFiles, trace};
use vtax_host::rootless;
use vtax_testkit::needs::find_program;
use vtax_testkit::{skip, skip_in_part};

/// The word before the arguments of [`files_used`] on the command line of this program.
pub const FILES_USED: &str = "files-used";

/// A user of this host without a name, a home and groups: nobody.
const USER: u32 = 65534;

/// What `vtax trace --root=DIR -- COMMAND` does.
pub fn tracer(mut arguments: impl Iterator<Item = String>) -> ExitCode {
    let root = arguments.next().unwrap();
    let root = PathBuf::from(root.strip_prefix("--root=").unwrap());
    let line: Vec<String> = arguments.skip(1).collect();
    match trace::trace(&line, &root, &mut std::io::stdout()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

/// Prints what a command line uses in a working directory within so many milliseconds. In a process of its own, since an
/// ordinary user enters a user namespace before any thread starts.
pub fn files_used(mut arguments: impl Iterator<Item = String>) -> ExitCode {
    if !geteuid().is_root() {
        rootless::enter().unwrap();
    }
    let directory = PathBuf::from(arguments.next().unwrap());
    let limit = Duration::from_millis(arguments.next().unwrap().parse().unwrap());
    let line: Vec<String> = arguments.collect();
    let used = trace::files_used(
        &GuestFiles::of_this_host(Some(directory), None),
        &[line],
        limit,
        &mut |line| println!("{line}"),
    );
    match used {
        Ok(used) => {
            for file in used.files {
                println!("{}", file.display());
            }
            println!("{}", used.ended[0]);
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

/// What a command line used.
#[derive(Debug)]
struct Seen {
    files: BTreeSet<PathBuf>,
    /// The lines of progress.
    progress: Vec<String>,
    ended: String,
}

/// A working directory of root or of the user, with this program in it: the build's directory may be closed to others.
struct Place {
    folder: TempDir,
    is_user: bool,
}

impl Place {
    fn path(&self) -> &Path {
        self.folder.path()
    }

    fn at(&self, name: &str) -> PathBuf {
        self.path().join(name)
    }

    /// Makes a file that everyone may execute.
    fn file(&self, name: &str, content: impl AsRef<[u8]>) -> PathBuf {
        let path = self.at(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, content).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        path
    }

    /// Runs a script of the shell below the tracer.
    fn shell(&self, script: &str) -> Seen {
        self.used(
            &["sh", "-c", &format!("cd \"$0\" && {script}"), &self.name()],
            60_000,
        )
    }

    fn name(&self) -> String {
        self.path().to_str().unwrap().to_owned()
    }

    /// Runs a command line below the tracer.
    fn used(&self, words: &[&str], limit_ms: u64) -> Seen {
        let own = self.at("tests");
        let mut command = if self.is_user {
            let mut command = Command::new("setpriv");
            let (user, group) = (format!("--reuid={USER}"), format!("--regid={USER}"));
            command
                .args([&user, &group, "--clear-groups", "--"])
                .arg(own);
            command
        } else {
            Command::new(own)
        };
        let limit = limit_ms.to_string();
        let output = command
            .args([FILES_USED, &self.name(), &limit])
            .args(line(words))
            .env("HOME", self.path())
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{words:?}: {errors}");
        let ended = lines.pop().unwrap();
        let (files, progress): (Vec<String>, Vec<String>) =
            lines.into_iter().partition(|line| line.starts_with('/'));
        Seen {
            files: files.into_iter().map(PathBuf::from).collect(),
            progress,
            ended,
        }
    }

    fn assert_used(&self, seen: &Seen, names: &[&str]) {
        for name in names {
            // An absolute name stays as it is.
            let path = self.at(name);
            assert!(seen.files.contains(&path), "{name}: {seen:#?}");
        }
    }

    fn assert_not_used(&self, seen: &Seen, names: &[&str]) {
        for name in names {
            assert!(!seen.files.contains(&self.at(name)), "{name}: {seen:#?}");
        }
    }
}

/// Runs a test in a place of root and in one of the user.
fn in_each(test: impl Fn(&Place)) {
    need_cells();
    let as_user = Command::new("setpriv")
        .args([&format!("--reuid={USER}"), "--clear-groups", "--"])
        .args(["unshare", "--user", "--net", "true"])
        .output();
    let may = as_user.is_ok_and(|output| output.status.success());
    for is_user in [false, true] {
        if is_user && !may {
            skip_in_part("an ordinary user may not make user namespaces");
            continue;
        }
        let folder = tempfile::tempdir().unwrap();
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
        fs::copy("/proc/self/exe", folder.path().join("tests")).unwrap();
        if is_user {
            chown(folder.path(), Some(USER), Some(USER)).unwrap();
        }
        test(&Place { folder, is_user });
    }
}

#[test(needs = [root()])]
fn what_a_script_and_all_that_it_starts_opens_is_found_and_what_it_makes_is_not() {
    in_each(|place| {
        for name in ["two", "sub/data", "forked", "replaced", "looked-at"] {
            place.file(name, name);
        }
        place.file("unused", "");
        symlink("link2", place.at("link")).unwrap();
        symlink("./sub/../sub/data", place.at("link2")).unwrap();
        let script = "#!/usr/bin/env sh
cat link
( cat forked; : >written; cat written; cat missing ) &
cd sub && cat .././two
wait
[ -e ../looked-at ]
rm ../replaced && echo new >../replaced && cat ../replaced
ls ../sub /proc/self/fd /tmp
true
";
        place.file("my", script);
        let seen = place.shell("exec ./my");
        assert_eq!(seen.ended, "succeeded", "{seen:#?}");
        place.assert_used(
            &seen,
            &[
                "",
                "my",
                "link",
                "forked",
                "sub",
                "sub/.././two",
                "sub/../looked-at",
            ],
        );
        place.assert_used(&seen, &["sub/../replaced", "/usr/bin/env"]);
        place.assert_not_used(&seen, &["unused", "written", "missing", "/proc/self/fd"]);
        let is_loader = |file: &&PathBuf| file.to_string_lossy().contains("/ld-linux");
        let loader = seen.files.iter().find(is_loader).unwrap();
        assert!(fs::metadata(loader).unwrap().is_file());
        let has_libc = seen.files.iter().any(|file| file.ends_with("libc.so.6"));
        assert!(has_libc, "{seen:#?}");
        let inner = |file: &&PathBuf| {
            ["/proc", "/sys", "/dev", "/run"]
                .iter()
                .any(|top| file.starts_with(top))
        };
        assert_eq!(seen.files.iter().find(inner), None);
        assert!(!place.at("written").exists());
    });
}

#[test(needs = [root()])]
fn threads_and_programs_that_a_thread_executes_are_followed() {
    let python = Path::new("/usr/bin/python3");
    if !python.exists() {
        skip!("needs /usr/bin/python3");
    }
    in_each(|place| {
        place.file("of-thread", "");
        place.file("late", "#!./reader\n");
        place.file("reader", "#!/usr/bin/env cat\n");
        let script = "import json, os, threading
def first(): open('of-thread').read()
def last(): os.execv('late', ['late'])
for run in (first, last):
    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
";
        let seen = place.shell(&format!("exec /usr/bin/python3 -c \"{script}\""));
        assert_eq!(seen.ended, "succeeded", "{seen:#?}");
        place.assert_used(&seen, &["of-thread", "late", "reader", "/usr/bin/env"]);
        let json = seen
            .files
            .iter()
            .any(|file| file.ends_with("json/__init__.py"));
        assert!(json, "{seen:#?}");
    });
}

#[test(needs = [root()])]
fn a_service_is_ended_at_the_limit_with_all_that_it_started() {
    in_each(|place| {
        for name in ["a", "b", "c"] {
            place.file(name, "");
        }
        let script = "cd \"$0\" && cat a && { sleep 3141.5 & } && cat b && exec sleep 3141.5";
        let seen = place.used(&["sh", "-c", script, &place.name()], 1000);
        assert_eq!(seen.ended, "was ended after 1 s");
        place.assert_used(&seen, &["a", "b"]);
        assert!(
            seen.progress[0].contains("was ended after 1 s: a VM has"),
            "{seen:#?}"
        );
        assert!(!has_process("3141.5"));
        // A process that the command left has the limit, and the status is the command's.
        let script = "cd \"$0\" && cat a && { (sleep 0.3; cat c; sleep 3141.5) & } ; exit 3";
        let seen = place.used(&["sh", "-c", script, &place.name()], 1500);
        assert_eq!(seen.ended, "ended with 3");
        place.assert_used(&seen, &["a", "c"]);
        assert!(!has_process("3141.5"));
    });
}

/// Whether a process has this argument.
fn has_process(argument: &str) -> bool {
    let all = fs::read_dir("/proc").unwrap().flatten();
    all.map(|entry| entry.path()).any(|path| {
        let line = fs::read(path.join("cmdline")).unwrap_or_default();
        let mut words = line.split(|byte| *byte == 0);
        words.any(|word| word == argument.as_bytes())
    })
}

#[test(needs = [root()])]
fn a_command_that_fails_or_is_killed_has_its_status_its_last_words_and_its_files() {
    in_each(|place| {
        place.file("a", "");
        let seen = place.shell("cat a && echo why >&2 && exit 7");
        assert_eq!(seen.ended, "ended with 7 (why)");
        place.assert_used(&seen, &["a"]);
        assert!(
            seen.progress[0].contains("ended with 7 (why): a VM has"),
            "{seen:#?}"
        );
        let seen = place.shell("cat a && kill -KILL $$");
        assert_eq!(seen.ended, "ended with 137");
        place.assert_used(&seen, &["a"]);
        let seen = place.used(&["no-such-program"], 60_000);
        assert!(seen.ended.starts_with("ended with 127"), "{seen:#?}");
        // A signal that stops a process must not stop it for ever.
        let seen = place.shell("kill -STOP $$ && cat a");
        place.assert_used(&seen, &["a"]);
    });
}

#[test(needs = [root()])]
fn a_command_that_stops_or_kills_its_tracer_is_ended() {
    in_each(|place| {
        place.file("a", "");
        let began = Instant::now();
        let script = "cd \"$0\" && cat a && kill -STOP $PPID && exec sleep 2718.5";
        let seen = place.used(&["sh", "-c", script, &place.name()], 1000);
        assert_eq!(seen.ended, "was ended after 1 s");
        place.assert_used(&seen, &["a"]);
        let seen = place.shell("cat a && kill -KILL $PPID && exec sleep 2718.5");
        assert_eq!(seen.ended, "ended with 137");
        place.assert_used(&seen, &["a"]);
        assert!(!has_process("2718.5"));
        assert!(began.elapsed() < Duration::from_secs(20));
    });
}

#[test(needs = [root()])]
fn ten_thousand_missing_files_and_endless_output_are_no_files() {
    in_each(|place| {
        place.file("a", "");
        let script = "i=0; while [ $i -lt 10000 ]; do [ -e missing-$i ]; i=$((i + 1)); done; \
                      yes | head -c 100000000 >&2; cat a";
        let seen = place.shell(script);
        assert_eq!(seen.ended, "succeeded");
        place.assert_used(&seen, &["a"]);
        let missing = |file: &&PathBuf| file.to_string_lossy().contains("missing");
        assert_eq!(seen.files.iter().find(missing), None);
    });
}

#[test(needs = [root()])]
fn calls_that_look_at_no_file_are_as_fast_as_without_a_tracer() {
    in_each(|place| {
        // 400,000 calls, which take 10 s where each stops.
        let words = ["dd", "if=/dev/zero", "of=/dev/null", "bs=1", "count=200000"];
        let seen = place.used(&words, 5000);
        assert_eq!(seen.ended, "succeeded");
    });
}

#[test(needs = [root()])]
fn a_set_uid_program_gains_no_rights() {
    in_each(|place| {
        let cat = fs::read("/usr/bin/cat").unwrap();
        let own = place.file("set-uid-cat", cat);
        fs::set_permissions(&own, fs::Permissions::from_mode(0o4755)).unwrap();
        let secret = place.file("secret", "");
        fs::set_permissions(&secret, fs::Permissions::from_mode(0o600)).unwrap();
        let seen = place.shell("./set-uid-cat secret");
        place.assert_used(&seen, &["set-uid-cat"]);
        if place.is_user {
            assert!(seen.ended.contains("Permission denied"), "{seen:#?}");
            place.assert_not_used(&seen, &["secret"]);
        } else {
            assert_eq!(seen.ended, "succeeded", "{seen:#?}");
        }
    });
}

#[test(needs = [root()])]
fn a_static_program_and_one_in_a_root_of_its_own_are_followed() {
    let Some(busybox) = find_program("busybox") else {
        skip!("needs the program busybox (Debian package busybox-static)");
    };
    in_each(|place| {
        place.file("inner/busybox", fs::read(&busybox).unwrap());
        place.file("inner/data", "");
        place.file("a", "");
        let seen = place.shell("inner/busybox cat a && chroot inner /busybox cat /data");
        assert_eq!(seen.ended, "succeeded", "{seen:#?}");
        place.assert_used(&seen, &["a", "inner/busybox", "inner/data"]);
        place.assert_not_used(&seen, &["/data", "/busybox"]);
    });
}

#[test(needs = [root(), program("cc")])]
#[cfg(target_arch = "x86_64")]
fn a_program_with_calls_of_another_architecture_is_reported() {
    in_each(|place| {
        let code = "int main(void) { int number = 20; __asm__ volatile(\"int $0x80\" : \"+a\"(number)); return 0; }";
        let source = place.file("main.c", code);
        let mut built = Command::new("cc");
        let built = built.arg("-o").arg(place.at("my")).arg(source);
        let built = built.output().unwrap();
        assert!(
            built.status.success(),
            "{}",
            String::from_utf8_lossy(&built.stderr)
        );
        let seen = place.shell("exec ./my");
        if !seen.ended.starts_with("succeeded") {
            return skip_in_part("this kernel has no calls of 32 bits");
        }
        place.assert_used(&seen, &["my"]);
        assert!(
            seen.progress[0].contains("such as one of 32 bits"),
            "{seen:#?}"
        );
    });
}

/// The paths of successful calls in the output of strace.
fn paths_of_strace(text: &str) -> BTreeSet<PathBuf> {
    let successful = text.lines().filter(|line| !line.contains("= -1 E"));
    let paths = successful.filter_map(|line| {
        let (_, rest) = line.split_once('"')?;
        let (path, _) = rest.split_once('"')?;
        Some(Path::new("/").join(path))
    });
    paths.collect()
}

#[test(needs = [root(), program("strace")])]
fn the_files_are_those_of_strace() {
    let python =
        "import ctypes.util, json, os, ssl\nfor folder in os.walk('/etc/default'): list(folder)";
    let script = "sha256sum /usr/bin/perl; ls -l /usr/lib/os-release /usr; find /etc/default; awk 'BEGIN { exit }'";
    let lines = [
        ["/usr/bin/python3", "-c", python],
        ["/bin/sh", "-c", script],
    ];
    in_each(|place| {
        if place.is_user {
            return;
        }
        for words in &lines {
            if !Path::new(words[0]).exists() {
                skip_in_part(&format!("needs {}", words[0]));
                continue;
            }
            let output = place.at("strace");
            let status = Command::new("strace")
                .args(["-f", "-qq", "-e", "trace=%file", "-e", "signal=none", "-o"])
                .arg(&output)
                .args(words)
                .current_dir("/")
                .env_clear()
                .envs([
                    ("PATH", vtax_host::roots::PATH),
                    ("HOME", "/root"),
                    ("LC_ALL", "C"),
                ])
                .output()
                .unwrap();
            assert!(status.status.success());
            let seen = place.used(words, 60_000);
            assert_eq!(seen.ended, "succeeded", "{seen:#?}");
            let text = fs::read_to_string(&output).unwrap();
            // Both without links, and without the files that are in no guest.
            let real = |all: &BTreeSet<PathBuf>| -> BTreeSet<PathBuf> {
                let real = all.iter().filter_map(|path| path.canonicalize().ok());
                real.filter(|path| vtax_guest::platform::host_root::shows(path, place.path()))
                    .collect()
            };
            let expected = real(&paths_of_strace(&text));
            let found = real(&seen.files);
            assert!(expected.len() > 10, "{expected:?}");
            let lacking: Vec<_> = expected.difference(&found).collect();
            assert!(lacking.is_empty(), "{words:?}: {lacking:?}");
            // The loaders and interpreters that the kernel opens are in no call.
            let more: Vec<_> = found.difference(&expected).collect();
            let is_loader = |path: &PathBuf| path.to_string_lossy().contains("/ld-linux");
            assert!(
                more.iter().all(|path| is_loader(path)),
                "{words:?}: {more:?}"
            );
        }
    });
}
