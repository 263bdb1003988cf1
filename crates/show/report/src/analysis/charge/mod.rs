// SPDX-License-Identifier: Apache-2.0
//! Accuracy of charge-back: the charge of two guests that run together over the charge of each alone, where all of the
//! host's work for guests is for one guest; and weights of the counted method, fitted to the loads outside the pair.

mod study;
mod table;

pub use study::{GuestCharge, Measurement, MonitorCost, PlatformStudy, Study, StudyError};
pub use table::markdown;

use vtax_results::stats::{extremes, mean};

/// The charging methods.
const METHODS: [&str; 2] = ["traced", "counted"];

/// Cost of I/O in soft interrupts, in nanoseconds. Only the ratios between the weights matter.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Weights {
    /// A packet received by a guest.
    pub received: f64,
    /// A packet sent by a guest.
    pub sent: f64,
    /// A completed block request.
    pub block_request: f64,
    /// A soft interrupt run without I/O.
    pub other: f64,
}

/// Default weights of the charging: estimates, for lack of measured ones.
impl Default for Weights {
    fn default() -> Self {
        Self {
            received: 0.0,
            sent: 0.0,
            block_request: 6000.0,
            other: 1200.0,
        }
    }
}

impl Weights {
    /// Weighted cost of a guest's packets and block requests.
    fn cost(&self, guest: &GuestCharge) -> f64 {
        guest.received as f64 * self.received
            + guest.sent as f64 * self.sent
            + guest.block_requests as f64 * self.block_request
    }

    /// Weighted cost of the host's own soft interrupts: each host packet is the mean of a received and a sent one.
    fn host_cost(&self, packets: u64, other: u64) -> f64 {
        packets as f64 * (self.received + self.sent) / 2.0 + other as f64 * self.other
    }
}

/// The source of a guest's charge.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Method {
    /// Traced soft interrupts.
    Traced,
    /// Counted I/O, as charged during the run.
    Counted,
    /// Counted I/O, recomputed with these weights and the cost per unit of the whole study.
    Fitted(Weights),
    /// CPU time that the kernel books on the guest's threads and processes: the input of a division by processes' CPU
    /// time.
    Processes,
}

/// Charge of a guest per unit of its work, together and alone.
#[derive(Debug, Clone, PartialEq)]
pub struct Comparison {
    /// Nanoseconds per unit of work alone, one value per block.
    pub alone: Vec<f64>,
    /// Nanoseconds per unit of work together, one value per block.
    pub together: Vec<f64>,
}

impl Comparison {
    /// Mean over blocks together, over the mean alone; `None` without data.
    pub fn ratio(&self) -> Option<f64> {
        Some(mean(&self.together)? / mean(&self.alone)?).filter(|ratio| ratio.is_finite())
    }

    /// The lowest and the highest ratio of a block.
    pub fn range(&self) -> Option<(f64, f64)> {
        let blocks = self.together.iter().zip(&self.alone);
        let (low, high) = extremes(blocks.map(|(together, alone)| together / alone));
        (low.is_finite() && high.is_finite()).then_some((low, high))
    }
}

impl PlatformStudy {
    /// Charge of a guest in a measurement over all stages, in nanoseconds.
    fn charge(
        &self,
        measurement: &Measurement,
        guest: &GuestCharge,
        method: Method,
    ) -> Option<f64> {
        if measurement.span.0 == 0 {
            return None;
        }
        let total = |name| Some(guest.total(name)?.0 as f64);
        match method {
            Method::Processes => Some(guest.booked.0 as f64),
            Method::Traced => total("traced"),
            Method::Counted => total("counted"),
            Method::Fitted(weights) => {
                let softirq = guest.stage("counted", "softirq").0 as f64;
                let cost = self.cost_of_exchanges(&weights);
                Some(total("counted")? - softirq + weights.cost(guest) * cost)
            }
        }
    }

    /// Nanoseconds of soft interrupts per unit of `weights`, over the whole study.
    fn cost_of_exchanges(&self, weights: &Weights) -> f64 {
        let (mut softirq, mut cost) = (0.0, 0.0);
        for measurement in &self.measurements {
            softirq += measurement.softirq.0 as f64;
            cost += weights.host_cost(measurement.host_packets, measurement.other_softirqs);
            let guests = measurement.guests.iter();
            cost += guests.map(|guest| weights.cost(guest)).sum::<f64>();
        }
        if cost > 0.0 { softirq / cost } else { 0.0 }
    }

    /// A method's charge of a guest alone, over the traced charge.
    pub fn over_truth(&self, load: &str, method: Method) -> Option<f64> {
        let of = |method| mean(&self.compare(load, method).alone);
        Some(of(method)? / of(Method::Traced)?).filter(|ratio| ratio.is_finite())
    }

    /// Error bound that the counted method states for a guest alone, over the traced charge. `None` without a stated
    /// bound.
    pub fn stated_error(&self, load: &str) -> Option<f64> {
        let of = |of_guest: &dyn Fn(&GuestCharge) -> Option<f64>| -> Vec<f64> {
            let guests = self.at_work(load, 1).map(|(_, guest, _)| guest);
            guests.filter_map(of_guest).collect()
        };
        let errors = of(&|guest| Some(guest.errors.get("counted")?.0 as f64));
        let traced = of(&|guest| Some(guest.total("traced")?.0 as f64));
        Some(mean(&errors)? / mean(&traced)?).filter(|ratio| ratio.is_finite())
    }

    /// Charge per unit of work of one guest of the pair, together and alone.
    pub fn compare(&self, load: &str, method: Method) -> Comparison {
        let of = |running: usize| -> Vec<f64> {
            let measured = self.at_work(load, running);
            let for_work = measured.filter_map(|(measurement, guest, work)| {
                Some(self.charge(measurement, guest, method)? / work)
            });
            for_work.collect()
        };
        Comparison {
            alone: of(1),
            together: of(2),
        }
    }

    /// Charge of both guests together over the sum of their charges alone, at the rates of work of the measurement
    /// together.
    pub fn compare_sum(&self, method: Method) -> Option<f64> {
        let (mut together, mut alone) = (0.0, 0.0);
        for load in &self.pair {
            let compared = self.compare(load, method);
            let work = self
                .pair_measurements(2)
                .find_map(|of| of.guest(load)?.work)?;
            together += mean(&compared.together)? * work;
            alone += mean(&compared.alone)? * work;
        }
        Some(together / alone).filter(|ratio| ratio.is_finite())
    }

    /// Share of a guest's I/O time (traced, alone, beside its own threads and processes) that its processes do not show
    /// when both guests run: that time is on another guest or the host.
    pub fn missed_by_processes(&self, load: &str) -> Option<f64> {
        let truth = mean(&self.compare(load, Method::Traced).alone)?;
        let shown = mean(&self.compare(load, Method::Processes).together)?;
        let io = self.at_work(load, 1).filter_map(|(_, guest, work)| {
            let own = guest.stage("traced", "vcpu");
            let io = guest.total("traced")?.0.saturating_sub(own.0);
            Some(io as f64 / work)
        });
        let io = mean(&io.collect::<Vec<f64>>())?;
        Some((truth - shown) / io).filter(|share| share.is_finite())
    }

    /// Measurements with both guests present and `running` of them under load.
    fn pair_measurements(&self, running: usize) -> impl Iterator<Item = &Measurement> {
        self.measurements.iter().filter(move |measurement| {
            measurement.guests.len() == 2 && measurement.running().count() == running
        })
    }

    /// The measurements with both guests present and `running` of them under load in which one of them worked, with
    /// that guest and its units of work.
    fn at_work<'a>(
        &'a self,
        load: &'a str,
        running: usize,
    ) -> impl Iterator<Item = (&'a Measurement, &'a GuestCharge, f64)> {
        self.pair_measurements(running).filter_map(|measurement| {
            let guest = measurement.guest(load)?;
            let work = guest.work.filter(|work| *work > 0.0)?;
            Some((measurement, guest, work * measurement.span.as_secs_f64()))
        })
    }

    /// Weights by least squares over the loads outside the pair: the cost of a received and a sent packet in soft
    /// interrupts or, where block requests outnumber packets, of a block request. `None` with too few loads.
    pub fn fitted(&self) -> Option<Weights> {
        let between = || {
            let alone = (self.measurements.iter()).filter(|of| of.guests.len() == 1);
            let guests = alone.flat_map(|of| &of.guests);
            guests.filter(|guest| guest.charged.contains_key("traced"))
        };
        let packets: u64 = between().map(|of| of.received + of.sent).sum();
        let by_requests = between().map(|of| of.block_requests).sum::<u64>() > packets;
        let points = between().map(|guest| {
            let softirq = guest.stage("traced", "softirq").0 as f64;
            if by_requests {
                [guest.block_requests as f64, 0.0, softirq]
            } else {
                [guest.received as f64, guest.sent as f64, softirq]
            }
        });
        let (a, b) = two_slopes(&points.collect::<Vec<_>>())?;
        let mut weights = Weights::default();
        if by_requests {
            weights.block_request = a;
        } else {
            (weights.received, weights.sent) = (a, b);
        }
        Some(weights)
    }
}

/// Least-squares fit of `z = a x + b y` with non-negative slopes. `None` where the points do not determine them.
fn two_slopes(points: &[[f64; 3]]) -> Option<(f64, f64)> {
    let sum = |f: fn(&[f64; 3]) -> f64| points.iter().map(f).sum::<f64>();
    let (xx, xy, yy) = (
        sum(|[x, _, _]| x * x),
        sum(|[x, y, _]| x * y),
        sum(|[_, y, _]| y * y),
    );
    let (xz, yz) = (sum(|[x, _, z]| x * z), sum(|[_, y, z]| y * z));
    let determinant = xx * yy - xy * xy;
    if points.len() < 2 || xx <= 0.0 {
        return None;
    }
    if determinant > 1e-9 * xx * yy {
        let a = (xz * yy - yz * xy) / determinant;
        let b = (yz * xx - xz * xy) / determinant;
        if a >= 0.0 && b >= 0.0 {
            return Some((a, b));
        }
        if a < 0.0 {
            return Some((0.0, yz / yy));
        }
    }
    Some((xz / xx, 0.0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;
    use vtax_core::Nanoseconds;

    const SECOND: u64 = 1_000_000_000;

    /// A guest with `work` units a second. Each packet costs 1,000 ns of the guest's own time and 3,000 ns of soft
    /// interrupts, half of which the kernel books on the guest.
    fn guest(load: &str, work: Option<f64>, packets: u64) -> GuestCharge {
        let stages = |softirq: u64| {
            BTreeMap::from([
                ("vcpu".to_owned(), Nanoseconds(packets * 1000)),
                ("softirq".to_owned(), Nanoseconds(softirq)),
            ])
        };
        GuestCharge {
            load: load.to_owned(),
            work,
            received: packets / 2,
            sent: packets - packets / 2,
            bytes: packets * 1024,
            block_requests: 0,
            booked: Nanoseconds(packets * 2500),
            charged: BTreeMap::from([
                ("traced".to_owned(), stages(packets * 3000)),
                ("counted".to_owned(), stages(0)),
            ]),
            errors: BTreeMap::from([("counted".to_owned(), Nanoseconds(packets * 3200))]),
        }
    }

    fn measurement(guests: Vec<GuestCharge>) -> Measurement {
        let packets: u64 = guests.iter().map(|guest| guest.received + guest.sent).sum();
        Measurement {
            block: 0,
            guests,
            span: Nanoseconds(SECOND),
            total: Nanoseconds(SECOND / 2),
            softirq: Nanoseconds(packets * 3000),
            host_packets: 0,
            other_softirqs: 0,
            host: BTreeMap::new(),
            unattributed: BTreeMap::new(),
        }
    }

    fn study() -> PlatformStudy {
        let small = |work| guest("small", work, 4000);
        let large = |work| guest("large", work, 9000);
        let none = |load| guest(load, None, 0);
        PlatformStudy {
            name: "container".to_owned(),
            pair: ["small".to_owned(), "large".to_owned()],
            measurements: vec![
                measurement(vec![guest("between", Some(50.0), 2000)]),
                measurement(vec![guest("between, too", Some(20.0), 5000)]),
                measurement(vec![small(Some(100.0)), none("large")]),
                measurement(vec![none("small"), large(Some(10.0))]),
                measurement(vec![small(Some(100.0)), large(Some(10.0))]),
            ],
            monitor: None,
        }
    }

    #[test]
    fn guests_that_do_not_disturb_each_other_are_charged_the_same() {
        let study = study();
        let equal = Weights {
            received: 3000.0,
            sent: 3000.0,
            ..Weights::default()
        };
        for method in [
            Method::Traced,
            Method::Counted,
            Method::Fitted(equal),
            Method::Processes,
        ] {
            for load in ["small", "large"] {
                let compared = study.compare(load, method);
                assert!((compared.ratio().unwrap() - 1.0).abs() < 1e-9, "{method:?}");
            }
            assert!((study.compare_sum(method).unwrap() - 1.0).abs() < 1e-9);
        }
        let alone = study.compare("small", Method::Traced).alone;
        assert_eq!(alone, [4000.0 * 4000.0 / 100.0]);
    }

    #[test]
    fn the_hosts_time_is_for_the_work_of_all_guests() {
        let together = study().measurements.pop().unwrap();
        // Half a second for 110 units.
        let cost = together.host_cost_of_work().unwrap();
        assert!((cost - 0.5e9 / 110.0).abs() < 1.0, "{cost}");
        let idle = measurement(vec![guest("small", None, 0)]);
        assert_eq!(idle.host_cost_of_work(), None);
    }

    #[test]
    fn what_a_method_says_of_a_guest_alone_is_held_against_tracing() {
        let study = study();
        // The guest's processes lack half of the soft interrupts; the counted charge lacks none.
        let over = |method| study.over_truth("small", method).unwrap();
        assert!((over(Method::Traced) - 1.0).abs() < 1e-9);
        assert!((over(Method::Processes) - 2500.0 / 4000.0).abs() < 1e-9);
        assert!((over(Method::Counted) - 1000.0 / 4000.0).abs() < 1e-9);
        let fitted = Method::Fitted(study.fitted().unwrap());
        assert!((over(fitted) - 1.0).abs() < 1e-9);
    }

    #[test]
    fn the_error_that_counting_states_is_shown_beside_what_it_is_off() {
        let mut platform = study();
        assert!((platform.stated_error("small").unwrap() - 3200.0 / 4000.0).abs() < 1e-9);
        let text = |platform: &PlatformStudy| {
            super::markdown(&Study {
                name: "pair".to_owned(),
                place: "local".to_owned(),
                source: vtax_core::Source::Measured,
                kernel: "6.1".to_owned(),
                processors: 1,
                notes: Vec::new(),
                platforms: vec![platform.clone()],
            })
        };
        let shown = text(&platform);
        assert!(shown.contains("0.250 ± 0.80 |"), "{shown}");
        // A host that accounts interrupts exactly, and results of an earlier vtax, have no stated bound.
        for measurement in &mut platform.measurements {
            measurement
                .guests
                .iter_mut()
                .for_each(|guest| guest.errors.clear());
        }
        assert_eq!(platform.stated_error("small"), None);
        assert!(!text(&platform).contains('±'));
    }

    #[test]
    fn what_processes_do_not_show_is_reported_as_a_share_of_the_io() {
        // Of 3,000 ns of I/O a packet, 1,500 are booked on the guest.
        let missed = study().missed_by_processes("large").unwrap();
        assert!((missed - 0.5).abs() < 1e-9, "{missed}");
    }

    #[test]
    fn work_for_one_that_is_charged_to_the_other_shows_in_both_and_not_in_the_sum() {
        let mut study = study();
        let together = study.measurements.last_mut().unwrap();
        for (guest, softirq) in together.guests.iter_mut().zip([13_000_000, 26_000_000]) {
            let stages = guest.charged.get_mut("traced").unwrap();
            stages.insert("softirq".to_owned(), Nanoseconds(softirq));
        }
        let ratio = |load| study.compare(load, Method::Traced).ratio().unwrap();
        assert!(ratio("small") > 1.05 && ratio("large") < 0.98);
        assert!((study.compare_sum(Method::Traced).unwrap() - 1.0).abs() < 1e-9);
    }

    #[test]
    fn weights_come_from_the_loads_between_alone() {
        let mut study = study();
        let weights = study.fitted().unwrap();
        // Every load receives as many packets as it sends, so the two weights cannot be separated.
        assert!((weights.received + weights.sent - 6000.0).abs() < 1.0);
        study.measurements.drain(..2);
        assert_eq!(study.fitted(), None);
    }

    proptest! {
        #[test]
        fn slopes_are_found_again(
            a in 0.0f64..5000.0, b in 0.0f64..500.0,
            points in prop::collection::vec((1.0f64..1e5, 1.0f64..1e5), 2..6),
        ) {
            let points: Vec<[f64; 3]> =
                points.into_iter().map(|(x, y)| [x, y, a * x + b * y]).collect();
            let (found_a, found_b) = two_slopes(&points).unwrap();
            prop_assert!(found_a >= 0.0 && found_b >= 0.0);
            for [x, y, z] in points {
                let error = (found_a * x + found_b * y - z).abs();
                prop_assert!(error <= 1e-3 * z + 1e-3, "{} {}", found_a, found_b);
            }
        }

        #[test]
        fn slopes_of_noise_are_never_negative(
            points in prop::collection::vec((0.0f64..1e5, 0.0f64..1e5, 0.0f64..1e9), 0..6),
        ) {
            let points: Vec<[f64; 3]> = points.into_iter().map(|(x, y, z)| [x, y, z]).collect();
            if let Some((a, b)) = two_slopes(&points) {
                prop_assert!(a >= 0.0 && b >= 0.0);
            }
        }
    }
}
