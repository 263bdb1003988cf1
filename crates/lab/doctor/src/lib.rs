// SPDX-License-Identifier: Apache-2.0
//! The capabilities of this host: each finding answers yes, no or partly, with the evidence and, for a no, the remedy.
//! Each group of checks has a file.
//!
//! The doctor makes the same checks as a run: it runs each platform's own check, makes and destroys a cell, boots a
//! kernel, runs a container and measures meters under load. Each probe removes all that it makes. See `docs/reference/doctor.md`.

#![cfg_attr(
    not(test),
    deny(clippy::disallowed_methods, clippy::print_stdout, clippy::print_stderr)
)]

mod containers;
mod counters;
mod cpu;
mod energy;
#[cfg(test)]
mod fake_probes;
mod kvm;
mod limits;
mod memory;
mod network;
mod places;
mod platforms;
mod probes;
mod programs;
mod render;
mod short;

pub use platforms::{Summary, Usable, summarize};
pub use probes::{Counters, HostProbes, KvmBoot, Probes, SshKeys};
pub use render::{Style, render};

use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use vtax_host::signals::Signals;
use vtax_host::{HostError, Roots};

/// Whether the host has a capability.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Answer {
    /// The host has it.
    Yes,
    /// The host has it in part, or the check cannot decide; the evidence has the details.
    Partly,
    /// The host lacks it.
    No,
}

/// The group of a finding, in the order of the report.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Topic {
    /// Virtual machines.
    Kvm,
    /// Containers and control groups.
    Containers,
    /// Virtual networks.
    Network,
    /// Energy meters.
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
    /// Existing guests, other hosts and emulated hosts.
    Places,
    /// The platforms that can be used.
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

/// The result of one check of the host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Finding {
    /// The group.
    pub topic: Topic,
    /// The subject in one to three words; a stable key for programs.
    pub name: String,
    /// Whether the host has the capability.
    pub answer: Answer,
    /// The evidence.
    pub evidence: String,
    /// The remedy, or the substitute that vtax uses, where the answer is not yes.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub remedy: Option<String>,
    /// The Debian package whose installation turns the answer into yes.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub package: Option<String>,
}

/// The subject of a finding.
#[derive(Debug, Clone, Copy)]
struct Subject(Topic, &'static str);

impl Subject {
    fn finding(self, answer: Answer, evidence: impl Into<String>) -> Finding {
        Finding::new(self.0, self.1, answer, evidence)
    }

    fn yes(self, evidence: impl Into<String>) -> Finding {
        self.finding(Answer::Yes, evidence)
    }

    fn partly(self, evidence: impl Into<String>, remedy: impl Into<String>) -> Finding {
        self.finding(Answer::Partly, evidence).remedy(remedy)
    }

    fn no(self, evidence: impl Into<String>, remedy: impl Into<String>) -> Finding {
        self.finding(Answer::No, evidence).remedy(remedy)
    }

    /// The answer no, with the message of `error`.
    fn refused(self, error: &HostError) -> Finding {
        match error {
            HostError::Missing { what, remedy } => self.no(format!("{what} is missing"), remedy),
            HostError::Unusable { why, remedy, .. } => self.no(why.as_str(), remedy),
            other => self.finding(Answer::No, other.to_string()),
        }
    }
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

/// The options of an examination.
pub struct Options<'a> {
    /// The probes; [`HostProbes`] on a real host.
    pub probes: &'a dyn Probes,
    /// Whether to search for wall meters, which opens every serial port.
    pub scan_wall_meters: bool,
    /// The directory of results and images, which need not exist.
    pub storage: PathBuf,
    /// Stop requests: the current probe completes, and no further one begins.
    pub signals: Option<&'a Signals>,
}

/// Examines the host. It takes about a second, three seconds more for each meter that is measured under load, and the
/// time of a kernel's boot on KVM.
///
/// It never fails: a failed check is a finding with the reason. After a stop request it returns the findings so far.
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
    limits::put_down_to_root(&mut findings);
    findings
}

/// The report for programs: findings and summary as one JSON object.
///
/// # Errors
/// When serialization fails, which cannot happen: all values are plain text and numbers.
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

/// The kernel's error message without the number that Rust appends.
fn reason(cause: &std::io::Error) -> String {
    let text = cause.to_string();
    text.split_once(" (os error")
        .map_or(text.as_str(), |(words, _)| words)
        .to_owned()
}

#[cfg(test)]
mod tests;
