// SPDX-License-Identifier: Apache-2.0
//! The Debian package: what is in it, its units, and what it leaves on a host that it is removed from.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../..")
}

/// A package of this build.
fn package(folder: &Path) -> PathBuf {
    let output = Command::new(root().join("scripts/package"))
        .arg(env!("CARGO_BIN_EXE_vtax"))
        .arg(folder)
        .arg("--for-test")
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    PathBuf::from(String::from_utf8(output.stdout).unwrap().trim_end())
}

#[test(needs = [program("dpkg-deb"), program("objcopy"), program("python3")])]
fn a_package_has_the_programs_of_the_docs_a_page_for_each_command_and_no_service_that_is_enabled() {
    let folder = tempfile::tempdir().unwrap();
    let package = package(folder.path());
    let mut list = Command::new("dpkg-deb");
    let list = list.arg("--contents").arg(&package);
    let list = list.output().unwrap().stdout;
    let list = String::from_utf8(list).unwrap();
    for file in [
        "./usr/bin/vtax\n",
        "./usr/bin/vtax-nic -> vtax\n",
        "./usr/bin/vtax-mvm -> vtax\n",
        "./usr/lib/systemd/system/vtax-exporter.service\n",
        "./usr/lib/systemd/system/vtax-nic.service\n",
        "./usr/lib/systemd/system/vtax-web.service\n",
        "./usr/share/qemu/vhost-user/50-vtax-nic.json\n",
        "./usr/share/vtax/grafana/vtax.json\n",
        "./usr/share/vtax/prometheus/vtax.rules.yml\n",
        "./usr/share/bash-completion/completions/vtax\n",
        "./usr/share/man/man1/vtax.1.gz\n",
        "./usr/share/man/man1/vtax-plan-show.1.gz\n",
        "./usr/share/man/man1/vtax-nic.1.gz\n",
        "./usr/share/man/man1/vtax-exporter.1.gz\n",
        "./usr/share/doc/vtax/copyright\n",
    ] {
        assert!(list.contains(file), "{file}: {list}");
    }
    assert!(!list.contains("./etc/"), "{list}");
    assert!(!list.contains("generate"), "{list}");
}

/// A build of QEMU in the cache of a test, with these of its source.
fn pretend_qemu(cache: &Path, sources: &[(&str, &str)]) {
    let built = cache.join("testbed").join(vtax_testbed::emulator::name());
    fs::create_dir_all(built.join("source/copyright")).unwrap();
    for name in [
        "qemu-system-x86_64",
        "bios-256k.bin",
        "kvmvapic.bin",
        "linuxboot_dma.bin",
        "multiboot_dma.bin",
    ] {
        fs::write(built.join(name), name).unwrap();
    }
    for (name, text) in sources {
        fs::write(built.join("source").join(name), text).unwrap();
    }
}

fn package_testbed(cache: &Path, folder: &Path) -> Output {
    let mut package = Command::new(root().join("scripts/package"));
    package.arg(env!("CARGO_BIN_EXE_vtax")).arg(folder);
    package.args(["--testbed", "--for-test"]);
    package.env("VTAX_CACHE_DIR", cache).output().unwrap()
}

#[test(needs = [program("dpkg-deb"), program("python3"), program("tar")])]
fn the_package_of_the_emulator_has_its_licence_and_comes_with_its_source() {
    let [cache, folder] = [(); 2].map(|()| tempfile::tempdir().unwrap());
    let sources = [
        ("build.sh", "built"),
        ("smp.patch", "several"),
        ("llc.patch", "counts"),
        ("llc.c", "counter"),
        ("llc.h", "of it"),
        ("versions", "glibc (= 2.36-9)\nqemu (= 1:7.2+dfsg-7)\n"),
        ("installed", "gcc\t4:12.2.0-3\n"),
        ("SHA256SUMS", "0123  qemu_7.2+dfsg-7.dsc\n"),
        ("missing", "glibc=2.36-9\n"),
        ("copyright/qemu", "the words of QEMU's licence"),
        ("qemu_7.2+dfsg-7.dsc", "Format: 3.0"),
        ("qemu_7.2+dfsg.orig.tar.xz", "packed"),
    ];
    pretend_qemu(cache.path(), &sources);
    let output = package_testbed(cache.path(), folder.path());
    assert!(output.status.success(), "{output:?}");
    let warned = String::from_utf8(output.stderr).unwrap();
    assert!(warned.contains("lacks files of glibc=2.36-9"), "{warned}");
    let printed = String::from_utf8(output.stdout).unwrap();
    let [package, archive] = printed.lines().collect::<Vec<_>>()[..] else {
        panic!("{printed}");
    };
    let read = |program: &str, words: &[&str]| {
        let output = Command::new(program).args(words).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    let control = read("dpkg-deb", &["--field", package]);
    assert!(
        control.contains("Built-Using: glibc (= 2.36-9), qemu (= 1:7.2+dfsg-7)\n"),
        "{control}"
    );
    let installed = folder.path().join("installed");
    read(
        "dpkg-deb",
        &["--extract", package, installed.to_str().unwrap()],
    );
    let name = vtax_testbed::emulator::name();
    let qemu = installed.join("usr/lib/vtax/testbed").join(&name);
    let mode = fs::metadata(qemu.join("qemu-system-x86_64")).unwrap();
    assert_eq!(mode.permissions().mode() & 0o777, 0o755);
    assert!(qemu.join("bios-256k.bin").is_file() && !qemu.join("source").exists());
    let documents = installed.join("usr/share/doc/vtax-testbed");
    for (name, text) in &sources[..8] {
        let kept = fs::read_to_string(documents.join("source").join(name)).unwrap();
        assert_eq!(kept, *text);
    }
    let licence = fs::read_to_string(documents.join("copyright")).unwrap();
    for words in [
        "General Public License, version 2",
        "the words of QEMU's licence",
    ] {
        assert!(licence.contains(words), "{licence}");
    }
    let readme = fs::read_to_string(documents.join("README")).unwrap();
    assert!(
        readme.contains(&name) && readme.contains("glibc=2.36-9"),
        "{readme}"
    );
    let members = read("tar", &["--list", "--file", archive]);
    for (name, _) in sources {
        assert!(
            members.contains(&format!("vtax-testbed-source/{name}\n")),
            "{members}"
        );
    }
}

#[test(needs = [program("dpkg"), program("python3")])]
fn no_package_is_made_of_an_emulator_without_its_source() {
    let [cache, folder] = [(); 2].map(|()| tempfile::tempdir().unwrap());
    pretend_qemu(cache.path(), &[]);
    let output = package_testbed(cache.path(), folder.path());
    let reason = String::from_utf8(output.stderr).unwrap();
    assert!(
        !output.status.success() && reason.contains("lacks its source"),
        "{reason}"
    );
    assert!(reason.contains("testbed build qemu"), "{reason}");
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
}

/// A unit is checked with the program of this build in place of the installed one.
#[test(needs = [program("systemd-analyze")])]
fn systemd_finds_nothing_wrong_with_the_units() {
    let folder = tempfile::tempdir().unwrap();
    for name in ["vtax-exporter", "vtax-nic", "vtax-web"] {
        let unit = format!("{name}.service");
        let text = fs::read_to_string(root().join("contrib/systemd").join(&unit)).unwrap();
        assert!(text.contains("NoNewPrivileges=yes"), "{unit}");
        assert!(text.contains("CapabilityBoundingSet="), "{unit}");
        for restriction in [
            "LockPersonality=yes",
            "ProtectControlGroups=yes",
            "ProtectKernelModules=yes",
            "RestrictNamespaces=",
            "RestrictSUIDSGID=yes",
            "SystemCallArchitectures=native",
        ] {
            assert!(text.contains(restriction), "{unit} lacks {restriction}");
        }
        let lines = text
            .lines()
            .filter(|line| !line.starts_with("Documentation="));
        let lines: Vec<String> = lines
            .map(|line| match line.strip_prefix("ExecStart=/usr/bin/vtax") {
                Some(_) => format!("ExecStart={}", env!("CARGO_BIN_EXE_vtax")),
                None => line.to_owned(),
            })
            .collect();
        let file = folder.path().join(&unit);
        fs::write(&file, lines.join("\n")).unwrap();
        let mut verify = Command::new("systemd-analyze");
        let output = verify.arg("verify").arg(&file).output().unwrap();
        let words = String::from_utf8_lossy(&output.stderr).into_owned();
        // Other units of this machine may be broken.
        let wrong: Vec<&str> = words.lines().filter(|line| line.contains(&unit)).collect();
        assert!(wrong.is_empty(), "{wrong:?}");
    }
}

#[test(needs = [root(), brought_by_test_all("systemd-nspawn"), test_all("takes 40 s")])]
fn a_package_is_used_in_debian_12_and_13_its_units_serve_and_a_purge_leaves_only_results() {
    let roots = Path::new(&std::env::var("HOME").unwrap_or("/root".to_owned()))
        .join(".cache/vtax-tests/roots");
    if !["bookworm", "trixie"]
        .iter()
        .all(|suite| roots.join(format!("{suite}-systemd.tar")).exists())
    {
        skip!("no clean roots are here: `make package-test` fetches them");
    }
    let folder = tempfile::tempdir().unwrap();
    let output = Command::new(root().join("scripts/package-test"))
        .arg(package(folder.path()))
        .output()
        .unwrap();
    assert!(
        output.status.success(),
        "{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
}
