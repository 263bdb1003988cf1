//! Every workload and the HTTP load generator, run for real on this host.
//!
//! The target and the client share one set of namespaces with nothing but a loopback device and
//! an empty `/tmp`, which the kernel removes with the process that holds them. The harness is
//! `libtest-mimic`, because this program is also the load generator that workloads start.

#![allow(clippy::unwrap_used, clippy::panic, reason = "tests fail by panicking")]

use clap::Parser;
use libtest_mimic::{Arguments as HarnessArguments, Failed, Trial};
use std::collections::{BTreeMap, HashMap};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};
use vtax_core::Source;
use vtax_guest::platform::{CommandLine, Finished, Job, Target};
use vtax_host::HostError;
use vtax_host::cell::ClientProcess;
use vtax_host::settings::{Level, Settings};
use vtax_load::workload::{
    Load, LoadClient, Running, Timing, WorkDone, Workload, WorkloadResult, by_kind,
};
use vtax_load::{generator, http, memcached};
use vtax_observe::Subject;

/// The load generators, as `vtax load` has them.
#[derive(Parser)]
#[command(no_binary_name = true)]
enum LoadCommand {
    Http(http::Arguments),
    Memcached(memcached::Arguments),
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().collect();
    if arguments.get(1).is_some_and(|word| word == "load") {
        let outcome = match LoadCommand::parse_from(arguments.into_iter().skip(2)) {
            LoadCommand::Http(arguments) => http::main(&arguments),
            LoadCommand::Memcached(arguments) => memcached::main(&arguments),
        };
        return match outcome {
            Ok(()) => ExitCode::SUCCESS,
            Err(cause) => {
                eprintln!("{cause}");
                ExitCode::FAILURE
            }
        };
    }
    macro_rules! named {
        ($($test:ident),* $(,)?) => { vec![$((stringify!($test), $test as fn())),*] };
    }
    let tests = named![
        idle_takes_its_time_and_counts_seconds,
        iperf3_receive_measures_tcp_into_the_target,
        iperf3_send_holds_a_fixed_rate_over_several_streams,
        iperf3_udp_measures_jitter_and_loss_both_ways,
        nuttcp_sends_either_way_after_a_warm_up,
        tbench_measures_throughput_after_its_warm_up,
        cpu_reports_operations_for_a_duration_and_to_completion,
        a_service_that_dies_in_mid_trial_is_named_as_the_cause,
        a_stall_of_the_server_shows_in_every_request_that_was_due_meanwhile,
        a_ramp_gives_each_rate_a_window_and_keeps_their_backlogs_apart,
        a_saturated_server_shows_as_unanswered_requests_and_growing_latency,
        constant_load_sends_exactly_what_was_due,
        a_refusing_server_is_errors_in_open_loop_and_an_error_in_closed_loop,
        a_load_generator_without_one_answer_exits_with_1_and_one_line,
        an_error_status_is_counted_in_open_loop_and_ends_closed_loop,
        a_body_that_ends_early_is_a_failed_download,
        a_server_that_speaks_something_else_is_reported,
        a_server_that_goes_silent_is_given_up,
        a_kept_connection_that_the_server_closes_is_replaced_without_an_error,
        a_server_that_closes_after_each_answer_is_connected_to_again,
    ];
    // These need programs that `scripts/setup test` installs: `make test-all`.
    let need_more = named![
        iperf3_udp_counts_what_was_dropped_after_the_warm_up_and_nothing_else,
        http_download_to_completion_moves_every_byte_that_was_asked_for,
        http_download_for_a_duration_repeats_and_reports_a_rate,
        http_rate_reports_percentiles_of_every_request_that_was_due,
        http_rate_goes_through_a_ramp_in_one_process,
        memcached_answers_every_request_that_was_due_and_misses_none,
        sysbench_oltp_commits_transactions_at_a_rate,
        sip_calls_are_answered_with_sound,
        http_closed_serves_as_fast_as_it_is_asked,
        http_batch_ends_with_its_last_answer,
        hping3_hears_of_every_connection_that_it_asked_for,
        a_flood_reaches_the_server_and_nobody_else,
        board_serves_pages_made_of_stories,
        stress_ng_counts_what_each_stressor_did,
        disk_read_works_raw_and_through_a_file_system,
        a_service_that_cannot_start_is_an_error_with_what_it_said,
    ];
    let runnable = |is_ignored: bool| {
        move |(name, test): (&'static str, fn())| {
            let run = move || {
                test();
                Ok::<(), Failed>(())
            };
            Trial::test(name, run).with_ignored_flag(is_ignored)
        }
    };
    let trials = tests.into_iter().map(runnable(false));
    let trials = trials.chain(need_more.into_iter().map(runnable(true)));
    libtest_mimic::run(&HarnessArguments::from_args(), trials.collect()).exit_code()
}

// A target and a client on this host.

/// Namespaces held by one process, and the commands that run in them.
struct Host {
    holder: Child,
    inside: String,
    jobs: HashMap<u64, Child>,
    /// So many times more, a job that is over looks as if it ran.
    late: u32,
}

impl Host {
    /// `None`, said loudly, where this host cannot have one or lacks a program.
    fn new(programs: &[&str]) -> Option<Self> {
        for program in ["unshare", "nsenter", "setpriv", "ip"]
            .iter()
            .chain(programs)
        {
            let found = std::env::var_os("PATH").is_some_and(|path| {
                std::env::split_paths(&path).any(|directory| directory.join(program).exists())
            });
            if !found {
                eprintln!("SKIPPED: the program {program} is missing");
                return None;
            }
        }
        // The host's /proc still shows the PID by which others can enter.
        let script = "read -r pid rest < /proc/self/stat && mount -t tmpfs tmpfs /tmp && ip link set lo up \
                      && echo \"$pid\" && exec sleep infinity";
        let mut holder = Command::new("setpriv")
            .args([
                "--pdeathsig",
                "KILL",
                "unshare",
                "--mount",
                "--net",
                "--pid",
                "--fork",
                "--kill-child",
            ])
            .args(["sh", "-c", script])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut inside = String::new();
        BufReader::new(holder.stdout.take().unwrap())
            .read_line(&mut inside)
            .unwrap();
        if inside.trim().is_empty() {
            let _ = holder.kill();
            let _ = holder.wait();
            eprintln!("SKIPPED: this user may not create namespaces");
            return None;
        }
        Some(Self {
            holder,
            inside: inside.trim().to_owned(),
            jobs: HashMap::new(),
            late: 0,
        })
    }

    fn client(&self) -> LocalClient {
        LocalClient {
            inside: self.inside.clone(),
        }
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        let _ = self.holder.kill();
        let _ = self.holder.wait();
        for child in self.jobs.values_mut() {
            let _ = child.wait();
        }
    }
}

fn spawn_inside(inside: &str, namespaces: &[&str], line: &CommandLine) -> Result<Child, HostError> {
    Command::new("nsenter")
        .args(["--target", inside])
        .args(namespaces)
        .arg("--")
        .args(line)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(HostError::file("run", "nsenter"))
}

impl Target for Host {
    fn address(&self) -> IpAddr {
        Ipv4Addr::LOCALHOST.into()
    }

    fn subject(&self) -> Subject {
        unimplemented!("no workload asks for it")
    }

    fn source(&self) -> Source {
        Source::Measured
    }

    fn environment(&self) -> BTreeMap<String, String> {
        BTreeMap::new()
    }

    fn scratch(&self) -> (PathBuf, PathBuf) {
        // A file stands for the device: fio reads both alike, and neither needs a mount.
        ("/tmp/vtax-disk-read".into(), "/tmp".into())
    }

    fn start(&mut self, command: &CommandLine) -> Result<Job, HostError> {
        let child = spawn_inside(&self.inside, &["--mount", "--net", "--pid"], command)?;
        let job = child.id().into();
        self.jobs.insert(job, child);
        Ok(Job(job))
    }

    fn poll(&mut self, job: Job) -> Result<Option<Finished>, HostError> {
        if let Some(late) = self.late.checked_sub(1) {
            self.late = late;
            return Ok(None);
        }
        let child = self.jobs.get_mut(&job.0).unwrap();
        let Some(status) = child.try_wait().unwrap() else {
            return Ok(None);
        };
        let (mut stdout, mut stderr) = (Vec::new(), Vec::new());
        child
            .stdout
            .take()
            .unwrap()
            .read_to_end(&mut stdout)
            .unwrap();
        child
            .stderr
            .take()
            .unwrap()
            .read_to_end(&mut stderr)
            .unwrap();
        let code = status
            .code()
            .unwrap_or_else(|| 128 + status.signal().unwrap());
        Ok(Some(Finished {
            code,
            stdout,
            stderr,
        }))
    }

    fn inner_counters(&mut self) -> Result<BTreeMap<String, f64>, HostError> {
        Ok(BTreeMap::new())
    }

    fn console_tail(&self) -> String {
        String::new()
    }

    fn stop(self: Box<Self>) -> Result<(), HostError> {
        Ok(())
    }
}

/// Sees the host's files, where this program is, as clients in a cell do.
struct LocalClient {
    inside: String,
}

impl LoadClient for LocalClient {
    fn start(&self, line: &CommandLine) -> Result<Box<dyn Running>, HostError> {
        let child = spawn_inside(&self.inside, &["--net", "--pid"], line)?;
        Ok(Box::new(ClientProcess::new(child)))
    }

    fn tells_lines(&self) -> bool {
        true
    }

    fn can_connect(&self, address: IpAddr, port: u16) -> Result<bool, HostError> {
        let script = format!("exec 3<>/dev/tcp/{address}/{port}");
        let line = ["bash", "-c", &script].map(str::to_owned).to_vec();
        let mut child = spawn_inside(&self.inside, &["--net", "--pid"], &line)?;
        Ok(child.wait().unwrap().success())
    }
}

fn settings<const N: usize>(levels: [(&str, Level); N]) -> Settings {
    levels.into_iter().collect()
}

fn text(word: &str) -> Level {
    Level::Text(word.to_owned())
}

const TIMING: Timing = Timing {
    warmup: Duration::from_millis(500),
    duration: Duration::from_millis(1000),
};

/// Drives a workload as the lab does, up to what the driver printed.
fn drive(
    host: &mut Host,
    workload: &dyn Workload,
    settings: &Settings,
) -> Result<Vec<u8>, HostError> {
    let client = host.client();
    let service = workload.serve(host, &client, settings)?;
    let mut load = workload.drive(host, &client, service, settings, TIMING)?;
    wait(host, load.as_mut())
}

/// Waits until a load or its level ends; what it printed.
fn wait(host: &mut Host, load: &mut dyn Load) -> Result<Vec<u8>, HostError> {
    loop {
        if let Some(raw) = load.poll(host)? {
            return Ok(raw);
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Runs a workload to its result; `None` where it was skipped.
fn run(kind: &str, programs: &[&str], settings: &Settings) -> Option<WorkloadResult> {
    let mut host = Host::new(programs)?;
    let workload = by_kind(kind).unwrap();
    let raw =
        drive(&mut host, workload, settings).unwrap_or_else(|cause| panic!("{kind}: {cause}"));
    let result = workload.parse(&raw, settings, TIMING);
    Some(
        result.unwrap_or_else(|cause| panic!("{kind}: {cause}\n{}", String::from_utf8_lossy(&raw))),
    )
}

fn value(result: &WorkloadResult, name: &str) -> f64 {
    result
        .metrics
        .get(name)
        .unwrap_or_else(|| panic!("no {name}: {result:?}"))
        .quantity
        .value
}

fn rate(result: &WorkloadResult) -> f64 {
    match &result.work {
        Some(WorkDone::Rate(work)) => work.amount,
        other => panic!("not a rate: {other:?}"),
    }
}

fn total(result: &WorkloadResult) -> f64 {
    match &result.work {
        Some(WorkDone::Total(work)) => work.amount,
        other => panic!("not a total: {other:?}"),
    }
}

// The workloads.

fn idle_takes_its_time_and_counts_seconds() {
    let begun = Instant::now();
    let Some(result) = run("idle", &[], &Settings::default()) else {
        return;
    };
    assert!(begun.elapsed() >= TIMING.warmup + TIMING.duration);
    assert_eq!(rate(&result), 1.0);
}

fn iperf3_receive_measures_tcp_into_the_target() {
    let Some(result) = run("iperf3-receive", &["iperf3"], &Settings::default()) else {
        return;
    };
    assert!(value(&result, "throughput") > 0.0);
    assert!((rate(&result) * 8e9 - value(&result, "throughput")).abs() <= 1.0);
    assert!(value(&result, "retransmits") >= 0.0);
}

fn iperf3_send_holds_a_fixed_rate_over_several_streams() {
    let settings = settings([
        ("load.rate_mbit", Level::Number(40.0)),
        ("load.streams", Level::Integer(4)),
        ("load.length", Level::Integer(8192)),
        ("load.window", Level::Integer(65536)),
    ]);
    let Some(result) = run("iperf3-send", &["iperf3"], &settings) else {
        return;
    };
    // The total is held over all streams, not by each; bursts may exceed it a little.
    let throughput = value(&result, "throughput");
    assert!(throughput > 0.0 && throughput < 80e6, "{throughput}");
}

fn iperf3_udp_measures_jitter_and_loss_both_ways() {
    for direction in ["receive", "send"] {
        let settings = settings([
            ("load.rate_mbit", Level::Number(20.0)),
            ("load.direction", text(direction)),
        ]);
        let Some(result) = run("iperf3-udp", &["iperf3"], &settings) else {
            return;
        };
        assert!((0.0..=100.0).contains(&value(&result, "loss")));
        assert!(value(&result, "jitter") >= 0.0);
        assert!(value(&result, "out_of_order") >= 0.0, "{direction}");
        assert!(value(&result, "packets") > 0.0);
    }
}

fn iperf3_udp_counts_what_was_dropped_after_the_warm_up_and_nothing_else() {
    for direction in ["receive", "send"] {
        let Some(mut host) = Host::new(&["iperf3", "iptables"]) else {
            return;
        };
        // Every fourth datagram of the data, but none of the handshake.
        let rule = "iptables -A INPUT -p udp -m length --length 1000:2000 -m statistic --mode nth --every 4 --packet 0 -j DROP";
        let rule = rule.split(' ').map(str::to_owned).collect();
        let set = spawn_inside(&host.inside, &["--net"], &rule).unwrap();
        let set = set.wait_with_output().unwrap();
        if !set.status.success() {
            let cause = String::from_utf8_lossy(&set.stderr);
            eprintln!("SKIPPED: iptables cannot drop datagrams here: {cause}");
            return;
        }
        let settings = settings([
            ("load.rate_mbit", Level::Number(20.0)),
            ("load.direction", text(direction)),
        ]);
        let workload = by_kind("iperf3-udp").unwrap();
        let raw = drive(&mut host, workload, &settings).unwrap();
        let loss = value(&workload.parse(&raw, &settings, TIMING).unwrap(), "loss");
        assert!((24.0..26.0).contains(&loss), "{direction}: {loss}");
    }
}

fn http_download_to_completion_moves_every_byte_that_was_asked_for() {
    let settings = settings([
        ("load.connections", Level::Integer(10)),
        ("load.file_mb", Level::Integer(3)),
    ]);
    let Some(result) = run("http-download", &["apache2"], &settings) else {
        return;
    };
    assert_eq!(total(&result), 0.03);
    assert!(value(&result, "elapsed") > 0.0);
}

fn http_download_for_a_duration_repeats_and_reports_a_rate() {
    let settings = settings([
        ("load.connections", Level::Integer(10)),
        ("load.file_mb", Level::Integer(1)),
        ("load.extent", text("duration")),
    ]);
    let Some(result) = run("http-download", &["apache2"], &settings) else {
        return;
    };
    assert!(rate(&result) > 0.0);
    assert!(!result.metrics.contains_key("elapsed"));
}

fn http_rate_reports_percentiles_of_every_request_that_was_due() {
    for arrival in ["constant", "poisson"] {
        let settings = settings([
            ("load.rate", Level::Number(200.0)),
            ("load.arrival", text(arrival)),
        ]);
        let Some(result) = run("http-rate", &["apache2"], &settings) else {
            return;
        };
        let percentiles = [
            "latency.p50",
            "latency.p90",
            "latency.p99",
            "latency.p999",
            "latency.max",
        ];
        let values: Vec<f64> = percentiles
            .iter()
            .map(|name| value(&result, name))
            .collect();
        assert!(values.is_sorted() && values[0] > 0.0, "{values:?}");
        assert_eq!(value(&result, "errors"), 0.0);
        assert_eq!(rate(&result), value(&result, "rate"));
        let (name, histogram) = &result.histograms[0];
        let p99 = histogram.value_at_quantile(0.99) as f64 / 1e9;
        assert_eq!((name.as_str(), p99), ("latency", values[2]));
    }
}

fn http_rate_goes_through_a_ramp_in_one_process() {
    let Some(mut host) = Host::new(&["apache2"]) else {
        return;
    };
    let (client, workload) = (host.client(), by_kind("http-rate").unwrap());
    // At the first rate the last request is due half a second before the window ends.
    let rates = [2.0, 200.0, 100.0];
    let levels = rates.map(|rate| {
        settings([
            ("load.rate", Level::Number(rate)),
            ("load.arrival", text("constant")),
        ])
    });
    let service = workload.serve(&mut host, &client, &levels[0]).unwrap();
    let settle = Duration::from_millis(200);
    let load = workload.drive_ramp(&mut host, &client, service, &levels, TIMING, settle);
    let mut load = load.unwrap().unwrap();
    let mut began = load.level_began().unwrap();
    for (rate, level) in rates.iter().zip(&levels) {
        let raw = wait(&mut host, load.as_mut()).unwrap();
        // As if this level's load had been started alone.
        let result = workload.parse(&raw, level, TIMING).unwrap();
        // In a second, but for what is under way when it begins and ends.
        let found = self::rate(&result);
        assert!((found - rate).abs() <= 0.05 * rate, "{found}");
        assert_eq!(result.histograms.len(), 1);
        let ended = load.level_began().unwrap();
        let warmup = if *rate == rates[0] {
            TIMING.warmup
        } else {
            settle
        };
        // The lines are seen a little after they were printed.
        let late = Duration::from_millis(50);
        assert!(ended - began + late >= warmup + TIMING.duration, "{rate}");
        began = ended;
    }
    let idle = by_kind("idle").unwrap();
    let none = idle.drive_ramp(&mut host, &client, service, &levels, TIMING, settle);
    assert!(none.unwrap().is_none());
}

fn memcached_answers_every_request_that_was_due_and_misses_none() {
    let settings = settings([
        ("load.rate", Level::Number(500.0)),
        ("load.set_percent", Level::Number(20.0)),
        ("load.keys", Level::Integer(1000)),
        ("load.value_bytes", Level::Integer(5000)),
        // Fewer than memcached counts as its own.
        ("load.connections", Level::Integer(4)),
    ]);
    let Some(result) = run("memcached", &["memcached"], &settings) else {
        return;
    };
    assert_eq!(value(&result, "errors"), 0.0, "{result:?}");
    assert_eq!(rate(&result), value(&result, "rate"));
    assert!(value(&result, "latency.p50") <= value(&result, "latency.p99"));
    // Four in five answers carry a value.
    let each = value(&result, "throughput") / 8.0 / rate(&result);
    assert!((3000.0..5000.0).contains(&each), "{each}");
}

fn nuttcp_sends_either_way_after_a_warm_up() {
    for direction in ["receive", "send"] {
        let settings = settings([("load.direction", Level::Text(direction.to_owned()))]);
        let Some(result) = run("nuttcp", &["nuttcp"], &settings) else {
            return;
        };
        // Nothing shapes the link, which bears gigabits.
        let throughput = value(&result, "throughput");
        assert!(throughput > 100e6, "{direction}: {result:?}");
    }
}

fn tbench_measures_throughput_after_its_warm_up() {
    let settings = settings([("load.clients", Level::Integer(2))]);
    let Some(result) = run("tbench", &["tbench", "tbench_srv"], &settings) else {
        return;
    };
    // Gigabits and bits: one of them was scaled, which rounds.
    let ratio = rate(&result) * 1e9 / value(&result, "throughput");
    assert!((ratio - 1.0).abs() < 1e-12, "{ratio}");
    assert!(value(&result, "latency.mean") <= value(&result, "latency.max"));
}

fn sysbench_oltp_commits_transactions_at_a_rate() {
    let settings = settings([
        ("load.rate", Level::Integer(20)),
        ("load.threads", Level::Integer(2)),
        ("load.rows", Level::Integer(100)),
    ]);
    let Some(result) = run("sysbench-oltp", &["sysbench", "mariadbd"], &settings) else {
        return;
    };
    assert!(rate(&result) > 0.0);
    let (p50, p99) = (value(&result, "latency.p50"), value(&result, "latency.p99"));
    assert!(p50 > 0.0 && p50 <= p99, "{result:?}");
    assert!(!result.histograms[0].1.is_empty());
}

fn sip_calls_are_answered_with_sound() {
    let settings = settings([
        ("load.rate", Level::Number(10.0)),
        ("load.hold_ms", Level::Integer(200)),
    ]);
    let Some(result) = run("sip", &["kamailio", "sipp"], &settings) else {
        return;
    };
    assert!((8.0..12.0).contains(&rate(&result)), "{result:?}");
    assert_eq!(value(&result, "errors"), 0.0, "{result:?}");
    assert!(value(&result, "latency.p50") <= value(&result, "latency.p99"));
    assert!(value(&result, "calls.current") >= 2.0, "{result:?}");
}

fn http_closed_serves_as_fast_as_it_is_asked() {
    let settings = settings([
        ("load.connections", Level::Integer(4)),
        ("load.file_bytes", Level::Integer(2000)),
    ]);
    let Some(result) = run("http-closed", &["apache2"], &settings) else {
        return;
    };
    let each = value(&result, "throughput") / 8.0 / rate(&result);
    assert!((1900.0..2100.0).contains(&each), "{result:?}");
    // Four clients who wait for their answers, by Little's law, but for what happens between two requests.
    let at_once = rate(&result) * value(&result, "latency.mean");
    assert!((1.0..=4.1).contains(&at_once), "{result:?}");
}

fn http_batch_ends_with_its_last_answer() {
    let settings = settings([
        ("load.requests", Level::Integer(200)),
        ("load.rate", Level::Number(400.0)),
    ]);
    let Some(result) = run("http-batch", &["apache2"], &settings) else {
        return;
    };
    assert_eq!(total(&result), 200.0);
    // The last one is due 2.5 ms before the half second is over.
    assert!(value(&result, "elapsed") > 0.49, "{result:?}");
}

fn hping3_hears_of_every_connection_that_it_asked_for() {
    let settings = settings([
        ("load.requests", Level::Integer(300)),
        ("load.rate", Level::Number(1000.0)),
    ]);
    let Some(result) = run("hping3", &["apache2", "hping3"], &settings) else {
        return;
    };
    assert_eq!(total(&result), 300.0);
    assert!(value(&result, "elapsed") > 0.2, "{result:?}");
}

fn a_flood_reaches_the_server_and_nobody_else() {
    let Some(mut host) = Host::new(&["apache2", "hping3"]) else {
        return;
    };
    // A way out, which whatever is addressed elsewhere takes.
    let way_out = "ip link add out type veth peer name far && \
        echo 1 >/proc/sys/net/ipv6/conf/out/disable_ipv6 && echo 1 >/proc/sys/net/ipv6/conf/far/disable_ipv6 && \
        ip addr add 10.99.0.1/24 dev out && ip link set out up && ip link set far up && \
        ip route add default via 10.99.0.2 dev out && ip neigh add 10.99.0.2 lladdr 02:00:00:00:00:01 dev out";
    let way_out = ["sh", "-c", way_out].map(str::to_owned).to_vec();
    let prepared = host.run(&way_out, Duration::from_secs(10)).unwrap();
    assert_eq!(prepared.code, 0, "{prepared:?}");
    let settings = settings([
        ("load.requests", Level::Integer(100)),
        ("load.rate", Level::Number(200.0)),
    ]);
    let workload = by_kind("http-flood").unwrap();
    let raw = drive(&mut host, workload, &settings).unwrap();
    let result = workload.parse(&raw, &Settings::default(), TIMING).unwrap();
    assert!(value(&result, "elapsed") > 0.4, "{result:?}");
    let sent = |host: &mut Host, device: &str| -> u64 {
        let show = ["ip", "-s", "link", "show", device]
            .map(str::to_owned)
            .to_vec();
        let shown = host.run(&show, Duration::from_secs(10)).unwrap().stdout;
        let shown = String::from_utf8(shown).unwrap();
        // The line below the heading `TX:`: bytes, packets.
        let last = shown
            .lines()
            .last()
            .and_then(|line| line.split_whitespace().nth(1));
        last.unwrap().parse().unwrap()
    };
    assert_eq!(sent(&mut host, "out"), 0, "something left");
    assert!(sent(&mut host, "lo") > 1_000, "no flood");
    let stray = ["bash", "-c", "echo >/dev/udp/192.0.2.1/9"]
        .map(str::to_owned)
        .to_vec();
    host.run(&stray, Duration::from_secs(10)).unwrap();
    assert_eq!(sent(&mut host, "out"), 1, "the way out counts nothing");
}

fn board_serves_pages_made_of_stories() {
    let settings = settings([
        ("load.requests", Level::Integer(500)),
        ("load.connections", Level::Integer(10)),
        ("load.stories", Level::Integer(100)),
    ]);
    let programs = ["apache2", "php-fpm8.2", "mariadbd"];
    let Some(result) = run("board", &programs, &settings) else {
        return;
    };
    assert_eq!(total(&result), 500.0);
    assert!(value(&result, "latency.p50") <= value(&result, "latency.max"));
}

fn cpu_reports_operations_for_a_duration_and_to_completion() {
    let two = || ("load.threads", Level::Integer(2));
    let Some(result) = run("cpu", &["bash"], &settings([two()])) else {
        return;
    };
    assert!(rate(&result) > 0.0);
    assert!(value(&result, "cpu.inside_per_work") > 0.0);
    let completion = settings([
        two(),
        ("load.extent", text("completion")),
        ("load.operations", Level::Integer(3)),
    ]);
    let Some(result) = run("cpu", &["bash"], &completion) else {
        return;
    };
    assert_eq!(total(&result), 6.0);
}

fn stress_ng_counts_what_each_stressor_did() {
    for stressor in ["cpu", "stream", "switch"] {
        let settings = settings([
            ("load.stressor", text(stressor)),
            ("load.workers", Level::Integer(2)),
        ]);
        let Some(result) = run("stress-ng", &["stress-ng"], &settings) else {
            return;
        };
        assert!(rate(&result) > 0.0, "{stressor}: {result:?}");
        assert!(value(&result, "cpu.inside_per_work") > 0.0, "{stressor}");
    }
}

fn disk_read_works_raw_and_through_a_file_system() {
    let size = || ("load.size_mib", Level::Integer(8));
    for (access, pattern) in [("file", "random"), ("raw", "sequential")] {
        let settings = settings([
            size(),
            ("load.access", text(access)),
            ("load.pattern", text(pattern)),
            // A tmpfs takes O_DIRECT only since Linux 6.6.
            ("load.direct", Level::Bool(false)),
        ]);
        let Some(result) = run("disk-read", &["fio"], &settings) else {
            return;
        };
        assert!(rate(&result) > 0.0);
        assert!(value(&result, "latency.p50") <= value(&result, "latency.max"));
    }
    let limited = settings([
        size(),
        ("load.rate_mb", Level::Number(4.0)),
        ("load.block_bytes", Level::Integer(65_536)),
        ("load.direct", Level::Bool(false)),
    ]);
    let Some(result) = run("disk-read", &["fio"], &limited) else {
        return;
    };
    // GB a second; a block more or less in a short trial is a good part of it.
    assert!((0.002..0.006).contains(&rate(&result)), "{}", rate(&result));
    let completion = settings([
        size(),
        ("load.extent", text("completion")),
        ("load.direct", Level::Bool(false)),
    ]);
    let Some(result) = run("disk-read", &["fio"], &completion) else {
        return;
    };
    assert_eq!(total(&result), 8.0 * 1_048_576.0 / 1e9);
}

fn a_service_that_dies_in_mid_trial_is_named_as_the_cause() {
    let Some(mut host) = Host::new(&["iperf3", "pkill"]) else {
        return;
    };
    let workload = by_kind("iperf3-receive").unwrap();
    let settings = Settings::default();
    let client = host.client();
    let service = workload.serve(&mut host, &client, &settings).unwrap();
    // Longer than the kill may take.
    let timing = Timing {
        duration: Duration::from_secs(60),
        ..TIMING
    };
    let mut load = workload
        .drive(&mut host, &client, service, &settings, timing)
        .unwrap();
    let (job, _) = service.job.unwrap();
    assert!(host.poll(job).unwrap().is_none());
    // nsenter waits for the service, its only child.
    let kill = Command::new("pkill")
        .args(["-KILL", "--parent", &job.0.to_string()])
        .status()
        .unwrap();
    assert!(kill.success());
    // The generator's end is seen before the service's.
    host.late = 3;
    let message = loop {
        match load.poll(&mut host) {
            Ok(None) => std::thread::sleep(Duration::from_millis(10)),
            Ok(Some(raw)) => panic!("no error: {}", String::from_utf8_lossy(&raw)),
            Err(cause) => break cause.to_string(),
        }
    };
    assert!(message.contains("iperf3 in the target"), "{message}");
    assert!(
        message.contains("ended during the trial, killed by signal 9"),
        "{message}"
    );
}

fn a_service_that_cannot_start_is_an_error_with_what_it_said() {
    let Some(mut host) = Host::new(&["iperf3", "apache2"]) else {
        return;
    };
    // A file in the way of the directory of Apache's content.
    let block = ["touch", "/tmp/vtax-http"].map(str::to_owned).to_vec();
    assert_eq!(host.run(&block, Duration::from_secs(10)).unwrap().code, 0);
    let client = host.client();
    let workload = by_kind("http-rate").unwrap();
    let message = workload
        .serve(&mut host, &client, &Settings::default())
        .unwrap_err()
        .to_string();
    assert!(
        message.contains("/tmp/vtax-http") && message.contains("mkdir"),
        "{message}"
    );
}

// The HTTP load generator against servers that misbehave.

/// Serves `answer(n, socket)` for the n-th request, a thread for each connection; false closes.
fn server(answer: impl Fn(u64, &mut TcpStream) -> bool + Send + Sync + 'static) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let answer = Arc::new(answer);
    let count = Arc::new(AtomicU64::new(0));
    std::thread::spawn(move || {
        for socket in listener.incoming() {
            let mut socket = socket.unwrap();
            socket.set_nodelay(true).unwrap();
            let (answer, count) = (Arc::clone(&answer), Arc::clone(&count));
            std::thread::spawn(move || {
                let mut seen = Vec::new();
                let mut buffer = [0; 4096];
                while let Ok(got @ 1..) = socket.read(&mut buffer) {
                    seen.extend_from_slice(&buffer[..got]);
                    if seen.ends_with(b"\r\n\r\n") {
                        seen.clear();
                        if !answer(count.fetch_add(1, Ordering::Relaxed), &mut socket) {
                            return;
                        }
                    }
                }
            });
        }
    });
    address
}

fn ok(socket: &mut TcpStream) -> bool {
    socket
        .write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello")
        .is_ok()
}

fn open_loop(address: SocketAddr) -> http::Arguments {
    http::Arguments {
        common: generator::Arguments {
            connections: 4,
            duration: 1.0,
            rate: 100.0,
            arrival: generator::Arrival::Constant,
            timeout: 5.0,
            ..generator::Arguments::new(address)
        },
        path: "/".to_owned(),
        closed: false,
        downloads: None,
    }
}

fn closed_loop(address: SocketAddr, downloads: u64) -> http::Arguments {
    http::Arguments {
        closed: true,
        downloads: Some(downloads),
        ..open_loop(address)
    }
}

/// With some of the common arguments changed.
fn with(
    mut arguments: http::Arguments,
    change: impl Fn(&mut generator::Arguments),
) -> http::Arguments {
    change(&mut arguments.common);
    arguments
}

fn a_stall_of_the_server_shows_in_every_request_that_was_due_meanwhile() {
    // Regression: coordinated omission. One thread a connection and four connections: whoever
    // counts from the moment of sending sees the stall four times in 2000 requests.
    let begun = OnceLock::new();
    let stalled = Arc::new(AtomicU64::new(0));
    let count = Arc::clone(&stalled);
    let address = server(move |_, socket| {
        let begun = begun.get_or_init(Instant::now);
        let (from, to) = (Duration::from_millis(600), Duration::from_millis(1100));
        if (from..to).contains(&begun.elapsed()) {
            count.fetch_add(1, Ordering::Relaxed);
            std::thread::sleep(to.saturating_sub(begun.elapsed()));
        }
        ok(socket)
    });
    let arguments = with(open_loop(address), |it| {
        it.rate = 1000.0;
        it.duration = 2.0;
    });
    let report = http::run(&arguments).unwrap();
    assert!(stalled.load(Ordering::Relaxed) <= 4);
    assert_eq!(report.due, Some(2000));
    assert_eq!(report.latency.count, 2000);
    // A hundred requests were due in the first 100 ms of the stall: 5 % waited over 400 ms.
    assert!(report.latency.p99 >= 0.4, "{report:?}");
    assert!(report.latency.p90 >= 0.2, "{report:?}");
}

fn a_saturated_server_shows_as_unanswered_requests_and_growing_latency() {
    let address = server(|_, socket| {
        std::thread::sleep(Duration::from_millis(20));
        ok(socket)
    });
    // Four connections at 20 ms each can answer 200 a second.
    let arguments = with(open_loop(address), |it| {
        it.rate = 2000.0;
        it.timeout = 0.5;
    });
    let report = http::run(&arguments).unwrap();
    assert_eq!(report.due, Some(2000));
    assert!(report.requests <= 250, "{report:?}");
    assert!(report.errors.unsent > 1000, "{report:?}");
    assert_eq!(report.latency.count, 2000, "what was never sent waited too");
    assert!(report.latency.p90 > 0.4, "{report:?}");
    let raw = serde_json::to_vec(&report).unwrap();
    let result = by_kind("http-rate")
        .unwrap()
        .parse(&raw, &Settings::default(), TIMING)
        .unwrap();
    let unreached = result.unreached.unwrap();
    assert!(unreached.contains("saturated"), "{unreached}");
}

fn a_ramp_gives_each_rate_a_window_and_keeps_their_backlogs_apart() {
    // Four connections at 20 ms each can answer 200 a second; the middle rate is ten times that.
    let address = server(|_, socket| {
        std::thread::sleep(Duration::from_millis(20));
        ok(socket)
    });
    let arguments = with(open_loop(address), |it| {
        it.ramp = vec![50.0, 2000.0, 50.0];
        it.warmup = 0.5;
        it.timeout = 0.2;
    });
    let load = Command::new(std::env::current_exe().unwrap())
        .args(["load", "http"])
        .args(arguments.to_flags())
        .output()
        .unwrap();
    let lines = load.stdout.split_inclusive(|byte| *byte == b'\n');
    let levels: Vec<generator::Report> = lines
        .map(|line| serde_json::from_slice(line).unwrap())
        .collect();
    let due: Vec<_> = levels.iter().map(|level| level.due).collect();
    assert_eq!(due, [Some(50), Some(2000), Some(50)]);
    let counts: Vec<_> = levels.iter().map(|level| level.latency.count).collect();
    assert_eq!(counts, [50, 2000, 50]);
    assert!(levels[1].errors.total() > 1000, "{:?}", levels[1]);
    for calm in [&levels[0], &levels[2]] {
        assert!(
            calm.errors.total() == 0 && calm.latency.p90 < 0.2,
            "{calm:?}"
        );
    }
}

fn constant_load_sends_exactly_what_was_due() {
    let count = Arc::new(AtomicU64::new(0));
    let counter = Arc::clone(&count);
    let address = server(move |_, socket| {
        counter.fetch_add(1, Ordering::Relaxed);
        ok(socket)
    });
    let report = http::run(&with(open_loop(address), |it| it.warmup = 0.5)).unwrap();
    assert_eq!(count.load(Ordering::Relaxed), 150);
    assert_eq!(report.due, Some(100));
    assert_eq!(report.latency.count, 100);
    assert_eq!(report.errors.total(), 0);
    assert!(report.connections <= 4);
}

/// An address at which nothing listens.
fn nowhere() -> SocketAddr {
    TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap()
}

fn a_refusing_server_is_errors_in_open_loop_and_an_error_in_closed_loop() {
    let report = http::run(&open_loop(nowhere())).unwrap();
    assert_eq!((report.requests, report.errors.connection), (0, 100));
    let raw = serde_json::to_vec(&report).unwrap();
    let cause = by_kind("http-rate")
        .unwrap()
        .parse(&raw, &Settings::default(), TIMING)
        .unwrap_err()
        .to_string();
    assert!(cause.contains("100 connections failed"), "{cause}");
    let cause = http::run(&closed_loop(nowhere(), 3))
        .unwrap_err()
        .to_string();
    assert!(
        cause.contains("refused") && cause.contains("127.0.0.1"),
        "{cause}"
    );
}

fn a_load_generator_without_one_answer_exits_with_1_and_one_line() {
    let address = nowhere().to_string();
    let answering = server(|_, socket| {
        let head = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";
        socket.write_all(head).is_ok()
    });
    let answering = answering.to_string();
    let short = "--rate 100 --duration 0.2 --timeout 1";
    let ramp = "--ramp 100,200 --duration 0.2 --timeout 1";
    for (flags, address, code) in [
        (format!("http {short}"), &address, 1),
        (format!("http {ramp}"), &address, 1),
        ("http --closed --duration 0.2".to_owned(), &address, 1),
        ("http --closed --downloads 3".to_owned(), &address, 1),
        (format!("memcached {short}"), &address, 1),
        (format!("memcached {ramp}"), &address, 1),
        ("memcached --fill".to_owned(), &address, 1),
        // It speaks another protocol: what came is no answer.
        (format!("memcached {short}"), &answering, 1),
        (format!("http {short}"), &answering, 0),
        (format!("http {ramp}"), &answering, 0),
    ] {
        let mut load = Command::new(std::env::current_exe().unwrap());
        load.arg("load").args(flags.split(' '));
        let run = load.args(["--address", address]).output().unwrap();
        let said = String::from_utf8(run.stderr).unwrap();
        assert_eq!(run.status.code(), Some(code), "{flags}: {said}");
        assert_eq!(
            said.lines().count(),
            usize::from(code != 0),
            "{flags}: {said}"
        );
        assert!(code == 0 || said.contains(address), "{flags}: {said}");
        // Whoever reads the report has it in either case.
        let report = String::from_utf8(run.stdout).unwrap();
        assert!(
            report.lines().all(|line| line.starts_with('{')),
            "{flags}: {report}"
        );
        assert!(!report.is_empty(), "{flags}");
    }
}

fn an_error_status_is_counted_in_open_loop_and_ends_closed_loop() {
    let answer = |_, socket: &mut TcpStream| {
        socket
            .write_all(b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\n\r\n")
            .is_ok()
    };
    let report = http::run(&open_loop(server(answer))).unwrap();
    assert_eq!(
        (report.requests, report.errors.status, report.latency.count),
        (0, 100, 0)
    );
    let cause = http::run(&closed_loop(server(answer), 3))
        .unwrap_err()
        .to_string();
    assert!(cause.contains("status 503"), "{cause}");
}

fn a_body_that_ends_early_is_a_failed_download() {
    let address = server(|_, socket| {
        socket
            .write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 500\r\n\r\nhello")
            .unwrap();
        false
    });
    let cause = http::run(&closed_loop(address, 3)).unwrap_err().to_string();
    assert!(cause.contains("before the answer was complete"), "{cause}");
}

fn a_server_that_speaks_something_else_is_reported() {
    let address = server(|_, socket| socket.write_all(b"SSH-2.0-OpenSSH_9.2\r\n").is_ok());
    let cause = http::run(&closed_loop(address, 3)).unwrap_err().to_string();
    assert!(cause.contains("not HTTP"), "{cause}");
}

fn a_server_that_goes_silent_is_given_up() {
    let address = server(|_, _| true);
    let cause = http::run(&with(closed_loop(address, 3), |it| it.timeout = 0.2))
        .unwrap_err()
        .to_string();
    assert!(cause.contains("sent nothing for 0.2 s"), "{cause}");
    let address = server(|_, _| true);
    let report = http::run(&with(open_loop(address), |it| it.timeout = 0.2)).unwrap();
    assert_eq!(report.requests, 0);
    assert_eq!(report.errors.timeout + report.errors.unsent, 100);
    assert_eq!(report.latency.count, 100);
}

fn a_server_that_closes_after_each_answer_is_connected_to_again() {
    let closing = |_, socket: &mut TcpStream| {
        let _ = socket
            .write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nhi");
        false
    };
    let report = http::run(&open_loop(server(closing))).unwrap();
    assert_eq!(
        (report.requests + report.errors.total(), report.connections),
        (100, 100),
        "{report:?}"
    );
    let report = http::run(&closed_loop(server(closing), 20)).unwrap();
    assert_eq!(
        (report.requests, report.bytes, report.connections),
        (20, 40, 20)
    );
    assert_eq!(report.download_seconds.len(), 20);
}

fn a_kept_connection_that_the_server_closes_is_replaced_without_an_error() {
    // Closes without notice after the second answer on each connection, as a server may.
    let counts = std::sync::Mutex::new(HashMap::new());
    let address = server(move |_, socket| {
        let mut counts = counts.lock().unwrap();
        let count: &mut u32 = counts.entry(socket.peer_addr().unwrap()).or_default();
        *count += 1;
        // The third request is read and dropped: the client has sent it on a dying connection.
        *count < 3 && ok(socket)
    });
    let report = http::run(&with(open_loop(address), |it| it.warmup = 0.2)).unwrap();
    assert_eq!(report.errors.total(), 0, "{report:?}");
    assert_eq!(report.latency.count, 100);
    let report = http::run(&closed_loop(address, 20)).unwrap();
    assert_eq!(report.requests, 20);
}
