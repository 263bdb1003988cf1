//! `iperf3-udp`: datagrams at a fixed rate; jitter, loss and reordering.

use super::output::{
    BIT_RATE, Metrics, PACKET_RATE, PERCENT, SECONDS, garbage, gigabytes, number, positive,
    shortfall,
};
use super::*;

/// See the module.
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

impl Workload for Iperf3Udp {
    fn kind(&self) -> &'static str {
        "iperf3-udp"
    }

    fn summary(&self) -> &'static str {
        "UDP datagrams at a fixed rate (iperf3)"
    }

    fn parameters(&self) -> &'static [Parameter] {
        &[RATE_MBIT, LENGTH, DIRECTION, STREAMS]
    }

    fn target_programs(&self) -> &'static [Program] {
        iperf3::PROGRAMS
    }

    fn client_programs(&self) -> &'static [Program] {
        iperf3::PROGRAMS
    }

    fn level(&self) -> Option<LoadLevel> {
        let title = "UDP rate asked for";
        Some(LoadLevel::of(&RATE_MBIT, BIT_RATE, 1e6, title))
    }

    fn serve(
        &self,
        target: &mut dyn Target,
        client: &dyn LoadClient,
        _settings: &Settings,
    ) -> Outcome<Service> {
        iperf3::serve(target, client)
    }

    fn load(
        &self,
        address: IpAddr,
        _scratch: &Scratch,
        settings: &Settings,
        timing: Timing,
    ) -> Outcome<LoadCommand> {
        let streams = STREAMS.integer(settings);
        let mut line = iperf3::client(address, timing, streams);
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

    fn parse(&self, raw: &[u8], settings: &Settings, _timing: Timing) -> Outcome<WorkloadResult> {
        let (output, end) = iperf3::read(raw)?;
        let missing = |name: &str| {
            garbage(
                "iperf3",
                &format!("`{name}` is missing; iperf3 3.7 or later is needed"),
            )
        };
        let received = end
            .sum_received
            .ok_or_else(|| missing("end.sum_received"))?;
        let sent = end.sum_sent.ok_or_else(|| missing("end.sum_sent"))?;
        let seconds = positive("iperf3", "end.sum_received.seconds", received.seconds)?;
        let bytes = number("iperf3", "end.sum_received.bytes", received.bytes)?;
        let packets = positive("iperf3", "end.sum_received.packets", received.packets)?;
        let lost = number(
            "iperf3",
            "end.sum_received.lost_packets",
            received.lost_packets,
        )?;
        let jitter = number("iperf3", "end.sum_received.jitter_ms", received.jitter_ms)? / 1e3;
        let sent_seconds = positive("iperf3", "end.sum_sent.seconds", sent.seconds)?;
        let sent_rate = 8.0 * number("iperf3", "end.sum_sent.bytes", sent.bytes)? / sent_seconds;
        let server = output
            .server_output_json
            .and_then(|server| server.end)
            .unwrap_or_default();
        let receivers: Vec<f64> = [&end.streams, &server.streams]
            .into_iter()
            .flatten()
            .filter_map(|stream| {
                stream
                    .udp
                    .as_ref()
                    .filter(|udp| udp.sender == Some(false))?
                    .out_of_order
            })
            .filter(|count| count.is_finite() && *count >= 0.0)
            .collect();

        let mut metrics = Metrics::default();
        metrics.lower("jitter", jitter, SECONDS, "UDP jitter (RFC 3550)");
        let loss = 100.0 * lost / packets;
        metrics.lower("loss", loss, PERCENT, "UDP datagrams lost");
        let (rate, title) = (8.0 * bytes / seconds, "UDP throughput received");
        metrics.higher("throughput", rate, BIT_RATE, title);
        metrics.neutral("sent", sent_rate, BIT_RATE, "UDP rate sent");
        let (rate, title) = (packets / seconds, "UDP datagrams sent");
        metrics.neutral("packets", rate, PACKET_RATE, title);
        if !receivers.is_empty() {
            let share = 100.0 * receivers.iter().sum::<f64>() / packets;
            let title = "UDP datagrams out of order";
            metrics.lower("out_of_order", share, PERCENT, title);
        }
        metrics.lead("jitter");
        metrics.lead("loss");
        let asked = RATE_MBIT.number(settings) * 1e6;
        let phrase = if target_sends(settings) {
            "send 1 GB over UDP"
        } else {
            "receive 1 GB over UDP"
        };
        let unreached = shortfall("the UDP sender", sent_rate, asked, BIT_RATE);
        Ok(WorkloadResult {
            // Nothing received is a result, a loss of 100 %; a cost per GB it has not.
            work: (bytes > 0.0).then(|| WorkDone::Rate(gigabytes(bytes / seconds, phrase))),
            metrics: metrics.0,
            unreached,
            ..WorkloadResult::default()
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value(result: &WorkloadResult, name: &str) -> f64 {
        result.metrics[name].quantity.value
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

    #[test]
    fn a_loss_of_all_datagrams_is_a_result_without_work() {
        let raw = br#"{"end":{"sum_sent":{"seconds":2,"bytes":25000000},
            "sum_received":{"seconds":2,"bytes":0,"packets":17857,"lost_packets":17857,"jitter_ms":0}}}"#;
        let result = Iperf3Udp.parse(raw, &Settings::default(), TIMING).unwrap();
        assert_eq!(value(&result, "loss"), 100.0);
        assert!(result.work.is_none());
    }
}
