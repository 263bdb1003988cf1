// SPDX-License-Identifier: Apache-2.0
//! Tests of the workloads that files describe, and of what all files have in common.

use super::super::*;
use vtax_host::settings::Level;

/// The command line of a load on a target at 10.91.0.2.
fn line(kind: &str, settings: &Settings, timing: Timing) -> CommandLine {
    let scratch = &Scratch {
        device: "/dev/vdb".into(),
        directory: "/scratch".into(),
    };
    let address = IpAddr::from([10, 91, 0, 2]);
    let spec = LoadSpec {
        address,
        scratch,
        settings,
        timing,
    };
    by_kind(kind).unwrap().load(spec).unwrap().line
}

#[test]
fn every_file_is_valid() {
    for kind in KINDS {
        if ![command::KIND, sip::KIND].contains(&kind) {
            let read = super::read(kind).map(|_| ());
            assert_eq!(read, Ok(()), "{kind}");
        }
    }
}

#[test]
fn the_command_lines_of_vtax_s_generators_are_ones_that_they_take() {
    use clap::Parser;

    #[derive(Parser)]
    enum Load {
        Http(crate::http::Arguments),
        Memcached(crate::memcached::Arguments),
    }
    let settings = [
        ("load.rate", Level::Number(75.5)),
        ("load.seed", Level::Integer(i64::MAX)),
        ("load.connections", Level::Integer(7)),
        ("load.keepalive", Level::Bool(false)),
    ];
    let settings: Settings = settings.into_iter().collect();
    for kind in [
        "http-rate",
        "http-closed",
        "http-download",
        "http-batch",
        "board",
        "memcached",
    ] {
        let line = line(kind, &settings, TIMING);
        let common = match Load::try_parse_from(line.iter().skip(1)) {
            Ok(Load::Http(http)) => {
                assert_eq!(http.path, "/file");
                http.common
            }
            Ok(Load::Memcached(memcached)) => memcached.common,
            Err(cause) => panic!("{kind}: {cause}"),
        };
        assert_eq!(common.connections, 7, "{kind}");
        if ["http-rate", "memcached"].contains(&kind) {
            assert_eq!((common.rate, common.seed), (75.5, i64::MAX.unsigned_abs()));
            assert_eq!((common.warmup, common.duration), (1.0, 2.0));
        }
    }
}

#[test]
fn more_received_than_sent_is_suspect() {
    let of = |bytes: f64| {
        let raw = format!(
            r#"{{"end":{{"sum_received":{{"seconds":2.0,"bytes":{bytes}}},"sum_sent":{{"bytes":1e9}}}}}}"#
        );
        let workload = by_kind("iperf3-receive").unwrap();
        let result = workload.parse(raw.as_bytes(), &Settings::default(), TIMING);
        result.unwrap().suspect
    };
    assert_eq!(of(1.34e9), Vec::<String>::new());
    let reason = of(1.36e9).join("; ");
    assert!(
        reason.contains("1.36 GB") && reason.contains("1.00 GB") && reason.contains("35 % more"),
        "{reason}"
    );
}

mod stress_ng {
    use super::*;

    #[test]
    fn the_rate_in_real_time_and_the_processor_time_of_an_operation_are_read() {
        let raw = include_str!("../../../tests/data/stress-ng.yaml");
        let parse = |raw: &str| {
            by_kind("stress-ng")
                .unwrap()
                .parse(raw.as_bytes(), &Settings::default(), TIMING)
        };
        let result = parse(raw).unwrap();
        let value = |name: &str| result.metrics[name].quantity.value;
        assert_eq!(value("rate"), 1_484.995_22);
        assert!(
            (value("cpu.inside_per_work") - 1.982_076 / 1_485.0).abs() < 1e-9,
            "{result:?}"
        );
        let none = raw.replace("bogo-ops: 1485", "bogo-ops: 0");
        assert!(parse(&none).is_err());
    }
}

mod http_download {
    use super::*;

    #[test]
    fn downloads_that_are_all_under_way_at_the_end_still_count_by_their_bytes() {
        let raw = br#"{"mode":"closed","seconds":2.0,"requests":0,"bytes":1000000,"due":null,
            "errors":{"connection":0,"status":0,"timeout":0,"unsent":0},
            "latency":{"count":0,"mean":0,"p50":0,"p90":0,"p99":0,"p999":0,"max":0},"lag":null,
            "connections":5,"cpu_seconds":0.1,"download_seconds":[]}"#;
        let settings =
            Settings([("load.extent".to_owned(), Level::Text("duration".to_owned()))].into());
        let result = by_kind("http-download")
            .unwrap()
            .parse(raw, &settings, TIMING)
            .unwrap();
        assert_eq!(result.metrics["throughput"].quantity.value, 4e6);
        assert!(
            !result.metrics.contains_key("download.p50"),
            "an unknown time is not 0 s"
        );
    }

    #[test]
    fn the_extent_decides_whether_work_is_a_rate_or_a_total() {
        let raw = br#"{"mode":"closed","seconds":2.0,"requests":5,"bytes":4000000000,"due":null,
            "errors":{"connection":0,"status":0,"timeout":0,"unsent":0},
            "latency":{"count":5,"mean":0.2,"p50":0.2,"p90":0.3,"p99":0.3,"p999":0.3,"max":0.3},"lag":null,
            "connections":5,"cpu_seconds":0.1,"download_seconds":[]}"#;
        let settings = |extent: &str| {
            Settings([("load.extent".to_owned(), Level::Text(extent.to_owned()))].into())
        };
        let rate = by_kind("http-download")
            .unwrap()
            .parse(raw, &settings("duration"), TIMING)
            .unwrap();
        assert!(matches!(rate.work, Some(WorkDone::Rate(work)) if work.amount == 2.0));
        assert!(!rate.metrics.contains_key("elapsed"));
        let total = by_kind("http-download")
            .unwrap()
            .parse(raw, &settings("completion"), TIMING)
            .unwrap();
        assert!(matches!(total.work, Some(WorkDone::Total(work)) if work.amount == 4.0));
        assert_eq!(total.metrics["elapsed"].quantity.value, 2.0);
        assert_eq!(total.metrics["throughput"].quantity.value, 16e9);
    }
}

mod hackbench {
    use super::*;

    fn parse(raw: &str, groups: i64) -> Outcome<WorkloadResult> {
        let settings = [("load.groups", groups), ("load.messages", 200)];
        let settings = settings.map(|(key, value)| (key.to_owned(), Level::Integer(value)));
        by_kind("hackbench")
            .unwrap()
            .parse(raw.as_bytes(), &settings.into_iter().collect(), TIMING)
    }

    #[test]
    fn the_work_is_the_messages_of_all_senders_to_all_receivers() {
        let raw = include_str!("../../../tests/data/hackbench.txt");
        let result = parse(raw, 2).unwrap();
        let seconds = raw.lines().last().unwrap().trim_start_matches("Time: ");
        let rate = 160_000.0 / seconds.parse::<f64>().unwrap();
        assert!((result.metrics["rate"].quantity.value - rate).abs() < 1e-6);
        assert!(matches!(result.work, Some(WorkDone::Total(work)) if work.amount == 160_000.0));
        assert!(
            parse(raw, 3).is_err(),
            "it ran fewer groups than were asked for"
        );
        assert!(parse(raw.lines().next().unwrap(), 2).is_err());
    }
}

mod tbench {
    use super::*;

    #[test]
    fn a_short_load_outlasts_its_window_too() {
        let lasts = |seconds: u64| {
            let timing = Timing {
                warmup: Duration::from_secs(1),
                duration: Duration::from_secs(seconds),
            };
            let line = line("tbench", &Settings::default(), timing);
            let measured = line.iter().skip_while(|word| *word != "-t").nth(1);
            let measured: u64 = measured.unwrap().parse().unwrap();
            // As tbench does by itself.
            measured + measured / 5
        };
        for seconds in 1..20 {
            assert!(lasts(seconds) > 1 + seconds, "{seconds}");
        }
    }

    #[test]
    fn throughput_and_latency_over_all_operations_are_read() {
        let raw = include_bytes!("../../../tests/data/tbench.txt");
        let second = Duration::from_secs(1);
        let (warmup, duration) = (second, 5 * second);
        let timing = Timing { warmup, duration };
        let result = by_kind("tbench")
            .unwrap()
            .parse(raw, &Settings::default(), timing)
            .unwrap();
        let value = |name: &str| result.metrics[name].quantity.value;
        assert_eq!(value("throughput"), 423_205_000.0);
        assert!((value("rate") - 372_713.0 / 6.0).abs() < 1e-6, "{result:?}");
        assert_eq!(value("latency.max"), 0.016_632);
        let failed = b"FAILED TO START 2 CLIENTS (started -1)\nThroughput 0 MB/sec  2 clients\n";
        assert!(
            by_kind("tbench")
                .unwrap()
                .parse(failed, &Settings::default(), timing)
                .is_err()
        );
    }
}

mod nuttcp {
    use super::*;

    #[test]
    fn the_rate_and_what_was_sent_again_are_read() {
        let raw = include_bytes!("../../../tests/data/nuttcp-8.2.2.txt");
        let second = Duration::from_secs(1);
        let timing = Timing {
            warmup: second,
            duration: 2 * second,
        };
        let parse = |raw: &[u8]| {
            by_kind("nuttcp")
                .unwrap()
                .parse(raw, &Settings::default(), timing)
        };
        let result = parse(raw).unwrap();
        let value = |name: &str| result.metrics[name].quantity.value;
        assert!(
            (value("throughput") - 98_918_800.0).abs() < 1.0,
            "{result:?}"
        );
        assert!(
            (value("retransmits") - 3.0 / 2.02).abs() < 1e-9,
            "{result:?}"
        );
        // A rate in nuttcp's default format, which is not the requested output.
        assert!(parse(b"  23.8 MB /   2.00 sec =   99.8 Mbps\n").is_err());
    }
}

mod sysbench_oltp {
    use super::*;

    #[test]
    fn the_report_after_the_checkpoint_and_its_histogram_are_read() {
        let raw = include_bytes!("../../../tests/data/sysbench-oltp.txt");
        let parsed = by_kind("sysbench-oltp")
            .unwrap()
            .parse(raw, &Settings::default(), TIMING);
        let result = parsed.unwrap();
        assert_eq!(result.metrics["rate"].quantity.value, 58.05);
        assert!((result.metrics["latency.max"].quantity.value - 0.097_85).abs() < 1e-9);
        assert_eq!(result.histograms[0].1.len(), 176);
    }
}

mod hping3 {
    use super::*;

    #[test]
    fn answers_are_counted_and_missing_ones_are_suspect() {
        let parse = |raw: &str, asked| {
            let asked = ("load.requests".to_owned(), Level::Integer(asked));
            by_kind("hping3")
                .unwrap()
                .parse(raw.as_bytes(), &Settings([asked].into()), TIMING)
        };
        let raw = include_str!("../../../tests/data/hping3.txt");
        let result = parse(raw, 300).unwrap();
        let value = |name: &str| result.metrics[name].quantity.value;
        assert_eq!(value("answered"), 100.0);
        assert!((value("rate") * value("elapsed") - 300.0).abs() < 1e-6);
        assert!(result.suspect.is_empty(), "{result:?}");
        assert!(parse(raw, 400).unwrap().suspect[0].contains("300"));
        let none = raw.replace("300 packets received", "0 packets received");
        let cause = parse(&none, 300).unwrap_err().to_string();
        assert!(cause.contains("not one answer"), "{cause}");
    }

    #[test]
    fn more_answers_than_requests_are_suspect_and_count_once() {
        let settings = Settings([("load.requests".to_owned(), Level::Integer(300))].into());
        let raw = "200 packets transmitted, 300 packets received, -50% packet loss\nmicroseconds 404264\n";
        let result = by_kind("hping3")
            .unwrap()
            .parse(raw.as_bytes(), &settings, TIMING)
            .unwrap();
        assert_eq!(result.metrics["answered"].quantity.value, 100.0);
        assert!(matches!(&result.work, Some(WorkDone::Total(work)) if work.amount == 200.0));
        let reasons = result.suspect.join("; ");
        assert!(
            reasons.contains("300") && reasons.contains("200"),
            "{reasons}"
        );
        assert!(reasons.contains("more answers"), "{reasons}");
    }

    #[test]
    fn nothing_but_the_target_is_addressed_and_from_nothing_but_the_clients_own_address() {
        for kind in ["hping3", "http-flood"] {
            let line = line(kind, &Settings::default(), TIMING).join(" ");
            for forged in ["--rand", "--spoof", " -a "] {
                assert!(!line.contains(forged), "{line}");
            }
            assert!(line.contains(" 10.91.0.2"), "{line}");
        }
    }
}

mod iperf3 {
    use super::*;

    #[test]
    fn an_error_of_iperf3_is_shown_with_a_remedy_though_it_exits_with_0() {
        let raw = include_bytes!("../../../tests/data/iperf3-refused.json");
        let parsed = by_kind("iperf3-receive")
            .unwrap()
            .parse(raw, &Settings::default(), TIMING);
        let message = parsed.unwrap_err().to_string();
        assert!(message.contains("Connection refused"), "{message}");
        assert!(message.contains("does not answer"), "{message}");
    }

    #[test]
    fn a_server_that_dies_in_mid_test_is_named_as_the_cause() {
        let raw = br#"{"start":{},"intervals":[],"end":{},"error":"unable to write to stream socket: Connection reset by peer"}"#;
        let parsed = by_kind("iperf3-receive")
            .unwrap()
            .parse(raw, &Settings::default(), TIMING);
        let message = parsed.unwrap_err().to_string();
        assert!(message.contains("ended in mid-test"), "{message}");
    }

    #[test]
    fn a_rate_is_divided_over_the_streams() {
        let settings = [
            ("load.rate_mbit", Level::Number(100.0)),
            ("load.streams", Level::Integer(4)),
        ];
        let line = line("iperf3-udp", &settings.into_iter().collect(), TIMING).join(" ");
        assert!(line.contains("--bitrate 25000000 "), "{line}");
    }
}

mod iperf3_tcp {
    use super::*;

    const RECEIVE: &[u8] = include_bytes!("../../../tests/data/iperf3-receive.json");
    const SEND: &[u8] = include_bytes!("../../../tests/data/iperf3-send.json");

    #[test]
    fn throughput_and_work_are_what_the_receiver_got_in_the_measured_part() {
        let result = by_kind("iperf3-receive")
            .unwrap()
            .parse(RECEIVE, &Settings::default(), TIMING)
            .unwrap();
        let throughput = &result.metrics["throughput"];
        // The recording: 9 772 466 176 bytes in 2.00019 s.
        assert!(
            (throughput.quantity.value - 39_086_151_519.6).abs() < 1.0,
            "{throughput:?}"
        );
        assert!(throughput.headline);
        let Some(WorkDone::Rate(work)) = result.work else {
            panic!("no rate")
        };
        assert!((work.amount - 4.885_768_939).abs() < 1e-6, "{work:?}");
        assert_eq!(work.phrase, "receive 1 GB");
        assert_eq!(result.unreached, None);
    }

    #[test]
    fn sending_is_counted_at_the_receiver_and_retransmits_at_the_sender() {
        let result = by_kind("iperf3-send")
            .unwrap()
            .parse(SEND, &Settings::default(), TIMING)
            .unwrap();
        assert!((result.metrics["throughput"].quantity.value - 33_622_915_485.0).abs() < 1.0);
        assert_eq!(result.metrics["retransmits"].quantity.value, 0.0);
        assert!(matches!(result.work, Some(WorkDone::Rate(work)) if work.phrase == "send 1 GB"));
        // The recording is the receiver's, without the server's document.
        assert!(!result.metrics.contains_key("rtt.mean"));
    }

    #[test]
    fn the_round_trip_is_the_senders_whichever_side_that_is() {
        let rtt = |kind: &str, raw: &[u8]| {
            let workload = by_kind(kind).unwrap();
            let result = workload.parse(raw, &Settings::default(), TIMING).unwrap();
            result.metrics["rtt.mean"].quantity.value
        };
        // Two streams, with 14 and 13 µs.
        assert!((rtt("iperf3-receive", RECEIVE) - 13.5e-6).abs() < 1e-9);
        let reversed = br#"{"end":{"sum_received":{"seconds":2.0,"bytes":9},
            "streams":[{"sender":{"mean_rtt":0}}]},
            "server_output_json":{"end":{"streams":[{"sender":{"mean_rtt":1500}}]}}}"#;
        assert!((rtt("iperf3-send", reversed) - 1.5e-3).abs() < 1e-9);
    }

    #[test]
    fn a_rate_that_is_not_reached_makes_the_trial_suspect() {
        let asked = |rate| Settings([("load.rate_mbit".to_owned(), Level::Number(rate))].into());
        let unreached = |rate| {
            by_kind("iperf3-receive")
                .unwrap()
                .parse(RECEIVE, &asked(rate), TIMING)
                .unwrap()
                .unreached
        };
        assert_eq!(unreached(40_000.0), None);
        let reason = unreached(50_000.0).unwrap();
        assert!(
            reason.contains("39.1 Gbit/s of the 50.0 Gbit/s asked"),
            "{reason}"
        );
    }

    #[test]
    fn a_test_in_which_nothing_arrives_is_an_error() {
        let raw = br#"{"end":{"sum_received":{"seconds":2.0,"bytes":0}}}"#;
        let message = by_kind("iperf3-receive")
            .unwrap()
            .parse(raw, &Settings::default(), TIMING)
            .unwrap_err()
            .to_string();
        assert!(message.contains("not one byte"), "{message}");
    }
}

mod iperf3_udp {
    use super::*;

    fn value(result: &WorkloadResult, name: &str) -> f64 {
        result.metrics[name].quantity.value
    }

    fn at(rate_mbit: f64) -> Settings {
        let rate = vtax_host::settings::Level::Number(rate_mbit);
        Settings([("load.rate_mbit".to_owned(), rate)].into())
    }

    fn parse_at(raw: &[u8], rate_mbit: f64) -> Outcome<WorkloadResult> {
        by_kind("iperf3-udp")
            .unwrap()
            .parse(raw, &at(rate_mbit), TIMING)
    }

    #[test]
    fn loss_and_jitter_are_the_receivers_in_percent_and_seconds() {
        let raw = include_bytes!("../../../tests/data/iperf3-udp.json");
        let result = by_kind("iperf3-udp")
            .unwrap()
            .parse(raw, &Settings::default(), TIMING)
            .unwrap();
        // The recording: 33 of 17 856 lost, jitter 0.008 391 892 7 ms.
        assert!((value(&result, "loss") - 0.184_811_827_957).abs() < 1e-9);
        assert!((value(&result, "jitter") - 8.391_892_701_607e-6).abs() < 1e-15);
        assert_eq!(value(&result, "out_of_order"), 0.0);
        assert_eq!(result.unreached, None);
    }

    #[test]
    fn order_is_taken_from_the_receiver_in_either_direction() {
        let raw = include_bytes!("../../../tests/data/iperf3-udp-send.json");
        let result = by_kind("iperf3-udp")
            .unwrap()
            .parse(raw, &Settings::default(), TIMING)
            .unwrap();
        assert!(result.metrics.contains_key("out_of_order"));
        // 50 of the default 100 Mbit/s were sent.
        let unreached = result.unreached.unwrap();
        assert!(unreached.contains("50 %"), "{unreached}");
    }

    /// The recordings of 3.12 were made with 30 % of the datagrams dropped.
    #[test]
    fn a_warm_up_that_iperf3_leaves_out_is_not_in_the_loss() {
        for (raw, seconds, lost, packets) in [
            (
                &include_bytes!("../../../tests/data/iperf3-udp-3.12-omit-1.json")[..],
                2,
                277.0,
                892.0,
            ),
            (
                &include_bytes!("../../../tests/data/iperf3-udp-3.12-omit-4.json")[..],
                1,
                125.0,
                445.0,
            ),
            (
                &include_bytes!("../../../tests/data/iperf3-udp-send-3.12-omit-3.json")[..],
                2,
                256.0,
                893.0,
            ),
        ] {
            let timing = Timing {
                duration: Duration::from_secs(seconds),
                ..TIMING
            };
            let result = by_kind("iperf3-udp")
                .unwrap()
                .parse(raw, &at(5.0), timing)
                .unwrap();
            let loss = value(&result, "loss");
            assert!((loss - 100.0 * lost / packets).abs() < 1e-9, "{loss}");
            assert_eq!(result.suspect, Vec::<String>::new());
            assert_eq!(result.unreached, None);
        }
    }

    #[test]
    fn datagrams_sent_are_the_senders_though_a_queue_delays_the_receiver() {
        // 80 Mbit/s over a link of 50 Mbit/s, whose queue is 50 ms long.
        let raw = include_bytes!("../../../tests/data/iperf3-udp-send-3.12-queue.json");
        let result = parse_at(raw, 80.0).unwrap();
        let packets = value(&result, "packets");
        assert!(
            (packets - 20_001_800.0 / 1400.0 / 2.000_075).abs() < 1e-6,
            "{packets}"
        );
        assert!((value(&result, "loss") - 561_400.0 / 14_282.0).abs() < 1e-9);
        assert_eq!(result.suspect, Vec::<String>::new());
    }

    #[test]
    fn a_loss_of_all_datagrams_is_a_result_without_work_in_every_version() {
        for raw in [
            &include_bytes!("../../../tests/data/iperf3-udp-3.12-all-lost.json")[..],
            &include_bytes!("../../../tests/data/iperf3-udp-3.12-all-lost-omit-1.json")[..],
            &include_bytes!("../../../tests/data/iperf3-udp-3.18-all-lost.json")[..],
            &include_bytes!("../../../tests/data/iperf3-udp-3.18-all-lost-omit-1.json")[..],
        ] {
            let result = parse_at(raw, 5.0).unwrap();
            assert_eq!(value(&result, "loss"), 100.0);
            assert_eq!(value(&result, "throughput"), 0.0);
            assert!(result.work.is_none());
            // Nothing arrived whose spacing or order could be known.
            assert!(!result.metrics.contains_key("jitter"), "{result:?}");
            assert!(!result.metrics.contains_key("out_of_order"), "{result:?}");
            assert!(
                (value(&result, "packets") - 446.0).abs() < 1.0,
                "{result:?}"
            );
        }
    }

    #[test]
    fn a_client_of_3_9_is_read_and_a_server_of_3_9_is_named_as_too_old() {
        let raw = include_str!("../../../tests/data/iperf3-udp-3.9.json");
        let result = parse_at(raw.as_bytes(), 20.0).unwrap();
        assert!((value(&result, "loss") - 8800.0 / 3421.0).abs() < 1e-9);
        assert!((value(&result, "throughput") - 18_414_764.3).abs() < 1.0);
        assert!(
            (value(&result, "sent") - 18_906_487.4).abs() < 1.0,
            "{result:?}"
        );
        assert_eq!(result.suspect, Vec::<String>::new());
        let older = raw.replace("sum_received", "sum_unknown");
        let cause = parse_at(older.as_bytes(), 20.0).unwrap_err().to_string();
        assert!(
            cause.contains("3.11 or later") && cause.contains("in the target"),
            "{cause}"
        );
    }

    #[test]
    fn a_loss_that_the_bytes_contradict_is_suspect_and_one_above_all_is_an_error() {
        let raw = include_str!("../../../tests/data/iperf3-udp-3.12-omit-1.json");
        let (client, server) = raw.split_once("\"server_output_json\"").unwrap();
        let with = |lost: &str| {
            let server = server.replace("\"lost_packets\":\t277", lost);
            assert!(server.contains(lost));
            parse_at(
                format!("{client}\"server_output_json\"{server}").as_bytes(),
                5.0,
            )
        };
        let result = with("\"lost_packets\":\t450").unwrap();
        let reason = result.suspect.join("; ");
        assert!(
            reason.contains("50.4 %") && reason.contains("31.1 %"),
            "{reason}"
        );
        let cause = with("\"lost_packets\":\t893").unwrap_err().to_string();
        assert!(cause.contains("893") && cause.contains("892"), "{cause}");
    }
}

mod http_batch {
    use super::*;

    #[test]
    fn a_batch_lasts_until_its_last_answer_and_lost_requests_are_suspect() {
        let parse = |raw: &str| {
            by_kind("http-batch")
                .unwrap()
                .parse(raw.as_bytes(), &Settings::default(), TIMING)
        };
        let raw = include_str!("../../../tests/data/http-batch.json");
        let result = parse(raw).unwrap();
        let value = |name: &str| result.metrics[name].quantity.value;
        assert!(
            value("elapsed") > 0.9 && value("answered") == 100.0,
            "{result:?}"
        );
        assert!((value("rate") * value("elapsed") - 1000.0).abs() < 1e-6);
        assert!(result.suspect.is_empty());
        let lost = parse(&raw.replace("\"timeout\":0", "\"timeout\":100")).unwrap();
        assert!(lost.suspect[0].contains("900"), "{lost:?}");
        let none = raw.replace("\"timeout\":0", "\"timeout\":1000");
        assert!(parse(&none).unwrap_err().to_string().contains("not one"));
    }

    #[test]
    fn a_flood_that_is_missing_or_ends_early_is_an_error_that_says_so() {
        use std::os::unix::fs::symlink;
        let directory = tempfile::tempdir().unwrap();
        let line = line("http-flood", &Settings::default(), TIMING);
        let script = line.iter().skip_while(|word| *word != "-c").nth(1).unwrap();
        let run = || {
            let path = format!("{}:/usr/bin:/bin", directory.path().display());
            let mut sh = std::process::Command::new("/bin/sh");
            let words = [
                "-c",
                script,
                "vtax-workload",
                "hping3 --flood",
                "sleep",
                "0.3",
            ];
            let run = sh.args(words).env("PATH", path).output().unwrap();
            (run.status.code(), String::from_utf8(run.stderr).unwrap())
        };
        let hping3 = directory.path().join("hping3");
        assert_eq!(run(), (Some(127), "hping3: not found\n".to_owned()));
        symlink("/bin/false", &hping3).unwrap();
        assert_eq!(
            run(),
            (Some(1), "hping3 ended before the requests did\n".to_owned())
        );
        std::fs::remove_file(&hping3).unwrap();
        std::fs::write(&hping3, "#!/bin/sh\nexec sleep 60\n").unwrap();
        let executable = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        std::fs::set_permissions(&hping3, executable).unwrap();
        assert_eq!(run(), (Some(0), String::new()));
    }
}

mod cpu {
    use super::*;

    const TWO: &[u8] = br#"[
{"operations":100,"real":2.000,"user":1.990,"system":0.010},
{"operations":60,"real":2.000,"user":1.200,"system":0.000},
{"threads":2}]"#;

    fn settings(extent: &str) -> Settings {
        let extent = Level::Text(extent.to_owned());
        Settings(
            [
                ("load.threads".to_owned(), Level::Integer(2)),
                ("load.extent".to_owned(), extent),
            ]
            .into(),
        )
    }

    #[test]
    fn rates_add_up_over_threads_and_cpu_time_is_shared_by_all_operations() {
        let result = by_kind("cpu")
            .unwrap()
            .parse(TWO, &settings("duration"), TIMING)
            .unwrap();
        assert_eq!(result.metrics["rate"].quantity.value, 80.0);
        assert_eq!(result.metrics["cpu.inside_per_work"].quantity.value, 0.02);
        assert!(matches!(result.work, Some(WorkDone::Rate(work)) if work.amount == 80.0));
        let result = by_kind("cpu")
            .unwrap()
            .parse(TWO, &settings("completion"), TIMING)
            .unwrap();
        assert!(matches!(result.work, Some(WorkDone::Total(work)) if work.amount == 160.0));
    }

    #[test]
    fn a_thread_that_is_missing_is_an_error() {
        let one = br#"[{"operations":100,"real":2.0,"user":1.9,"system":0.1},{"threads":2}]"#;
        let message = by_kind("cpu")
            .unwrap()
            .parse(one, &settings("duration"), TIMING)
            .unwrap_err()
            .to_string();
        assert!(message.contains("1 threads reported"), "{message}");
    }
}

mod board {
    use super::*;

    #[test]
    fn pages_are_counted_and_empty_ones_are_no_pages() {
        let raw = include_str!("../../../tests/data/board.json");
        let parse = |raw: &str| {
            by_kind("board")
                .unwrap()
                .parse(raw.as_bytes(), &Settings::default(), TIMING)
        };
        let result = parse(raw).unwrap();
        let value = |name: &str| result.metrics[name].quantity.value;
        assert!(
            (value("rate") * value("elapsed") - 500.0).abs() < 1e-6,
            "{result:?}"
        );
        let bytes = raw.split("\"bytes\":").nth(1).unwrap();
        let bytes = bytes.split(',').next().unwrap();
        let empty = raw.replace(&format!("\"bytes\":{bytes}"), "\"bytes\":500");
        assert!(
            parse(&empty)
                .unwrap_err()
                .to_string()
                .contains("no stories")
        );
    }
}

mod http_closed {
    use super::*;

    #[test]
    fn the_rate_is_of_whole_answers_and_none_at_all_is_an_error() {
        let raw = include_str!("../../../tests/data/http-download.json");
        let parse = |raw: &str| {
            by_kind("http-closed")
                .unwrap()
                .parse(raw.as_bytes(), &Settings::default(), TIMING)
        };
        let result = parse(raw).unwrap();
        let rate = result.metrics["rate"].quantity.value;
        assert!((rate - 5.0 / 0.006_094_438).abs() < 1e-6, "{result:?}");
        assert!(result.metrics["rate"].headline);
        let none = raw.replace("\"requests\":5", "\"requests\":0");
        assert!(parse(&none).unwrap_err().to_string().contains("not one"));
    }
}

mod http_rate {
    use super::*;

    fn report(requests: u64, timeouts: u64, lag: f64) -> String {
        format!(
            r#"{{"mode":"open","seconds":2.0,"requests":{requests},"bytes":{bytes},"due":2000,
            "errors":{{"connection":0,"status":0,"timeout":{timeouts},"unsent":0}},
            "latency":{{"count":2000,"mean":0.001,"p50":0.001,"p90":0.002,"p99":0.003,"p999":0.004,"max":0.005}},
            "lag":{{"count":2000,"mean":{lag},"p50":{lag},"p90":{lag},"p99":{lag},"p999":{lag},"max":{lag}}},
            "connections":5,"cpu_seconds":0.1,"download_seconds":[]}}"#,
            bytes = requests * 1000
        )
    }

    fn parse(raw: &str) -> WorkloadResult {
        by_kind("http-rate")
            .unwrap()
            .parse(raw.as_bytes(), &Settings::default(), TIMING)
            .unwrap()
    }

    #[test]
    fn a_rate_that_is_met_is_trusted() {
        let result = parse(&report(1998, 0, 0.000_01));
        assert_eq!((result.suspect, result.unreached), (vec![], None));
        assert_eq!(result.metrics["rate"].quantity.value, 999.0);
        assert!(result.metrics["latency.p99"].headline);
        assert!(matches!(result.work, Some(WorkDone::Rate(work)) if work.amount == 999.0));
    }

    #[test]
    fn saturation_failed_requests_and_a_late_generator_are_each_suspect() {
        let reasons = |raw: String| parse(&raw).suspect.join("; ");
        let unreached = parse(&report(1800, 0, 0.0)).unreached.unwrap();
        assert!(unreached.contains("saturated"), "{unreached}");
        assert!(reasons(report(1998, 10, 0.0)).contains("10 timeouts"));
        let late = |lag| {
            let late = parse(&report(1998, 0, lag)).late;
            late.map_or(String::new(), |late| late.text)
        };
        assert!(late(0.000_6).contains("(medians): the client lacks CPU time"));
        assert_eq!(late(0.000_4), "");
    }

    #[test]
    fn a_generator_that_is_late_at_the_99th_percentile_is_late() {
        let raw = report(1998, 0, 0.000_4).replacen(r#""p99":0.0004"#, r#""p99":0.002"#, 1);
        let late = parse(&raw).late.unwrap();
        assert!(!late.is_typical);
        let late = late.text;
        assert!(
            late.contains("2.00 ms of a latency of 3.00 ms (99th percentiles)"),
            "{late}"
        );
    }

    #[test]
    fn a_lateness_within_a_tick_of_the_timers_names_the_timers() {
        let with_timer = |lag, seconds| {
            let timer = format!(r#""timer":{seconds},"mode""#);
            let raw = report(1998, 0, lag).replacen(r#""mode""#, &timer, 1);
            parse(&raw).late.unwrap()
        };
        let late = with_timer(0.003, 0.004);
        assert!(late.is_of_timer && late.is_typical);
        assert!(
            late.text.contains("a resolution of 4.00 ms"),
            "{}",
            late.text
        );
        // A lag of many ticks, and high resolution timers: the client is the cause.
        for late in [with_timer(0.03, 0.004), with_timer(0.003, 1e-9)] {
            assert!(
                !late.is_of_timer && late.text.contains("lacks CPU time"),
                "{}",
                late.text
            );
        }
    }

    #[test]
    fn the_load_that_was_offered_is_a_metric() {
        let offered = &parse(&report(1998, 0, 0.0)).metrics["offered"];
        assert_eq!(offered.quantity.value, 1000.0);
    }

    #[test]
    fn a_run_without_a_single_answer_is_an_error_that_counts_what_went_wrong() {
        let raw = report(0, 2000, 0.0);
        let message = by_kind("http-rate")
            .unwrap()
            .parse(raw.as_bytes(), &Settings::default(), TIMING)
            .unwrap_err()
            .to_string();
        assert!(message.contains("2000 timeouts"), "{message}");
    }
}

mod memcached {
    use super::*;

    #[test]
    fn a_miss_is_a_failed_request() {
        let raw = include_str!("../../../tests/data/memcached.json");
        let parse = |raw: &str| {
            by_kind("memcached")
                .unwrap()
                .parse(raw.as_bytes(), &Settings::default(), TIMING)
        };
        assert_eq!(parse(raw).unwrap().metrics["errors"].quantity.value, 0.0);
        let missed = raw.replacen("\"status\":0", "\"status\":500", 1);
        assert!(parse(&missed).unwrap().suspect[0].contains("500 answers"));
    }
}

mod disk_read {
    use super::*;

    const RECORDED: &[u8] = include_bytes!("../../../tests/data/disk-read.json");

    #[test]
    fn the_measured_job_counts_and_the_warm_up_does_not() {
        let result = by_kind("disk-read")
            .unwrap()
            .parse(RECORDED, &Settings::default(), TIMING)
            .unwrap();
        // The recording: 274 907 136 bytes in 1.001 s; the warm-up read 135 942 144.
        let throughput = result.metrics["throughput"].quantity.value;
        assert!((throughput - 274_632_503.5).abs() < 1.0, "{throughput}");
        assert_eq!(result.metrics["latency.p99"].quantity.value, 226_304e-9);
    }

    #[test]
    fn remarks_that_fio_prints_before_its_json_are_passed_over() {
        let mut raw = b"note: both iodepth >= 1 and synchronous I/O engine are selected\n".to_vec();
        raw.extend_from_slice(RECORDED);
        assert!(
            by_kind("disk-read")
                .unwrap()
                .parse(&raw, &Settings::default(), TIMING)
                .is_ok()
        );
    }

    #[test]
    fn a_failed_job_is_an_error_with_the_systems_reason() {
        let text = String::from_utf8(RECORDED.to_vec()).unwrap();
        let (warmup, measured) = text.split_once("\"measured\"").unwrap();
        let raw = format!(
            "{warmup}\"measured\"{}",
            measured.replacen("\"error\":0", "\"error\":5", 1)
        );
        let message = by_kind("disk-read")
            .unwrap()
            .parse(raw.as_bytes(), &Settings::default(), TIMING)
            .unwrap_err()
            .to_string();
        assert!(message.contains("Input/output error"), "{message}");
    }
}
