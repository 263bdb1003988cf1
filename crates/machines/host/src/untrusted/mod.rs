// SPDX-License-Identifier: Apache-2.0
//! Input from another machine or a guest: archives, lines and text, each bounded in size and without effect outside
//! its destination.

pub mod archive;
mod stream;
pub mod tar;

pub use stream::{Lines, drain, end_of, output, read};
pub use vtax_core::terminal::{first_line, shown, shown_lines};

/// The most bytes of one line or one short response.
pub const LONGEST_LINE: usize = 1 << 20;
