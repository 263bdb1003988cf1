// SPDX-License-Identifier: Apache-2.0
//! Recordings of a host's ledger: `vtax record` writes the charges of each second by guest and stage, without load on
//! anything but its own small share of a processor; `vtax report`, `vtax compare`, `vtax bill` and `vtax export` read them.
//!
//! [`vtax_files::log`] and [`codec`] are the format, [`store`] its directory; see `docs/howto/record-a-host.md`.

#![cfg_attr(
    not(test),
    deny(clippy::disallowed_methods, clippy::print_stdout, clippy::print_stderr)
)]

pub mod advise;
pub mod bill;
pub mod codec;
pub mod compare;
pub mod export;
pub mod page;
pub mod recorder;
pub mod report;
pub mod second;
pub mod store;
pub mod summary;
#[cfg(test)]
mod tests;
