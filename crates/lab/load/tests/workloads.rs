// SPDX-License-Identifier: Apache-2.0
//! Every workload, run for real on this host.

use crate::host::*;
use std::process::Command;
use std::time::{Duration, Instant};
use vtax_guest::platform::Target;
use vtax_host::settings::{Level, Settings};
use vtax_load::workload::{Timing, by_kind};
use vtax_testkit::skip;

#[test(needs = [root()])]
fn idle_takes_its_time_and_counts_seconds() {
    let begun = Instant::now();
    let result = run("idle", &Settings::default());
    assert!(begun.elapsed() >= TIMING.warmup + TIMING.duration);
    assert_eq!(rate(&result), 1.0);
}

#[test(needs = [root(), program("iperf3")])]
fn iperf3_receive_measures_tcp_into_the_target() {
    let result = run("iperf3-receive", &Settings::default());
    assert!(value(&result, "throughput") > 0.0);
    assert!((rate(&result) * 8e9 - value(&result, "throughput")).abs() <= 1.0);
    assert!(value(&result, "retransmits") >= 0.0);
}

#[test(needs = [root(), program("iperf3")])]
fn iperf3_send_holds_a_fixed_rate_over_several_streams() {
    let settings = settings([
        ("load.rate_mbit", Level::Number(40.0)),
        ("load.streams", Level::Integer(4)),
        ("load.length", Level::Integer(8192)),
        ("load.window", Level::Integer(65536)),
    ]);
    let result = run("iperf3-send", &settings);
    // The total is held over all streams, not by each; bursts may exceed it a little.
    let throughput = value(&result, "throughput");
    assert!(throughput > 0.0 && throughput < 80e6, "{throughput}");
}

#[test(needs = [test_all("takes 4 s"), root(), program("iperf3")])]
fn iperf3_udp_measures_jitter_and_loss_both_ways() {
    for direction in ["receive", "send"] {
        let settings = settings([
            ("load.rate_mbit", Level::Number(20.0)),
            ("load.direction", text(direction)),
        ]);
        let result = run("iperf3-udp", &settings);
        assert!((0.0..=100.0).contains(&value(&result, "loss")));
        assert!(value(&result, "jitter") >= 0.0);
        assert!(value(&result, "out_of_order") >= 0.0, "{direction}");
        assert!(value(&result, "packets") > 0.0);
    }
}

#[test(needs = [root(), program("iperf3"), brought_by_test_all("iptables")])]
fn iperf3_udp_counts_what_was_dropped_after_the_warm_up_and_nothing_else() {
    for direction in ["receive", "send"] {
        let mut host = Host::new();
        // Every fourth datagram of the data, but none of the handshake.
        let rule = "iptables -A INPUT -p udp -m length --length 1000:2000 -m statistic --mode nth --every 4 --packet 0 -j DROP";
        let rule = rule.split(' ').map(str::to_owned).collect();
        let set = spawn_inside(&host.inside, &["--net"], &rule).unwrap();
        let set = set.wait_with_output().unwrap();
        if !set.status.success() {
            let cause = String::from_utf8_lossy(&set.stderr);
            skip!("iptables cannot drop datagrams here: {cause}");
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

#[test(needs = [root(), brought_by_test_all("apache2")])]
fn http_download_to_completion_moves_every_byte_that_was_asked_for() {
    let settings = settings([
        ("load.connections", Level::Integer(10)),
        ("load.file_mb", Level::Integer(3)),
    ]);
    let result = run("http-download", &settings);
    assert_eq!(total(&result), 0.03);
    assert!(value(&result, "elapsed") > 0.0);
}

#[test(needs = [root(), brought_by_test_all("apache2")])]
fn http_download_for_a_duration_repeats_and_reports_a_rate() {
    let settings = settings([
        ("load.connections", Level::Integer(10)),
        ("load.file_mb", Level::Integer(1)),
        ("load.extent", text("duration")),
    ]);
    let result = run("http-download", &settings);
    assert!(rate(&result) > 0.0);
    assert!(!result.metrics.contains_key("elapsed"));
}

#[test(needs = [root(), brought_by_test_all("apache2")])]
fn http_rate_reports_percentiles_of_every_request_that_was_due() {
    for arrival in ["constant", "poisson"] {
        let settings = settings([
            ("load.rate", Level::Number(200.0)),
            ("load.arrival", text(arrival)),
        ]);
        let result = run("http-rate", &settings);
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

#[test(needs = [root(), brought_by_test_all("apache2")])]
fn http_rate_goes_through_a_ramp_in_one_process() {
    let mut host = Host::new();
    let (client, workload) = (host.client(), by_kind("http-rate").unwrap());
    // At the first rate the last request is due half a second before the window ends.
    let rates = [2.0, 200.0, 100.0];
    let levels = rates.map(|rate| {
        settings([
            ("load.rate", Level::Number(rate)),
            ("load.arrival", text("constant")),
        ])
    });
    let service = serve(&mut host, workload, &levels[0]).unwrap();
    let settle = Duration::from_millis(200);
    let load = workload.drive_ramp(&mut host, &client, service, &levels, TIMING, settle);
    let mut load = load.unwrap().unwrap();
    let mut began = load.level_began().unwrap();
    for (rate, level) in rates.iter().zip(&levels) {
        let raw = wait(&mut host, load.as_mut()).unwrap();
        // As if this level's load had been started alone.
        let result = workload.parse(&raw, level, TIMING).unwrap();
        // The rate, except for requests in progress when the window begins and ends.
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

#[test(needs = [root(), brought_by_test_all("memcached")])]
fn memcached_answers_every_request_that_was_due_and_misses_none() {
    let settings = settings([
        ("load.rate", Level::Number(500.0)),
        ("load.set_percent", Level::Number(20.0)),
        ("load.keys", Level::Integer(1000)),
        ("load.value_bytes", Level::Integer(5000)),
        // Fewer than memcached counts as its own.
        ("load.connections", Level::Integer(4)),
    ]);
    let result = run("memcached", &settings);
    assert_eq!(value(&result, "errors"), 0.0, "{result:?}");
    assert_eq!(rate(&result), value(&result, "rate"));
    assert!(value(&result, "latency.p50") <= value(&result, "latency.p99"));
    // Four in five answers carry a value.
    let each = value(&result, "throughput") / 8.0 / rate(&result);
    assert!((3000.0..5000.0).contains(&each), "{each}");
}

#[test(needs = [test_all("takes 5 s"), root(), program("nuttcp")])]
fn nuttcp_sends_either_way_after_a_warm_up() {
    for direction in ["receive", "send"] {
        let settings = settings([("load.direction", Level::Text(direction.to_owned()))]);
        let result = run("nuttcp", &settings);
        // Nothing shapes the link, which carries gigabits.
        let throughput = value(&result, "throughput");
        assert!(throughput > 100e6, "{direction}: {result:?}");
    }
}

#[test(needs = [test_all("takes 3 s"), root(), program("tbench"), program("tbench_srv")])]
fn tbench_measures_throughput_after_its_warm_up() {
    let settings = settings([("load.clients", Level::Integer(2))]);
    let result = run("tbench", &settings);
    // One of the two values was scaled, which rounds.
    let ratio = rate(&result) * 1e9 / value(&result, "throughput");
    assert!((ratio - 1.0).abs() < 1e-12, "{ratio}");
    assert!(value(&result, "latency.mean") <= value(&result, "latency.max"));
}

#[test(needs = [root(), program("sysbench"), brought_by_test_all("mariadbd")])]
fn sysbench_oltp_commits_transactions_at_a_rate() {
    let settings = settings([
        ("load.rate", Level::Integer(20)),
        ("load.threads", Level::Integer(2)),
        ("load.rows", Level::Integer(100)),
    ]);
    let result = run("sysbench-oltp", &settings);
    assert!(rate(&result) > 0.0);
    let (p50, p99) = (value(&result, "latency.p50"), value(&result, "latency.p99"));
    assert!(p50 > 0.0 && p50 <= p99, "{result:?}");
    assert!(!result.histograms[0].1.is_empty());
}

#[test(needs = [root(), brought_by_test_all("kamailio"), brought_by_test_all("sipp")])]
fn sip_calls_are_answered_with_sound() {
    let settings = settings([
        ("load.rate", Level::Number(10.0)),
        ("load.hold_ms", Level::Integer(200)),
    ]);
    let result = run("sip", &settings);
    assert!((8.0..12.0).contains(&rate(&result)), "{result:?}");
    assert_eq!(value(&result, "errors"), 0.0, "{result:?}");
    assert!(value(&result, "latency.p50") <= value(&result, "latency.p99"));
    assert!(value(&result, "calls.current") >= 2.0, "{result:?}");
}

#[test(needs = [root(), brought_by_test_all("apache2")])]
fn http_closed_serves_as_fast_as_it_is_asked() {
    let settings = settings([
        ("load.connections", Level::Integer(4)),
        ("load.file_bytes", Level::Integer(2000)),
    ]);
    let result = run("http-closed", &settings);
    let each = value(&result, "throughput") / 8.0 / rate(&result);
    assert!((1900.0..2100.0).contains(&each), "{result:?}");
    // Four clients that wait for their answers, by Little's law, except for the time between two requests.
    let at_once = rate(&result) * value(&result, "latency.mean");
    assert!((1.0..=4.1).contains(&at_once), "{result:?}");
}

#[test(needs = [root(), brought_by_test_all("apache2")])]
fn http_batch_ends_with_its_last_answer() {
    let settings = settings([
        ("load.requests", Level::Integer(200)),
        ("load.rate", Level::Number(400.0)),
    ]);
    let result = run("http-batch", &settings);
    assert_eq!(total(&result), 200.0);
    // The last one is due 2.5 ms before the half second is over.
    assert!(value(&result, "elapsed") > 0.49, "{result:?}");
}

#[test(needs = [root(), brought_by_test_all("apache2"), program("hping3")])]
fn hping3_hears_of_every_connection_that_it_asked_for() {
    let settings = settings([
        ("load.requests", Level::Integer(300)),
        ("load.rate", Level::Number(1000.0)),
    ]);
    let result = run("hping3", &settings);
    assert_eq!(total(&result), 300.0);
    assert!(value(&result, "elapsed") > 0.2, "{result:?}");
}

#[test(needs = [root(), brought_by_test_all("apache2"), program("hping3")])]
fn a_flood_reaches_the_server_and_nobody_else() {
    let mut host = Host::new();
    // A route for packets to other addresses.
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

#[test(needs = [root(), brought_by_test_all("apache2"), brought_by_test_all("php-fpm8.2"), brought_by_test_all("mariadbd")])]
fn board_serves_pages_made_of_stories() {
    let settings = settings([
        ("load.requests", Level::Integer(500)),
        ("load.connections", Level::Integer(10)),
        ("load.stories", Level::Integer(100)),
    ]);
    let result = run("board", &settings);
    assert_eq!(total(&result), 500.0);
    assert!(value(&result, "latency.p50") <= value(&result, "latency.max"));
}

#[test(needs = [root(), program("bash")])]
fn cpu_reports_operations_for_a_duration_and_to_completion() {
    let two = || ("load.threads", Level::Integer(2));
    let result = run("cpu", &settings([two()]));
    assert!(rate(&result) > 0.0);
    assert!(value(&result, "cpu.inside_per_work") > 0.0);
    let completion = settings([
        two(),
        ("load.extent", text("completion")),
        ("load.operations", Level::Integer(3)),
    ]);
    let result = run("cpu", &completion);
    assert_eq!(total(&result), 6.0);
}

#[test(needs = [root(), brought_by_test_all("stress-ng")])]
fn stress_ng_counts_what_each_stressor_did() {
    for stressor in ["cpu", "stream", "switch"] {
        let settings = settings([
            ("load.stressor", text(stressor)),
            ("load.workers", Level::Integer(2)),
        ]);
        let result = run("stress-ng", &settings);
        assert!(rate(&result) > 0.0, "{stressor}: {result:?}");
        assert!(value(&result, "cpu.inside_per_work") > 0.0, "{stressor}");
    }
}

#[test(needs = [root(), brought_by_test_all("fio")])]
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
        let result = run("disk-read", &settings);
        assert!(rate(&result) > 0.0);
        assert!(value(&result, "latency.p50") <= value(&result, "latency.max"));
    }
    let limited = settings([
        size(),
        ("load.rate_mb", Level::Number(4.0)),
        ("load.block_bytes", Level::Integer(65_536)),
        ("load.direct", Level::Bool(false)),
    ]);
    let result = run("disk-read", &limited);
    // GB per second. One block is a large part of a short trial.
    assert!((0.002..0.006).contains(&rate(&result)), "{}", rate(&result));
    let completion = settings([
        size(),
        ("load.extent", text("completion")),
        ("load.direct", Level::Bool(false)),
    ]);
    let result = run("disk-read", &completion);
    assert_eq!(total(&result), 8.0 * 1_048_576.0 / 1e9);
}

#[test(needs = [root(), program("iperf3"), program("pkill")])]
fn a_service_that_dies_in_mid_trial_is_named_as_the_cause() {
    let mut host = Host::new();
    let workload = by_kind("iperf3-receive").unwrap();
    let settings = Settings::default();
    let client = host.client();
    let service = serve(&mut host, workload, &settings).unwrap();
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

#[test(needs = [root(), program("iperf3"), brought_by_test_all("apache2")])]
fn a_service_that_cannot_start_is_an_error_with_its_output() {
    let mut host = Host::new();
    // A file in place of the directory of Apache's content.
    let block = ["touch", "/tmp/vtax-http"].map(str::to_owned).to_vec();
    assert_eq!(host.run(&block, Duration::from_secs(10)).unwrap().code, 0);
    let workload = by_kind("http-rate").unwrap();
    let message = serve(&mut host, workload, &Settings::default())
        .unwrap_err()
        .to_string();
    assert!(
        message.contains("/tmp/vtax-http") && message.contains("mkdir"),
        "{message}"
    );
}
