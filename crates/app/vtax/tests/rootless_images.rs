// SPDX-License-Identifier: Apache-2.0
//! Images and ids of an ordinary user.

use crate::rootless::{Home, USER, one_trial, without_root};
use crate::support::work::{text, trials};
use crate::support::{HostState, finish, in_order, the_host};
use serde_json::json;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use std::process::{Command, Output};

/// The range of the user in the tests' /etc/subuid.
const RANGE: &str = "65534:1000000:65536\n";

/// A command in vtax's image with a file of the plan.
const PLAN: &str = r#"name = "own"
repetitions = 1
[[platform]]
kind = "native"
[[platform]]
kind = "qemu"
[[workload]]
kind = "command"
name = "check"
load = "sh -c 'test -s one && test $(stat -c %u /etc/shadow) = 0 && fio --version'"
files = ["one"]
"#;

/// Runs vtax as the user, in a mount namespace in which `script` has changed files of the host.
fn run_with(home: &Home, script: &str, arguments: &[&str]) -> Output {
    for (name, content) in [("range", RANGE), ("none", "")] {
        fs::write(home.path().join(name), content).unwrap();
    }
    let user = home.vtax();
    let mut command = Command::new("unshare");
    command
        .args(["--mount", "--propagation", "private", "sh", "-ec"])
        .args([&format!("{script}\nexec \"$@\""), "sh"])
        .arg(user.get_program())
        .args(user.get_args())
        .arg("run")
        .args(arguments)
        .env("HOME", home.path())
        .env("VTAX_CACHE_DIR", home.path().join("cache"))
        .env_remove("VTAX_STATE_DIR")
        .env_remove("XDG_STATE_HOME")
        .current_dir(home.path());
    command.output().unwrap()
}

#[test(needs = [without_root(), program("newuidmap")])]
fn a_range_of_ids_is_mapped_where_newuidmap_gives_it_and_one_id_elsewhere() {
    let _host = the_host();
    let home = Home::new();
    home.program(
        "change",
        "#!/bin/sh\n: > x\nchown 33:34 x 2>/dev/null; echo owner $(stat -c %u x)\n",
    );
    let owner_in = |script: &str, message: &str| {
        let metric = ["--metric", "owner=owner ([0-9]+)", "1", "--", "./change"];
        let line = [&one_trial("native")[..], &metric].concat();
        let output = run_with(&home, script, &line);
        let printed = text(&output.stderr);
        assert!(in_order(output.status), "{printed}");
        assert!(printed.contains(message), "{printed}");
        let results = home.path().join("results");
        let found = trials(&results.join("change"));
        fs::remove_dir_all(results).unwrap();
        found[0].metrics["own.owner"].quantity.value
    };
    let both = "mount --bind range /etc/subuid; mount --bind range /etc/subgid";
    assert_eq!(owner_in(both, "65537 ids are mapped"), 33.0);
    let no_group = "mount --bind range /etc/subuid; mount --bind none /etc/subgid";
    let why = "one id is mapped (/etc/subgid has no 65536 ids of nobody";
    assert_eq!(owner_in(no_group, why), 0.0);
    home.program("fails", "#!/bin/sh\necho not today >&2; exit 1\n");
    let fails = format!("{both}; mount --bind fails \"$(command -v newgidmap)\"");
    assert_eq!(owner_in(&fails, "one id is mapped (not today)"), 0.0);
}

#[test(needs = [without_root(), program("mmdebstrap"), program("qemu-system-x86_64"), test_all("builds an image, in a minute or two")])]
fn an_ordinary_user_builds_an_image_and_boots_a_vm_from_it() {
    let _host = the_host();
    let home = Home::new();
    fs::write(home.path().join("one"), "a file of the plan\n").unwrap();
    let before = HostState::read();
    // Files are added to an image of the user's own, also where root has built one.
    fs::write(home.path().join("plan.toml"), PLAN).unwrap();
    // Without a range of ids.
    let no_range = "mount --bind none /etc/subuid 2>/dev/null || true";
    let line = ["plan.toml", "--results", "results"];
    let output = run_with(&home, no_range, &line);
    let message = text(&output.stderr);
    assert!(in_order(output.status), "{message}");
    assert!(message.contains("installing Debian"), "{message}");
    assert_eq!(trials(&home.path().join("results")).len(), 2);
    let images = fs::read_dir(home.path().join("cache/images")).unwrap();
    let images: Vec<_> = images.map(|entry| entry.unwrap().path()).collect();
    let images: Vec<_> = images.iter().filter(|path| path.is_dir()).collect();
    assert_eq!(images.len(), 2, "{images:?}");
    for image in &images {
        let about = fs::metadata(image).unwrap();
        // Its programs with set-user-ID are the user's.
        assert_eq!((about.uid(), about.mode() & 0o777), (USER, 0o700));
    }
    before.assert_nothing_new("after a build");

    let archive = archive(&home, &images[0].join("root/bin/busybox"));
    let source = format!("oci:{}", archive.display());
    let check = "test -e kept && test ! -e gone && test ! -u kept && test $(stat -c %u kept) = 0";
    let line = [
        "--platform",
        "native,container",
        "--runs",
        "1",
        "--image",
        &source,
    ];
    let command = ["--results", "oci", "--", "sh", "-c", check];
    let output = run_with(&home, no_range, &[&line[..], &command].concat());
    let message = text(&output.stderr);
    assert!(in_order(output.status), "{message}");
    assert!(
        message.contains("5 files of the image belong to root instead of their owners"),
        "{message}"
    );
    assert_eq!(trials(&home.path().join("oci")).len(), 2);
    before.assert_nothing_new("after a run of an image");
}

/// An archive of an image with two layers, as `docker save` writes it. The files of `/data` have an owner.
fn archive(home: &Home, busybox: &Path) -> std::path::PathBuf {
    let work = home.path().join("image");
    let layers = ["1", "2"].map(|name| {
        let folder = work.join(name);
        fs::create_dir_all(folder.join("data")).unwrap();
        folder
    });
    fs::create_dir(layers[0].join("bin")).unwrap();
    fs::copy(busybox, layers[0].join("bin/busybox")).unwrap();
    for name in ["sh", "stat", "test"] {
        symlink("busybox", layers[0].join("bin").join(name)).unwrap();
    }
    for (layer, name) in [(0, "gone"), (0, "kept"), (1, ".wh.gone")] {
        fs::write(layers[layer].join("data").join(name), name).unwrap();
    }
    let set_id = fs::Permissions::from_mode(0o4755);
    fs::set_permissions(layers[0].join("data/kept"), set_id).unwrap();
    let digests = ["1", "2"].map(|name| {
        let tar = work.join(name).with_extension("tar");
        let mut command = Command::new("tar");
        command.args(["--create", "--owner=33", "--group=33", "--directory"]);
        finish(
            command
                .arg(work.join(name))
                .arg("--file")
                .arg(&tar)
                .arg("data"),
            true,
        );
        if name == "1" {
            let mut command = Command::new("tar");
            command.args(["--append", "--owner=0", "--group=0", "--directory"]);
            finish(
                command
                    .arg(work.join(name))
                    .arg("--file")
                    .arg(&tar)
                    .arg("bin"),
                true,
            );
        }
        let sum = Command::new("sha256sum").arg(&tar).output().unwrap();
        let sum = text(&sum.stdout);
        format!("sha256:{}", sum.split(' ').next().unwrap())
    });
    let config = json!({
        "architecture": "amd64", "os": "linux", "config": {"WorkingDir": "/data"},
        "rootfs": {"type": "layers", "diff_ids": digests},
    });
    let manifest = json!([{"Config": "config.json", "Layers": ["1.tar", "2.tar"]}]);
    fs::write(work.join("config.json"), config.to_string()).unwrap();
    fs::write(work.join("manifest.json"), manifest.to_string()).unwrap();
    let archive = home.path().join("app.tar");
    let mut command = Command::new("tar");
    command
        .arg("--create")
        .arg("--directory")
        .arg(&work)
        .arg("--file")
        .arg(&archive);
    finish(
        command.args(["manifest.json", "config.json", "1.tar", "2.tar"]),
        true,
    );
    archive
}
