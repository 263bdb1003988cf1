//! The metrics of charge-back as Prometheus and OpenMetrics text.
//!
//! Rendered from the guests of now, so that the series of a guest that is gone vanish; what such
//! guests used stays in `vtax_gone_*`, so that sums close. One guest has one series for each
//! stage that it ever used, and never one for each process.

use std::fmt::Write;
use vtax_observe::charge::{Charger, Stage, Totals};
use vtax_observe::guests::Guest;
use vtax_units::{Nanoseconds, Source};

/// How the text is to be written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// Prometheus' text format 0.0.4.
    Prometheus,
    /// OpenMetrics 1.0.
    OpenMetrics,
}

impl Format {
    /// The format that a scraper's `Accept` header asks for.
    pub fn accepted(accept: &str) -> Self {
        if accept.contains("application/openmetrics-text") {
            Self::OpenMetrics
        } else {
            Self::Prometheus
        }
    }

    /// The `Content-Type` of the text.
    pub fn content_type(self) -> &'static str {
        match self {
            Self::Prometheus => "text/plain; version=0.0.4; charset=utf-8",
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
        }
    }
}

/// What the exporter says of itself.
#[derive(Debug, Clone, Copy, Default)]
pub struct Own {
    /// CPU time of this process.
    pub cpu: Nanoseconds,
    /// Intervals charged.
    pub passes: u64,
    /// Things that failed.
    pub problems: u64,
    /// Series are made for so many guests at most, the oldest first.
    pub most_guests: usize,
}

/// The present state of a charger as text.
pub fn render(charger: &Charger, own: Own, format: Format) -> String {
    let mut guests: Vec<&Guest> = charger.guests().collect();
    guests.sort_by_key(|guest| guest.number);
    render_guests(
        &guests,
        charger.totals(),
        charger.method(),
        charger.energy_source().map(|(_, source)| source),
        own,
        format,
    )
}

fn render_guests(
    guests: &[&Guest],
    totals: &Totals,
    method: &str,
    energy: Option<Source>,
    own: Own,
    format: Format,
) -> String {
    let shown = guests.get(..own.most_guests).unwrap_or(guests);
    let mut text = Text {
        name: String::new(),
        out: String::with_capacity(4096 + 1024 * shown.len()),
        format,
    };
    let each = || {
        shown
            .iter()
            .filter_map(|guest| Some((*guest, totals.guests.get(&guest.number)?)))
    };

    text.family(
        "vtax_guest_cpu_seconds",
        Kind::Counter,
        "Host CPU time that a guest caused, by stage",
    );
    for (guest, sum) in each() {
        for stage in Stage::ALL {
            let time = sum.stages.get(stage);
            if stage == Stage::Vcpu || time.0 > 0 {
                text.guest(guest, &[("stage", stage.name())], time.as_secs_f64());
            }
        }
    }
    text.family(
        "vtax_host_cpu_seconds",
        Kind::Counter,
        "CPU time of the host itself",
    );
    text.sample(&[("work", "tasks")], totals.host.as_secs_f64());
    text.sample(&[("work", "softirq")], totals.host_softirq.as_secs_f64());
    text.family(
        "vtax_unattributed_cpu_seconds",
        Kind::Counter,
        "CPU time that nobody can be charged for",
    );
    text.sample(&[], totals.unattributed.as_secs_f64());
    text.family(
        "vtax_gone_cpu_seconds",
        Kind::Counter,
        "CPU time of guests that are gone",
    );
    text.sample(&[], totals.gone.stages.total().as_secs_f64());
    text.family(
        "vtax_cpu_seconds",
        Kind::Counter,
        "All CPU time of the machine, as measured: the sum of the above",
    );
    text.sample(&[], totals.total.as_secs_f64());

    if let Some(source) = energy {
        let source = source.to_string();
        let flag = ("source", source.as_str());
        text.family(
            "vtax_guest_energy_joules",
            Kind::Counter,
            "Energy that a guest caused",
        );
        for (guest, sum) in each() {
            text.guest(guest, &[flag], sum.energy.0);
        }
        for (name, help, joules) in [
            (
                "vtax_host_energy_joules",
                "Energy of the host itself",
                totals.host_energy,
            ),
            (
                "vtax_unattributed_energy_joules",
                "Energy that nobody can be charged for",
                totals.unattributed_energy,
            ),
            (
                "vtax_gone_energy_joules",
                "Energy of guests that are gone",
                totals.gone.energy,
            ),
        ] {
            text.family(name, Kind::Counter, help);
            text.sample(&[flag], joules.0);
        }
    }

    text.family(
        "vtax_guest_network_packets",
        Kind::Counter,
        "Packets of a guest's network devices; directions are the guest's",
    );
    for (guest, sum) in each() {
        text.guest(
            guest,
            &[("direction", "receive")],
            count(sum.exchanges.received),
        );
        text.guest(
            guest,
            &[("direction", "transmit")],
            count(sum.exchanges.sent),
        );
    }
    text.family(
        "vtax_guest_network_bytes",
        Kind::Counter,
        "Bytes of a guest's network devices, both directions",
    );
    for (guest, sum) in each() {
        text.guest(guest, &[], count(sum.exchanges.bytes));
    }
    text.family(
        "vtax_guest_block_requests",
        Kind::Counter,
        "Block requests of a guest",
    );
    for (guest, sum) in each() {
        text.guest(guest, &[], count(sum.exchanges.block_requests));
    }
    text.family("vtax_guest_exits", Kind::Counter, "VM exits of a guest");
    for (guest, sum) in each() {
        if let Some(exits) = sum.exchanges.exits {
            text.guest(guest, &[], count(exits));
        }
    }
    text.family("vtax_guest", Kind::Info, "What is known of a guest");
    for (guest, _) in each() {
        let manager = guest.manager.unwrap_or("");
        let uuid = guest.uuid.as_deref().unwrap_or("");
        text.guest(guest, &[("manager", manager), ("uuid", uuid)], 1.0);
    }

    text.family("vtax_guests", Kind::Gauge, "Guests of this host");
    text.sample(&[], count(guests.len() as u64));
    text.family(
        "vtax_exporter_omitted_guests",
        Kind::Gauge,
        "Guests beyond the limit, without series",
    );
    text.sample(&[], count((guests.len() - shown.len()) as u64));
    text.family(
        "vtax_exporter_cpu_seconds",
        Kind::Counter,
        "CPU time of this exporter",
    );
    text.sample(&[], own.cpu.as_secs_f64());
    text.family("vtax_exporter_passes", Kind::Counter, "Intervals charged");
    text.sample(&[], count(own.passes));
    text.family(
        "vtax_exporter_problems",
        Kind::Counter,
        "Things that failed in an interval; the log names them",
    );
    text.sample(&[], count(own.problems));
    text.family(
        "vtax_exporter",
        Kind::Info,
        "How soft interrupts are charged",
    );
    text.sample(&[("method", method)], 1.0);
    if format == Format::OpenMetrics {
        text.out.push_str("# EOF\n");
    }
    text.out
}

#[allow(
    clippy::cast_precision_loss,
    reason = "Prometheus knows only floating point numbers"
)]
fn count(value: u64) -> f64 {
    value as f64
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Counter,
    Gauge,
    Info,
}

struct Text {
    name: String,
    out: String,
    format: Format,
}

impl Text {
    /// Begins a family; its samples follow at once.
    fn family(&mut self, name: &str, kind: Kind, help: &str) {
        let suffix = match kind {
            Kind::Counter => "_total",
            Kind::Gauge => "",
            Kind::Info => "_info",
        };
        // OpenMetrics names a family without its samples' suffix, and knows the type `info`.
        let (family, kind) = match (self.format, kind) {
            (Format::OpenMetrics, Kind::Counter) => (name.to_owned(), "counter"),
            (Format::OpenMetrics, Kind::Info) => (name.to_owned(), "info"),
            (Format::Prometheus, Kind::Counter) => (format!("{name}{suffix}"), "counter"),
            _ => (format!("{name}{suffix}"), "gauge"),
        };
        // Writing into a string does not fail.
        let _ = writeln!(self.out, "# HELP {family} {help}.\n# TYPE {family} {kind}");
        self.name = format!("{name}{suffix}");
    }

    fn guest(&mut self, guest: &Guest, labels: &[(&str, &str)], value: f64) {
        let name = [
            ("guest", guest.name.as_str()),
            ("platform", guest.platform.name()),
        ];
        self.line(&name, labels, value);
    }

    fn sample(&mut self, labels: &[(&str, &str)], value: f64) {
        self.line(&[], labels, value);
    }

    fn line(&mut self, first: &[(&str, &str)], second: &[(&str, &str)], value: f64) {
        self.out.push_str(&self.name);
        let mut separator = '{';
        for (label, value) in first.iter().chain(second) {
            self.out.push(separator);
            separator = ',';
            self.out.push_str(label);
            self.out.push_str("=\"");
            for c in value.chars() {
                match c {
                    '\\' => self.out.push_str("\\\\"),
                    '"' => self.out.push_str("\\\""),
                    '\n' => self.out.push_str("\\n"),
                    c => self.out.push(c),
                }
            }
            self.out.push('"');
        }
        if separator == ',' {
            self.out.push('}');
        }
        let _ = writeln!(self.out, " {value}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::PathBuf;
    use vtax_observe::charge::GuestTotals;
    use vtax_observe::guests::{GuestKey, Platform};

    fn guest(number: u32, name: &str) -> Guest {
        Guest {
            number,
            key: GuestKey::Group {
                path: PathBuf::from(name),
                inode: u64::from(number),
            },
            platform: Platform::Docker,
            manager: None,
            name: name.to_owned(),
            uuid: None,
            cpus: None,
            process: None,
            group: None,
            domain: None,
            devices: Vec::new(),
            disks: Vec::new(),
            helpers: Vec::new(),
            is_new: false,
        }
    }

    fn totals(numbers: &[u32]) -> Totals {
        let mut totals = Totals::default();
        for number in numbers {
            let mut used = GuestTotals::default();
            used.stages.add(Stage::Vcpu, Nanoseconds(1_500_000_000));
            used.stages.add(Stage::Softirq, Nanoseconds(500_000_000));
            totals.guests.insert(*number, used);
        }
        totals.total = Nanoseconds(2_000_000_000);
        totals
    }

    fn text(guests: &[Guest], totals: &Totals, format: Format) -> String {
        let guests: Vec<&Guest> = guests.iter().collect();
        let own = Own {
            most_guests: 2,
            ..Own::default()
        };
        render_guests(
            &guests,
            totals,
            "traced",
            Some(Source::Modelled),
            own,
            format,
        )
    }

    #[test]
    fn a_guest_has_one_series_for_each_stage_that_it_used() {
        let text = text(&[guest(1, "web")], &totals(&[1]), Format::Prometheus);
        assert!(text.contains("# TYPE vtax_guest_cpu_seconds_total counter\n"));
        assert!(text.contains(
            "vtax_guest_cpu_seconds_total{guest=\"web\",platform=\"docker\",stage=\"vcpu\"} 1.5\n"
        ));
        assert!(text.contains("stage=\"softirq\"} 0.5\n"));
        assert!(!text.contains("emulator"));
        assert!(text.contains("vtax_guest_energy_joules_total{guest=\"web\",platform=\"docker\",source=\"modelled\"} 0\n"));
    }

    #[test]
    fn hostile_names_stay_inside_their_label() {
        let text = text(&[guest(1, "a\"} 1\n\\")], &totals(&[1]), Format::Prometheus);
        assert!(text.contains("{guest=\"a\\\"} 1\\n\\\\\",platform"));
        assert!(
            text.lines()
                .all(|line| line.starts_with('#') || line.starts_with("vtax_"))
        );
    }

    /// Kepler #1486: one series for each process, and those of dead ones for ever.
    #[test]
    fn the_number_of_series_is_bounded_and_those_of_the_dead_vanish() {
        let three = [guest(1, "a"), guest(2, "b"), guest(3, "c")];
        let shown = text(&three, &totals(&[1, 2, 3]), Format::Prometheus);
        assert!(!shown.contains("guest=\"c\""));
        assert!(shown.contains("vtax_exporter_omitted_guests 1\n"));
        let later = text(&three[1..], &totals(&[2, 3]), Format::Prometheus);
        assert!(!later.contains("guest=\"a\"") && later.contains("guest=\"c\""));
    }

    #[test]
    fn open_metrics_names_families_without_suffix_and_ends() {
        let text = text(&[guest(1, "web")], &totals(&[1]), Format::OpenMetrics);
        assert!(text.contains("# TYPE vtax_guest_cpu_seconds counter\n"));
        assert!(text.contains("# TYPE vtax_guest info\n"));
        assert!(text.ends_with("# EOF\n"));
        assert_eq!(
            Format::accepted("application/openmetrics-text; version=1.0.0"),
            Format::OpenMetrics
        );
        assert_eq!(Format::accepted("*/*"), Format::Prometheus);
    }
}
