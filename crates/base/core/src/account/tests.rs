// SPDX-License-Identifier: Apache-2.0
//! Properties that hold for every account.

use super::*;
use crate::counter;
use crate::owner::Owner;
use proptest::prelude::*;

fn tasks(stage: Stage, time: u64) -> OwnerTimes {
    let mut owner = OwnerTimes::default();
    owner.tasks.add(stage, Nanoseconds(time));
    owner
}

fn busy(time: u64) -> Host {
    Host {
        busy: Nanoseconds(time),
        ..Host::default()
    }
}

#[test]
fn a_monitor_inside_a_container_is_charged_once() {
    let mut monitor = tasks(Stage::Emulator, 400);
    monitor.inside = Some(0);
    let host = Host {
        tasks: Some(Nanoseconds(1000)),
        ..busy(1000)
    };
    let account = close(&host, &[tasks(Stage::Vcpu, 500), monitor]);
    let charged: Vec<u64> = account.charges.iter().map(|c| c.stages.total().0).collect();
    assert_eq!((charged, account.host.0), (vec![100, 400], 500));
}

#[test]
fn ksoftirqd_is_taken_off_the_hosts_tasks_and_its_work_charged_to_whom_it_was_for() {
    let host = Host {
        tasks: Some(Nanoseconds(700)),
        ksoftirqd: Nanoseconds(300),
        ..busy(700)
    };
    let owner = OwnerTimes {
        softirq: Nanoseconds(300),
        ..tasks(Stage::Vcpu, 100)
    };
    let account = close(&host, &[owner]);
    assert_eq!(account.charges[0].stages.get(Stage::Softirq).0, 300);
    assert_eq!((account.host.0, account.rest.0), (300, 0));
}

#[test]
fn a_clock_that_goes_on_while_a_hypervisor_below_has_the_processor_is_scaled() {
    let host = Host {
        stolen: Nanoseconds(200),
        softirqs_hold_stolen: true,
        ..busy(800)
    };
    let owner = OwnerTimes {
        softirq: Nanoseconds(100),
        context: Nanoseconds(50),
        outside: Nanoseconds(70),
        ..tasks(Stage::Backend, 400)
    };
    let stages = |host: &Host| close(host, &[owner]).charges[0].stages;
    let by_kernel = stages(&host);
    // The kernel's own accounting of tasks is correct here, and so is the hypervisor's count of the time that it ran.
    assert_eq!(by_kernel.get(Stage::Backend).0, 400 - 40);
    assert_eq!(by_kernel.get(Stage::Softirq).0, 80);
    assert_eq!(by_kernel.get(Stage::Vcpu).0, 70);
    let dom0 = Host {
        tasks_hold_stolen: true,
        ..host
    };
    assert_eq!(stages(&dom0).get(Stage::Backend).0, 320 - 40);
}

#[test]
fn stolen_time_inside_idle_time_is_in_no_task_of_a_dom0() {
    // In 1,000 the kernel was idle for 600. Of the 500 that it calls stolen, at most 50 are outside of them: it ran for 350.
    let dom0 = |stolen| Host::of_dom0(Nanoseconds(400), Nanoseconds(350), Nanoseconds(stolen));
    let backend = |host: &Host| {
        let account = close(host, &[tasks(Stage::Backend, 320)]);
        assert_eq!(account.total.0, 350);
        account.charges[0].stages.get(Stage::Backend).0
    };
    assert_eq!(backend(&dom0(500)), 280);
    assert_eq!(backend(&dom0(50)), 280);
    assert_eq!(backend(&dom0(0)), 320);
    let always_idle = Host::of_dom0(Nanoseconds(340), Nanoseconds(350), Nanoseconds(500));
    assert_eq!(backend(&always_idle), 320);
}

#[test]
fn soft_interrupts_in_a_domains_back_ends_are_not_taken_off_its_own_processors() {
    let owner = OwnerTimes {
        outside: Nanoseconds(900),
        context: Nanoseconds(40),
        ..tasks(Stage::Backend, 100)
    };
    let account = close(&busy(200), &[owner]);
    let stages = account.charges[0].stages;
    assert_eq!(
        (stages.get(Stage::Vcpu).0, stages.get(Stage::Backend).0),
        (900, 60)
    );
    assert_eq!(account.charges[0].booked.0, 1000);
}

/// A window in which every counter of every owner advanced by 10 ns.
fn parts(neighbours: &[&str]) -> Vec<(String, Stage, u64)> {
    let neighbours: Vec<Owner> = neighbours.iter().map(|name| Owner::named(name)).collect();
    let others = beside_target([&Owner::Client], &neighbours, true);
    let window = Window {
        span: Nanoseconds(1000),
        processors: 1,
        target: &Owner::Target,
        is_vm: false,
        others: &others,
        advance: &|_, name| {
            let is_read = [counter::CPU_TOTAL, counter::CPU_IDLE].contains(&name);
            is_read.then_some(Nanoseconds(10))
        },
    };
    let parts = window.parts().unwrap().into_iter();
    parts
        .map(|part| (part.owner.to_string(), part.stage, part.time.0))
        .collect()
}

#[test]
fn the_switch_works_for_the_only_guest_and_with_neighbours_is_in_the_rest() {
    let named = |(owner, stage, time): (&str, _, _)| (owner.to_owned(), stage, time);
    let alone = [
        ("target", Stage::Service, 10),
        ("client", Stage::Client, 10),
        ("switch", Stage::Switch, 10),
        ("vtax", Stage::Observer, 10),
        ("host", Stage::Rest, 950),
    ];
    assert_eq!(parts(&[]), alone.map(named));
    let among = [
        ("target", Stage::Service, 10),
        ("client", Stage::Client, 10),
        ("pi", Stage::Neighbours, 10),
        ("vtax", Stage::Observer, 10),
        ("host", Stage::Rest, 950),
    ];
    assert_eq!(parts(&["pi"]), among.map(named));
}

/// An upper bound for the counters: ten windows last a few hours at most.
const MOST: u64 = 10_000_000_000_000;

fn any_time() -> impl Strategy<Value = Nanoseconds> {
    prop_oneof![Just(0), 0..1000u64, 0..MOST].prop_map(Nanoseconds)
}

fn any_owner() -> impl Strategy<Value = OwnerTimes> {
    let inside = prop::option::of(0usize..8);
    let times = prop::array::uniform12(0u64..MOST / 12);
    (times, any_time(), any_time(), any_time(), inside).prop_map(
        |(times, outside, softirq, context, inside)| OwnerTimes {
            tasks: Stages::from(times),
            outside,
            softirq,
            context,
            inside,
        },
    )
}

prop_compose! {
    fn any_host()(
        busy in any_time(), stolen in any_time(), tasks in prop::option::of(any_time()),
        softirq in any_time(), context in any_time(), ksoftirqd in any_time(),
        tasks_hold_stolen in any::<bool>(), softirqs_hold_stolen in any::<bool>(),
    ) -> Host {
        Host { busy, stolen, tasks, softirq, context, ksoftirqd, tasks_hold_stolen, softirqs_hold_stolen }
    }
}

/// The window `times` times as long, with the same rates.
fn longer(host: &Host, owners: &[OwnerTimes], times: u64) -> (Host, Vec<OwnerTimes>) {
    let long = |time: Nanoseconds| Nanoseconds(time.0 * times);
    let host = Host {
        busy: long(host.busy),
        stolen: long(host.stolen),
        tasks: host.tasks.map(long),
        softirq: long(host.softirq),
        context: long(host.context),
        ksoftirqd: long(host.ksoftirqd),
        ..*host
    };
    let owner = |owner: &OwnerTimes| OwnerTimes {
        tasks: Stages::from(Stage::ALL.map(|stage| owner.tasks.get(stage).0 * times)),
        outside: long(owner.outside),
        softirq: long(owner.softirq),
        context: long(owner.context),
        ..*owner
    };
    (host, owners.iter().map(owner).collect())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, rng_seed: proptest::test_runner::RngSeed::Fixed(20), ..ProptestConfig::default() })]

    /// Times are unsigned: an underflow would show as an absurd sum.
    #[test]
    fn the_books_close_on_any_counters(host in any_host(), owners in prop::collection::vec(any_owner(), 0..6)) {
        let account = close(&host, &owners);
        prop_assert_eq!(account.charges.len(), owners.len());
        prop_assert_eq!(account.sum().0, account.total.0 + account.excess.0);
        prop_assert!(account.rest.0 == 0 || account.excess.0 == 0);
        let outside: u64 = owners.iter().map(|owner| owner.outside.0).sum();
        prop_assert_eq!(account.total.0, host.busy.0 + outside);
    }

    #[test]
    fn nobody_is_charged_for_more_than_was_counted(host in any_host(), owners in prop::collection::vec(any_owner(), 0..6)) {
        let account = close(&host, &owners);
        for (charge, owner) in account.charges.iter().zip(&owners) {
            let mut counted = owner.tasks;
            counted.add(Stage::Vcpu, owner.outside);
            counted.add(Stage::Softirq, owner.softirq);
            for stage in Stage::ALL {
                prop_assert!(charge.stages.get(stage) <= counted.get(stage));
            }
        }
        prop_assert!(account.host <= host.tasks.unwrap_or_default());
        prop_assert!(account.softirq <= host.softirq);
        prop_assert!(account.rest <= account.total);
    }

    /// A figure in seconds must agree with a table of the same window.
    #[test]
    fn equal_windows_one_after_another_charge_the_sum(
        host in any_host(), owners in prop::collection::vec(any_owner(), 0..6), times in 2u64..12,
    ) {
        let one = close(&host, &owners);
        let (host, owners) = longer(&host, &owners, times);
        let all = close(&host, &owners);
        // Each division of each part rounds by a nanosecond.
        let rounding = times * 200;
        let is_sum = |one: Nanoseconds, all: Nanoseconds| (one.0 * times).abs_diff(all.0) <= rounding;
        for (one, all) in one.charges.iter().zip(&all.charges) {
            for stage in Stage::ALL {
                prop_assert!(is_sum(one.stages.get(stage), all.stages.get(stage)));
            }
        }
        prop_assert!(is_sum(one.host, all.host) && is_sum(one.rest, all.rest));
        prop_assert!(is_sum(one.softirq, all.softirq) && is_sum(one.excess, all.excess));
    }

    /// Holds without stolen time, whose share may change, and with at most as much soft interrupt time in a context as
    /// the context is long.
    #[test]
    fn a_longer_window_charges_nobody_less(
        first in prop::collection::vec(any_owner(), 3), then in prop::collection::vec(any_owner(), 3),
        busy in any_time(), more in any_time(),
    ) {
        let proper = |owner: &OwnerTimes| OwnerTimes { context: owner.context.min(owner.tasks.total()), inside: None, ..*owner };
        let first: Vec<OwnerTimes> = first.iter().map(proper).collect();
        let both: Vec<OwnerTimes> = first.iter().zip(&then).map(|(first, then)| {
            let then = proper(then);
            let mut tasks = first.tasks;
            tasks.merge(&then.tasks);
            OwnerTimes {
                tasks,
                outside: first.outside + then.outside,
                softirq: first.softirq + then.softirq,
                context: first.context + then.context,
                inside: None,
            }
        }).collect();
        let short = close(&Host { busy, ..Host::default() }, &first);
        let long = close(&Host { busy: busy + more, ..Host::default() }, &both);
        for (short, long) in short.charges.iter().zip(&long.charges) {
            prop_assert!(short.stages.total() <= long.stages.total());
        }
        prop_assert!(short.total <= long.total);
    }
}
