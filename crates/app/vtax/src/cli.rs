// SPDX-License-Identifier: Apache-2.0
//! The command line as clap sees it.

pub mod completions;
#[cfg(test)]
mod grammar;
pub mod help;
mod ledger;
pub mod manual;
mod plans;
mod results;
mod values;
pub mod words;

pub use ledger::*;
pub use plans::*;
pub use results::*;

use clap::{Args, Parser, Subcommand};
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;
use values::{ValueError, known};
use vtax_args::FormatArgs;
use vtax_args::time::between;
use vtax_lab::place::Hypervisor;
use vtax_log::Details;
use vtax_mvm::cli::MvmCommand;

/// The version, and the git revision of a release build: `build.rs`.
pub const VERSION: &str = env!("VTAX_VERSION");

/// Measures what virtualization costs: the same workload on bare metal, in containers and in VMs.
#[derive(Debug, Parser)]
#[command(name = "vtax", version = VERSION, disable_help_subcommand = true)]
pub struct Cli {
    #[command(subcommand)]
    pub command: Option<Command>,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Show what this host can run and measure, with remedies.
    Doctor(DoctorArgs),
    /// Write and check plans, and list their keys.
    #[command(subcommand)]
    Plan(PlanCommand),
    /// Run a plan, or measure a command without one.
    ///
    /// An unfinished run in the results directory is resumed.
    #[command(mut_arg("plan", |plan| plan.required(false).required_unless_present_any(["platform", "image", "variants"])))]
    Run(Box<RunArgs>),
    /// Merge shards of one run into one results directory.
    Merge(MergeArgs),
    /// Write report.html of a run or recording, and print its table.
    ///
    /// The figures and analysis.json are written beside it.
    Report(ReportArgs),
    /// Compare runs, or two recordings, and judge gates.
    ///
    /// The first results directory is the base. Runs are compared treatment by treatment, recordings guest by guest.
    Compare(CompareArgs),
    /// Show since which run of a plan a number is another.
    History(HistoryArgs),
    /// Summarize many results directories.
    Survey(SurveyArgs),
    /// Write a run or a recording as CSV or Parquet.
    Export(ExportArgs),
    /// Show figures of papers, as published and as measured here.
    ///
    /// Runs that are missing are made, and one page is written.
    Atlas(AtlasArgs),
    /// Show guests by their full cost to this host, live.
    Top(TopArgs),
    /// Print time and energy of each guest and stage as records.
    Charge(ChargeArgs),
    /// Record what guests cost, second by second.
    ///
    /// No load is put on anything. `vtax report`, `vtax compare` and `vtax export` read the recording.
    Record(RecordArgs),
    /// Estimate which knobs of notifications save a guest processor time.
    ///
    /// From the counters of a recording, or of `vtax top --json`. A plan measures what is advised.
    Advise(AdviseArgs),
    /// Show what the guests of a recording cost in money and CO₂e.
    ///
    /// By a tariff: the price of electricity and of the machine, carbon intensity, embodied emissions.
    Bill(BillArgs),
    /// Limit guests to shares, the host's work for them included.
    Cap(CapArgs),
    /// Serve what guests cost to Prometheus, or push it.
    Exporter(ExporterArgs),
    /// Show, in a guest, what it costs its host.
    ///
    /// The host's exporter sends it over a virtio-serial port.
    Share(ShareArgs),
    /// Serve a page: this host live, runs, results, comparisons.
    Web(WebArgs),
    /// List energy meters, and fit the power model.
    #[command(subcommand)]
    Meter(MeterCommand),
    /// Build the root file system that every platform runs.
    #[command(subcommand)]
    Image(ImageCommand),
    /// Emulated hosts, whose numbers repeat on every machine.
    #[command(subcommand)]
    Testbed(TestbedCommand),
    /// Micro VMs: guests that are one 512-byte boot sector.
    #[command(subcommand)]
    Mvm(MvmCommand),
    /// A virtual NIC for VMs that merges notifications.
    Nic(Box<vtax_nic::cli::Cli>),
    /// Measure how many guests this host holds.
    Density(Box<DensityArgs>),
    /// Measure the error of charge-back.
    ///
    /// Two guests run together, and each of them alone.
    #[command(subcommand)]
    Accuracy(AccuracyCommand),
    /// Undo the changes to this host that a killed run left.
    Restore(RestoreArgs),
    /// Explain a metric, a setting of plans, or a reason to suspect a trial.
    Explain(ExplainArgs),
    /// Show the help of a command, or of a topic.
    #[command(hide = true)]
    Help(HelpArgs),
    /// A load generator, as workloads start it in the client.
    #[command(subcommand, hide = true)]
    Load(LoadCommand),
    /// One shard of a run on many machines, as an engine starts it.
    #[command(hide = true)]
    Shard(ShardArgs),
    /// Write the man pages and completions of a package.
    #[command(subcommand, hide = true)]
    Generate(GenerateCommand),
    /// A command in a dry run, whose files are printed, as a run starts it to make the image of a VM.
    #[command(hide = true)]
    Trace(TraceArgs),
    /// An actor of trials of another host, which starts it through ssh and sends it JSON lines.
    #[command(hide = true)]
    Actor,
}

impl Command {
    /// The option for the log of this process. `None`: the command starts a log of its own, or speaks a protocol.
    pub fn details(&self) -> Option<Details> {
        match self {
            Self::Exporter(_) | Self::Web(_) | Self::Nic(_) | Self::Mvm(_) => None,
            Self::Load(_) | Self::Trace(_) | Self::Actor => None,
            Self::Run(arguments) => Some(arguments.run.details),
            Self::Accuracy(AccuracyCommand::Run(arguments)) => Some(arguments.details),
            Self::Density(arguments) => Some(arguments.details),
            Self::Merge(arguments) => Some(arguments.details),
            Self::Atlas(arguments) => Some(arguments.details),
            Self::Cap(arguments) => Some(arguments.details),
            Self::Restore(arguments) => Some(arguments.details),
            Self::Testbed(
                TestbedCommand::Build { details, .. }
                | TestbedCommand::Shell { details, .. }
                | TestbedCommand::Guard { details, .. },
            ) => Some(*details),
            // By RUST_LOG alone.
            _ => Some(Details::default()),
        }
    }
}

#[derive(Debug, Args)]
pub struct ExplainArgs {
    /// The name of a metric or setting, or words of a reason.
    #[arg(required = true, value_name = "NAME")]
    pub words: Vec<String>,
    #[command(flatten)]
    pub format: FormatArgs,
}

#[derive(Debug, Args)]
pub struct TraceArgs {
    /// The root that the command enters, whose files are printed.
    #[arg(long, value_name = "DIR")]
    pub root: PathBuf,
    /// The command.
    #[arg(required = true, last = true, value_name = "COMMAND")]
    pub line: Vec<String>,
}

#[derive(Debug, Args)]
pub struct HelpArgs {
    /// The command, or a topic: exit-status, environment or charging.
    #[arg(value_name = "COMMAND")]
    pub words: Vec<String>,
}

#[derive(Debug, Args)]
pub struct DoctorArgs {
    #[command(flatten)]
    pub format: FormatArgs,
    /// Scan serial ports for wall meters too (sends bytes to whatever is attached).
    #[arg(long)]
    pub scan_wall_meters: bool,
}

#[derive(Debug, Subcommand)]
pub enum MeterCommand {
    /// List the meters of this host, and why others are absent.
    List(FormatArgs),
    /// Fit the power model from a real meter, stepping the load from idle to full.
    Calibrate {
        /// The file to write.
        #[arg(long, short, value_name = "FILE", default_value = "power-model.toml")]
        output: PathBuf,
        /// The time of each step of load.
        #[arg(long, value_name = "TIME", default_value = "10s", value_parser = between("1s", "1h"))]
        step: Duration,
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
    /// Build a host's image now, or the QEMU that emulates hosts best, if it has not been built yet.
    Build {
        /// `kvm` or `xen`: what runs on the host; or `qemu`.
        #[arg(value_parser = known(TestbedPart::from_str, || vec!["kvm", "xen", "qemu"]))]
        part: TestbedPart,
        #[command(flatten)]
        details: Details,
    },
    /// Boot a host with this terminal as its console; `poweroff` ends it.
    Shell {
        /// What runs on it: `kvm` or `xen`.
        #[arg(value_parser = known(Hypervisor::from_str, || vec!["kvm", "xen"]))]
        hypervisor: Hypervisor,
        /// Settings of the testbed, a TOML file.
        #[arg(long, value_name = "FILE")]
        testbed: Option<PathBuf>,
        #[command(flatten)]
        details: Details,
    },
    /// List what is built, in the cache and in the package vtax-testbed.
    List(FormatArgs),
    /// Remove a host's images, or the QEMU that was built, from the cache.
    Rm {
        /// `kvm` or `xen`: what runs on the host; or `qemu`.
        #[arg(value_parser = known(TestbedPart::from_str, || vec!["kvm", "xen", "qemu"]))]
        part: TestbedPart,
    },
    /// Compute cycles and watts of results from a testbed again, with another cost model.
    Cost {
        /// The results directory.
        #[arg(required_unless_present = "list")]
        results: Option<PathBuf>,
        /// The cost model: the name of a shipped one, or a TOML file [default: sandy-bridge].
        #[arg(long, value_name = "NAME|FILE")]
        model: Option<PathBuf>,
        /// List the cost models that vtax ships.
        #[arg(long, conflicts_with_all = ["results", "model"])]
        list: bool,
    },
    /// Run a small plan at testbed:kvm and compare its counts with the committed ones.
    Guard {
        /// The plan, a TOML file.
        #[arg(default_value = "plans/guard.toml")]
        plan: PathBuf,
        /// The committed counts.
        #[arg(long, value_name = "FILE", default_value = "plans/guard.counts.toml")]
        counts: PathBuf,
        /// Take the new counts as the right ones.
        #[arg(long)]
        accept_counts: bool,
        #[command(flatten)]
        details: Details,
    },
}

/// The parts of a testbed that are built.
#[derive(Debug, Clone, Copy)]
pub enum TestbedPart {
    /// The image of a host.
    Host(Hypervisor),
    /// The QEMU that emulates it.
    Qemu,
}

impl FromStr for TestbedPart {
    type Err = ValueError;
    fn from_str(text: &str) -> Result<Self, ValueError> {
        if text == "qemu" {
            return Ok(Self::Qemu);
        }
        let host = text.parse::<Hypervisor>().map(Self::Host);
        host.map_err(|cause| ValueError::TestbedPart(cause.to_string()))
    }
}

#[derive(Debug, Subcommand)]
pub enum AccuracyCommand {
    /// Run a study: the plan's first and last workload in two guests, alone and together; those
    /// between them alone, to fit the weights of the counted method.
    Run(PlanRunArgs),
    /// Print the tables of studies.
    Table {
        /// Their results directories.
        #[arg(required = true)]
        results: Vec<PathBuf>,
        #[command(flatten)]
        format: FormatArgs,
    },
}

#[derive(Debug, Args)]
pub struct RestoreArgs {
    /// Give up on what cannot be undone.
    #[arg(long)]
    pub forget: bool,
    #[command(flatten)]
    pub format: FormatArgs,
    #[command(flatten)]
    pub details: Details,
}

#[derive(Debug, Subcommand)]
pub enum GenerateCommand {
    /// Write a man page for each command.
    Man {
        /// The directory, which must exist.
        directory: PathBuf,
    },
    /// Print the completions of a shell.
    Completions {
        /// The shell.
        shell: clap_complete::Shell,
    },
}

#[derive(Debug, Subcommand)]
pub enum LoadCommand {
    /// HTTP requests at a rate, or downloads.
    Http(vtax_load::http::Arguments),
    /// Memcached requests at a rate.
    Memcached(vtax_load::memcached::Arguments),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_sound() {
        use clap::CommandFactory;
        Cli::command().debug_assert();
    }
}
