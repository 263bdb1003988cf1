// SPDX-License-Identifier: Apache-2.0
//! Metrics as text for Prometheus: OpenMetrics 1.0, or the older text format 0.0.4, as the client asks.

use std::fmt::Write as _;

/// The format of the text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// OpenMetrics 1.0.
    OpenMetrics,
    /// Prometheus' text format 0.0.4.
    Text,
}

impl Format {
    /// The format that an `Accept` header requests. Prometheus requests OpenMetrics since 2.5; a browser does not.
    pub fn accepted(accept: &str) -> Self {
        let wants = accept.split(',').any(|part| {
            let mut parts = part.split(';').map(str::trim);
            let is_open = parts
                .next()
                .is_some_and(|kind| kind.eq_ignore_ascii_case("application/openmetrics-text"));
            let refused = |quality: &str| quality.parse().is_ok_and(|quality: f64| quality <= 0.0);
            is_open && !parts.any(|part| part.strip_prefix("q=").is_some_and(refused))
        });
        if wants { Self::OpenMetrics } else { Self::Text }
    }

    /// The `Content-Type` header.
    pub fn content_type(self) -> &'static str {
        match self {
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
            Self::Text => "text/plain; version=0.0.4; charset=utf-8",
        }
    }
}

/// The type of a family of series.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A counter, which only grows. The names of its samples end in `_total`.
    Counter,
    /// A gauge.
    Gauge,
    /// Information in labels; the value is 1. The names of its samples end in `_info`.
    Info,
    /// A histogram: see [`Exposition::histogram`].
    Histogram,
}

impl Kind {
    /// The suffix of the names of its samples.
    pub fn suffix(self) -> &'static str {
        match self {
            Self::Counter => "_total",
            Self::Gauge | Self::Histogram => "",
            Self::Info => "_info",
        }
    }
}

/// A writer of families of series, one after the other.
pub trait Families {
    /// Begins a family. `name` has no suffix of its kind. The last word of `name` is its unit; where `unit` names it,
    /// it is also written as the family's unit.
    fn family(&mut self, name: &str, kind: Kind, unit: Option<&str>, help: &str);

    /// Adds a sample to the current family.
    fn sample(&mut self, labels: &[(&str, &str)], value: f64);
}

/// Metrics as text.
#[derive(Debug)]
pub struct Exposition {
    format: Format,
    text: String,
    sample: String,
}

impl Exposition {
    /// An exposition without metrics.
    pub fn new(format: Format) -> Self {
        Self {
            format,
            text: String::new(),
            sample: String::new(),
        }
    }

    /// Adds a histogram to the current family: `count` values with this `sum`, and for each of `buckets` an upper bound
    /// and the number of values up to it.
    pub fn histogram(
        &mut self,
        labels: &[(&str, &str)],
        buckets: impl IntoIterator<Item = (f64, u64)>,
        sum: f64,
        count: u64,
    ) {
        for (bound, below) in buckets {
            let bound = format!("{bound:e}");
            self.line("_bucket", labels, Some(("le", &bound)), below as f64);
        }
        self.line("_bucket", labels, Some(("le", "+Inf")), count as f64);
        self.line("_sum", labels, None, sum);
        self.line("_count", labels, None, count as f64);
    }

    fn line(
        &mut self,
        suffix: &str,
        labels: &[(&str, &str)],
        last: Option<(&str, &str)>,
        value: f64,
    ) {
        self.text.push_str(&self.sample);
        self.text.push_str(suffix);
        let mut before = '{';
        for (name, label) in labels.iter().copied().chain(last) {
            self.text.push(before);
            self.text.push_str(name);
            self.text.push_str("=\"");
            escape(&mut self.text, label, true);
            self.text.push('"');
            before = ',';
        }
        if before == ',' {
            self.text.push('}');
        }
        // Rust's shortest form that reads back as the same number, without an exponent.
        let _ = if value.is_finite() {
            writeln!(self.text, " {value}")
        } else {
            writeln!(self.text, " NaN")
        };
    }

    /// The whole text.
    pub fn finish(mut self) -> String {
        if self.format == Format::OpenMetrics {
            self.text.push_str("# EOF\n");
        }
        self.text
    }
}

impl Families for Exposition {
    fn family(&mut self, name: &str, kind: Kind, unit: Option<&str>, help: &str) {
        self.sample.clear();
        self.sample.push_str(name);
        self.sample.push_str(kind.suffix());
        let (family, kind) = match (self.format, kind) {
            (Format::OpenMetrics, Kind::Counter) => (name, "counter"),
            (Format::OpenMetrics, Kind::Info) => (name, "info"),
            (Format::Text, Kind::Counter) => (self.sample.as_str(), "counter"),
            (_, Kind::Gauge | Kind::Info) => (self.sample.as_str(), "gauge"),
            (_, Kind::Histogram) => (name, "histogram"),
        };
        // Writing to a string does not fail.
        let _ = writeln!(self.text, "# TYPE {family} {kind}");
        if let (Format::OpenMetrics, Some(unit)) = (self.format, unit) {
            let _ = writeln!(self.text, "# UNIT {family} {unit}");
        }
        let _ = write!(self.text, "# HELP {family} ");
        escape(&mut self.text, help, self.format == Format::OpenMetrics);
        self.text.push('\n');
    }

    fn sample(&mut self, labels: &[(&str, &str)], value: f64) {
        self.line("", labels, None, value);
    }
}

fn escape(into: &mut String, text: &str, quotes: bool) {
    for c in text.chars() {
        match c {
            '\\' => into.push_str("\\\\"),
            '\n' => into.push_str("\\n"),
            '"' if quotes => into.push_str("\\\""),
            c => into.push(c),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn both_forms_name_families_and_samples_as_their_readers_expect() {
        let write = |format| {
            let mut exposition = Exposition::new(format);
            exposition.family("a_seconds", Kind::Counter, Some("seconds"), "Says \"a\".");
            exposition.sample(&[("guest", "x"), ("stage", "vcpu")], 0.25);
            exposition.family("b", Kind::Info, None, "Says b.");
            exposition.sample(&[], 1.0);
            exposition.family("c", Kind::Histogram, None, "Says c.");
            exposition.histogram(&[("port", "p")], [(0.5, 1), (20.0, 3)], 7.5, 3);
            exposition.finish()
        };
        assert_eq!(
            write(Format::OpenMetrics),
            "# TYPE a_seconds counter\n# UNIT a_seconds seconds\n# HELP a_seconds Says \\\"a\\\".\n\
             a_seconds_total{guest=\"x\",stage=\"vcpu\"} 0.25\n\
             # TYPE b info\n# HELP b Says b.\nb_info 1\n\
             # TYPE c histogram\n# HELP c Says c.\n\
             c_bucket{port=\"p\",le=\"5e-1\"} 1\n\
             c_bucket{port=\"p\",le=\"2e1\"} 3\n\
             c_bucket{port=\"p\",le=\"+Inf\"} 3\n\
             c_sum{port=\"p\"} 7.5\nc_count{port=\"p\"} 3\n\
             # EOF\n"
        );
        assert_eq!(
            write(Format::Text),
            "# TYPE a_seconds_total counter\n# HELP a_seconds_total Says \"a\".\n\
             a_seconds_total{guest=\"x\",stage=\"vcpu\"} 0.25\n\
             # TYPE b_info gauge\n# HELP b_info Says b.\nb_info 1\n\
             # TYPE c histogram\n# HELP c Says c.\n\
             c_bucket{port=\"p\",le=\"5e-1\"} 1\n\
             c_bucket{port=\"p\",le=\"2e1\"} 3\n\
             c_bucket{port=\"p\",le=\"+Inf\"} 3\n\
             c_sum{port=\"p\"} 7.5\nc_count{port=\"p\"} 3\n"
        );
    }

    #[test]
    fn the_form_is_the_one_that_was_asked_for() {
        let prometheus = "application/openmetrics-text;version=1.0.0;q=0.5,text/plain;version=0.0.4;q=0.3,*/*;q=0.1";
        assert_eq!(Format::accepted(prometheus), Format::OpenMetrics);
        for other in [
            "",
            "*/*",
            "text/html,*/*;q=0.8",
            "application/openmetrics-text;q=0",
            ";;,,",
        ] {
            assert_eq!(Format::accepted(other), Format::Text, "{other}");
        }
    }

    proptest! {
        /// Any name of a guest remains one label on one line.
        #[test]
        fn a_label_reads_back_as_it_was(label in ".{0,60}", tail in "[\\\\\"\n]{0,5}") {
            let label = label + &tail;
            let mut exposition = Exposition::new(Format::Text);
            exposition.family("a", Kind::Gauge, None, "");
            exposition.sample(&[("guest", &label)], 1.0);
            let text = exposition.finish();
            let lines: Vec<&str> = text.split('\n').collect();
            prop_assert_eq!(lines.len(), 4);
            let inner = lines[2].strip_prefix("a{guest=\"").and_then(|rest| rest.strip_suffix("\"} 1")).unwrap();
            let mut read = String::new();
            let mut chars = inner.chars();
            while let Some(c) = chars.next() {
                prop_assert_ne!(c, '"');
                read.push(match c {
                    '\\' => match chars.next() { Some('n') => '\n', Some(c) => c, None => panic!("cut off") },
                    c => c,
                });
            }
            prop_assert_eq!(read, label);
        }
    }
}
