//! The owner names that every trial has: the owner of a series of readings. A guest beside the target, its client and
//! processes on another host have names of their own.

/// The host's own counters.
pub const HOST: &str = "host";
/// CPU time and resources that sampling itself uses.
pub const OBSERVER: &str = "vtax";
/// The guest to which the treatment is applied.
pub const TARGET: &str = "target";
/// The load generator that drives the target.
pub const CLIENT: &str = "client";
/// The processes of a virtual switch.
pub const SWITCH: &str = "switch";
