//! Workloads: a service in a target and the load generator that drives it ([`workload`], one file
//! each), and the load generators of our own ([`http`]).

pub mod http;
pub mod workload;
