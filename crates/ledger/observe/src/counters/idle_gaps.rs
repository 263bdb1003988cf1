// SPDX-License-Identifier: Apache-2.0
//! Idle gaps of each processor by their length: a BPF program at the tracepoint `power:cpu_idle` (`bpf/idle.bpf.c`).
//!
//! The cpuidle driver's statistics state the idle states that the kernel requested. The lengths of the gaps state which
//! states a processor with other idle states could have entered, and exist without a driver. A gap that a kernel spends
//! in a polling loop is a gap as well.
//!
//! The series are by the age of gaps: the number of gaps that reached an age, and the idle time from there to twice the
//! age. So a gap that has not ended counts as far as it has come, and the times of all ages sum to the idle time.

use super::series::Column;
use crate::bpf::explain;
use crate::{Instrument, ObserveError, Readings};
use aya::maps::{MapData, PerCpuArray};
use aya::programs::RawTracePoint;
use aya::{Ebpf, EbpfLoader};
use std::collections::BTreeMap;
use std::error::Error;
use vtax_core::Nanoseconds;
use vtax_core::counter;
use vtax_core::owner::Owner;

/// Built by `bpf/build.sh`.
static OBJECT: &[u8] = aya::include_bytes_aligned!("../../bpf/idle.bpf.o");

const WHAT: &str = "idle gaps (BPF at the tracepoint power:cpu_idle)";

/// The tracepoint, and the program of the same name.
const CPU_IDLE: &str = "cpu_idle";

/// `BINS` of the BPF program.
const BINS: usize = 22;

/// `struct bin` of the BPF program.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Bin {
    ns: u64,
    count: u64,
}

/// `struct gaps` of the BPF program.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
struct Gaps {
    since: u64,
    bins: [Bin; BINS],
}

// SAFETY: `repr(C)`, integers only and no padding, so that any bytes are a value.
unsafe impl aya::Pod for Gaps {}

/// The shortest gap of a bin in ns: 0, 1,000, 2,000, 4,000, …
fn from_ns(bin: usize) -> u64 {
    bin.checked_sub(1).map_or(0, |power| 1000 << power)
}

impl Gaps {
    /// Converts counts by length to counts by age, at `now`: for each bin the gaps that reached it, and their time in it.
    fn by_age(&self, now: u64) -> [Bin; BINS] {
        let mut by_age = [Bin::default(); BINS];
        let open = (self.since > 0).then(|| now.saturating_sub(self.since));
        let mut longer = 0;
        for (number, (of, age)) in self.bins.iter().zip(&mut by_age).enumerate().rev() {
            let from = from_ns(number);
            let width = from_ns(number + 1) - from;
            let before = from.saturating_mul(of.count);
            age.ns = of.ns.saturating_sub(before) + longer * width;
            longer += of.count;
            age.count = longer;
            if let Some(open) = open.and_then(|open| open.checked_sub(from)) {
                let is_last = number + 1 == BINS;
                age.ns += if is_last { open } else { open.min(width) };
                age.count += 1;
            }
        }
        by_age
    }
}

/// The counts of all processors since the program was attached.
pub struct IdleGaps {
    gaps: PerCpuArray<MapData, Gaps>,
    columns: BTreeMap<(usize, usize), Bins>,
    /// Keeps the program attached.
    _program: Ebpf,
}

/// The columns of one processor and bin, with the last values: a gap that ends while it is read may count twice.
struct Bins {
    last: [u64; 2],
    columns: [Column; 2],
}

impl Bins {
    fn new(processor: usize, bin: usize) -> Self {
        let parts = [processor.to_string(), (from_ns(bin) / 1000).to_string()];
        let parts = parts.each_ref().map(String::as_str);
        Self {
            last: [0; 2],
            columns: [counter::CPU_IDLE_GAPS_TIME, counter::CPU_IDLE_GAPS]
                .map(|family| Column::counter(&Owner::Host, family.name(&parts))),
        }
    }

    fn record(&mut self, found: Bin, into: &mut Readings) {
        let values = [found.ns, found.count];
        for ((column, last), value) in self.columns.iter_mut().zip(&mut self.last).zip(values) {
            *last = value.max(*last);
            column.record_count(*last, into);
        }
    }
}

impl IdleGaps {
    /// Attaches the program.
    ///
    /// # Errors
    /// When this process may not use BPF, or the kernel lacks BPF or the tracepoint.
    pub fn open() -> Result<Self, ObserveError> {
        Self::attach().map_err(|cause| explain(WHAT, cause.as_ref()))
    }

    fn attach() -> Result<Self, Box<dyn Error>> {
        let missing = "the BPF object is not the one that this program was built with";
        let mut object = EbpfLoader::new().load(OBJECT)?;
        let program: &mut RawTracePoint =
            object.program_mut(CPU_IDLE).ok_or(missing)?.try_into()?;
        program.load()?;
        program.attach(CPU_IDLE)?;
        Ok(Self {
            gaps: object.take_map("gaps").ok_or(missing)?.try_into()?,
            columns: BTreeMap::new(),
            _program: object,
        })
    }
}

impl Instrument for IdleGaps {
    fn name(&self) -> &str {
        "idle gaps"
    }

    fn read(&mut self, now: Nanoseconds, into: &mut Readings) -> Result<(), ObserveError> {
        let of_all = self.gaps.get(&0, 0);
        let of_all = of_all.map_err(|error| explain(WHAT, &error))?;
        for (processor, gaps) in of_all.iter().enumerate() {
            let by_age = gaps.by_age(now.0).into_iter().enumerate();
            for (bin, found) in by_age.filter(|(_, found)| found.count > 0) {
                let bins = self.columns.entry((processor, bin));
                bins.or_insert_with(|| Bins::new(processor, bin))
                    .record(found, into);
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Snapshot;
    use crate::clock::{Clock, SystemClock};
    use std::thread::sleep;
    use std::time::Duration;

    /// The counts of gaps that have ended, as the program counts them.
    fn ended(lengths: &[u64]) -> Gaps {
        let mut gaps = Gaps::default();
        for length in lengths {
            let bin = (0..BINS).rfind(|bin| from_ns(*bin) <= *length).unwrap();
            gaps.bins[bin].ns += length;
            gaps.bins[bin].count += 1;
        }
        gaps
    }

    #[test]
    fn the_bins_begin_at_powers_of_two() {
        let edges: Vec<u64> = (0..BINS).map(from_ns).collect();
        assert_eq!(edges[..5], [0, 1000, 2000, 4000, 8000]);
        assert_eq!(edges[BINS - 1], 1000 << 20);
    }

    #[test]
    fn the_time_of_a_gap_lies_in_the_ages_that_it_went_through() {
        let by_age = ended(&[500, 3000, 3_000_000_000]).by_age(9);
        let of = |bin: usize| (by_age[bin].ns, by_age[bin].count);
        assert_eq!(of(0), (500 + 1000 + 1000, 3));
        assert_eq!(of(1), (1000 + 1000, 2));
        assert_eq!(of(2), (1000 + 2000, 2));
        assert_eq!(of(3), (4000, 1));
        assert_eq!(of(BINS - 1), (3_000_000_000 - (1000 << 20), 1));
        let sum: u64 = by_age.iter().map(|bin| bin.ns).sum();
        assert_eq!(sum, 3_000_003_500);
    }

    #[test]
    fn a_gap_that_has_not_ended_counts_as_if_it_ended_now() {
        for age in [0, 999, 1000, 5_000, 3_000_000_000] {
            let mut open = ended(&[3000]);
            open.since = 77;
            assert_eq!(
                open.by_age(77 + age),
                ended(&[3000, age]).by_age(0),
                "{age}"
            );
        }
        // It began after the time of the pass.
        let mut open = ended(&[]);
        open.since = 77;
        assert_eq!(open.by_age(70), ended(&[0]).by_age(0));
    }

    #[test]
    fn the_gaps_of_this_host_are_its_idle_time() {
        let mut gaps = match IdleGaps::open() {
            Ok(gaps) => gaps,
            Err(error) => {
                // A program that the kernel rejects is a defect of vtax.
                let text = error.to_string();
                let lacks = ["CAP_BPF", "not implemented", "Invalid argument"];
                assert!(lacks.iter().any(|lack| text.contains(lack)), "{text}");
                return eprintln!("SKIPPED: {text}");
            }
        };
        let mut readings = Readings::default();
        let begin = SystemClock.now();
        // A processor becomes idle sooner or later, however busy the machine is.
        for _ in 0..600 {
            sleep(Duration::from_millis(50));
            readings.clear_values();
            let now = SystemClock.now();
            gaps.read(now, &mut readings).unwrap();
            let snapshot = Snapshot::from_readings(now, &readings);
            let mut idle = BTreeMap::new();
            for (series, time) in snapshot.iter() {
                if let Some((cpu, _)) =
                    counter::idle_gap(counter::CPU_IDLE_GAPS_TIME, &series.metric)
                {
                    *idle.entry(cpu).or_insert(0.0) += time;
                }
            }
            // The program was attached before the first reading of the clock.
            let most = now.saturating_since(begin).0 as f64 + 1e9;
            assert!(idle.values().all(|time| *time <= most), "{idle:?}");
            if idle.values().any(|time| *time > 0.0) {
                return;
            }
        }
        panic!("no gap in 30 s");
    }
}
