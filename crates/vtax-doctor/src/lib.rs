//! What this host can run and measure: each finding says yes, no or partly, by which evidence,
//! and what to do about a no. One file a group of checks.
//!
//! The doctor asks what a run would ask: each platform's own check, a cell made and destroyed, a
//! kernel booted, a container run, meters watched under load. Nothing that a probe makes outlives
//! it. See `docs/doctor.md`.

#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

mod containers;
mod counters;
mod cpu;
mod energy;
mod kvm;
mod limits;
mod memory;
mod network;
mod places;
mod platforms;
mod probes;
mod programs;
mod render;

pub use platforms::{Summary, Usable, summarize};
pub use probes::{Counters, HostProbes, KvmBoot, Probes};
pub use render::{Style, render};

use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use vtax_host::signals::Signals;
use vtax_host::{HostError, Roots};

/// Whether the host can do a thing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Answer {
    /// It can.
    Yes,
    /// It can in part, or it cannot be told for sure; the evidence says which.
    Partly,
    /// It cannot.
    No,
}

/// What a finding is about; the order of the report.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Topic {
    /// Virtual machines.
    Kvm,
    /// Containers and control groups.
    Containers,
    /// Virtual networks.
    Network,
    /// Sources of joules.
    Energy,
    /// Counters and tracing.
    Counters,
    /// The processor.
    Cpu,
    /// Memory and disk.
    Memory,
    /// Privileges and limits.
    Limits,
    /// Needed programs.
    Programs,
    /// Guests and hosts that are reached otherwise than by booting them here.
    Places,
    /// What can be used now.
    Platforms,
}

impl Topic {
    /// The heading.
    pub fn title(self) -> &'static str {
        match self {
            Self::Kvm => "Virtual machines",
            Self::Containers => "Containers",
            Self::Network => "Network",
            Self::Energy => "Energy meters",
            Self::Counters => "Counters and tracing",
            Self::Cpu => "Processor",
            Self::Memory => "Memory and disk",
            Self::Limits => "Privileges and limits",
            Self::Programs => "Programs",
            Self::Places => "Existing guests, emulated hosts",
            Self::Platforms => "Usable now",
        }
    }
}

/// One thing that the host can or cannot do.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Finding {
    /// The group.
    pub topic: Topic,
    /// What it is about, in one to three words; stable for programs.
    pub name: String,
    /// Whether the host can do it.
    pub answer: Answer,
    /// What was seen.
    pub evidence: String,
    /// What to do, or what vtax does instead, where the answer is not yes.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub remedy: Option<String>,
    /// The Debian package whose installation turns the answer into yes.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub package: Option<String>,
}

impl Finding {
    fn new(topic: Topic, name: &str, answer: Answer, evidence: impl Into<String>) -> Self {
        Self {
            topic,
            name: name.to_owned(),
            answer,
            evidence: evidence.into(),
            remedy: None,
            package: None,
        }
    }

    /// A no, in the words of the one who refused.
    fn refused(topic: Topic, name: &str, error: &HostError) -> Self {
        match error {
            HostError::Missing { what, remedy } => {
                Self::new(topic, name, Answer::No, format!("{what} is missing")).remedy(remedy)
            }
            other => Self::new(topic, name, Answer::No, other.to_string()),
        }
    }

    fn remedy(self, remedy: impl Into<String>) -> Self {
        Self {
            remedy: Some(remedy.into()),
            ..self
        }
    }

    fn package(self, package: &str) -> Self {
        Self {
            package: Some(package.to_owned()),
            ..self
        }
    }
}

/// How to examine.
pub struct Options<'a> {
    /// How things are tried; [`HostProbes`] on a real host.
    pub probes: &'a dyn Probes,
    /// Whether to look for wall meters, which opens every serial port.
    pub scan_wall_meters: bool,
    /// Where results and images would be stored.
    pub storage: PathBuf,
    /// Stop requests: the present probe ends in order, and no further one begins.
    pub signals: Option<&'a Signals>,
}

/// Examines the host. Takes about a second, three more for each meter that measures, and as long
/// again as a kernel needs to boot on KVM.
/// It never fails: what cannot be examined is a finding with the reason. After a stop request
/// the findings so far are returned.
pub fn examine(roots: &Roots, options: &Options) -> Vec<Finding> {
    let groups: [fn(&Roots, &Options) -> Vec<Finding>; 10] = [
        kvm::examine,
        containers::examine,
        network::examine,
        energy::examine,
        counters::examine,
        cpu::examine,
        memory::examine,
        limits::examine,
        programs::examine,
        places::examine,
    ];
    let stopped = || options.signals.is_some_and(Signals::interrupted);
    let mut findings: Vec<Finding> = groups
        .iter()
        .take_while(|_| !stopped())
        .flat_map(|examine| examine(roots, options))
        .collect();
    if !stopped() {
        findings.extend(platforms::examine(&findings, options));
    }
    findings
}

/// The report for programs: findings and summary as one JSON object.
///
/// # Errors
/// Never, in practice: every part of it is plain text.
pub fn json(findings: &[Finding]) -> Result<String, HostError> {
    #[derive(Serialize)]
    struct Report<'a> {
        findings: &'a [Finding],
        summary: Summary,
    }
    let report = Report {
        findings,
        summary: summarize(findings),
    };
    serde_json::to_string_pretty(&report)
        .map_err(|cause| HostError::file("write", "the report")(cause.into()))
}

/// Why the kernel refused, without the number that Rust adds: readers know the words.
fn reason(cause: &std::io::Error) -> String {
    let text = cause.to_string();
    text.split_once(" (os error")
        .map_or(text.as_str(), |(words, _)| words)
        .to_owned()
}

#[cfg(test)]
mod tests;
