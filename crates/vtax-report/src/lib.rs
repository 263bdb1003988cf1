//! From a results directory to statistics, figures and a report.
//!
//! [`results`] defines the directory's format and is the only module that touches it on disk;
//! `stats` turns trials into estimates; the report is rendered from those alone.

pub mod analysis;
pub mod figures;
pub mod html;
mod numbers;
pub mod results;
pub mod stats;
pub mod terminal;
