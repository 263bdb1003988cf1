// SPDX-License-Identifier: Apache-2.0
//! Telemetry as Prometheus text (exposition format 0.0.4).

use vtax_http::metrics::{Exposition, Families, Format, Kind};

use super::{BUCKET_BOUNDS, CountedBy, Distribution, PortSnapshot, Totals};

/// The page for all ports.
pub fn text(ports: &[PortSnapshot]) -> String {
    let mut page = Page {
        ports,
        out: Exposition::new(Format::Text),
    };
    let packets =
        "Packets, as the guest sees directions; its tap's count where the kernel moves them.";
    page.counter("packets", "direction", packets, |of| {
        [("rx", of.rx_packets), ("tx", of.tx_packets)]
    });
    page.counter(
        "bytes",
        "direction",
        "Bytes without virtio-net headers.",
        |of| [("rx", of.rx_bytes), ("tx", of.tx_bytes)],
    );
    page.counter("calls", "queue", "Call events sent to the guest.", |of| {
        [("rx", of.rx_calls), ("tx", of.tx_calls)]
    });
    page.counter("kicks", "", "Kick events received from the guest.", |of| {
        [("", of.kicks)]
    });
    let suppressed = "Notifications that were not needed.";
    page.counter("notifications_suppressed", "kind", suppressed, |of| {
        let cancelled = ("call_cancelled", of.calls_cancelled);
        [
            ("call", of.calls_suppressed),
            cancelled,
            ("kick", of.kicks_suppressed),
        ]
    });
    page.counter("drops", "reason", "Packets dropped.", |of| of.drops.named());
    let throttled = "Times that frames of the guest had to wait for the port's rate.";
    page.counter("throttled", "", throttled, |of| [("", of.throttled)]);
    page.counter(
        "control_frames",
        "result",
        "Control frames from the guest.",
        |of| {
            let answered = ("answered", of.control_frames);
            let malformed = ("malformed", of.control_malformed);
            [answered, malformed, ("limited", of.control_limited)]
        },
    );
    let faults = "Stops because of a front end's behaviour.";
    page.counter("faults", "", faults, |of| [("", of.faults)]);
    let wakeups = "Wake-ups of the worker for a deadline.";
    page.counter("timer_wakeups", "", wakeups, |of| [("", of.timer_wakeups)]);
    page.family(
        "cpu_seconds",
        Kind::Counter,
        "Processor time of the worker spent on the port.",
        |port, add| {
            add(&[], port.totals.cpu_ns as f64 / 1e9);
        },
    );
    page.family(
        "budget_seconds",
        Kind::Gauge,
        "The hold budget in force.",
        |port, add| {
            add(&[("mode", port.mode.name())], port.budget_us / 1e6);
        },
    );
    page.histogram(
        "rx_hold_seconds",
        "Age of the oldest packet at an RX call.",
        1e-9,
        |port| &port.hold_ns,
    );
    page.histogram("rx_call_packets", "Packets an RX call.", 1.0, |port| {
        &port.rx_batch
    });
    page.histogram("tx_drain_packets", "Packets a TX drain.", 1.0, |port| {
        &port.tx_batch
    });
    page.out.finish()
}

struct Page<'a> {
    ports: &'a [PortSnapshot],
    out: Exposition,
}

impl Page<'_> {
    fn begin(&mut self, name: &str, kind: Kind, help: &str) {
        self.out
            .family(&format!("vtax_nic_{name}"), kind, None, help);
    }

    /// `each` adds a port's samples, by their further labels.
    fn family(
        &mut self,
        name: &str,
        kind: Kind,
        help: &str,
        each: impl Fn(&PortSnapshot, &mut dyn FnMut(&[(&str, &str)], f64)),
    ) {
        self.begin(name, kind, help);
        for port in self.ports {
            each(port, &mut |labels, value| {
                let labels = [&[("port", port.port.as_str())], labels].concat();
                self.out.sample(&labels, value);
            });
        }
    }

    /// A counter whose samples differ in the value of `label`, if it has a name. Frames that nobody counts have none.
    fn counter<const N: usize>(
        &mut self,
        name: &str,
        label: &str,
        help: &str,
        of: impl Fn(&Totals) -> [(&'static str, u64); N],
    ) {
        let is_of_frames = matches!(name, "packets" | "bytes");
        self.family(name, Kind::Counter, help, |port, add| {
            if is_of_frames && port.frames_counted_by == CountedBy::Nobody {
                return;
            }
            for (value, count) in of(&port.totals) {
                let labels = Some((label, value)).filter(|(label, _)| !label.is_empty());
                add(labels.as_slice(), count as f64);
            }
        });
    }

    fn histogram(
        &mut self,
        name: &str,
        help: &str,
        scale: f64,
        of: impl Fn(&PortSnapshot) -> &Distribution,
    ) {
        self.begin(name, Kind::Histogram, help);
        for port in self.ports {
            let distribution = of(port);
            let bounds = BUCKET_BOUNDS.iter().map(|bound| *bound as f64 * scale);
            self.out.histogram(
                &[("port", &port.port)],
                bounds.zip(distribution.buckets.iter().copied()),
                distribution.sum * scale,
                distribution.count,
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::hold::{Mode, Nanos};
    use crate::telemetry::PortCounters;

    fn snapshot(name: &str) -> PortSnapshot {
        let mut counters = PortCounters::default();
        counters.totals.rx_packets = 12;
        counters.rx_call(Nanos(1_500), 12);
        counters.snapshot(name, Mode::Adaptive, Nanos::from_micros(1_000))
    }

    #[test]
    fn a_page_has_types_labels_and_values() {
        let page = text(&[snapshot("a"), snapshot("b")]);
        for line in [
            "# TYPE vtax_nic_packets_total counter",
            "vtax_nic_packets_total{port=\"a\",direction=\"rx\"} 12",
            "vtax_nic_packets_total{port=\"b\",direction=\"tx\"} 0",
            "vtax_nic_budget_seconds{port=\"a\",mode=\"adaptive\"} 0.001",
            "vtax_nic_rx_call_packets_bucket{port=\"a\",le=\"1e1\"} 0",
            "vtax_nic_rx_call_packets_bucket{port=\"a\",le=\"2e1\"} 1",
            "vtax_nic_rx_call_packets_bucket{port=\"a\",le=\"+Inf\"} 1",
            "vtax_nic_rx_hold_seconds_count{port=\"a\"} 1",
        ] {
            assert!(
                page.lines().any(|found| found == line),
                "no '{line}' in\n{page}"
            );
        }
    }

    /// Splits a line into the port's name, unescaped, and the value.
    fn read_back(line: &str) -> Option<(String, f64)> {
        let rest = line.split_once("{port=\"")?.1;
        let (mut name, mut chars) = (String::new(), rest.chars());
        loop {
            match chars.next()? {
                '"' => break,
                '\\' => name.push(match chars.next()? {
                    'n' => '\n',
                    other => other,
                }),
                other => name.push(other),
            }
        }
        Some((name, line.rsplit_once("} ")?.1.parse().ok()?))
    }

    proptest! {
        #[test]
        fn hostile_names_stay_inside_their_label(name: String) {
            for line in text(&[snapshot(&name)]).split('\n') {
                if !line.is_empty() && !line.starts_with('#') {
                    let (read, _) = read_back(line).expect("a line of a name, labels and a number");
                    prop_assert_eq!(&read, &name);
                }
            }
        }
    }
}
