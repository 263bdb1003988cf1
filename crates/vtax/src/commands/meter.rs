//! `vtax meter`: energy meters, and fitting the power model from one.

use crate::Outcome;
use std::path::Path;

pub fn list() -> Outcome {
    Ok(())
}

pub fn calibrate(_output: &Path, _seconds: u64) -> Outcome {
    Ok(())
}
