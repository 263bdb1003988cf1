// SPDX-License-Identifier: Apache-2.0
//! `make test-all` installs files only: no service runs for it, now or after the next boot.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;

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
    for (name, script) in fakes {
        fs::write(at(name), format!("#!/bin/sh\n{script}\n")).unwrap();
        fs::set_permissions(at(name), fs::Permissions::from_mode(0o755)).unwrap();
    }
    let path = format!(
        "{}:{}",
        folder.path().display(),
        std::env::var("PATH").unwrap()
    );
    let output = Command::new(concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../scripts/apt-install"
    ))
    .arg("apache2-bin")
    .env("PATH", path)
    .env("FAKES", folder.path())
    .output()
    .unwrap();
    assert!(output.status.success(), "{output:?}");
    let called = fs::read_to_string(at("called")).unwrap();
    assert_eq!(called, "--quiet disable apache2.service\n");
}
