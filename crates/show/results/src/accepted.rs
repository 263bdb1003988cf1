// SPDX-License-Identifier: Apache-2.0
//! `accepted.json`: a person's word that the level of a run is the one that later runs are judged by.

use super::directory::{read_json, to_json};
use super::{ResultsDir, ResultsError};
use serde::{Deserialize, Serialize};
use std::path::Path;

const FILE: &str = "accepted.json";

/// The acceptance of a run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Accepted {
    /// Who accepted it.
    pub by: String,
    /// When, RFC 3339.
    pub at: String,
    /// Why.
    pub why: String,
}

impl ResultsDir {
    /// Accepts the run, in place of an earlier acceptance. The record of the run stays as it is.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn accept(&self, accepted: &Accepted) -> Result<(), ResultsError> {
        let json = to_json(&self.path().join(FILE), accepted)?;
        Ok(self.dir().write(FILE, &json)?)
    }

    /// The acceptance of the run; `None` where nobody accepted it.
    ///
    /// # Errors
    /// When the file cannot be read.
    pub fn accepted(&self) -> Result<Option<Accepted>, ResultsError> {
        if !self.dir().contains(FILE) {
            return Ok(None);
        }
        let remedy = "Remove it, and accept the run again";
        read_json(self.dir(), Path::new(FILE), remedy).map(Some)
    }
}
