// SPDX-License-Identifier: Apache-2.0
//! The figures: those of the paper, and further ones.

use super::summary::{Summary, TreatmentClimbs};
use super::{bytes, time};
use crate::record::{Interval, Latency};
use crate::resources::{Memory, Resource};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use vtax_core::counted;
use vtax_report::figures::Figure;
use vtax_report::platforms::{self, Mark};
use vtax_results::stats::describe;

/// The colour of each resource.
const RESOURCE_COLORS: [(Resource, &str); 8] = [
    (Resource::Cpu, "#D55E00"),
    (Resource::Memory, "#0072B2"),
    (Resource::Swap, "#E69F00"),
    (Resource::Descriptors, "#CC79A7"),
    (Resource::Pids, "#009E73"),
    (Resource::Mappings, "#56B4E9"),
    (Resource::Disk, "#8C6BB1"),
    (Resource::Network, "#7F7F7F"),
];

/// A treatment with climbs, and its colour and shape.
type Climbed<'a> = (&'a TreatmentClimbs, Mark);

/// The treatments with climbs. The marks of all treatments differ.
fn climbed(summary: &Summary) -> Vec<Climbed<'_>> {
    let platforms = summary
        .seen
        .iter()
        .map(|seen| seen.treatment.platform.as_str());
    let marks = platforms::marks(&platforms.collect::<Vec<_>>());
    let all = summary.seen.iter().zip(marks);
    all.filter(|(seen, _)| !seen.climbs.is_empty()).collect()
}

/// The labels of the curves of a figure, with their colours and shapes.
#[derive(Default)]
struct Curves {
    labels: Vec<String>,
    colors: Vec<&'static str>,
    shapes: Vec<&'static str>,
}

impl Curves {
    fn add(&mut self, label: &str, (color, shape): Mark) {
        self.labels.push(label.to_owned());
        self.colors.push(color);
        self.shapes.push(shape);
    }

    fn color(&self) -> Value {
        scale("label", &self.labels, &self.colors)
    }

    fn shape(&self) -> Value {
        scale("label", &self.labels, &self.shapes)
    }
}

/// Every figure.
pub(super) fn figures(summary: &Summary) -> Vec<Figure> {
    let climbed = climbed(summary);
    let mut figures = Vec::new();
    figures.extend(together(&climbed));
    figures.extend(climbed.iter().filter_map(|(seen, _)| resources(seen)));
    figures.extend(times(
        &climbed,
        "boot",
        "Time to a booted guest, as the population grows",
        "Time from the request for a guest until it has booted and sleeps; symbols are medians, bars reach to the 99th percentile. \
         Micro VMs boot in batches: for them it is the mean within each batch, all processors at work.",
        |interval| interval.births?.boot,
    ));
    figures.extend(times(
        &climbed,
        "probe",
        "Response time of a guest, as the population grows",
        "One request at a time to a guest that sleeps among all the others; symbols are medians, bars reach to the 99th percentile. \
         Probes go to QEMU's probe guest, and to random guests of other platforms.",
        |interval| interval.probe.filter(|probe| probe.answered > 0),
    ));
    figures.extend(memory(&climbed));
    for (number, figure) in figures.iter_mut().enumerate() {
        figure.id = format!("{:02}-{}", number + 1, figure.id);
    }
    figures
}

fn scale(field: &str, labels: &[String], range: &[&str]) -> Value {
    json!({"field": field, "type": "nominal", "sort": labels, "scale": {"domain": labels, "range": range}})
}

/// Ticks at powers of ten.
fn decades() -> Vec<f64> {
    (-6..=9).map(|power| 10f64.powi(power)).collect()
}

fn log_population(field: &str) -> Value {
    json!({"field": field, "type": "quantitative", "scale": {"type": "log", "nice": false}, "title": "guests (logarithmic)",
           "axis": {"labelExpr": "format(datum.value, '~s')", "values": decades(), "grid": false}})
}

/// Mean and standard deviation.
fn share(values: impl Iterator<Item = f64>) -> Option<(f64, f64)> {
    let found = describe(&values.collect::<Vec<_>>())?;
    Some((found.mean, found.sd.unwrap_or(0.0)))
}

/// The intervals of all climbs by population.
fn by_population(seen: &TreatmentClimbs) -> BTreeMap<u32, Vec<&Interval>> {
    let mut intervals: BTreeMap<u32, Vec<&Interval>> = BTreeMap::new();
    for interval in seen.records().flat_map(|climb| &climb.climb) {
        intervals
            .entry(interval.population)
            .or_default()
            .push(interval);
    }
    intervals
}

/// All platforms in one figure, each by the resource that limits it.
fn together(climbed: &[Climbed<'_>]) -> Option<Figure> {
    let (mut values, mut curves) = (Vec::new(), Curves::default());
    for (seen, mark) in climbed {
        let bound = seen.bound()?;
        let resource = bound.resource.unwrap_or(Resource::Memory);
        let label = format!("{}: {}", seen.treatment.label, bound.line());
        for (population, intervals) in by_population(seen) {
            let samples = intervals.iter().flat_map(|interval| &interval.samples);
            let own = share(samples.filter_map(|sample| sample.own_share(resource)));
            if let (Some((mean, sd)), 1..) = (own, population) {
                values.push(json!({"label": label, "guests": population, "share": mean, "low": (mean - sd).max(0.0), "high": mean + sd,
                                   "resource": resource.name()}));
            }
        }
        curves.add(&label, *mark);
    }
    if values.is_empty() {
        return None;
    }
    let highest = values
        .iter()
        .filter_map(|value| value.get("high")?.as_f64())
        .fold(0.0, f64::max);
    let top = if highest > 45.0 {
        100.0
    } else {
        (highest * 1.2).max(1.0)
    };
    let y = |field: &str| json!({"field": field, "type": "quantitative", "title": "share of the binding resource (%)", "scale": {"domain": [0, top]}});
    let legend = json!({"columns": 2, "labelLimit": 460, "orient": "bottom", "title": null});
    let with_legend = |mut encoding: Value| {
        if let Some(encoding) = encoding.as_object_mut() {
            encoding.insert("legend".to_owned(), legend.clone());
        }
        encoding
    };
    let color = with_legend(curves.color());
    let shape = with_legend(curves.shape());
    let tooltip = json!([{"field": "label"}, {"field": "guests", "format": ","}, {"field": "resource"}, {"field": "share", "format": ".2f", "title": "%"}]);
    let title = "Every platform, by the resource that binds it";
    let mut layers = vec![
        json!({"mark": {"type": "line", "strokeWidth": 2}, "encoding": {"x": log_population("guests"), "y": y("share"), "color": color}}),
        json!({"mark": {"type": "rule", "strokeWidth": 1.2, "opacity": 0.7}, "encoding": {"x": log_population("guests"), "y": y("low"), "y2": {"field": "high"}, "color": color}}),
        json!({"mark": {"type": "point", "filled": true, "size": 45, "opacity": 1},
               "encoding": {"x": log_population("guests"), "y": y("share"), "color": color, "shape": shape, "tooltip": tooltip}}),
    ];
    if top >= 100.0 {
        layers.extend(climbed.first().map(|(seen, _)| limit_rule(seen)));
    }
    Some(Figure::new(
        "all-platforms",
        title,
        "The share of the resource that ends each climb, or would end it first by a straight line (marked as modelled). \
                  Bars: one standard deviation over samples and climbs. Of processors and disks only the population's own use counts.",
        json!(300),
        json!({"data": {"values": values}, "layer": layers}),
    ))
}

/// The line at which climbs end.
fn limit_rule(seen: &TreatmentClimbs) -> Value {
    let first = seen.climbs.first();
    let limit = first.map_or(90.0, |(_, climb)| climb.limits.stop_percent);
    json!({"data": {"values": [{"limit": limit}]}, "mark": {"type": "rule", "strokeDash": [4, 4], "color": "#888"},
           "encoding": {"y": {"field": "limit", "type": "quantitative"}}})
}

/// The figure of one platform: every resource over the population, as in the paper's figures 2 to 4.
fn resources(seen: &TreatmentClimbs) -> Option<Figure> {
    let (mut values, mut shown) = (Vec::new(), BTreeSet::new());
    for (population, intervals) in by_population(seen) {
        for resource in Resource::ALL {
            let samples = intervals.iter().flat_map(|interval| &interval.samples);
            let of_host = samples.filter_map(|sample| sample.shares.get(&resource).copied());
            if let Some((mean, sd)) = share(of_host) {
                shown.insert(resource);
                values.push(
                    json!({"resource": resource.name(), "guests": population, "share": mean,
                           "low": (mean - sd).max(0.0), "high": (mean + sd).min(100.0)}),
                );
            }
        }
    }
    if values.is_empty() {
        return None;
    }
    let colors = RESOURCE_COLORS.iter().filter(|(of, _)| shown.contains(of));
    let (names, colors): (Vec<String>, Vec<&str>) = colors
        .map(|(of, color)| (of.name().to_owned(), *color))
        .unzip();
    let color = scale("resource", &names, &colors);
    let x = json!({"field": "guests", "type": "quantitative", "title": "guests", "axis": {"labelExpr": "format(datum.value, '~s')", "grid": false, "tickCount": 6}});
    let y = |field: &str| json!({"field": field, "type": "quantitative", "title": "used (%)", "scale": {"domain": [0, 100]}});
    let tooltip = json!([{"field": "resource"}, {"field": "guests", "format": ","}, {"field": "share", "format": ".2f", "title": "%"}]);
    let title = seen.treatment.label.clone();
    let climbs = seen.climbs.len();
    let bound = seen
        .bound()
        .map_or_else(String::new, |bound| format!(" Bound by {}.", bound.line()));
    Some(Figure::new(
        format!(
            "resources-{}",
            title.replace(|c: char| !c.is_ascii_alphanumeric(), "-")
        ),
        title,
        format!(
            "All of the host’s resources over the population ({}); bars are one standard deviation over samples and climbs, the dashed line ends a climb.{bound}",
            counted(climbs, "climb")
        ),
        json!(220),
        json!({"data": {"values": values}, "layer": [
            {"mark": {"type": "line", "strokeWidth": 1.6}, "encoding": {"x": x, "y": y("share"), "color": color}},
            {"mark": {"type": "rule", "strokeWidth": 1.2}, "encoding": {"x": x, "y": y("low"), "y2": {"field": "high"}, "color": color}},
            {"mark": {"type": "point", "filled": true, "size": 26, "opacity": 1}, "encoding": {"x": x, "y": y("share"), "color": color, "tooltip": tooltip}},
            limit_rule(seen),
        ]}),
    ))
}

/// Latencies over the population, all platforms.
fn times(
    climbed: &[Climbed<'_>],
    id: &str,
    title: &str,
    caption: &str,
    of: impl Fn(&Interval) -> Option<Latency>,
) -> Option<Figure> {
    let (mut values, mut curves) = (Vec::new(), Curves::default());
    for (seen, mark) in climbed {
        let before = values.len();
        for (population, intervals) in by_population(seen) {
            let middle = |part: fn(&Latency) -> f64| {
                crate::record::median(intervals.iter().filter_map(|i| of(i)).map(|l| part(&l)))
            };
            if let (Some(p50), Some(p99)) = (middle(|l| l.p50_us), middle(|l| l.p99_us))
                && p50 > 0.0
                && population > 0
            {
                values.push(json!({"label": seen.treatment.label, "guests": population, "p50": p50 / 1e3, "p99": p99.max(p50) / 1e3,
                                   "shown": format!("{} · {}", time(p50), time(p99))}));
            }
        }
        if values.len() > before {
            curves.add(&seen.treatment.label, *mark);
        }
    }
    if values.is_empty() {
        return None;
    }
    let color = curves.color();
    let y = |field: &str| {
        json!({"field": field, "type": "quantitative", "scale": {"type": "log", "nice": false}, "title": "ms (logarithmic)",
               "axis": {"labelExpr": "format(datum.value, '~g')", "values": decades()}})
    };
    let tooltip = json!([{"field": "label"}, {"field": "guests", "format": ","}, {"field": "shown", "title": "median · p99"}]);
    Some(Figure::new(
        id,
        title,
        caption,
        json!(240),
        json!({"data": {"values": values}, "layer": [
            {"mark": {"type": "line", "strokeWidth": 1.6}, "encoding": {"x": log_population("guests"), "y": y("p50"), "color": color}},
            {"mark": {"type": "rule", "strokeWidth": 1.2, "opacity": 0.6}, "encoding": {"x": log_population("guests"), "y": y("p50"), "y2": {"field": "p99"}, "color": color}},
            {"mark": {"type": "point", "filled": true, "size": 40, "opacity": 1},
             "encoding": {"x": log_population("guests"), "y": y("p50"), "color": color, "shape": curves.shape(), "tooltip": tooltip}},
        ]}),
    ))
}

/// An account of the host's memory, in bytes.
type Account = fn(&Memory) -> f64;

/// The parts of a guest's memory, their colours, and their accounts.
const PARTS: [(&str, &str, Account); 6] = [
    ("processes’ pages", "#0072B2", |m| m.user + m.swap),
    ("slab", "#D55E00", |m| m.slab),
    ("page tables", "#E69F00", |m| m.page_tables),
    ("per-CPU", "#009E73", |m| m.per_cpu),
    ("kernel stacks", "#CC79A7", |m| m.stacks),
    ("vmalloc", "#56B4E9", |m| (m.vmalloc - m.stacks).max(0.0)),
];

/// The rest of it, and its colour.
const REST: (&str, &str) = ("in no account", "#BBBBBB");

/// The figure of the parts of a guest's memory.
fn memory(climbed: &[Climbed<'_>]) -> Option<Figure> {
    let mut values = Vec::new();
    let mut order = Vec::new();
    for (seen, _) in climbed.iter().filter(|(seen, _)| seen.host_is_calm()) {
        let each = seen.at_top(|climb, _| climb.bytes_each());
        let Some(each) = each.filter(|each| *each > 0.0) else {
            continue;
        };
        let row = format!("{} · {}", seen.treatment.label, bytes(each));
        let size = |account: Account| {
            let each = seen.at_top(|climb, _| climb.part_each(account));
            each.unwrap_or(0.0).max(0.0)
        };
        let parts = PARTS.map(|(name, _, account)| (name, size(account)));
        let rest = each - parts.iter().map(|(_, size)| size).sum::<f64>();
        let parts = parts.into_iter().chain([(REST.0, rest.max(0.0))]);
        for (index, (part, size)) in parts.enumerate() {
            values.push(json!({"row": row, "part": part, "order": index, "size": size, "shown": bytes(size)}));
        }
        order.push(row);
    }
    if values.is_empty() {
        return None;
    }
    let title = "The parts of a guest’s memory";
    let (names, colors): (Vec<&str>, Vec<&str>) = (PARTS.into_iter())
        .map(|(name, color, _)| (name, color))
        .chain([REST])
        .unzip();
    Some(Figure::new(
        "memory",
        title,
        "Differences of the host’s own accounts between the top and the start, divided by the guests; beside each name the whole, as the \
                  host’s available memory shows it. User space is the first part, the kernel the five after it.",
        json!({"step": 30}),
        json!({"data": {"values": values}, "mark": {"type": "bar"},
        "encoding": {
            "y": {"field": "row", "type": "nominal", "sort": order, "title": null, "axis": {"labelLimit": 260}},
            "x": {"field": "size", "type": "quantitative", "stack": "normalize", "title": "share of a guest’s memory", "axis": {"format": "%", "tickCount": 5}},
            "color": {"field": "part", "type": "nominal", "sort": names, "scale": {"domain": names, "range": colors}, "legend": {"orient": "bottom", "title": null, "columns": 4}},
            "order": {"field": "order", "type": "quantitative"},
            "tooltip": [{"field": "row"}, {"field": "part"}, {"field": "shown", "title": "of each guest"}]
        }}),
    ))
}
