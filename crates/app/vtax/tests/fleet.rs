// SPDX-License-Identifier: Apache-2.0
//! Plans over many machines: a real Slurm of four nodes, one of which dies in the middle of a trial; machines behind an
//! ssh; and errors before the first trial.

use crate::support::work::{Work, shown, text, wait_for};
use crate::support::{can_run_trials, directories, finish, in_order};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
#[allow(dead_code, reason = "the state of the host is for tests of runs here")]
use vtax_testkit::skip;

const PLAN: &str = r#"
name = "small"
repetitions = 8
idle = "0s"
warmup = "100ms"
duration = "300ms"
sample_hz = 10

# Trials beside other work are suspect, and these tests count them.
[again]
share = 0

[[platform]]
kind = "native"
[[platform]]
kind = "container"
[[workload]]
kind = "idle"
"#;

/// A value of `PATH` with a directory of these scripts first.
fn path_with(work: &Work, scripts: &[(&str, &str)]) -> String {
    for (name, script) in scripts {
        work.script(name, script);
    }
    work.path_variable()
}

/// `vtax run` of the plan in a directory, on an engine.
fn run_on(work: &Work, engine: &str) -> Command {
    let mut command = work.run();
    command.arg("--fleet").arg(engine);
    command
}

fn analysis(work: &Work, results: &str) -> Value {
    let mut report = work.vtax();
    report.args(["report", "--json"]).arg(work.at(results));
    let out = finish(&mut report, true);
    serde_json::from_slice(&out.stdout).unwrap()
}

/// Checks that the merged results and their analysis have every trial, and each block on one machine.
fn is_whole(work: &Work, trials: u64) -> Value {
    let found = analysis(work, "results");
    assert_eq!(found["counts"]["pending"], 0, "{found}");
    assert_eq!(found["counts"]["failed"], 0, "{found}");
    assert_eq!(found["trials"].as_array().unwrap().len() as u64, trials);
    let of: Vec<u64> = found["fleet"]["blocks"]
        .as_array()
        .unwrap()
        .iter()
        .map(|blocks| blocks.as_u64().unwrap())
        .collect();
    assert_eq!(of.iter().sum::<u64>() * 2, trials, "{of:?}");
    found
}

/// Four Slurm nodes in namespaces of their own.
struct Cluster {
    unshare: Child,
    folder: tempfile::TempDir,
}

impl Cluster {
    fn start() -> Result<Self, String> {
        let found = |program: &str| {
            ["/usr/sbin", "/usr/bin", "/sbin", "/bin"]
                .iter()
                .any(|folder| Path::new(folder).join(program).exists())
        };
        let needed = [
            "slurmctld",
            "slurmd",
            "sbatch",
            "munged",
            "unshare",
            "nsenter",
            "ip",
        ];
        let missing: Vec<&str> = needed.into_iter().filter(|name| !found(name)).collect();
        if !missing.is_empty() {
            return Err(format!("programs are missing: {}", missing.join(", ")));
        }
        let folder = tempfile::tempdir().unwrap();
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/slurm/cluster");
        let mut unshare = Command::new("unshare")
            .args(["--mount", "--net", "--uts", "--"])
            .arg(script)
            .arg(folder.path())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        let out = unshare.stdout.take().unwrap();
        BufReader::new(out).read_line(&mut line).unwrap();
        let cluster = Self { unshare, folder };
        assert_eq!(line, "ready\n", "the cluster started");
        Ok(cluster)
    }

    /// A command on the machine that submits jobs.
    fn command(&self, program: &Path) -> Command {
        let mut command = Command::new("nsenter");
        command
            .args(["--mount", "--net", "--uts", "--target"])
            .arg(self.unshare.id().to_string())
            .arg("--")
            .arg(program)
            .env("SLURM_CONF", self.folder.path().join("slurm.conf"));
        command
    }

    fn boot(&self, node: &str) -> String {
        let file = self.folder.path().join(format!("boot-{node}"));
        fs::read_to_string(file).unwrap().trim().to_owned()
    }

    /// The processes in the cluster's network, with their command lines and environments.
    fn processes(&self) -> Vec<(i32, String, String)> {
        let space = |pid: &str| fs::read_link(format!("/proc/{pid}/ns/net")).ok();
        let own = space(&self.unshare.id().to_string());
        if own.is_none() || own == space("self") {
            return Vec::new();
        }
        let entries = fs::read_dir("/proc").unwrap().flatten();
        let read = |pid: &str, file: &str| {
            let bytes = fs::read(format!("/proc/{pid}/{file}")).unwrap_or_default();
            text(&bytes).replace('\0', " ")
        };
        entries
            .filter_map(|entry| entry.file_name().into_string().ok())
            .filter(|pid| pid.parse::<i32>().is_ok() && space(pid) == own)
            .map(|pid| {
                (
                    pid.parse().unwrap(),
                    read(&pid, "cmdline"),
                    read(&pid, "environ"),
                )
            })
            .collect()
    }

    /// Simulates a node that loses its power: all of its processes end at once.
    fn lose(&self, node: &str) {
        let daemon = format!("slurmd -D -N {node} ");
        let job = format!("SLURMD_NODENAME={node} ");
        let all = self.processes();
        let jobs = all
            .iter()
            .filter(|(_, _, environment)| environment.contains(&job));
        let steps = jobs.clone().filter_map(|(pid, ..)| {
            let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
            let parent = stat.rsplit_once(')')?.1.split_whitespace().nth(1)?;
            let parent: i32 = parent.parse().ok()?;
            let step = all.iter().find(|(pid, ..)| *pid == parent)?;
            step.1.contains("slurmstepd").then_some(parent)
        });
        let daemons = all
            .iter()
            .filter(|(_, command, _)| command.contains(&daemon));
        let doomed: Vec<i32> = daemons
            .map(|(pid, ..)| *pid)
            .chain(steps)
            .chain(jobs.map(|(pid, ..)| *pid))
            .collect();
        assert!(doomed.len() >= 3, "{node}: {doomed:?}");
        doomed.iter().copied().for_each(end);
        // The control groups of the node are on this host, and survive: they are removed here.
        let of_it = |path: &PathBuf| {
            let path = path.to_string_lossy();
            doomed
                .iter()
                .any(|pid| path.contains(&format!("/vtax-trial-{pid}-")))
        };
        let why = || "its trial's control groups are left".to_owned();
        wait_for(20, why, || {
            let groups = directories(Path::new("/sys/fs/cgroup"));
            let left: Vec<PathBuf> = groups.into_iter().filter(of_it).collect();
            for group in left.iter().rev() {
                // A group that still has a process is removed in a later attempt.
                let _ = fs::remove_dir(group);
            }
            left.is_empty().then_some(())
        });
    }
}

fn end(pid: i32) {
    if let Some(pid) = Pid::from_raw(pid) {
        let _ = kill_process(pid, Signal::KILL);
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        for (pid, ..) in self.processes() {
            end(pid);
        }
        let _ = self.unshare.kill();
        let _ = self.unshare.wait();
    }
}

/// A cluster; skips the test where this machine cannot be one.
fn a_cluster() -> Cluster {
    Cluster::start().unwrap_or_else(|reason| skip!("no Slurm to run on: {reason}"))
}

/// The command that runs the plan of a directory in 8 shards on a cluster.
fn submission(cluster: &Cluster, work: &Work) -> Command {
    let mut command = cluster.command(Path::new(env!("CARGO_BIN_EXE_vtax")));
    command
        .env("VTAX_STATE_DIR", work.at("state"))
        .arg("run")
        .arg(work.plan())
        .arg("--results")
        .arg(work.results())
        .args(["--fleet", "slurm:main", "--shards", "8"]);
    command
}

/// Runs the plan to its end; the node n2 dies in the middle of a trial.
fn run_and_lose_a_node(cluster: &Cluster, work: &Work, most: Duration) {
    let printed = work.at("printed");
    let mut follower = submission(cluster, work)
        .stdout(Stdio::null())
        .stderr(fs::File::create(&printed).unwrap())
        .spawn()
        .unwrap();
    let workdir = work.at("results.fleet");
    let boot = cluster.boot("n2");
    let on_it = |name: &str| -> Vec<PathBuf> {
        (1..=8)
            .map(|shard| {
                workdir
                    .join(format!("shard-{shard}"))
                    .join(&boot)
                    .join(name)
            })
            .filter(|path| path.exists())
            .collect()
    };
    let story = || fs::read_to_string(&printed).unwrap_or_default();
    wait_for(
        most.as_secs(),
        || "no trial came on n2".to_owned(),
        || {
            assert!(follower.try_wait().unwrap().is_none(), "{}", story());
            let trials = on_it("trials")
                .into_iter()
                .flat_map(|path| fs::read_dir(path).unwrap());
            let mut names = trials
                .flatten()
                .map(|entry| entry.file_name().into_string().unwrap());
            names.any(|name| name.contains(".partial-")).then_some(())
        },
    );
    cluster.lose("n2");
    // Slurm delays a requeued task for a while.
    let scontrol = Path::new("scontrol");
    let deadline = Instant::now() + most;
    let ended = loop {
        if let Some(ended) = follower.try_wait().unwrap() {
            break ended;
        }
        assert!(Instant::now() < deadline, "{}", story());
        let late = cluster
            .command(Path::new("squeue"))
            .args(["-h", "-r", "-t", "PD", "-o", "%A %r"])
            .output()
            .unwrap();
        for line in text(&late.stdout)
            .lines()
            .filter(|line| line.contains("BeginTime"))
        {
            let job = line.split(' ').next().unwrap();
            let soon = [
                "update".to_owned(),
                format!("JobId={job}"),
                "StartTime=now".to_owned(),
            ];
            cluster.command(scontrol).args(soon).output().unwrap();
        }
        std::thread::sleep(Duration::from_millis(500));
    };
    assert!(in_order(ended), "{}", story());
    assert!(story().contains("lost its machine n2"), "{}", story());
}

#[test(needs = [can_run_trials(), brought_by_test_all("slurmctld"), brought_by_test_all("slurmd")])]
fn slurm_loses_a_node_in_mid_trial_and_the_run_ends_whole() {
    let work = Work::alone(PLAN);
    let cluster = a_cluster();
    run_and_lose_a_node(&cluster, &work, Duration::from_secs(500));
    let found = is_whole(&work, 16);
    assert_eq!(found["place"], "slurm");
    let machines = found["fleet"]["machines"].as_u64().unwrap();
    assert!((3..=4).contains(&machines), "{found}");
    // The same command finds the run finished, and submits no job.
    let again = finish(&mut submission(&cluster, &work), true);
    assert!(!text(&again.stderr).contains("Slurm's job"), "{again:?}");
}

/// CPU time for each request, whose variation is small even beside other load.
const STEADY: &str = r#"
name = "steady"
repetitions = 80
warmup = "200ms"
duration = "1s"
sample_hz = 2
again = { share = 0 }
[[platform]]
kind = "native"
[[platform]]
kind = "container"
[[workload]]
kind = "http-rate"
rate = 1000
arrival = "constant"
"#;

/// One machine runs half of the blocks before the cluster runs all of them, and half after it, so that a steady drift
/// gives no difference.
#[test(needs = [by_name_only()])]
fn what_four_nodes_say_of_which_one_dies_one_machine_says_too() {
    let work = Work::alone(STEADY);
    let cluster = a_cluster();
    let at = |name: &str| work.at(name);
    let half = |half: &str| {
        finish(work.run_into("single").args(["--shard", half]), true);
    };
    half("1/2");
    run_and_lose_a_node(&cluster, &work, Duration::from_secs(3000));
    half("2/2");
    let fleet = is_whole(&work, 160);
    println!("{}", text(&fs::read(at("printed")).unwrap()));
    println!("blocks of each machine: {}", fleet["fleet"]["blocks"]);
    let mut compare = work.vtax();
    compare.arg("compare").args([at("single"), at("results")]);
    println!("{}", text(&finish(&mut compare, true).stdout));
    for (name, analysis) in [("single", &analysis(&work, "single")), ("fleet", &fleet)] {
        let taxes = analysis["comparisons"].as_array().unwrap().iter();
        for tax in taxes.filter(|tax| tax["metric"] == "cpu.per_work") {
            println!(
                "{name}: {}: {} {}",
                tax["treatment"], tax["tax"]["ratio"], tax["tax"]["interval"]
            );
        }
        println!("{name}: {}", analysis["counts"]);
    }
    let document = finish(compare.arg("--json"), true).stdout;
    let document: Value = serde_json::from_slice(&document).unwrap();
    let rows = document["others"][0]["comparisons"].as_array().unwrap();
    let rows = rows.iter().filter(|row| row["metric"] == "cpu.per_work");
    let differences: Vec<[f64; 3]> = rows
        .map(|row| {
            let parts = ["/interval/low", "/ratio", "/interval/high"];
            parts.map(|part| row["tax"].pointer(part).unwrap().as_f64().unwrap())
        })
        .collect();
    assert_eq!(differences.len(), 2);
    // By chance 1 of 20 such intervals misses the value.
    assert!(
        (differences.iter()).all(|[low, ratio, high]| {
            (*low..=*high).contains(&1.0) && ratio - low < 0.05 && high - ratio < 0.05
        }),
        "{differences:?}"
    );
}

/// A stand-in for ssh: it reaches this host by every name but two.
const SSH: &str = r#"
while [ "$1" != -- ]; do shift; done
host=$2
shift 2
case $host in
  refuses) echo "root@refuses: Permission denied (publickey)." >&2; exit 255 ;;
  dies) case "$*" in *"vtax run"*) exec timeout -s KILL 4 sh -c "$*" ;; esac ;;
esac
exec sh -c "$*"
"#;

#[test(needs = [test_all("takes 10 s"), can_run_trials()])]
fn machines_behind_ssh_share_the_shards_and_those_that_are_lost_are_left_out() {
    let work = Work::alone(&PLAN.replace("repetitions = 8", "repetitions = 4"));
    let path = path_with(&work, &[("ssh", SSH)]);
    let hosts = work.at("hosts.txt");
    fs::write(&hosts, "refuses\ndies # soon\nstays\n").unwrap();
    let engine = format!("ssh:{}", hosts.display());
    let out = finish(run_on(&work, &engine).env("PATH", &path), true);
    let printed = text(&out.stderr);
    assert!(printed.contains("Permission denied"), "{printed}");
    is_whole(&work, 8);
    what_is_merged_by_hand(&work);
    // Without any machine the run reports the reason, and existing results stay.
    fs::write(&hosts, "refuses\n").unwrap();
    let lost = Work::of(PLAN);
    let all = finish(run_on(&lost, &engine).env("PATH", &path), false);
    assert!(
        text(&all.stderr).contains("every machine is lost"),
        "{all:?}"
    );
}

/// `vtax merge` of the machines' results, intact and after several kinds of damage.
fn what_is_merged_by_hand(work: &Work) {
    let workdir = work.at("results.fleet");
    let shard = |number: u32| -> PathBuf {
        let parts = fs::read_dir(workdir.join(format!("shard-{number}"))).unwrap();
        parts.flatten().next().unwrap().path()
    };
    let shards: Vec<PathBuf> = (1..=4).map(shard).collect();
    let merge = |name: &str, from: &[&PathBuf], success: bool| {
        let mut command = work.vtax();
        command.arg("merge").args(from).arg("--results");
        shown(&finish(command.arg(work.at(name)), success))
    };
    let change = |of: &Path, file: &str, name: &str, value: &str| {
        let path = of.join(file);
        let before = fs::read(&path).unwrap();
        let mut json: Value = serde_json::from_slice(&before).unwrap();
        json[name] = value.into();
        fs::write(&path, json.to_string()).unwrap();
        before
    };
    let half = merge("half", &[&shards[0], &shards[1]], true);
    assert!(half.contains("4 not run yet"), "{half}");
    let rest = merge("half", &[&shards[2], &shards[3], &shards[3]], true);
    assert!(
        rest.contains("given twice") && !rest.contains("not run yet"),
        "{rest}"
    );
    let good = change(&shards[3], "run.json", "started", "2101-01-01T00:00:00Z");
    let ahead = merge("ahead", &[&shards[2], &shards[3]], true);
    assert!(ahead.contains("ahead of this one's"), "{ahead}");
    change(&shards[3], "run.json", "plan_sha256", "another");
    let strange = merge("strange", &[&shards[2], &shards[3]], false);
    assert!(strange.contains("another plan"), "{strange}");
    fs::write(shards[3].join("run.json"), good).unwrap();
    let good = change(&shards[3], "host.json", "vtax", "0.0.1");
    let version = merge("version", &[&shards[2], &shards[3]], false);
    assert!(version.contains("versions of vtax"), "{version}");
    fs::write(shards[3].join("host.json"), good).unwrap();
    change(&shards[3], "host.json", "kernel", "2.4.37");
    let kinds = merge("kinds", &[&shards[2], &shards[3]], true);
    assert!(kinds.contains("of 2 kinds (kernel: "), "{kinds}");
    assert!(!work.at("kinds").exists());
    for kind in ["kinds.kind-1", "kinds.kind-2"] {
        assert!(work.at(kind).join("report.html").exists(), "{kind}");
    }
}

#[test]
fn what_no_machine_could_run_is_refused_before_it_is_tried() {
    let work = Work::of(PLAN);
    let refused = |engine: &str, arguments: &[&str], path: &str, expected: &str| {
        let mut command = run_on(&work, engine);
        let out = finish(command.args(arguments).env("PATH", path), false);
        let printed = text(&out.stderr);
        assert!(printed.contains(expected), "{engine}: {printed}");
    };
    let path = std::env::var("PATH").unwrap();
    refused("nomad", &[], &path, "no engine");
    refused("slurm", &["--shards", "9"], &path, "9 shards of 8 blocks");
    refused("slurm", &["--shards", "0"], &path, "invalid value");
    refused("slurm", &["--place", "ssh:x"], &path, "leave --place out");
    refused("kubernetes", &[], &path, "--pod-image");
    let hosts = work.at("hosts.txt");
    fs::write(&hosts, "good\n-oProxyCommand=reboot\ngood\n").unwrap();
    let engine = format!("ssh:{}", hosts.display());
    refused(&engine, &["--shards", "8"], &path, "line 2");
    refused(
        &engine,
        &["--shards", "8"],
        &path,
        "line 3: good stands in line 1",
    );
    // A work directory belongs to one run.
    refused(
        &engine,
        &["--shards", "4"],
        &path,
        "belongs to a run with 8 shards, not 4",
    );
    let other = PLAN.replace("300ms", "400ms");
    fs::write(work.plan(), other).unwrap();
    refused(
        &engine,
        &["--shards", "8"],
        &path,
        "belongs to a run with another plan",
    );
}

#[test]
fn slurm_that_is_missing_or_rejects_the_job_is_reported_with_its_words() {
    let work = Work::of(PLAN);
    let nothing = work.at("nothing");
    fs::create_dir(&nothing).unwrap();
    let mut command = run_on(&work, "slurm");
    let out = finish(command.env("PATH", &nothing), false);
    let printed = text(&out.stderr);
    assert!(printed.contains("squeue, Slurm's is missing"), "{printed}");
    let words = "echo 'sbatch: error: invalid partition specified: gpu' >&2; exit 1";
    let path = path_with(&work, &[("squeue", "exit 0"), ("sbatch", words)]);
    let mut command = run_on(&work, "slurm:gpu");
    let out = finish(command.env("PATH", path), false);
    let printed = text(&out.stderr);
    assert!(
        printed.contains("invalid partition specified: gpu"),
        "{printed}"
    );
}

#[test]
fn kubernetes_gets_a_manifest_by_kubectl_or_in_print() {
    let work = Work::of(PLAN);
    let taken = work.at("taken.json");
    let keeps = format!("cat > {}", taken.display());
    let run = |path: &str, success: bool| {
        let mut command = run_on(&work, "kubernetes");
        command
            .args(["--pod-image", "registry.example/vtax"])
            .env("PATH", path);
        finish(&mut command, success)
    };
    let path = path_with(&work, &[("kubectl", &keeps)]);
    let out = run(&path, true);
    assert!(text(&out.stdout).contains("vtax merge"), "{out:?}");
    let manifest: Value = serde_json::from_slice(&fs::read(&taken).unwrap()).unwrap();
    assert_eq!(manifest["items"][1]["spec"]["completions"], 8);
    let path = path_with(
        &work,
        &[("kubectl", "echo 'connection refused' >&2; exit 1")],
    );
    let out = run(&path, false);
    assert!(text(&out.stderr).contains("connection refused"), "{out:?}");
    let nothing = work.at("nothing");
    fs::create_dir(&nothing).unwrap();
    let out = run(&nothing.display().to_string(), true);
    let printed: Value = serde_json::from_slice(&out.stdout).unwrap();
    assert_eq!(printed, manifest);
}
