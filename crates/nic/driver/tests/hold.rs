// SPDX-License-Identifier: Apache-2.0
//! Tests of the hold modes in the simulator: savings, delays and determinism on standard traffic.

use vtax_nic::hold::{HoldSettings, Mode, Nanos};
use vtax_nic_driver::arrivals::Arrivals;
use vtax_nic_driver::simulation::{Outcome, Setup, Traffic, quantile, run};
use vtax_nic_driver::stream::Stream;

const BUDGET: Nanos = Nanos::from_micros(1_000);

fn simulate(mode: Mode, ports: u32, traffic: &Traffic) -> Outcome {
    let settings = HoldSettings {
        mode,
        ..HoldSettings::default()
    };
    let setup = Setup {
        traffic: traffic.clone(),
        ports,
        budget: BUDGET,
        duration: Nanos::from_secs(2),
    };
    run(&setup, || settings.controller())
}

/// The ratio of notifications per packet to `off`, and the outcomes of `adaptive` and `off`.
fn adaptive(traffic: &Traffic) -> (f64, Outcome, Outcome) {
    let off = simulate(Mode::Off, 1, traffic);
    let adaptive = simulate(Mode::Adaptive, 1, traffic);
    (adaptive.per_packet() / off.per_packet(), adaptive, off)
}

#[test]
fn steady_traffic_needs_a_fifth_of_the_calls_within_the_budget() {
    for kpps in [20.0, 50.0, 100.0, 200.0] {
        let traffic = Traffic::Receive(Arrivals::Poisson { rate: kpps * 1e3 });
        let (ratio, outcome, _) = adaptive(&traffic);
        assert!(ratio <= 0.2, "{kpps} kpps: {ratio:.3}");
        assert!(quantile(&outcome.rx_holds, 0.99) <= BUDGET, "{kpps} kpps");
        let traffic = Traffic::Send(Arrivals::Poisson { rate: kpps * 1e3 });
        let (ratio, outcome, _) = adaptive(&traffic);
        assert!(ratio <= 0.2, "send {kpps} kpps: {ratio:.3}");
        assert!(
            quantile(&outcome.tx_waits, 0.99) <= BUDGET,
            "send {kpps} kpps"
        );
    }
}

#[test]
fn neither_way_holds_longer_than_the_budget() {
    let traffic = Traffic::ReceiveWithAcks(Arrivals::Poisson { rate: 80e3 });
    let (ratio, outcome, _) = adaptive(&traffic);
    assert!(ratio <= 0.2, "{ratio:.3}");
    // The worker's wake-up of 5 µs delays packets even without any hold.
    let most = BUDGET + Nanos::from_micros(5);
    for waits in [&outcome.rx_holds, &outcome.tx_waits] {
        let p99 = quantile(waits, 0.99);
        assert!(p99 <= most, "{p99:?}");
    }
}

#[test]
fn ten_megabits_in_bursts_need_a_third_of_the_calls() {
    let (ratio, _, _) = adaptive(&Traffic::Receive(Arrivals::TEN_MEGABITS_IN_BURSTS));
    assert!(ratio <= 0.35, "{ratio:.3}");
}

/// Traffic like bulk TCP with large frames: a hold covers five frames on average, so that it merges a few, and some
/// holds merge none. Those must not end holding.
#[test]
fn a_few_holds_that_merge_nothing_do_not_end_what_pays() {
    let traffic = Traffic::Receive(Arrivals::Poisson { rate: 5e3 });
    let (ratio, _, _) = adaptive(&traffic);
    assert!(ratio <= 0.5, "{ratio:.3}");
}

/// A hold that saves half a notification costs the worker more than it saves.
#[test]
fn what_merges_little_is_not_held() {
    let traffic = Traffic::Receive(Arrivals::Poisson { rate: 0.7e3 });
    let (ratio, outcome, _) = adaptive(&traffic);
    assert!(ratio >= 0.9, "{ratio:.3}");
    assert_eq!(quantile(&outcome.rx_holds, 0.5), Nanos::ZERO);
}

#[test]
fn where_a_hold_can_merge_nothing_nothing_is_held() {
    let (ratio, outcome, _) = adaptive(&Traffic::Receive(Arrivals::TEN_MEGABITS));
    assert!(ratio <= 1.0, "{ratio:.3}");
    assert_eq!(outcome.rx_holds.last(), Some(&0));
    // The fixed timer delays every packet and does not reduce the calls.
    let fixed = simulate(Mode::Fixed, 1, &Traffic::Receive(Arrivals::TEN_MEGABITS));
    assert_eq!(quantile(&fixed.rx_holds, 0.5), BUDGET);
}

#[test]
fn transactions_lose_less_than_two_percent() {
    let traffic = Traffic::Transactions {
        outstanding: 1,
        think: Nanos::from_micros(50),
    };
    let (_, adaptive, off) = adaptive(&traffic);
    let kept = adaptive.received as f64 / off.received as f64;
    assert!(kept >= 0.98, "{kept:.4}");
}

#[test]
fn transactions_side_by_side_lose_less_than_fifteen_percent() {
    for outstanding in [4, 32] {
        let traffic = Traffic::Transactions {
            outstanding,
            think: Nanos::from_micros(50),
        };
        let (_, adaptive, off) = adaptive(&traffic);
        let kept = adaptive.received as f64 / off.received as f64;
        assert!(kept >= 0.85, "{outstanding} outstanding: {kept:.4}");
    }
}

#[test]
fn ports_share_the_wake_ups_of_their_worker() {
    let traffic = Traffic::Receive(Arrivals::Poisson { rate: 5e3 });
    let wakeups = |mode| simulate(mode, 64, &traffic).timer_wakeups;
    let (fixed, adaptive) = (wakeups(Mode::Fixed), wakeups(Mode::Adaptive));
    assert!(adaptive * 4 < fixed, "{adaptive} against {fixed}");
}

#[test]
fn off_never_holds() {
    let traffic = Traffic::ReceiveWithAcks(Arrivals::Poisson { rate: 80e3 });
    let outcome = simulate(Mode::Off, 1, &traffic);
    assert_eq!(
        (outcome.timer_wakeups, outcome.rx_holds.last()),
        (0, Some(&0))
    );
}

#[test]
fn the_same_seed_gives_the_same_outcome() {
    let traffic = Traffic::ReceiveWithAcks(Arrivals::Poisson { rate: 80e3 });
    let [first, second] = [0, 1].map(|_| simulate(Mode::Adaptive, 2, &traffic));
    assert_eq!((first.calls, first.kicks), (second.calls, second.kicks));
    assert_eq!(first.rx_holds, second.rx_holds);
}

/// Calls for 1 GB with `fixed` holds of 0.25, 1 and 4 ms in the emulated testbed (`plans/nic-floor.toml --quick`).
#[test]
fn the_calls_of_a_real_stream_are_predicted_within_15_percent() {
    for (guest_sends, rate, emulated) in [
        (false, None, [1_694.0, 1_819.0, 1_869.0]),
        (false, Some(100_000_000), [8_034.0, 7_980.0, 7_927.0]),
        (true, None, [1_772.0, 1_047.0, 796.0]),
        (true, Some(100_000_000), [8_059.0, 8_324.0, 7_896.0]),
    ] {
        for (hold_us, emulated) in [250, 1_000, 4_000].into_iter().zip(emulated) {
            let settings = HoldSettings {
                mode: Mode::Fixed,
                ..HoldSettings::default()
            };
            let setup = Setup {
                traffic: Traffic::Stream(Stream::of_testbed(guest_sends, rate)),
                ports: 1,
                budget: Nanos::from_micros(hold_us),
                duration: Nanos::from_secs(10),
            };
            let outcome = run(&setup, || settings.controller());
            let ratio = outcome.calls as f64 * 1e9 / outcome.bytes as f64 / emulated;
            assert!(
                (0.85..=1.15).contains(&ratio),
                "{hold_us} µs, sent by the guest: {guest_sends}, {rate:?} bit/s: {ratio:.2} of {emulated}"
            );
        }
    }
}
