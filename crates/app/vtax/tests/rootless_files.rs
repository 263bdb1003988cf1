// SPDX-License-Identifier: Apache-2.0
//! Files, input and variants of an ordinary user's commands, in the files of this host.

use crate::rootless::{Home, one_trial, without_root};
use crate::support::work::{executable, run_in_order, text, trials};
use crate::support::{HostState, the_host, vtax};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use vtax_results::Trial;

/// What a script prints with it is the metric `own.seen`.
const SEEN: [&str; 5] = ["--runs", "1", "--metric", "seen=([0-9]+) of them", "1"];

/// Runs a command line natively and in a container. Returns its trials.
fn run(home: &Home, options: &[&str], words: &[&str]) -> Vec<Trial> {
    let platforms = ["--platform", "native,container", "--name", "files"];
    let results = home.path().join("results");
    let _ = fs::remove_dir_all(&results);
    home.run(&[&platforms, &SEEN[..], options, &["--"], words].concat());
    trials(&results.join("files"))
}

fn assert_seen(trials: &[Trial], expected: f64) {
    assert!(!trials.is_empty());
    for trial in trials {
        let label = &trial.treatment.label;
        assert_eq!(
            trial.metrics["own.seen"].quantity.value, expected,
            "{label}"
        );
        let source = &trial.environment["image.source"];
        assert!(source.starts_with("host:"), "{label}: {source}");
    }
}

#[test(needs = [without_root()])]
fn files_and_an_input_from_elsewhere_are_beside_the_command_and_stay_as_they_are() {
    let _host = the_host();
    let (home, other) = (Home::new(), Home::new());
    let state = HostState::read();
    for (path, content) in [(other.path(), "3"), (home.path(), "1")] {
        fs::create_dir(path.join("data")).unwrap();
        fs::write(path.join("data/number"), content).unwrap();
    }
    other.program("my", "#!/bin/sh\necho $(($(cat) + $(cat data/number) + $(cat /files/data/number))) of them\necho x > data/number\necho x > my\n");
    fs::write(other.path().join("in"), "10").unwrap();
    let of = |name: &str| other.path().join(name).to_str().unwrap().to_owned();
    let (my, data, input) = (of("my"), of("data"), of("in"));
    let files = ["--files", &my, "--files", &data, "--input", &input];
    let found = run(&home, &files, &["./my"]);
    assert_eq!(found.len(), 2);
    assert_seen(&found, 16.0);
    let digest = &found[0].environment["files.digest"];
    assert!(digest.starts_with("sha256:"), "{digest}");
    // The same with the image in words, and an input that is beside the command already.
    fs::write(home.path().join("in"), "5").unwrap();
    let words = ["sh", "-c", "echo $(($(cat) + $(cat data/number))) of them"];
    assert_seen(
        &run(&home, &["--image", "host", "--input", "in"], &words),
        6.0,
    );
    for (path, content) in [(other.path(), "3"), (home.path(), "1")] {
        let left = fs::read_to_string(path.join("data/number")).unwrap();
        assert_eq!(left, content);
        assert!(path.join("data").symlink_metadata().unwrap().is_dir());
    }
    assert!(!home.path().join("my").exists());
    state.assert_nothing_new("after runs with files");
}

#[test(needs = [without_root()])]
fn variants_are_programs_here_in_their_place_and_programs_from_elsewhere() {
    let _host = the_host();
    let (home, other) = (Home::new(), Home::new());
    fs::create_dir(home.path().join("build")).unwrap();
    fs::write(home.path().join("build/number"), "4").unwrap();
    let script = "#!/bin/sh\necho $(cat ${0%/*}/number) of them\n";
    home.program("build/app", script);
    other.program("app", "#!/bin/sh\necho 9 of them\n");
    let new = format!("new={}", other.path().join("app").display());
    let options = ["--variant", "old=./build/app", "--variant", &new];
    let found = run(&home, &options, &["{variant}"]);
    assert_eq!(found.len(), 4);
    for trial in &found {
        let is_old = trial.treatment.label.contains("variant=old");
        let expected = if is_old { 4.0 } else { 9.0 };
        assert_seen(std::slice::from_ref(trial), expected);
    }
}

#[test(needs = [without_root()])]
fn the_environment_of_the_user_is_not_the_command_s() {
    let _host = the_host();
    let home = Home::new();
    let script = "echo $(env | cut -d= -f1 | grep -cvxE 'PATH|HOME|LC_ALL|PWD|OLDPWD|SHLVL|_') of them; test \"$GIVEN\" = x";
    let words = ["env", "GIVEN=x", "sh", "-c", script];
    assert_seen(&run(&home, &["--image", "host"], &words), 1.0);
}

#[test(needs = [without_root()])]
fn what_the_files_of_this_host_cannot_have_is_refused_before_the_run() {
    let home = Home::new();
    home.program("my", "#!/bin/sh\nexit 3\n");
    let refused = |options: &[&str], status: i32, reason: &str| {
        let mut command = home.vtax();
        let start = [&["run"][..], &one_trial("native")].concat();
        let output = command.args(start).args(options).output().unwrap();
        let message = text(&output.stderr);
        assert_eq!(output.status.code(), Some(status), "{message}");
        assert!(message.contains(reason), "{message}");
    };
    refused(
        &["--packages", "sl", "--", "./my"],
        2,
        "`packages` are not added to the files of this host; install them here",
    );
    refused(
        &["--ready", "exit", "--", "./my"],
        2,
        "`ready` needs `serve`",
    );
    let of_root = tempfile::tempdir().unwrap();
    fs::set_permissions(of_root.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let image = format!("host:{}", of_root.path().display());
    let mut command = home.vtax();
    let line = [
        "run",
        "--platform",
        "native",
        "--image",
        &image,
        "--files",
        "my",
        "--",
        "true",
    ];
    let message = text(&command.args(line).output().unwrap().stderr);
    assert!(message.contains("is not yours to write to"), "{message}");
    refused(&["--files", "none", "--", "./my"], 5, "No such file");
    // The failure of a command there does not name vtax's image.
    refused(&["--", "./my"], 1, "`./my` failed (exit code 3)");
}

/// A plan of the user with these lines of `settings`, in the files of this host.
fn plan(home: &Home, settings: &str, load: &str) {
    let text = format!(
        "name = \"settings\"\nimage = \"host:{}\"\nrepetitions = 1\n[settings]\n{settings}\n[[platform]]\nkind = \"native\"\n\
         [[platform]]\nkind = \"container\"\n[[workload]]\nkind = \"command\"\nname = \"my\"\nload = '''{load}'''\n\
         metrics.seen = {{ regex = \"([0-9]+) of them\", unit = \"1\" }}\n",
        home.path().display()
    );
    fs::write(home.path().join("plan.toml"), text).unwrap();
}

#[test(needs = [without_root()])]
fn processors_and_links_are_set_without_root_and_shares_are_refused_before_the_run() {
    let _host = the_host();
    let home = Home::new();
    let load = "sh -c 'echo $(($(nproc) * 10000 + $(cat /sys/class/net/eth0/mtu))) of them'";
    plan(
        &home,
        "target.pin = \"0\"\nlink.mtu = 1400\nlink.rate_mbit = 100",
        load,
    );
    home.run(&["--results", "results", "plan.toml"]);
    assert_seen(&trials(&home.path().join("results")), 11400.0);
    for share in ["target.cpu_cap = 0.5", "target.cpu_weight = 50"] {
        plan(&home, share, load);
        let mut command = home.vtax();
        let output = command
            .args(["run", "--results", "refused", "plan.toml"])
            .output();
        let output = output.unwrap();
        let message = text(&output.stderr);
        assert_eq!(output.status.code(), Some(5), "{message}");
        assert!(message.contains("Delegate=yes"), "{message}");
        assert!(!home.path().join("refused").exists(), "{message}");
    }
}

#[test(needs = [without_root()])]
fn the_directories_of_everyone_in_an_image_that_root_made_can_be_written() {
    let _host = the_host();
    let home = Home::new();
    let words = [
        "sh",
        "-c",
        "for d in tmp var/tmp run/lock; do echo 1 > /$d/new; done; echo $(cat /tmp/new /var/tmp/new /run/lock/new | wc -l) of them",
    ];
    let line = ["run", "--platform", "native,container", "--name", "files"];
    let mut command = home.vtax();
    let output = command
        .args(line)
        .args(SEEN)
        .arg("--")
        .args(words)
        .output()
        .unwrap();
    let message = text(&output.stderr);
    if message.contains("which owns the files of the guest image") {
        skip!("root has not built vtax's image in /var/cache/vtax");
    }
    let found = trials(&home.path().join("results/files"));
    assert_eq!(found.len(), 2, "{message}");
    for trial in found {
        assert_eq!(trial.metrics["own.seen"].quantity.value, 3.0, "{message}");
    }
}

/// Stands in for ssh: runs the command as the user, in the user's home.
const SSH: &str = r#"#!/bin/sh
while [ $# -gt 0 ]; do
    case $1 in
    -o | -p | -i | -F | -l | -S) shift 2 ;;
    -*) shift ;;
    *) break ;;
    esac
done
shift
[ "$1" != -- ] || shift
cd THERE
export HOME=THERE PATH=THERE:$PATH
unset VTAX_STATE_DIR
exec setpriv --reuid=65534 --regid=65534 --clear-groups -- sh -c "$*"
"#;

#[test(needs = [without_root()])]
fn a_run_on_a_machine_where_one_is_an_ordinary_user_has_its_results_here() {
    let _host = the_host();
    let (here, there) = (tempfile::tempdir().unwrap(), Home::new());
    there.program("my", "#!/bin/sh\nexit 0\n");
    let place = there.path().to_str().unwrap();
    executable(&here.path().join("ssh"), &SSH.replace("THERE", place));
    let path = format!(
        "{}:{}",
        here.path().display(),
        std::env::var("PATH").unwrap()
    );
    let image = format!("host:{place}");
    let mut command = vtax(&here.path().join("state"));
    let line = [
        "run",
        "--place",
        "ssh:other",
        "--platform",
        "native,container",
        "--runs",
        "1",
    ];
    let command = command.args(line).args(["--image", &image, "--", "./my"]);
    run_in_order(command.env("PATH", path).current_dir(here.path()));
    let found = trials(&here.path().join("results/my"));
    assert_eq!(found.len(), 2);
    for trial in found {
        let scope = &trial.environment["scope"];
        assert!(scope.contains("without root"), "{scope}");
    }
}
