// SPDX-License-Identifier: Apache-2.0
//! Controllers that merge a guest's notifications within a latency budget.
//!
//! A [`Controller`] is pure arithmetic on time, packets and a budget. A [`PairHold`] runs one for a queue pair and
//! enforces two limits whatever the controller answers: nothing waits longer than the budget, and a full ring is never
//! held. Neither reads a clock nor does I/O: the worker passes them events with their times and carries out their
//! answers. `docs/components/nic-hold.md` explains the controllers and how to try another one in the simulator.

mod adaptive;
mod fixed;
mod off;
mod pair;
mod paper;
mod rest;
mod time;
mod window;

use serde::{Deserialize, Serialize};

pub use adaptive::Adaptive;
pub use fixed::Fixed;
pub use off::Off;
pub use pair::{Bound, DueHolds, KickOutcome, NextDrain, PairHold, Release, RxBatch, TxRound};
pub use paper::Paper;
pub use rest::{Notification, Rest};
pub use time::Nanos;

/// The approximate cost of sleeping and waking up. A queue whose next frame is likely sooner is polled.
pub const WAKE_COST: Nanos = Nanos::from_micros(5);

/// A controller, which determines how long notifications of one queue pair wait.
///
/// Every answer is a point in time, which means at once if it is not after `now`. [`PairHold`] limits answers to the
/// budget.
pub trait Controller: Send + std::fmt::Debug {
    /// The longest that any notification may be delayed from now on; zero: not at all.
    fn set_budget(&mut self, budget: Nanos);

    /// Packets were put into the RX ring of `ring_size` entries.
    fn received(&mut self, _now: Nanos, _packets: u32, _ring_size: u16) {}

    /// The guest wants a signal for received packets and none is held. Returns until when to hold it.
    fn hold_rx(&mut self, now: Nanos) -> Nanos;

    /// A signal for `packets` packets leaves now.
    fn signalled(&mut self, _now: Nanos, _packets: u32) {}

    /// The worker was woken by a hold alone, which begins, or ends with nothing to signal or drain.
    fn woken_for_nothing(&mut self) {}

    /// The guest kicked its TX queue. Returns when to drain it.
    fn hold_tx(&mut self, now: Nanos) -> Nanos;

    /// The TX ring of `ring_size` entries was drained of `packets` packets, at least one. Returns when to drain it
    /// again without a kick, or `None` to ask for a kick.
    fn sent(&mut self, now: Nanos, packets: u32, ring_size: u16) -> Option<Nanos>;

    /// Whether it may hold RX signals at present. If not, it need not receive them until it has learnt otherwise.
    fn may_hold_rx(&self) -> bool {
        true
    }

    /// The same for drains of the TX ring.
    fn may_hold_tx(&self) -> bool {
        true
    }

    /// Whether only timers end a hold: no early end by a kick or by a filling ring. Only the
    /// paper's controller is that strict.
    fn timers_only(&self) -> bool {
        false
    }
}

/// The controllers, for operators to select.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// Never hold: EVENT_IDX alone suppresses notifications.
    Off,
    /// Hold for the same time, always.
    Fixed,
    /// The controller of Shea et al., INFOCOM 2014, to the letter.
    Paper,
    /// Hold only where it merges notifications, and never the first packet after idle.
    #[default]
    Adaptive,
}

impl Mode {
    /// Every mode, in the order of the manual.
    pub const ALL: [Self; 4] = [Self::Off, Self::Fixed, Self::Paper, Self::Adaptive];

    /// The name on command lines, in configuration and in results.
    pub fn name(self) -> &'static str {
        match self {
            Self::Off => "off",
            Self::Fixed => "fixed",
            Self::Paper => "paper",
            Self::Adaptive => "adaptive",
        }
    }
}

impl std::fmt::Display for Mode {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

impl std::str::FromStr for Mode {
    type Err = UnknownMode;

    fn from_str(name: &str) -> Result<Self, UnknownMode> {
        let mode = Self::ALL.into_iter().find(|mode| mode.name() == name);
        mode.ok_or_else(|| UnknownMode(name.to_owned()))
    }
}

/// A name that no [`Mode`] has.
#[derive(Debug, thiserror::Error)]
#[error("there is no hold mode '{0}': use off, fixed, paper or adaptive")]
pub struct UnknownMode(String);

/// The settings of a port's controllers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct HoldSettings {
    /// The controller.
    pub mode: Mode,
    /// RX hold of mode `fixed`, in µs. 0 takes the whole budget.
    pub fixed_rx_us: u32,
    /// TX hold of mode `fixed`, in µs. 0 takes the whole budget.
    pub fixed_tx_us: u32,
    /// The time between two updates of mode `paper`, in µs. 0 is the paper's 5 s.
    pub update_us: u32,
}

impl HoldSettings {
    /// A new controller, without a budget yet.
    pub fn controller(&self) -> Box<dyn Controller> {
        match self.mode {
            Mode::Off => Box::new(Off),
            Mode::Fixed => Box::new(Fixed::new(
                Nanos::from_micros(self.fixed_rx_us),
                Nanos::from_micros(self.fixed_tx_us),
            )),
            Mode::Paper if self.update_us > 0 => {
                Box::new(Paper::with_slot(Nanos::from_micros(self.update_us)))
            }
            Mode::Paper => Box::new(Paper::default()),
            Mode::Adaptive => Box::new(Adaptive::default()),
        }
    }
}
