// SPDX-License-Identifier: Apache-2.0
//! From a results directory to statistics, figures and a report.
//!
//! [`results`] defines the directory's format and is the only module with its layout; [`stats`] are pure functions;
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
mod limit;
pub mod numbers;
pub mod over_time;
mod pdf;
pub mod pipeline;
pub mod platforms;
pub mod results;
pub mod stats;
pub mod survey;
pub mod svg;
pub mod terminal;
pub mod text;
