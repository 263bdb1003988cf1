// SPDX-License-Identifier: Apache-2.0
//! The commands that read results: reports, comparisons, histories, surveys, exports and the atlas.

use super::values::place;
use clap::{Args, ValueEnum};
use std::path::PathBuf;
use vtax_args::{FormatArgs, HasJson};
use vtax_lab::place::Place;
use vtax_log::Details;
use vtax_report::gate::Gate;
use vtax_report::{history, svg};

#[derive(Debug, Args)]
pub struct ReportArgs {
    /// Results directories; several shards of one plan are read together.
    #[arg(required = true)]
    pub results: Vec<PathBuf>,
    /// Print the notes on method, energy and noise, too.
    #[arg(long, conflicts_with_all = ["json", "format", "figures"])]
    pub notes: bool,
    /// Print the variance of headline metrics by level, and the recommended repetitions, too.
    #[arg(long)]
    pub variance: bool,
    /// Write each figure as a file of these formats, for a paper, instead of the report.
    #[arg(long, value_enum, value_name = "FORMAT,…", value_delimiter = ',', conflicts_with_all = ["variance", "json", "format"])]
    pub figures: Vec<FigureFormat>,
    /// The directory to write these files to [default: RESULTS/figures].
    #[arg(short, long, value_name = "DIR", requires = "figures")]
    pub output: Option<PathBuf>,
    #[command(flatten)]
    pub format: FormatArgs,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum FigureFormat {
    /// SVG that needs no other file.
    Svg,
    /// PDF, with texts in Helvetica.
    Pdf,
}

impl From<FigureFormat> for svg::FigureFormat {
    fn from(format: FigureFormat) -> Self {
        match format {
            FigureFormat::Svg => Self::Svg,
            FigureFormat::Pdf => Self::Pdf,
        }
    }
}

#[derive(Debug, Args)]
pub struct CompareArgs {
    /// Results directories; the others are compared against the first. Or two recordings of `vtax record`.
    #[arg(required = true, num_args = 2.., value_name = "RESULTS")]
    pub results: Vec<PathBuf>,
    /// The numbers to compare: cost (a treatment's own values) or tax (in which the host's drift between runs cancels).
    #[arg(long, value_enum, value_name = "NUMBERS", default_value = "cost")]
    pub of: HistoryOf,
    /// A limit for a change, such as 'cpu.per_work > +5%' or 'cpu.per_work of http-rate vm > +5%': exit status 4 where the
    /// interval is beyond it, 3 where the interval contains it. It can be given several times.
    #[arg(long = "fail-on", value_name = "GATE")]
    pub gates: Vec<Gate>,
    /// Judge costs across hosts that differ in processor, kernel or hypervisor.
    #[arg(long)]
    pub across_hosts: bool,
    #[command(flatten)]
    pub format: FormatArgs<CompareFormat>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum CompareFormat {
    /// A table for terminals.
    Text,
    /// One JSON document: the comparison and its gates.
    Json,
    /// Markdown tables, for the summary of a pipeline.
    Md,
    /// One row for each comparison.
    Csv,
    /// Bencher Metric Format.
    Bencher,
}

impl HasJson for CompareFormat {
    const DEFAULT: &'static str = "text";
    const JSON: Self = Self::Json;
}

#[derive(Debug, Args)]
pub struct HistoryArgs {
    /// Results directories of one plan, in any order.
    #[arg(required = true, num_args = 2.., value_name = "RESULTS")]
    pub results: Vec<PathBuf>,
    /// The numbers to follow: tax (in which the host's drift between runs cancels) or cost (a treatment's own values).
    #[arg(long, value_enum, value_name = "NUMBERS", default_value = "tax")]
    pub of: HistoryOf,
    /// A metric by its name in `analysis.json`, such as cpu.per_work, instead of the headlines. It can be given several times.
    #[arg(long = "metric", value_name = "NAME")]
    pub metrics: Vec<String>,
    /// A limit for the last run against the runs before it, such as 'cpu.per_work > +5%': exit status 4 where the interval is
    /// beyond it, 3 where the interval contains it. A worse level is no reference until it is accepted. It can be given several
    /// times.
    #[arg(long = "fail-on", value_name = "GATE")]
    pub gates: Vec<Gate>,
    /// Judge costs across hosts that differ in processor, kernel or hypervisor.
    #[arg(long)]
    pub across_hosts: bool,
    /// One of the results: later runs are judged by it and by those after it, however worse it is than those before. It is
    /// kept in accepted.json in that directory, with the user's name and the reason.
    #[arg(long, value_name = "RUN", requires = "why")]
    pub accept: Option<PathBuf>,
    /// Why the run is accepted.
    #[arg(long, value_name = "TEXT", requires = "accept")]
    pub why: Option<String>,
    /// The file to write a page to, with a plot of each series.
    #[arg(long, short, value_name = "FILE")]
    pub output: Option<PathBuf>,
    #[command(flatten)]
    pub format: FormatArgs,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum HistoryOf {
    Tax,
    Cost,
}

impl From<HistoryOf> for history::Of {
    fn from(of: HistoryOf) -> Self {
        match of {
            HistoryOf::Tax => Self::Tax,
            HistoryOf::Cost => Self::Cost,
        }
    }
}

#[derive(Debug, Args)]
pub struct SurveyArgs {
    /// Results directories, or directories above them.
    #[arg(required = true, value_name = "RESULTS")]
    pub results: Vec<PathBuf>,
    /// The file to write every trial and metric to, as Parquet.
    #[arg(long, short, value_name = "FILE")]
    pub output: Option<PathBuf>,
    #[command(flatten)]
    pub format: FormatArgs,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum ExportFormat {
    Csv,
    Parquet,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum ExportOf {
    Trials,
    Samples,
    Comparisons,
    Shifts,
}

#[derive(Debug, Args)]
pub struct ExportArgs {
    /// The results directory.
    pub results: PathBuf,
    /// One row for each of: trials (and metric), samples, comparisons (with a baseline) or shifts (quantiles of latencies
    /// against the baseline).
    #[arg(value_enum, default_value = "trials", value_name = "WHAT")]
    pub of: ExportOf,
    /// The format of the output; only trials can be Parquet.
    #[arg(long, value_enum, value_name = "FORMAT", default_value = "csv")]
    pub format: ExportFormat,
    /// The file to write; CSV goes to standard output without it.
    #[arg(long, short, value_name = "FILE", required_if_eq("format", "parquet"))]
    pub output: Option<PathBuf>,
}

#[derive(Debug, Args)]
#[command(group(clap::ArgGroup::new("runs").args(["run", "quick"]).multiple(true)))]
pub struct AtlasArgs {
    /// A paper's figures alone, or one of them: shea, shea/fig-7.
    #[arg(value_name = "PAPER[/FIGURE]")]
    pub figures: Option<String>,
    /// Run each plan that has no complete run, which takes hours and for some plans root. Without it the page is made from
    /// the numbers in vtax, and from the runs that exist.
    #[arg(long)]
    pub run: bool,
    /// Run the quick profiles of the plans that judge a claim, and no others.
    #[arg(long)]
    pub quick: bool,
    /// Where to run every plan, in place of the atlas's own places: `local`, `ssh:HOST`, `testbed:kvm` or `testbed:xen`.
    #[arg(long, value_name = "PLACE", requires = "runs", value_parser = place())]
    pub place: Option<Place>,
    /// The directory above results directories, which have their plans' names, or archives of them, as papers/runs;
    /// complete runs are not run again.
    #[arg(long, value_name = "DIR", default_value = "atlas-results")]
    pub results_root: PathBuf,
    /// The directory of the plans.
    #[arg(long, value_name = "DIR", default_value = "plans")]
    pub plans: PathBuf,
    /// Write into this directory the numbers as CSV with their provenance (ours), and archives of the runs (runs).
    #[arg(long, value_name = "DIR", num_args = 0..=1, default_missing_value = "papers")]
    pub keep: Option<PathBuf>,
    /// The file to write the page to.
    #[arg(long, short, value_name = "FILE", default_value = "atlas.html")]
    pub output: PathBuf,
    #[command(flatten)]
    pub details: Details,
}
