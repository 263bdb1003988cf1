//! Charge-back: every nanosecond of the host's processors in an interval, and the energy with it, is
//! charged to the guest that caused it, to the host itself, or to nobody, which is shown.
//!
//! [`Charger`] takes a pass each interval: it finds the guests, reads what they used themselves
//! ([`Usage`]), asks a [`Method`] whose work the soft interrupts did ([`IoCharge`]), and closes the
//! [`Ledger`]. `docs/charge.md` says what each number means and how good it is.

mod charger;
mod cost;
mod counted;
mod energy;
mod exchanges;
mod irq_accounting;
mod ledger;
mod owners;
mod probe;
mod subjects;
mod traced;
mod trial;
mod usage;
mod weights;

pub use charger::{Charger, ChargerOptions, GuestTotals, MethodChoice, Pass, Roster, Totals};
pub use counted::Counted;
pub use energy::{EnergyUse, IdleEnergy, IdlePower, IdleRule};
pub use exchanges::{Exchanges, GuestExchanges, IntervalExchanges};
pub use irq_accounting::IrqAccounting;
pub use ledger::{GuestUse, IoCharge, IoWork, Ledger, Modelled, Row, Stage, Stages, Usage};
pub use traced::Traced;
pub use trial::instruments;
pub use weights::Weights;

use crate::ObserveError;
use crate::guests::Guests;

/// A way to find out whose work the kernel did in soft interrupts.
pub trait Method: Send {
    /// Its name: `traced` or `counted`.
    fn name(&self) -> &'static str;

    /// What it cannot see on this host, and why: a sentence.
    fn note(&self) -> Option<&str> {
        None
    }

    /// What it found since its last call. `usage` is the same interval's.
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
