//! What a workload runs in: one root file system ([`image`]) that every platform shares, and one file
//! a [`platform`], which boots a target from it in a cell.

#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

pub mod image;
pub mod platform;
