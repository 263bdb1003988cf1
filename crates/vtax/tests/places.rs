// SPDX-License-Identifier: Apache-2.0
//! The target's client on another machine: an sshd in namespaces of its own (network, mounts, processes and clock),
//! behind a bridge in a network namespace that represents this host's.

use crate::pool;
use crate::support::{HostState, can_run_trials, finish, in_order, recorded, the_host, vtax};
use rustix::process::{Pid, Signal, kill_process};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{BufRead, BufReader};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};
use vtax_core::Source;
use vtax_core::owner::Owner;
use vtax_report::results::{ResultsDir, Role, TrialOutcome};

/// The lead of the other machine's monotonic clock in seconds, where the kernel has time namespaces.
const AHEAD: f64 = 5000.0;

const PLAN: &str = r#"
name = "places"
repetitions = 1
idle = "0s"
warmup = "300ms"
duration = "1s"
sample_hz = 10
again = { share = 0 }
[places]
client = "ssh:root@10.93.0.2"
bridge = "lan"
target = "10.93.0.10/24"
[[platform]]
kind = "native"
[[platform]]
kind = "container"
[[workload]]
kind = "http-rate"
rate = 200
[[workload]]
kind = "iperf3-receive"
rate_mbit = 50
"#;

/// Two machines: this host, as a network namespace with a bridge, and another with an sshd.
struct Machines {
    work: tempfile::TempDir,
    host: Child,
    other: Child,
    /// The number of the other machine's boots.
    boots: u32,
    has_clock: bool,
    _turn: fs::File,
}

impl Drop for Machines {
    fn drop(&mut self) {
        for child in [&mut self.host, &mut self.other] {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

fn sh(script: &str) -> String {
    let output = Command::new("sh").args(["-ec", script]).output().unwrap();
    assert!(
        output.status.success(),
        "{script}: {}",
        text(&output.stderr)
    );
    text(&output.stdout)
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Starts a process in namespaces of its own, waits until it is ready, and returns it with its PID.
fn namespaces(options: &[&str], script: &str) -> (Child, u32) {
    let mut child = Command::new("unshare")
        .args(options)
        .args(["--net", "--fork", "--kill-child", "sh", "-ec", script])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::inherit())
        .process_group(0)
        .spawn()
        .unwrap();
    let mut ready = String::new();
    BufReader::new(child.stdout.as_mut().unwrap())
        .read_line(&mut ready)
        .unwrap();
    assert_eq!(ready.trim(), "ready", "{script}");
    let inside = sh(&format!("cat /proc/{0}/task/{0}/children", child.id()));
    let pid = inside.trim().parse().unwrap();
    (child, pid)
}

impl Machines {
    /// The mount points of the other machine.
    fn mounts_there(&self) -> BTreeSet<String> {
        let pid = Self::inside(&self.other);
        let all = fs::read_to_string(format!("/proc/{pid}/mountinfo")).unwrap();
        let points = all.lines().filter_map(|line| line.split(' ').nth(4));
        points.map(str::to_owned).collect()
    }

    /// Mounts of this host whose directories were removed meanwhile are gone there too.
    fn assert_nothing_is_mounted_beyond(&self, before: &BTreeSet<String>) {
        let now = self.mounts_there();
        let new: Vec<_> = now.difference(before).collect();
        assert!(new.is_empty(), "{new:?}");
    }

    /// Starts both machines.
    fn start(plan: &str) -> Self {
        let turn = the_host();
        let work = tempfile::tempdir().unwrap();
        finish(
            vtax(&work.path().join("state")).args(["image", "build"]),
            true,
        );
        let path = work.path().display().to_string();
        sh(&format!(
            "cd {path}; for key in host user; do ssh-keygen -q -t ed25519 -N '' -f $key; done
             chmod 755 .; cp user.pub authorized; chmod 644 authorized
             cp /etc/passwd passwd; echo 'loader:x:12345:12345::/:/bin/sh' >> passwd
             cp /etc/shadow shadow; echo 'loader:*:19000:0:99999:7:::' >> shadow"
        ));
        fs::write(
            work.path().join("sshd_config"),
            format!(
                "ListenAddress 10.93.0.2\nHostKey {path}/host\nAuthorizedKeysFile {path}/authorized\n\
                 PidFile none\nStrictModes no\nUsePAM no\nPasswordAuthentication no\n\
                 PermitRootLogin prohibit-password\nAllowUsers root loader\nMaxStartups 100\n"
            ),
        )
        .unwrap();
        let bin = work.path().join("bin");
        fs::create_dir(&bin).unwrap();
        let ssh = format!(
            "#!/bin/sh\nexec /usr/bin/ssh -F none -i {path}/user -o UserKnownHostsFile=/dev/null \
             -o StrictHostKeyChecking=no -o LogLevel=ERROR \"$@\"\n"
        );
        fs::write(bin.join("ssh"), ssh).unwrap();
        fs::set_permissions(bin.join("ssh"), fs::Permissions::from_mode(0o755)).unwrap();
        fs::write(work.path().join("plan.toml"), plan).unwrap();

        let ahead = format!("{AHEAD}");
        let clock = ["--time", "--monotonic", &ahead];
        let has_clock = Command::new("unshare")
            .args(clock)
            .args(["--fork", "true"])
            .status()
            .is_ok_and(|status| status.success());
        let (host, host_pid) = namespaces(&[], "ip link set lo up; echo ready; exec sleep 3600");
        sh(&format!(
            "nsenter --net=/proc/{host_pid}/ns/net sh -ec '
                 ip link add lan type bridge
                 ip address add 10.93.0.1/24 dev lan
                 ip link set lan up'"
        ));
        let other = Self::boot(&path, &host, has_clock, 1);
        let machines = Self {
            work,
            host,
            other,
            boots: 1,
            has_clock,
            _turn: turn,
        };
        machines.await_sshd();
        machines
    }

    /// Boots the other machine, whose kernel shows an id of this boot.
    fn boot(path: &str, host: &Child, has_clock: bool, number: u32) -> Child {
        let ahead = format!("{AHEAD}");
        let clock = ["--time", "--monotonic", &ahead];
        let mut options = vec!["--mount", "--pid", "--mount-proc"];
        options.extend(clock.iter().filter(|_| has_clock));
        fs::write(format!("{path}/boot"), format!("boot-{number}\n")).unwrap();
        let (other, pid) = namespaces(
            &options,
            &format!(
                "mount -t tmpfs -o size=2g none /var/tmp; chmod 1777 /var/tmp
                 mount -t tmpfs none /run; mkdir -m 755 /run/sshd
                 mount --bind {path}/passwd /etc/passwd; mount --bind {path}/shadow /etc/shadow
                 mount --bind {path}/boot /proc/sys/kernel/random/boot_id
                 ip link set lo up; echo ready
                 while ! ip address show dev eth0 2>/dev/null | grep -q 10.93.0.2; do sleep 0.05; done
                 exec /usr/sbin/sshd -D -e -f {path}/sshd_config 2> {path}/sshd.log"
            ),
        );
        let host = Self::inside(host);
        sh(&format!(
            "nsenter --net=/proc/{host}/ns/net sh -ec '
                 ip link add nic type veth peer name eth0 netns {pid}
                 ip link set nic master lan up'
             nsenter --net=/proc/{pid}/ns/net sh -ec '
                 ip link set eth0 up; ip address add 10.93.0.2/24 dev eth0'"
        ));
        other
    }

    /// Ends the other machine, and boots it again after a time.
    fn restart_other(&mut self, away: Duration) {
        let _ = self.other.kill();
        let _ = self.other.wait();
        // The host's end of the cable goes with the other one.
        let deadline = Instant::now() + Duration::from_secs(30);
        while self.links().contains("nic@") {
            assert!(Instant::now() < deadline, "{}", self.links());
            std::thread::sleep(Duration::from_millis(50));
        }
        std::thread::sleep(away);
        self.boots += 1;
        let path = self.work.path().display().to_string();
        self.other = Self::boot(&path, &self.host, self.has_clock, self.boots);
    }

    /// The PID on this machine of the process in the namespaces of a machine.
    fn inside(machine: &Child) -> u32 {
        let children = sh(&format!("cat /proc/{0}/task/{0}/children", machine.id()));
        children.trim().parse().unwrap()
    }

    fn on_host(&self, script: &str) -> String {
        let pid = Self::inside(&self.host);
        sh(&format!(
            "nsenter --net=/proc/{pid}/ns/net sh -ec '{script}'"
        ))
    }

    /// The network devices of the host, without the states that the kernel updates with a delay.
    fn links(&self) -> String {
        self.on_host(r#"ip -o link | sed -E "s/ state [A-Z]+//; s/NO-CARRIER,//""#)
    }

    fn await_sshd(&self) {
        let pid = Self::inside(&self.host);
        let namespace = fs::File::open(format!("/proc/{pid}/ns/net")).unwrap();
        let answered = std::thread::spawn(move || {
            rustix::thread::move_into_link_name_space(
                std::os::fd::AsFd::as_fd(&namespace),
                Some(rustix::thread::LinkNameSpaceType::Network),
            )
            .unwrap();
            let deadline = Instant::now() + Duration::from_secs(30);
            while Instant::now() < deadline {
                let address = "10.93.0.2:22".parse().unwrap();
                if TcpStream::connect_timeout(&address, Duration::from_millis(500)).is_ok() {
                    return true;
                }
                std::thread::sleep(Duration::from_millis(50));
            }
            false
        });
        assert!(answered.join().unwrap(), "{}", self.sshd_reported());
        // The sshd process of that attempt ends shortly afterwards.
        let deadline = Instant::now() + Duration::from_secs(30);
        while self.processes().len() > 1 {
            assert!(Instant::now() < deadline, "{:?}", self.processes());
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    fn sshd_reported(&self) -> String {
        fs::read_to_string(self.work.path().join("sshd.log")).unwrap_or_default()
    }

    /// `vtax run` of the plan, on the host.
    fn run(&self) -> Command {
        let mut command = self.vtax();
        command
            .arg("run")
            .arg(self.work.path().join("plan.toml"))
            .arg("--results")
            .arg(self.results());
        command
    }

    /// vtax on the host.
    fn vtax(&self) -> Command {
        let pid = Self::inside(&self.host);
        let state = self.work.path().join("state");
        let mut command = Command::new("nsenter");
        command
            .arg(format!("--net=/proc/{pid}/ns/net"))
            .arg(env!("CARGO_BIN_EXE_vtax"))
            .env("VTAX_STATE_DIR", state)
            .env(
                "PATH",
                format!(
                    "{}:{}",
                    self.work.path().join("bin").display(),
                    std::env::var("PATH").unwrap()
                ),
            );
        recorded(&mut command);
        command
    }

    fn results(&self) -> std::path::PathBuf {
        self.work.path().join("results")
    }

    /// The files and processes of the other machine that an actor can change.
    fn other_machine(&self) -> BTreeSet<String> {
        let pid = Self::inside(&self.other);
        let root = format!("/proc/{pid}/root/var/tmp");
        let files = fs::read_dir(root).unwrap().flatten();
        let files = files.map(|file| file.path().display().to_string());
        files
            .chain(self.processes().into_keys().map(|pid| pid.to_string()))
            .collect()
    }

    /// The processes of the other machine by their PID on this one, with their command lines.
    fn processes(&self) -> BTreeMap<i32, String> {
        let own = |pid: &str| fs::read_link(format!("/proc/{pid}/ns/pid")).ok();
        let inside = own(&Self::inside(&self.other).to_string());
        let all = fs::read_dir("/proc").unwrap().flatten();
        all.filter_map(|entry| {
            let name = entry.file_name().to_str()?.to_owned();
            let pid: i32 = name.parse().ok()?;
            (own(&name) == inside).then_some(())?;
            let line = fs::read(entry.path().join("cmdline")).ok()?;
            Some((pid, text(&line).replace('\0', " ")))
        })
        .collect()
    }

    fn actor(&self) -> Option<i32> {
        let processes = self.processes();
        let mut found = processes
            .into_iter()
            .filter(|(_, line)| line.starts_with("/proc/self/fd/4 actor"));
        found.next().map(|(pid, _)| pid)
    }

    /// Runs the plan to its end, and asserts that nothing is left.
    fn run_whole(&self) {
        let found = self.found();
        let output = self.run().output().unwrap();
        assert!(
            in_order(output.status),
            "{}\n{}",
            shown(&output),
            self.sshd_reported()
        );
        self.assert_as_found(&found, "after a run");
    }

    /// The present state of both machines.
    fn found(&self) -> Found {
        (HostState::read(), self.links(), self.other_machine())
    }

    /// Waits until both machines have this earlier state.
    fn assert_as_found(&self, (host, links, other): &Found, when: &str) {
        let deadline = Instant::now() + Duration::from_secs(15);
        loop {
            let (links_now, other_now) = (self.links(), self.other_machine());
            if links_now == *links && other_now == *other {
                break;
            }
            assert!(
                Instant::now() < deadline,
                "{when}: {links}\n{links_now}\n{other:?}\n{other_now:?}\n{:?}",
                self.processes()
            );
            std::thread::sleep(Duration::from_millis(50));
        }
        host.assert_nothing_new(when);
    }
}

/// The host, its network devices, and the other machine's files and processes.
type Found = (HostState, String, BTreeSet<String>);

/// The records of finished trials.
fn finished(results: &Path) -> BTreeMap<String, Vec<u8>> {
    let entries = fs::read_dir(results.join("trials"))
        .into_iter()
        .flatten()
        .flatten();
    entries
        .filter_map(|entry| {
            let name = entry.file_name().to_string_lossy().into_owned();
            let record = fs::read(entry.path().join("trial.json")).ok()?;
            let is_whole = name.len() == 4 && !text(&record).contains("\"failed\"");
            is_whole.then_some((name, record))
        })
        .collect()
}

fn shown(output: &Output) -> String {
    text(&output.stdout) + &text(&output.stderr)
}

#[test(needs = [can_run_trials(), brought_by_test_all("sshd")])]
fn http_and_iperf3_are_driven_from_another_machine_and_its_samples_are_on_our_clock() {
    let machines = Machines::start(PLAN);
    machines.run_whole();

    let results = ResultsDir::open(&machines.results()).unwrap();
    let trials: Vec<_> = results.trials().map(Result::unwrap).collect();
    assert_eq!(trials.len(), 4, "2 platforms x 2 workloads");
    for trial in trials {
        assert_eq!(trial.outcome, TrialOutcome::Complete);
        let label = &trial.treatment.label;
        let client = trial
            .actors
            .iter()
            .find(|actor| actor.role == Role::Client)
            .unwrap();
        assert_eq!(
            (client.name.as_str(), client.place.as_str()),
            ("client", "ssh:root@10.93.0.2")
        );
        let fact = |name: &str| {
            client
                .environment
                .get(name)
                .unwrap_or_else(|| panic!("{name}: {client:?}"))
        };
        assert!(!fact("kernel").is_empty());
        for when in ["before", "after"] {
            let ahead: f64 = fact(&format!("clock.{when}.ahead_ns")).parse().unwrap();
            let bound: f64 = fact(&format!("clock.{when}.bound_ns")).parse().unwrap();
            let truth = if machines.has_clock { AHEAD * 1e9 } else { 0.0 };
            assert!((ahead - truth).abs() <= bound, "{label}: {ahead} ± {bound}");
        }
        assert!(
            !trial
                .suspect
                .iter()
                .any(|reason| reason.contains("the other host's clock")),
            "{:?}",
            trial.suspect
        );

        let mut seen: BTreeMap<String, (u64, u64)> = BTreeMap::new();
        let mut used: Vec<f64> = Vec::new();
        let samples = results.samples(trial.index).unwrap();
        for samples in samples.load(|_, _| true).unwrap() {
            let span = seen
                .entry(samples.series.owner.to_string())
                .or_insert((u64::MAX, 0));
            for (at, _) in &samples.points {
                *span = (span.0.min(at.0), span.1.max(at.0));
            }
            if samples.series.owner == Owner::Client && samples.series.metric == "cpu.total_ns" {
                used.extend(samples.points.iter().map(|(_, value)| *value));
            }
        }
        let (begin, end) = seen["host"];
        for owner in ["client", "client.host"] {
            let (first, last) = seen[owner];
            let slack = 2_000_000_000;
            assert!(
                first + slack >= begin && last <= end + slack,
                "{label}: {owner} {seen:?}"
            );
            // Ten samples a second: the samples cover the window, except for two at either end.
            let two = 200_000_000;
            assert!(
                first <= trial.window.0.0 + two && last + two >= trial.window.1.0,
                "{label}: {owner}"
            );
        }
        assert!(
            used.last() > used.first(),
            "{label}: the load cost the client nothing: {used:?}"
        );
        let work = trial.work.as_ref().unwrap().amount;
        assert!(work > 0.0, "{label}");
    }
}

#[test(needs = [can_run_trials(), brought_by_test_all("sshd")])]
fn either_side_killed_at_any_moment_costs_one_trial_and_leaves_nothing() {
    let plan = PLAN.replace("repetitions = 1", "repetitions = 30");
    let machines = Machines::start(&plan);
    let state = machines.work.path().join("state");
    // A probe may be left by a killed run of another test.
    finish(vtax(&state).arg("restore"), true);
    let found = machines.found();
    let mut seen = BTreeMap::new();
    let mut check = |when: &str| {
        machines.assert_as_found(&found, when);
        let now = finished(&machines.results());
        for (name, record) in &seen {
            assert_eq!(
                now.get(name),
                Some(record),
                "{when}: trial {name} was lost or run again"
            );
        }
        seen = now;
    };
    // Fixed times of kills, spread over the start of the actor, boot, load and teardown.
    let moments = [100, 400, 700, 1000, 1300, 1700, 2200, 2900, 3700, 4600_u64];
    let start = || {
        machines
            .run()
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap()
    };
    // One trial is finished first, and must be kept.
    let mut run = start();
    let deadline = Instant::now() + Duration::from_secs(120);
    while finished(&machines.results()).is_empty() {
        assert!(Instant::now() < deadline && run.try_wait().unwrap().is_none());
        std::thread::sleep(Duration::from_millis(20));
    }
    run.kill().unwrap();
    run.wait().unwrap();
    finish(vtax(&state).arg("restore"), true);
    check("vtax killed after a trial");
    for moment in moments {
        let mut run = start();
        std::thread::sleep(Duration::from_millis(moment));
        assert!(run.try_wait().unwrap().is_none(), "the plan is too short");
        // nsenter has executed vtax in its place.
        run.kill().unwrap();
        run.wait().unwrap();
        // A change that no process owns is undone at the next start.
        finish(vtax(&state).arg("restore"), true);
        check(&format!("vtax killed after {moment} ms"));
    }
    for (number, moment) in (0..).zip(moments) {
        let mut run = start();
        let deadline = Instant::now() + Duration::from_secs(60);
        let actor = loop {
            if let Some(actor) = machines.actor() {
                break actor;
            }
            assert!(Instant::now() < deadline && run.try_wait().unwrap().is_none());
            std::thread::sleep(Duration::from_millis(10));
        };
        std::thread::sleep(Duration::from_millis(moment / 2));
        // In turn the actor itself, and the ssh that leads to it.
        let victim = match number % 2 {
            0 => actor,
            _ => ssh_of(run.id()),
        };
        kill_process(Pid::from_raw(victim).unwrap(), Signal::KILL).unwrap();
        // The run continues with another actor.
        let deadline = Instant::now() + Duration::from_secs(60);
        while machines.actor().is_none_or(|another| another == actor) {
            if run.try_wait().unwrap().is_some() {
                break;
            }
            assert!(Instant::now() < deadline, "no other actor was started");
            std::thread::sleep(Duration::from_millis(10));
        }
        let pid = Pid::from_child(&run);
        kill_process(pid, Signal::TERM).unwrap_or_default();
        run.wait().unwrap();
        check(&format!(
            "the client killed {} ms after it came",
            moment / 2
        ));
    }
    let failed = fs::read_dir(machines.results().join("trials"))
        .unwrap()
        .flatten();
    let reported =
        failed.filter_map(|entry| fs::read_to_string(entry.path().join("trial.json")).ok());
    assert!(
        reported
            .into_iter()
            .any(|record| record.contains("is not to be reached")),
        "no failed trial says that the client's host was lost"
    );
}

/// The ssh through which a vtax reaches its actor.
fn ssh_of(vtax: u32) -> i32 {
    let children = sh(&format!("cat /proc/{vtax}/task/*/children"));
    children
        .split_whitespace()
        .find(|pid| {
            fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|name| name.trim() == "ssh")
        })
        .expect("an ssh")
        .parse()
        .unwrap()
}

#[test(needs = [can_run_trials(), brought_by_test_all("sshd")])]
fn without_root_there_the_load_runs_all_the_same_and_the_record_says_what_is_missing() {
    let plan = PLAN.replace("root@", "loader@");
    let machines = Machines::start(&plan);
    machines.run_whole();
    for trial in ResultsDir::open(&machines.results()).unwrap().trials() {
        let trial = trial.unwrap();
        let client = trial
            .actors
            .iter()
            .find(|actor| actor.role == Role::Client)
            .unwrap();
        assert_eq!(client.environment["root"], "false");
    }
}

#[test(needs = [can_run_trials(), brought_by_test_all("sshd")])]
fn what_is_wrong_with_the_places_is_reported_before_anything_boots() {
    let machines = Machines::start(PLAN);
    let refused = |plan: String, parts: &[&str]| {
        fs::write(machines.work.path().join("plan.toml"), plan).unwrap();
        let output = machines.run().output().unwrap();
        assert!(!in_order(output.status));
        let shown = shown(&output);
        for part in parts {
            assert!(shown.contains(part), "{part}: {shown}");
        }
        assert!(!machines.results().join("run.json").exists());
    };
    refused(
        PLAN.replace("root@10.93.0.2", "10.93.0.77"),
        &["10.93.0.77", "is not to be reached"],
    );
    refused(
        PLAN.replace("\"lan\"", "\"wan\""),
        &["the bridge `wan`", "ip -brief link"],
    );
    refused(
        PLAN.replace("bridge = \"lan\"", "device = \"nic\""),
        &["`nic` is a port of `lan`"],
    );
    refused(
        format!("{PLAN}[settings]\nlink.delay_us = 100\n"),
        &["link.delay_us"],
    );
}

/// The other machine as an existing target: the servers run there, the load runs here.
const FOUND: &str = r#"
name = "found"
repetitions = 2
idle = "0s"
warmup = "300ms"
duration = "1s"
sample_hz = 10
again = { share = 0 }
[[platform]]
kind = "ssh"
ssh.to = "root@10.93.0.2"
[[workload]]
kind = "http-rate"
rate = 200
[[workload]]
kind = "iperf3-receive"
rate_mbit = 50
"#;

#[test(needs = [can_run_trials(), brought_by_test_all("sshd")])]
fn a_machine_that_one_can_log_into_is_measured_and_left_as_it_was() {
    let machines = Machines::start(FOUND);
    let there = || {
        let pid = Machines::inside(&machines.other);
        sh(&format!(
            "nsenter --target={pid} --mount --pid --net sh -ec 'ls -a /var/tmp; ls -d /tmp/vtax-http 2>/dev/null || true; ss -Hlnt'"
        ))
    };
    let (before, mounted) = (there(), machines.mounts_there());
    machines.run_whole();
    // Processes and files of a session there are removed shortly after it.
    let deadline = Instant::now() + Duration::from_secs(15);
    while there() != before && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(50));
    }
    assert_eq!(there(), before);
    machines.assert_nothing_is_mounted_beyond(&mounted);
    let results = ResultsDir::open(&machines.results()).unwrap();
    let trials: Vec<_> = results.trials().map(Result::unwrap).collect();
    assert_eq!(trials.len(), 4);
    for trial in trials {
        assert_eq!(trial.outcome, TrialOutcome::Complete, "{trial:?}");
        assert!(trial.work.as_ref().unwrap().amount > 0.0);
        let fact = |name: &str| trial.environment[name].clone();
        assert_eq!(fact("ssh.address"), "10.93.0.2");
        assert!(
            fact("host.guest").starts_with("none:"),
            "{:?}",
            trial.environment
        );
        assert!(!fact("guest.kernel").is_empty());
        assert!(trial.metrics.contains_key("guest.cpu.cores"));
        // The target is not a guest of this host: measurements of this host say nothing about its costs.
        for metric in ["cpu.cores", "cpu.per_work", "energy.total", "power.mean"] {
            assert!(!trial.metrics.contains_key(metric), "{metric}");
        }
    }
}

#[test(needs = [can_run_trials(), brought_by_test_all("sshd")])]
fn a_target_that_goes_costs_one_trial_and_comes_again() {
    let plan = FOUND.replace("repetitions = 2", "repetitions = 20");
    let machines = Machines::start(&plan);
    let found = machines.found();
    let mut run = machines
        .run()
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let deadline = Instant::now() + Duration::from_secs(120);
    while finished(&machines.results()).len() < 2 {
        assert!(Instant::now() < deadline && run.try_wait().unwrap().is_none());
        std::thread::sleep(Duration::from_millis(20));
    }
    // The target is killed in the middle of a trial, with its servers.
    let actor = machines
        .processes()
        .into_iter()
        .find(|(_, line)| line.starts_with("unshare"));
    let (victim, _) = actor.expect("the actor's namespaces");
    let whole = finished(&machines.results());
    kill_process(Pid::from_raw(victim).unwrap(), Signal::KILL).unwrap();
    let before = whole.len();
    while finished(&machines.results()).len() < before + 2 {
        assert!(Instant::now() < deadline && run.try_wait().unwrap().is_none());
        std::thread::sleep(Duration::from_millis(20));
    }
    kill_process(Pid::from_child(&run), Signal::TERM).unwrap();
    run.wait().unwrap();
    machines.assert_as_found(&found, "a target that went");
    let kept = finished(&machines.results());
    assert!(
        whole
            .iter()
            .all(|(name, record)| kept.get(name) == Some(record))
    );
}

#[test(needs = [can_run_trials(), brought_by_test_all("sshd")])]
fn a_target_that_restarts_makes_its_trial_invalid_and_the_run_goes_on_when_it_is_back() {
    let plan = FOUND.replace("repetitions = 2", "repetitions = 40");
    let mut machines = Machines::start(&plan);
    let events = machines.work.path().join("events");
    let mut run = machines
        .run()
        .arg("--json")
        .stdout(fs::File::create(&events).unwrap())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let deadline = Instant::now() + Duration::from_secs(180);
    // The second trial is measured.
    let is_measured = |text: String| text.matches(r#""phase":"measure"#).count() == 2;
    while !fs::read_to_string(&events).is_ok_and(is_measured) {
        assert!(Instant::now() < deadline && run.try_wait().unwrap().is_none());
        std::thread::sleep(Duration::from_millis(5));
    }
    machines.restart_other(Duration::from_secs(3));
    let before = finished(&machines.results()).len();
    while finished(&machines.results()).len() < before + 2 {
        assert!(Instant::now() < deadline && run.try_wait().unwrap().is_none());
        std::thread::sleep(Duration::from_millis(20));
    }
    kill_process(Pid::from_child(&run), Signal::TERM).unwrap();
    run.wait().unwrap();
    let records = fs::read_dir(machines.results().join("trials"))
        .unwrap()
        .flatten();
    let records =
        records.filter_map(|entry| fs::read_to_string(entry.path().join("trial.json")).ok());
    let invalid = records.filter(|record| record.contains("root@10.93.0.2 has restarted"));
    assert_eq!(invalid.count(), 1);
}

#[test(needs = [can_run_trials(), brought_by_test_all("sshd")])]
fn a_dry_run_looks_at_the_target_and_neither_side_changes() {
    let machines = Machines::start(FOUND);
    let there = || {
        let pid = Machines::inside(&machines.other);
        sh(&format!(
            "nsenter --target={pid} --mount --pid --net sh -ec '
                 find /var/tmp /run /root/.ssh /var/log/lastlog /var/log/wtmp -printf \"%p %s %T@ %C@\n\" 2>/dev/null || true
                 ss -Hlnt'"
        ))
    };
    let dry = |plan: &str| {
        fs::write(machines.work.path().join("plan.toml"), plan).unwrap();
        machines.run().arg("--dry-run").output().unwrap()
    };
    let (found, before, mounted) = (machines.found(), there(), machines.mounts_there());
    let output = dry(FOUND);
    let printed = shown(&output);
    assert_eq!(output.status.code(), Some(0), "{printed}");
    for part in [
        "found: can run; nothing was changed",
        "The guest root@10.93.0.2 (ssh), by one login",
        "has           apache2 /",
        "1. take the lock",
        "4. run 4 trials",
        "copy vtax",
        "http-rate",
        "after          0 s  0000  block 1",
    ] {
        assert!(printed.contains(part), "{part}: {printed}");
    }
    machines.assert_as_found(&found, "after a dry run");
    assert_eq!(there(), before);
    machines.assert_nothing_is_mounted_beyond(&mounted);
    assert!(!machines.results().exists());
    // Status 5: a guest that cannot be logged into, one without root, and a workload that it cannot have.
    for (from, to, part) in [
        ("root@10.93.0.2", "root@10.93.0.77", "is not to be reached"),
        (
            "root@10.93.0.2",
            "loader@10.93.0.2",
            "root on loader@10.93.0.2",
        ),
        ("http-rate\"\nrate = 200", "sysbench-oltp\"", "scratch disk"),
    ] {
        let output = dry(&FOUND.replace(from, to));
        let printed = shown(&output);
        assert_eq!(output.status.code(), Some(5), "{printed}");
        assert!(
            printed.contains("cannot run") && printed.contains(part),
            "{part}: {printed}"
        );
    }
    machines.assert_as_found(&found, "after refused dry runs");
    assert_eq!(there(), before);
}

#[test(needs = [can_run_trials(), brought_by_test_all("sshd")])]
fn a_new_plan_for_a_target_has_its_facts_and_can_run_as_it_is() {
    let machines = Machines::start(FOUND);
    let (found, file) = (machines.found(), machines.work.path().join("new.toml"));
    let new = || {
        let mut command = machines.vtax();
        command.args(["plan", "new", "--for", "ssh:root@10.93.0.2", "-o"]);
        command.arg(&file).output().unwrap()
    };
    let output = new();
    assert_eq!(output.status.code(), Some(0), "{}", shown(&output));
    let text = fs::read_to_string(&file).unwrap();
    let processors = sh("nproc");
    for part in [
        "ssh.to = \"root@10.93.0.2\"",
        "address: 10.93.0.2",
        "What a run does to the guest: 10 trials",
        "How to undo it",
        &format!("processors: {} (", processors.trim()),
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    assert_eq!(
        new().status.code(),
        Some(1),
        "a file that exists is not replaced"
    );
    fs::copy(&file, machines.work.path().join("plan.toml")).unwrap();
    let output = machines.run().arg("--dry-run").output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", shown(&output));
    machines.assert_as_found(&found, "after a new plan");
}

#[test(needs = [can_run_trials(), brought_by_test_all("sshd")])]
fn what_is_wrong_with_a_target_is_reported_before_anything_starts() {
    let machines = Machines::start(FOUND);
    let refused = |plan: String, parts: &[&str]| {
        fs::write(machines.work.path().join("plan.toml"), plan).unwrap();
        let output = machines.run().output().unwrap();
        assert!(!in_order(output.status));
        let shown = shown(&output);
        for part in parts {
            assert!(shown.contains(part), "{part}: {shown}");
        }
        assert!(!machines.results().join("run.json").exists());
    };
    let to = |line: &str| FOUND.replace("ssh.to = \"root@10.93.0.2\"", line);
    refused(to(""), &["ssh.to", "names no machine"]);
    refused(to("ssh.to = \"-oProxyCommand=x\""), &["names no machine"]);
    refused(
        to("ssh.to = \"root@10.93.0.77\""),
        &["10.93.0.77", "is not to be reached"],
    );
    refused(
        to("ssh.to = \"nobody@10.93.0.2\""),
        &["Permission denied", "ssh-copy-id"],
    );
    refused(
        to("ssh.to = \"loader@10.93.0.2\""),
        &["root on loader@10.93.0.2", "ssh.sudo"],
    );
    refused(
        to("ssh.to = \"root@10.93.0.2\"\nssh.guest = \"no-such-guest\""),
        &["a guest of this host called `no-such-guest`", "vtax top"],
    );
    refused(
        format!("{FOUND}[settings]\nlink.delay_us = 100\n"),
        &["link.delay_us", "leave them out"],
    );
    refused(
        FOUND.replace("http-rate\"\nrate = 200", "sysbench-oltp\""),
        &["scratch disk"],
    );
    // The machine has another key than at the last login.
    let path = machines.work.path();
    let bin = path.join("bin/ssh");
    let strict = fs::read_to_string(&bin).unwrap();
    let known = path.join("known");
    fs::write(
        &known,
        format!(
            "10.93.0.2 {}",
            fs::read_to_string(path.join("user.pub")).unwrap()
        ),
    )
    .unwrap();
    let strict = strict.replace(
        "UserKnownHostsFile=/dev/null",
        &format!("UserKnownHostsFile={}", known.display()),
    );
    fs::write(
        &bin,
        strict.replace("StrictHostKeyChecking=no", "StrictHostKeyChecking=yes"),
    )
    .unwrap();
    refused(
        FOUND.to_owned(),
        &["10.93.0.2 has changed", "another machine"],
    );
}

#[test(needs = [can_run_trials(), brought_by_test_all("sshd")])]
fn a_server_that_the_target_has_already_is_neither_loaded_nor_stopped() {
    let machines = Machines::start(FOUND);
    let pid = Machines::inside(&machines.other);
    let server =
        "import http.server as h; h.test(h.BaseHTTPRequestHandler, port=80, bind=\"10.93.0.2\")";
    let mut own = Command::new("nsenter")
        .args([
            &format!("--net=/proc/{pid}/ns/net"),
            "python3",
            "-c",
            server,
        ])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let deadline = Instant::now() + Duration::from_secs(30);
    while !sh(&format!("nsenter --net=/proc/{pid}/ns/net ss -Hlnt")).contains(":80 ") {
        assert!(Instant::now() < deadline);
        std::thread::sleep(Duration::from_millis(50));
    }
    let output = machines.run().output().unwrap();
    let is_alive = own.try_wait().unwrap().is_none();
    own.kill().unwrap();
    own.wait().unwrap();
    assert!(is_alive && !in_order(output.status));
    assert!(
        shown(&output).contains("has a server already"),
        "{}",
        shown(&output)
    );
}

/// The other machine as a VM of a pool. The pool is a stand-in with the address of this host.
fn pooled(machines: &Machines, which: &str) -> pool::Pool {
    let network = format!("/proc/{}/ns/net", Machines::inside(&machines.host));
    let namespace = fs::File::open(network).unwrap();
    let pool = pool::Pool::start(machines.work.path(), "10.93.0.1", Some(namespace));
    pool.inside().step = 1;
    pool.inside().tell("10.93.0.2");
    let (head, _) = FOUND.split_once("kind = \"ssh\"").unwrap();
    let plan = format!(
        "{head}{}\n{which}\n[[workload]]\nkind = \"http-rate\"\nrate = 200\n",
        pool.lines()
    );
    let plan = plan
        .replace("duration = \"1s\"", "duration = \"3s\"")
        .replace("repetitions = 2", "repetitions = 1");
    fs::write(machines.work.path().join("plan.toml"), plan).unwrap();
    pool
}

/// The permitted calls for a VM that vtax did not create: none of these changes the pool.
const LOOKS: [&str; 12] = [
    "session.login_with_password",
    "session.logout",
    "VM.get_by_name_label",
    "VM.get_by_uuid",
    "VM.get_record",
    "VM.get_resident_on",
    "VM.get_uuid",
    "VM_guest_metrics.get_networks",
    "host.get_all",
    "host.get_record",
    "host.get_servertime",
    "GET /rrd_updates",
];

#[test(needs = [can_run_trials(), brought_by_test_all("sshd")])]
fn a_vm_of_a_pool_is_measured_with_what_its_host_counts_and_never_changed() {
    let machines = Machines::start(FOUND);
    let pool = pooled(&machines, "xenapi.vm = \"web\"");
    let before = pool.objects();
    machines.run_whole();
    assert_eq!(pool.objects(), before);
    for call in &pool.inside().calls {
        assert!(LOOKS.contains(&call.as_str()), "{call}");
    }
    let results = ResultsDir::open(&machines.results()).unwrap();
    let trials: Vec<_> = results.trials().map(Result::unwrap).collect();
    assert_eq!(trials.len(), 1);
    let trial = &trials[0];
    assert_eq!(trial.outcome, TrialOutcome::Complete, "{trial:?}");
    let fact = |name: &str| trial.environment[name].as_str();
    assert_eq!((fact("xenapi.vm"), fact("xenapi.member")), ("web", "xcp"));
    assert_eq!(fact("xenapi.version"), "XCP-ng 8.3.0, Xen 4.17.5");
    assert_eq!(fact("host.counted"), "by the pool: averages of 1 s");
    // The VM exchanged 0.3 of the 1.2 MB/s between Domain 0 and all VMs: a quarter of Domain 0's 0.4 processors is its
    // share.
    for (name, expected, source) in [
        ("cpu.stage.vcpu", 0.75, Source::Measured),
        ("cpu.stage.backend", 0.1, Source::Modelled),
        ("cpu.cores", 0.85, Source::Modelled),
        ("cpu.dom0", 0.4, Source::Measured),
        ("cpu.machine", 1.25, Source::Modelled),
        ("net.rx_bytes_per_second", 2e5, Source::Measured),
    ] {
        let metric = &trial.metrics[name];
        // Each of the two readings of the pool's clock may be off by milliseconds on a busy machine, in a window of
        // some seconds.
        let off = (metric.quantity.value / expected - 1.0).abs();
        assert!(off < 0.02, "{name}: {:?}", metric.quantity);
        assert_eq!(metric.source, source, "{name}");
    }
    assert!(trial.metrics.contains_key("guest.cpu.cores"));
    assert!(!trial.metrics.contains_key("power.mean"));
    let leaks = sh(&format!(
        "grep -rl {} {} || true",
        pool::LOGIN.1,
        machines.results().display()
    ));
    assert_eq!(leaks, "", "the password is in a record");
    let is_of_pool = |why: &String| why.contains("clock moved") || why.contains("the VM moved");
    assert!(!trial.suspect.iter().any(is_of_pool), "{:?}", trial.suspect);
    // A window with less than two of the pool's samples gives no processor time, and the log reports it.
    fs::remove_dir_all(machines.results()).unwrap();
    pool.inside().step = 5;
    machines.run_whole();
    let results = ResultsDir::open(&machines.results()).unwrap();
    let trial = results.trials().next().unwrap().unwrap();
    assert_eq!(trial.outcome, TrialOutcome::Complete);
    assert!(
        !trial.metrics.contains_key("cpu.cores"),
        "{:?}",
        trial.metrics
    );
    assert!(trial.metrics.contains_key("guest.cpu.cores"));
}

#[test(needs = [can_run_trials(), brought_by_test_all("sshd")])]
fn a_clone_of_a_template_is_measured_and_removed_and_so_it_is_after_a_kill() {
    let machines = Machines::start(FOUND);
    let pool = pooled(&machines, "xenapi.template = \"debian\"");
    let before = pool.objects();
    let found = machines.found();
    machines.run_whole();
    assert_eq!(pool.objects(), before);
    let called = |method: &str| pool.inside().calls.iter().any(|call| call == method);
    assert!(called("VM.clone") && called("VM.start") && called("VM.destroy"));
    let results = ResultsDir::open(&machines.results()).unwrap();
    let trial = results.trials().next().unwrap().unwrap();
    assert_eq!(trial.outcome, TrialOutcome::Complete, "{trial:?}");
    assert!(trial.environment["xenapi.vm"].starts_with("vtax-"));
    let vcpu = trial.metrics["cpu.stage.vcpu"].quantity.value;
    assert!((vcpu - 0.2).abs() < 1e-3, "{vcpu}");
    // The run is killed while the VM runs. No kernel here ends the VM; the journal does.
    fs::remove_dir_all(machines.results()).unwrap();
    let mut run = machines
        .run()
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let deadline = Instant::now() + Duration::from_secs(120);
    let is_ours = |name: &String| name.starts_with("vtax-");
    while !pool.vms().iter().any(is_ours) {
        assert!(Instant::now() < deadline && run.try_wait().unwrap().is_none());
        std::thread::sleep(Duration::from_millis(20));
    }
    run.kill().unwrap();
    run.wait().unwrap();
    assert_ne!(pool.objects(), before);
    let pid = Machines::inside(&machines.host);
    let mut restore = Command::new("nsenter");
    restore
        .arg(format!("--net=/proc/{pid}/ns/net"))
        .arg(env!("CARGO_BIN_EXE_vtax"))
        .arg("restore")
        .env("VTAX_STATE_DIR", machines.work.path().join("state"));
    finish(&mut restore, true);
    assert_eq!(pool.objects(), before);
    machines.assert_as_found(&found, "after a kill");
}
