// SPDX-License-Identifier: Apache-2.0
//! The wire formats: a pass as the queue holds it, and batches of passes as Prometheus remote write 1.0 and as OTLP 1
//! over HTTP. Only the messages and fields in use are declared, with the numbers of `prometheus/prompb` and
//! `opentelemetry-proto`.

use prost::Message;
use std::collections::HashMap;
use vtax_http::metrics::{Families, Kind};

/// Prometheus' staleness marker: a NaN that marks the end of a series.
pub(super) const STALE: u64 = 0x7ff0_0000_0000_0002;

/// All samples of one pass.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Pass {
    /// Time of the samples, in ms since 1970.
    #[prost(int64, tag = "1")]
    pub(super) time_ms: i64,
    /// Start of the counters, in ms since 1970.
    #[prost(int64, tag = "2")]
    pub(super) start_ms: i64,
    #[prost(message, repeated, tag = "3")]
    pub(super) families: Vec<Family>,
}

/// A family with its samples.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Family {
    /// Name with the suffix of the kind.
    #[prost(string, tag = "1")]
    pub(super) name: String,
    #[prost(bool, tag = "2")]
    pub(super) is_counter: bool,
    #[prost(string, tag = "3")]
    pub(super) unit: String,
    #[prost(message, repeated, tag = "4")]
    pub(super) samples: Vec<Point>,
}

/// A sample.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Point {
    #[prost(message, repeated, tag = "1")]
    pub(super) labels: Vec<Label>,
    #[prost(double, tag = "2")]
    pub(super) value: f64,
}

/// A label, in the queue and in remote write.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Message)]
pub(super) struct Label {
    #[prost(string, tag = "1")]
    pub(super) name: String,
    #[prost(string, tag = "2")]
    pub(super) value: String,
}

impl Label {
    fn new(name: &str, value: &str) -> Self {
        Self {
            name: name.to_owned(),
            value: value.to_owned(),
        }
    }
}

impl Pass {
    /// Returns the number of samples.
    pub(super) fn samples(&self) -> usize {
        self.families
            .iter()
            .map(|family| family.samples.len())
            .sum()
    }

    /// Keeps `count` samples after the first `from`.
    pub(super) fn keep(&mut self, mut from: usize, mut count: usize) {
        for family in &mut self.families {
            let skipped = from.min(family.samples.len());
            from -= skipped;
            family.samples.drain(..skipped);
            family.samples.truncate(count);
            count -= family.samples.len();
        }
        self.families.retain(|family| !family.samples.is_empty());
    }

    /// Adds a staleness marker for every series of `before` that is not in this pass.
    pub(super) fn end_missing(&mut self, before: &Self) {
        for old in &before.families {
            let of_same_name = |family: &&mut Family| family.name == old.name;
            let mut kept = self.families.iter_mut().find(of_same_name);
            let present: std::collections::HashSet<&[Label]> = kept
                .iter()
                .flat_map(|family| &family.samples)
                .map(|point| point.labels.as_slice())
                .collect();
            let ended: Vec<Point> = old
                .samples
                .iter()
                .filter(|point| !present.contains(point.labels.as_slice()))
                .filter(|point| point.value.to_bits() != STALE)
                .map(|point| Point {
                    labels: point.labels.clone(),
                    value: f64::from_bits(STALE),
                })
                .collect();
            match &mut kept {
                Some(family) => family.samples.extend(ended),
                None if ended.is_empty() => {}
                None => self.families.push(Family {
                    samples: ended,
                    ..old.clone()
                }),
            }
        }
    }
}

impl Families for Pass {
    fn family(&mut self, name: &str, kind: Kind, unit: Option<&str>, _: &str) {
        self.families.push(Family {
            name: format!("{name}{}", kind.suffix()),
            is_counter: kind == Kind::Counter,
            unit: unit.unwrap_or_default().to_owned(),
            samples: Vec::new(),
        });
    }

    fn sample(&mut self, labels: &[(&str, &str)], value: f64) {
        if let Some(family) = self.families.last_mut() {
            // An empty label equals a missing one.
            let labels = labels.iter().filter(|(_, value)| !value.is_empty());
            family.samples.push(Point {
                labels: labels
                    .map(|(name, value)| Label::new(name, value))
                    .collect(),
                value,
            });
        }
    }
}

#[derive(Clone, PartialEq, Message)]
struct WriteRequest {
    #[prost(message, repeated, tag = "1")]
    timeseries: Vec<TimeSeries>,
}

#[derive(Clone, PartialEq, Message)]
struct TimeSeries {
    #[prost(message, repeated, tag = "1")]
    labels: Vec<Label>,
    #[prost(message, repeated, tag = "2")]
    samples: Vec<Sample>,
}

#[derive(Clone, Copy, PartialEq, Message)]
struct Sample {
    #[prost(double, tag = "1")]
    value: f64,
    #[prost(int64, tag = "2")]
    timestamp: i64,
}

/// Encodes passes, in order, as one body of remote write. Each series appears once, with its samples in order.
pub(super) fn remote_write(passes: &[Pass], own: &[(String, String)]) -> Vec<u8> {
    let mut places: HashMap<(&str, &[Label]), usize> = HashMap::new();
    let mut timeseries: Vec<TimeSeries> = Vec::new();
    for pass in passes {
        for family in &pass.families {
            for point in &family.samples {
                let place = *places
                    .entry((&family.name, &point.labels))
                    .or_insert_with(|| {
                        let mut labels = point.labels.clone();
                        labels.push(Label::new("__name__", &family.name));
                        labels.extend(own.iter().map(|(name, value)| Label::new(name, value)));
                        labels.sort_unstable();
                        timeseries.push(TimeSeries {
                            labels,
                            samples: Vec::new(),
                        });
                        timeseries.len() - 1
                    });
                if let Some(series) = timeseries.get_mut(place) {
                    series.samples.push(Sample {
                        value: point.value,
                        timestamp: pass.time_ms,
                    });
                }
            }
        }
    }
    WriteRequest { timeseries }.encode_to_vec()
}

#[derive(Clone, PartialEq, Message)]
struct ExportMetricsServiceRequest {
    #[prost(message, repeated, tag = "1")]
    resource_metrics: Vec<ResourceMetrics>,
}

#[derive(Clone, PartialEq, Message)]
struct ResourceMetrics {
    #[prost(message, optional, tag = "1")]
    resource: Option<Resource>,
    #[prost(message, repeated, tag = "2")]
    scope_metrics: Vec<ScopeMetrics>,
}

#[derive(Clone, PartialEq, Message)]
struct Resource {
    #[prost(message, repeated, tag = "1")]
    attributes: Vec<KeyValue>,
}

#[derive(Clone, PartialEq, Message)]
struct KeyValue {
    #[prost(string, tag = "1")]
    key: String,
    #[prost(message, optional, tag = "2")]
    value: Option<AnyValue>,
}

#[derive(Clone, PartialEq, Message)]
struct AnyValue {
    #[prost(string, optional, tag = "1")]
    string_value: Option<String>,
}

#[derive(Clone, PartialEq, Message)]
struct ScopeMetrics {
    #[prost(message, optional, tag = "1")]
    scope: Option<Scope>,
    #[prost(message, repeated, tag = "2")]
    metrics: Vec<Metric>,
}

#[derive(Clone, PartialEq, Message)]
struct Scope {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(string, tag = "2")]
    version: String,
}

#[derive(Clone, PartialEq, Message)]
struct Metric {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(string, tag = "3")]
    unit: String,
    #[prost(message, optional, tag = "5")]
    gauge: Option<Sum>,
    #[prost(message, optional, tag = "7")]
    sum: Option<Sum>,
}

/// A sum, or a gauge, which has the points alone.
#[derive(Clone, PartialEq, Message)]
struct Sum {
    #[prost(message, repeated, tag = "1")]
    data_points: Vec<NumberDataPoint>,
    #[prost(int32, tag = "2")]
    aggregation_temporality: i32,
    #[prost(bool, tag = "3")]
    is_monotonic: bool,
}

#[derive(Clone, PartialEq, Message)]
struct NumberDataPoint {
    #[prost(fixed64, tag = "2")]
    start_time_unix_nano: u64,
    #[prost(fixed64, tag = "3")]
    time_unix_nano: u64,
    #[prost(double, optional, tag = "4")]
    as_double: Option<f64>,
    #[prost(message, repeated, tag = "7")]
    attributes: Vec<KeyValue>,
    #[prost(uint32, tag = "8")]
    flags: u32,
}

const CUMULATIVE: i32 = 2;
const NO_RECORDED_VALUE: u32 = 1;

/// The response of an OTLP server.
#[derive(Clone, PartialEq, Message)]
struct ExportMetricsServiceResponse {
    #[prost(message, optional, tag = "1")]
    partial_success: Option<PartialSuccess>,
}

#[derive(Clone, PartialEq, Message)]
struct PartialSuccess {
    #[prost(int64, tag = "1")]
    rejected_data_points: i64,
    #[prost(string, tag = "2")]
    error_message: String,
}

/// Returns the number of samples that an OTLP server rejected from an accepted request, and its reason.
pub(super) fn rejected(body: &[u8]) -> Option<(u64, String)> {
    let partial = ExportMetricsServiceResponse::decode(body)
        .ok()?
        .partial_success?;
    let rejected = u64::try_from(partial.rejected_data_points).ok()?;
    (rejected > 0).then_some((rejected, partial.error_message))
}

fn attribute(name: &str, value: &str) -> KeyValue {
    KeyValue {
        key: name.to_owned(),
        value: Some(AnyValue {
            string_value: Some(value.to_owned()),
        }),
    }
}

fn nanoseconds(ms: i64) -> u64 {
    u64::try_from(ms).unwrap_or(0).saturating_mul(1_000_000)
}

/// Returns the UCUM code of a unit, which users of OTLP expect.
fn ucum(unit: &str) -> String {
    match unit {
        "" => String::new(),
        "seconds" => "s".to_owned(),
        "joules" => "J".to_owned(),
        "bytes" => "By".to_owned(),
        "ratio" => "1".to_owned(),
        other => format!("{{{other}}}"),
    }
}

/// Encodes passes, in order, as one body of OTLP. Metrics have the names of a scrape, which servers that derive such
/// names from OTLP's leave unchanged. The labels of `own` are attributes of every point. `job` and `instance` are also
/// the resource's `service.name` and `service.instance.id`: some servers derive the labels from the resource, some do
/// not.
pub(super) fn otlp(passes: &[Pass], own: &[(String, String)]) -> Vec<u8> {
    let mut places: HashMap<&str, usize> = HashMap::new();
    let mut metrics: Vec<Metric> = Vec::new();
    for pass in passes {
        for family in pass
            .families
            .iter()
            .filter(|family| !family.samples.is_empty())
        {
            let points = family.samples.iter().map(|point| {
                let is_stale = point.value.to_bits() == STALE;
                let labels = point.labels.iter();
                NumberDataPoint {
                    start_time_unix_nano: if family.is_counter {
                        nanoseconds(pass.start_ms)
                    } else {
                        0
                    },
                    time_unix_nano: nanoseconds(pass.time_ms),
                    as_double: (!is_stale).then_some(point.value),
                    attributes: labels
                        .map(|label| attribute(&label.name, &label.value))
                        .chain(own.iter().map(|(name, value)| attribute(name, value)))
                        .collect(),
                    flags: if is_stale { NO_RECORDED_VALUE } else { 0 },
                }
            });
            let place = *places.entry(&family.name).or_insert_with(|| {
                metrics.push(Metric {
                    name: family.name.clone(),
                    unit: ucum(&family.unit),
                    gauge: (!family.is_counter).then(Sum::default),
                    sum: family.is_counter.then(|| Sum {
                        aggregation_temporality: CUMULATIVE,
                        is_monotonic: true,
                        ..Sum::default()
                    }),
                });
                metrics.len() - 1
            });
            let metric = metrics.get_mut(place);
            if let Some(of) =
                metric.and_then(|metric| metric.sum.as_mut().or(metric.gauge.as_mut()))
            {
                of.data_points.extend(points);
            }
        }
    }
    let of_resource = own.iter().filter_map(|(name, value)| match name.as_str() {
        "job" => Some(attribute("service.name", value)),
        "instance" => Some(attribute("service.instance.id", value)),
        _ => None,
    });
    let request = ExportMetricsServiceRequest {
        resource_metrics: vec![ResourceMetrics {
            resource: Some(Resource {
                attributes: of_resource.collect(),
            }),
            scope_metrics: vec![ScopeMetrics {
                scope: Some(Scope {
                    name: "vtax".to_owned(),
                    version: env!("CARGO_PKG_VERSION").to_owned(),
                }),
                metrics,
            }],
        }],
    };
    request.encode_to_vec()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pass(time_ms: i64, guests: &[&str]) -> Pass {
        let mut pass = Pass {
            time_ms,
            ..Pass::default()
        };
        pass.family("a_seconds", Kind::Counter, Some("seconds"), "");
        for guest in guests {
            pass.sample(&[("guest", guest), ("uuid", "")], 0.5);
        }
        pass.family("b", Kind::Gauge, None, "");
        pass.sample(&[], 2.0);
        pass
    }

    fn own() -> Vec<(String, String)> {
        [("job", "vtax"), ("instance", "here")]
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .to_vec()
    }

    #[test]
    fn a_batch_has_each_series_once_with_sorted_labels_and_its_samples_in_order() {
        let passes = [pass(1, &["x"]), pass(2, &["x", "y"])];
        let request = WriteRequest::decode(remote_write(&passes, &own()).as_slice()).unwrap();
        let series: Vec<(Vec<String>, Vec<i64>)> = request
            .timeseries
            .iter()
            .map(|series| {
                let label = |label: &Label| format!("{}={}", label.name, label.value);
                let times = series.samples.iter().map(|sample| sample.timestamp);
                (series.labels.iter().map(label).collect(), times.collect())
            })
            .collect();
        let labels = |name: &str, more: &[&str]| {
            let mut labels = vec![format!("__name__={name}")];
            labels.extend(more.iter().map(|&label| label.to_owned()));
            labels.extend(["instance=here".to_owned(), "job=vtax".to_owned()]);
            labels
        };
        assert_eq!(
            series,
            [
                (labels("a_seconds_total", &["guest=x"]), vec![1, 2]),
                (labels("b", &[]), vec![1, 2]),
                (labels("a_seconds_total", &["guest=y"]), vec![2]),
            ]
        );
    }

    #[test]
    fn a_series_that_is_gone_ends_once_in_both_protocols() {
        let first = pass(1, &["x", "y"]);
        let mut second = pass(2, &["y"]);
        second.end_missing(&first);
        assert_eq!(second.samples(), 3);
        let ended = |body: &WriteRequest| {
            let samples = body.timeseries.iter().flat_map(|series| &series.samples);
            samples
                .filter(|sample| sample.value.to_bits() == STALE)
                .count()
        };
        // As the queue stores it.
        let kept = Pass::decode(second.encode_to_vec().as_slice()).unwrap();
        let body = remote_write(std::slice::from_ref(&kept), &own());
        assert_eq!(ended(&WriteRequest::decode(body.as_slice()).unwrap()), 1);
        let body = otlp(&[kept], &own());
        let request = ExportMetricsServiceRequest::decode(body.as_slice()).unwrap();
        let sum = request.resource_metrics[0].scope_metrics[0].metrics[0]
            .sum
            .clone();
        let points = sum.unwrap().data_points;
        let ended = points
            .iter()
            .filter(|point| point.flags == NO_RECORDED_VALUE);
        assert!(ended.clone().all(|point| point.as_double.is_none()));
        assert_eq!((ended.count(), points.len()), (1, 2));
        let mut third = pass(3, &["y"]);
        third.end_missing(&second);
        assert_eq!(third.samples(), 2);
    }
}
