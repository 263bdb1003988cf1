//! One file a command.

pub mod accuracy;
pub mod actor;
pub mod atlas;
pub mod charge;
pub mod doctor;
pub mod fleet;
pub mod image;
pub mod load;
pub mod meter;
pub mod plan;
pub mod report;
pub mod run;
pub mod testbed;

use crate::Outcome;

/// Prints one JSON document.
fn json(value: &impl serde::Serialize) -> Outcome {
    println!("{}", serde_json::to_string_pretty(value)?);
    Ok(())
}
