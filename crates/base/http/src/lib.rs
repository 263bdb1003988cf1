// SPDX-License-Identifier: Apache-2.0
//! An HTTP/1.1 server for small answers on TCP and UNIX sockets, with limits on clients; and metrics as text for
//! Prometheus.
//!
//! `httparse` reads heads. `tiny_http` has no timeouts and no limits on connections and headers, so that a silent
//! client occupies a thread for ever. `hyper` has all of them but needs an asynchronous runtime, some forty crates, for
//! a small answer every few seconds.
//!
//! Each connection has a thread, so that a handler may block. A [`Server`] is for few clients. A program with thousands
//! of clients, such as the monitor of micro VMs, runs its own event loop and uses [`parse`] and [`write_head`].

#![cfg_attr(
    not(test),
    deny(clippy::disallowed_methods, clippy::print_stdout, clippy::print_stderr)
)]

mod address;
mod listen;
mod message;
pub mod metrics;
mod server;
mod token;
pub mod unix;

pub use address::{Address, AddressError, ListenError};
pub use listen::Listeners;
pub use message::{LONGEST_HEAD, Method, Parsed, Request, Response, parse, write_head};
pub use server::{Handler, Limits, Server};
pub use token::{Token, TokenError};
