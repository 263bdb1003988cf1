//! One file a command.

pub mod accuracy;
pub mod charge;
pub mod doctor;
pub mod image;
pub mod load;
pub mod meter;
pub mod plan;
pub mod report;
pub mod run;
pub mod testbed;
