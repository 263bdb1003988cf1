// SPDX-License-Identifier: Apache-2.0
//! The metrics of a trial: one declaration for each, by which all other code refers to it.

mod catalogue;
mod origin;

use crate::{Base, Pattern, Unit};
pub use catalogue::*;
pub use origin::origin;
use serde::{Deserialize, Serialize};
use std::fmt::Display;

/// Which direction of a metric is an improvement.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Better {
    /// Less is better (a cost).
    Lower,
    /// More is better.
    Higher,
    /// Neither (a description).
    Neither,
}

/// The unit of the values of a metric.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Measure {
    /// Always in this unit.
    Fixed(Unit),
    /// This base per unit of the workload's work.
    PerWork(Base),
    /// The unit that the workload chooses.
    Workload,
}

/// The words for a metric in a sentence: `The VM costs 1.2 times the CPU of …`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Words {
    /// The quantity that is compared.
    pub noun: &'static str,
    /// The verb that follows the treatment.
    pub verb: &'static str,
    /// The object of the verb.
    pub object: &'static str,
}

/// The declaration of a metric.
#[derive(Debug, PartialEq, Eq)]
pub struct Metric {
    /// Its name in results.
    pub name: &'static str,
    /// The unit of its values.
    pub measure: Measure,
    /// Which direction is better.
    pub better: Better,
    /// A short description for tables; [`Metric::title`] fills in `{}`.
    pub title: &'static str,
    /// Whether summaries put it first wherever it is present.
    pub headline: bool,
    /// Its words in sentences, where they differ from its title.
    pub words: Option<Words>,
}

impl Metric {
    const fn new(
        name: &'static str,
        measure: Measure,
        better: Better,
        title: &'static str,
    ) -> Self {
        Self {
            name,
            measure,
            better,
            title,
            headline: false,
            words: None,
        }
    }

    const fn headline(self) -> Self {
        Self {
            headline: true,
            ..self
        }
    }

    const fn words(self, noun: &'static str, verb: &'static str, object: &'static str) -> Self {
        Self {
            words: Some(Words { noun, verb, object }),
            ..self
        }
    }

    /// Its title for one trial; `about` replaces the `{}` of the declaration, such as the work's phrase.
    pub fn title(&self, about: &str) -> String {
        self.title.replace("{}", about)
    }

    /// The unit of its values; `given` is the unit of the work, or of the metric where the workload chooses it.
    pub fn unit(&self, given: Unit) -> Unit {
        match self.measure {
            Measure::Fixed(unit) => unit,
            Measure::PerWork(base) => Unit::per(base, given.base),
            Measure::Workload => given,
        }
    }

    /// Whether `name` is the name of this metric.
    pub fn is(&self, name: &str) -> bool {
        self.name == name
    }

    /// Whether it is divided by work.
    pub fn is_per_work(&self) -> bool {
        matches!(self.measure, Measure::PerWork(_))
    }
}

/// Metrics that differ in parts of their names: `cpu.stage.*` declares `cpu.stage.vcpu`.
#[derive(Debug, PartialEq, Eq)]
pub struct Family(Metric);

impl Family {
    /// The declaration that its metrics share; the name has `*` for each part.
    pub fn metric(&self) -> &Metric {
        &self.0
    }

    /// The name of one of its metrics.
    pub fn name(&self, parts: &[&str]) -> String {
        Pattern(self.0.name).name(parts)
    }

    /// As [`Pattern::fill`].
    pub fn name_of(&self, part: impl Display) -> String {
        Pattern(self.0.name).fill(part)
    }

    /// As [`Pattern::part`].
    pub fn part<'a>(&self, name: &'a str) -> Option<&'a str> {
        Pattern(self.0.name).part(name)
    }
}

/// The metrics that a plan declares for a command. The catalogue has no name with this prefix.
pub const OWN: Pattern = Pattern("own.*");

/// Returns the declaration of the metric with this name; `None` for a metric that a workload or a plan declares.
pub fn lookup(name: &str) -> Option<&'static Metric> {
    let mut metrics = METRICS.iter().copied();
    metrics.find(|metric| metric.name == name).or_else(|| {
        let mut families = FAMILIES.iter();
        let family = families.find(|family| family.part(name).is_some())?;
        Some(family.metric())
    })
}

/// The distribution and the quantile of a metric that is a percentile: `latency.p999` is `latency` and 0.999.
pub fn quantile(name: &str) -> Option<(&str, f64)> {
    let (of, percentile) = name.rsplit_once(".p")?;
    let is_digits = !percentile.is_empty() && percentile.bytes().all(|one| one.is_ascii_digit());
    let quantile: f64 = format!("0.{percentile}").parse().ok()?;
    (is_digits && quantile > 0.0).then_some((of, quantile))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn every_name_is_declared_once() {
        let names = METRICS.iter().map(|metric| metric.name);
        let names: Vec<&str> = names
            .chain(FAMILIES.iter().map(|family| family.metric().name))
            .collect();
        assert_eq!(names.iter().collect::<BTreeSet<_>>().len(), names.len());
    }

    #[test]
    fn a_metric_is_found_by_its_name_and_a_name_of_a_plan_is_not() {
        assert_eq!(lookup("cpu.per_work"), Some(CPU_PER_WORK));
        assert_eq!(lookup("cpu.stage.vcpu"), Some(CPU_STAGE.metric()));
        assert_eq!(lookup("latency.p42"), None);
        assert_eq!(lookup("cpu.stage."), None);
        assert_eq!(lookup("pages.read"), None);
    }

    #[test]
    fn no_name_of_the_catalogue_is_a_plan_s_own() {
        let families = FAMILIES.iter().map(|family| family.metric().name);
        let mut names = METRICS.iter().map(|metric| metric.name).chain(families);
        assert!(names.all(|name| OWN.part(name).is_none()));
        assert_eq!(lookup(&OWN.fill("rate")), None);
    }

    #[test]
    fn a_percentile_has_its_distribution_and_quantile_and_other_names_have_none() {
        assert_eq!(quantile(LATENCY_P50.name), Some(("latency", 0.5)));
        assert_eq!(quantile(LATENCY_P999.name), Some(("latency", 0.999)));
        assert_eq!(quantile(CLOUD_BOOT_P99.name), Some(("cloud.boot", 0.99)));
        for name in [
            "latency.max",
            "latency.p",
            "latency.p9x",
            "latency.p0",
            "p99",
            "a.p٣",
        ] {
            assert_eq!(quantile(name), None, "{name}");
        }
    }

    #[test]
    fn a_title_names_the_work() {
        let title = CPU_PER_WORK.title("serve 1 GB");
        assert_eq!(title, "CPU time to serve 1 GB");
    }
}
