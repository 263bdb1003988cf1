// SPDX-License-Identifier: Apache-2.0
//! Small climbs of every platform on this host with real guests: their ends by each limit, and the clean-up after every
//! kind of end.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use vtax_density::limits::Binding;
use vtax_density::record::Climb;
use vtax_mvm::machine::kvm::Host;
use vtax_results::{ResultsDir, TrialOutcome};
use vtax_testkit::stand_in::{FAILS, STAND_IN, program};
use vtax_testkit::{needs::Need, skip, skip_in_part};

const VTAX: &str = env!("CARGO_BIN_EXE_vtax");

fn density() -> Command {
    let mut command = Command::new(VTAX);
    command.arg("density");
    command
}

struct Bench {
    folder: tempfile::TempDir,
}

impl Bench {
    fn new(density: &str, platform: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let plan = format!(
            "name = \"test\"\nrepetitions = 1\n[density]\nintervals = 4\nsamples = 2\nsample_ms = 20\nprobes = 5\nidle_seconds = 0.2\nreturn_seconds = 0.5\nprobe_p99_ms = 60000\n{density}\n[[platform]]\n{platform}\n"
        );
        fs::write(folder.path().join("plan.toml"), plan).unwrap();
        Self { folder }
    }

    fn change(&self, from: &str, to: &str) {
        let plan = self.folder.path().join("plan.toml");
        let text = fs::read_to_string(&plan).unwrap();
        assert!(text.contains(from));
        fs::write(&plan, text.replace(from, to)).unwrap();
    }

    fn results(&self) -> PathBuf {
        self.folder.path().join("results")
    }

    fn arguments(&self, command: &mut Command) {
        command
            .arg(self.folder.path().join("plan.toml"))
            .arg("--results")
            .arg(self.results())
            .arg("--json")
            .env("VTAX_STATE_DIR", self.folder.path().join("state"));
    }

    /// Runs the command. Returns whether it succeeded, and its output and errors.
    fn run_by(&self, mut command: Command) -> (bool, String) {
        self.arguments(&mut command);
        let output = command.output().unwrap();
        let printed = [output.stderr, output.stdout].concat();
        (
            output.status.success(),
            String::from_utf8_lossy(&printed).into_owned(),
        )
    }

    /// Runs and returns the only climb.
    fn climb_by(&self, command: Command) -> Climb {
        let (success, printed) = self.run_by(command);
        assert!(success, "{printed}");
        self.record()
    }

    fn climb(&self) -> Climb {
        self.climb_by(density())
    }

    fn record(&self) -> Climb {
        let results = ResultsDir::open(&self.results()).unwrap();
        let trial = results.trial(0).unwrap();
        assert_eq!(trial.outcome, TrialOutcome::Complete);
        assert!(results.samples(0).unwrap().rows() > 0);
        let path = results.trial_path(0).join("workload.json");
        serde_json::from_slice(&fs::read(path).unwrap()).unwrap()
    }

    fn journal(&self) -> String {
        fs::read_to_string(self.folder.path().join("state/journal.jsonl")).unwrap_or_default()
    }

    /// The control groups in the journal.
    fn groups(&self) -> Vec<PathBuf> {
        let journal = self.journal();
        let entries = journal
            .lines()
            .filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok());
        entries
            .filter_map(|entry| Some(PathBuf::from(entry.get("path")?.as_str()?)))
            .collect()
    }
}

/// PIDs in a control group and below it.
fn processes_in(group: &Path) -> Vec<i32> {
    let own = fs::read_to_string(group.join("cgroup.procs")).unwrap_or_default();
    let own = own.lines().filter_map(|line| line.parse().ok());
    let below = fs::read_dir(group).into_iter().flatten().flatten();
    let below = below.map(|entry| entry.path()).filter(|path| path.is_dir());
    own.chain(below.flat_map(|path| processes_in(&path)))
        .collect()
}

/// Climbs a platform to `maximum` and checks the properties of every climb.
fn whole_climb(platform: &str, maximum: u32) -> Climb {
    let bench = Bench::new("", &format!("kind = {platform:?}\nmaximum = {maximum}"));
    let climb = bench.climb();
    let populations: Vec<u32> = climb.climb.iter().map(|i| i.population).collect();
    let quarter = maximum / 4;
    assert_eq!(
        populations,
        [0, quarter, 2 * quarter, 3 * quarter, maximum],
        "equal steps"
    );
    assert_eq!(climb.binding, Binding::Maximum);
    for interval in climb.climb.iter().skip(1) {
        let probe = interval.probe.unwrap();
        assert_eq!(
            (probe.answered, probe.failed),
            (5, 0),
            "every request is answered"
        );
        assert!(probe.p50_us > 0.0 && probe.p50_us <= probe.p99_us);
        let births = interval.births.unwrap();
        assert_eq!(births.count, quarter);
        assert!(births.boot.unwrap().p50_us > 0.0);
        assert!(interval.samples.len() == 2 && interval.memory.available > 0.0);
    }
    assert_eq!(climb.descent.last().unwrap().population, 0);
    assert_eq!(bench.journal(), "", "nothing is left to undo");
    let report = fs::read_to_string(bench.results().join("report.html")).unwrap();
    assert!(report.contains(platform) && report.contains("What a guest costs"));
    climb
}

#[test(needs = [root()])]
fn threads_are_climbed() {
    whole_climb("thread", 40);
}

#[test(needs = [root()])]
fn processes_are_climbed() {
    let climb = whole_climb("process", 40);
    assert_eq!(climb.descent.len(), 4, "processes can be ended singly");
}

#[test(needs = [root()])]
fn containers_are_climbed() {
    whole_climb("container", 8);
}

#[test(needs = [root()])]
fn qemus_are_climbed() {
    whole_climb("qemu", 4);
}

/// A climb in which half of the guests do `work`.
fn half_works(platform: &str, work: &str, maximum: u32) -> Climb {
    let bench = Bench::new(
        "working_percent = 50",
        &format!("kind = {platform:?}\nwork = {work:?}\nmaximum = {maximum}"),
    );
    bench.change("intervals = 4", "intervals = 2");
    bench.change("idle_seconds = 0.2", "idle_seconds = 2");
    let climb = bench.climb();
    assert_eq!(climb.guests(), maximum, "{}", climb.binding);
    let probes = climb.climb.iter().skip(1).map(|i| i.probe.unwrap());
    assert!(probes.into_iter().all(|probe| probe.failed == 0));
    assert_eq!(climb.descent.last().unwrap().population, 0);
    assert_eq!(bench.journal(), "", "nothing is left to undo");
    climb
}

#[test(needs = [test_all("takes 18 s"), root()])]
fn some_processes_work_and_the_others_answer() {
    let asleep = half_works("process", "none", 20).idle.unwrap();
    let computing = half_works("process", "cpu", 20).idle.unwrap();
    // Ten guests compute for some 10 ms each second; an idle guest does not wake.
    assert!(
        computing.core_percent > 1.0 && computing.core_percent > 10.0 * asleep.core_percent,
        "{} beside {} %",
        computing.core_percent,
        asleep.core_percent
    );
    let sending = half_works("process", "network", 20).idle.unwrap();
    assert!(
        sending.core_percent > 10.0 * asleep.core_percent,
        "{} beside {} %",
        sending.core_percent,
        asleep.core_percent
    );
    // The control group's account is not used, because some kernels leave it at 0 (v1).
    let before = written_bytes();
    half_works("process", "disk", 20);
    let written = written_bytes() - before;
    assert!(written > 10.0 * MIB, "{written} bytes reached disks");
}

const MIB: f64 = 1_048_576.0;

/// Bytes written by all disks of this host since its boot (`/proc/diskstats`, sectors of 512 bytes).
fn written_bytes() -> f64 {
    let disks = fs::read_to_string("/proc/diskstats").unwrap();
    let sectors = disks.lines().map(|line| {
        let field = line.split_whitespace().nth(9).unwrap();
        field.parse::<f64>().unwrap()
    });
    sectors.sum::<f64>() * 512.0
}

#[test(needs = [test_all("takes 24 s"), root()])]
fn some_containers_and_vms_work_and_the_others_answer() {
    for work in ["cpu", "disk", "network"] {
        let working = half_works("container", work, 4).idle.unwrap();
        assert!(
            working.core_percent > 0.1,
            "{work}: {}",
            working.core_percent
        );
    }
    let computing = half_works("qemu", "cpu", 4).idle.unwrap();
    assert!(computing.core_percent > 1.0, "{}", computing.core_percent);
    if let Err(reason) = Host::open() {
        skip_in_part(&reason.to_string());
    } else {
        let computing = half_works("mvm-live", "cpu", 20).idle.unwrap();
        assert!(computing.core_percent > 1.0, "{}", computing.core_percent);
    }
}

#[test(needs = [test_all("takes 25 s"), root()])]
fn guests_come_and_go_and_those_that_are_there_answer() {
    let cloudy = "cloud_seconds = 4\ncloud_life_seconds = 1\ncloud_load_percent = 150";
    for (platform, places) in [
        ("process", 20),
        ("thread", 20),
        ("container", 4),
        ("qemu", 4),
    ] {
        let plan = format!("kind = {platform:?}\nmaximum = {places}");
        let bench = Bench::new(cloudy, &plan);
        bench.change("intervals = 4", "intervals = 2");
        let climb = bench.climb();
        let cloud = climb.cloud.unwrap();
        assert_eq!(
            (cloud.places, &cloud.refused),
            (places, &None),
            "{platform}"
        );
        let came = cloud.arrivals - cloud.turned_away;
        assert!(cloud.departures > 0 && came > 0, "{platform}: {cloud:?}");
        assert_eq!(
            cloud.boot.unwrap().answered,
            came,
            "each that came has booted"
        );
        assert!(
            cloud.probe.answered > 0 && cloud.probe.failed == 0,
            "{cloud:?}"
        );
        let places = f64::from(places);
        assert!(cloud.mean_population > places / 4.0 && cloud.mean_population <= places);
        let left = climb.climb.last().unwrap().population + came - cloud.departures;
        let below: Vec<u32> = climb.descent.iter().map(|i| i.population).collect();
        assert!(
            below.iter().all(|population| *population < left),
            "{left}: {below:?}"
        );
        assert_eq!(below.last(), Some(&0));
        assert_eq!(bench.journal(), "", "nothing is left to undo");
        let report = fs::read_to_string(bench.results().join("report.html")).unwrap();
        assert!(report.contains("Guests that come and go"));
    }
}

#[test]
fn work_that_a_platform_cannot_do_is_refused() {
    let bench = Bench::new("", "kind = \"qemu\"\nwork = \"disk\"");
    let (success, printed) = bench.run_by(density());
    assert!(
        !success && printed.contains("\"none\", \"cpu\""),
        "{printed}"
    );
}

#[test(needs = [root(), micro_vms()])]
fn parked_micro_vms_are_climbed() {
    whole_climb("mvm-parked", 40);
}

#[test(needs = [root(), micro_vms()])]
fn live_micro_vms_are_climbed() {
    whole_climb("mvm-live", 40);
}

/// The condition that KVM can run micro VMs.
fn micro_vms() -> Need {
    Need::from(Host::open().map(drop).map_err(|reason| reason.to_string()))
}

/// `vtax density` with the programs of `folder` first in the host's search path.
fn with_programs_of(folder: &Path) -> Command {
    let script = r#"mount --bind "$1" /usr/local/sbin; shift; exec "$@""#;
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-c", script, "sh"]);
    command.arg(folder).args([VTAX, "density"]);
    command
}

/// Skips the test where no image exists that a stand-in for a VMM can boot.
fn needs_linux_guests() {
    use vtax_guest::image::{Recipe, cached, echo_guest};
    let guest = match cached(&Recipe::standard()) {
        Ok(Some(files)) => echo_guest(&files).map_err(|cause| cause.to_string()),
        Ok(None) => Err("there is no guest image: `vtax image build`".to_owned()),
        Err(cause) => Err(cause.to_string()),
    };
    if let Err(cause) = guest {
        skip!("{cause}");
    }
}

#[test(needs = [test_all("takes 14 s"), root(), kvm(), program("qemu-system-x86_64")])]
fn vmms_that_boot_linux_receive_all_they_need_and_their_guests_are_asked_one_by_one() {
    needs_linux_guests();
    for name in ["firecracker", "cloud-hypervisor"] {
        let programs = program(name, STAND_IN);
        let bench = Bench::new("", &format!("kind = {name:?}\nmaximum = 2"));
        let climb = bench.climb_by(with_programs_of(programs.path()));
        assert_eq!(
            (climb.guests(), climb.binding.clone()),
            (2, Binding::Maximum),
            "{name}: {}",
            climb.binding
        );
        let probes = climb.climb.iter().skip(1).map(|i| i.probe.unwrap());
        assert!(probes.clone().all(|probe| probe.failed == 0));
        assert_eq!(probes.map(|probe| probe.answered).sum::<u32>(), 10);
        assert_eq!(climb.descent.last().unwrap().population, 0);
        assert_eq!(bench.journal(), "", "nothing is left to undo");
    }
}

#[test(needs = [root(), kvm(), program("qemu-system-x86_64")])]
fn a_vmm_that_ends_before_its_guest_has_booted_is_quoted_and_kvm_named() {
    needs_linux_guests();
    for name in ["firecracker", "cloud-hypervisor"] {
        let programs = program(name, FAILS);
        let bench = Bench::new("", &format!("kind = {name:?}\nmaximum = 2"));
        let climb = bench.climb_by(with_programs_of(programs.path()));
        let words = climb.binding.to_string();
        assert!(
            words.contains(name)
                && words.contains("exit status: 2")
                && words.contains("Cannot create VM: not on this KVM")
                && words.contains("KVM is "),
            "{words}"
        );
        assert_eq!(climb.guests(), 0);
    }
}

#[test(needs = [root()])]
fn an_absent_vmm_is_named_or_left_out_when_the_plan_says_so() {
    if vtax_host::Roots::host().program("firecracker").is_some() {
        skip!("firecracker is installed here");
    }
    let bench = Bench::new("", "kind = \"firecracker\"\nmaximum = 2");
    let (success, printed) = bench.run_by(density());
    assert!(
        !success && printed.contains("program firecracker"),
        "{printed}"
    );
    assert!(!bench.results().exists());

    bench.change(
        "kind = \"firecracker\"",
        "kind = \"firecracker\"\nif_present = true\n[[platform]]\nkind = \"thread\"",
    );
    let (success, reported) = bench.run_by(density());
    assert!(
        success && reported.contains("firecracker is not installed here"),
        "{reported}"
    );
    assert_eq!(bench.record().platform, "thread");
}

fn with_128_descriptors() -> Command {
    let mut command = Command::new("prlimit");
    command.args(["--nofile=128:128", VTAX, "density"]);
    command
}

#[test(needs = [root()])]
fn more_guests_than_one_process_may_hold_are_spread_over_several() {
    let bench = Bench::new("", "kind = \"process\"\nmaximum = 100");
    // 128 descriptors leave a supervisor room for 64 guests, so there are two supervisors.
    let climb = bench.climb_by(with_128_descriptors());
    assert_eq!(
        (climb.guests(), climb.binding.clone()),
        (100, Binding::Maximum)
    );
    assert!(
        climb
            .climb
            .iter()
            .skip(1)
            .all(|i| i.probe.unwrap().failed == 0)
    );
}

#[test(needs = [root()])]
fn one_process_runs_out_of_descriptors_and_says_so() {
    let bench = Bench::new("one_process = true", "kind = \"process\"\nmaximum = 400");
    let climb = bench.climb_by(with_128_descriptors());
    let words = climb.binding.to_string();
    assert!(
        words.contains("file descriptors") || words.contains("Too many open files"),
        "{words}"
    );
    assert!(
        climb.guests() > 50 && climb.guests() < 128,
        "{}",
        climb.guests()
    );
    assert_eq!(bench.journal(), "");
}

#[test(needs = [root()])]
fn the_reserve_of_memory_is_kept_whatever_is_asked_for() {
    // Less memory is free than the reserve, so no guest may be made.
    let bench = Bench::new("reserve_percent = 99", "kind = \"process\"\nmaximum = 400");
    let climb = bench.climb();
    assert!(
        climb.binding.to_string().starts_with("memory at"),
        "{}",
        climb.binding
    );
    assert_eq!(climb.guests(), 0);
}

/// A control group with a limit on PIDs; removed when dropped.
struct FewPids(PathBuf);

impl FewPids {
    fn new(most: u32) -> Self {
        let folder =
            Path::new("/sys/fs/cgroup/pids").join(format!("density-test-{}", std::process::id()));
        if fs::create_dir(&folder).is_err() {
            skip!(
                "no control group for PIDs of its own (cgroup v1 is needed) in /sys/fs/cgroup/pids"
            );
        }
        let group = Self(folder);
        fs::write(group.0.join("pids.max"), most.to_string()).unwrap();
        group
    }
}

impl Drop for FewPids {
    fn drop(&mut self) {
        let _ = fs::remove_dir(&self.0);
    }
}

#[test(needs = [root()])]
fn no_pids_left_is_reported_in_the_kernels_words_and_leaves_nothing() {
    let few = FewPids::new(60);
    let bench = Bench::new("", "kind = \"process\"\nmaximum = 400");
    let mut command = Command::new("sh");
    command
        .args(["-c", "echo $$ > \"$0/cgroup.procs\" && exec \"$@\""])
        .arg(&few.0)
        .args([VTAX, "density"]);
    let climb = bench.climb_by(command);
    let words = climb.binding.to_string();
    assert!(
        words.contains("Resource temporarily unavailable") && words.contains("pid_max"),
        "{words}"
    );
    assert!(climb.guests() > 10, "{}", climb.guests());
    assert_eq!(bench.journal(), "");
}

#[test]
fn a_plan_that_this_host_cannot_run_is_refused_before_any_climb() {
    let bench = Bench::new("", "kind = \"qemu\"\nmachine = \"virt\"");
    let (success, printed) = bench.run_by(density());
    assert!(
        !success && printed.contains("\"pc\", \"q35\", \"isapc\""),
        "{printed}"
    );
    assert!(!bench.results().exists());
}

/// Starts a long climb and waits until guests are held. Returns its process and its output, which the caller has to
/// keep open.
fn long_climb(bench: &Bench) -> (Child, impl Iterator<Item = std::io::Result<String>>) {
    let mut command = density();
    bench.arguments(&mut command);
    let mut child = command
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let interval = lines.find(|line| line.as_ref().is_ok_and(|line| line.contains("\"sampled\"")));
    assert!(interval.is_some(), "the climb ended early");
    (child, lines)
}

fn await_end(what: &str, ended: impl Fn() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(20);
    while !ended() {
        assert!(Instant::now() < deadline, "{what}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[test(needs = [test_all("takes 3 s"), root()])]
fn kill_9_ends_every_guest_and_the_next_start_removes_the_rest() {
    // Some guests have processes of their own, which read no pipe of the supervisor.
    let plan = "kind = \"process\"\nwork = \"network\"\nmaximum = 60";
    let bench = Bench::new("", plan);
    bench.change("idle_seconds = 0.2", "idle_seconds = 60");
    let (mut child, _said) = long_climb(&bench);
    let groups = bench.groups();
    assert!(
        groups
            .iter()
            .map(|group| processes_in(group).len())
            .sum::<usize>()
            >= 15,
        "{groups:?}"
    );
    child.kill().unwrap();
    child.wait().unwrap();
    await_end("guests outlive kill -9", || {
        groups.iter().all(|group| processes_in(group).is_empty())
    });
    assert_ne!(
        bench.journal(),
        "",
        "what no process owns is still to be undone"
    );

    bench.change("idle_seconds = 60", "idle_seconds = 0.1");
    fs::remove_dir_all(bench.results()).unwrap();
    assert_eq!(bench.climb().guests(), 60);
    assert_eq!(bench.journal(), "");
    assert!(groups.iter().all(|group| !group.exists()), "{groups:?}");
}

#[test(needs = [root()])]
fn ctrl_c_ends_a_climb_in_order() {
    let bench = Bench::new("", "kind = \"process\"\nmaximum = 60");
    bench.change("idle_seconds = 0.2", "idle_seconds = 60");
    let (mut child, _said) = long_climb(&bench);
    let groups = bench.groups();
    let pid = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
    assert!(!child.wait().unwrap().success());
    assert_eq!(bench.journal(), "");
    assert!(groups.iter().all(|group| !group.exists()), "{groups:?}");
    let results = ResultsDir::open(&bench.results()).unwrap();
    assert_eq!(results.pending(), [0], "the climb is to be made again");
}

/// The supervisor process of a climb.
fn supervisor_in(groups: &[PathBuf]) -> Option<rustix::process::Pid> {
    let mut processes = groups.iter().flat_map(|group| processes_in(group));
    let supervisor = processes.find(|pid| {
        let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        line.split(|byte| *byte == 0)
            .any(|word| word == b"--supervise")
    })?;
    rustix::process::Pid::from_raw(supervisor)
}

#[test(needs = [test_all("takes 5 s"), root()])]
fn a_climb_that_fails_is_made_again_and_the_failure_is_kept() {
    let bench = Bench::new("", "kind = \"process\"\nmaximum = 60");
    bench.change("idle_seconds = 0.2", "idle_seconds = 2");
    bench.change("intervals = 4", "intervals = 2");
    bench.change("[density]", "again.share = 1\n[density]");
    let (mut child, printed) = long_climb(&bench);
    let supervisor = supervisor_in(&bench.groups()).expect("a supervisor");
    rustix::process::kill_process(supervisor, rustix::process::Signal::KILL).unwrap();
    let printed: Vec<String> = printed.map_while(Result::ok).collect();
    assert!(child.wait().unwrap().success(), "{printed:?}");
    assert!(
        printed
            .iter()
            .any(|line| line.contains("runs again: it failed")),
        "{printed:?}"
    );
    let climb = bench.record();
    assert_eq!((climb.guests(), climb.binding), (60, Binding::Maximum));
    let aside = bench.results().join("trials/0000.failed-1/trial.json");
    assert!(fs::read_to_string(aside).unwrap().contains("supervisor"));
    assert_eq!(bench.journal(), "");
}
