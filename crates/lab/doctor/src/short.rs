// SPDX-License-Identifier: Apache-2.0
//! The first lines of the report: what can be done here, with root and without.

use super::limits::PRIVILEGES;
use super::places::TESTBEDS;
use super::{Answer, Finding, Summary, Topic};
use vtax_host::rootless;

/// The commands that need no root, by their purpose.
const WITHOUT_ROOT: &str = "top, record, charge, exporter and web show guests (more of them to root); \
                            plan, report, compare, history, survey, export and atlas read files";

/// A line of the summary.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Line {
    pub answer: Answer,
    pub name: &'static str,
    pub text: String,
}

fn line(answer: Answer, name: &'static str, text: impl Into<String>) -> Line {
    Line {
        answer,
        name,
        text: text.into(),
    }
}

/// Returns the first lines of the report.
pub(super) fn lines(findings: &[Finding], summary: &Summary) -> Vec<Line> {
    let of = |topic, name: &str| {
        let mut found = findings.iter();
        found.find(|finding| finding.topic == topic && finding.name == name)
    };
    let is_root = of(Topic::Limits, PRIVILEGES).is_none_or(|found| found.answer != Answer::No);
    let mut lines = vec![platforms(summary, is_root)];
    let emulated = TESTBEDS.iter().filter_map(|name| of(Topic::Places, name));
    let (usable, other): (Vec<&Finding>, Vec<&Finding>) =
        emulated.partition(|found| found.answer != Answer::No);
    let names = |found: &[&Finding]| {
        let names = found.iter().map(|found| format!("--place {}", found.name));
        names.collect::<Vec<_>>().join(", ")
    };
    lines.push(match (usable.as_slice(), other.first()) {
        ([], first) => {
            let text = first.map_or_else(String::new, |found| {
                let remedy = found.remedy.as_deref().unwrap_or_default();
                format!("{}: {remedy}", found.evidence)
            });
            line(Answer::No, "emulated host", text)
        }
        (some, _) => {
            let root = if is_root {
                "with or without"
            } else {
                "without"
            };
            let text = format!("vtax run {}, {root} root", names(some));
            line(Answer::Yes, "emulated host", text)
        }
    });
    lines.extend(guests(findings));
    if let Some(ids) = rootless::ids() {
        let text = format!("{}; {ids}", rootless::SCOPE);
        lines.push(line(Answer::Partly, "without root", text));
        lines.push(line(
            Answer::No,
            "needs root",
            "density on this host, cap, testbed build, meter calibrate: sudo vtax …",
        ));
    } else if !is_root {
        lines.push(line(Answer::Yes, "without root", WITHOUT_ROOT));
        lines.push(line(
            Answer::No,
            "needs root",
            "run and density on this host, cap, image build, testbed build, meter calibrate, restore: sudo vtax …",
        ));
    }
    lines.push(if summary.meters.len() > 1 {
        line(
            Answer::Yes,
            "joules",
            format!("from {}", summary.meters.join(", ")),
        )
    } else {
        line(Answer::Partly, "joules", "from a model, flagged `modelled`")
    });
    lines
}

/// The line about plans on this host.
fn platforms(summary: &Summary, is_root: bool) -> Line {
    let by = |answer| {
        let names = summary
            .platforms
            .iter()
            .filter(move |one| one.answer == answer);
        let names: Vec<&str> = names.map(|one| one.name.as_str()).collect();
        names.join(", ")
    };
    let (whole, part) = (by(Answer::Yes), by(Answer::Partly));
    let (answer, text) = match (whole.as_str(), part.as_str()) {
        ("", "") if !is_root => (Answer::No, "plans on this host need root".to_owned()),
        ("", "") => (
            Answer::No,
            "no platform can run on this host; the reasons are below".to_owned(),
        ),
        ("", part) => (Answer::Partly, format!("vtax run: {part}, with a limit")),
        (whole, "") => (Answer::Yes, format!("vtax run: {whole}")),
        (whole, part) => (
            Answer::Yes,
            format!("vtax run: {whole}; {part} with a limit"),
        ),
    };
    line(answer, "plans here", text)
}

/// The line about guests that exist.
fn guests(findings: &[Finding]) -> Option<Line> {
    let is_guest = |finding: &&Finding| {
        finding.topic == Topic::Places && !TESTBEDS.contains(&finding.name.as_str())
    };
    let ways = findings.iter().filter(is_guest);
    let usable: Vec<&str> = ways
        .filter(|finding| finding.answer != Answer::No)
        .map(|finding| finding.name.as_str())
        .collect();
    let first = usable.first()?;
    let text = format!(
        "by {}; `vtax plan new --for {first}:NAME` writes a plan for one",
        usable.join(", ")
    );
    Some(line(Answer::Yes, "your guests", text))
}
