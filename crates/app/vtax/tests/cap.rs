// SPDX-License-Identifier: Apache-2.0
//! `vtax cap` on this machine: two containers of equal shares, one of which receives datagrams from a client.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    reason = "a test that cannot be set up, or does not hold, should fail"
)]

use crate::support::{finish, the_host, vtax};
use serde_json::Value;
use std::fs::{self, File};
use std::net::UdpSocket;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use vtax_inventory::Hierarchy;
#[allow(dead_code, reason = "this needs a part of it")]
use vtax_testkit::containers::{Container, Group, Setting};
use vtax_testkit::skip;

/// The fewest datagrams a second whose cost for the host shows.
const FEWEST_DATAGRAMS: f64 = 25_000.0;

/// The quota of each container, in processors.
const SHARE: f64 = 0.3;

/// A process that is killed at the end of the test.
struct Ended(Child);

impl Ended {
    fn busy() -> Self {
        let child = Command::new("sh")
            .args(["-c", "while :; do :; done"])
            .spawn();
        Self(child.unwrap())
    }
}

impl Drop for Ended {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The containers, each with a process that uses all the time that it gets, and a quota of [`SHARE`].
struct Two {
    setting: Setting,
    /// Killed before their control groups are removed.
    burners: Vec<Ended>,
    /// The groups in cgroup v1's `cpu` hierarchy, where it is mounted separately.
    _beside: Vec<Group>,
    quotas: Vec<PathBuf>,
    names: Vec<String>,
    _host: File,
}

impl Drop for Two {
    fn drop(&mut self) {
        self.burners.clear();
        for container in &mut self.setting.containers {
            let _ = container.namespace.0.kill();
            let _ = container.namespace.0.wait();
        }
    }
}

impl Two {
    fn new() -> Self {
        let host = the_host();
        let setting = Setting::new(2);
        let hierarchy = Hierarchy::find(Path::new("/sys")).unwrap();
        let apart = hierarchy.mounted.with_file_name("cpu");
        let is_apart =
            hierarchy.v1 && !hierarchy.mounted.join("cpu.cfs_quota_us").exists() && apart.exists();
        let mounted = if is_apart { &apart } else { &hierarchy.mounted };
        let (mut beside, mut burners, mut quotas) = (Vec::new(), Vec::new(), Vec::new());
        for container in &setting.containers {
            let burner = Ended::busy();
            container.adopt(&burner.0);
            if is_apart {
                beside.push(Group::new(&apart, &container.name, burner.0.id()).unwrap());
            }
            burners.push(burner);
            let group = container.path(mounted);
            let quota = if hierarchy.v1 {
                group.join("cpu.cfs_quota_us")
            } else {
                group.join("cpu.max")
            };
            if let Err(cause) = fs::write(&quota, format!("{}", SHARE * 1e5)) {
                skip!("{}: {cause}", quota.display());
            }
            quotas.push(quota);
        }
        let names = setting
            .containers
            .iter()
            .map(|container| container.name[..12].to_owned());
        Self {
            names: names.collect(),
            setting,
            burners,
            _beside: beside,
            _host: host,
            quotas,
        }
    }

    fn quotas(&self) -> Vec<String> {
        let read = |path: &PathBuf| fs::read_to_string(path).unwrap();
        self.quotas.iter().map(read).collect()
    }

    /// The result of `work`, which runs while the first container receives about fifty thousand datagrams a second. Skips the
    /// test where other programs leave the sender too little time for half of them.
    fn while_sent_to<T>(&self, work: impl FnOnce() -> T) -> T {
        let bind = || UdpSocket::bind("0.0.0.0:9999").unwrap();
        // The socket is never read: the kernel drops datagrams that do not fit, after all of the host's work for them.
        let _receiver = self.setting.containers[0].namespace.within(bind);
        let over = AtomicBool::new(false);
        let send = || {
            let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
            socket.connect("10.9.0.2:9999").unwrap();
            let (began, mut sent) = (Instant::now(), 0.0);
            while !over.load(Ordering::Relaxed) {
                for _ in 0..64 {
                    let _ = socket.send(&[0; 64]);
                }
                sent += 64.0;
                std::thread::sleep(Duration::from_millis(1));
            }
            sent / began.elapsed().as_secs_f64()
        };
        std::thread::scope(|scope| {
            let sender = scope.spawn(|| self.setting.client.within(send));
            let result = work();
            over.store(true, Ordering::Relaxed);
            let rate: f64 = sender.join().unwrap();
            if rate < FEWEST_DATAGRAMS {
                skip!("other programs left the sender {rate:.0} datagrams a second");
            }
            result
        })
    }

    /// The mean use of each container in the last `count` intervals of a cap, in processors.
    fn used(&self, state: &Path, arguments: &[&str], count: usize) -> Vec<f64> {
        let output = finish(vtax(state).args(["cap", "--json"]).args(arguments), true);
        let lines: Vec<Value> = output
            .stdout
            .split(|byte| *byte == b'\n')
            .filter_map(|line| serde_json::from_slice(line).ok())
            .collect();
        let mean = |name: &String| {
            let of_one = lines.iter().filter(|line| line["guest"] == name.as_str());
            let used: Vec<f64> = of_one.map(|line| line["used"].as_f64().unwrap()).collect();
            assert!(used.len() >= count, "{name}: {used:?}");
            used.iter().rev().take(count).sum::<f64>() / count as f64
        };
        self.names.iter().map(mean).collect()
    }
}

#[test(needs = [test_all("takes 24 s")])]
fn of_two_guests_of_equal_shares_neither_gets_more_for_what_others_send_it() {
    let two = Two::new();
    let state = tempfile::tempdir().unwrap();
    let before = two.quotas();
    let (by_quota, by_share) = two.while_sent_to(|| {
        let by_quota = two.used(state.path(), &["--dry-run", "--count", "6"], 5);
        let by_share = two.used(state.path(), &["--count", "16"], 10);
        (by_quota, by_share)
    });
    eprintln!("of {SHARE} processors each: by quota {by_quota:.3?}, by share {by_share:.3?}");
    assert_eq!(two.quotas(), before, "the limits are what they were");
    // The second guest computes all the time: what it lacks, other programs used.
    for used in [by_quota[1], by_share[1]] {
        if used < 0.9 * SHARE {
            skip!("other programs left the second guest {used:.3} of its {SHARE} processors");
        }
    }
    assert!(
        by_quota[0] > 1.1 * by_quota[1],
        "datagrams must cost the host something: {by_quota:?}"
    );
    // Other programs of this machine may use some of the time, but no guest may exceed its share or the other's.
    assert!(
        by_share.iter().all(|used| *used < 1.05 * SHARE) && by_share[0] < 1.1 * by_share[1],
        "{by_share:?} of {SHARE}"
    );
}

#[test]
fn a_cap_that_was_killed_leaves_no_limit_behind() {
    let two = Two::new();
    let state = tempfile::tempdir().unwrap();
    let before = two.quotas();
    let share = format!("{}=0.05", two.names[0]);
    let mut cap = Ended(
        vtax(state.path())
            .args(["cap", "--guest", &share, "--interval", "200ms"])
            .stdout(Stdio::null())
            .spawn()
            .unwrap(),
    );
    let began = Instant::now();
    while two.quotas()[0] == before[0] {
        assert!(began.elapsed() < Duration::from_secs(20), "nothing was set");
        std::thread::sleep(Duration::from_millis(20));
    }
    // A second `vtax cap` would set other limits, and is refused.
    let refused = finish(vtax(state.path()).args(["cap", "--count", "1"]), false);
    let shown = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(shown.contains("vtax cap"), "{shown}");
    // The running `vtax cap` still limits the guests.
    finish(vtax(state.path()).arg("restore"), true);
    assert_ne!(two.quotas()[0], before[0]);
    cap.0.kill().unwrap();
    cap.0.wait().unwrap();
    let restored = finish(vtax(state.path()).arg("restore"), true);
    assert_eq!(two.quotas(), before);
    let shown = String::from_utf8_lossy(&restored.stdout).into_owned();
    assert!(
        shown.contains(&two.quotas[0].display().to_string()),
        "{shown}"
    );
}

/// Starts a cap of the first container, and waits until its limit is in force.
fn capped(two: &Two, state: &Path) -> Ended {
    let before = two.quotas();
    let share = format!("{}=0.05", two.names[0]);
    let cap = Ended(
        vtax(state)
            .args(["cap", "--guest", &share, "--interval", "200ms"])
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap(),
    );
    let began = Instant::now();
    while two.quotas()[0] == before[0] {
        assert!(began.elapsed() < Duration::from_secs(20), "nothing was set");
        std::thread::sleep(Duration::from_millis(20));
    }
    cap
}

/// Ends a cap with SIGTERM, and returns its standard error.
fn end(mut cap: Ended) -> String {
    rustix::process::kill_process(
        rustix::process::Pid::from_child(&cap.0),
        rustix::process::Signal::TERM,
    )
    .unwrap();
    let mut shown = String::new();
    std::io::Read::read_to_string(cap.0.stderr.as_mut().unwrap(), &mut shown).unwrap();
    cap.0.wait().unwrap();
    shown
}

/// Ends the first container's control group, and creates another at its path with this limit.
fn make_anew(two: &mut Two, limit: &str) {
    two.burners.remove(0);
    let container = &mut two.setting.containers[0];
    let _ = container.namespace.0.kill();
    let _ = container.namespace.0.wait();
    let group = two.quotas[0].parent().unwrap();
    let began = Instant::now();
    while let Err(cause) = fs::remove_dir(group) {
        assert!(began.elapsed() < Duration::from_secs(20), "{cause}");
        std::thread::sleep(Duration::from_millis(20));
    }
    fs::create_dir(group).unwrap();
    fs::write(&two.quotas[0], limit).unwrap();
}

#[test]
fn a_limit_that_an_operator_sets_while_a_guest_is_capped_is_in_force_afterwards() {
    let two = Two::new();
    let state = tempfile::tempdir().unwrap();
    let cap = capped(&two, state.path());
    fs::write(&two.quotas[0], "60000").unwrap();
    let shown = end(cap);
    assert!(two.quotas()[0].starts_with("60000"), "{:?}", two.quotas());
    assert!(
        shown.contains("another program has set it to `60000"),
        "{shown}"
    );
}

#[test]
fn a_group_that_is_made_anew_while_its_guest_is_capped_keeps_its_limit() {
    let mut two = Two::new();
    let state = tempfile::tempdir().unwrap();
    let cap = capped(&two, state.path());
    make_anew(&mut two, "77000");
    let shown = end(cap);
    assert!(two.quotas()[0].starts_with("77000"), "{:?}", two.quotas());
    assert!(shown.contains("made anew"), "{shown}");
}

#[test]
fn a_group_that_is_made_anew_after_a_cap_was_killed_keeps_its_limit() {
    let mut two = Two::new();
    let state = tempfile::tempdir().unwrap();
    let mut cap = capped(&two, state.path());
    cap.0.kill().unwrap();
    cap.0.wait().unwrap();
    make_anew(&mut two, "12345");
    let restored = finish(vtax(state.path()).arg("restore"), true);
    assert!(two.quotas()[0].starts_with("12345"), "{:?}", two.quotas());
    let shown = String::from_utf8_lossy(&restored.stdout).into_owned();
    assert!(
        shown.contains("not restored:") && shown.contains("made anew"),
        "{shown}"
    );
    // The message is printed once.
    let restored = finish(vtax(state.path()).arg("restore"), true);
    let shown = String::from_utf8_lossy(&restored.stdout).into_owned();
    assert!(shown.contains("nothing to restore"), "{shown}");
}

#[test]
fn a_share_that_makes_no_sense_is_refused() {
    let state = tempfile::tempdir().unwrap();
    for wrong in [
        "--guest=web",
        "--guest==1",
        "--guest=web=0",
        "--each=-1",
        "--each=x",
    ] {
        let refused = finish(vtax(state.path()).args(["cap", wrong]), false);
        let shown = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert!(
            shown.contains("processors") || shown.contains("PROCESSORS"),
            "{shown}"
        );
    }
}

#[test]
fn who_is_named_and_was_never_held_is_an_error() {
    let state = tempfile::tempdir().unwrap();
    let line = [
        "cap",
        "--guest=nobody=0.5",
        "--dry-run",
        "--count=1",
        "--interval=100ms",
    ];
    let output = finish(vtax(state.path()).args(line), false);
    assert_eq!(output.status.code(), Some(1));
    let shown = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(
        shown.contains("no guest is called nobody yet; there are"),
        "{shown}"
    );
    assert!(shown.contains("no guest called nobody was held"), "{shown}");
}

/// The path of a container's group in a hierarchy.
trait Placed {
    fn path(&self, mounted: &Path) -> PathBuf;
}

impl Placed for Container {
    fn path(&self, mounted: &Path) -> PathBuf {
        let parent = format!("vtax-test-{}", std::process::id());
        mounted.join(parent).join("docker").join(&self.name)
    }
}
