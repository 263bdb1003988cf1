// SPDX-License-Identifier: Apache-2.0
//! The handlers of requests: one file for each part of the page.

pub mod atlas;
pub mod host;
pub mod machines;
pub mod results;
pub mod runs;
