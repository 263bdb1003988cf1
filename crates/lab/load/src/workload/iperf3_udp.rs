// SPDX-License-Identifier: Apache-2.0
//! `iperf3-udp`: datagrams at a fixed rate; jitter, loss and reordering.

use super::check::{Account, Amount, Claim};
use super::output::{BIT_RATE, Metrics, garbage, gigabytes, number, positive, shortfall};
use super::*;

/// The workload.
pub struct Iperf3Udp;

const RATE_MBIT: Parameter = Parameter::new("load.rate_mbit", Domain::Number(0.001, 1e6), "100")
    .help("total rate of all streams in Mbit/s");
const LENGTH: Parameter = Parameter::new("load.length", Domain::Integer(16, 65_507), "1400")
    .help("bytes of payload of each datagram");
const DIRECTION: Parameter = Parameter::new(
    "load.direction",
    Domain::Choice(&["receive", "send"]),
    "receive",
)
.help("whether the target receives or sends");
const STREAMS: Parameter =
    Parameter::new("load.streams", Domain::Integer(1, 128), "1").help("UDP flows in parallel");

/// Whether the target sends; it receives by default.
fn target_sends(settings: &Settings) -> bool {
    DIRECTION.text(settings) == "send"
}

static ABOUT: About = About {
    kind: "iperf3-udp",
    summary: "UDP datagrams at a fixed rate (iperf3)",
    parameters: &[RATE_MBIT, LENGTH, DIRECTION, STREAMS],
    target_programs: iperf3::PROGRAMS,
    client_programs: iperf3::PROGRAMS,
    level: Some(LoadLevel::of(
        &RATE_MBIT,
        BIT_RATE,
        1e6,
        "UDP rate asked for",
    )),
    ..About::NONE
};

impl Workload for Iperf3Udp {
    fn about(&self) -> &'static About {
        &ABOUT
    }

    fn serve(&self, context: &mut ServeContext) -> Outcome<Service> {
        iperf3::serve(context)
    }

    fn load(&self, spec: LoadSpec) -> Outcome<LoadCommand> {
        let settings = spec.settings;
        let streams = STREAMS.integer(settings);
        let mut line = iperf3::client(spec.address, spec.timing, streams);
        line.push("--udp".to_owned());
        let each = iperf3::bitrate_per_stream(RATE_MBIT.number(settings), streams);
        iperf3::option(&mut line, "--bitrate", each);
        iperf3::option(&mut line, "--length", LENGTH.integer(settings));
        // Only a receiver sees the order of datagrams.
        let direction = if target_sends(settings) {
            "--reverse"
        } else {
            "--get-server-output"
        };
        line.push(direction.to_owned());
        Ok(LoadCommand::client(line))
    }

    fn parse(&self, raw: &[u8], settings: &Settings, timing: Timing) -> Outcome<WorkloadResult> {
        let (output, end) = iperf3::read(raw)?;
        let missing = |name: &str, place: &str| {
            let detail = format!("`{name}` is missing; iperf3 3.11 or later is needed {place}");
            garbage("iperf3", &detail)
        };
        let sent = end
            .sent_datagrams()
            .ok_or_else(|| missing("end.sum_sent", "as the client"))?;
        let sent_seconds = positive("iperf3", "end.sum_sent.seconds", sent.seconds)?;
        let sent_bytes = positive("iperf3", "end.sum_sent.bytes", sent.bytes)?;
        // `end.sum_sent.packets` lacks the datagrams that the receiver, not the sender, omitted as its warm-up.
        let length = output.start.test_start.blksize;
        let length = positive("iperf3", "start.test_start.blksize", length)?;
        // The receiver's counts come from the receiver itself: before 3.14, the sender's copy includes the lost
        // datagrams of the omitted part (`--omit`), and excludes its packets.
        let server = output.server_output_json.and_then(|server| server.end);
        let place = if server.is_some() {
            "in the target"
        } else {
            "as the client"
        };
        let receiver = server.as_ref().unwrap_or(&end);
        let received = receiver
            .sum_received
            .as_ref()
            .ok_or_else(|| missing("end.sum_received", place))?;
        let seconds = positive("iperf3", "end.sum_received.seconds", received.seconds)?;
        let bytes = number("iperf3", "end.sum_received.bytes", received.bytes)?;

        let mut metrics = Metrics::default();
        let mut suspect = Vec::new();
        let loss = if bytes > 0.0 {
            let jitter = number("iperf3", "end.sum_received.jitter_ms", received.jitter_ms)?;
            metrics.add(metric::JITTER, jitter / 1e3, "");
            let (lost, packets) = (received.lost_packets, received.packets);
            let loss = share("end.sum_received.lost_packets", lost, packets)?;
            suspect.extend(check::loss("iperf3", loss, bytes, sent_bytes, seconds));
            let unordered = receiver.streams.iter().filter_map(|stream| {
                let udp = stream.udp.as_ref();
                udp.filter(|udp| udp.sender == Some(false))?.out_of_order
            });
            let unordered: Vec<f64> = unordered.collect();
            if !unordered.is_empty() {
                let share = share("out_of_order", Some(unordered.iter().sum()), packets)?;
                metrics.add(metric::OUT_OF_ORDER, share, "");
            }
            loss
        } else {
            // A receiver that got no datagram does not know how many were sent: it reports 0 packets, a negative number
            // or nearly 2^64.
            100.0
        };
        metrics.add(metric::LOSS, loss, "");
        let (rate, title) = (8.0 * bytes / seconds, "UDP throughput received");
        metrics.add_in(metric::THROUGHPUT, rate, BIT_RATE, title);
        let sent_rate = 8.0 * sent_bytes / sent_seconds;
        metrics.add(metric::SENT, sent_rate, "");
        let rate = sent_bytes / length / sent_seconds;
        metrics.add(metric::PACKETS, rate, "");
        metrics.lead(metric::JITTER);
        metrics.lead(metric::LOSS);

        let asked = RATE_MBIT.number(settings) * 1e6;
        let (phrase, account) = if target_sends(settings) {
            ("send 1 GB over UDP", Account::BytesFromTarget)
        } else {
            ("receive 1 GB over UDP", Account::BytesToTarget)
        };
        suspect.extend(iperf3::duration(seconds, timing));
        let who = "the UDP sender";
        suspect.extend(check::excess(who, sent_rate, asked, BIT_RATE, sent_seconds));
        let amount = Amount::PerSecond(bytes / seconds);
        let claims = vec![Claim::at_most("UDP payload received", amount, account)];
        Ok(WorkloadResult {
            // A loss of 100 % is a result, without a cost per GB.
            work: (bytes > 0.0).then(|| WorkDone::Rate(gigabytes(bytes / seconds, phrase))),
            metrics: metrics.0,
            suspect,
            claims,
            unreached: shortfall(who, sent_rate, asked, BIT_RATE),
            ..WorkloadResult::default()
        })
    }
}

/// Returns a part of the receiver's datagrams, in percent of all.
fn share(name: &str, part: Option<f64>, packets: Option<f64>) -> Outcome<f64> {
    let packets = positive("iperf3", "end.sum_received.packets", packets)?;
    let part = number("iperf3", name, part)?;
    if part > packets {
        let detail = format!("`{name}` is {part}, more than the {packets} datagrams there were");
        return Err(garbage("iperf3", &detail));
    }
    Ok(100.0 * part / packets)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value(result: &WorkloadResult, name: &str) -> f64 {
        result.metrics[name].quantity.value
    }

    fn at(rate_mbit: f64) -> Settings {
        let rate = vtax_host::settings::Level::Number(rate_mbit);
        Settings([("load.rate_mbit".to_owned(), rate)].into())
    }

    fn parse_at(raw: &[u8], rate_mbit: f64) -> Outcome<WorkloadResult> {
        Iperf3Udp.parse(raw, &at(rate_mbit), TIMING)
    }

    #[test]
    fn loss_and_jitter_are_the_receivers_in_percent_and_seconds() {
        let raw = include_bytes!("../../tests/data/iperf3-udp.json");
        let result = Iperf3Udp.parse(raw, &Settings::default(), TIMING).unwrap();
        // The recording: 33 of 17 856 lost, jitter 0.008 391 892 7 ms.
        assert!((value(&result, "loss") - 0.184_811_827_957).abs() < 1e-9);
        assert!((value(&result, "jitter") - 8.391_892_701_607e-6).abs() < 1e-15);
        assert_eq!(value(&result, "out_of_order"), 0.0);
        assert_eq!(result.unreached, None);
    }

    #[test]
    fn order_is_taken_from_the_receiver_in_either_direction() {
        let raw = include_bytes!("../../tests/data/iperf3-udp-send.json");
        let result = Iperf3Udp.parse(raw, &Settings::default(), TIMING).unwrap();
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
                &include_bytes!("../../tests/data/iperf3-udp-3.12-omit-1.json")[..],
                2,
                277.0,
                892.0,
            ),
            (
                &include_bytes!("../../tests/data/iperf3-udp-3.12-omit-4.json")[..],
                1,
                125.0,
                445.0,
            ),
            (
                &include_bytes!("../../tests/data/iperf3-udp-send-3.12-omit-3.json")[..],
                2,
                256.0,
                893.0,
            ),
        ] {
            let timing = Timing {
                duration: Duration::from_secs(seconds),
                ..TIMING
            };
            let result = Iperf3Udp.parse(raw, &at(5.0), timing).unwrap();
            let loss = value(&result, "loss");
            assert!((loss - 100.0 * lost / packets).abs() < 1e-9, "{loss}");
            assert_eq!(result.suspect, Vec::<String>::new());
            assert_eq!(result.unreached, None);
        }
    }

    #[test]
    fn datagrams_sent_are_the_senders_though_a_queue_delays_the_receiver() {
        // 80 Mbit/s over a link of 50 Mbit/s, whose queue is 50 ms long.
        let raw = include_bytes!("../../tests/data/iperf3-udp-send-3.12-queue.json");
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
            &include_bytes!("../../tests/data/iperf3-udp-3.12-all-lost.json")[..],
            &include_bytes!("../../tests/data/iperf3-udp-3.12-all-lost-omit-1.json")[..],
            &include_bytes!("../../tests/data/iperf3-udp-3.18-all-lost.json")[..],
            &include_bytes!("../../tests/data/iperf3-udp-3.18-all-lost-omit-1.json")[..],
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
        let raw = include_str!("../../tests/data/iperf3-udp-3.9.json");
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
        let raw = include_str!("../../tests/data/iperf3-udp-3.12-omit-1.json");
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
