//! Workloads: a service in a target and the load generator that drives it ([`workload`], one file
//! each), and the load generators of our own ([`http`], [`memcached`]; [`generator`] is what both
//! share).

pub mod generator;
pub mod http;
pub mod memcached;
pub mod workload;
