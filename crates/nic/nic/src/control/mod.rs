// SPDX-License-Identifier: Apache-2.0
//! How operator and guest choose how long a port's notifications are held.
//!
//! The operator sets a cap, a default and an override for each port ([`Policy`]), over a UNIX
//! socket ([`api`], [`server`], [`client`]) or in the configuration. The guest asks within the cap: with
//! an Ethernet frame ([`frame`], [`lease`]), or with the virtio standard's coalescing commands where
//! a front end forwards its control queue ([`queue`], [`coalesce`]).

pub mod api;
pub mod client;
pub mod coalesce;
pub mod frame;
pub mod lease;
mod policy;
pub mod queue;
pub mod server;

pub use lease::{Answer, LeaseManager};
pub use policy::Policy;
