// SPDX-License-Identifier: Apache-2.0
//! The end of a climb, as a pure function of the samples of an interval.

use crate::limits::{Binding, Limits};
use crate::record::Interval;
use crate::resources::{Resource, Shares};

/// The reason to end the climb after `interval`, if there is one. The medians of its samples count, so that one burst
/// ends nothing. Of rates only the population's own share counts, so that the work of other programs does not lower
/// the number of guests.
#[must_use]
pub fn judge(limits: &Limits, interval: &Interval) -> Option<Binding> {
    let own = |resource| {
        let median = interval.median(|sample| sample.own_share(resource))?;
        Some((resource, median))
    };
    let medians: Shares = Resource::ALL.into_iter().filter_map(own).collect();
    if let Some(binding) = limits.exceeded(&medians) {
        return Some(binding);
    }
    match &interval.probe {
        Some(probe) if probe.answered == 0 => Some(Binding::Probe { p99_ms: None }),
        Some(probe) if probe.p99_us / 1000.0 > limits.probe_p99_ms || probe.failed > 0 => {
            Some(Binding::Probe {
                p99_ms: Some(probe.p99_us / 1000.0),
            })
        }
        _ => interval.refused.clone().map(|why| Binding::Refused { why }),
    }
}

/// The resource nearest to its limit in the last interval, which would have ended a longer climb.
#[must_use]
pub fn nearest(limits: &Limits, interval: &Interval) -> Option<(Resource, f64)> {
    let last = interval.samples.last()?;
    Resource::ALL
        .into_iter()
        .filter_map(|resource| Some((resource, last.own_share(resource)?)))
        .max_by(|(a, x), (b, y)| {
            (x / limits.of_resource(*a)).total_cmp(&(y / limits.of_resource(*b)))
        })
}

/// The populations at which a climb to `maximum` is sampled: `intervals` equal steps.
#[must_use]
pub fn steps(maximum: u32, intervals: u32) -> Vec<u32> {
    let intervals = intervals.clamp(1, maximum.max(1));
    (1..=intervals)
        .map(|step| {
            let at = u64::from(maximum) * u64::from(step) / u64::from(intervals);
            u32::try_from(at).unwrap_or(u32::MAX)
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::{Latency, Sample};
    use proptest::prelude::*;

    const LIMITS: Limits = Limits {
        stop_percent: 90.0,
        reserve_percent: 15.0,
        probe_p99_ms: 100.0,
    };

    fn interval(shares: &[&[(Resource, f64)]]) -> Interval {
        let samples = shares.iter().map(|shares| Sample {
            shares: shares.iter().copied().collect(),
            population_cpu: 1.0,
            ..Sample::default()
        });
        Interval {
            samples: samples.collect(),
            ..Interval::default()
        }
    }

    #[test]
    fn the_first_resource_at_its_limit_ends_the_climb_and_is_named() {
        let calm = interval(&[&[(Resource::Pids, 89.9), (Resource::Memory, 84.9)]]);
        assert_eq!(judge(&LIMITS, &calm), None);
        let full = interval(&[&[(Resource::Pids, 90.0), (Resource::Memory, 10.0)]]);
        assert_eq!(judge(&LIMITS, &full).unwrap().to_string(), "PIDs at 90.0 %");
    }

    #[test]
    fn memory_stops_at_the_reserve_when_that_comes_first() {
        let full = interval(&[&[(Resource::Memory, 85.0)]]);
        assert_eq!(
            judge(&LIMITS, &full).unwrap().to_string(),
            "memory at 85.0 %"
        );
    }

    #[test]
    fn one_burst_in_the_samples_ends_nothing() {
        let pids = |share| [(Resource::Pids, share)];
        let burst = [pids(10.0), pids(99.0), pids(10.0)];
        let burst: Vec<&[(Resource, f64)]> = burst.iter().map(|s| &s[..]).collect();
        assert_eq!(judge(&LIMITS, &interval(&burst)), None);
    }

    #[test]
    fn work_of_other_programs_does_not_end_a_climb_but_the_guests_own_does() {
        let mut busy = interval(&[&[(Resource::Cpu, 100.0)]]);
        assert_eq!(judge(&LIMITS, &busy), None);
        busy.samples[0].population_cpu = 95.0;
        assert_eq!(judge(&LIMITS, &busy).unwrap().to_string(), "CPU at 95.0 %");

        let mut busy = interval(&[&[(Resource::Disk, 100.0), (Resource::Network, 100.0)]]);
        assert_eq!(judge(&LIMITS, &busy), None);
        busy.samples[0].population_disk = true;
        assert_eq!(
            judge(&LIMITS, &busy).unwrap().to_string(),
            "disk at 100.0 %"
        );
    }

    #[test]
    fn a_slow_or_silent_probe_ends_the_climb() {
        let mut slow = interval(&[&[]]);
        let probe = |p99_us, answered, failed| Latency {
            answered,
            failed,
            p99_us,
            ..Latency::default()
        };
        slow.probe = Some(probe(99_000.0, 10, 0));
        assert_eq!(judge(&LIMITS, &slow), None);
        slow.probe = Some(probe(101_000.0, 10, 0));
        assert!(matches!(
            judge(&LIMITS, &slow),
            Some(Binding::Probe { p99_ms: Some(_) })
        ));
        slow.probe = Some(probe(0.0, 0, 10));
        assert_eq!(judge(&LIMITS, &slow), Some(Binding::Probe { p99_ms: None }));
    }

    #[test]
    fn a_guest_that_could_not_be_made_ends_the_climb_in_the_kernels_words() {
        let mut refused = interval(&[&[(Resource::Pids, 50.0)]]);
        refused.refused = Some("fork: Resource temporarily unavailable".to_owned());
        assert!(
            judge(&LIMITS, &refused)
                .unwrap()
                .to_string()
                .contains("Resource temporarily")
        );
    }

    proptest! {
        #[test]
        fn nothing_below_every_limit_ever_stops(share in 0.0..84.9f64, cpu in 0.0..89.9f64) {
            let mut calm = interval(&[&[(Resource::Memory, share), (Resource::Pids, share), (Resource::Cpu, 100.0)]]);
            calm.samples[0].population_cpu = cpu;
            prop_assert_eq!(judge(&LIMITS, &calm), None);
        }

        #[test]
        fn what_is_named_is_at_its_limit(shares in proptest::collection::vec(0.0..120.0f64, 6)) {
            let resources = [Resource::Memory, Resource::Swap, Resource::Descriptors, Resource::Pids, Resource::Mappings, Resource::Disk];
            let pairs: Vec<(Resource, f64)> = resources.into_iter().zip(shares).collect();
            let binding = judge(&LIMITS, &interval(&[&pairs]));
            let any = pairs.iter().any(|(resource, share)| *share >= LIMITS.of_resource(*resource));
            match binding {
                Some(Binding::Resource { resource, percent }) => prop_assert!(percent >= LIMITS.of_resource(resource)),
                // The population did not use the disk, which therefore ends no climb.
                other => prop_assert!(other.is_none() && (!any || pairs.iter().all(|(resource, share)| *resource == Resource::Disk || *share < LIMITS.of_resource(*resource)))),
            }
        }

        #[test]
        fn steps_rise_to_the_maximum(maximum in 1u32..2_000_000, intervals in 1u32..100) {
            let steps = steps(maximum, intervals);
            prop_assert!(steps.windows(2).all(|pair| pair[0] < pair[1]));
            prop_assert_eq!(steps.last(), Some(&maximum));
            prop_assert_eq!(steps.len() as u32, intervals.min(maximum));
        }
    }
}
