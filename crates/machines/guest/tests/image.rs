// SPDX-License-Identifier: Apache-2.0
//! One image of a container, built by podman without a network, on bare metal, in a container and in a VM.

use crate::common::{config, image, inside, line, printed_inside as printed};
use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;
use vtax_guest::image::oci::{self, Source};
use vtax_guest::platform::Platform;
use vtax_guest::platform::container::Container;
use vtax_guest::platform::native::Native;
use vtax_guest::platform::qemu::Qemu;
use vtax_host::cell::Cell;
use vtax_host::journal::Journal;
use vtax_host::settings::{Level, Settings};

const LIMIT: Duration = Duration::from_secs(60);

/// An image without a shell and without a libc: one static program, a numeric user, and an entry point that goes to the
/// background.
const CONTAINERFILE: &str = r#"FROM scratch
COPY busybox /bin/busybox
COPY passwd /etc/passwd
COPY group /etc/group
COPY index.html /www/index.html
ENV GREETING="it's a test" PATH=/bin
WORKDIR /data
USER web
ENTRYPOINT ["busybox", "httpd", "-p", "8080", "-h", "/www"]
"#;

/// Podman with a storage of its own.
fn podman(folder: &Path) -> Command {
    let mut command = Command::new("podman");
    for (option, name) in [
        ("--root", "storage"),
        ("--runroot", "run"),
        ("--tmpdir", "tmp"),
    ] {
        command.arg(option).arg(folder.join(name));
    }
    command.args(["--storage-driver", "vfs", "--cgroup-manager", "cgroupfs"]);
    command.args(["--events-backend", "none"]);
    command
}

fn finish(command: &mut Command) {
    let output = command.output().unwrap();
    let shown = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {shown}");
}

#[test(needs = [test_all("takes 14 s"), root(), program("qemu-system-x86_64"), brought_by_test_all("podman")])]
fn an_image_without_a_shell_runs_the_same_on_bare_metal_in_a_container_and_in_a_vm() {
    let shared = image();
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let context = path("context");
    fs::create_dir(&context).unwrap();
    fs::copy(shared.root.join("bin/busybox"), context.join("busybox")).unwrap();
    let files = [
        ("Containerfile", CONTAINERFILE),
        (
            "passwd",
            "root:x:0:0::/root:/none\nweb:x:4711:4712::/www:/none\n",
        ),
        ("group", "web:x:4712:\nlog:x:4:web\n"),
        ("index.html", "from the image\n"),
    ];
    for (name, text) in files {
        fs::write(context.join(name), text).unwrap();
    }
    finish(
        podman(folder.path())
            .args(["build", "--network=none", "--tag=app"])
            .arg(&context),
    );
    let archive = path("app.tar");
    let save = ["save", "--format=oci-archive", "--output"];
    finish(podman(folder.path()).args(save).arg(&archive).arg("app"));
    finish(podman(folder.path()).args(["rmi", "--force", "app"]));

    let source = Source::Oci(archive);
    let cache = path("cache");
    let guest = oci::ensure_in(&cache, &source, &shared, &mut |step| eprintln!("{step}")).unwrap();
    assert_eq!(guest.about.entry_point[..2], ["busybox", "httpd"]);
    let again = oci::ensure_in(&cache, &source, &shared, &mut |step| panic!("{step}"));
    assert_eq!(again.unwrap(), guest);

    let mut journal = Journal::open(&path("state")).unwrap();
    let emulated = Settings([("vm.accel".to_owned(), Level::Text("tcg".into()))].into());
    let platforms: [&dyn Platform; 3] = [&Native, &Container, &Qemu];
    for platform in platforms {
        let kind = platform.kind();
        let cell = Cell::create(config(kind), &mut journal).unwrap();
        let seat = cell.target().unwrap();
        let mut target = platform.boot(&seat, &guest.files, &emulated).unwrap();
        let target_ref = target.as_mut();
        let mounted = target_ref.run(&line(&[oci::MOUNTS]), LIMIT).unwrap();
        let shown = String::from_utf8_lossy(&mounted.stderr);
        assert_eq!(mounted.code, 0, "{kind}: {shown}");
        let ids = printed(target_ref, &["busybox", "id"]);
        assert_eq!(ids, "uid=4711(web) gid=4712(web) groups=4(log)\n", "{kind}");
        assert_eq!(
            printed(target_ref, &["busybox", "pwd"]),
            "/data\n",
            "{kind}"
        );
        let environment = printed(target_ref, &["busybox", "env"]);
        let mut environment: Vec<&str> = environment.lines().collect();
        environment.sort_unstable();
        assert_eq!(
            environment,
            ["GREETING=it's a test", "HOME=/www", "PATH=/bin"],
            "{kind}"
        );
        let all = printed(target_ref, &["busybox", "ls", "/"]);
        assert_eq!(all, "bin\ndata\ndev\netc\nproc\nsys\nwww\n", "{kind}");
        assert_eq!(
            printed(target_ref, &["busybox", "cat", "/dev/null"]),
            "",
            "{kind}"
        );
        let own = printed(target_ref, &["busybox", "cat", "/proc/self/comm"]);
        assert_eq!(own, "busybox\n", "{kind}");
        let output = printed(target_ref, &["busybox", "readlink", "/dev/stdout"]);
        assert_eq!(output, "/proc/self/fd/1\n", "{kind}");
        let no_shell = inside(target_ref, &["sh", "-c", "true"]);
        assert_ne!(no_shell.code, 0, "{kind}");
        // The entry point ends with 0, and its child serves.
        printed(target_ref, &[]);
        let address = format!("{}:8080", target_ref.about().address);
        let fetch = format!(
            "exec 3<>/dev/tcp/{}; printf 'GET / HTTP/1.0\\r\\n\\r\\n' >&3; cat <&3",
            address.replace(':', "/")
        );
        let client = seat.client();
        let page = client
            .start(&line(&["bash", "-c", &fetch]))
            .unwrap()
            .wait()
            .unwrap();
        let page = String::from_utf8_lossy(&page.stdout).into_owned();
        assert!(
            page.contains("200 OK") && page.contains("from the image"),
            "{kind}: {page}"
        );
        target.stop().unwrap();
        cell.destroy().unwrap();
    }
}
