// SPDX-License-Identifier: Apache-2.0
//! From a results directory to statistics, figures and a report.
//!
//! [`analysis`] turns trials into estimates, comparisons and sentences; [`terminal`], [`html`], [`compare`] and
//! [`export`] render them; [`gate`] judges comparisons, [`pipeline`] writes them for pipelines;
//! [`svg`] draws figures as files;
//! [`survey`] reads the results of a whole fleet, [`history`] those of one plan over time.

#![cfg_attr(
    not(test),
    deny(clippy::disallowed_methods, clippy::print_stdout, clippy::print_stderr)
)]

pub mod analysis;
pub mod compare;
pub mod export;
pub mod figures;
pub mod gate;
pub mod history;
pub mod html;
pub mod over_time;
mod parallel;
mod pdf;
pub mod pipeline;
pub mod platforms;
mod reference;
pub mod survey;
pub mod svg;
pub mod terminal;
pub mod until;
