// SPDX-License-Identifier: Apache-2.0
//! `make test-all` installs files only: no service runs for it, now or after the next boot. `sudo make` builds as the
//! user who called sudo.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

/// Writes programs of these names that run shell scripts, and returns a PATH on which they are first.
fn fake_programs(folder: &Path, programs: &[(&str, &str)]) -> String {
    for (name, script) in programs {
        let file = folder.join(name);
        fs::write(&file, format!("#!/bin/sh\n{script}\n")).unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o755)).unwrap();
    }
    format!("{}:{}", folder.display(), std::env::var("PATH").unwrap())
}

/// A script of this repository.
fn script(name: &str) -> Command {
    Command::new(
        Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("../../../scripts")
            .join(name),
    )
}

#[test]
fn a_build_under_sudo_runs_as_the_user_who_called_it() {
    let folder = tempfile::tempdir().unwrap();
    let programs = [
        ("id", "echo 0"),
        // It permits the check of the target directory, and prints the command of the build.
        (
            "sudo",
            "case \"$*\" in *mkdir*) ;; *) echo \"sudo $*\" ;; esac",
        ),
        ("cargo", "echo \"cargo $*\""),
    ];
    let path = fake_programs(folder.path(), &programs);
    let built_by = |user: Option<&str>| {
        let mut build = script("build");
        build
            .args(["--release", "--bin", "vtax"])
            .env("PATH", &path);
        build.env("CARGO", "cargo").env_remove("CARGO_TARGET_DIR");
        match user {
            Some(user) => build.env("SUDO_USER", user),
            None => build.env_remove("SUDO_USER"),
        };
        let output = build.output().unwrap();
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    let of_user = built_by(Some("ada"));
    assert!(of_user.starts_with("sudo -u ada -H "), "{of_user}");
    assert!(
        of_user.ends_with("cargo build --release --bin vtax\n"),
        "{of_user}"
    );
    for user in [None, Some("root")] {
        assert_eq!(built_by(user), "cargo build --release --bin vtax\n");
    }
}

#[test]
fn a_user_who_cannot_install_packages_gets_their_names_and_tests_run_without_them() {
    let folder = tempfile::tempdir().unwrap();
    let programs = [("id", "echo 1000"), ("sudo", "exit 1"), ("cargo", "exit 0")];
    fake_programs(folder.path(), &programs);
    for program in ["bash", "cut", "getent"] {
        let installed = Path::new("/usr/bin").join(program);
        std::os::unix::fs::symlink(installed, folder.path().join(program)).unwrap();
    }
    let of = |arguments: &[&str]| {
        let mut setup = script("setup");
        setup.args(arguments).env("PATH", folder.path());
        setup.env_remove("SUDO_USER").output().unwrap()
    };
    let tests = of(&["may-lack"]);
    let printed = String::from_utf8(tests.stdout.clone()).unwrap();
    assert!(tests.status.success(), "{tests:?}");
    assert!(printed.contains("skipped"), "{printed}");
    assert!(printed.contains(" mmdebstrap"), "{printed}");
    assert!(!of(&[]).status.success(), "a build needs the packages");
}

#[test(needs = [program("python3")])]
fn a_program_that_nothing_installs_fails_the_lint_and_one_of_the_list_does_not() {
    let folder = tempfile::tempdir().unwrap();
    let scripts = folder.path().join("scripts");
    fs::create_dir_all(&scripts).unwrap();
    fs::create_dir(folder.path().join(".ci")).unwrap();
    fs::write(folder.path().join(".ci/run"), "make lint\n").unwrap();
    fs::write(
        folder.path().join("Makefile"),
        "test:\n\t@$(CARGO) test | sponge\n",
    )
    .unwrap();
    for name in ["programs", "setup"] {
        fs::copy(script(name).get_program(), scripts.join(name)).unwrap();
    }
    let example = "# perl is only named\necho 'perl in quotes'; x=$(gawk 1 file) | xargs -P 2 ruby\n\
        shown() { busybox ls; }\nif ps; then shown; fi\ncommand -v jq || exit; jq .\n";
    fs::write(scripts.join("example"), example).unwrap();
    let python =
        "#!/usr/bin/env python3\nsubprocess.run([\"rsync\", \"x\"]); subprocess.run([\"ip\"])\n";
    fs::write(scripts.join("other"), python).unwrap();
    let tests = folder.path().join("crates/room/one/tests");
    fs::create_dir_all(&tests).unwrap();
    let test = "needs = [program(\"jq\")] Command::new(\"jq\") Command::new(\"pigz\") Command::new(\"sh\")";
    fs::write(tests.join("main.rs"), test).unwrap();
    let output = Command::new(scripts.join("programs")).output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let printed = String::from_utf8(output.stdout).unwrap();
    let named: Vec<&str> = printed
        .lines()
        .map(|line| line.split(": add").next().unwrap())
        .collect();
    let expected = [
        "Makefile: nothing installs sponge",
        "scripts/example: nothing installs gawk",
        "scripts/example: nothing installs ps",
        "scripts/example: nothing installs ruby",
        "scripts/other: nothing installs rsync",
        "crates/room/one/tests/main.rs: nothing installs pigz",
    ];
    assert_eq!(named, expected, "{printed}");
}

#[test(needs = [root()])]
fn services_that_packages_for_tests_bring_are_disabled_and_others_are_left_as_they_are() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    let fakes = [
        (
            "apt-get",
            "[ \"$1\" != install ] || touch \"$FAKES/installed\"",
        ),
        (
            "systemctl",
            "case \"$*\" in
             *list-unit-files*) echo 'cron.service enabled enabled'
                [ ! -e \"$FAKES/installed\" ] || echo 'apache2.service enabled enabled' ;;
             *) echo \"$*\" >> \"$FAKES/called\" ;;
             esac",
        ),
    ];
    let path = fake_programs(folder.path(), &fakes);
    let output = script("apt-install")
        .arg("apache2-bin")
        .env("PATH", path)
        .env("FAKES", folder.path())
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    let called = fs::read_to_string(at("called")).unwrap();
    assert_eq!(called, "--quiet disable apache2.service\n");
}

#[test(needs = [program("python3")])]
fn a_crate_that_uses_a_room_above_its_own_fails_the_lint() {
    let folder = tempfile::tempdir().unwrap();
    let scripts = folder.path().join("scripts");
    fs::create_dir(&scripts).unwrap();
    fs::copy(script("rooms").get_program(), scripts.join("rooms")).unwrap();
    let of = |room: &str, name: &str, uses: &str| {
        let place = folder.path().join("crates").join(room);
        fs::create_dir_all(place.join(name)).unwrap();
        fs::write(place.join("README.md"), format!("`{name}`\n")).unwrap();
        let manifest = format!("[package]\nname = \"vtax-{name}\"\n[dependencies]\n{uses}\n");
        fs::write(place.join(name).join("Cargo.toml"), manifest).unwrap();
    };
    for (room, name) in [
        ("app", "vtax"),
        ("machines", "host"),
        ("ledger", "observe"),
        ("nic", "nic"),
        ("mvm", "mvm"),
        ("test", "testkit"),
        ("base", "core"),
    ] {
        of(room, name, "");
    }
    of("lab", "lab", "vtax-report = \"1\"");
    of("show", "report", "vtax-lab = \"1\"");
    let output = Command::new(scripts.join("rooms")).output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let printed = String::from_utf8(output.stdout).unwrap();
    let expected = "vtax-report uses vtax-lab: the room `show` may not use `lab`; move the code, or change MAY_USE of \
                    scripts/rooms\n";
    assert_eq!(printed, expected);
}
