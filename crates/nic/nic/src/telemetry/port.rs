// SPDX-License-Identifier: Apache-2.0
//! One port's counters, and snapshots of them for other threads.

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

use crate::hold::{Mode, Nanos};

/// Declares the reasons of drops, and a counter for each of the same name.
macro_rules! drops {
    ($($(#[$about:meta])* $reason:ident $counter:ident,)*) => {
        /// Why a packet was not delivered.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum DropReason {
            $($(#[$about])* $reason,)*
        }

        /// Packets dropped, by reason. Earlier versions lack some of them.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
        #[serde(default)]
        pub struct Drops {
            $($(#[$about])* pub $counter: u64,)*
        }

        impl Drops {
            /// Counts packets dropped.
            pub fn add(&mut self, reason: DropReason, packets: u64) {
                *match reason {
                    $(DropReason::$reason => &mut self.$counter,)*
                } += packets;
            }

            /// Reasons by name, with their counts.
            pub fn named(&self) -> [(&'static str, u64); [$(DropReason::$reason),*].len()] {
                [$((stringify!($counter), self.$counter)),*]
            }
        }
    };
}

drops! {
    /// The receiver offers too few RX buffers.
    NoBuffer no_buffer,
    /// The receiver's queue or port is not running.
    NotRunning not_running,
    /// The packet or its header is malformed.
    Malformed malformed,
    /// The packet is longer than the receiver accepts.
    TooLong too_long,
    /// A control frame that is not from the port's own guest.
    ForeignControl foreign_control,
    /// The tap refused the packet.
    Tap tap,
    /// The packet comes from an address that is not the port's.
    ForeignAddress foreign_address,
    /// The packet is for all ports and exceeds the port's rate of such frames.
    Storm storm,
}

/// Counters of a port since its creation. RX and TX are the guest's: RX is the direction to the guest.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Totals {
    /// Packets delivered to the guest.
    pub rx_packets: u64,
    /// Bytes delivered to the guest, without virtio-net headers.
    pub rx_bytes: u64,
    /// Packets taken from the guest.
    pub tx_packets: u64,
    /// Bytes taken from the guest, without virtio-net headers.
    pub tx_bytes: u64,
    /// Kick events read from the guest's TX and RX queues.
    pub kicks: u64,
    /// TX drains that found packets without a kick.
    pub kicks_suppressed: u64,
    /// Call events sent for RX.
    pub rx_calls: u64,
    /// Call events sent for TX completions.
    pub tx_calls: u64,
    /// Batches published without a call of their own, because the guest polled or a call was held.
    pub calls_suppressed: u64,
    /// Holds that ended without a call, because the guest had found the packets by itself.
    pub calls_cancelled: u64,
    /// Packets dropped.
    pub drops: Drops,
    /// Times that frames of the guest had to wait for the port's rate.
    #[serde(default)]
    pub throttled: u64,
    /// Control frames from the guest that were applied or answered.
    pub control_frames: u64,
    /// Control frames that were malformed.
    pub control_malformed: u64,
    /// Control frames that came too fast.
    pub control_limited: u64,
    /// Times that the port was stopped because of an action of its front end.
    pub faults: u64,
    /// Processor time that the worker spent on this port, in nanoseconds.
    pub cpu_ns: u64,
    /// Times that the worker woke up for a deadline of this port.
    pub timer_wakeups: u64,
}

/// One port's telemetry. The worker owns it.
#[derive(Debug)]
pub struct PortCounters {
    /// The counters, to be written to directly.
    pub totals: Totals,
    /// Messages of its front end, and control frames that the kernel brought.
    pub messages: u64,
    /// The work that is charged already.
    charged: u64,
    hold: Histogram<u64>,
    rx_batch: Histogram<u64>,
    tx_batch: Histogram<u64>,
}

/// Holds are recorded up to 10 s, batches up to a ring.
const LONGEST_HOLD_NS: u64 = 10_000_000_000;
const LARGEST_BATCH: u64 = 65_536;

impl Default for PortCounters {
    fn default() -> Self {
        let histogram = |highest| {
            #[expect(
                clippy::expect_used,
                reason = "fails only for bounds below 2 or > 5 digits"
            )]
            Histogram::new_with_bounds(1, highest, 2).expect("valid histogram bounds")
        };
        Self {
            totals: Totals::default(),
            messages: 0,
            charged: 0,
            hold: histogram(LONGEST_HOLD_NS),
            rx_batch: histogram(LARGEST_BATCH),
            tx_batch: histogram(LARGEST_BATCH),
        }
    }
}

impl PortCounters {
    /// Records an RX signal that was sent for `packets` packets after a hold.
    pub fn rx_call(&mut self, held_for: Nanos, packets: u32) {
        self.totals.rx_calls += 1;
        // Zero is below the histogram's range: a signal that was not held counts as 1 ns.
        self.hold.saturating_record(held_for.0.max(1));
        self.rx_batch.saturating_record(u64::from(packets));
    }

    /// Records a TX drain of `packets` packets that no kick had asked for, or that one had.
    pub fn tx_drain(&mut self, packets: u32, kicked: bool) {
        if packets > 0 {
            self.tx_batch.saturating_record(u64::from(packets));
            self.totals.kicks_suppressed += u64::from(!kicked);
        }
    }

    /// The work of the port: frames taken, delivered and dropped, kicks, deadlines and messages, each one unit.
    pub fn work(&self) -> u64 {
        let totals = &self.totals;
        let drops: u64 = totals.drops.named().iter().map(|(_, drops)| drops).sum();
        totals.rx_packets
            + totals.tx_packets
            + drops
            + totals.kicks
            + totals.timer_wakeups
            + totals.throttled
            + self.messages
    }

    /// The work that was not charged yet.
    pub fn uncharged(&self) -> u64 {
        self.work() - self.charged
    }

    /// The work that was not charged yet. It counts as charged from now on.
    pub fn take_work(&mut self) -> u64 {
        let work = self.uncharged();
        self.charged += work;
        work
    }

    /// A snapshot.
    pub fn snapshot(&self, port: &str, mode: Mode, budget: Nanos) -> PortSnapshot {
        PortSnapshot {
            port: port.to_owned(),
            mode,
            budget_us: budget.as_micros(),
            frames_counted_by: CountedBy::Port,
            totals: self.totals,
            hold_ns: Distribution::from_histogram(&self.hold),
            rx_batch: Distribution::from_histogram(&self.rx_batch),
            tx_batch: Distribution::from_histogram(&self.tx_batch),
        }
    }
}

/// The source of a port's counts of frames.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum CountedBy {
    /// The port itself.
    #[default]
    Port,
    /// The kernel, which moves the frames: packets and bytes are those of the port's tap since the port's creation, and
    /// the tap's drops in either direction are the only reason of drops.
    Tap,
    /// No counter: the kernel moves the frames and does not expose its counters.
    Nobody,
}

/// A port's telemetry at one point in time.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PortSnapshot {
    /// The port's name.
    pub port: String,
    /// The controller in force.
    pub mode: Mode,
    /// The budget in force, in µs.
    pub budget_us: f64,
    /// The source of the counts of packets, bytes and drops.
    #[serde(default)]
    pub frames_counted_by: CountedBy,
    /// The counters.
    #[serde(flatten)]
    pub totals: Totals,
    /// Age of the oldest packet when an RX signal was sent, in ns, one entry a signal. A signal
    /// that was not held counts as 1 ns.
    pub hold_ns: Distribution,
    /// Packets an RX signal.
    pub rx_batch: Distribution,
    /// Packets a TX drain.
    pub tx_batch: Distribution,
}

/// Upper bounds of the buckets of an exported distribution: 1, 2, 5, 10, … up to 10¹⁰.
pub const BUCKET_BOUNDS: [u64; 31] = bucket_bounds();

const fn bucket_bounds() -> [u64; 31] {
    let mut bounds = [0; 31];
    let (mut index, mut decade) = (0, 1);
    while index < 31 {
        bounds[index] = decade * [1, 2, 5][index % 3];
        index += 1;
        if index % 3 == 0 {
            decade *= 10;
        }
    }
    bounds
}

/// A summary of a histogram.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Distribution {
    /// Values recorded.
    pub count: u64,
    /// Their sum, within the histogram's 1 %.
    pub sum: f64,
    /// The usual quantiles.
    #[serde(flatten)]
    pub quantiles: Quantiles,
    /// Values up to each of [`BUCKET_BOUNDS`], cumulative.
    pub buckets: Vec<u64>,
}

/// The usual quantiles, within 1 %.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Quantiles {
    /// Median.
    pub p50: u64,
    /// 90 %.
    pub p90: u64,
    /// 99 %.
    pub p99: u64,
    /// 99.9 %.
    pub p999: u64,
    /// The largest.
    pub max: u64,
}

impl Distribution {
    fn from_histogram(histogram: &Histogram<u64>) -> Self {
        let mut buckets = vec![0; BUCKET_BOUNDS.len()];
        for value in histogram.iter_recorded() {
            let first = BUCKET_BOUNDS.partition_point(|bound| *bound < value.value_iterated_to());
            for bucket in buckets.iter_mut().skip(first) {
                *bucket += value.count_at_value();
            }
        }
        Self {
            count: histogram.len(),
            sum: histogram.mean() * histogram.len() as f64,
            quantiles: Quantiles {
                p50: histogram.value_at_quantile(0.5),
                p90: histogram.value_at_quantile(0.9),
                p99: histogram.value_at_quantile(0.99),
                p999: histogram.value_at_quantile(0.999),
                max: histogram.max(),
            },
            buckets,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_snapshot_shows_what_was_recorded() {
        let mut counters = PortCounters::default();
        for held in [0, 1_500, 40_000, 900_000] {
            counters.rx_call(Nanos(held), 8);
        }
        counters.tx_drain(3, true);
        counters.tx_drain(5, false);
        counters.tx_drain(0, false);
        let shot = counters.snapshot("a", Mode::Adaptive, Nanos::from_micros(1_000));
        assert_eq!((shot.totals.rx_calls, shot.totals.kicks_suppressed), (4, 1));
        assert_eq!((shot.hold_ns.count, shot.rx_batch.quantiles.p50), (4, 8));
        assert_eq!((shot.tx_batch.count, shot.tx_batch.quantiles.max), (2, 5));
        // The buckets of 1, 2, 5 … 1000 hold the unheld signal; 2000 also that of 1.5 µs; the last holds all.
        assert_eq!((shot.hold_ns.buckets[9], shot.hold_ns.buckets[10]), (1, 2));
        assert_eq!(shot.hold_ns.buckets.last(), Some(&4));
        assert!((shot.hold_ns.sum / 941_501.0 - 1.0).abs() < 0.01);
    }

    #[test]
    fn values_beyond_the_range_are_kept_at_its_end() {
        let mut counters = PortCounters::default();
        counters.rx_call(Nanos(u64::MAX), u32::MAX);
        let shot = counters.snapshot("a", Mode::Off, Nanos::ZERO);
        assert!(shot.hold_ns.quantiles.max >= LONGEST_HOLD_NS);
        assert_eq!(shot.hold_ns.count, 1);
    }

    #[test]
    fn a_snapshot_survives_json() {
        let shot = PortCounters::default().snapshot("p\"\n", Mode::Paper, Nanos(1));
        let json = serde_json::to_string(&shot).unwrap();
        assert_eq!(serde_json::from_str::<PortSnapshot>(&json).unwrap(), shot);
    }
}
