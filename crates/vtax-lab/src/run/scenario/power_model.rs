//! The power model of a trial's joules, in the trial's record.

use crate::run::Attempt;
use std::collections::BTreeMap;
use vtax_core::metric;
use vtax_observe::meter::{Fit, PowerModel};
use vtax_report::results::{Metric, power_model};

/// Writes the model's name into every metric of `attempt` that it computed, and its facts into the environment.
pub(super) fn record(model: &PowerModel, attempt: &mut Attempt) {
    let phases = attempt.phases.iter_mut().map(|phase| &mut phase.metrics);
    let all = std::iter::once(&mut attempt.metrics).chain(phases);
    let marked = all.map(|metrics| mark(model, metrics)).sum::<usize>();
    if marked > 0 {
        attempt.environment.extend(facts(model));
    }
}

/// The metrics whose source is a meter, and so possibly the model.
const OF_METERS: [&metric::Metric; 3] = [
    metric::POWER_MEAN,
    metric::ENERGY_TOTAL,
    metric::ENERGY_PER_WORK,
];

fn mark(model: &PowerModel, metrics: &mut BTreeMap<String, Metric>) -> usize {
    let of_model = metrics
        .iter_mut()
        .filter(|(name, _)| OF_METERS.iter().any(|of| of.is(name)));
    of_model
        .map(|(_, metric)| metric.model = Some(model.name.clone()))
        .count()
}

fn facts(model: &PowerModel) -> BTreeMap<String, String> {
    let fit = model.fit.as_ref();
    let watts = |of: fn(&Fit) -> f64| fit.map(|fit| of(fit).to_string());
    let file = model.file.as_ref().map(|file| file.display().to_string());
    let facts = [
        (power_model::MODEL, Some(model.to_string())),
        (power_model::NAME, Some(model.name.clone())),
        (power_model::DATE, model.date.clone()),
        (power_model::FILE, file),
        (power_model::FITTED_TO, fit.map(|fit| fit.meter.clone())),
        (
            power_model::RESIDUAL_RMS_WATTS,
            watts(|fit| fit.residual_rms_watts),
        ),
        (
            power_model::RESIDUAL_WORST_WATTS,
            watts(|fit| fit.residual_worst_watts),
        ),
    ];
    let known = facts.into_iter();
    known
        .filter_map(|(name, fact)| Some((name.to_owned(), fact?)))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use vtax_core::{Base, Quantity, Source, Unit};
    use vtax_report::results::Better;

    fn metric(source: Source) -> Metric {
        Metric {
            quantity: Quantity::new(3.0, Unit::of(Base::Joule)),
            source,
            model: None,
            better: Better::Lower,
            headline: false,
            title: String::new(),
        }
    }

    #[test]
    fn modelled_joules_of_an_emulated_guest_carry_both_facts_and_the_models_own() {
        let fit = Fit {
            meter: "wall".into(),
            covers: "the whole machine".into(),
            observations: 110,
            residual_rms_watts: 0.8,
            residual_worst_watts: 2.1,
        };
        let model = PowerModel {
            name: "mine".into(),
            date: Some("2026-03-01".into()),
            file: Some("/etc/mine.toml".into()),
            fit: Some(fit),
        };
        let mut attempt = Attempt::default();
        for name in ["energy.total", "power.mean", "cpu.per_work"] {
            let metric = metric(Source::Emulated);
            attempt.metrics.insert(name.into(), metric);
        }
        record(&model, &mut attempt);
        let of = |name: &str| &attempt.metrics[name];
        for name in ["energy.total", "power.mean"] {
            assert_eq!(of(name).source, Source::Emulated);
            assert!(of(name).is_modelled());
            assert_eq!(of(name).model.as_deref(), Some("mine"));
        }
        assert!(!of("cpu.per_work").is_modelled());
        let facts: Vec<&str> = attempt.environment.values().map(String::as_str).collect();
        let words = "mine, of 2026-03-01, fitted to wall (off by 0.8 W typically, 2.1 W at worst)";
        let of_each = ["2026-03-01", "/etc/mine.toml", "wall", "mine", "0.8", "2.1"];
        assert_eq!(facts, [&[words], &of_each[..]].concat());
    }

    #[test]
    fn a_trial_without_joules_names_no_model() {
        let model = PowerModel {
            name: "mine".into(),
            date: None,
            file: None,
            fit: None,
        };
        let mut attempt = Attempt::default();
        let metric = metric(Source::Measured);
        attempt.metrics.insert("cpu.per_work".into(), metric);
        record(&model, &mut attempt);
        assert!(attempt.environment.is_empty());
    }
}
