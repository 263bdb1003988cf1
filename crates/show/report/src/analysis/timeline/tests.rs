// SPDX-License-Identifier: Apache-2.0
//! Agreement of a trial's timeline with its table.

use super::*;
use vtax_core::{Series, Unit};
use vtax_results::{
    Actor, Better, FORMAT, Metric, ObservationCost, PhaseTimes, Treatment, TrialOutcome,
};

/// The measured window of the test trials: 10 s.
const WINDOW: (Nanoseconds, Nanoseconds) = (Nanoseconds(5 * SECOND.0), Nanoseconds(15 * SECOND.0));

fn trial(clients: &[(&str, &str, &str)], processors: Option<usize>) -> Trial {
    let actor = |name: &str, role, drives: Option<&str>, place: &str| Actor {
        name: name.to_owned(),
        role,
        platform: None,
        workload: None,
        drives: drives.map(str::to_owned),
        place: place.to_owned(),
        metrics: BTreeMap::new(),
        environment: BTreeMap::new(),
    };
    let mut actors = vec![actor("target", Role::Target, None, "local")];
    for (client, guest, place) in clients {
        if *guest != "target" {
            actors.push(actor(guest, Role::Neighbour, None, "local"));
        }
        actors.push(actor(client, Role::Client, Some(guest), place));
    }
    Trial {
        format: FORMAT,
        index: 3,
        block: 0,
        treatment: Treatment {
            label: "native · work".to_owned(),
            platform: "native".to_owned(),
            workload: "work".to_owned(),
            factors: BTreeMap::new(),
            baseline: None,
            platform_kind: String::new(),
            workload_kind: String::new(),
        },
        started: String::new(),
        outcome: TrialOutcome::Complete,
        suspect: Vec::new(),
        disturbed: Vec::new(),
        times: PhaseTimes::default(),
        window: WINDOW,
        work: None,
        metrics: BTreeMap::new(),
        environment: BTreeMap::new(),
        observation: ObservationCost {
            processors,
            ..ObservationCost::default()
        },
        actors,
        phases: Vec::new(),
        objective: None,
    }
}

/// Two samples a second of a counter that grows by `rate` seconds a second.
fn grows(owner: &str, metric: &str, base: Base, rate: f64) -> Samples {
    let scale = if base == Base::Nanosecond { 1e9 } else { 1.0 };
    let points = (0..=40u64).map(|tick| {
        let at = tick * SECOND.0 / 2;
        (
            Nanoseconds(at),
            7e9 + (rate * scale * at as f64 / 1e9).round(),
        )
    });
    Samples {
        series: Series {
            owner: Owner::named(owner),
            metric: metric.to_owned(),
            unit: Unit::from_base(base),
            kind: SeriesKind::Counter,
            source: Source::Measured,
        },
        points: points.collect(),
    }
}

fn times(counters: &[(&str, &str, f64)]) -> Vec<Samples> {
    let times = counters.iter();
    times
        .map(|(owner, metric, rate)| grows(owner, metric, Base::Nanosecond, *rate))
        .collect()
}

/// Seconds of CPU time by stage, summed over a timeline.
fn sums(layers: &[Layer]) -> BTreeMap<Stage, f64> {
    let mut sums = BTreeMap::new();
    for layer in layers {
        *sums.entry(layer.stage).or_insert(0.0) += layer.cores.iter().sum::<f64>();
    }
    sums
}

/// The table of the whole window, from the same counters.
fn table(
    counters: &[(&str, &str, f64)],
    processors: usize,
    is_vm: bool,
    others: &[(&Owner, Stage)],
) -> BTreeMap<Stage, f64> {
    let advance = |owner: &Owner, name: &str| {
        let mut all = counters.iter();
        let found = all.find(|(of, counter, _)| Owner::named(of) == *owner && *counter == name);
        found.map(|(_, _, rate)| Nanoseconds((rate * 10.0 * 1e9).round() as u64))
    };
    let window = Window {
        span: WINDOW.1.saturating_since(WINDOW.0),
        processors,
        target: &Owner::Target,
        is_vm,
        others,
        advance: &advance,
    };
    let mut sums = BTreeMap::new();
    for part in window.parts().unwrap() {
        *sums.entry(part.stage).or_insert(0.0) += part.time.as_secs_f64();
    }
    sums.retain(|_, seconds| *seconds > 0.0);
    sums
}

fn assert_agree(figure: &BTreeMap<Stage, f64>, table: &BTreeMap<Stage, f64>) {
    assert_eq!(
        figure.keys().collect::<Vec<_>>(),
        table.keys().collect::<Vec<_>>()
    );
    for (stage, seconds) in figure {
        // Ten seconds, each rounded to nanoseconds.
        assert!(
            (seconds - table[stage]).abs() < 1e-6,
            "{stage:?}: {figure:?} {table:?}"
        );
    }
}

#[test]
fn seconds_sum_to_the_table_on_a_host_with_stolen_time() {
    let counters = [
        ("host", "cpu.idle_ns", 0.7),
        ("host", "cpu.iowait_ns", 0.1),
        ("host", "cpu.steal_ns", 0.45),
        ("target", "cpu.total_ns", 1.1),
        ("target", "cpu.vcpu_ns", 0.6),
        ("target", "cpu.iothread_ns", 0.15),
        ("target", "cpu.vhost_ns", 0.1),
        ("target", "cpu.softirq_context_ns", 0.2),
        ("target", "cpu.softirq_ns", 0.3),
        ("vtax", "cpu.total_ns", 0.01),
    ];
    let figure = cpu(&trial(&[], Some(4)), &times(&counters));
    let expected = table(&counters, 4, true, &[]);
    let figure = sums(&figure);
    assert_agree(&figure, &expected);
    assert!(
        figure[&Stage::Softirq] < 2.7,
        "of 3 s by the clock: {figure:?}"
    );
    let all: f64 = figure.values().sum();
    assert!(
        (all - 27.5).abs() < 1e-6,
        "all that was neither idle nor stolen: {all}"
    );
}

#[test]
fn seconds_sum_to_the_table_in_a_dom0() {
    let counters = [
        ("host", "cpu.idle_ns", 0.2),
        ("host", "cpu.steal_ns", 0.2),
        ("host", "cpu.dom0_ns", 0.7),
        ("target", "cpu.domain_ns", 0.9),
        ("target", "cpu.total_ns", 0.3),
        ("client", "cpu.total_ns", 0.25),
    ];
    let figure = cpu(
        &trial(&[("client", "target", "local")], Some(1)),
        &times(&counters),
    );
    let expected = table(&counters, 1, false, &[(&Owner::Client, Stage::Client)]);
    assert_agree(&sums(&figure), &expected);
}

#[test]
fn seconds_sum_to_the_table_where_a_pool_counts_the_host_of_the_target() {
    let there = [
        ("host", "cpu.idle_ns", 2.5),
        ("Domain-0", "cpu.total_ns", 0.4),
        ("target", "cpu.vcpu_ns", 0.75),
        ("target", "cpu.backend_ns", 0.1),
        ("target", "cpu.total_ns", 0.85),
    ];
    let mut named: Vec<(String, &str, f64)> = Vec::new();
    for (owner, metric, rate) in there {
        let owner = match owner {
            "target" => owner.to_owned(),
            _ => format!("target.{owner}"),
        };
        named.push((owner, metric, rate));
    }
    // Counters of the local host and the client do not belong to the remote host.
    let here = [
        ("host", "cpu.idle_ns", 0.1),
        ("vtax", "cpu.total_ns", 0.02),
        ("client", "cpu.total_ns", 0.9),
    ];
    let named = named
        .iter()
        .map(|(owner, metric, rate)| (owner.as_str(), *metric, *rate));
    let counters: Vec<(&str, &str, f64)> = named.chain(here).collect();
    let figure = cpu(
        &trial(&[("client", "target", "local")], Some(4)),
        &times(&counters),
    );
    let figure = sums(&figure);
    assert_agree(&figure, &table(&there, 4, true, &[]));
    assert!((figure[&Stage::Backend] - 1.0).abs() < 1e-6, "{figure:?}");
}

#[test]
fn neighbours_and_the_observer_have_layers_and_a_client_elsewhere_has_none() {
    let counters = [
        ("host", "cpu.idle_ns", 1.0),
        ("target", "cpu.total_ns", 0.2),
        ("client", "cpu.total_ns", 0.5),
        ("pi", "cpu.total_ns", 0.4),
        ("pi.client", "cpu.total_ns", 0.1),
        ("vtax", "cpu.total_ns", 0.05),
    ];
    let clients = [
        ("client", "target", "ssh:other"),
        ("pi.client", "pi", "local"),
    ];
    let layers = cpu(&trial(&clients, Some(2)), &times(&counters));
    let found: Vec<(&str, Stage, f64)> = layers
        .iter()
        .map(|layer| {
            (
                layer.actor.as_str(),
                layer.stage,
                (layer.cores[4] * 1e6).round() / 1e6,
            )
        })
        .collect();
    assert_eq!(
        found,
        [
            ("target", Stage::Service, 0.2),
            ("pi", Stage::Neighbours, 0.4),
            ("pi.client", Stage::Neighbours, 0.1),
            ("vtax", Stage::Observer, 0.05),
            ("host", Stage::Rest, 0.25),
        ]
    );
}

#[test]
fn a_record_without_its_processors_has_them_by_the_columns_of_the_host() {
    let counters = [
        ("host", "cpu.user_ns", 1.5),
        ("host", "cpu.system_ns", 0.5),
        ("host", "cpu.softirq_ns", 0.2),
        ("host", "cpu.steal_ns", 0.3),
        ("host", "cpu.idle_ns", 1.47),
        ("target", "cpu.total_ns", 1.0),
    ];
    let samples = times(&counters);
    assert!(
        samples
            .iter()
            .all(|one| is_wanted(&one.series.owner, &one.series.metric))
    );
    let trial = trial(&[], None);
    assert_eq!(Counted::from_trial(&trial, &samples).processors, 4);
    assert_agree(
        &sums(&cpu(&trial, &samples)),
        &table(&counters, 4, false, &[]),
    );
    // Without counters of the host, the timeline has the known layers only.
    let alone = times(&[("target", "cpu.total_ns", 1.0)]);
    let layers = cpu(&trial, &alone);
    assert_eq!(layers.len(), 1);
    assert!((layers[0].cores[9] - 1.0).abs() < 1e-9);
}

#[test]
fn a_second_that_was_not_sampled_is_at_its_place_and_empty() {
    let mut samples = times(&[("target", "cpu.total_ns", 0.5)]);
    samples[0]
        .points
        .retain(|(at, _)| (7 * SECOND.0..13 * SECOND.0).contains(&at.0));
    let layers = cpu(&trial(&[], None), &samples);
    assert_eq!(layers[0].cores, [0.0, 0.0, 0.5, 0.5, 0.5, 0.5, 0.5]);
}

#[test]
fn the_power_is_of_the_series_that_the_record_names() {
    let joules = |name: &str, watts| grows("host", name, Base::Joule, watts);
    let samples = [
        joules("energy.model.host_joules", 31.0),
        joules("energy.rapl.package_joules", 20.0),
        joules("energy.wall.outlet_joules", 10.0),
    ];
    let mut trial = trial(&[], None);
    let metric = Metric {
        quantity: Quantity::new(30.0, Unit::from_base(Base::Watt)),
        source: Source::Measured,
        model: None,
        meter: None,
        better: Better::Lower,
        headline: false,
        title: String::new(),
    };
    trial.metrics.insert("power.mean".to_owned(), metric);
    let mean = |trial: &Trial| watts(trial, &samples).map(|(watts, _)| watts[0].round());
    assert_eq!(mean(&trial), None, "the record names no series");
    let named = |names: [&str; 2]| names.map(str::to_owned).to_vec();
    trial.observation.energy = named(["energy.rapl.package_joules", "energy.wall.outlet_joules"]);
    assert_eq!(mean(&trial), Some(30.0));
    trial.observation.energy = named(["energy.rapl.package_joules", "energy.none_joules"]);
    assert_eq!(mean(&trial), None);
}
