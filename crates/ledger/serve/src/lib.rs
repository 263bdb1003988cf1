// SPDX-License-Identifier: Apache-2.0
//! The commands of charge-back: `vtax top`, a table; `vtax exporter`, metrics for Prometheus; `vtax charge`, records for
//! billing; `vtax cap`, quotas of guests that include the host's work for them.
//!
//! All four read snapshots of one ledger, which a [`vtax_charge::Watch`] takes once an interval. See
//! `docs/howto/charge-guests.md`.

#![cfg_attr(
    not(test),
    deny(clippy::disallowed_methods, clippy::print_stdout, clippy::print_stderr)
)]

pub mod exporter;
mod metrics;
mod outage;
pub mod push;
pub mod roster;
pub mod share;
pub mod top;

pub use metrics::Own;
pub use outage::Outage;
pub use vtax_http::{Address, Token};
