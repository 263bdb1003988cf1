// SPDX-License-Identifier: Apache-2.0
//! The ledger for others: `vtax top`, a table; `vtax exporter`, metrics for Prometheus, by scrape and push; shares for
//! guests.
//!
//! All read snapshots of one ledger, which a [`vtax_charge::Watch`] takes once an interval. See
//! `docs/howto/charge-guests.md`.

#![cfg_attr(
    not(test),
    deny(clippy::disallowed_methods, clippy::print_stdout, clippy::print_stderr)
)]

pub mod client;
pub mod exporter;
mod jail;
mod metrics;
mod outage;
pub mod push;
pub mod roster;
pub mod share;
pub mod top;

pub use metrics::Own;
pub use outage::Outage;
pub use vtax_http::{Address, Token};
