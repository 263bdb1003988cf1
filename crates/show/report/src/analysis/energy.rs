// SPDX-License-Identifier: Apache-2.0
//! The lines about energy of a report: the origin of joules, the idle power with its drift, and the energy that leads.

use super::checks::{self, Pairs};
use super::words::capital;
use super::{ErrorOf, MetricSummary, TreatmentSummary, distinct, find_metric};
use std::collections::{BTreeMap, BTreeSet};
use vtax_core::{Base, Quantity, Unit, counted, metric};
use vtax_results::numbers::estimate;
use vtax_results::stats::{
    Covariances, common_half, lacking, positive_mean_interval, seed_of, trend,
};
use vtax_results::{IdlePhase, Trial, power_model};

/// Half of the 95 % interval of a normal error, in standard deviations.
const NORMAL: f64 = 1.959_964;

/// Gives the joules and watts of a treatment, or of one of its levels, the error of the model that computed them, and their means
/// intervals with it.
///
/// The residual of the fit is taken for the error of the curve at the load of the treatment, and at that of the idle host. A
/// published curve of another machine has none that is known.
pub(super) fn widen(metrics: &mut [MetricSummary], counted: &[&Trial]) {
    let facts = counted.first().map(|trial| &trial.environment);
    let residual = facts.and_then(|facts| facts.get(power_model::RESIDUAL_RMS_WATTS));
    let residual = residual.and_then(|watts| watts.parse::<f64>().ok());
    let parts = parts(metrics);
    let modelled = metrics.iter_mut().filter(|of| of.is_by_model());
    for of in modelled {
        let mut parts = parts.iter();
        let part = parts.find(|(metric, ..)| metric.is(&of.name));
        let half = part.and_then(|(_, scale, points)| {
            let half = NORMAL * residual? * points.sqrt() * (*scale)?;
            Some(half.abs()).filter(|half| half.is_finite())
        });
        of.add_common_error(ErrorOf::PowerModel, half);
    }
}

/// What one watt changes in the mean of a metric, and how many powers are in it: that of the window, and that of the idle host.
type Part = (&'static metric::Metric, Option<f64>, f64);

fn parts(metrics: &[MetricSummary]) -> [Part; 7] {
    let mean = |of: &metric::Metric| Some(find_metric(metrics, of.name)?.description.mean);
    let watts = mean(metric::POWER_MEAN);
    let per_watt = |total: &metric::Metric| Some(mean(total)? / watts?);
    let (all, each) = (
        per_watt(metric::ENERGY_TOTAL),
        per_watt(metric::ENERGY_PER_WORK),
    );
    let share = mean(metric::ENERGY_ABOVE_IDLE_OF_TARGET_PER_WORK)
        .zip(mean(metric::ENERGY_ABOVE_IDLE_PER_WORK))
        .map(|(own, above)| own / above);
    [
        (metric::POWER_MEAN, Some(1.0), 1.0),
        (metric::POWER_IDLE, Some(1.0), 1.0),
        (metric::ENERGY_TOTAL, all, 1.0),
        (metric::ENERGY_PER_WORK, each, 1.0),
        (metric::ENERGY_ABOVE_IDLE, all, 2.0),
        (metric::ENERGY_ABOVE_IDLE_PER_WORK, each, 2.0),
        (
            metric::ENERGY_ABOVE_IDLE_OF_TARGET_PER_WORK,
            each.zip(share).map(|(each, share)| each * share),
            2.0,
        ),
    ]
}

/// Energy above idle: differences of two powers.
const ABOVE_IDLE: [&metric::Metric; 3] = [
    metric::ENERGY_ABOVE_IDLE,
    metric::ENERGY_ABOVE_IDLE_PER_WORK,
    metric::ENERGY_ABOVE_IDLE_OF_TARGET_PER_WORK,
];

/// Whether it is energy above idle by a meter, with scatter.
pub(super) fn is_above_idle(metric: &MetricSummary) -> bool {
    let is_one = ABOVE_IDLE.iter().any(|one| one.is(&metric.name));
    is_one && !metric.is_by_model() && !metric.certainty.is_exact()
}

/// The idle power of a run on one machine.
#[derive(Debug)]
pub(super) struct IdlePower {
    /// Half of the 95 % interval of the error of one idle phase, in watts; `None` with fewer than two phases.
    half: Option<f64>,
}

/// Relative difference up to which two idle powers are of one phase: the watts of a trial were multiplied by its seconds and divided
/// again.
const ROUNDING: f64 = 1e-9;

impl IdlePower {
    pub fn from_trials<'a>(trials: impl Iterator<Item = &'a Trial>) -> Self {
        let idle = phases(trials)
            .into_values()
            .filter_map(IdlePhase::idle_watts);
        Self {
            half: common_half(&idle.collect::<Vec<f64>>()),
        }
    }

    /// Gives energy above idle the error of idle phases that several trials share: it is in their means, and not in their
    /// scatter.
    pub fn widen(&self, metrics: &mut [MetricSummary]) {
        let Some(idle) = find_metric(metrics, metric::POWER_IDLE.name) else {
            return;
        };
        let shared = idle.values.iter().map(|(_, watts)| (*watts, *watts));
        let shared = lacking(&by_phase(shared));
        if shared <= 0.0 {
            return;
        }
        let parts = parts(metrics);
        for of in metrics.iter_mut().filter(|of| is_above_idle(of)) {
            let half = self
                .half_of(&parts, &of.name)
                .map(|half| half * shared.sqrt());
            of.add_common_error(ErrorOf::IdlePower, half);
        }
    }

    /// Half of the 95 % interval that the error of one idle phase gives the mean of a metric.
    fn half_of(&self, parts: &[Part], name: &str) -> Option<f64> {
        let (_, scale, _) = parts.iter().find(|(metric, ..)| metric.is(name))?;
        let half = (self.half? * (*scale)?).abs();
        Some(half).filter(|half| half.is_finite())
    }

    /// What the error of shared idle phases adds to the (co)variances of the means of pairs; nothing where it is not known.
    pub fn common(
        &self,
        both: [&TreatmentSummary; 2],
        of: &MetricSummary,
        pairs: &Pairs,
        block_of: &BTreeMap<u32, u32>,
    ) -> Covariances {
        let halves = both.map(|one| self.half_of(&parts(&one.metrics), &of.name));
        let idle = both.map(|one| one.metric(metric::POWER_IDLE.name));
        let ([Some(own), Some(other)], [Some(own_idle), Some(other_idle)]) = (halves, idle) else {
            return Covariances::default();
        };
        let compared: BTreeSet<u32> = pairs.iter().map(|(block, ..)| *block).collect();
        let mut idle = checks::pairs(own_idle, other_idle, block_of);
        idle.retain(|(block, ..)| compared.contains(block));
        let phases = by_phase(idle.iter().map(|(_, own, other)| (*own, *other)));
        let of_one = |of: fn(&(usize, usize)) -> usize| {
            lacking(
                &phases
                    .iter()
                    .map(|pair| (of(pair), of(pair)))
                    .collect::<Vec<_>>(),
            )
        };
        Covariances {
            treatment: own.powi(2) * of_one(|pair| pair.0),
            baseline: other.powi(2) * of_one(|pair| pair.1),
            both: own * other * lacking(&phases),
        }
    }
}

/// The idle phases by number, in place of their watts.
fn by_phase(watts: impl Iterator<Item = (f64, f64)>) -> Vec<(usize, usize)> {
    let mut known: Vec<f64> = Vec::new();
    let mut number = |watts: f64| {
        let is_same = |of: &f64| (of - watts).abs() <= ROUNDING * watts.abs();
        known.iter().position(is_same).unwrap_or_else(|| {
            known.push(watts);
            known.len() - 1
        })
    };
    watts
        .map(|(own, other)| (number(own), number(other)))
        .collect()
}

/// The idle phases by their start: trials of one block have the same phase.
fn phases<'a>(trials: impl Iterator<Item = &'a Trial>) -> BTreeMap<&'a str, &'a IdlePhase> {
    let phases = trials.filter_map(|trial| trial.observation.idle.as_ref());
    phases
        .map(|phase| (phase.started.as_str(), phase))
        .collect()
}

/// The sentences, for the first mention of energy in a report; none without joules.
pub(super) fn lines<'a>(
    summaries: &[TreatmentSummary],
    trials: impl Iterator<Item = &'a Trial> + Clone,
) -> Vec<String> {
    let origins = trials.clone().flat_map(|trial| origin(&trial.environment));
    let mut lines = distinct(origins);
    lines.extend(idle(trials.clone()));
    lines.extend(paced(summaries));
    lines.extend(without_series(trials));
    let sentence = |line: &String| format!("{}.", capital(line));
    lines.iter().map(sentence).collect()
}

/// The meters or the model of a trial's joules, and their caveats, without the name of the model that they repeat; empty
/// without joules.
fn origin(facts: &BTreeMap<String, String>) -> Vec<String> {
    let fact = |name: &str| facts.get(name).map(String::as_str);
    let name = fact(power_model::NAME);
    let model = match (name, fact(power_model::DATE)) {
        (Some(name), Some(date)) if !name.contains(date) => Some(format!("{name}, of {date}")),
        (Some(name), _) => Some(name.to_owned()),
        (None, _) => fact(power_model::MODEL).map(str::to_owned),
    };
    let first = match (model, fact(power_model::METERS)) {
        (Some(model), _) => format!("energy is modelled by {model}"),
        (None, Some(meters)) => format!("energy is measured by {meters}"),
        (None, None) => return Vec::new(),
    };
    let repeated = format!(" ({})", name.unwrap_or_default());
    let caveats = fact(power_model::CAVEATS).into_iter();
    let caveats = caveats.flat_map(|all| all.split("; "));
    std::iter::once(first)
        .chain(caveats.map(|caveat| caveat.replace(&repeated, "")))
        .collect()
}

/// The idle power of the run with its interval and its drift, and the phases on a busy host.
fn idle<'a>(trials: impl Iterator<Item = &'a Trial>) -> Vec<String> {
    let phases = phases(trials);
    let watts = Unit::from_base(Base::Watt);
    let idle = phases.values().filter_map(|phase| phase.idle_watts());
    let idle: Vec<f64> = idle.collect();
    let mut lines = Vec::new();
    if let (Some(first), Some(last)) = (idle.first(), idle.last()) {
        let mean = idle.iter().sum::<f64>() / idle.len() as f64;
        let interval = positive_mean_interval(&idle, seed_of(&["idle power"]));
        let shown = estimate(mean, interval, watts).line();
        let ends = [first, last].map(|value| Quantity::new(*value, watts).to_string());
        let drift = match trend(&idle) {
            Some(trend) => format!(
                "; drift over the run {:+.2} W (p = {:.2}), from {} to {}",
                trend.change, trend.p, ends[0], ends[1]
            ),
            None if idle.len() > 1 => format!("; from {} to {}", ends[0], ends[1]),
            None => String::new(),
        };
        lines.push(format!(
            "the idle host draws {shown} in {}{drift}",
            counted(idle.len(), "idle phase")
        ));
    }
    let left_out = phases.values().filter(|phase| phase.idle_watts().is_none());
    let left_out: Vec<&&IdlePhase> = left_out.collect();
    if let Some(phase) = left_out.first() {
        let known = phase.not_idle.as_deref();
        let reason = known.unwrap_or("the meters could not be read");
        let instead = if idle.is_empty() {
            "; energy above idle is above what the model states for an idle host, and a meter states nothing"
        } else {
            ""
        };
        lines.push(format!(
            "{} of {} not idle and left out, for instance: {reason}{instead}",
            left_out.len(),
            counted(phases.len(), "idle phase") + if phases.len() == 1 { " was" } else { " were" },
        ));
    }
    lines
}

/// The reason why loads at a fixed rate lead with energy above idle.
fn paced(summaries: &[TreatmentSummary]) -> Option<String> {
    let leads = |summary: &&TreatmentSummary| {
        let is_headline =
            |of: &metric::Metric| summary.metric(of.name).is_some_and(|of| of.headline);
        is_headline(metric::ENERGY_ABOVE_IDLE_PER_WORK) && !is_headline(metric::ENERGY_PER_WORK)
    };
    let workloads = summaries.iter().filter(leads);
    let workloads = distinct(workloads.map(|summary| summary.treatment.workload.clone()));
    (!workloads.is_empty()).then(|| {
        format!(
            "{}: the load is at a fixed rate, so energy above idle leads. Total energy is mostly idle power, which is the same on \
             every platform, and its ratio tends to 1.0×",
            workloads.join(", ")
        )
    })
}

/// The trials whose power has no figure over time, because the record does not name its series.
fn without_series<'a>(trials: impl Iterator<Item = &'a Trial>) -> Option<String> {
    let unnamed = trials.filter(|trial| {
        let has_power = trial.metrics.contains_key(metric::POWER_MEAN.name);
        has_power && trial.observation.energy.is_empty()
    });
    let count = unnamed.count();
    (count > 0).then(|| {
        format!(
            "power over time is not recorded in {}, which {} not name the series of {}",
            counted(count, "trial"),
            if count == 1 { "does" } else { "do" },
            metric::POWER_MEAN.name
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use vtax_results::ObservationCost;

    fn phase(minute: u32, watts: f64, not_idle: Option<&str>) -> IdlePhase {
        IdlePhase {
            started: format!("2026-11-20T14:{minute:02}:00Z"),
            block: minute,
            seconds: 5.0,
            watts: Some(watts),
            busy: Some(0.01),
            not_idle: not_idle.map(str::to_owned),
        }
    }

    /// Two trials of each phase, by the lines of a stored trial.
    fn trials(phases: &[IdlePhase], facts: &[(&str, &str)]) -> Vec<Trial> {
        let text = include_str!("../../tests/data/format-1/trials/0000/trial.json");
        let stored: Trial = serde_json::from_str(text).unwrap();
        assert_eq!(stored.observation.idle, None, "old records have none");
        let facts = facts
            .iter()
            .map(|(name, fact)| ((*name).to_owned(), (*fact).to_owned()));
        let facts: BTreeMap<String, String> = facts.collect();
        let twice = phases
            .iter()
            .flat_map(|phase| [phase.clone(), phase.clone()]);
        let with = |phase| Trial {
            environment: facts.clone(),
            observation: ObservationCost {
                energy: vec!["energy.model.host_joules".to_owned()],
                idle: Some(phase),
                ..ObservationCost::default()
            },
            ..stored.clone()
        };
        twice.map(with).collect()
    }

    #[test]
    fn idle_power_has_one_figure_with_its_interval_and_its_drift() {
        let rising: Vec<IdlePhase> = (0..6)
            .map(|at| phase(at, 40.0 + f64::from(at), None))
            .collect();
        let lines = lines(&[], trials(&rising, &[]).iter());
        assert_eq!(lines.len(), 1, "{lines:?}");
        let line = &lines[0];
        let figure = "The idle host draws 42 [41–44] W in 6 idle phases; ";
        assert!(line.starts_with(figure), "{line}");
        assert!(
            line.contains("drift over the run +5.00 W (p = 0.01)"),
            "{line}"
        );
    }

    #[test]
    fn a_phase_on_a_busy_host_is_counted_named_and_left_out() {
        let some = [
            phase(0, 40.0, None),
            phase(1, 90.0, Some("cc with 90 % of a processor")),
        ];
        let lines = lines(&[], trials(&some, &[]).iter());
        assert!(
            lines[0].contains("40.0 W") && lines[0].contains("in 1 idle phase"),
            "{lines:?}"
        );
        let left_out = "1 of 2 idle phases were not idle and left out, for instance: cc with 90 % of a processor.";
        assert_eq!(lines[1], left_out);
    }

    #[test]
    fn the_first_line_names_the_meters_or_the_model_and_the_caveats_do_not_repeat_it() {
        let of = |facts: &[(&str, &str)]| lines(&[], trials(&[phase(0, 40.0, None)], facts).iter());
        let measured = of(&[
            (power_model::METERS, "perf package-0: processor packages"),
            (power_model::CAVEATS, "no memory counter"),
        ]);
        let words = "Energy is measured by perf package-0: processor packages.";
        assert_eq!(measured[..2], [words, "No memory counter."]);
        let modelled = of(&[
            (power_model::METERS, "model host: the whole machine"),
            (
                power_model::MODEL,
                "mine, of 2026, a published curve of another machine",
            ),
            (power_model::NAME, "mine"),
            (power_model::DATE, "2026"),
            (
                power_model::CAVEATS,
                "joules are modelled by the published curve of another machine (mine): they rank; scaled to 2",
            ),
        ]);
        assert_eq!(
            modelled[..3],
            [
                "Energy is modelled by mine, of 2026.",
                "Joules are modelled by the published curve of another machine: they rank.",
                "Scaled to 2."
            ]
        );
    }
    #[test]
    fn records_that_do_not_name_the_series_of_power_are_counted() {
        let mut all = trials(&[phase(0, 40.0, None)], &[]);
        assert_eq!(without_series(all.iter()), None);
        all[1].observation.energy.clear();
        assert_eq!(
            without_series(all.iter()).unwrap(),
            "power over time is not recorded in 1 trial, which does not name the series of power.mean"
        );
        all[1].metrics.clear();
        assert_eq!(without_series(all.iter()), None, "no power at all");
    }
}
