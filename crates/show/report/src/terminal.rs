// SPDX-License-Identifier: Apache-2.0
//! Renders the table at the end of a run.

use crate::analysis::certainty::{Kinds, ONE_SEED};
use crate::analysis::words::{at_every_look, is_leading};
use crate::analysis::{
    Analysis, Comparison, MetricSummary, MetricVariance, NOISE_FLOOR, Sentence, TreatmentSummary,
    TrialRow, adjusted_in_words, headline_metrics, knee_in_words, not_separable,
};
use std::collections::{BTreeSet, HashMap};
use vtax_core::{Source, counted};
use vtax_results::numbers::{Shown, common_scale, scaled};
use vtax_results::stats::Verdict;
use vtax_results::text::{at_most, clean, columns, cut, pad};

/// Renders the analysis as a table of at most `width` columns (72 at least), optionally with ANSI colours.
pub fn table(analysis: &Analysis, width: usize, color: bool) -> String {
    rendered(analysis, Page::new(width, color))
}

/// As [`table`], without the notes on method, energy and noise: their number, and the command that prints them.
pub fn brief(analysis: &Analysis, width: usize, color: bool) -> String {
    let page = Page {
        folded: Some(0),
        ..Page::new(width, color)
    };
    rendered(analysis, page)
}

fn rendered(analysis: &Analysis, mut page: Page) -> String {
    page.ratio = analysis.ratio_name();
    page.heading(analysis);
    page.provisional(analysis);
    for sentence in &analysis.installations {
        page.paragraph(YELLOW, "", sentence);
    }
    page.findings(analysis);
    // Without counted trials the numbers would mislead; the reasons and the remedy follow below.
    if analysis.advice.is_none() {
        let compared = analysis.compared();
        for (workload, treatments) in analysis.by_workload() {
            page.workload(&compared, workload, &treatments);
        }
    }
    page.footer(analysis);
    page.text
}

/// Renders the variance of headline metrics by level, with the recommended repetitions.
pub fn variance(analysis: &Analysis, width: usize, color: bool) -> String {
    let mut page = Page::new(width, color);
    page.variance(&analysis.variance);
    page.text
}

/// Comparisons with baselines by treatment and metric.
type Compared<'a> = HashMap<(&'a str, &'a str), &'a Comparison>;

const BOLD: &str = "1";
const DIM: &str = "2";
const YELLOW: &str = "33";
const CYAN: &str = "36";

struct Page {
    text: String,
    width: usize,
    color: bool,
    /// The number of notes that are left out; `None` where all are printed.
    folded: Option<usize>,
    /// The name of the ratio to the baseline.
    ratio: &'static str,
}

impl Page {
    fn new(width: usize, color: bool) -> Self {
        Self {
            text: String::new(),
            width: width.clamp(72, 120),
            color,
            folded: None,
            ratio: "tax",
        }
    }

    /// Writes a note on the method, unless notes are left out.
    fn note(&mut self, style: &str, text: &str) {
        match &mut self.folded {
            Some(folded) => *folded += 1,
            None => self.paragraph(style, "  ", text),
        }
    }

    fn line(&mut self, text: &str) {
        self.text.push_str(text.trim_end());
        self.text.push('\n');
    }

    fn paint(&self, style: &str, text: &str) -> String {
        if self.color && !text.trim().is_empty() {
            format!("\x1b[{style}m{text}\x1b[0m")
        } else {
            text.to_owned()
        }
    }

    /// Writes a paragraph wrapped to the width, with each line indented.
    fn paragraph(&mut self, style: &str, indent: &str, text: &str) {
        let room = self.width - indent.len();
        let mut line = String::new();
        for word in clean(text).split_whitespace() {
            if !line.is_empty() && columns(&line) + 1 + columns(word) > room {
                let painted = self.paint(style, &line);
                self.line(&format!("{indent}{painted}"));
                line.clear();
            }
            if !line.is_empty() {
                line.push(' ');
            }
            line.push_str(word);
        }
        let painted = self.paint(style, &line);
        self.line(&format!("{indent}{painted}"));
    }

    fn heading(&mut self, analysis: &Analysis) {
        let name = self.paint(BOLD, &clean(&analysis.name));
        let counts = analysis.counts;
        let mut facts = vec![format!(
            "{} of {} trials count{}",
            counts.counted,
            counts.planned,
            if counts.counted == 1 { "s" } else { "" }
        )];
        let parts = [
            (counts.disturbed, "disturbed"),
            (counts.suspect, "suspect"),
            (counts.failed, "failed"),
            (counts.unreadable, "damaged"),
            (counts.pending, "not run yet"),
            (analysis.attempts.len(), "run again"),
        ];
        let parts = parts.iter().filter(|(n, _)| *n > 0);
        facts.extend(parts.map(|(n, what)| format!("{n} {what}")));
        self.line(&format!("{name}  {}", facts.join(", ")));
        if analysis.profile == "quick" {
            self.paragraph(
                YELLOW,
                "",
                "Quick profile: short trials for a first look; not for conclusions.",
            );
        }
    }

    /// Writes the findings in words: the first number of each treatment.
    fn findings(&mut self, analysis: &Analysis) {
        let first = analysis.sentences.iter().filter(|one| is_leading(one));
        let found: Vec<&Sentence> = first.collect();
        if analysis.provisional || found.is_empty() {
            return;
        }
        self.line("");
        for sentence in found {
            self.paragraph(BOLD, "  ", &sentence.text);
        }
    }

    fn provisional(&mut self, analysis: &Analysis) {
        if let Some(advice) = &analysis.advice {
            self.paragraph(YELLOW, "", advice);
        } else if analysis.provisional {
            self.paragraph(
                YELLOW,
                "",
                "Provisional: some treatment has only suspect trials, so suspect ones are shown \
                 and no difference is claimed. Run again when the host is quiet.",
            );
        }
    }

    fn workload(
        &mut self,
        compared: &Compared<'_>,
        workload: &str,
        treatments: &[&TreatmentSummary],
    ) {
        let names = headline_metrics(treatments);
        self.line("");
        let title = self.paint(BOLD, &clean(workload));
        self.line(&title);
        if names.is_empty() {
            self.line("  no trial that counts");
        }
        for metric in names {
            self.metric(compared, treatments, metric);
        }
        for knee in treatments.iter().filter_map(|one| knee_in_words(one)) {
            self.paragraph(BOLD, "  ", &knee);
        }
    }

    fn metric(
        &mut self,
        compared: &Compared<'_>,
        treatments: &[&TreatmentSummary],
        metric: &MetricSummary,
    ) {
        let found = treatments.iter().map(|summary| {
            let own = summary.metric(&metric.name);
            own.filter(|own| own.unit == metric.unit)
        });
        let means = || found.clone().flatten();
        let (scale, unit) = common_scale(means().map(|own| own.description.mean), metric.unit);
        let comma = if unit.is_empty() { "" } else { ", " };
        let label_width = self.width - 62;
        let title = format!("{}{comma}{unit}", clean(&metric.title));
        let shown = |own: &MetricSummary| {
            let Shown { value, range, .. } =
                scaled(own.description.mean, own.interval, scale, String::new());
            format!("{value} {range}")
        };
        // The mark follows after a space.
        let mean_width = means().map(|own| columns(&shown(own)) + 1).max();
        let mean_width = mean_width.unwrap_or_default().max(19);
        let title_width = label_width + 6 + mean_width;
        let title = pad(&cut(&title, title_width - 3), title_width);
        let header = format!("  {title}{:20}  difference", self.ratio);
        self.line(&self.paint(DIM, &header));
        for (summary, own) in treatments.iter().zip(found.clone()) {
            // The varied levels are at the end of a name, so a name that does not fit has a line of its own.
            let mut label = clean(&summary.short);
            if columns(&label) > label_width {
                self.line(&cut(&format!("  {label}"), self.width));
                label.clear();
            }
            let label = pad(&label, label_width);
            let Some(own) = own else {
                self.missing(&label, summary);
                continue;
            };
            let mean = pad(&shown(own), mean_width);
            let key = (summary.treatment.label.as_str(), metric.name.as_str());
            let comparison = compared.get(&key).copied();
            let (tax, verdict) = match comparison {
                Some(comparison) => tax_and_verdict(comparison),
                None if summary.treatment.baseline.is_none() => {
                    ("baseline".to_owned(), String::new())
                }
                None => (String::new(), String::new()),
            };
            let style = match comparison.map(|of| of.judgement.verdict) {
                Some(Verdict::Different) => BOLD,
                _ => DIM,
            };
            let flag = self.paint(YELLOW, mark(own));
            let n = own.description.n;
            let verdict = self.paint(style, &verdict);
            self.line(&format!("  {label}{n:>3} {mean}{flag} {tax:20} {verdict}"));
        }
    }

    /// Writes the reason why a treatment lacks a metric that another treatment of its workload has.
    fn missing(&mut self, label: &str, summary: &TreatmentSummary) {
        let on_host = summary.environment.get(ON_HOST);
        let (reason, details) = match on_host.and_then(|guest| guest.strip_prefix("none: ")) {
            _ if summary.counts.counted == 0 => ("no trial that counts", None),
            Some(why) => ("not measured:", Some(why)),
            None => ("not measured on this platform", None),
        };
        self.line(&format!("  {label}  0  {reason}"));
        if let Some(details) = details {
            self.paragraph("", "      ", details);
        }
    }

    fn footer(&mut self, analysis: &Analysis) {
        self.line("");
        let metrics = analysis.treatments.iter().flat_map(|of| &of.metrics);
        let marks: BTreeSet<&str> = metrics.filter(|of| of.headline).map(mark).collect();
        for meaning in MARKS {
            if marks.iter().any(|mark| meaning.starts_with(mark)) {
                self.paragraph(YELLOW, "  ", meaning);
            }
        }
        for line in &analysis.energy {
            self.note(YELLOW, line);
        }
        if analysis.advice.is_none() {
            self.legend(analysis);
        }
        for sentence in analysis.fleet.sentences(&analysis.comparisons) {
            self.paragraph(CYAN, "  ", &sentence);
        }
        for line in &analysis.noise {
            if line.starts_with(NOISE_FLOOR) {
                self.note(CYAN, line)
            } else {
                self.paragraph(CYAN, "  ", line)
            }
        }
        for check in &analysis.checks {
            self.note(CYAN, check);
        }
        let why = |trial: &TrialRow| match &trial.failed {
            Some(reason) => Some(format!("trial {:04} failed: {reason}", trial.index)),
            None => (!trial.suspect.is_empty()).then(|| {
                let reasons = trial.suspect.join("; ");
                format!("trial {:04} is suspect: {reasons}", trial.index)
            }),
        };
        let left_out = analysis.trials.iter().filter_map(why);
        let left_out = left_out.chain(analysis.unreadable.clone()).collect();
        const SHOWN: usize = 5;
        for reason in at_most(left_out, SHOWN, |more| {
            format!("and {} more, listed in the report", counted(more, "trial"))
        }) {
            self.paragraph(CYAN, "  ", &reason);
        }
        if let Some(folded @ 1..) = self.folded {
            let (path, notes) = (analysis.path.display(), counted(folded, "note"));
            let text = format!("{notes} more: vtax report {path} --notes");
            self.paragraph(DIM, "  ", &text);
        }
    }
}

impl Page {
    fn variance(&mut self, all: &[MetricVariance]) {
        self.line("");
        let title = self.paint(BOLD, "Variance by level, and recommended repetitions");
        self.line(&title);
        if all.is_empty() {
            self.line("  no headline metric has two trials that count and vary");
            return;
        }
        for of in all {
            let name = format!("  {}, {}", clean(&of.treatment), clean(&of.title));
            self.line(&cut(&name, self.width));
            let levels = of.levels.iter();
            let levels = levels.map(|of| format!("between {}s {}", of.level, of.in_words()));
            let window = of.window_in_words();
            let window = window.map(|window| format!("best measured window {window}"));
            let parts = levels.chain(window).chain(of.needed_in_words());
            let parts: Vec<String> = parts.collect();
            self.paragraph(DIM, "    ", &parts.join(" · "));
        }
        for sentence in not_separable(all) {
            self.paragraph(CYAN, "  ", sentence);
        }
    }

    /// Writes the legend of the columns that are present.
    fn legend(&mut self, analysis: &Analysis) {
        let metrics = analysis.treatments.iter().flat_map(|of| &of.metrics);
        let shown = metrics.filter(|of| of.headline).map(|of| of.certainty);
        let taxes = analysis.comparisons.iter().filter(|of| of.headline);
        let kinds: Kinds = shown.chain(taxes.map(|of| of.certainty)).collect();
        let columns = match (kinds.has_intervals(), kinds.seeds && !kinds.trials) {
            (false, _) => "n trials, value; RATIO is the ratio to the baseline",
            (true, true) => {
                "n trials, mean [95 % CI over seeds]; RATIO is the ratio to the baseline [95 % CI over seeds]: how much \
                 chance there is in the timing"
            }
            (true, false) => {
                "n trials, mean [95 % CI]; RATIO is the ratio to the baseline [95 % CI]"
            }
        };
        self.paragraph(DIM, "  ", &columns.replace("RATIO", self.ratio));
        if let Some(line) = at_every_look(analysis) {
            self.paragraph(DIM, "  ", line);
        }
        if let Some(adjusted) = adjusted_in_words(&analysis.comparisons) {
            self.note(DIM, &adjusted);
        }
        if kinds.exact {
            self.paragraph(DIM, "  ", ONE_SEED);
        }
    }
}

/// The fact of a guest that exists: its name on this host, or `none: ` and the reason why this host has no such guest.
const ON_HOST: &str = "host.guest";

fn tax_and_verdict(comparison: &Comparison) -> (String, String) {
    let tax = comparison.ratio_in_words();
    let verdict = match comparison.judgement.verdict {
        Verdict::Different if !comparison.certainty.is_exact() => "shown",
        Verdict::NoDifferenceShown => "none shown",
        other => other.words(),
    };
    (tax.unwrap_or_else(|| "–".to_owned()), verdict.to_owned())
}

/// The marks of numbers that are not only measured, each with its meaning.
const MARKS: [&str; 5] = [
    "m = modelled: computed by a model from measured counters",
    "e = emulated: the guest's instructions were emulated, not run by the processor",
    "E = emulated and modelled: computed by a model from counters of an emulated guest",
    "s = simulated: counted in an emulated host",
    "S = simulated and modelled: computed by a model from counters of an emulated host",
];

/// The mark of a number.
fn mark(metric: &MetricSummary) -> &'static str {
    match (metric.source, metric.modelled) {
        (Source::Measured, false) => " ",
        (Source::Measured | Source::Modelled, _) => "m",
        (Source::Emulated, false) => "e",
        (Source::Emulated, true) => "E",
        (Source::Simulated, false) => "s",
        (Source::Simulated, true) => "S",
    }
}
