//! `report.html`: one self-contained file that works offline, on a phone and on paper.

use crate::analysis::certainty::{Kinds, ONE_SEED};
use crate::analysis::{
    ActorSummary, Analysis, Certainty, Comparison, LevelSummary, MetricSummary, Sentence,
    TreatmentSummary, TrialRow, asked_effect, distinct_metrics, find_metric,
};
use crate::figures::{Figure, Platforms, figures};
use crate::numbers::{count, estimate, percent, plain};
use crate::results::{ResultsDir, ResultsError};
use crate::stats::{SteadyState, Verdict};
use serde_json::{Map, Value, json};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt::Write;
use std::path::PathBuf;
use vtax_core::Source;

/// The rules of the report: for pages that are made like it.
pub const STYLE: &str = include_str!("../assets/report.css");
/// The colours and type of the report, light and dark, as properties of CSS: for other pages of vtax too.
pub const PALETTE: &str = include_str!("../assets/palette.css");
const SCRIPT: &str = include_str!("../assets/report.js");
const VEGA: &str = include_str!("../assets/vega.min.js");
const VEGA_LITE: &str = include_str!("../assets/vega-lite.min.js");
const VEGA_EMBED: &str = include_str!("../assets/vega-embed.min.js");

/// What a report shows beside the analysis.
#[derive(Debug, Clone, Default)]
pub struct Provenance {
    /// The plan as it was run.
    pub plan: String,
    /// `host.json`.
    pub host: Value,
    /// The schedule in order: label of the treatment, and block.
    pub schedule: Vec<(String, u32)>,
}

impl Provenance {
    /// What the directory says; parts that cannot be read say why instead.
    pub fn of(results: &ResultsDir) -> Self {
        let run = results.run();
        Self {
            plan: results
                .plan_text()
                .unwrap_or_else(|error| error.to_string()),
            host: results
                .host()
                .unwrap_or_else(|error| Value::String(error.to_string())),
            schedule: run
                .schedule
                .iter()
                .map(|entry| {
                    let label = run
                        .treatments
                        .get(entry.treatment)
                        .map_or("unknown", |treatment| treatment.label.as_str());
                    (label.to_owned(), entry.block)
                })
                .collect(),
        }
    }
}

/// Writes `report.html`, `analysis.json` and `figures/*.vl.json` into the results directory, each
/// as a whole or not at all. Returns the path of the report.
///
/// # Errors
/// When the disk does not take them.
pub fn write_report(results: &ResultsDir, analysis: &Analysis) -> Result<PathBuf, ResultsError> {
    let figures = figures(analysis);
    write_figures(results, &figures)?;
    let text = pretty(&json!(analysis));
    results.dir().write("analysis.json", text.as_bytes())?;
    write_page(results, &page(analysis, &Provenance::of(results), &figures))
}

/// Writes `figures/*.vl.json` into the results directory in the place of those that are there.
///
/// # Errors
/// When the disk does not take them.
pub fn write_figures(results: &ResultsDir, figures: &[Figure]) -> Result<(), ResultsError> {
    let folder = results.dir().create_dir("figures")?;
    // A figure that this analysis no longer has would be mistaken for one of it.
    for entry in folder.list()? {
        if entry.name.to_string_lossy().ends_with(".vl.json") {
            folder.remove_file(&entry.name)?;
        }
    }
    for figure in figures {
        let mut spec = figure.spec.clone();
        if let Some(width) = spec.get_mut("width") {
            // Outside a page there is no container to take the width from.
            *width = json!(640);
        }
        folder.write(format!("{}.vl.json", figure.id), pretty(&spec).as_bytes())?;
    }
    Ok(())
}

/// Writes a page as `report.html` of the results directory, as a whole or not at all.
///
/// # Errors
/// When the disk does not take it.
pub fn write_page(results: &ResultsDir, page: &str) -> Result<PathBuf, ResultsError> {
    results.dir().write("report.html", page.as_bytes())?;
    Ok(results.path().join("report.html"))
}

/// The report as one string of HTML.
pub fn render(analysis: &Analysis, provenance: &Provenance) -> String {
    page(analysis, provenance, &figures(analysis))
}

fn page(analysis: &Analysis, provenance: &Provenance, figures: &[Figure]) -> String {
    let mut body = String::with_capacity(64 * 1024);
    masthead(&mut body, analysis);
    summary(&mut body, analysis);
    drawn(&mut body, figures);
    tables(&mut body, analysis);
    provenance_section(&mut body, analysis, provenance);
    document(&analysis.name, &body, figures)
}

/// A whole page around `body`, self-contained, that draws `figures` in the places that
/// [`drawn`] made for them.
pub fn document(title: &str, body: &str, figures: &[Figure]) -> String {
    let specs: Map<String, Value> = figures
        .iter()
        .map(|figure| {
            // The page sets the title as text, which wraps and can be found.
            let mut spec = figure.spec.clone();
            spec.as_object_mut().map(|spec| spec.remove("title"));
            (format!("plot-{}", figure.id), spec)
        })
        .collect();
    let scripts: String = [VEGA, VEGA_LITE, VEGA_EMBED]
        .into_iter()
        .map(|code| format!("<script>{}</script>\n", without_source_map(code)))
        .collect();
    format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta name=\"generator\" content=\"vtax {version}\">\n<title>{title} · vtax report</title>\n\
         <link rel=\"icon\" href=\"data:,\">\n<style>\n{PALETTE}{STYLE}</style>\n</head>\n<body>\n<main class=\"page\">\n{body}\
         <footer>Made by vtax {version}. Drawn with Vega, Vega-Lite and Vega-Embed (BSD 3-Clause, University of Washington \
         Interactive Data Lab).</footer>\n</main>\n\
         <script type=\"application/json\" id=\"figures-data\">{specs}</script>\n{scripts}<script>\n{SCRIPT}</script>\n</body>\n</html>\n",
        version = env!("CARGO_PKG_VERSION"),
        title = escape(title),
        specs = json_for_script(&Value::Object(specs)),
    )
}

/// The code without its last comment, which would make developer tools ask for another file.
fn without_source_map(code: &str) -> &str {
    code.split("\n//# sourceMappingURL")
        .next()
        .unwrap_or(code)
        .trim_end()
}

/// Text made safe for element content and for quoted attributes.
pub fn escape(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => safe.push_str("&amp;"),
            '<' => safe.push_str("&lt;"),
            '>' => safe.push_str("&gt;"),
            '"' => safe.push_str("&quot;"),
            '\'' => safe.push_str("&#39;"),
            '\n' | '\t' => safe.push(c),
            // HTML has no way to write the other control characters.
            c if c.is_control() => safe.push('\u{fffd}'),
            c => safe.push(c),
        }
    }
    safe
}

/// JSON that cannot end the script element around it.
fn json_for_script(value: &Value) -> String {
    value
        .to_string()
        .replace('<', "\\u003c")
        .replace('\u{2028}', "\\u2028")
        .replace('\u{2029}', "\\u2029")
}

fn pretty(value: &Value) -> String {
    format!("{value:#}\n")
}

/// An emulated guest's joules come from a model as well: both are shown.
fn badge(source: Source, modelled: bool) -> String {
    let also = (modelled && source != Source::Modelled).then_some(Source::Modelled);
    let flags = [Some(source), also].into_iter().flatten();
    flags
        .filter(|flag| *flag != Source::Measured)
        .map(|flag| format!("<span class=\"badge\">{flag}</span>"))
        .collect()
}

/// Appends formatted text; writing to a string cannot fail.
macro_rules! add {
    ($out:expr, $($text:tt)*) => { let _ = write!($out, $($text)*); };
}

fn masthead(out: &mut String, analysis: &Analysis) {
    let counts = analysis.counts;
    add!(
        out,
        "<header class=\"masthead\">\n<p class=\"eyebrow\">vtax report</p>\n<button id=\"theme\" type=\"button\" hidden>Dark</button>\n\
         <h1>{}</h1>\n<p class=\"lede\">{}</p>\n<ul class=\"facts\"><li>place <b>{}</b></li><li>started <b>{}</b></li>\
         <li>profile <b>{}</b></li><li><b>{} of {}</b> trials count{}</li><li>order <b>random, interleaved, seed {}</b></li></ul>\n",
        escape(&analysis.name),
        escape(&analysis.description),
        escape(&analysis.place),
        escape(&when(&analysis.started)),
        escape(&analysis.profile),
        counts.counted,
        counts.planned,
        if counts.counted == 1 { "s" } else { "" },
        analysis.seed,
    );
    if analysis.profile == "quick" {
        out.push_str(
            "<p class=\"banner\"><b>Quick profile.</b> Trials were cut short for a first look. Run the full plan before you draw conclusions.</p>\n",
        );
    }
    if let Some(advice) = &analysis.advice {
        add!(
            out,
            "<p class=\"banner\"><b>Nothing counts.</b> {} The suspect trials’ values are shown without intervals, to look at.</p>\n",
            escape(advice)
        );
    } else if analysis.provisional {
        out.push_str(
            "<p class=\"banner\"><b>Provisional.</b> Some treatment has only suspect trials, so suspect trials are shown and no \
             difference is claimed. The table of trials names the reasons; run again when the host is quiet.</p>\n",
        );
    }
    if analysis.source == Some(Source::Emulated) {
        out.push_str(
            "<p class=\"banner\"><b>Emulated.</b> Numbers marked so come from a guest whose instructions were emulated in software, not run by \
             the processor. They show how the method works and what emulation costs, not what hardware virtualization costs.</p>\n",
        );
    }
    if counts.pending > 0 {
        add!(
            out,
            "<p class=\"banner\"><b>Unfinished.</b> {} not run yet.</p>\n",
            were(counts.pending)
        );
    }
    out.push_str("</header>\n");
}

fn were(n: usize) -> String {
    if n == 1 {
        "1 trial was".to_owned()
    } else {
        format!("{n} trials were")
    }
}

fn summary(out: &mut String, analysis: &Analysis) {
    out.push_str("<section id=\"summary\">\n<h2>What was found</h2>\n");
    if analysis.sentences.is_empty() {
        out.push_str(
            "<p>Nothing was compared: no treatment with a baseline has a trial that counts.</p>\n",
        );
    }
    let mut sentences: HashMap<&str, Vec<&Sentence>> = HashMap::new();
    for sentence in &analysis.sentences {
        let workload = sentence.workload.as_str();
        sentences.entry(workload).or_default().push(sentence);
    }
    for (workload, treatments) in analysis.by_workload() {
        let found = sentences.remove(workload).unwrap_or_default();
        let knees: Vec<String> = (treatments.iter())
            .filter_map(|summary| summary.knee_in_words())
            .collect();
        if found.is_empty() && knees.is_empty() {
            continue;
        }
        add!(out, "<h3>{}</h3>\n", escape(workload));
        if !knees.is_empty() {
            out.push_str("<p class=\"key\">The highest load that kept the objective:</p>\n<ul class=\"knees\">\n");
            for knee in knees {
                add!(out, "<li>{}</li>\n", escape(&knee));
            }
            out.push_str("</ul>\n");
        }
        let (different, other): (Vec<&Sentence>, Vec<&Sentence>) = found
            .iter()
            .copied()
            .partition(|sentence| sentence.verdict == Verdict::Different);
        // A sweep compares so much that what shows no difference would bury what does.
        let fold = found.len() > FOLD_ABOVE && !other.is_empty();
        findings(out, &different);
        if fold {
            add!(
                out,
                "<details class=\"more\"><summary>{} without a difference shown</summary>\n",
                count(other.len(), "comparison")
            );
        }
        findings(out, &other);
        if fold {
            out.push_str("</details>\n");
        }
    }
    let compared = analysis.comparisons.iter();
    let kinds: Kinds = compared.map(|comparison| comparison.certainty).collect();
    let least = percent(analysis.minimum_effect);
    if kinds.has_intervals() {
        add!(
            out,
            "<p class=\"key\">● a difference: the 95 % interval excludes 1, p &lt; 0.05 also after adjustment for the number of comparisons, and the \
             effect is at least {least}. ○ the same within {least}: the whole interval is nearer to 1 than that. ○ none shown, which is not proof of \
             equality: the interval says what remains possible, and how many more repetitions would show {} with a chance of 80 %.{}</p>\n",
            percent(asked_effect(analysis.minimum_effect)),
            if kinds.seeds {
                " Where n counts seeds, intervals say how much chance there is in the timing."
            } else {
                ""
            }
        );
    }
    if kinds.exact {
        add!(
            out,
            "<p class=\"key\">{} {}: at least {least}. ○ less.</p>\n",
            escape(ONE_SEED).replace("`seeds = 4`", "<code>seeds = 4</code>"),
            if kinds.has_intervals() {
                "● a difference of what is exact"
            } else {
                "● a difference"
            },
        );
    }
    let counts = analysis.counts;
    // A provisional report shows its suspect trials, so it does not leave them out.
    let suspect = if analysis.provisional {
        0
    } else {
        counts.suspect
    };
    let again = analysis.attempts.len();
    let left_out: Vec<String> = [
        (suspect, "marked suspect"),
        (counts.failed, "failed"),
        (counts.unreadable, "damaged on disk"),
        (again, "run again"),
    ]
    .iter()
    .filter(|(n, _)| *n > 0)
    .map(|(n, what)| format!("{n} {what}"))
    .collect();
    if !left_out.is_empty() {
        add!(
            out,
            "<p class=\"key\">Left out of these numbers: {} (<a href=\"#left-out\">which, and why</a>).</p>\n",
            left_out.join(", ")
        );
    }
    out.push_str("</section>\n");
}

/// A workload with more findings than this folds those without a difference.
const FOLD_ABOVE: usize = 8;

fn findings(out: &mut String, sentences: &[&Sentence]) {
    if sentences.is_empty() {
        return;
    }
    out.push_str("<ul class=\"findings\">\n");
    for sentence in sentences {
        let class = if sentence.verdict == Verdict::Different {
            " class=\"different\""
        } else {
            ""
        };
        add!(out, "<li{class}>{}</li>\n", emphasise(&sentence.text));
    }
    out.push_str("</ul>\n");
}

/// The sentence with its ratio in bold.
fn emphasise(text: &str) -> String {
    let words: Vec<String> = text
        .split(' ')
        .map(|word| {
            let bare = word.trim_start_matches('(');
            if bare.len() > "×".len()
                && bare.trim_end_matches([',', ')']).ends_with('×')
                && bare.starts_with(|c: char| c.is_ascii_digit())
            {
                let (open, rest) = word.split_at(word.len() - bare.len());
                format!("{open}<b>{}</b>", escape(rest))
            } else {
                escape(word)
            }
        })
        .collect();
    words.join(" ")
}

/// The section that holds the figures.
pub fn drawn(out: &mut String, figures: &[Figure]) {
    out.push_str("<section id=\"figures\">\n<h2>Figures</h2>\n<noscript><p>The figures need JavaScript; every number is in the tables below.</p></noscript>\n");
    if figures.is_empty() {
        out.push_str("<p>There is nothing to draw yet.</p>\n");
    }
    out.push_str("<div class=\"figures\">\n");
    for (number, figure) in figures.iter().enumerate() {
        let id = escape(&figure.id);
        add!(
            out,
            "<figure>\n<h3>{}</h3>\n<div class=\"plot\" id=\"plot-{id}\" role=\"img\" aria-label=\"{}\"></div>\n\
             <figcaption><b>Figure {}.</b> {}</figcaption>\n</figure>\n",
            escape(&figure.title),
            escape(&figure.title),
            number + 1,
            escape(&figure.caption),
        );
    }
    out.push_str("</div>\n</section>\n");
}

fn swatch(platform: &str, all: &Platforms) -> String {
    format!(
        "<span class=\"swatch\" style=\"background:{}\"></span>",
        all.color(platform)
    )
}

fn tables(out: &mut String, analysis: &Analysis) {
    out.push_str("<section id=\"tables\">\n<h2>Tables</h2>\n");
    let metrics = analysis.treatments.iter().flat_map(|of| &of.metrics);
    let kinds: Kinds = metrics.map(|metric| metric.certainty).collect();
    let intervals = format!(
        "Mean with its {}; below it median, standard deviation and number of trials.",
        kinds.interval()
    );
    let exact = "Exact for this host, image and seed; below it the seed and the number of trials.";
    add!(
        out,
        "<p class=\"key\">{}</p>\n",
        match (kinds.has_intervals(), kinds.exact) {
            (true, false) => intervals,
            (false, _) => exact.to_owned(),
            (true, true) => format!(
                "{intervals} What has a seed there: {}",
                exact.to_lowercase()
            ),
        }
    );
    let all = Platforms::of(analysis);
    for (workload, treatments) in analysis.by_workload() {
        metrics_table(out, workload, &treatments, &all);
        levels_table(out, workload, &treatments, &all);
        for summary in treatments.iter().filter(|one| one.has_neighbours()) {
            actors_table(out, workload, summary);
        }
    }
    comparisons_table(out, analysis);
    treatments_table(out, analysis, &all);
    left_out_table(out, analysis);
    trials_table(out, analysis);
    out.push_str("</section>\n");
}

fn metrics_table(
    out: &mut String,
    workload: &str,
    treatments: &[&TreatmentSummary],
    all: &Platforms,
) {
    add!(out, "<h3>{}</h3>\n", escape(workload));
    let mut metrics = distinct_metrics(treatments.iter().flat_map(|summary| &summary.metrics));
    metrics.sort_by_key(|metric| !metric.headline);
    if metrics.is_empty() {
        out.push_str("<p>No trial that counts.</p>\n");
        return;
    }
    out.push_str("<div class=\"scroll\"><table>\n<thead><tr><th>metric</th>");
    for summary in treatments {
        add!(
            out,
            "<th scope=\"col\">{}{}</th>",
            swatch(&summary.treatment.platform, all),
            escape(&summary.short)
        );
    }
    out.push_str("</tr></thead>\n<tbody>\n");
    for metric in metrics {
        add!(
            out,
            "<tr><th scope=\"row\">{}<span class=\"detail\">{}</span></th>",
            escape(&metric.title),
            escape(&metric.name)
        );
        for summary in treatments {
            match summary.metric(&metric.name) {
                Some(own) => {
                    let what = own.description;
                    let scatter = match own.certainty {
                        Certainty::Exact { seed } => format!("exact, seed {seed}"),
                        _ => format!(
                            "{} · {}",
                            plain(what.median, own.unit),
                            what.sd.map_or_else(dash, |sd| plain(sd, own.unit))
                        ),
                    };
                    add!(
                        out,
                        "<td class=\"number\">{}{}<span class=\"detail\">{} · {}</span></td>",
                        escape(&estimate(what.mean, own.interval, own.unit).line()),
                        badge(own.source, own.modelled),
                        escape(&scatter),
                        what.n
                    );
                }
                None => out.push_str("<td>–</td>"),
            }
        }
        out.push_str("</tr>\n");
    }
    out.push_str("</tbody></table></div>\n");
}

/// One metric's cell: mean with interval, and the number of trials.
fn cell(metric: Option<&MetricSummary>) -> String {
    let Some(metric) = metric else {
        return "<td>–</td>".to_owned();
    };
    format!(
        "<td class=\"number\">{}{}<span class=\"detail\">{}n = {}</span></td>",
        escape(&estimate(metric.description.mean, metric.interval, metric.unit).line()),
        badge(metric.source, metric.modelled),
        if metric.certainty.is_exact() {
            "exact, "
        } else {
            ""
        },
        metric.description.n
    )
}

/// What a table of levels shows of each, as far as it is there.
const LEVEL_METRICS: [&str; 6] = [
    "throughput",
    "latency.p50",
    "latency.p99",
    "errors",
    "cpu.cores",
    "power.mean",
];

fn levels_table(
    out: &mut String,
    workload: &str,
    treatments: &[&TreatmentSummary],
    all: &Platforms,
) {
    let levels: Vec<(&TreatmentSummary, &LevelSummary)> = treatments
        .iter()
        .flat_map(|summary| summary.levels.iter().map(move |level| (*summary, level)))
        .collect();
    let metrics: Vec<&MetricSummary> = LEVEL_METRICS
        .iter()
        .filter_map(|name| levels.iter().find_map(|(_, level)| level.metric(name)))
        .collect();
    if metrics.is_empty() {
        return;
    }
    add!(
        out,
        "<details class=\"more\"><summary>{}: {} of load</summary>\n<div class=\"scroll\"><table>\n<thead><tr><th>treatment</th><th>load</th><th>objective kept</th>",
        escape(workload),
        count(levels.len(), "level")
    );
    for metric in &metrics {
        add!(out, "<th scope=\"col\">{}</th>", escape(&metric.title));
    }
    out.push_str("</tr></thead>\n<tbody>\n");
    for (summary, level) in &levels {
        let kept = match level.judged {
            0 => dash(),
            judged => format!("{} of {judged}", level.kept),
        };
        add!(
            out,
            "<tr><th scope=\"row\">{}{}</th><td class=\"number\">{}</td><td>{kept}</td>",
            swatch(&summary.treatment.platform, all),
            escape(&summary.short),
            escape(&level_in_words(level))
        );
        for metric in &metrics {
            out.push_str(&cell(level.metric(&metric.name)));
        }
        out.push_str("</tr>\n");
    }
    out.push_str("</tbody></table></div></details>\n");
}

/// A level's name, with the load that was offered where chance took that more than 1 % off.
fn level_in_words(level: &LevelSummary) -> String {
    let asked = level.level.value;
    let offered = level.metric("offered").map(|offered| &offered.description);
    match offered.filter(|offered| (offered.mean / asked - 1.0).abs() > 0.01) {
        Some(offered) => format!("{} (offered {:.0})", level.name, offered.mean),
        None => level.name.clone(),
    }
}

/// The other actors' metrics, beside the target's of the same name.
fn actors_table(out: &mut String, workload: &str, summary: &TreatmentSummary) {
    let actors: Vec<&ActorSummary> = summary
        .actors
        .iter()
        .filter(|actor| !actor.metrics.is_empty())
        .collect();
    let metrics = distinct_metrics(actors.iter().flat_map(|actor| &actor.metrics));
    if metrics.is_empty() {
        return;
    }
    add!(
        out,
        "<h3>{}, {}, by actor</h3>\n<div class=\"scroll\"><table>\n<thead><tr><th>metric</th><th scope=\"col\">target</th>",
        escape(workload),
        escape(&summary.short)
    );
    for actor in &actors {
        add!(
            out,
            "<th scope=\"col\">{}<span class=\"detail\">{}</span></th>",
            escape(&actor.name),
            escape(&actor.facts)
        );
    }
    out.push_str("</tr></thead>\n<tbody>\n");
    for metric in metrics {
        add!(
            out,
            "<tr><th scope=\"row\">{}<span class=\"detail\">{}</span></th>{}",
            escape(&metric.title),
            escape(&metric.name),
            cell(summary.metric(&metric.name))
        );
        for actor in &actors {
            out.push_str(&cell(find_metric(&actor.metrics, &metric.name)));
        }
        out.push_str("</tr>\n");
    }
    out.push_str("</tbody></table></div>\n");
}

fn comparisons_table(out: &mut String, analysis: &Analysis) {
    if analysis.comparisons.is_empty() {
        return;
    }
    out.push_str("<h3>Every comparison with the baseline</h3>\n");
    let (headline, rest): (Vec<&Comparison>, Vec<&Comparison>) = analysis
        .comparisons
        .iter()
        .partition(|comparison| comparison.headline);
    if !headline.is_empty() {
        comparison_rows(out, &headline);
    }
    if !rest.is_empty() {
        add!(
            out,
            "<details class=\"more\"{}><summary>{} of other metrics</summary>\n",
            if headline.is_empty() { " open" } else { "" },
            count(rest.len(), "comparison")
        );
        comparison_rows(out, &rest);
        out.push_str("</details>\n");
    }
}

fn comparison_rows(out: &mut String, comparisons: &[&Comparison]) {
    out.push_str(
        "<div class=\"scroll\"><table>\n<thead><tr><th>treatment</th><th>metric</th><th>tax</th><th>n</th><th>Cliff’s δ</th><th>p</th>\
         <th>adjusted p</th><th>verdict</th></tr></thead>\n<tbody>\n",
    );
    for comparison in comparisons {
        let (effect, p) = match &comparison.tax {
            Some(tax) => (format!("{:.2}", tax.effect), probability(tax.p)),
            None => (dash(), dash()),
        };
        let n = comparison.repetitions().unwrap_or_else(dash);
        let note = comparison
            .note
            .as_ref()
            .map(|note| format!("<span class=\"detail\">{}</span>", escape(note)))
            .unwrap_or_default();
        add!(
            out,
            "<tr><th scope=\"row\">{}<span class=\"detail\">against {}</span></th><td>{}</td><td class=\"number\">{}{}</td>\
             <td class=\"number\">{n}</td><td>{effect}</td><td>{p}</td><td>{}</td><td>{}{note}</td></tr>\n",
            escape(&comparison.treatment),
            escape(&comparison.baseline),
            escape(&comparison.title),
            escape(&comparison.ratio_in_words().unwrap_or_else(dash)),
            badge(comparison.source, comparison.modelled),
            comparison.adjusted_p.map_or_else(dash, probability),
            match comparison.needed_in_words() {
                Some(needed) => format!("{}; {needed}", comparison.verdict.words()),
                None => comparison.verdict.words().to_owned(),
            },
        );
    }
    out.push_str("</tbody></table></div>\n");
}

fn dash() -> String {
    "–".to_owned()
}

/// Steadiness by series, in one line.
fn in_words(steady: &BTreeMap<String, SteadyState>) -> String {
    let words = steady
        .iter()
        .map(|(series, class)| format!("{series}: {class}"));
    escape(&words.collect::<Vec<_>>().join("; "))
}

fn probability(p: f64) -> String {
    if p < 0.001 {
        "&lt; 0.001".to_owned()
    } else {
        format!("{p:.3}")
    }
}

fn treatments_table(out: &mut String, analysis: &Analysis, all: &Platforms) {
    out.push_str(
        "<h3>Treatments: trials, steadiness, time by phase</h3>\n<div class=\"scroll\"><table>\n<thead><tr><th>treatment</th><th>count</th>\
         <th>left out</th><th>steadiness</th><th>boot</th><th>service</th><th>warm-up</th><th>measured</th><th>teardown</th></tr></thead>\n<tbody>\n",
    );
    for summary in &analysis.treatments {
        let steady = in_words(&summary.steady);
        let phase = |name: &str| {
            summary
                .phases
                .get(name)
                .map_or_else(dash, |seconds| format!("{seconds:.1} s"))
        };
        add!(
            out,
            "<tr><th scope=\"row\">{}{}</th><td>{}</td><td>{}</td><td>{}</td>",
            swatch(&summary.treatment.platform, all),
            escape(&summary.treatment.label),
            summary.counts.counted,
            summary.counts.suspect + summary.counts.failed,
            if steady.is_empty() { dash() } else { steady },
        );
        for name in ["boot", "service", "warmup", "measured", "teardown"] {
            add!(out, "<td class=\"number\">{}</td>", phase(name));
        }
        out.push_str("</tr>\n");
    }
    out.push_str("</tbody></table></div>\n");
    let watching = &analysis.observation;
    if let (Some(mean), Some(worst)) = (watching.cores, watching.worst_cores) {
        add!(
            out,
            "<p class=\"key\">Watching cost {:.2} % of one core on average and {:.2} % in the worst trial, over {} sampling passes, of which {} more were missed.</p>\n",
            mean * 100.0,
            worst * 100.0,
            watching.passes,
            watching.missed
        );
    }
}

fn left_out_table(out: &mut String, analysis: &Analysis) {
    out.push_str("<h3 id=\"left-out\">Trials left out, and why</h3>\n");
    let left_out: Vec<&TrialRow> = analysis
        .trials
        .iter()
        .filter(|trial| trial.failed.is_some() || !trial.suspect.is_empty())
        .collect();
    if left_out.is_empty() && analysis.unreadable.is_empty() && analysis.attempts.is_empty() {
        out.push_str("<p>None.</p>\n");
        return;
    }
    out.push_str("<div class=\"scroll\"><table>\n<thead><tr><th>trial</th><th>treatment</th><th>state</th><th>reason</th></tr></thead>\n<tbody>\n");
    // An earlier attempt stands before what replaced it.
    let mut rows: Vec<(u32, bool, String)> = Vec::new();
    for attempt in &analysis.attempts {
        rows.push((
            attempt.index,
            false,
            format!(
                "<tr><td>{:04}.{}</td><td>{}</td><td>{}<span class=\"detail\">run again: {}</span></td><td class=\"reason\">{}</td></tr>\n",
                attempt.index,
                escape(&attempt.attempt),
                escape(&attempt.treatment),
                attempt.state,
                attempt.replacement,
                escape(&attempt.reason)
            ),
        ));
    }
    for trial in left_out {
        let reason = match &trial.failed {
            Some(reason) => reason.clone(),
            None => trial.suspect.join("; "),
        };
        rows.push((
            trial.index,
            true,
            format!(
                "<tr><td>{:04}</td><td>{}</td><td>{}</td><td class=\"reason\">{}</td></tr>\n",
                trial.index,
                escape(&trial.treatment),
                trial.state(),
                escape(&reason)
            ),
        ));
    }
    rows.sort_by_key(|(index, replaced, _)| (*index, *replaced));
    rows.iter().for_each(|(.., row)| out.push_str(row));
    for reason in &analysis.unreadable {
        add!(
            out,
            "<tr><td>–</td><td>–</td><td>damaged</td><td class=\"reason\">{}</td></tr>\n",
            escape(reason)
        );
    }
    out.push_str("</tbody></table></div>\n");
}

fn trials_table(out: &mut String, analysis: &Analysis) {
    if analysis.trials.is_empty() {
        return;
    }
    add!(
        out,
        "<details class=\"more\"><summary>All {} in the order they ran</summary>\n<div class=\"scroll\"><table>\n<thead><tr><th>trial</th>\
         <th>block</th><th>treatment</th><th>started</th><th>took</th><th>steadiness</th><th>state</th></tr></thead>\n<tbody>\n",
        count(analysis.trials.len(), "trial")
    );
    for trial in &analysis.trials {
        let state = trial.state();
        let class = if state == "counts" {
            ""
        } else {
            " class=\"left-out\""
        };
        add!(
            out,
            "<tr{class}><td>{:04}</td><td>{}</td><td>{}</td><td class=\"number\">{}</td><td class=\"number\">{:.1} s</td><td>{}</td><td>{state}</td></tr>\n",
            trial.index,
            trial.block,
            escape(&trial.treatment),
            escape(&when(&trial.started)),
            trial.phases.get("total").copied().unwrap_or(0.0),
            in_words(&trial.steady),
        );
    }
    out.push_str("</tbody></table></div></details>\n");
}

/// `2026-11-20 14:03:00 +01:00` from RFC 3339.
pub fn when(rfc3339: &str) -> String {
    match rfc3339.split_once('T') {
        Some((date, time)) => {
            let cut = time.find(['Z', '+', '-']).unwrap_or(time.len());
            let (clock, zone) = time.split_at(cut);
            let clock = clock.split('.').next().unwrap_or(clock);
            format!("{date} {clock} {}", if zone == "Z" { "UTC" } else { zone })
                .trim_end()
                .to_owned()
        }
        None => rfc3339.to_owned(),
    }
}

fn provenance_section(out: &mut String, analysis: &Analysis, provenance: &Provenance) {
    out.push_str("<section id=\"provenance\">\n<h2>Where the numbers come from</h2>\n<dl>\n");
    let mut fact = |name: &str, value: &str| {
        add!(out, "<dt>{}</dt><dd>{}</dd>\n", escape(name), escape(value));
    };
    if let Value::Object(host) = &provenance.host {
        for (name, value) in host
            .iter()
            .filter(|(_, value)| !value.is_object() && !value.is_array())
        {
            fact(
                &name.replace('_', " "),
                &value
                    .as_str()
                    .map_or_else(|| value.to_string(), str::to_owned),
            );
        }
    }
    for model in analysis.power_models() {
        fact("power model", &model);
    }
    fact("plan, SHA-256", &analysis.plan_sha256);
    fact("seed", &analysis.seed.to_string());
    let mut told: HashSet<&str> = HashSet::new();
    for summary in &analysis.treatments {
        let platform = summary.treatment.platform.as_str();
        if summary.environment.is_empty() || !told.insert(platform) {
            continue;
        }
        let facts: Vec<String> = summary
            .environment
            .iter()
            .map(|(name, value)| format!("{name}: {value}"))
            .collect();
        fact(platform, &facts.join("; "));
    }
    out.push_str("</dl>\n");
    let machines = analysis.fleet.sentences(&analysis.comparisons);
    if !machines.is_empty() {
        out.push_str("<h3 id=\"machines\">The machines</h3>\n<ul>\n");
        for sentence in machines {
            add!(out, "<li>{}</li>\n", escape(&sentence));
        }
        out.push_str("</ul>\n");
    }
    if !analysis.checks.is_empty() {
        out.push_str("<h3 id=\"checks\">Checks on the design</h3>\n<ul>\n");
        for check in &analysis.checks {
            add!(out, "<li>{}</li>\n", escape(check));
        }
        out.push_str("</ul>\n");
    }
    out.push_str("<h3>How each number is made</h3>\n<ol class=\"methods\">\n");
    for rule in methods(analysis) {
        add!(out, "<li>{rule}</li>\n");
    }
    out.push_str("</ol>\n");
    add!(
        out,
        "<details class=\"more\"><summary>The plan</summary><pre>{}</pre></details>\n",
        escape(&provenance.plan)
    );
    add!(
        out,
        "<details class=\"more\"><summary>The host</summary><pre>{}</pre></details>\n",
        escape(&format!("{:#}", provenance.host))
    );
    out.push_str("<details class=\"more\"><summary>The order of trials</summary><pre>");
    for (index, (label, block)) in provenance.schedule.iter().enumerate() {
        add!(out, "{index:04}  block {block}  {}\n", escape(label));
    }
    out.push_str("</pre></details>\n</section>\n");
}

/// The rules of method, each with its reference.
fn methods(analysis: &Analysis) -> Vec<String> {
    let link = |url: &str, text: &str| format!("<a href=\"{url}\">{text}</a>");
    vec![
        format!(
            "<b>Order.</b> Every block holds each treatment once, in random order from a stored seed: randomised multiple interleaved trials ({}).",
            link("https://doi.org/10.1145/3030207.3030229", "Abedi &amp; Brecht 2017")
        ),
        format!(
            "<b>Tax.</b> The geometric mean of the ratios of trials of one block, repeated at the level of whole boots ({}).",
            link("https://doi.org/10.1145/2464157.2464160", "Kalibera &amp; Jones 2013")
        ),
        format!(
            "<b>Intervals.</b> 95 %. Of a ratio of pairs: Student’s t of the log ratios. Of a mean, and of a ratio without pairs: bootstrap with {} \
             resamples and expanded percentiles ({}); Student’s t below eight values, of logarithms where a quantity cannot be negative.",
            crate::stats::RESAMPLES,
            link("https://doi.org/10.1080/00031305.2015.1089789", "Hesterberg 2015")
        ),
        format!(
            "<b>Verdict.</b> A difference is claimed only when the interval excludes 1, the permutation p and Student’s p adjusted for the family of \
             comparisons ({}) are below 0.05, and one of the two is larger by at least {}. Fewer than four pairs are always too few. Equality is claimed \
             when the whole interval is nearer to 1 than that.",
            link("https://doi.org/10.1111/j.2517-6161.1995.tb02031.x", "Benjamini &amp; Hochberg 1995"),
            percent(analysis.minimum_effect)
        ),
        "<b>Exact.</b> A deterministic emulated host gives the same numbers for the same seed. Where all trials of both sides had one seed and agree \
         within 0.02 %, their ratio is exact for that host, image and seed: there is nothing to test. With a seed for each block (<code>seeds</code> in \
         the plan) intervals are over seeds, and say how much chance there is in the timing."
            .to_owned(),
        format!(
            "<b>Steadiness.</b> Rates per second of the window, cut at changepoints and classed flat, warm-up, slowdown or no steady state ({}); \
             trials that disagree make a treatment inconsistent.",
            link("https://doi.org/10.1145/3133876", "Barrett et al. 2017")
        ),
        "<b>Flags.</b> <span class=\"badge\">modelled</span> is computed by a model from measured counters; <span class=\"badge\">emulated</span> comes \
         from a machine whose instructions were emulated. A derived number carries the worst flag of its inputs; without a flag it was measured."
            .to_owned(),
        "<b>Suspect trials</b> are kept and listed, never deleted, and left out of every mean and ratio; so is every attempt at a trial that was run again."
            .to_owned(),
    ]
}
