//! What a workload runs in: one root file system ([`image`]) that every platform shares, and one file
//! a [`platform`], which boots a target from it in a cell.

pub mod image;
pub mod platform;
