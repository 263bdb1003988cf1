//! The command line as clap sees it.

use clap::{Args, Parser, Subcommand, ValueEnum};
use std::net::SocketAddr;
use std::path::PathBuf;
use vtax_lab::place::Place;
use vtax_lab::plan::Shard;
use vtax_mvm::cli::MvmCommand;
use vtax_observe::charge::{IdleRule, MethodChoice};
use vtax_serve::top::Order;

/// Measures what virtualization costs: the same workload on bare metal, in containers and in VMs.
#[derive(Debug, Parser)]
#[command(name = "vtax", version, disable_help_subcommand = true)]
pub struct Cli {
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Show what this host can run and measure, with evidence and remedies.
    Doctor(DoctorArgs),
    /// Look at a plan without running it.
    #[command(subcommand)]
    Plan(PlanCommand),
    /// Run a plan, or go on with an unfinished run of it.
    Run(RunArgs),
    /// Make report.html, the figures and analysis.json from results, and print the table.
    Report(ReportArgs),
    /// Compare two results directories, treatment by treatment.
    Compare(CompareArgs),
    /// Write the trials or samples of a run as CSV or Parquet.
    Export(ExportArgs),
    /// Energy meters of this host.
    #[command(subcommand)]
    Meter(MeterCommand),
    /// The root file system that every platform runs.
    #[command(subcommand)]
    Image(ImageCommand),
    /// Micro VMs: guests that are one 512-byte boot sector.
    #[command(subcommand)]
    Mvm(MvmCommand),
    /// Show the guests of this host by what they truly cost.
    Top(TopArgs),
    /// Serve the guests' CPU time and energy to Prometheus.
    Exporter(ExporterArgs),
    /// Print what each guest caused, interval by interval, for billing scripts.
    Charge(ChargeArgs),
    /// Undo what a run that was cut off left on this host.
    Restore(RestoreArgs),
    /// A load generator, as workloads start it in the client.
    #[command(subcommand, hide = true)]
    Load(LoadCommand),
}

#[derive(Debug, Args)]
pub struct DoctorArgs {
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
    /// Scan serial ports for wall meters too (sends bytes to whatever is attached).
    #[arg(long)]
    pub scan_wall_meters: bool,
}

#[derive(Debug, Subcommand)]
pub enum PlanCommand {
    /// Check a plan; print its treatments, the number of trials and the expected time.
    Check {
        /// The plan, a TOML file.
        plan: PathBuf,
        /// Use the quick profile.
        #[arg(long)]
        quick: bool,
    },
    /// Print everything that a plan can set or vary.
    Keys,
}

#[derive(Debug, Args)]
pub struct RunArgs {
    /// The plan, a TOML file.
    pub plan: PathBuf,
    /// The results directory [default: results/PLAN-NAME].
    #[arg(long, value_name = "DIR")]
    pub results: Option<PathBuf>,
    /// A first look: short durations, few repetitions, marked as such in the report.
    #[arg(long)]
    pub quick: bool,
    /// Run only this share of the blocks, such as 2/4.
    #[arg(long, value_name = "I/N")]
    pub shard: Option<Shard>,
    /// Where to run: `local` or `ssh:HOST`.
    #[arg(long, value_name = "PLACE", default_value = "local")]
    pub at: Place,
    /// Print one JSON object a line instead of progress for people.
    #[arg(long)]
    pub json: bool,
    /// What the results say of the place, when another vtax started this one.
    #[arg(long, hide = true)]
    pub place_name: Option<String>,
}

#[derive(Debug, Args)]
pub struct ReportArgs {
    /// Results directories; several shards of one plan are read together.
    #[arg(required = true)]
    pub results: Vec<PathBuf>,
    /// Print the analysis as JSON instead of the table.
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct CompareArgs {
    /// The results to compare against.
    pub before: PathBuf,
    /// The results to judge.
    pub after: PathBuf,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum ExportFormat {
    Csv,
    Parquet,
}

#[derive(Debug, Args)]
pub struct ExportArgs {
    /// The results directory.
    pub results: PathBuf,
    /// The format.
    #[arg(long, value_enum, default_value = "csv")]
    pub format: ExportFormat,
    /// Export every sample instead of one row for each trial and metric (CSV).
    #[arg(long)]
    pub samples: bool,
    /// The file to write; CSV goes to standard output without it.
    #[arg(long, short, value_name = "FILE")]
    pub output: Option<PathBuf>,
}

#[derive(Debug, Subcommand)]
pub enum MeterCommand {
    /// List the meters of this host, and why others are absent.
    List,
    /// Fit the power model from a real meter, stepping the load from idle to full.
    Calibrate {
        /// The file to write.
        #[arg(long, short, default_value = "power-model.toml")]
        output: PathBuf,
        /// Seconds for each step of load.
        #[arg(long, default_value_t = 10)]
        seconds: u64,
    },
}

#[derive(Debug, Subcommand)]
pub enum ImageCommand {
    /// Build the image now, if its recipe has not been built yet, and say where it is.
    Build {
        /// Build it again even if it is there, for a damaged one.
        #[arg(long)]
        force: bool,
    },
}

/// How time and energy are charged.
#[derive(Debug, Args)]
pub struct ChargingArgs {
    /// How soft interrupts are charged: auto, traced (BPF), counted, or both to compare.
    #[arg(long, default_value = "auto")]
    pub method: MethodChoice,
    /// Who pays for idle energy: host, equal, or reservation (by processors given).
    #[arg(long, value_name = "RULE", default_value = "host")]
    pub idle: IdleRule,
    /// The host's idle power; learnt from the lowest seen without it.
    #[arg(long, value_name = "WATTS")]
    pub idle_watts: Option<f64>,
}

#[derive(Debug, Args)]
pub struct TopArgs {
    #[command(flatten)]
    pub charging: ChargingArgs,
    /// Seconds from one picture to the next.
    #[arg(long, short, value_name = "SECONDS", default_value_t = 2.0)]
    pub interval: f64,
    /// Sort by cpu, hidden, watts, packets, exits or name.
    #[arg(long, default_value = "cpu")]
    pub sort: Order,
    /// Print so many pictures to standard output instead, for logs.
    #[arg(long, value_name = "COUNT")]
    pub batch: Option<u64>,
}

#[derive(Debug, Args)]
pub struct ExporterArgs {
    #[command(flatten)]
    pub charging: ChargingArgs,
    /// Where to listen; other than loopback is your decision: anybody can read there.
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:9177")]
    pub listen: SocketAddr,
    /// Seconds from one interval's end to the next one's.
    #[arg(long, short, value_name = "SECONDS", default_value_t = 1.0)]
    pub interval: f64,
    /// Make series for so many guests at most, the oldest first.
    #[arg(long, value_name = "COUNT", default_value_t = 2000)]
    pub most_guests: usize,
}

#[derive(Debug, Args)]
pub struct ChargeArgs {
    #[command(flatten)]
    pub charging: ChargingArgs,
    /// Seconds of each interval.
    #[arg(long, short, value_name = "SECONDS", default_value_t = 10.0)]
    pub interval: f64,
    /// End after so many intervals; without it, go on until interrupted.
    #[arg(long, value_name = "COUNT")]
    pub count: Option<u64>,
    /// One JSON object a line.
    #[arg(long, conflicts_with = "csv")]
    pub json: bool,
    /// CSV (the default).
    #[arg(long)]
    pub csv: bool,
}

#[derive(Debug, Args)]
pub struct RestoreArgs {
    /// Give up on what cannot be undone.
    #[arg(long)]
    pub forget: bool,
}

#[derive(Debug, Subcommand)]
pub enum LoadCommand {
    /// HTTP requests at a rate, or downloads.
    Http(vtax_lab::load::http::Arguments),
}
