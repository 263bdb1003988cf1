// SPDX-License-Identifier: Apache-2.0
//! The vocabulary of every vtax number: a [`Quantity`] is a value with its [`Unit`], and
//! [`Source`] records whether it was measured, modelled, emulated or simulated. [`account`] divides the CPU time of a window
//! among its owners.
//!
//! ```
//! use vtax_core::{Base, Quantity, Unit};
//! let rate = Quantity::new(3.2e9, Unit::per(Base::Bit, Base::Second));
//! assert_eq!(rate.to_string(), "3.20 Gbit/s");
//! ```

#![cfg_attr(
    not(test),
    deny(clippy::disallowed_methods, clippy::print_stdout, clippy::print_stderr)
)]

pub mod account;
mod count;
pub mod counter;
pub mod csv;
mod guard;
pub mod metric;
pub mod owner;
mod pattern;
mod quantity;
mod random;
mod series;
mod source;
pub mod terminal;
mod typed;
mod unit;

pub use count::{counted, noun, thousands};
pub use guard::{Panicked, guarded};
pub use pattern::Pattern;
pub use quantity::Quantity;
pub use random::SplitMix64;
pub use series::{Series, SeriesKind};
pub use source::Source;
pub use typed::{Bytes, Hertz, Joules, Nanoseconds, Watts};
pub use unit::{Base, ParseUnitError, Unit};
