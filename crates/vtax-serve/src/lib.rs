//! What charge-back is for, four times the same ledger: `vtax top`, a table for people;
//! `vtax exporter`, metrics for Prometheus; `vtax charge`, records for billing; `vtax cap`, guests held to
//! what they may cost.
//!
//! All four are made from a [`Snapshot`], which a [`Watch`] takes once an interval. See
//! `docs/charge-tools.md`.

#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

pub mod cap;
pub mod exporter;
#[doc(hidden)]
pub mod fake;
mod jail;
mod metrics;
mod pace;
pub mod pods;
pub mod push;
pub mod records;
pub mod roster;
mod said;
pub mod share;
mod snapshot;
pub mod top;

pub use metrics::Own;
pub use snapshot::{GuestUse, Snapshot, Watch};
pub use vtax_http::{Address, Token};
