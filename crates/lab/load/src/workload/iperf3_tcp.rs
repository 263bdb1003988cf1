// SPDX-License-Identifier: Apache-2.0
//! `iperf3-receive` and `iperf3-send`: bulk TCP into and out of the target.

use super::check::Claim;
use super::output::{BIT_RATE, Metrics, garbage, gigabytes, number, positive, shortfall};
use super::*;

/// The direction of the data, seen from the target.
pub enum Iperf3Tcp {
    /// The client sends, the target receives.
    Receive,
    /// The target sends.
    Send,
}

const RATE_MBIT: Parameter = Parameter::new("load.rate_mbit", Domain::Number(0.0, 1e6), "0")
    .help("total rate of all streams in Mbit/s; 0: as fast as it goes");
const STREAMS: Parameter = Parameter::new("load.streams", Domain::Integer(1, 128), "1")
    .help("TCP connections in parallel");
const LENGTH: Parameter = Parameter::new("load.length", Domain::Integer(1, 1_048_576), "131072")
    .help("bytes of each write and read");
const WINDOW: Parameter = Parameter::unset("load.window", Domain::Integer(2048, 536_870_912))
    .help("socket buffer in bytes; unset: the kernel tunes it");

const ABOUT: About = About {
    parameters: &[RATE_MBIT, STREAMS, LENGTH, WINDOW],
    target_programs: iperf3::PROGRAMS,
    client_programs: iperf3::PROGRAMS,
    level: Some(LoadLevel::of(
        &RATE_MBIT,
        BIT_RATE,
        1e6,
        "TCP rate asked for",
    )),
    ..About::NONE
};

static RECEIVE: About = About {
    kind: "iperf3-receive",
    summary: "the target receives bulk TCP data from the client (iperf3)",
    ..ABOUT
};

static SEND: About = About {
    kind: "iperf3-send",
    summary: "the target sends bulk TCP data to the client (iperf3)",
    ..ABOUT
};

impl Workload for Iperf3Tcp {
    fn about(&self) -> &'static About {
        match self {
            Self::Receive => &RECEIVE,
            Self::Send => &SEND,
        }
    }

    fn serve(&self, context: &mut ServeContext) -> Outcome<Service> {
        iperf3::serve(context)
    }

    fn load(&self, spec: LoadSpec) -> Outcome<LoadCommand> {
        let settings = spec.settings;
        let streams = STREAMS.integer(settings);
        let mut line = iperf3::client(spec.address, spec.timing, streams);
        iperf3::option(&mut line, "--length", LENGTH.integer(settings));
        let rate = RATE_MBIT.number(settings);
        if rate > 0.0 {
            let each = iperf3::bitrate_per_stream(rate, streams);
            iperf3::option(&mut line, "--bitrate", each);
        }
        let window = WINDOW.integer(settings);
        if window > 0 {
            iperf3::option(&mut line, "--window", window);
        }
        if matches!(self, Self::Send) {
            line.push("--reverse".to_owned());
            // Only the sender knows the round trips.
            line.push("--get-server-output".to_owned());
        }
        Ok(LoadCommand::client(line))
    }

    fn parse(&self, raw: &[u8], settings: &Settings, timing: Timing) -> Outcome<WorkloadResult> {
        let (output, end) = iperf3::read(raw)?;
        let of_server = output.server_output_json.and_then(|server| server.end);
        let round_trip = end
            .round_trip()
            .or_else(|| of_server.as_ref().and_then(iperf3::End::round_trip));
        let received = end
            .sum_received
            .ok_or_else(|| garbage("iperf3", "`end.sum_received` is missing"))?;
        let sent = end.sum_sent.unwrap_or_default();
        let seconds = positive("iperf3", "end.sum_received.seconds", received.seconds)?;
        let bytes = number("iperf3", "end.sum_received.bytes", received.bytes)?;
        if bytes == 0.0 {
            let detail = "not one byte arrived in the measured part; check the link's settings and make it longer";
            return Err(garbage("iperf3", detail));
        }
        let throughput = 8.0 * bytes / seconds;
        let (title, phrase) = match self {
            Self::Receive => ("TCP throughput into the target", "receive 1 GB"),
            Self::Send => ("TCP throughput out of the target", "send 1 GB"),
        };
        let mut metrics = Metrics::default();
        metrics.add_in(metric::THROUGHPUT, throughput, BIT_RATE, title);
        metrics.lead(metric::THROUGHPUT);
        // Only senders whose kernel reports retransmissions have this value.
        if sent.retransmits.is_some() {
            let retransmits = number("iperf3", "end.sum_sent.retransmits", sent.retransmits)?;
            metrics.add(metric::RETRANSMITS, retransmits / seconds, "");
        }
        if let Some(seconds) = round_trip {
            metrics.add(metric::RTT_MEAN, seconds, "");
        }
        let into_target = matches!(self, Self::Receive);
        let claim = Claim::bulk(into_target, bytes / seconds, LENGTH.integer(settings));
        let mut suspect: Vec<String> = iperf3::duration(seconds, timing).into_iter().collect();
        if sent.bytes.is_some() {
            let sent = number("iperf3", "end.sum_sent.bytes", sent.bytes)?;
            suspect.extend(check::received("iperf3", bytes, sent, seconds));
        }
        let asked = RATE_MBIT.number(settings) * 1e6;
        suspect.extend(check::excess(
            "the TCP rate",
            throughput,
            asked,
            BIT_RATE,
            seconds,
        ));
        let unreached = shortfall("the TCP rate", throughput, asked, BIT_RATE);
        let work = WorkDone::Rate(gigabytes(bytes / seconds, phrase));
        Ok(WorkloadResult {
            suspect,
            claims: vec![claim],
            unreached,
            ..metrics.result(work)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use vtax_host::settings::Level;

    const RECEIVE: &[u8] = include_bytes!("../../tests/data/iperf3-receive.json");
    const SEND: &[u8] = include_bytes!("../../tests/data/iperf3-send.json");

    #[test]
    fn throughput_and_work_are_what_the_receiver_got_in_the_measured_part() {
        let result = Iperf3Tcp::Receive
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
        let result = Iperf3Tcp::Send
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
        let rtt = |workload: Iperf3Tcp, raw: &[u8]| {
            let result = workload.parse(raw, &Settings::default(), TIMING).unwrap();
            result.metrics["rtt.mean"].quantity.value
        };
        // Two streams, with 14 and 13 µs.
        assert!((rtt(Iperf3Tcp::Receive, RECEIVE) - 13.5e-6).abs() < 1e-9);
        let reversed = br#"{"end":{"sum_received":{"seconds":2.0,"bytes":9},
            "streams":[{"sender":{"mean_rtt":0}}]},
            "server_output_json":{"end":{"streams":[{"sender":{"mean_rtt":1500}}]}}}"#;
        assert!((rtt(Iperf3Tcp::Send, reversed) - 1.5e-3).abs() < 1e-9);
    }

    #[test]
    fn a_rate_that_is_not_reached_makes_the_trial_suspect() {
        let asked = |rate| Settings([("load.rate_mbit".to_owned(), Level::Number(rate))].into());
        let unreached = |rate| {
            Iperf3Tcp::Receive
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
        let message = Iperf3Tcp::Receive
            .parse(raw, &Settings::default(), TIMING)
            .unwrap_err()
            .to_string();
        assert!(message.contains("not one byte"), "{message}");
    }
}
