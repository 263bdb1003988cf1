//! The standardized scalability test of Bratterud and Haugerud (2013), for any platform: how many
//! guests a host can hold, which resource ends it, and what each guest costs on the way.
//!
//! A [`plan`] names platforms and their factors. [`run`] climbs each of them several times and writes an ordinary
//! results directory, which [`report`] reads. A [`climb`] grows the population in equal [`stop::steps`] with a
//! [`supervisor`] and samples the host's [`resources`] at each; [`stop::judge`] decides when it ends.

#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

pub mod cli;
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
