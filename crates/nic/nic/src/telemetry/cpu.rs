// SPDX-License-Identifier: Apache-2.0
//! The part of each port in a worker's processor time.
//!
//! The worker reads its own processor clock once a millisecond at most, and divides the time since the last reading:
//! each port is charged in proportion to its work, [`PortCounters::work`]. The shares of a reading add up to it
//! exactly.

use super::PortCounters;
use crate::hold::Nanos;

/// The least time between two readings, so that they cost nothing: a reading is a system call of
/// about 0.2 µs.
const READING_INTERVAL: Nanos = Nanos::from_micros(1_000);

/// A worker's last reading of its processor time.
#[derive(Clone, Copy, Debug, Default)]
pub struct CpuLedger {
    /// On the thread's processor clock.
    charged_until: Nanos,
    /// On the monotonic clock.
    due: Nanos,
}

impl CpuLedger {
    /// Whether it is time for another reading.
    #[inline]
    pub fn is_due(&self, now: Nanos) -> bool {
        now >= self.due
    }

    /// Takes a reading `cpu` of the thread's processor clock. Returns the time since the last one, to be charged to
    /// ports with `work` in all.
    pub fn settle(&mut self, now: Nanos, cpu: Nanos, work: u64) -> Share {
        let time = cpu.since(self.charged_until);
        self.charged_until = cpu;
        self.due = now + READING_INTERVAL;
        Share { time, work }
    }
}

/// Processor time to be charged to ports.
#[derive(Clone, Copy, Debug)]
pub struct Share {
    /// The remaining time.
    pub time: Nanos,
    work: u64,
}

impl Share {
    /// Charges a port its part. The time that remains after the last port was for an operator, or for a front end that
    /// connected or left.
    pub fn charge(&mut self, port: &mut PortCounters) {
        let work = port.take_work().min(self.work);
        if work == 0 {
            return;
        }
        let part = u128::from(self.time.0) * u128::from(work) / u128::from(self.work);
        let part = u64::try_from(part).unwrap_or(self.time.0);
        port.totals.cpu_ns += part;
        self.time = Nanos(self.time.0 - part);
        self.work -= work;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn port(packets: u64) -> PortCounters {
        let mut port = PortCounters::default();
        port.totals.tx_packets = packets;
        port
    }

    #[test]
    fn a_port_pays_for_what_it_did_since_the_last_reading() {
        let mut ledger = CpuLedger::default();
        let (mut busy, mut quiet) = (port(9), port(1));
        let mut share = ledger.settle(Nanos(5), Nanos(1_000), 10);
        share.charge(&mut busy);
        share.charge(&mut quiet);
        assert_eq!((busy.totals.cpu_ns, quiet.totals.cpu_ns), (900, 100));
        quiet.totals.kicks += 1;
        let mut share = ledger.settle(Nanos(6), Nanos(1_500), 1);
        share.charge(&mut busy);
        share.charge(&mut quiet);
        assert_eq!((busy.totals.cpu_ns, quiet.totals.cpu_ns), (900, 600));
    }

    #[test]
    fn time_in_which_no_port_did_anything_is_nobodys() {
        let mut share = CpuLedger::default().settle(Nanos(5), Nanos(700), 0);
        let mut idle = port(0);
        share.charge(&mut idle);
        assert_eq!((idle.totals.cpu_ns, share.time), (0, Nanos(700)));
    }

    #[test]
    fn readings_are_a_millisecond_apart() {
        let mut ledger = CpuLedger::default();
        assert!(ledger.is_due(Nanos(0)));
        let _ = ledger.settle(Nanos(0), Nanos(0), 0);
        assert!(!ledger.is_due(Nanos(999_999)));
        assert!(ledger.is_due(Nanos(1_000_000)));
    }

    proptest! {
        #[test]
        fn the_ports_together_pay_what_was_spent(
            readings in proptest::collection::vec((0..u64::MAX / 64, proptest::collection::vec(0..u64::MAX / 1024, 3)), 1..20)
        ) {
            let mut ledger = CpuLedger::default();
            let mut ports = [port(0), port(0), port(0)];
            let (mut cpu, mut nobodys) = (Nanos::ZERO, 0);
            for (spent, work) in readings {
                cpu = cpu + Nanos(spent);
                for (port, work) in ports.iter_mut().zip(&work) {
                    port.totals.rx_packets += work;
                }
                let mut share = ledger.settle(Nanos::ZERO, cpu, work.iter().sum());
                ports.iter_mut().for_each(|port| share.charge(port));
                nobodys += share.time.0;
            }
            let paid: u64 = ports.iter().map(|port| port.totals.cpu_ns).sum();
            prop_assert_eq!(paid + nobodys, cpu.0);
        }
    }
}
