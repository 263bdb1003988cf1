// SPDX-License-Identifier: Apache-2.0
//! The ways to reach guests: HTTP, and one multiplexed UNIX socket.

pub mod http;
pub mod router;
