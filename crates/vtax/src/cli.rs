//! The command line as clap sees it.

use clap::{Args, Parser, Subcommand, ValueEnum};
use std::path::PathBuf;
use vtax_lab::place::{Hypervisor, Place};
use vtax_lab::plan::Shard;
use vtax_mvm::cli::MvmCommand;

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
    /// Emulated hosts with real hypervisors, the same numbers on every machine.
    #[command(subcommand)]
    Testbed(TestbedCommand),
    /// Micro VMs: guests that are one 512-byte boot sector.
    #[command(subcommand)]
    Mvm(MvmCommand),
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
    /// Where to run: `local`, `ssh:HOST`, `testbed:kvm` or `testbed:xen`.
    #[arg(long, value_name = "PLACE", default_value = "local")]
    pub at: Place,
    /// Settings of the testbed, a TOML file (with `--at testbed:…`).
    #[arg(long, value_name = "FILE")]
    pub testbed: Option<PathBuf>,
    /// Print one JSON object a line instead of progress for people.
    #[arg(long)]
    pub json: bool,
    /// What the results say of the place, when another vtax started this one.
    #[arg(long, hide = true)]
    pub place_name: Option<String>,
    /// This host is an emulated one: every number is to say so.
    #[arg(long, hide = true)]
    pub emulated: bool,
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

#[derive(Debug, Subcommand)]
pub enum TestbedCommand {
    /// Build a host's image now, if its recipe has not been built yet.
    Build {
        /// What runs on it: `kvm` or `xen`.
        hypervisor: Hypervisor,
    },
    /// Boot a host with this terminal as its console; `poweroff` ends it.
    Shell {
        /// What runs on it: `kvm` or `xen`.
        hypervisor: Hypervisor,
        /// Settings of the testbed, a TOML file.
        #[arg(long, value_name = "FILE")]
        testbed: Option<PathBuf>,
    },
    /// List the images of hosts in the cache.
    List,
    /// Remove a host's images from the cache.
    Rm {
        /// What runs on it: `kvm` or `xen`.
        hypervisor: Hypervisor,
    },
    /// Compute cycles and watts of results from a testbed again, with another cost model.
    Cost {
        /// The results directory.
        results: PathBuf,
        /// The cost model, a TOML file [default: the one that vtax ships].
        #[arg(long, value_name = "FILE")]
        model: Option<PathBuf>,
    },
    /// Run a small plan at testbed:kvm and compare its counts with the committed ones.
    Guard {
        /// The plan.
        #[arg(long, default_value = "plans/guard.toml")]
        plan: PathBuf,
        /// The committed counts.
        #[arg(long, default_value = "plans/guard.counts.toml")]
        counts: PathBuf,
        /// Take the new counts as the right ones.
        #[arg(long)]
        accept: bool,
    },
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
