// SPDX-License-Identifier: Apache-2.0
//! The command line as clap sees it.

#[cfg(test)]
mod grammar;
pub mod help;
pub mod old;
mod values;

use clap::{Args, Parser, Subcommand, ValueEnum};
use std::net::SocketAddr;
use std::num::{NonZeroU32, NonZeroUsize};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;
use values::{ValueError, label, percent, processors, share, socket, watts};
use vtax_args::time::between;
use vtax_args::{FormatArgs, HasJson};
use vtax_density::cli::DensityArguments;
use vtax_fleet::Engine;
use vtax_lab::place::{Hypervisor, Place};
use vtax_lab::plan::Shard;
use vtax_lab::plan::new::Subject;
use vtax_log::Verbosity;
use vtax_mvm::cli::MvmCommand;
use vtax_observe::charge::{IdleRule, MethodChoice, Weights};
use vtax_report::gate::Gate;
use vtax_report::{history, svg};
use vtax_serve::Address;
use vtax_serve::push::Destination;
use vtax_serve::top::Key;

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
    #[command(mut_arg("plan", |plan| plan.required(false).required_unless_present_any(["platform", "image"])))]
    Run(RunArgs),
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
    Density(DensityArguments),
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
    /// An actor of trials of another host, which starts it through ssh and sends it JSON lines.
    #[command(hide = true)]
    Actor,
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
pub struct HelpArgs {
    /// The command, or exit-status or environment.
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
pub enum PlanCommand {
    /// Check a plan; print its treatments, the number of trials and the expected time.
    Check(PlanCheckArgs),
    /// Write a complete plan with comments, for a guest that exists or for a command. It reads facts about the guest and
    /// changes nothing.
    New(PlanNewArgs),
    /// List the plans that are part of vtax; each runs by its name, from any directory.
    List(FormatArgs),
    /// Print a plan that is part of vtax.
    Show {
        /// Its name in `vtax plan list`.
        name: String,
    },
    /// Print everything that a plan can set or vary.
    Keys(PlanKeysArgs),
}

#[derive(Debug, Args)]
pub struct PlanKeysArgs {
    /// Print only keys, platforms and workloads with this text in their name or description.
    pub filter: Option<String>,
    #[command(flatten)]
    pub format: FormatArgs,
}

#[derive(Debug, Args)]
pub struct PlanNewArgs {
    /// What the plan is for: libvirt:DOMAIN, ssh:HOST, xenapi:POOL/VM, podman:NAME, or command.
    #[arg(long = "for", value_name = "WHAT")]
    pub subject: Subject,
    /// The file to write, which must not exist [default: standard output].
    #[arg(long, short, value_name = "FILE")]
    pub output: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub struct PlanCheckArgs {
    /// The plan, a TOML file.
    pub plan: PathBuf,
    /// Use the quick profile.
    #[arg(long)]
    pub quick: bool,
    /// The results directory of a run of this plan: print how many blocks each comparison needs for an interval of the
    /// wanted width. Several shards of one run are read together.
    #[arg(long, value_name = "DIR")]
    pub results: Vec<PathBuf>,
    /// The wanted half width of each ratio's interval, in percent.
    #[arg(long, value_name = "PCT", default_value = "5", value_parser = percent, requires = "results")]
    pub width: f64,
    #[command(flatten)]
    pub format: FormatArgs,
}

#[derive(Debug, Args)]
pub struct RunArgs {
    #[command(flatten)]
    pub run: PlanRunArgs,
    /// Run only this share of the blocks, such as 2/4.
    #[arg(long, value_name = "I/N")]
    pub shard: Option<Shard>,
    /// Run a part of a run that another vtax merges: wait while another lab runs on this host, and write no report.
    #[arg(long, hide = true)]
    pub part: bool,
    /// Check the plan, log into its guests and look, print what a run would do in order and when, and change nothing.
    #[arg(long, conflicts_with_all = ["fleet", "part"])]
    pub dry_run: bool,
    #[command(flatten)]
    pub fleet: FleetArgs,
    #[command(flatten)]
    pub command: CommandArgs,
}

/// A command that is measured without a plan file.
#[derive(Debug, Default, Args)]
#[command(group(clap::ArgGroup::new("guests").args(["platform", "image"]).multiple(true)))]
pub struct CommandArgs {
    /// Measure the command after `--` on these platforms, without a plan file; the plan that is made is written beside
    /// the results.
    #[arg(long, value_name = "KIND,…", value_delimiter = ',', conflicts_with_all = ["plan", "fleet", "quick"])]
    pub platform: Vec<String>,
    /// Measure an image: oci:DIR, oci:FILE.tar, dir:ROOT or podman:NAME. Its entry point is the service, unless --serve
    /// gives another. Without --platform it runs natively, in a container and in a VM (qemu).
    #[arg(long, value_name = "IMAGE", conflicts_with_all = ["plan", "fleet", "quick"])]
    pub image: Option<String>,
    /// The service in the target that the command drives as its client.
    #[arg(long, value_name = "COMMAND", requires = "guests", requires = "ready")]
    pub serve: Option<String>,
    /// When the service is ready: tcp:PORT, log:EXPRESSION, or exit.
    #[arg(long, value_name = "WHEN", requires = "guests")]
    pub ready: Option<String>,
    /// The measured command in one text, instead of after `--`; {target} is the target's address.
    #[arg(long, value_name = "COMMAND", requires = "guests")]
    pub load: Option<String>,
    /// A command in the target before each run and its service.
    #[arg(long, value_name = "COMMAND", requires = "guests")]
    pub prepare: Option<String>,
    /// Runs before each measured run.
    #[arg(long, value_name = "N", default_value_t, requires = "guests", value_parser = clap::value_parser!(u32).range(0..=1000))]
    pub warmup: u32,
    /// Measured runs on each platform.
    #[arg(long, value_name = "N", default_value_t = 5, requires = "guests", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub runs: u32,
    /// Debian packages that the image gets.
    #[arg(
        long,
        value_name = "NAME,…",
        value_delimiter = ',',
        requires = "guests"
    )]
    pub packages: Vec<String>,
    /// A file or directory that the image gets; the commands in the target run beside it. It can be given several times.
    #[arg(long, value_name = "PATH", requires = "guests")]
    pub files: Vec<PathBuf>,
    /// The measured command.
    #[arg(last = true, index = 2, value_name = "COMMAND", requires = "guests")]
    pub words: Vec<String>,
}

/// Many machines.
#[derive(Debug, Args)]
pub struct FleetArgs {
    /// Run on many machines, by an engine: `slurm`, `slurm:PARTITION`, `ssh:HOSTS.txt` (a host a line) or
    /// `kubernetes`.
    #[arg(long, value_name = "ENGINE", conflicts_with = "shard")]
    pub fleet: Option<Engine>,
    /// The number of shards, each of whole blocks [default: one for each block].
    #[arg(long, value_name = "N", requires = "fleet")]
    pub shards: Option<NonZeroU32>,
    /// An image that has this vtax and what the plan's platforms need (with `--fleet kubernetes`).
    #[arg(long, value_name = "IMAGE", requires = "fleet")]
    pub pod_image: Option<String>,
    /// The PersistentVolumeClaim that takes the results (with `--fleet kubernetes`).
    #[arg(long, value_name = "NAME", requires = "fleet", default_value = "vtax")]
    pub claim: String,
}

#[derive(Debug, Args)]
pub struct MergeArgs {
    /// Results directories of one run: shards of it, or what several machines found of one.
    #[arg(required = true, value_name = "RESULTS")]
    pub sources: Vec<PathBuf>,
    /// The results directory to make or complete; the sources stay as they are.
    #[arg(long, value_name = "DIR")]
    pub results: PathBuf,
}

#[derive(Debug, Args)]
pub struct ShardArgs {
    /// The work directory of the run, RESULTS.fleet.
    pub workdir: PathBuf,
    /// Which shard.
    pub shard: u32,
}

/// The plan, its place and its output.
#[derive(Debug, Args)]
pub struct PlanRunArgs {
    /// The plan, a TOML file.
    #[arg(required = true, index = 1)]
    pub plan: Option<PathBuf>,
    /// The results directory [default: results/PLAN-NAME].
    #[arg(long, value_name = "DIR")]
    pub results: Option<PathBuf>,
    /// Use the quick profile: short durations, few repetitions, marked as such in the report.
    #[arg(long)]
    pub quick: bool,
    /// Where to run: `local`, `ssh:HOST`, `testbed:kvm` or `testbed:xen`.
    #[arg(long, value_name = "PLACE", default_value = "local")]
    pub place: Place,
    /// Settings of the testbed, a TOML file (with `--place testbed:…`).
    #[arg(long, value_name = "FILE")]
    pub testbed: Option<PathBuf>,
    /// Emulated hosts at the same time (with `--place testbed:…`) [default: as many as there are
    /// processors, and memory for them].
    #[arg(long, value_name = "N")]
    pub jobs: Option<NonZeroUsize>,
    #[command(flatten)]
    pub format: FormatArgs,
    /// The name of the place in the results, when another vtax starts this one.
    #[arg(long, hide = true)]
    pub place_name: Option<String>,
    /// Run this treatment alone, once, for another vtax.
    #[arg(long, hide = true)]
    pub treatment: Option<usize>,
    /// Flag every number as emulated: this host is an emulated one.
    #[arg(long, hide = true)]
    pub emulated: bool,
}

impl PlanRunArgs {
    /// The plan's file; empty for a command without one.
    pub fn plan(&self) -> &Path {
        self.plan.as_deref().unwrap_or_else(|| Path::new(""))
    }

    /// The results directory of a plan of that name.
    pub fn results(&self, plan: &str) -> PathBuf {
        let results = self.results.clone();
        results.unwrap_or_else(|| Path::new("results").join(plan))
    }
}

#[derive(Debug, Args)]
pub struct ReportArgs {
    /// Results directories; several shards of one plan are read together.
    #[arg(required = true)]
    pub results: Vec<PathBuf>,
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
    /// The numbers to compare: each treatment's own values, or its tax, in which the host's drift between runs cancels.
    #[arg(long, value_enum, value_name = "NUMBERS", default_value = "cost")]
    pub of: HistoryOf,
    /// A limit for a change, such as 'cpu.per_work > +5%' or 'cpu.per_work of http-rate vm > +5%': exit status 4 where the
    /// interval is beyond it, 3 where the interval contains it. It can be given several times.
    #[arg(long = "fail-on", value_name = "GATE")]
    pub gates: Vec<Gate>,
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
    /// The numbers to follow: the tax, in which the host's drift between runs cancels, or the treatment's own values.
    #[arg(long, value_enum, value_name = "NUMBERS", default_value = "tax")]
    pub of: HistoryOf,
    /// A metric by its name in `analysis.json`, such as cpu.per_work, instead of the headlines. It can be given several times.
    #[arg(long = "metric", value_name = "NAME")]
    pub metrics: Vec<String>,
    /// A limit for the last run against the runs before it since their last change, such as 'cpu.per_work > +5%': exit
    /// status 4 where the interval is beyond it, 3 where the interval contains it. It can be given several times.
    #[arg(long = "fail-on", value_name = "GATE")]
    pub gates: Vec<Gate>,
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
    /// One row for each trial and metric, for each sample, for each comparison with a baseline, or for each quantile of latencies
    /// against the baseline.
    #[arg(value_enum, default_value = "trials", value_name = "WHAT")]
    pub of: ExportOf,
    /// The format of the output; only trials can be Parquet.
    #[arg(long, value_enum, value_name = "FORMAT", default_value = "csv")]
    pub format: ExportFormat,
    /// Export every sample: an old spelling of `samples`.
    #[arg(long, conflicts_with = "of", hide = true)]
    pub samples: bool,
    /// The file to write; CSV goes to standard output without it.
    #[arg(long, short, value_name = "FILE", required_if_eq("format", "parquet"))]
    pub output: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub struct AtlasArgs {
    /// A paper's figures alone, or one of them: shea, shea/fig-7.
    #[arg(value_name = "PAPER[/FIGURE]")]
    pub figures: Option<String>,
    /// Run the plans' quick profiles.
    #[arg(long)]
    pub quick: bool,
    /// Where to run every plan, in place of the atlas's own places.
    #[arg(long, value_name = "PLACE")]
    pub place: Option<Place>,
    /// The directory above results directories, which have their plans' names; complete runs are not run again.
    #[arg(long, value_name = "DIR", default_value = "atlas-results")]
    pub results_root: PathBuf,
    /// The directory of the plans.
    #[arg(long, value_name = "DIR", default_value = "plans")]
    pub plans: PathBuf,
    /// Run nothing: make the page from the numbers in vtax, and from the runs that exist.
    #[arg(long)]
    pub page_only: bool,
    /// Write the numbers as CSV with their provenance into this directory; those in vtax are papers/ours.
    #[arg(long, value_name = "DIR", num_args = 0..=1, default_missing_value = "papers/ours")]
    pub keep: Option<PathBuf>,
    /// The file to write the page to.
    #[arg(long, short, value_name = "FILE", default_value = "atlas.html")]
    pub output: PathBuf,
}

/// How time and energy are charged.
#[derive(Debug, Args)]
pub struct LedgerArgs {
    /// How soft interrupts are charged: auto (traced where BPF works), traced, counted, or both;
    /// what is shown of both is traced, and `charge` writes the records of each.
    #[arg(long, value_name = "METHOD", default_value = "auto")]
    pub method: MethodChoice,
    /// What exchanges cost, relative to each other, where soft interrupts are counted: NAME=NUMBER
    /// with commas between, of received, sent (packets), kibibyte, block-request, other (soft
    /// interrupts that do no I/O). `vtax accuracy` fits them to a host.
    #[arg(long, value_name = "WEIGHTS")]
    pub weights: Option<Weights>,
    /// Who pays for the energy of an idle host: host, equal (all guests alike) or reservation
    /// (by the processors that they were given).
    #[arg(long, value_name = "RULE", default_value = "host")]
    pub idle: IdleRule,
    /// What the host draws doing nothing. Without it that is learned from intervals in which the processors were idle
    /// (busy for 5 % or less), and with a real meter energy is not charged before the first of them.
    #[arg(long, value_name = "WATTS", value_parser = watts)]
    pub idle_watts: Option<f64>,
}

#[derive(Debug, Args)]
pub struct TopArgs {
    /// The time between two readings.
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = between("100ms", "24h"))]
    pub interval: Duration,
    /// The number of intervals [default: until stopped].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub count: Option<u64>,
    #[command(flatten)]
    pub format: FormatArgs,
    /// What to sort by: cpu, a stage (vcpu, emulator, iothread, vhost, softirq, backend), hidden,
    /// watts, packets, exits or name.
    #[arg(long, value_name = "KEY", default_value = "cpu")]
    pub sort: Key,
    #[command(flatten)]
    pub ledger: LedgerArgs,
}

/// Whom records charge.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum By {
    Guest,
    Pod,
}

/// The formats of records.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum ChargeFormat {
    /// Comma-separated values.
    Csv,
    /// JSON lines: one object a record.
    Json,
}

impl HasJson for ChargeFormat {
    const DEFAULT: &'static str = "csv";
    const JSON: Self = Self::Json;
}

#[derive(Debug, Args)]
pub struct ChargeArgs {
    /// The time between two readings, which one set of records covers.
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = between("100ms", "24h"))]
    pub interval: Duration,
    /// The number of intervals [default: until stopped].
    #[arg(long, value_name = "N")]
    pub count: Option<u64>,
    /// Whom to charge: each guest, or the guests of a Kubernetes pod as one. By pod, what a sandboxed
    /// pod costs beyond its containers is printed too, as a RuntimeClass takes it (podFixed).
    #[arg(long, value_name = "WHOM", default_value = "guest")]
    pub by: By,
    #[command(flatten)]
    pub format: FormatArgs<ChargeFormat>,
    #[command(flatten)]
    pub ledger: LedgerArgs,
}

#[derive(Debug, Args)]
pub struct RecordArgs {
    /// The directory to write the recording to: a new or empty one, or that of a recording, which goes on. Only this
    /// user may read it.
    #[arg(long, short, value_name = "DIR")]
    pub output: PathBuf,
    /// How long to record, such as 1h or 7d [default: until stopped].
    #[arg(long = "for", value_name = "TIME", value_parser = between("1s", "366d"))]
    pub length: Option<Duration>,
    /// The time between two readings.
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = between("100ms", "24h"))]
    pub interval: Duration,
    /// A text for the report, such as the change that is about to be measured.
    #[arg(long, value_name = "TEXT", default_value = "")]
    pub note: String,
    #[command(flatten)]
    pub ledger: LedgerArgs,
}

#[derive(Debug, Args)]
pub struct CapArgs {
    /// What a guest may cost in all, in processors: its own time and what the host does for it. Of several guests of
    /// that name each may cost so much. It can be given several times. Guests of no other mention are held to the limit that their control group has.
    #[arg(long, value_name = "NAME=PROCESSORS", value_parser = share)]
    pub guest: Vec<(String, f64)>,
    /// The share of every guest that has none of its own.
    #[arg(long, value_name = "PROCESSORS", value_parser = processors)]
    pub each: Option<f64>,
    /// The time between two readings of the ledger.
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = between("100ms", "24h"))]
    pub interval: Duration,
    /// The number of intervals [default: until stopped].
    #[arg(long, value_name = "N")]
    pub count: Option<u64>,
    /// Set nothing: print what would be set.
    #[arg(long)]
    pub dry_run: bool,
    #[command(flatten)]
    pub format: FormatArgs,
    #[command(flatten)]
    pub ledger: LedgerArgs,
}

#[derive(Debug, Args)]
pub struct ExporterArgs {
    /// The address to listen on: ADDRESS:PORT, a port of 127.0.0.1, or unix:PATH. It can be given several times.
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:19190")]
    pub listen: Vec<Address>,
    /// The file with the bearer token that clients must send, except on UNIX sockets. It is needed to listen on addresses
    /// that other hosts can reach.
    #[arg(long, value_name = "FILE")]
    pub token_file: Option<PathBuf>,
    /// The time between two readings. Scrapes in between return the last one.
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = between("100ms", "24h"))]
    pub interval: Duration,
    /// Send each guest its own share over its virtio-serial port, whose socket is NAME.sock in this directory.
    #[arg(long, value_name = "DIR")]
    pub share: Option<PathBuf>,
    /// Guests that get series of their own; the others' use is one sum.
    #[arg(long, value_name = "N", default_value_t = 2000)]
    pub max_guests: usize,
    #[command(flatten)]
    pub ledger: LedgerArgs,
    #[command(flatten)]
    pub verbosity: Verbosity,
    // The last: its heading is that of all that follow.
    #[command(flatten)]
    pub push: PushArgs,
}

#[derive(Debug, Args)]
#[command(next_help_heading = "Pushing")]
pub struct PushArgs {
    /// Push every reading to a server too: remote-write:URL (Prometheus' remote write) or otlp:URL (OTLP
    /// over HTTP). It can be given several times.
    #[arg(long, value_name = "WHERE")]
    pub push: Vec<Destination>,
    /// A file with a secret to send as a bearer token.
    #[arg(long, value_name = "FILE", requires = "push")]
    pub push_token_file: Option<PathBuf>,
    /// Send the token unencrypted through a network.
    #[arg(long, requires = "push_token_file")]
    pub push_plain: bool,
    /// A file with the certificates of authorities in PEM, in place of the well-known ones.
    #[arg(long, value_name = "FILE", requires = "push")]
    pub push_ca: Option<PathBuf>,
    /// A label on every series that is pushed. It can be given several times; `job` is vtax and `instance`
    /// this host's name unless given.
    #[arg(long, value_name = "NAME=VALUE", requires = "push", value_parser = label)]
    pub push_label: Vec<(String, String)>,
    /// The directory of readings that wait to be pushed; /var/lib/vtax/push for root.
    #[arg(long, value_name = "DIR", requires = "push")]
    pub queue: Option<PathBuf>,
    /// The limit of waiting readings for each server, in MiB; then the oldest are dropped.
    #[arg(long, value_name = "MIB", requires = "push", default_value_t = 256,
          value_parser = clap::value_parser!(u64).range(1..=1_048_576))]
    pub queue_mib: u64,
}

#[derive(Debug, Args)]
pub struct ShareArgs {
    /// The virtio-serial port [default: the one named vtax.share.0].
    #[arg(long, value_name = "PATH")]
    pub port: Option<PathBuf>,
    #[command(flatten)]
    pub format: FormatArgs,
    /// The number of intervals [default: until stopped].
    #[arg(long, value_name = "N")]
    pub count: Option<usize>,
}

#[derive(Debug, Args)]
pub struct WebArgs {
    /// The address to listen on: ADDRESS:PORT, or a port of 127.0.0.1. Other than loopback needs a certificate and a
    /// token.
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:19191", value_parser = socket)]
    pub listen: SocketAddr,
    /// The directory above results directories: they are shown, and those of new runs are written there.
    #[arg(long, value_name = "DIR", default_value = "results")]
    pub results_root: PathBuf,
    /// The directory of the plans that are offered.
    #[arg(long, value_name = "DIR", default_value = "plans")]
    pub plans: PathBuf,
    /// Encrypt with this certificate, a PEM file.
    #[arg(long, value_name = "FILE", requires = "key")]
    pub certificate: Option<PathBuf>,
    /// The private key of the certificate, a PEM file.
    #[arg(long, value_name = "FILE", requires = "certificate")]
    pub key: Option<PathBuf>,
    /// The file with the operator's token, which permits to start and stop runs. Without it one is made: it is printed where
    /// standard error is a terminal, and written to a file in the directory of vtax's state otherwise.
    #[arg(long, value_name = "FILE", conflicts_with = "watch_only")]
    pub token_file: Option<PathBuf>,
    /// The file with the watchers' token, which permits to read.
    #[arg(long, value_name = "FILE")]
    pub watch_token_file: Option<PathBuf>,
    /// Serve for reading only: nobody can start a run, write a note or set a budget.
    #[arg(long)]
    pub watch_only: bool,
    /// The operator's socket of a `vtax nic` (its --api), to show and set its ports. It can be given several times.
    #[arg(long, value_name = "PATH")]
    pub nic: Vec<PathBuf>,
    /// The address of a `vtax mvm run` (its --listen), to show its population. It can be given several times.
    #[arg(long, value_name = "ADDRESS")]
    pub mvm: Vec<SocketAddr>,
    #[command(flatten)]
    pub ledger: LedgerArgs,
    #[command(flatten)]
    pub verbosity: Verbosity,
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
        part: TestbedPart,
    },
    /// Boot a host with this terminal as its console; `poweroff` ends it.
    Shell {
        /// What runs on it: `kvm` or `xen`.
        hypervisor: Hypervisor,
        /// Settings of the testbed, a TOML file.
        #[arg(long, value_name = "FILE")]
        testbed: Option<PathBuf>,
    },
    /// List what is built, in the cache.
    List(FormatArgs),
    /// Remove a host's images, or the QEMU that was built, from the cache.
    Rm {
        /// `kvm` or `xen`: what runs on the host; or `qemu`.
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
        accept: bool,
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
