// SPDX-License-Identifier: Apache-2.0
//! Commands and users that attack the cells of an ordinary user.

use crate::rootless::{Home, has_process, one_trial, without_root};
use crate::support::work::{text, trials, wait_in};
use crate::support::{HostState, the_host};
use rustix::process::{Pid, Signal, kill_process};
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::process::{Command, Output, Stdio};
use vtax_results::Trial;

/// Another user without a name, a home and groups.
const OTHER: u32 = 65533;

/// Runs a program of the home on platforms, whether or not its trials count.
fn attack(home: &Home, platforms: &str, program: &str) -> (Output, Vec<Trial>) {
    let line = [&["run"][..], &one_trial(platforms)].concat();
    let output = home
        .vtax()
        .args(&line)
        .args(["--", program])
        .output()
        .unwrap();
    let name = program.trim_start_matches("./");
    let found = trials(&home.path().join("results").join(name));
    (output, found)
}

/// Asserts that the state of the user is a journal without an entry and the lock.
fn assert_no_state(home: &Home) {
    let state = home.path().join(".local/state/vtax");
    let entries = fs::read_dir(&state)
        .unwrap()
        .map(|entry| entry.unwrap().file_name());
    let mut names: Vec<String> = entries.map(|name| name.into_string().unwrap()).collect();
    names.sort();
    assert_eq!(names, ["journal.jsonl", "lock"]);
    let journal = fs::read_to_string(state.join("journal.jsonl")).unwrap();
    assert_eq!(journal.trim(), "");
}

#[test(needs = [without_root()])]
fn a_command_of_a_container_reaches_neither_the_host_nor_the_files_of_the_user() {
    let _host = the_host();
    let home = Home::new();
    let secret = home.path().join("secret");
    fs::write(&secret, "own").unwrap();
    let own = home.path().display().to_string();
    // Each line that succeeds prints a word.
    let tries = [
        format!("echo x > /proc/1/root{own}/escaped && test -e {own}/escaped || echo file; rm -f {own}/secret; true"),
        "mount -t tmpfs none /mnt && echo mounted".to_owned(),
        "nsenter --target=1 --mount true && echo entered".to_owned(),
        "mknod /tmp/disk b 8 0 && head -c 1 /tmp/disk && echo device".to_owned(),
        "cat /etc/shadow /dev/mem /dev/kmsg && echo read".to_owned(),
        "ip link set dev eth0 down && echo link".to_owned(),
        "echo 1 > /proc/sys/kernel/sysrq && echo setting".to_owned(),
        "for file in /sys/fs/cgroup/*/cgroup.procs /sys/fs/cgroup/cgroup.procs; do echo $$ > $file && echo group; done".to_owned(),
        "kill -9 1 2 && echo killed".to_owned(),
    ];
    let lines = tries.map(|line| format!("({line}) 2>/dev/null\n")).concat();
    home.program(
        "escape",
        &format!("#!/bin/sh\n(\n{lines}) > words\ncat words >&2\nexit 3\n"),
    );
    let before = HostState::read();
    let (output, _) = attack(&home, "container", "./escape");
    let message = text(&output.stderr);
    assert!(message.contains("failed (exit code 3)"), "{message}");
    for word in [
        "mounted", "entered", "device", "read", "link", "setting", "group",
    ] {
        assert!(
            !message.lines().any(|line| line.trim() == word),
            "{word}: {message}"
        );
    }
    assert_eq!(fs::read_to_string(&secret).unwrap(), "own");
    assert!(!home.path().join("escaped").exists());
    before.assert_nothing_new("after an escape");
    assert_no_state(&home);
}

#[test(needs = [without_root()])]
fn what_outlives_its_command_ends_with_its_cell() {
    let _host = the_host();
    let home = Home::new();
    let lives = "(setsid sh -c 'trap \"\" TERM HUP INT; sleep 3.14159; sleep 314.15' > /dev/null 2>&1 &)\n((sleep 314.15 &) &)\nexit 0\n";
    let bomb = "ulimit -u 300\nbomb() { bomb | bomb & }\nbomb 2>/dev/null\nsleep 0.5\nexit 0\n";
    // It kills all that it can see, the first process of its namespace among them.
    let kills = "kill -9 -1; sleep 1\n";
    for (name, script) in [("lives", lives), ("bomb", bomb), ("kills", kills)] {
        home.program(name, &format!("#!/bin/bash\n{script}"));
        let before = HostState::read();
        let (output, found) = attack(&home, "native,container", &format!("./{name}"));
        let message = text(&output.stderr);
        assert!(!output.status.success(), "{name}: {message}");
        for trial in &found {
            let left = trial
                .suspect
                .iter()
                .any(|reason| reason.contains("the command left"));
            let failed = message.contains("killed by signal 9");
            assert!(left || failed, "{name}: {:?} {message}", trial.suspect);
        }
        assert!(!has_process("314.15"), "{name}");
        before.assert_nothing_new(name);
        assert_no_state(&home);
    }
}

#[test(needs = [without_root()])]
fn a_kill_of_a_run_ends_what_left_its_session() {
    let _host = the_host();
    let home = Home::new();
    home.program(
        "my",
        "#!/bin/sh\n(setsid sleep 271.8 > /dev/null 2>&1 &)\nexec sleep 27.18\n",
    );
    for platform in ["native", "container"] {
        let before = HostState::read();
        let line = [&["run"][..], &one_trial(platform), &["--", "./my"]].concat();
        let mut command = home.vtax();
        let command = command
            .args(&line)
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        let mut run = command.spawn().unwrap();
        wait_in(&mut run, 60, || {
            has_process("271.8") && has_process("27.18")
        });
        let pid = Pid::from_raw(i32::try_from(run.id()).unwrap()).unwrap();
        kill_process(pid, Signal::KILL).unwrap();
        run.wait().unwrap();
        before.assert_nothing_new(platform);
        assert!(!has_process("271.8") && !has_process("27.18"), "{platform}");
    }
}

#[test(needs = [without_root()])]
fn a_set_uid_program_and_links_in_the_working_directory_give_a_user_nothing() {
    let _host = the_host();
    let (home, other) = (Home::new(), Home::of(OTHER));
    fs::write(other.path().join("mail"), "private").unwrap();
    fs::set_permissions(other.path(), fs::Permissions::from_mode(0o700)).unwrap();
    symlink("/etc/shadow", home.path().join("shadow")).unwrap();
    symlink(other.path(), home.path().join("other")).unwrap();
    symlink("/proc/1/root", home.path().join("top")).unwrap();
    fs::copy("/bin/cat", home.path().join("cat")).unwrap();
    fs::set_permissions(home.path().join("cat"), fs::Permissions::from_mode(0o4755)).unwrap();
    let script = "for name in shadow other/mail top/root/.profile /etc/shadow; do ./cat $name 2>/dev/null && echo read $name; done\n";
    home.program(
        "my",
        &format!("#!/bin/sh\n({script}) > words\ncat words >&2\nexit 3\n"),
    );
    for platform in ["native", "container"] {
        let (output, _) = attack(&home, platform, "./my");
        let message = text(&output.stderr);
        assert!(message.contains("failed (exit code 3)"), "{message}");
        assert!(
            !message.contains("read ") && !message.contains("private"),
            "{message}"
        );
        fs::remove_dir_all(home.path().join("results")).unwrap();
    }
}

#[test(needs = [without_root()])]
fn two_users_neither_wait_for_each_other_nor_read_each_other_s_state() {
    let _host = the_host();
    let (one, two) = (Home::new(), Home::of(OTHER));
    let line = [&["run"][..], &one_trial("native"), &["--", "./my"]].concat();
    one.program("my", "#!/bin/sh\nexec sleep 16.18\n");
    two.program("my", "#!/bin/sh\nexit 0\n");
    let mut command = one.vtax();
    let command = command
        .args(&line)
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    let mut first = command.spawn().unwrap();
    wait_in(&mut first, 60, || has_process("16.18"));
    // The first one's run goes on.
    two.run(&line[1..]);
    let state = one.path().join(".local/state/vtax");
    for name in ["", "lock", "journal.jsonl"] {
        let path = state.join(name);
        let mut reader = two.vtax();
        let place = path.to_str().unwrap();
        // `restore` opens the journal and the lock.
        let output = reader
            .args(["restore"])
            .env("VTAX_STATE_DIR", place)
            .output()
            .unwrap();
        let message = text(&output.stderr);
        assert!(!output.status.success(), "{name}: {message}");
        let mode = fs::metadata(&path).unwrap().permissions().mode() & 0o077;
        assert_eq!(mode, 0, "{name}");
    }
    let pid = Pid::from_raw(i32::try_from(first.id()).unwrap()).unwrap();
    kill_process(pid, Signal::KILL).unwrap();
    first.wait().unwrap();
}

/// Runs a script of root in a mount namespace of its own, where `vtax` is that of the home for its
/// user, and `hang DIRECTORY` mounts a file system whose server never answers.
fn in_mounts(home: &Home, script: &str) -> Output {
    const START: &str = r#"
vtax() { timeout -k 1 100 env HOME="$home" setpriv --reuid=65534 --regid=65534 --clear-groups -- "$program" "$@"; }
hang() { exec 9<>/dev/fuse; mount -i -t fuse -o fd=9,rootmode=40000,user_id=0,group_id=0,allow_other none "$1"; }
home=$1; program=$home/vtax; cd "$home"
"#;
    let words = ["--mount", "--propagation", "private", "sh", "-ec"];
    let mut command = Command::new("unshare");
    let command = command.args(words).arg(format!("{START}{script}"));
    command.arg("sh").arg(home.path()).output().unwrap()
}

#[test(needs = [without_root()])]
fn file_systems_of_a_server_that_never_answers_are_left_out_and_files_beside_them_are_there() {
    let _host = the_host();
    let home = Home::new();
    fs::create_dir_all(home.path().join("hangs")).unwrap();
    fs::create_dir_all(home.path().join("data")).unwrap();
    fs::write(home.path().join("data/number"), "4").unwrap();
    fs::write(home.path().join("large"), vec![b'7'; 2 << 20]).unwrap();
    fs::write(home.path().join("number"), "3").unwrap();
    let large = "head -c 1 large; (echo x > large) 2>/dev/null || echo kept";
    home.program(
        "my",
        &format!("#!/bin/sh\ncat number data/number; {large}\necho x > number; (echo x > data/number) 2>/dev/null; ls -A hangs | wc -l; exit 3\n"),
    );
    if !std::path::Path::new("/dev/fuse").exists() {
        skip!("this host has no /dev/fuse");
    }
    let script = "mount -t tmpfs none /srv; mkdir /srv/hangs /srv/data\nhang /srv/hangs; hang \"$home/hangs\"\n\
                  vtax run --platform native,container --runs 1 --image host -- sh -c './my >&2; exit 3'";
    let output = in_mounts(&home, script);
    let message = text(&output.stderr);
    for platform in ["native", "container"] {
        let of = message
            .split(&format!("{platform} · sh"))
            .nth(1)
            .unwrap_or_default();
        let shown: Vec<&str> = of.lines().skip(1).take(2).map(str::trim).collect();
        assert_eq!(shown, ["347kept", "0"], "{platform}: {message}");
    }
    assert_eq!(fs::read_to_string(home.path().join("number")).unwrap(), "3");
    assert_eq!(fs::read(home.path().join("large")).unwrap().len(), 2 << 20);
}

#[test(needs = [without_root()])]
fn a_home_without_execution_and_a_full_working_directory_are_no_obstacle() {
    let _host = the_host();
    let home = Home::new();
    home.program("my", "#!/usr/bin/env sh\necho here\n");
    let script = "mkdir full full/below\nmount -t tmpfs -o noexec,mode=777 none full\nmkdir full/below\n\
                  cp my full; (cd full; seq 20000 | xargs touch)\nchown -R 65534:65534 full; cd full/below\nhome=$home/full\n\
                  vtax run --platform native,container --runs 1 --image host --files ../my -- ./my\n\
                  cd ..; vtax run --platform native,container --runs 1 --image host -- below/../my";
    let output = in_mounts(&home, script);
    let message = text(&output.stderr);
    let mut ended = message.lines().filter(|line| line.contains(" · my "));
    assert!(ended.all(|line| line.contains("CPU time")), "{message}");
    assert!(
        message.matches("/2] container · my").count() == 2,
        "{message}"
    );
}
