// SPDX-License-Identifier: Apache-2.0
//! `vtax report`, `vtax compare`, `vtax history`, `vtax survey`, `vtax export`: results as tables, pages, JSON, CSV and
//! Parquet.

use super::{GatesNotPassed, NothingCounts, json, record};
use crate::Outcome;
use crate::cli::{
    CompareArgs, CompareFormat, ExportArgs, ExportFormat, ExportOf, HistoryArgs, ReportArgs,
    SurveyArgs,
};
use crate::exit::{NeedsRoot, is_io};
use crate::output::{cannot_write, cannot_write_to, fail, out, outln};
use crate::progress::note;
use rustix::termios::tcgetwinsize;
use std::error::Error;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use vtax_core::counted;
use vtax_core::terminal::{data, stdout};
use vtax_record::store;
use vtax_report::analysis::{Analysis, analyse, analyse_shards};
use vtax_report::compare::RunComparison;
use vtax_report::gate::{AcrossHosts, JudgedGate};
use vtax_report::pipeline::{self, Gated};
use vtax_report::{compare, export, figures, gate, history, html, survey, svg, terminal};
use vtax_results::{Accepted, ResultsDir, ResultsError};

pub fn report(arguments: &ReportArgs) -> Outcome {
    written(arguments).map_err(|cause| {
        let needed = NeedsRoot::check("root made the results, beside which the report is written");
        match (is_io(&*cause, io::ErrorKind::PermissionDenied), needed) {
            (true, Err(needed)) => needed.into(),
            _ => cause,
        }
    })
}

fn written(arguments: &ReportArgs) -> Outcome {
    if !arguments.figures.is_empty() {
        let formats: Vec<_> = arguments.figures.iter().map(|one| (*one).into()).collect();
        return draw(&arguments.results, &formats, arguments.output.as_deref());
    }
    if let [only] = arguments.results.as_slice() {
        if store::is_recording(only) {
            return record::report(only, arguments.format.is_json(), width());
        }
        let results = ResultsDir::open(only)?;
        if vtax_density::run::is_density(&results) {
            let (path, summary) = vtax_density::report::write(&results)?;
            if arguments.format.is_json() {
                return json(&summary.document());
            }
            outln!("{summary}\nreport: {}", path.display())?;
            return Ok(());
        }
    }
    if arguments.format.is_json() {
        let (_, analysis) = read(&arguments.results)?;
        return json(&analysis);
    }
    let analysis = shown(&arguments.results, arguments.notes)?;
    if arguments.variance {
        let styled = stdout().has_styles();
        out!("{}", terminal::variance(&analysis, width(), styled))?;
    }
    Ok(())
}

/// Writes the figures of results and prints their paths.
fn draw(directories: &[PathBuf], formats: &[svg::FigureFormat], into: Option<&Path>) -> Outcome {
    if let [only] = directories
        && store::is_recording(only)
    {
        fail!("the figures of a recording are in its report.html only");
    }
    let (results, figures) = match directories {
        [only] if vtax_density::run::is_density(&ResultsDir::open(only)?) => {
            let results = ResultsDir::open(only)?;
            let figures = vtax_density::report::figures_of(&results)?;
            (results, figures)
        }
        _ => {
            let (results, analysis) = read(directories)?;
            (results, figures::figures(&analysis))
        }
    };
    let default = results.path().join("figures");
    for path in svg::write(&figures, formats, into.unwrap_or(&default))? {
        outln!("{}", path.display())?;
    }
    Ok(())
}

/// Writes the report and prints the table, its sentences and the report's path.
pub fn show(directories: &[PathBuf]) -> Result<Analysis, Box<dyn Error>> {
    shown(directories, false)
}

/// As [`show`], with the notes on method, energy and noise or without.
fn shown(directories: &[PathBuf], notes: bool) -> Result<Analysis, Box<dyn Error>> {
    let (results, analysis) = read(directories)?;
    let styled = stdout().has_styles();
    let render = if notes {
        terminal::table
    } else {
        terminal::brief
    };
    out!("{}", render(&analysis, width(), styled))?;
    let path = html::write_report(&results, &analysis)?;
    outln!("\nreport: {}", path.display())?;
    Ok(analysis)
}

/// Writes the report into the first of the directories, and returns its path.
pub fn write(directories: &[PathBuf]) -> Result<(PathBuf, Analysis), Box<dyn Error>> {
    let (results, analysis) = read(directories)?;
    let path = html::write_report(&results, &analysis)?;
    Ok((path, analysis))
}

pub(super) fn read(directories: &[PathBuf]) -> Result<(ResultsDir, Analysis), Box<dyn Error>> {
    let shards: Vec<ResultsDir> = directories
        .iter()
        .map(|path| ResultsDir::open(path))
        .collect::<Result<_, _>>()?;
    let analysis = analyse_shards(&shards.iter().collect::<Vec<_>>())?;
    let first = shards
        .into_iter()
        .next()
        .ok_or("give at least one results directory")?;
    Ok((first, analysis))
}

fn analyses(directories: &[PathBuf]) -> Result<Vec<Analysis>, ResultsError> {
    let open = |path: &PathBuf| ResultsDir::open(path).and_then(|results| analyse(&results));
    directories.iter().map(open).collect()
}

pub fn compare(arguments: &CompareArgs) -> Outcome {
    if arguments
        .results
        .iter()
        .any(|path| store::is_recording(path))
    {
        let (comparison, gates) = record::compare(arguments)?;
        print_comparison(arguments, &comparison, &gates)?;
        return Ok(GatesNotPassed::check(&gates)?);
    }
    let analyses = analyses(&arguments.results)?;
    let (first, others) = analyses
        .split_first()
        .ok_or("give at least two results directories")?;
    let others = others.iter().collect::<Vec<_>>();
    let of = arguments.of.into();
    let comparison = compare::compare_of(of, first, &others);
    let counts = analyses.iter().try_for_each(NothingCounts::check);
    let shared = comparison.check();
    let across = AcrossHosts(arguments.across_hosts);
    let judged = match arguments.gates.as_slice() {
        [] => gate::judge_by_plans(first, &others, across),
        gates => gate::judge(gates, of, first, &others, across),
    };
    let gates = match judged {
        // Without a trial that counts, no metric is compared.
        Err(_) if counts.is_err() || shared.is_err() => Vec::new(),
        judged => judged?,
    };
    print_comparison(arguments, &comparison, &gates)?;
    counts?;
    shared?;
    Ok(GatesNotPassed::check(&gates)?)
}

/// Prints a comparison and its gates in the format that was asked for.
fn print_comparison(
    arguments: &CompareArgs,
    comparison: &RunComparison,
    gates: &[JudgedGate],
) -> Outcome {
    let gated = Gated { comparison, gates };
    match arguments.format.format() {
        CompareFormat::Json => json(&gated)?,
        CompareFormat::Text => {
            out!("{}", compare::table(comparison, width()))?;
            for judged in gates {
                outln!("  {judged}")?;
            }
        }
        CompareFormat::Md => out!("{}", gated.markdown())?,
        CompareFormat::Csv => out!("{}", gated.csv())?,
        CompareFormat::Bencher => json(&gated.bencher())?,
    }
    Ok(())
}

/// Accepts a run as the reference of later ones.
fn accept(run: &Path, why: &str, of: &[PathBuf]) -> Outcome {
    if !of.iter().any(|one| one == run) {
        fail!(
            "{} is not among the results of the command: name it as it is named there",
            run.display()
        );
    }
    if why.trim().is_empty() {
        fail!("the reason of --why is empty");
    }
    // With sudo the user who typed the command.
    let names = ["SUDO_USER", "LOGNAME", "USER"];
    let by = names.iter().find_map(|name| std::env::var(name).ok());
    let by = by.unwrap_or_else(|| format!("user {}", rustix::process::getuid().as_raw()));
    let at = jiff::Timestamp::now().to_string();
    let why = why.trim().to_owned();
    ResultsDir::open(run)?.accept(&Accepted { by, at, why })?;
    Ok(())
}

pub fn history(arguments: &HistoryArgs) -> Outcome {
    if let (Some(run), Some(why)) = (&arguments.accept, &arguments.why) {
        accept(run, why, &arguments.results)?;
    }
    let of = arguments.of.into();
    // The metrics of gates are followed too.
    let mut metrics = arguments.metrics.clone();
    metrics.extend(arguments.gates.iter().map(|gate| gate.metric.clone()));
    let history = history::history(&analyses(&arguments.results)?, of, &metrics);
    let gates = gate::judge_history(
        &arguments.gates,
        &history,
        AcrossHosts(arguments.across_hosts),
    )?;
    if history.series.is_empty() {
        let what = match metrics.as_slice() {
            [] => "a headline number".to_owned(),
            some => format!("a number of {}", some.join(", ")),
        };
        fail!(
            "no run that counts has {what} to follow: `vtax report RESULTS --json` lists the metrics of each, and \
             --of cost follows treatments without a baseline"
        );
    }
    if let Some(path) = &arguments.output {
        let mut output = vtax_files::output(path)?;
        let written = output
            .file()
            .write_all(html::history::page(&history).as_bytes());
        written.map_err(|cause| format!("cannot write {}: {cause}", path.display()))?;
        output.finish()?;
    }
    if arguments.format.is_json() {
        json(&history)?;
    } else {
        out!("{}", history::table(&history, width()))?;
        for judged in &gates {
            outln!("  {judged}")?;
        }
    }
    Ok(GatesNotPassed::check(&gates)?)
}

pub fn survey(arguments: &SurveyArgs) -> Outcome {
    let mut found = Vec::new();
    for path in &arguments.results {
        let below = survey::directories(path)?;
        if below.is_empty() {
            fail!("{} has no results directory in it", path.display());
        }
        found.extend(below);
    }
    let dataset = arguments.output.as_deref();
    let mut dataset = dataset.map(export::Dataset::create).transpose()?;
    let survey = survey::survey(&found, dataset.as_mut())?;
    if let Some(dataset) = dataset {
        dataset.finish()?;
    }
    if arguments.format.is_json() {
        return json(&survey);
    }
    outln!("{}", survey::table(&survey, width()))?;
    Ok(())
}

pub fn export(arguments: &ExportArgs) -> Outcome {
    if store::is_recording(&arguments.results) {
        return match arguments.format {
            ExportFormat::Csv => record::export(&arguments.results, arguments.output.as_deref()),
            ExportFormat::Parquet => Err("recordings are exported as CSV".into()),
        };
    }
    let results = ResultsDir::open(&arguments.results)?;
    let of = arguments.of;
    let unreadable = match (arguments.format, &arguments.output) {
        (ExportFormat::Parquet, _) if of == ExportOf::Comparisons => {
            fail!("comparisons are exported as CSV");
        }
        (ExportFormat::Parquet, _) if of == ExportOf::Shifts => {
            fail!("shift functions are exported as CSV");
        }
        (ExportFormat::Parquet, _) if of == ExportOf::Samples => {
            fail!("samples are Parquet already: each trial's samples.parquet");
        }
        (ExportFormat::Parquet, Some(path)) => export::parquet(&results, path)?,
        (ExportFormat::Parquet, None) => {
            fail!("Parquet needs a file: give --output FILE");
        }
        (ExportFormat::Csv, Some(path)) => {
            let mut output = vtax_files::output(path)?;
            let mut file = BufWriter::new(output.file());
            let unreadable = csv(&results, of, &mut file).map_err(cannot_write_to(path))?;
            drop(file);
            output.finish()?;
            unreadable
        }
        (ExportFormat::Csv, None) => {
            csv(&results, of, &mut BufWriter::new(data())).map_err(cannot_write)?
        }
    };
    for cause in &unreadable {
        note(&format!("left out: {cause}"));
    }
    match unreadable.len() {
        0 => Ok(()),
        parts => Err(format!(
            "{} of {} left out",
            counted(parts, "part"),
            arguments.results.display()
        )
        .into()),
    }
}

fn csv(results: &ResultsDir, of: ExportOf, into: &mut impl Write) -> io::Result<Vec<ResultsError>> {
    let unreadable = match of {
        ExportOf::Samples => export::csv_samples(results, into)?,
        ExportOf::Trials => export::csv(results, into)?,
        ExportOf::Comparisons => {
            let analysis = analyse(results).map_err(io::Error::other)?;
            let run = results.path().to_string_lossy();
            let rows = analysis.comparisons.iter().map(|row| (&*run, row));
            into.write_all(pipeline::csv(rows).as_bytes())?;
            Vec::new()
        }
        ExportOf::Shifts => {
            let analysis = analyse(results).map_err(io::Error::other)?;
            let run = results.path().to_string_lossy();
            into.write_all(pipeline::shifts_csv(&run, &analysis.shifts).as_bytes())?;
            Vec::new()
        }
    };
    into.flush()?;
    Ok(unreadable)
}

/// The terminal's width in columns, within the limits of the tables.
pub(super) fn width() -> usize {
    tcgetwinsize(stdout())
        .map_or(80, |size| usize::from(size.ws_col))
        .clamp(60, 120)
}
