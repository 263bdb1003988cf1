//! Whose a series of readings is: the owners that every trial has. A guest beside the target, its client and what is on
//! another host have names of their own.

/// The host's own counters.
pub const HOST: &str = "host";
/// What sampling costs.
pub const OBSERVER: &str = "vtax";
/// The guest that the treatment is about.
pub const TARGET: &str = "target";
/// The load generator that drives it.
pub const CLIENT: &str = "client";
/// What the processes of a switch use.
pub const SWITCH: &str = "switch";
