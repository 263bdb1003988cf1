// SPDX-License-Identifier: Apache-2.0
//! Tests of the numbers of an observation.

use super::*;
use vtax_core::{Base, Nanoseconds, Series, SeriesKind, Unit};
use vtax_load::workload::WorkloadResult;
use vtax_observe::Readings;

#[test]
fn traced_soft_interrupts_move_to_whom_they_worked_for_and_the_sum_stays() {
    let cpu = traced(0.0);
    let stage = |stage| (cpu.stages[&stage] * 1000.0).round() / 1000.0;
    assert_eq!((stage(Stage::Service), stage(Stage::Softirq)), (1.0, 3.0));
    assert_eq!((stage(Stage::Client), stage(Stage::Rest)), (4.5, 1.5));
    assert!((cpu.busy - 10.0).abs() < 1e-9);
    // The service's 1 s and its 3 s of soft interrupts. The rest is charged to no actor.
    assert!((cpu.for_target() - 4.0).abs() < 1e-9, "{cpu:?}");
}

#[test]
fn soft_interrupts_go_on_while_a_hypervisor_below_runs_something_else() {
    // Of 10 s that were not idle, 2 s were stolen, so that 3 s by the clock become 2.4 s.
    let cpu = traced(0.2);
    assert!((cpu.stages[&Stage::Softirq] - 2.4).abs() < 1e-9, "{cpu:?}");
    // The service's 2 s contain no stolen time. 0.8 s of them were soft interrupts.
    assert!((cpu.stages[&Stage::Service] - 1.2).abs() < 1e-9, "{cpu:?}");
}

/// Returns the shares of ten seconds of two processors, one idle, with traced soft interrupts.
fn traced(stolen: f64) -> CpuShares {
    let counters = |at: f64| {
        [
            ("host", counter::CPU_IDLE, at),
            ("host", counter::CPU_STEAL, stolen * at),
            ("target", counter::CPU_TOTAL, 0.2 * at),
            ("client", counter::CPU_TOTAL, 0.6 * at),
            ("target", counter::CPU_SOFTIRQ, 0.3 * at),
            ("client", counter::CPU_SOFTIRQ, 0.05 * at),
            ("target", counter::CPU_SOFTIRQ_CONTEXT, 0.1 * at),
            ("client", counter::CPU_SOFTIRQ_CONTEXT, 0.2 * at),
        ]
    };
    let (begin, end) = (snapshot(0, &counters(0.0)), snapshot(10, &counters(10.0)));
    let guests = alone(false);
    let observation = Observation {
        processors: 2,
        ..between(&begin, &end, &guests)
    };
    observation.cpu().unwrap()
}

/// Returns a snapshot at `seconds` of counters in seconds of CPU time.
pub(in crate::run) fn snapshot(seconds: u64, counters: &[(&str, &str, f64)]) -> Snapshot {
    let mut readings = Readings::default();
    for (owner, metric, value) in counters {
        let id = readings.register(Series {
            owner: Owner::named(owner),
            metric: (*metric).to_owned(),
            unit: Unit::from_base(Base::Nanosecond),
            kind: SeriesKind::Counter,
            source: Source::Measured,
        });
        readings.record(id, value * 1e9);
    }
    Snapshot::from_readings(Nanoseconds(seconds * 1_000_000_000), &readings)
}

fn alone(is_vm: bool) -> [ObservedGuest; 1] {
    [observed("target", "client", is_vm)]
}

pub(in crate::run) fn observed(owner: &str, client: &str, is_vm: bool) -> ObservedGuest {
    ObservedGuest {
        owner: Owner::named(owner),
        client: Owner::named(client),
        is_vm,
        is_here: true,
        source: Source::Measured,
        is_paced: false,
        is_own: false,
    }
}

/// The observation of the first of some guests, on one processor without a meter.
pub(in crate::run) fn between<'a>(
    begin: &'a Snapshot,
    end: &'a Snapshot,
    guests: &'a [ObservedGuest],
) -> Observation<'a> {
    Observation {
        begin,
        end,
        processors: 1,
        guests,
        guest: 0,
        energy: &[],
        idle: None,
        inner: None,
        host: Source::Measured,
    }
}

#[test]
fn what_neighbours_do_is_neither_the_targets_nor_the_rest() {
    let counters = |at: f64| {
        [
            ("host", counter::CPU_IDLE, at),
            ("target", counter::CPU_TOTAL, 0.2 * at),
            ("target", counter::NET_RX_BYTES, 3.0 * at),
            ("target", counter::NET_TX_BYTES, 1.0 * at),
            ("client", counter::CPU_TOTAL, 0.1 * at),
            ("pi", counter::CPU_TOTAL, 0.5 * at),
            ("pi", counter::NET_TX_BYTES, 0.5 * at),
            ("pi.client", counter::CPU_TOTAL, 0.1 * at),
        ]
    };
    let (begin, end) = (snapshot(0, &counters(0.0)), snapshot(10, &counters(10.0)));
    let guests = [
        observed("target", "client", false),
        observed("pi", "pi.client", false),
    ];
    let of = |guest| Observation {
        processors: 2,
        guest,
        ..between(&begin, &end, &guests)
    };
    let cpu = of(0).cpu().unwrap();
    for (stage, expected) in [
        (Stage::Service, 2.0),
        (Stage::Client, 1.0),
        (Stage::Neighbours, 6.0),
        (Stage::Rest, 1.0),
    ] {
        assert!((cpu.stages[&stage] - expected).abs() < 1e-9, "{cpu:?}");
    }
    assert!(
        (cpu.for_target() - 2.0).abs() < 1e-9,
        "nobody's rest: {cpu:?}"
    );
    let metrics = of(1).metrics(&WorkloadResult::default());
    assert!((metrics["cpu.cores"].quantity.value - 0.5).abs() < 1e-9);
    assert!(!metrics.contains_key("cpu.machine"));
    assert!(!metrics.contains_key("net.machine_bytes_per_second"));
    let network = &of(0).metrics(&WorkloadResult::default())["net.machine_bytes_per_second"];
    assert!(
        (network.quantity.value - 4.5e9).abs() < 1.0,
        "both ways, neighbours too: {network:?}"
    );
}

#[test]
fn a_watcher_sees_every_actor_and_all_work_of_the_host() {
    let counters = |at: f64| {
        [
            ("host", counter::CPU_IDLE, at),
            ("target", counter::CPU_TOTAL, 0.2 * at),
            ("target", counter::NET_TX_BYTES, 3.0 * at),
            ("client", counter::CPU_TOTAL, 0.1 * at),
            ("pi", counter::CPU_TOTAL, 0.4 * at),
            ("vtax", counter::CPU_TOTAL, 0.1 * at),
        ]
    };
    let (begin, end) = (snapshot(0, &counters(0.0)), snapshot(2, &counters(2.0)));
    let guests = [
        observed("target", "client", false),
        observed("pi", "pi.client", false),
    ];
    let observation = Observation {
        processors: 2,
        ..between(&begin, &end, &guests)
    };
    let actors = observation.actors();
    let found: Vec<(&str, &str, f64)> = actors
        .iter()
        .flat_map(|(actor, stages)| {
            let round = |value: &f64| (value * 1e6).round() / 1e6;
            let stages = stages.iter();
            stages.map(move |(stage, value)| (actor.as_str(), stage.as_str(), round(value)))
        })
        .collect();
    let expected = [
        ("client", "client", 0.1),
        ("host", "rest", 0.2),
        ("pi", "service", 0.4),
        ("target", "service", 0.2),
        ("vtax", "observer", 0.1),
    ];
    // An actor without counters on this host is excluded.
    assert_eq!(found, expected);
    let carried = observation.carried();
    assert_eq!(carried.len(), 1, "{carried:?}");
    assert!((carried["to its network device"].value - 3e9).abs() < 1.0);
}

fn shares(idle: f64, target: f64, client: f64, is_vm: bool) -> CpuShares {
    let begin = snapshot(
        5,
        &[
            ("host", counter::CPU_IDLE, 1.0),
            ("target", counter::CPU_TOTAL, 1.0),
            ("client", counter::CPU_TOTAL, 1.0),
            ("target", counter::CPU_VCPU, 0.0),
            ("vtax", counter::CPU_TOTAL, 0.0),
        ],
    );
    let end = snapshot(
        15,
        &[
            ("host", counter::CPU_IDLE, 1.0 + idle),
            ("target", counter::CPU_TOTAL, 1.0 + target),
            ("client", counter::CPU_TOTAL, 1.0 + client),
            ("target", counter::CPU_VCPU, target / 2.0),
            ("vtax", counter::CPU_TOTAL, 0.1),
        ],
    );
    let guests = alone(is_vm);
    let observation = Observation {
        processors: 2,
        ..between(&begin, &end, &guests)
    };
    observation.cpu().unwrap()
}

#[test]
fn the_stages_sum_to_what_the_host_did() {
    for is_vm in [false, true] {
        let cpu = shares(12.0, 4.0, 2.0, is_vm);
        assert!(
            (cpu.stages.values().sum::<f64>() - cpu.busy).abs() < 1e-9,
            "{cpu:?}"
        );
        assert!(
            (cpu.busy - 8.0).abs() < 1e-9,
            "20 s of two processors less 12 s idle: {cpu:?}"
        );
        assert!(
            (cpu.for_target() - 5.9).abs() < 1e-9,
            "all but client and observer: {cpu:?}"
        );
    }
}

#[test]
fn a_vm_is_distinguished_and_plain_processes_are_not() {
    let vm = shares(12.0, 4.0, 2.0, true);
    assert!(
        (vm.stages[&Stage::Vcpu] - 2.0).abs() < 1e-9
            && (vm.stages[&Stage::Emulator] - 2.0).abs() < 1e-9,
        "{vm:?}"
    );
    let plain = shares(12.0, 4.0, 2.0, false);
    assert!(
        (plain.stages[&Stage::Service] - 4.0).abs() < 1e-9,
        "{plain:?}"
    );
}

#[test]
fn a_domains_time_comes_on_top_of_what_dom0_did() {
    let counters = |seconds, dom0, domain, backend, stolen| {
        snapshot(
            seconds,
            &[
                ("host", counter::CPU_IDLE, 0.0),
                ("host", counter::CPU_STEAL, stolen),
                ("host", counter::CPU_DOM0, dom0),
                ("target", counter::CPU_DOMAIN, domain),
                ("target", counter::CPU_TOTAL, backend),
                ("client", counter::CPU_TOTAL, backend),
            ],
        )
    };
    // Dom0 wanted 6 s and got 5 s. The counters of its processes contain the stolen part of their 1.8 s.
    let begin = counters(5, 7.0, 1.0, 0.0, 0.0);
    let end = counters(15, 12.0, 4.0, 1.8, 1.0);
    let energy = [("model.joules".to_owned(), Source::Modelled)];
    let guests = alone(false);
    let observation = Observation {
        energy: &energy,
        ..between(&begin, &end, &guests)
    };
    let cpu = observation.cpu().unwrap();
    assert!((cpu.busy - 8.0).abs() < 1e-9, "5 s and 3 s: {cpu:?}");
    for (stage, expected) in [
        (Stage::Vcpu, 3.0),
        (Stage::Backend, 1.5),
        (Stage::Client, 1.5),
        (Stage::Rest, 2.0),
    ] {
        assert!((cpu.stages[&stage] - expected).abs() < 1e-9, "{cpu:?}");
    }
    assert!(
        observation.energy().is_none(),
        "the model does not see the domain"
    );
}

#[test]
fn a_target_never_costs_less_than_its_own_processes() {
    // Idle time is rounded up, so that a cost by subtraction would be 0.
    let cpu = shares(19.9, 0.3, 0.2, false);
    assert!((cpu.for_target() - 0.3).abs() < 1e-9, "{cpu:?}");
}
