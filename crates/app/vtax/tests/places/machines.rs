// SPDX-License-Identifier: Apache-2.0
//! Two machines for tests of places: an sshd in namespaces of its own (network, mounts, processes and clock),
//! behind a bridge in a network namespace that represents this host's.

pub(super) use crate::support::work::shown;
use crate::support::work::{Work, text, wait_for};
use crate::support::{HostState, finish, in_order, recorded};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{BufRead, BufReader};
use std::net::TcpStream;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// The lead of the other machine's monotonic clock in seconds, where the kernel has time namespaces.
pub(super) const AHEAD: f64 = 5000.0;

/// Two machines: this host, as a network namespace with a bridge, and another with an sshd.
pub(super) struct Machines {
    pub(super) work: Work,
    pub(super) host: Child,
    pub(super) other: Child,
    /// The number of the other machine's boots.
    pub(super) boots: u32,
    pub(super) has_clock: bool,
}

impl Drop for Machines {
    fn drop(&mut self) {
        for child in [&mut self.host, &mut self.other] {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

pub(super) fn sh(script: &str) -> String {
    let output = Command::new("sh").args(["-ec", script]).output().unwrap();
    assert!(
        output.status.success(),
        "{script}: {}",
        text(&output.stderr)
    );
    text(&output.stdout)
}

/// Starts a process in namespaces of its own, waits until it is ready, and returns it with its PID.
pub(super) fn namespaces(options: &[&str], script: &str) -> (Child, u32) {
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
    pub(super) fn mounts_there(&self) -> BTreeSet<String> {
        let pid = Self::inside(&self.other);
        let all = fs::read_to_string(format!("/proc/{pid}/mountinfo")).unwrap();
        let points = all.lines().filter_map(|line| line.split(' ').nth(4));
        points.map(str::to_owned).collect()
    }

    /// Mounts of this host whose directories were removed meanwhile are gone there too.
    pub(super) fn assert_nothing_is_mounted_beyond(&self, before: &BTreeSet<String>) {
        let now = self.mounts_there();
        let new: Vec<_> = now.difference(before).collect();
        assert!(new.is_empty(), "{new:?}");
    }

    /// Starts both machines.
    pub(super) fn start(plan: &str) -> Self {
        let work = Work::alone(plan);
        finish(work.vtax().args(["image", "build"]), true);
        let path = work.path().display().to_string();
        sh(&format!(
            "cd {path}; for key in host user; do ssh-keygen -q -t ed25519 -N '' -f $key; done
             chmod 755 .; cp user.pub authorized; chmod 644 authorized
             cp /etc/passwd passwd; echo 'loader:x:12345:12345::/:/bin/sh' >> passwd
             cp /etc/shadow shadow; echo 'loader:*:19000:0:99999:7:::' >> shadow"
        ));
        fs::write(
            work.at("sshd_config"),
            format!(
                "ListenAddress 10.93.0.2\nHostKey {path}/host\nAuthorizedKeysFile {path}/authorized\n\
                 PidFile none\nStrictModes no\nUsePAM no\nPasswordAuthentication no\n\
                 PermitRootLogin prohibit-password\nAllowUsers root loader\nMaxStartups 100\n"
            ),
        )
        .unwrap();
        let ssh = format!(
            "exec /usr/bin/ssh -F none -i {path}/user -o UserKnownHostsFile=/dev/null \
             -o StrictHostKeyChecking=no -o LogLevel=ERROR \"$@\""
        );
        work.script("ssh", &ssh);

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
        };
        machines.await_sshd();
        machines
    }

    /// Boots the other machine, whose kernel shows an id of this boot.
    pub(super) fn boot(path: &str, host: &Child, has_clock: bool, number: u32) -> Child {
        let ahead = format!("{AHEAD}");
        let clock = ["--time", "--monotonic", &ahead];
        let mut options = vec!["--mount", "--pid", "--mount-proc"];
        if has_clock {
            options.extend(clock);
        }
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
    pub(super) fn restart_other(&mut self, away: Duration) {
        let _ = self.other.kill();
        let _ = self.other.wait();
        // The host's end of the cable goes with the other one.
        wait_for(
            30,
            || self.links(),
            || (!self.links().contains("nic@")).then_some(()),
        );
        std::thread::sleep(away);
        self.boots += 1;
        let path = self.work.path().display().to_string();
        self.other = Self::boot(&path, &self.host, self.has_clock, self.boots);
    }

    /// The PID on this machine of the process in the namespaces of a machine.
    pub(super) fn inside(machine: &Child) -> u32 {
        let children = sh(&format!("cat /proc/{0}/task/{0}/children", machine.id()));
        children.trim().parse().unwrap()
    }

    pub(super) fn on_host(&self, script: &str) -> String {
        let pid = Self::inside(&self.host);
        sh(&format!(
            "nsenter --net=/proc/{pid}/ns/net sh -ec '{script}'"
        ))
    }

    /// The network devices of the host, without the states that the kernel updates with a delay.
    pub(super) fn links(&self) -> String {
        self.on_host(r#"ip -o link | sed -E "s/ state [A-Z]+//; s/NO-CARRIER,//""#)
    }

    pub(super) fn await_sshd(&self) {
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
        let why = || format!("{:?}", self.processes());
        wait_for(30, why, || (self.processes().len() <= 1).then_some(()));
    }

    pub(super) fn sshd_reported(&self) -> String {
        fs::read_to_string(self.work.at("sshd.log")).unwrap_or_default()
    }

    /// `vtax run` of the plan, on the host.
    pub(super) fn run(&self) -> Command {
        let mut command = self.vtax();
        command
            .arg("run")
            .arg(self.work.plan())
            .arg("--results")
            .arg(self.results());
        command
    }

    /// vtax on the host.
    pub(super) fn vtax(&self) -> Command {
        let pid = Self::inside(&self.host);
        let mut command = Command::new("nsenter");
        command
            .arg(format!("--net=/proc/{pid}/ns/net"))
            .arg(env!("CARGO_BIN_EXE_vtax"))
            .env("VTAX_STATE_DIR", self.work.at("state"))
            .env("PATH", self.work.path_variable());
        recorded(&mut command);
        command
    }

    pub(super) fn results(&self) -> std::path::PathBuf {
        self.work.results()
    }

    /// The files and processes of the other machine that an actor can change.
    pub(super) fn other_machine(&self) -> BTreeSet<String> {
        let pid = Self::inside(&self.other);
        let root = format!("/proc/{pid}/root/var/tmp");
        let files = fs::read_dir(root).unwrap().flatten();
        let files = files.map(|file| file.path().display().to_string());
        files
            .chain(self.processes().into_keys().map(|pid| pid.to_string()))
            .collect()
    }

    /// The processes of the other machine by their PID on this one, with their command lines.
    pub(super) fn processes(&self) -> BTreeMap<i32, String> {
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

    pub(super) fn actor(&self) -> Option<i32> {
        let processes = self.processes();
        let mut found = processes
            .into_iter()
            .filter(|(_, line)| line.starts_with("/proc/self/fd/4 actor"));
        found.next().map(|(pid, _)| pid)
    }

    /// Runs the plan to its end, and asserts that nothing is left.
    pub(super) fn run_whole(&self) {
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

    /// Runs `plan`, and expects an error with all of `parts` before any trial.
    pub(super) fn assert_refused(&self, plan: &str, parts: &[&str]) {
        fs::write(self.work.plan(), plan).unwrap();
        let output = self.run().output().unwrap();
        assert!(!in_order(output.status));
        let shown = shown(&output);
        for part in parts {
            assert!(shown.contains(part), "{part}: {shown}");
        }
        assert!(!self.results().join("run.json").exists());
    }

    /// The present state of both machines.
    pub(super) fn found(&self) -> Found {
        (HostState::read(), self.links(), self.other_machine())
    }

    /// Waits until both machines have this earlier state.
    pub(super) fn assert_as_found(&self, (host, links, other): &Found, when: &str) {
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
pub(super) type Found = (HostState, String, BTreeSet<String>);

/// The records of finished trials.
pub(super) fn finished(results: &Path) -> BTreeMap<String, Vec<u8>> {
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

/// The other machine as an existing target: the servers run there, the load runs here.
pub(super) const FOUND: &str = r#"
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
