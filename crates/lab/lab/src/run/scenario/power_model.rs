// SPDX-License-Identifier: Apache-2.0
//! The meters and the power model of a trial's joules, in the trial's record.

use std::collections::BTreeMap;
use vtax_core::metric;
use vtax_meter::{Fit, HostEnergy, PowerModel};
use vtax_results::{Metric, Trial, power_model};

/// Writes the domains of the meters, and the name of the model where there is one, into every metric of `trial` that
/// comes from them, and the facts about both into the environment.
pub(super) fn record(energy: &HostEnergy, trial: &mut Trial) {
    let phases = trial.phases.iter_mut().map(|phase| &mut phase.metrics);
    let all = std::iter::once(&mut trial.metrics).chain(phases);
    let marked = all.map(|metrics| mark(energy, metrics)).sum::<usize>();
    if marked == 0 {
        return;
    }
    let facts = &mut trial.environment;
    facts.insert(power_model::METERS.to_owned(), energy.to_string());
    if !energy.caveats.is_empty() {
        facts.insert(power_model::CAVEATS.to_owned(), energy.caveats.join("; "));
    }
    facts.extend(energy.model.iter().flat_map(facts_of));
}

/// The metrics whose source is a meter, and so possibly the model.
const OF_METERS: [&metric::Metric; 7] = [
    metric::POWER_MEAN,
    metric::POWER_IDLE,
    metric::ENERGY_TOTAL,
    metric::ENERGY_PER_WORK,
    metric::ENERGY_ABOVE_IDLE,
    metric::ENERGY_ABOVE_IDLE_PER_WORK,
    metric::ENERGY_ABOVE_IDLE_OF_TARGET_PER_WORK,
];

fn mark(energy: &HostEnergy, metrics: &mut BTreeMap<String, Metric>) -> usize {
    let of_meters = metrics
        .iter_mut()
        .filter(|(name, _)| OF_METERS.iter().any(|of| of.is(name)));
    let marked = of_meters.map(|(_, metric)| {
        metric.meter = Some(energy.to_string());
        metric.model = energy.model.as_ref().map(|model| model.name.clone());
    });
    marked.count()
}

fn facts_of(model: &PowerModel) -> BTreeMap<String, String> {
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
    use crate::run::{Assignment, trial::begun};
    use vtax_core::{Base, Quantity, Source, Unit};
    use vtax_results::{Better, Treatment};

    fn trial() -> Trial {
        let assignment = Assignment {
            treatment: 0,
            index: 0,
            block: 1,
        };
        let treatment = Treatment {
            label: "vm".to_owned(),
            platform: "qemu".to_owned(),
            workload: "cpu".to_owned(),
            factors: BTreeMap::new(),
            baseline: None,
            platform_kind: "qemu".to_owned(),
            workload_kind: "cpu".to_owned(),
        };
        begun(assignment, treatment)
    }

    fn metric(source: Source) -> Metric {
        Metric {
            quantity: Quantity::new(3.0, Unit::from_base(Base::Joule)),
            source,
            model: None,
            meter: None,
            better: Better::Lower,
            headline: false,
            title: String::new(),
        }
    }

    fn measured(series: &str, covers: &str) -> HostEnergy {
        HostEnergy {
            series: vec![series.to_owned()],
            meters: Vec::new(),
            source: Source::Measured,
            covers: covers.to_owned(),
            caveats: Vec::new(),
            model: None,
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
        let model = HostEnergy {
            source: Source::Modelled,
            model: Some(model),
            ..measured("energy.model.host_joules", "the whole machine")
        };
        let mut trial = trial();
        for name in ["energy.total", "power.mean", "cpu.per_work"] {
            let metric = metric(Source::Emulated);
            trial.metrics.insert(name.into(), metric);
        }
        record(&model, &mut trial);
        let of = |name: &str| &trial.metrics[name];
        for name in ["energy.total", "power.mean"] {
            assert_eq!(of(name).source, Source::Emulated);
            assert!(of(name).is_modelled());
            assert_eq!(of(name).model.as_deref(), Some("mine"));
            let meter = of(name).meter.as_deref();
            assert_eq!(meter, Some("model host: the whole machine"));
        }
        assert!(!of("cpu.per_work").is_modelled());
        let facts: Vec<&str> = trial.environment.values().map(String::as_str).collect();
        let words = "mine, of 2026-03-01, fitted to wall (off by 0.8 W typically, 2.1 W at worst)";
        let of_meter = ["model host: the whole machine", words];
        let of_each = ["2026-03-01", "/etc/mine.toml", "wall", "mine", "0.8", "2.1"];
        assert_eq!(facts, [&of_meter, &of_each[..]].concat());
    }

    #[test]
    fn a_trial_without_joules_names_no_model() {
        let meter = measured("energy.powercap.package-0_joules", "processor packages");
        let mut trial = trial();
        let metric = metric(Source::Measured);
        trial.metrics.insert("cpu.per_work".into(), metric);
        record(&meter, &mut trial);
        assert!(trial.environment.is_empty());
    }

    #[test]
    fn measured_joules_name_the_domains_and_the_caveats_of_their_meter() {
        let mut meter = measured("energy.powercap.package-0_joules", "processor packages");
        meter.caveats.push("no memory counter".to_owned());
        let mut trial = trial();
        let joules = metric(Source::Measured);
        trial.metrics.insert("energy.above_idle".into(), joules);
        record(&meter, &mut trial);
        let joules = &trial.metrics["energy.above_idle"];
        assert_eq!(
            joules.meter.as_deref(),
            Some("powercap package-0: processor packages")
        );
        assert!(!joules.is_modelled());
        let facts: Vec<&str> = trial.environment.values().map(String::as_str).collect();
        assert_eq!(
            facts,
            [
                "no memory counter",
                "powercap package-0: processor packages"
            ]
        );
    }
}
