// SPDX-License-Identifier: Apache-2.0
//! The standardized scalability test of Bratterud and Haugerud (2013), for any platform: the number of guests that a
//! host can hold, the resource that limits it, and the cost of each guest during the growth.
//!
//! A [`plan`] names platforms and their factors. [`run`] climbs each platform several times and writes an ordinary
//! results directory, which [`report`] reads. A [`climb`] grows the population in equal [`stop::steps`] with a
//! [`supervisor`] and samples the host's [`resources`] at each step. [`stop::judge`] decides when a climb ends.

#![cfg_attr(
    not(test),
    deny(clippy::disallowed_methods, clippy::print_stdout, clippy::print_stderr)
)]

pub mod climb;
pub mod fit;
pub mod limits;
pub mod plan;
pub mod record;
pub mod report;
pub mod resources;
pub mod run;
pub mod stop;
pub mod supervisor;
