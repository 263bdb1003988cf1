// SPDX-License-Identifier: Apache-2.0
//! Domains of libvirt: a real libvirtd in network and mount namespaces of its own, without a network of libvirt's, and
//! emulated guests.

use crate::support::work::{
    Work, executable, kill, run_in_order, shown, start, text, wait_for, wait_in,
};
use crate::support::{HostState, can_run_trials, finish, in_order, recorded};
use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};
use vtax_core::Source;
use vtax_guest::image;
use vtax_results::{ResultsDir, TrialOutcome};
use vtax_serve::share::Share;

const PLAN: &str = r#"
name = "libvirt"
repetitions = 1
idle = "0s"
warmup = "300ms"
duration = "1s"
sample_hz = 10
again = { share = 0 }
[[platform]]
kind = "libvirt"
libvirt.uri = "URI"
MORE
[[workload]]
kind = "iperf3-receive"
rate_mbit = 20
"#;

/// A libvirtd and its namespaces.
struct Libvirt {
    work: Work,
    space: Child,
}

impl Drop for Libvirt {
    fn drop(&mut self) {
        // Guests survive their libvirtd.
        for name in text(&self.virsh(&["list", "--name"]).stdout).lines() {
            self.virsh(&["destroy", name]);
        }
        let _ = self.space.kill();
        let _ = self.space.wait();
        // The control groups that libvirt created above those of its guests.
        let _ = Command::new("sh")
            .args(["-c", "find /sys/fs/cgroup -depth -type d -path '*/machine/*' -exec rmdir {} + ; rmdir /sys/fs/cgroup/*/machine"])
            .stderr(Stdio::null())
            .status();
    }
}

fn sh(script: &str) -> String {
    let output = Command::new("sh").args(["-ec", script]).output().unwrap();
    assert!(output.status.success(), "{script}: {}", shown(&output));
    text(&output.stdout)
}

impl Libvirt {
    fn start() -> Self {
        let work = Work::alone(PLAN);
        finish(work.vtax().args(["image", "build"]), true);
        let path = work.path().display().to_string();
        let script = format!(
            "mount --make-rprivate /
             for made in /run /etc/libvirt/qemu /var/lib/libvirt /var/cache/libvirt /var/log/libvirt; do
                 mount -t tmpfs none $made
             done
             echo 'stdio_handler = \"file\"' > {path}/qemu.conf
             mount --bind {path}/qemu.conf /etc/libvirt/qemu.conf
             printf 'unix_sock_dir=\"{path}/sock\"\\nauth_unix_rw=\"none\"\\nauth_unix_ro=\"none\"\\n' > {path}/libvirtd.conf
             mkdir {path}/sock; ip link set lo up; echo ready
             exec /usr/sbin/libvirtd -f {path}/libvirtd.conf -p {path}/pid 2> {path}/libvirtd.log"
        );
        let mut space = Command::new("unshare")
            .args([
                "--net",
                "--mount",
                "--fork",
                "--kill-child",
                "sh",
                "-ec",
                &script,
            ])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .process_group(0)
            .spawn()
            .unwrap();
        let mut ready = String::new();
        BufReader::new(space.stdout.as_mut().unwrap())
            .read_line(&mut ready)
            .unwrap();
        assert_eq!(ready.trim(), "ready");
        let libvirt = Self { work, space };
        let log = || fs::read_to_string(libvirt.work.at("libvirtd.log")).unwrap_or_default();
        let answers = || libvirt.virsh(&["list"]).status.success();
        wait_for(60, log, || answers().then_some(()));
        libvirt
    }

    fn uri(&self) -> String {
        format!(
            "qemu+unix:///system?socket={}/sock/libvirt-sock",
            self.work.path().display()
        )
    }

    fn virsh(&self, arguments: &[&str]) -> Output {
        let uri = self.uri();
        let line = Command::new("virsh")
            .args(["--quiet", "--connect", &uri])
            .args(arguments)
            .output();
        line.unwrap()
    }

    fn ask(&self, arguments: &[&str]) -> String {
        let output = self.virsh(arguments);
        assert!(output.status.success(), "{arguments:?}: {}", shown(&output));
        text(&output.stdout).trim().to_owned()
    }

    /// The network namespace of libvirt, as an argument of nsenter.
    fn network(&self) -> String {
        let children = sh(&format!("cat /proc/{0}/task/{0}/children", self.space.id()));
        format!("--net=/proc/{}/ns/net", children.trim())
    }

    fn results(&self) -> PathBuf {
        self.work.results()
    }

    /// `vtax run` in the network namespace of libvirt.
    fn run(&self, more: &str) -> Command {
        let plan = PLAN.replace("URI", &self.uri()).replace("MORE", more);
        fs::write(self.work.plan(), plan).unwrap();
        let mut command = Command::new("nsenter");
        command
            .arg(self.network())
            .arg(self.program())
            .arg("run")
            .arg(self.work.plan())
            .arg("--results")
            .arg(self.results())
            .env("VTAX_STATE_DIR", self.work.at("state"))
            .env("PATH", self.work.path_variable());
        recorded(&mut command);
        command
    }

    /// The program without debug information, which takes long to copy into an emulated guest.
    fn program(&self) -> PathBuf {
        let small = self.work.at("vtax");
        if !small.exists() {
            sh(&format!(
                "strip -o {} {}",
                small.display(),
                env!("CARGO_BIN_EXE_vtax")
            ));
        }
        small
    }
}

#[test(needs = [can_run_trials(), brought_by_test_all("libvirtd"), brought_by_test_all("virsh")])]
fn a_domain_is_made_from_the_image_measured_and_removed_and_so_it_is_after_a_kill() {
    let libvirt = Libvirt::start();
    // The comparison includes the directories of domains.
    let left = || libvirt.ask(&["list", "--all"]);
    let (host, before) = (HostState::read(), left());
    run_in_order(&mut libvirt.run(""));
    assert_eq!(left(), before);
    for trial in libvirt.work.trials() {
        assert_eq!(trial.outcome, TrialOutcome::Complete);
        assert!(trial.work.as_ref().unwrap().amount > 0.0);
        let cores = |name: &str| trial.metrics[name].quantity.value;
        assert!(cores("cpu.stage.vcpu") > 0.0 && cores("cpu.cores") >= cores("cpu.stage.vcpu"));
        assert_eq!(trial.metrics["cpu.cores"].source, Source::Emulated);
        assert!(trial.metrics["net.tx_bytes_per_second"].quantity.value > 1e5);
        assert!(trial.environment["libvirt.xml"].contains("<domain type='qemu'>"));
    }
    // The run is killed while a domain runs. The kernel does not end the domain; the journal does.
    fs::remove_dir_all(libvirt.results()).unwrap();
    let mut run = start(&mut libvirt.run(""));
    let is_there = || libvirt.ask(&["list", "--name"]).contains("vtax-");
    wait_in(&mut run, 120, is_there);
    kill(&mut run);
    finish(libvirt.work.vtax().arg("restore"), true);
    assert_eq!(left(), before);
    host.assert_nothing_new("after a kill");
}

/// A domain with an sshd, as in production.
fn production(libvirt: &Libvirt) {
    let files = image::ensure(
        &image::Recipe::for_packages(&["openssh-server"]),
        &mut |_| {},
    )
    .unwrap();
    let path = libvirt.work.path().display().to_string();
    sh(&format!(
        "cd {path}; chmod 755 .; ssh-keygen -q -t ed25519 -N '' -f user
         qemu-img create -q -f qcow2 -F raw -b {} web.qcow2; mkdir bin share",
        files.image.display()
    ));
    let ssh = format!(
        "#!/bin/sh\ncase \" $* \" in *' root@hypervisor '*|*' -- hypervisor '*) there='-p 2222 -o HostName=127.0.0.1';; esac
         exec /usr/bin/ssh -F none $there -i {path}/user -o UserKnownHostsFile=/dev/null \
         -o StrictHostKeyChecking=no -o LogLevel=ERROR \"$@\"\n"
    );
    let bin = executable(&libvirt.work.at("bin/ssh"), &ssh);
    let xml = format!(
        "<domain type='qemu'><name>web</name><memory unit='MiB'>1024</memory><vcpu>1</vcpu>
         <os><type arch='x86_64' machine='q35'>hvm</type><kernel>{}</kernel><initrd>{}</initrd>
         <cmdline>console=ttyS0 quiet panic=-1 tsc=reliable no_timer_check cryptomgr.notests vtax.root=vda vtax.ip=10.94.0.2/24</cmdline></os>
         <features><acpi/><apic/></features><cpu mode='maximum'/>
         <seclabel type='static' model='dac' relabel='no'><label>+0:+0</label></seclabel>
         <devices><disk type='file' device='disk'><driver name='qemu' type='qcow2'/><source file='{path}/web.qcow2'/><target dev='vda' bus='virtio'/></disk>
         <interface type='ethernet'><mac address='52:54:00:94:00:02'/><target dev='web0'/><model type='virtio'/></interface>
         <serial type='file'><source path='{path}/web.log'/></serial>
         <channel type='unix'><target type='virtio' name='org.qemu.guest_agent.0'/></channel>
         <channel type='unix'><source mode='bind' path='{path}/share/web.sock'/><target type='virtio' name='vtax.share.0'/></channel></devices></domain>",
        files.kernel.display(),
        files.initrd.display()
    );
    fs::write(libvirt.work.at("web.xml"), xml).unwrap();
    libvirt.ask(&["create", &format!("{path}/web.xml")]);
    sh(&format!(
        "nsenter {} sh -ec 'ip address add 10.94.0.1/24 dev web0; ip link set web0 up'",
        libvirt.network()
    ));
    let key = fs::read_to_string(libvirt.work.at("user.pub")).unwrap();
    let script = format!(
        "mkdir -p /root/.ssh /run/sshd; echo {} > /root/.ssh/authorized_keys; ssh-keygen -A; /usr/sbin/sshd",
        key.trim().replace(' ', "\\u0020")
    );
    let line = format!(
        r#"{{"execute":"guest-exec","arguments":{{"path":"/bin/sh","arg":["-ec","{script}"]}}}}"#
    );
    let deadline = Instant::now() + Duration::from_secs(120);
    while !libvirt
        .virsh(&["qemu-agent-command", "web", &line])
        .status
        .success()
    {
        let log = fs::read_to_string(libvirt.work.at("web.log"));
        assert!(Instant::now() < deadline, "{log:?}");
        std::thread::sleep(Duration::from_millis(500));
    }
    let ssh = format!(
        "nsenter {} {} root@10.94.0.2 true",
        libvirt.network(),
        bin.display()
    );
    while !Command::new("sh")
        .args(["-c", &ssh])
        .output()
        .unwrap()
        .status
        .success()
    {
        assert!(Instant::now() < deadline, "no sshd in the domain");
        std::thread::sleep(Duration::from_millis(500));
    }
}

/// The exporter sends the domain its own share, which `vtax share` reads inside.
fn receives_its_share(libvirt: &Libvirt) {
    let work = libvirt.work.path();
    let mut exporter = libvirt.work.vtax();
    exporter.args(["exporter", "--interval", "1s", "--listen"]);
    exporter.arg(format!("unix:{}", work.join("metrics").display()));
    exporter.arg("--share").arg(work.join("share"));
    let log = fs::File::create(work.join("exporter.log")).unwrap();
    let mut exporter = exporter.stderr(log).spawn().unwrap();
    let script = format!(
        "strip -o vtax {}; ssh=\"nsenter {} bin/ssh root@10.94.0.2\"; $ssh 'cat > /tmp/vtax; chmod 755 /tmp/vtax' < vtax
         $ssh 'timeout 60 /tmp/vtax share --json --count 3 && rm /tmp/vtax'",
        env!("CARGO_BIN_EXE_vtax"),
        libvirt.network()
    );
    let reported = Command::new("sh")
        .args(["-ec", &script])
        .current_dir(work)
        .output();
    exporter.kill().unwrap();
    exporter.wait().unwrap();
    let reported = reported.unwrap();
    let log = fs::read_to_string(work.join("exporter.log")).unwrap();
    assert!(reported.status.success(), "{}{log}", shown(&reported));
    let lines = String::from_utf8(reported.stdout).unwrap();
    let shares: Vec<Share> = lines
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert_eq!(shares.len(), 3, "{lines}{log}");
    for share in &shares {
        assert!(
            share.interval_seconds > 0.5 && share.cpu_seconds > 0.0,
            "{share:?}"
        );
        assert!(
            (0.0..=share.cpu_seconds).contains(&share.hidden_cpu_seconds),
            "{share:?}"
        );
    }
    assert!(shares[0].cpu_seconds_total < shares[2].cpu_seconds_total);
}

#[test(needs = [can_run_trials(), brought_by_test_all("libvirtd"), brought_by_test_all("virsh")])]
fn a_domain_that_exists_is_measured_and_as_it_was_before() {
    let libvirt = Libvirt::start();
    production(&libvirt);
    let inside = |line: &str| {
        let ssh = libvirt.work.at("bin/ssh");
        sh(&format!(
            "nsenter {} {} root@10.94.0.2 '{line}'",
            libvirt.network(),
            ssh.display()
        ))
    };
    let state = || {
        (
            libvirt.ask(&["dumpxml", "web"]),
            libvirt.ask(&["domid", "web"]),
            inside(
                "cat /proc/sys/kernel/random/boot_id; ls -a /tmp /var/tmp /root; cat /proc/mounts; pgrep -c sshd",
            ),
        )
    };
    let uptime = || -> f64 {
        inside("cat /proc/uptime")
            .split(' ')
            .next()
            .unwrap()
            .parse()
            .unwrap()
    };
    let (before, began) = (state(), (uptime(), Instant::now()));
    let more = "libvirt.domain = \"web\"\nssh.to = \"root@10.94.0.2\"";
    let output = libvirt.run(more).arg("--dry-run").output().unwrap();
    let printed = shown(&output);
    assert_eq!(output.status.code(), Some(0), "{printed}");
    for part in [
        "can run; nothing was changed",
        "root@10.94.0.2 (libvirt)",
        "host.guest    web",
    ] {
        assert!(printed.contains(part), "{part}: {printed}");
    }
    assert_eq!(state(), before);
    assert!(!libvirt.results().exists());
    let mut new = libvirt.work.vtax();
    new.args(["plan", "new", "--for", "libvirt:web"]);
    let new = new
        .env("LIBVIRT_DEFAULT_URI", libvirt.uri())
        .output()
        .unwrap();
    let text = shown(&new);
    assert_eq!(new.status.code(), Some(0), "{text}");
    let uri = format!("libvirt.uri = \"{}\"", libvirt.uri());
    for part in [
        "libvirt.domain = \"web\"",
        "vCPUs: 1",
        "memory: 1048576 KiB",
        "machine: pc-q35",
        &uri,
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    assert_eq!(state(), before);
    run_in_order(&mut libvirt.run(more));
    // The domain ran all the time: its uptime grew by the same number of seconds as the host's clock.
    let (inside_it, here) = (uptime() - began.0, began.1.elapsed().as_secs_f64());
    assert!((inside_it - here).abs() < 5.0, "{inside_it} s and {here} s");
    let deadline = Instant::now() + Duration::from_secs(30);
    while state() != before {
        assert!(Instant::now() < deadline, "{before:?}\n{:?}", state());
        std::thread::sleep(Duration::from_millis(200));
    }
    let trial = &libvirt.work.trials()[0];
    assert_eq!(trial.outcome, TrialOutcome::Complete);
    let fact = |name: &str| trial.environment[name].as_str();
    assert_eq!(
        (fact("host.guest"), fact("host.manager"), fact("host.uuid")),
        ("web", "libvirt", fact("libvirt.uuid"))
    );
    let cores = |name: &str| trial.metrics[name].quantity.value;
    assert!(cores("cpu.stage.vcpu") > 0.0 && cores("guest.cpu.cores") > 0.0);
    assert_eq!(trial.metrics["cpu.cores"].source, Source::Emulated);
    // By ssh alone the target is the same guest of this host, identified by its UUID.
    fs::remove_dir_all(libvirt.results()).unwrap();
    let mut run = libvirt.run("");
    let text = PLAN.replace(
        "kind = \"libvirt\"\nlibvirt.uri = \"URI\"\nMORE",
        "kind = \"ssh\"\nssh.to = \"root@10.94.0.2\"",
    );
    fs::write(libvirt.work.plan(), text).unwrap();
    run_in_order(&mut run);
    let trial = &libvirt.work.trials()[0];
    assert_eq!(trial.environment["host.guest"], "web");
    assert!(trial.metrics["cpu.stage.vcpu"].quantity.value > 0.0);
    receives_its_share(&libvirt);
    what_its_host_does_is_measured_there(&libvirt, trial.metrics["cpu.stage.vcpu"].quantity.value);
}

/// A process that is killed at the end of the test.
struct Ended(Child);

impl Drop for Ended {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The same target, where vtax logs in to the target's host.
fn what_its_host_does_is_measured_there(libvirt: &Libvirt, here: f64) {
    let path = libvirt.work.path().display().to_string();
    let config = format!(
        "Port 2222\nListenAddress 127.0.0.1\nHostKey {path}/host\nPidFile none\nUsePAM no\n\
         StrictModes no\nAuthorizedKeysFile {path}/user.pub\n"
    );
    fs::write(libvirt.work.at("sshd_config"), config).unwrap();
    let space = libvirt.network();
    let mounts = space
        .replace("--net", "--mount")
        .replace("/ns/net", "/ns/mnt");
    sh(&format!("ssh-keygen -q -t ed25519 -N '' -f {path}/host"));
    let script = format!(
        "mkdir -p -m 755 /run/sshd /run/libvirt; ln -s {path}/sock/* /run/libvirt
         exec /usr/sbin/sshd -D -f {path}/sshd_config -E {path}/sshd.log"
    );
    let _sshd = Ended(
        Command::new("nsenter")
            .args([&space, &mounts, "sh", "-ec", &script])
            .spawn()
            .unwrap(),
    );
    let plan = |more: &str| {
        let _ = fs::remove_dir_all(libvirt.results());
        let mut run = libvirt.run("");
        let text = PLAN.replace(
            "kind = \"libvirt\"\nlibvirt.uri = \"URI\"\nMORE",
            &format!("kind = \"ssh\"\nssh.to = \"root@10.94.0.2\"\n{more}"),
        );
        fs::write(libvirt.work.plan(), text).unwrap();
        run.output().unwrap()
    };
    let output = plan("ssh.host = \"root@hypervisor\"");
    let log = || fs::read_to_string(libvirt.work.at("sshd.log"));
    assert!(in_order(output.status), "{} {:?}", shown(&output), log());
    let results = ResultsDir::open(&libvirt.results()).unwrap();
    let trial = results.trials().next().unwrap().unwrap();
    assert_eq!(trial.outcome, TrialOutcome::Complete);
    let fact = |name: &str| trial.environment[name].as_str();
    assert_eq!(
        (fact("host.guest"), fact("host.place")),
        ("web", "ssh:root@hypervisor")
    );
    // The same as measured on this host, within the variation between two trials on a busy machine.
    let there = &trial.metrics["cpu.stage.vcpu"];
    assert_eq!(there.source, Source::Emulated);
    let there = there.quantity.value;
    assert!(
        there > here / 4.0 && there < here * 4.0,
        "{there} there, {here} here"
    );
    let cores = |name: &str| trial.metrics[name].quantity.value;
    assert!(cores("cpu.cores") >= there);
    assert!(!trial.metrics.contains_key("energy.per_work"));
    let samples = results.samples(trial.index).unwrap();
    let of_target = samples
        .load(|owner, _| *owner == vtax_core::owner::Owner::Target)
        .unwrap();
    assert!(!of_target.is_empty());
    // The login also reaches the libvirt of that host; there are then no measurements of the host.
    let uri = format!("qemu+ssh://root@hypervisor/system?command={path}/bin/ssh");
    let _ = fs::remove_dir_all(libvirt.results());
    let mut run = libvirt.run("libvirt.domain = \"web\"\nssh.to = \"root@10.94.0.2\"");
    let file = libvirt.work.plan();
    let text = fs::read_to_string(&file).unwrap();
    fs::write(&file, text.replace(&libvirt.uri(), &uri)).unwrap();
    let output = run.output().unwrap();
    assert!(in_order(output.status), "{} {:?}", shown(&output), log());
    let results = ResultsDir::open(&libvirt.results()).unwrap();
    let trial = results.trials().next().unwrap().unwrap();
    assert_eq!(trial.outcome, TrialOutcome::Complete);
    let has = |name: &str| trial.metrics.contains_key(name);
    assert!(has("guest.cpu.cores") && !has("cpu.stage.vcpu"));
    let output = plan("ssh.host = \"root@hypervisor\"\nssh.guest = \"nobody\"");
    assert!(
        shown(&output).contains("called `nobody`"),
        "{}",
        shown(&output)
    );
}

#[test(needs = [can_run_trials(), brought_by_test_all("libvirtd"), brought_by_test_all("virsh")])]
fn what_is_wrong_with_a_domain_is_reported_before_anything_starts() {
    let libvirt = Libvirt::start();
    let refused = |more: &str, parts: &[&str]| {
        let output = libvirt.run(more).output().unwrap();
        assert!(!in_order(output.status));
        for part in parts {
            assert!(shown(&output).contains(part), "{part}: {}", shown(&output));
        }
        assert!(!libvirt.results().join("run.json").exists());
    };
    refused(
        "libvirt.domain = \"nobody\"",
        &["a domain called `nobody`", "list --all"],
    );
    refused("libvirt.domain = \"-x\"", &["no name of a domain"]);
    let xml = libvirt.work.at("off.xml");
    fs::write(&xml, "<domain type='qemu'><name>off</name><memory>65536</memory><os><type arch='x86_64'>hvm</type></os></domain>").unwrap();
    libvirt.ask(&["define", &xml.to_string_lossy()]);
    refused(
        "libvirt.domain = \"off\"",
        &["off is not running but shut off", "changes nothing"],
    );
    libvirt.ask(&["undefine", "off"]);
    let gone = format!("{}\"\n#", libvirt.uri().replace("libvirt-sock", "nothing"));
    let plan = |uri: &str| {
        let mut run = libvirt.run("");
        let text = PLAN.replace("URI", uri).replace("MORE", "");
        fs::write(libvirt.work.plan(), text).unwrap();
        let output = run.output().unwrap();
        assert!(!in_order(output.status));
        shown(&output)
    };
    let text = plan(&gone);
    assert!(
        text.contains("a libvirt that answers") && text.contains("libvirt-daemon-system"),
        "{text}"
    );
    let text = plan("qemu+ssh://hv/system");
    assert!(
        text.contains("another host's") && text.contains("--place ssh:HOST"),
        "{text}"
    );
}
