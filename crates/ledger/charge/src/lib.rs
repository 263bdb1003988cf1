// SPDX-License-Identifier: Apache-2.0
//! Charge-back: every nanosecond of the host's processors in an interval, and its energy, is charged to the guest that
//! caused it or to the host, or is reported as unattributed.
//!
//! [`Charger`] runs one pass per interval: it finds the guests, reads their own use ([`Usage`]), asks a [`Method`]
//! which guests the soft interrupts worked for ([`IoCharge`]), and closes the [`Ledger`]. A [`Watch`] takes a
//! [`LedgerSnapshot`] of each interval, with the names of its guests; [`records`] are those of `vtax charge`.
//! `docs/why/charge.md` defines each number and its accuracy.

#![cfg_attr(
    not(test),
    deny(clippy::disallowed_methods, clippy::print_stdout, clippy::print_stderr)
)]

mod bpf;
mod charger;
mod cost;
mod counted;
mod departed;
mod energy;
mod exchanges;
#[cfg(any(test, feature = "testing"))]
pub mod fake;
mod irq_accounting;
pub mod jail;
mod ledger;
mod owners;
pub mod pace;
pub mod pods;
mod probe;
mod problems;
pub mod records;
mod run_queue;
mod service;
mod snapshot;
mod subjects;
mod traced;
mod trial;
mod usage;
mod waits;
mod weights;

pub use charger::{
    Charger, ChargerOptions, GuestTotals, MethodChoice, MethodError, Pass, Roster, Totals,
};
pub use counted::Counted;
pub use energy::{EnergyUse, IDLE_SHARE, IdleEnergy, IdlePower, IdleRule, IdleRuleError};
pub use exchanges::{Exchanges, GuestExchanges, IntervalExchanges};
pub use irq_accounting::IrqAccounting;
pub use ledger::{GuestUse, IoCharge, IoWork, Ledger, Modelled, Row, Stage, Stages, Usage};
pub use problems::Problems;
pub use snapshot::{ChargedGuest, LedgerSnapshot, Watch, softirq_source};
pub use subjects::KeptPrograms;
pub use traced::Traced;
pub use trial::instruments;
pub use waits::{MOST_NAMED, Runner, Waits};
pub use weights::{Weights, WeightsError};

use vtax_inventory::Guests;
use vtax_observe::ObserveError;

/// A method that finds the guests that the kernel worked for in soft interrupts.
pub trait Method: Send {
    /// Its name: `traced` or `counted`.
    fn name(&self) -> &'static str;

    /// The work that the method cannot see on this host, and the reason, as a sentence.
    fn note(&self) -> Option<&str> {
        None
    }

    /// Returns the charge since the last call. `usage` is that of the same interval.
    ///
    /// # Errors
    /// When its source failed; the interval's soft interrupts are then unattributed.
    fn charge(
        &mut self,
        guests: &Guests,
        usage: &Usage,
        exchanges: &IntervalExchanges,
    ) -> Result<IoCharge, ObserveError>;
}
