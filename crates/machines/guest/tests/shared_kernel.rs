// SPDX-License-Identifier: Apache-2.0
//! Native and container targets on this host's real kernel.

use crate::common;
use crate::common::{Bench, config, cpu_micros, line, shell, with_scratch};
use std::fs;
use std::path::Path;
use std::time::Duration;
use vtax_core::Source;
use vtax_core::owner::Owner;
use vtax_guest::platform::bubblewrap::Bubblewrap;
use vtax_guest::platform::container::{Container, Runtime, runtime};
use vtax_guest::platform::native::Native;
use vtax_guest::platform::nspawn::Nspawn;
use vtax_guest::platform::{Finished, Platform, Target};
use vtax_host::cell::{Cell, CellConfig};
use vtax_host::settings::{Level, Settings};
use vtax_host::{loop_device, scratch};
use vtax_testkit::needs::find_program;
use vtax_testkit::{skip, skip_in_part};

/// Runs the same test on every such platform; reports platforms that cannot run here.
fn on_each(test: impl Fn(&mut Bench, &dyn Platform)) {
    let mut bench = Bench::new();
    for platform in [&Native as &dyn Platform, &Container, &Nspawn, &Bubblewrap] {
        match platform.check(&Settings::default()) {
            Ok(()) => test(&mut bench, platform),
            Err(error) => skip_in_part(&format!("{}: {error}", platform.kind())),
        }
    }
}

/// As [`on_each`], with a target in a cell of this name that is stopped at the end.
fn in_each(name: &str, test: impl Fn(&str, &Cell, &mut dyn Target)) {
    on_each(|bench, platform| {
        let (cell, mut target) = boot(bench, platform, config(name));
        test(platform.kind(), &cell, &mut *target);
        target.stop().unwrap();
        cell.destroy().unwrap();
    });
}

/// Runs a command to its end.
fn run(target: &mut dyn Target, words: &[&str]) -> Finished {
    target.run(&line(words), Duration::from_secs(60)).unwrap()
}

/// Starts a server in the target, from which the client gets an answer.
fn serves_its_client(target: &mut dyn Target, cell: &Cell) {
    let server = ["nc", "-l", "-p", "7000", "-e", "echo", "hello"];
    let server = target.start(&line(&server)).unwrap();
    let client = cell.target().unwrap().client();
    let address = target.about().address.to_string();
    let fetched = (0..400).find_map(|_| {
        std::thread::sleep(Duration::from_millis(20));
        let fetch = line(&["busybox", "nc", &address, "7000"]);
        let output = client.start(&fetch).unwrap().wait().unwrap();
        (output.code == 0 && !output.stdout.is_empty()).then_some(output.stdout)
    });
    assert_eq!(fetched.as_deref(), Some(b"hello\n".as_slice()));
    while target.poll(server).unwrap().is_none() {
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Work of the target is counted in its control groups.
fn counts_its_work(target: &mut dyn Target) {
    let subject = target.about().subject.clone();
    let before = cpu_micros(&subject);
    shell(target, "i=0; while [ $i -lt 200000 ]; do i=$((i+1)); done");
    let used = cpu_micros(&subject) - before;
    assert!(used > 20_000, "{used} µs of work were counted");
}

fn boot(bench: &mut Bench, platform: &dyn Platform, config: CellConfig) -> (Cell, Box<dyn Target>) {
    let cell = bench.cell(config);
    let target = platform
        .boot(&cell.target().unwrap(), &bench.guest, &Settings::default())
        .unwrap();
    (cell, target)
}

#[test]
fn a_target_sees_the_shared_root_and_writes_to_none_of_it() {
    on_each(|bench, platform| {
        let (cell, mut target) = boot(bench, platform, config("root"));
        assert_eq!(shell(&mut *target, "cat /etc/mark"), "the shared root\n");
        shell(
            &mut *target,
            "echo changed > /etc/mark; echo new > /tmp/file; cat /etc/mark /tmp/file",
        );
        assert_eq!(target.about().source, Source::Measured);
        target.stop().unwrap();
        assert_eq!(
            fs::read_to_string(bench.guest.root.join("etc/mark")).unwrap(),
            "the shared root\n"
        );
        assert!(!bench.guest.root.join("tmp/file").exists());
        cell.destroy().unwrap();
    });
}

#[test]
fn a_target_serves_the_client_at_its_address() {
    in_each("serve", |_, cell, target| serves_its_client(target, cell));
}

#[test]
fn knobs_of_the_guests_network_device_are_set_from_outside_and_read_back() {
    if find_program("ethtool").is_none() {
        skip!("needs the program ethtool");
    }
    in_each("knobs", |kind, _, target| {
        let knobs: Settings = [
            ("guest.napi_defer_hard_irqs", Level::Integer(3)),
            ("guest.gro_flush_timeout", Level::Integer(20_000)),
            ("guest.gro", Level::Bool(true)),
            ("guest.tso", Level::Bool(false)),
        ]
        .into_iter()
        .collect();
        let found = vtax_guest::knobs::set(target, &knobs).unwrap();
        for (key, level) in &knobs.0 {
            assert_eq!(found[key], level.to_string(), "{kind}");
        }
        // The target itself may write none of it.
        if kind != "native" {
            let write = "echo 1 > /sys/class/net/eth0/napi_defer_hard_irqs";
            assert_ne!(run(target, &["sh", "-c", write]).code, 0, "{kind}");
        }
        let again = vtax_guest::knobs::readings(target, &knobs).unwrap();
        assert_eq!(found, again);
        let ring = ("guest.ring", Level::Text("rx 64".to_owned()));
        let refused = vtax_guest::knobs::set(target, &[ring].into_iter().collect());
        let error = refused.unwrap_err().to_string();
        assert!(
            error.contains("guest.ring = rx 64 cannot be set"),
            "{error}"
        );
        // Over netlink, to the NAPI instance that GRO gives the veth; with Linux 6.13 and newer.
        let suspension = ("guest.irq_suspend_timeout", Level::Integer(20_000));
        match vtax_guest::knobs::set(target, &[suspension].into_iter().collect()) {
            Ok(found) => assert_eq!(found["guest.irq_suspend_timeout"], "20000"),
            Err(error) => {
                let error = error.to_string();
                assert!(error.contains("Linux 6.13 or newer"), "{error}");
            }
        }
    });
}

#[test]
fn codes_and_outputs_come_back_exactly() {
    in_each("exact", |_, _, target| {
        let finished = run(
            target,
            &["sh", "-c", r"printf 'a\0b'; printf 'c' >&2; exit 3"],
        );
        let expected = Finished {
            code: 3,
            stdout: b"a\0b".to_vec(),
            stderr: b"c".to_vec(),
        };
        assert_eq!(finished, expected);
        assert_eq!(run(target, &["sh", "-c", "kill -9 $$"]).code, 137);
        assert_ne!(run(target, &["no-such-program"]).code, 0);
        let tail = target.console_tail();
        assert!(tail.contains("no-such-program"), "{tail}");
        let arguments = run(target, &["echo", "$HOME", "a b", "--help", "-x"]);
        assert_eq!(arguments.stdout, b"$HOME a b --help -x\n");
    });
}

#[test]
fn ten_megabytes_of_output_arrive_whole() {
    in_each("output", |_, _, target| {
        let script = "head -c 10000000 /dev/zero; head -c 10000000 /dev/zero >&2";
        let finished = run(target, &["sh", "-c", script]);
        let lengths = (finished.stdout.len(), finished.stderr.len());
        assert_eq!(lengths, (10_000_000, 10_000_000));
    });
}

#[test]
fn the_work_of_a_target_is_counted_in_its_control_groups() {
    in_each("count", |_, _, target| {
        let subject = target.about().subject.clone();
        assert_eq!(subject.owner, Owner::Target);
        counts_its_work(target);
        let device = &subject.net_devices[0];
        let devices = fs::read_to_string(format!("/proc/{}/net/dev", device.namespace_of)).unwrap();
        assert!(devices.contains(&format!("{}:", device.name)), "{devices}");
    });
}

#[test]
fn stopping_a_target_ends_all_that_it_started() {
    on_each(|bench, platform| {
        let (cell, mut target) = boot(bench, platform, config("stop"));
        target.start(&line(&["sleep", "1000"])).unwrap();
        shell(&mut *target, "sh -c 'sleep 1000 & sleep 1000 &'");
        let groups = target.about().subject.cgroups.clone();
        target.stop().unwrap();
        for folder in groups {
            assert_eq!(
                fs::read_to_string(folder.join("cgroup.procs")).unwrap(),
                "",
                "{}",
                folder.display()
            );
        }
        cell.destroy().unwrap();
    });
}

#[test]
fn the_scratch_disk_is_there_raw_and_as_files_and_is_released() {
    on_each(|bench, platform| {
        let image = scratch::image(&bench.folder.path().join("cache"), 4)
            .unwrap_or_else(|error| skip!("{error}"));
        let (cell, mut target) = boot(bench, platform, with_scratch("scratch", image.clone()));
        let (device, directory) = target.about().scratch.clone();
        let size = shell(
            &mut *target,
            &format!("wc -c < {}/{}", directory.display(), scratch::DATA_FILE),
        );
        assert_eq!(size.trim(), (4 << 20).to_string());
        // The magic number of ext4, 0xef53, is 1080 bytes into the disk.
        let magic = shell(
            &mut *target,
            &format!(
                "dd if={} bs=1 skip=1080 count=2 2>/dev/null | od -An -tx1",
                device.display()
            ),
        );
        assert_eq!(magic.trim(), "53 ef");
        shell(
            &mut *target,
            &format!("echo more > {}/more", directory.display()),
        );
        assert_eq!(
            loop_device::attached_to(&image),
            target.about().subject.block_devices
        );
        assert!(target.about().environment.contains_key("scratch.backing"));
        target.stop().unwrap();
        cell.destroy().unwrap();
        assert_eq!(loop_device::attached_to(&image), Vec::<String>::new());
    });
}

#[test]
fn a_container_is_more_isolated_than_native() {
    let mut bench = Bench::new();
    if let Err(error) = Container.check(&Settings::default()) {
        skip!("{error}");
    }
    let (cell, mut target) = boot(&mut bench, &Container, config("isolated"));
    assert_eq!(shell(&mut *target, "hostname"), "target\n");
    assert!(shell(&mut *target, "tr '\\0' ' ' < /proc/1/cmdline").starts_with("sh -c while"));
    assert!(shell(&mut *target, "ip link 2>/dev/null || cat /proc/net/dev").contains("eth0"));
    let denied = run(&mut *target, &["mount", "-t", "tmpfs", "x", "/tmp"]);
    assert_ne!(denied.code, 0);
    let facts = &target.about().environment;
    assert!(facts["container.runtime"].contains("version"), "{facts:?}");
    target.stop().unwrap();
    cell.destroy().unwrap();
}

#[test]
fn a_container_of_nspawn_has_its_own_namespaces_and_less_than_all_capabilities() {
    let mut bench = Bench::new();
    if let Err(error) = Nspawn.check(&Settings::default()) {
        skip!("{error}");
    }
    let (cell, mut target) = boot(&mut bench, &Nspawn, config("nspawn"));
    assert_eq!(shell(&mut *target, "hostname"), "target\n");
    let processes = shell(&mut *target, "ls -d /proc/[0-9]* | wc -l");
    assert!(processes.trim().parse::<u32>().unwrap() < 10, "{processes}");
    let bound = |text: &str| u64::from_str_radix(text.trim(), 16).unwrap();
    let capabilities = "sed -n 's/^CapBnd:[[:space:]]*//p' /proc/PID/status";
    let of =
        |target: &mut dyn Target, pid| bound(&shell(target, &capabilities.replace("PID", pid)));
    let (command, init) = (of(&mut *target, "self"), of(&mut *target, "1"));
    assert_eq!(command, init);
    // CAP_SYS_MODULE and CAP_SYS_RAWIO affect the host and are not granted.
    assert_eq!(command & (1 << 16 | 1 << 17), 0, "{command:x}");
    let facts = &target.about().environment;
    assert!(facts["nspawn.version"].contains("systemd"), "{facts:?}");
    target.stop().unwrap();
    cell.destroy().unwrap();
}

#[test]
fn a_command_of_bubblewrap_has_its_own_namespaces_and_a_containers_capabilities() {
    let mut bench = Bench::new();
    if let Err(error) = Bubblewrap.check(&Settings::default()) {
        skip!("{error}");
    }
    let (cell, mut target) = boot(&mut bench, &Bubblewrap, config("bubblewrap"));
    assert_eq!(shell(&mut *target, "hostname"), "target\n");
    let processes = shell(&mut *target, "ls -d /proc/[0-9]* | wc -l");
    assert!(processes.trim().parse::<u32>().unwrap() < 10, "{processes}");
    let effective = shell(
        &mut *target,
        "sed -n 's/^CapEff:[[:space:]]*//p' /proc/self/status",
    );
    let effective = u64::from_str_radix(effective.trim(), 16).unwrap();
    // CAP_SETUID, which servers need, is granted; CAP_SYS_MODULE, CAP_SYS_RAWIO and CAP_SYS_ADMIN are not.
    assert_eq!(
        effective & (1 << 7 | 1 << 16 | 1 << 17 | 1 << 21),
        1 << 7,
        "{effective:x}"
    );
    let facts = &target.about().environment;
    assert!(
        facts["bubblewrap.version"].contains("bubblewrap"),
        "{facts:?}"
    );
    target.stop().unwrap();
    cell.destroy().unwrap();
}

#[test]
fn auto_takes_a_runtime_that_really_works_here() {
    common::need_cells();
    let working: Vec<Runtime> = Runtime::ALL
        .into_iter()
        .filter(|runtime| runtime.check().is_ok())
        .collect();
    match runtime(&Settings::default()) {
        Ok(chosen) => assert_eq!(working.first(), Some(&chosen)),
        Err(error) => {
            assert!(working.is_empty());
            assert!(
                error.to_string().contains("Debian package runc or crun"),
                "{error}"
            );
        }
    }
    let roots = vtax_host::Roots::host();
    for runtime in Runtime::ALL
        .into_iter()
        .filter(|runtime| roots.program(runtime.name()).is_some())
    {
        if let Err(error) = runtime.check() {
            let message = error.to_string();
            assert!(
                message.contains(runtime.name()) && message.contains("container.runtime"),
                "{message}"
            );
            eprintln!(
                "{} does not work on this host, as it should say: {message}",
                runtime.name()
            );
        }
    }
}

#[test]
fn an_unknown_runtime_is_refused_by_name() {
    let mut settings = Settings::default();
    settings.0.insert(
        "container.runtime".to_owned(),
        Level::Text("docker".to_owned()),
    );
    let message = runtime(&settings).unwrap_err().to_string();
    assert!(message.contains("docker"), "{message}");
}

#[test]
fn a_root_that_is_none_is_an_error_that_names_it() {
    let mut bench = Bench::new();
    let cell = bench.cell(config("none"));
    let mut guest = bench.guest.clone();
    guest.root = bench.folder.path().join("state");
    let message = Native
        .boot(&cell.target().unwrap(), &guest, &Settings::default())
        .err()
        .unwrap()
        .to_string();
    assert!(
        message.contains("/state") && message.contains("image build"),
        "{message}"
    );
    cell.destroy().unwrap();
}

#[test]
fn nothing_of_the_cell_is_mounted_on_the_host() {
    in_each("mounts", |_, _, _| {
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
        assert!(!mounts.contains("/run/root"), "{mounts}");
        assert!(!Path::new("/run/netns/target").exists());
        assert!(!Path::new("/run/oci").exists());
    });
}

/// gVisor and podman: their servers are reachable, their CPU time is counted, and nothing of them remains.
#[test(needs = [brought_by_test_all("runsc"), brought_by_test_all("podman")])]
fn a_sandbox_and_an_engine_serve_are_counted_and_leave_nothing() {
    let mut bench = Bench::new();
    for name in ["runsc", "podman"] {
        let settings: Settings = [("container.runtime", Level::Text(name.to_owned()))]
            .into_iter()
            .collect();
        if let Err(error) = Container.check(&settings) {
            skip_in_part(&format!("{name}: {error}"));
            continue;
        }
        let cell = bench.cell(config(name));
        let seat = cell.target().unwrap();
        let mut target = Container.boot(&seat, &bench.guest, &settings).unwrap();
        assert!(target.about().environment["container.runtime"].contains(name));
        assert_eq!(shell(&mut *target, "cat /etc/mark"), "the shared root\n");
        let ended = run(
            &mut *target,
            &["sh", "-c", "echo out; echo err >&2; exit 7"],
        );
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        assert_eq!(
            (ended.code, text(&ended.stdout), text(&ended.stderr)),
            (7, "out\n".to_owned(), "err\n".to_owned()),
            "{name}"
        );
        // Only gVisor has a kernel of its own.
        let release = shell(&mut *target, "uname -r");
        let here = rustix::system::uname()
            .release()
            .to_string_lossy()
            .into_owned();
        assert_eq!(
            release.trim() == here,
            name == "podman",
            "{name}: {release}"
        );
        serves_its_client(&mut *target, &cell);
        counts_its_work(&mut *target);
        target.stop().unwrap();
        let name_of_cell = cell.name().to_owned();
        cell.destroy().unwrap();
        let left = std::process::Command::new("find")
            .args(["/sys/fs/cgroup", "-path", &format!("*{name_of_cell}*")])
            .output()
            .unwrap();
        assert_eq!(text(&left.stdout), "", "{name}");
    }
}
