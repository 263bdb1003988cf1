//! `iperf3-udp`: datagrams at a fixed rate; jitter, loss and reordering.

use super::driver::ClientLoad;
use super::output::{Metrics, garbage, gigabytes, number, positive, shortfall};
use super::{
    Extent, Load, LoadClient, Program, Service, Timing, WorkDone, Workload, WorkloadResult, iperf3,
};
use vtax_guest::platform::Target;
use vtax_host::HostError;
use vtax_host::settings::{Domain, Parameter, Settings};
use vtax_report::results::Better;
use vtax_units::{Base, Unit};

/// See the module.
pub struct Iperf3Udp;

const DEFAULT_RATE_MBIT: f64 = 100.0;

/// Whether the target sends; it receives by default.
fn target_sends(settings: &Settings) -> bool {
    settings.text("load.direction") == Some("send")
}

impl Workload for Iperf3Udp {
    fn kind(&self) -> &'static str {
        "iperf3-udp"
    }

    fn summary(&self) -> &'static str {
        "UDP datagrams at a fixed rate (iperf3)"
    }

    fn parameters(&self) -> &'static [Parameter] {
        const PARAMETERS: &[Parameter] = &[
            Parameter {
                key: "load.rate_mbit",
                domain: Domain::Number(0.001, 1e6),
                default: Some("100"),
                help: "total rate of all streams in Mbit/s",
            },
            Parameter {
                key: "load.length",
                domain: Domain::Integer(16, 65_507),
                default: Some("1400"),
                help: "bytes of payload of each datagram",
            },
            Parameter {
                key: "load.direction",
                domain: Domain::Choice(&["receive", "send"]),
                default: Some("receive"),
                help: "whether the target receives or sends",
            },
            Parameter {
                key: "load.streams",
                domain: Domain::Integer(1, 128),
                default: Some("1"),
                help: "UDP flows in parallel",
            },
        ];
        PARAMETERS
    }

    fn target_programs(&self) -> &'static [Program] {
        iperf3::PROGRAMS
    }

    fn client_programs(&self) -> &'static [Program] {
        iperf3::PROGRAMS
    }

    fn extent(&self, _settings: &Settings) -> Extent {
        Extent::FixedDuration
    }

    fn serve(
        &self,
        target: &mut dyn Target,
        client: &dyn LoadClient,
        _settings: &Settings,
    ) -> Result<Service, HostError> {
        iperf3::serve(target, client)
    }

    fn drive(
        &self,
        target: &mut dyn Target,
        client: &dyn LoadClient,
        service: Service,
        settings: &Settings,
        timing: Timing,
    ) -> Result<Box<dyn Load>, HostError> {
        let streams = settings.integer("load.streams", 1);
        let mut line = iperf3::client(target, timing, streams);
        line.push("--udp".to_owned());
        let rate = settings.number("load.rate_mbit", DEFAULT_RATE_MBIT);
        iperf3::option(
            &mut line,
            "--bitrate",
            iperf3::bitrate_per_stream(rate, streams),
        );
        iperf3::option(&mut line, "--length", settings.integer("load.length", 1400));
        if target_sends(settings) {
            line.push("--reverse".to_owned());
        } else {
            // Only a receiver sees the order of datagrams.
            line.push("--get-server-output".to_owned());
        }
        let load = ClientLoad::start(
            client,
            service,
            line,
            iperf3::PROGRAMS,
            Extent::FixedDuration,
            timing,
        )?;
        Ok(Box::new(load))
    }

    fn parse(
        &self,
        raw: &[u8],
        settings: &Settings,
        _timing: Timing,
    ) -> Result<WorkloadResult, HostError> {
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

        let bit_rate = Unit::per(Base::Bit, Base::Second);
        let percent = Unit::of(Base::Percent);
        let mut metrics = Metrics::default();
        metrics.add(
            "jitter",
            jitter,
            Unit::of(Base::Second),
            Better::Lower,
            "UDP jitter (RFC 3550)",
        );
        metrics.add(
            "loss",
            100.0 * lost / packets,
            percent,
            Better::Lower,
            "UDP datagrams lost",
        );
        metrics.add(
            "throughput",
            8.0 * bytes / seconds,
            bit_rate,
            Better::Higher,
            "UDP throughput received",
        );
        metrics.add(
            "sent",
            sent_rate,
            bit_rate,
            Better::Neither,
            "UDP rate sent",
        );
        let packet_rate = Unit::per(Base::Packet, Base::Second);
        metrics.add(
            "packets",
            packets / seconds,
            packet_rate,
            Better::Neither,
            "UDP datagrams sent",
        );
        if !receivers.is_empty() {
            let share = 100.0 * receivers.iter().sum::<f64>() / packets;
            metrics.add(
                "out_of_order",
                share,
                percent,
                Better::Lower,
                "UDP datagrams out of order",
            );
        }
        metrics.lead("jitter");
        metrics.lead("loss");
        let asked = settings.number("load.rate_mbit", DEFAULT_RATE_MBIT) * 1e6;
        let phrase = if target_sends(settings) {
            "send 1 GB over UDP"
        } else {
            "receive 1 GB over UDP"
        };
        Ok(WorkloadResult {
            // Nothing received is a result, a loss of 100 %; a cost per GB it has not.
            work: (bytes > 0.0).then(|| WorkDone::Rate(gigabytes(bytes / seconds, phrase))),
            metrics: metrics.0,
            suspect: shortfall("the UDP sender", sent_rate, asked, bit_rate)
                .into_iter()
                .collect(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    const TIMING: Timing = Timing {
        warmup: Duration::from_secs(1),
        duration: Duration::from_secs(2),
    };

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
        assert!(result.suspect.is_empty(), "{:?}", result.suspect);
    }

    #[test]
    fn order_is_taken_from_the_receiver_in_either_direction() {
        let raw = include_bytes!("../../tests/data/iperf3-udp-send.json");
        let result = Iperf3Udp.parse(raw, &Settings::default(), TIMING).unwrap();
        assert!(result.metrics.contains_key("out_of_order"));
        // 50 of the default 100 Mbit/s were sent.
        assert!(result.suspect[0].contains("50 %"), "{:?}", result.suspect);
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
