// SPDX-License-Identifier: Apache-2.0
//! The limits of a climb's use of resources, and the one that ended it.

use crate::resources::{Resource, Shares};
use serde::{Deserialize, Serialize};
use std::fmt;

/// The limits of a climb's use of resources.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Limits {
    /// The share of any resource at which a climb ends, in percent.
    pub stop_percent: f64,
    /// The share of memory that stays available, in percent.
    pub reserve_percent: f64,
    /// The longest 99th percentile of the probe's response times, in milliseconds.
    pub probe_p99_ms: f64,
}

impl Limits {
    /// The share of a resource at which a climb ends, in percent.
    #[must_use]
    pub fn of_resource(&self, resource: Resource) -> f64 {
        if resource == Resource::Memory {
            self.stop_percent.min(100.0 - self.reserve_percent)
        } else {
            self.stop_percent
        }
    }

    /// The level furthest beyond its limit, if any is. Rates do not count: booting guests may use all processors and
    /// disks.
    #[must_use]
    pub fn exceeded(&self, levels: &Shares) -> Option<Binding> {
        levels
            .iter()
            .filter(|(resource, share)| **share >= self.of_resource(**resource))
            .max_by(|(a, x), (b, y)| {
                (*x - self.of_resource(**a)).total_cmp(&(*y - self.of_resource(**b)))
            })
            .map(|(resource, share)| Binding::Resource {
                resource: *resource,
                percent: *share,
            })
    }
}

/// The reason for the end of a climb.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "by")]
pub enum Binding {
    /// A resource is at its limit.
    Resource {
        /// The resource.
        resource: Resource,
        /// Its share in percent.
        percent: f64,
    },
    /// The probe answers too slowly or not at all.
    Probe {
        /// The 99th percentile of its response times in milliseconds; `None`: no answer.
        p99_ms: Option<f64>,
    },
    /// A guest could not be made.
    Refused {
        /// The error message of the platform or the kernel.
        why: String,
    },
    /// The expected maximum is reached.
    Maximum,
}

impl fmt::Display for Binding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Resource { resource, percent } => write!(f, "{resource} at {percent:.1} %"),
            Self::Probe { p99_ms: Some(p99) } => {
                write!(f, "the probe's 99th percentile at {p99:.0} ms")
            }
            Self::Probe { p99_ms: None } => f.write_str("the probe gave no answer"),
            Self::Refused { why } => write!(f, "no further guest: {why}"),
            Self::Maximum => f.write_str("nothing yet: the expected maximum was reached first"),
        }
    }
}
