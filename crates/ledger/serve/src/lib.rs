// SPDX-License-Identifier: Apache-2.0
//! The commands of charge-back: `vtax top`, a table; `vtax exporter`, metrics for Prometheus; `vtax charge`, records for
//! billing; `vtax cap`, quotas of guests that include the host's work for them.
//!
//! All four read [`Snapshot`]s of one ledger, which a [`Watch`] takes once an interval. See `docs/howto/charge-guests.md`.

#![cfg_attr(
    not(test),
    deny(clippy::disallowed_methods, clippy::print_stdout, clippy::print_stderr)
)]

pub mod cap;
pub mod exporter;
#[cfg(any(test, feature = "testing"))]
pub mod fake;
mod jail;
mod metrics;
mod pace;
pub mod pods;
mod problems;
pub mod push;
pub mod records;
pub mod roster;
pub mod share;
mod snapshot;
pub mod top;

pub use jail::{ReaderAccess, enter_reader};
pub use metrics::Own;
pub use problems::Problems;
pub use snapshot::{GuestUse, Snapshot, Watch};
pub use vtax_http::{Address, Token};
pub use vtax_jail::JailError;
