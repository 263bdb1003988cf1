//! The meters of a run.

use crate::LabError;
use crate::roots::Roots;
use vtax_units::Source;

/// The meters that a plan asked for and this host has.
pub(super) struct Meters {
    /// Series of owner `host` whose sum is the host's energy.
    pub energy: Vec<(String, Source)>,
}

impl Meters {
    pub(super) fn choose(
        _wanted: &[String],
        _roots: &Roots,
        _note: &mut dyn FnMut(String),
    ) -> Result<Self, LabError> {
        Ok(Self { energy: Vec::new() })
    }
}
