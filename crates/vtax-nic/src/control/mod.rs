//! Who may say how long a port's notifications are held, and how they say it.
//!
//! The operator sets a cap, a default and an override for each port ([`Terms`]), over a UNIX
//! socket ([`api`], [`server`], [`client`]) or in the configuration. The guest asks within the cap: with
//! an Ethernet frame ([`frame`], [`desk`]), or with the virtio standard's coalescing commands where
//! a front end forwards its control queue ([`queue`], [`coalesce`]).

pub mod api;
pub mod client;
pub mod coalesce;
pub mod desk;
pub mod frame;
pub mod queue;
pub mod server;
mod terms;

pub use desk::{Answer, Desk};
pub use terms::{Lease, Terms};
