// SPDX-License-Identifier: Apache-2.0
//! Workloads: a service in a target and the load generator that drives it ([`workload`], one file each), and the
//! load generators of vtax ([`http`], [`memcached`]), which share [`generator`].

#![cfg_attr(
    not(test),
    deny(clippy::disallowed_methods, clippy::print_stdout, clippy::print_stderr)
)]

pub mod generator;
pub mod http;
pub mod memcached;
pub mod workload;
