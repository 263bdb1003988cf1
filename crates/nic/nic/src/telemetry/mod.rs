// SPDX-License-Identifier: Apache-2.0
//! Each port's counters and histograms, which its worker owns.
//!
//! The worker counts in plain fields and hands out copies by message, so the data path shares
//! nothing and locks nothing.

mod cpu;
mod port;
pub mod prometheus;
pub mod top;

pub use cpu::{CpuLedger, Share};
pub use port::{
    BUCKET_BOUNDS, CountedBy, Distribution, DropReason, Drops, PortCounters, PortSnapshot,
    Quantiles, Totals,
};
