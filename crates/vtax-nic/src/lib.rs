//! A vhost-user network backend that merges notifications within a latency budget.
//!
//! It depends on nothing else of vtax. `docs/nic.md` is its manual.

#![deny(unsafe_code)]

pub mod cli;
pub mod config;
pub mod control;
pub mod features;
pub mod frame;
pub mod front_end;
pub mod hold;
#[allow(unsafe_code)]
pub mod memory;
pub mod network;
pub mod poller;
pub mod protocol;
#[allow(unsafe_code)]
pub mod ring;
pub mod sandbox;
pub mod serve;
pub mod telemetry;
#[cfg(test)]
#[allow(unsafe_code)]
mod testing;
pub mod worker;
