//! HTTP/1.1 for small answers on TCP and UNIX sockets, within bounds that no client can push; and
//! the text that Prometheus reads.
//!
//! `httparse` reads heads; the rest is ours. `tiny_http` has no timeouts, no bound on connections
//! and none on headers, so that a silent client holds a thread for ever. `hyper` and what builds on
//! it have all of them, and bring an asynchronous runtime, some forty crates, for one small answer
//! every few seconds.
//!
//! A client has a thread: its request is read, answered and written without a hand-over, and a
//! handler may wait. A [`Server`] has few clients; who must hold thousands, as the monitor of micro
//! VMs does, runs its own event loop and takes [`parse`] and [`write_head`] from here.

#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

mod address;
mod listen;
mod message;
pub mod metrics;
mod server;
mod token;
pub mod unix;

pub use address::{Address, ListenError};
pub use listen::Listeners;
pub use message::{LONGEST_HEAD, Method, Parsed, Request, Response, parse, write_head};
pub use server::{Handler, Limits, Server};
pub use token::{Token, TokenError};
