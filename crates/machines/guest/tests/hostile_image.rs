// SPDX-License-Identifier: Apache-2.0
//! Images whose configuration and files try to act as root outside of the image.

use crate::common::{config, image, inside, line, printed_inside as printed};
use serde_json::json;
use sha2::{Digest, Sha256};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;
use vtax_guest::image::oci::{self, Source, Unpacked};
use vtax_guest::platform::container::Container;
use vtax_guest::platform::native::Native;
use vtax_guest::platform::qemu::Qemu;
use vtax_guest::platform::{Platform, Target};
use vtax_host::cell::Cell;
use vtax_host::journal::Journal;
use vtax_host::settings::{Level, Settings};

const LIMIT: Duration = Duration::from_secs(60);

/// A library that leaves a trace wherever a dynamic loader loads it: in a file of the host, by the root of the cell's first
/// process, and in the guest's own root.
const EVIL: &str = r#"
#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>
static void trace(const char *path) {
    int file = open(path, O_WRONLY | O_CREAT | O_APPEND, 0644);
    if (file >= 0) {
        dprintf(file, "uid %d\n", getuid());
        close(file);
    }
}
__attribute__((constructor)) static void loaded(void) {
    trace("/proc/1/root" HOST);
    trace(HOST);
    trace("/traced");
}
"#;

/// The usual way out of a chroot: a process whose working directory is outside of its newest root climbs to the top.
const ESCAPE: &str = r#"
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>
int main(void) {
    mkdir("/tmp/deep", 0755);
    if (chroot("/tmp/deep") != 0) return 2;
    for (int up = 0; up < 64; up++)
        if (chdir("..") != 0) return 3;
    if (chroot(".") != 0) return 4;
    puts(access("/evil.so", F_OK) == 0 ? "in the image" : "outside");
    return 0;
}
"#;

/// An image with a static busybox, the library and the program, in an OCI layout.
fn layout(folder: &Path, busybox: &Path, host: &Path, execution: &serde_json::Value) -> Source {
    let root = folder.join("root");
    for name in ["bin", "tmp"] {
        fs::create_dir_all(root.join(name)).unwrap();
    }
    fs::copy(busybox, root.join("bin/busybox")).unwrap();
    fs::write(root.join("crlf"), "#!/bin/sh\r\ntrue\r\n").unwrap();
    fs::write(root.join("plain"), "true\n").unwrap();
    let source = folder.join("source.c");
    let compile = |text: &str, options: &[&str], name: &str| {
        fs::write(&source, text).unwrap();
        run(Command::new("cc")
            .args(options)
            .arg(format!("-DHOST={:?}", host.display().to_string()))
            .arg("-o")
            .args([&root.join(name), &source]));
    };
    compile(EVIL, &["-shared", "-fPIC"], "evil.so");
    compile(ESCAPE, &["-static"], "bin/escape");
    run(Command::new("chmod").args(["-R", "a+rx"]).arg(&root));
    let layer = folder.join("layer.tar");
    let tar = ["--create", "--owner=0", "--group=0", "--file"];
    run(Command::new("tar")
        .args(tar)
        .arg(&layer)
        .arg("--directory")
        .arg(&root)
        .arg("."));
    let layer = fs::read(layer).unwrap();
    let blobs = folder.join("layout/blobs/sha256");
    fs::create_dir_all(&blobs).unwrap();
    let blob = |bytes: &[u8]| {
        let digest: String = Sha256::digest(bytes)
            .iter()
            .map(|byte| format!("{byte:02x}"))
            .collect();
        fs::write(blobs.join(&digest), bytes).unwrap();
        json!({"digest": format!("sha256:{digest}"), "size": bytes.len()})
    };
    let layer = blob(&layer);
    let document = json!({
        "architecture": "amd64", "os": "linux", "config": execution,
        "rootfs": {"type": "layers", "diff_ids": [layer["digest"]]},
    });
    let config = blob(document.to_string().as_bytes());
    let manifest = blob(
        json!({"config": config, "layers": [layer]})
            .to_string()
            .as_bytes(),
    );
    let index = json!({"manifests": [manifest]}).to_string();
    fs::write(folder.join("layout/index.json"), index).unwrap();
    Source::Oci(folder.join("layout"))
}

fn run(command: &mut Command) {
    let output = command.output().unwrap();
    let shown = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {shown}");
}

/// Runs `test` with the image on each platform.
fn on_each_platform(execution: &serde_json::Value, test: impl Fn(&str, &mut dyn Target, &Path)) {
    let shared = image();
    let folder = tempfile::tempdir().unwrap();
    let host: PathBuf = folder.path().join("trace-on-the-host");
    let busybox = shared.root.join("bin/busybox");
    let source = layout(folder.path(), &busybox, &host, execution);
    let cache = folder.path().join("cache");
    let Unpacked { files, .. } =
        oci::ensure_in(&cache, &source, &shared, &mut |step| eprintln!("{step}")).unwrap();
    let mut journal = Journal::open(&folder.path().join("state")).unwrap();
    let emulated = Settings([("vm.accel".to_owned(), Level::Text("tcg".into()))].into());
    let platforms: [&dyn Platform; 3] = [&Native, &Container, &Qemu];
    for platform in platforms {
        let kind = platform.kind();
        let cell = Cell::create(config(kind), &mut journal).unwrap();
        let seat = cell.target().unwrap();
        let mut target = platform.boot(&seat, &files, &emulated).unwrap();
        let mounted = target.run(&line(&[oci::MOUNTS]), LIMIT).unwrap();
        let shown = String::from_utf8_lossy(&mounted.stderr);
        assert_eq!(mounted.code, 0, "{kind}: {shown}");
        test(kind, target.as_mut(), &host);
        target.stop().unwrap();
        cell.destroy().unwrap();
    }
}

#[test(needs = [root(), program("qemu-system-x86_64"), program("cc")])]
fn the_environment_of_an_image_reaches_no_program_outside_of_it() {
    let execution = json!({
        "User": "1234:1234",
        "Env": ["LD_PRELOAD=/image/evil.so", "LD_LIBRARY_PATH=/image", "PATH=/bin"],
    });
    on_each_platform(&execution, |kind, target, host| {
        let ids = printed(target, &["busybox", "id"]);
        assert_eq!(ids, "uid=1234 gid=1234\n", "{kind}");
        let environment = printed(target, &["busybox", "env"]);
        assert!(
            environment.contains("LD_PRELOAD=/image/evil.so"),
            "{kind}: the environment is the image's own: {environment}"
        );
        assert!(!host.exists(), "{kind}: {:?}", fs::read_to_string(host));
        let in_guest = target.run(&line(&["ls", "/"]), LIMIT).unwrap();
        let in_guest = String::from_utf8_lossy(&in_guest.stdout).into_owned();
        assert!(!in_guest.contains("traced"), "{kind}: {in_guest}");
    });
}

/// Root of an image has what root of a container has, and no way to the files and devices of the host.
#[test(needs = [root(), program("qemu-system-x86_64"), program("cc")])]
fn root_of_an_image_is_as_limited_on_bare_metal_as_in_a_container() {
    let execution = json!({"Env": ["PATH=/bin"]});
    on_each_platform(&execution, |kind, target, _| {
        let status = printed(target, &["busybox", "cat", "/proc/self/status"]);
        for wanted in [
            "CapInh:\t0000000000000000",
            "CapPrm:\t00000000a80425fb",
            "CapEff:\t00000000a80425fb",
            "CapBnd:\t00000000a80425fb",
            "CapAmb:\t0000000000000000",
            "NoNewPrivs:\t1",
        ] {
            assert!(status.contains(wanted), "{kind}: no {wanted} in {status}");
        }
        // The settings of the kernel are those of the host.
        let written = "echo 1 >/proc/sys/kernel/printk_ratelimit";
        let refused = [
            &["busybox", "ls", "/proc/1/root/usr/lib/vtax"][..],
            &["busybox", "sh", "-c", written],
            &["busybox", "sh", "-c", "echo 0 >/sys/kernel/profiling"],
            &["busybox", "mount", "-t", "tmpfs", "none", "/tmp"],
            // A device of the host's disks.
            &[
                "busybox",
                "sh",
                "-c",
                "busybox mknod /tmp/disk b 7 0 && busybox cat /tmp/disk",
            ],
            &[
                "busybox",
                "sh",
                "-c",
                "busybox mknod /dev/disk b 7 0 && busybox cat /dev/disk",
            ],
        ];
        for words in refused {
            // The first process of a container is the container's own, with the same root and rights.
            if kind == "container" && words.contains(&"/proc/1/root/usr/lib/vtax") {
                continue;
            }
            let finished = inside(target, words);
            let shown = String::from_utf8_lossy(&finished.stdout);
            assert_ne!(finished.code, 0, "{kind}: {words:?} succeeded: {shown}");
        }
        let devices = printed(target, &["busybox", "ls", "/dev"]);
        for device in ["null", "zero", "urandom", "ptmx", "shm", "stdout"] {
            assert!(
                devices.lines().any(|one| one == device),
                "{kind}: {devices}"
            );
        }
        assert!(!devices.contains("kmsg"), "{kind}: {devices}");
    });
}

#[test(needs = [root(), program("qemu-system-x86_64"), program("cc")])]
fn a_second_chroot_does_not_lead_out_of_an_image() {
    let execution = json!({"Env": ["PATH=/bin"]});
    on_each_platform(&execution, |kind, target, _| {
        let found = printed(target, &["escape"]);
        // A container, which cannot mount, is itself the limit.
        let wanted = match kind {
            "container" => "outside\n",
            _ => "in the image\n",
        };
        assert_eq!(found, wanted, "{kind}");
    });
}

#[test(needs = [root(), program("qemu-system-x86_64"), program("cc")])]
fn a_program_that_cannot_run_in_an_image_has_its_reason() {
    let execution = json!({"Env": ["PATH=/sbin:/bin"]});
    on_each_platform(&execution, |kind, target, _| {
        for (program, code, reason) in [
            ("nope", 127, "`nope` is not in the image (PATH /sbin:/bin)"),
            ("/bin/nope", 127, "`/bin/nope` is not in the image"),
            (
                "/bin/busybox/nope",
                127,
                "`/bin/busybox/nope` is not in the image",
            ),
            (
                "/crlf",
                127,
                "`/crlf` cannot run: its interpreter `/bin/sh\\r` is not in the image",
            ),
            (
                "/plain",
                126,
                "`/plain` in the image is no program of this processor",
            ),
            ("/tmp", 126, "`/tmp` in the image is not executable"),
        ] {
            let finished = inside(target, &[program]);
            let shown = String::from_utf8_lossy(&finished.stderr);
            assert!(shown.contains(reason), "{kind}: {shown}");
            assert_eq!(finished.code, code, "{kind}: {program}");
        }
    });
}
