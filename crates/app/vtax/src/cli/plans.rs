// SPDX-License-Identifier: Apache-2.0
//! The commands that write, check and run plans.

use super::values::{files_of_plans, known, percent, place, plan, platforms};
use clap::builder::StringValueParser;
use clap::{Args, Subcommand};
use std::num::{NonZeroU32, NonZeroUsize};
use std::path::{Path, PathBuf};
use vtax_args::FormatArgs;
use vtax_fleet::Engine;
use vtax_lab::place::Place;
use vtax_lab::plan::Shard;
use vtax_lab::plan::new::Subject;
use vtax_log::Details;
use vtax_report::gate::Gate;
use vtax_results::limit::Until;

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
        #[arg(value_parser = known(StringValueParser::new(), files_of_plans))]
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
    /// The plan: a TOML file, or a name in `vtax plan list`.
    #[arg(value_parser = plan())]
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
    /// Run a part of a run that another vtax merges: wait while another vtax run is on this host, and write no report.
    #[arg(long, hide = true)]
    pub part: bool,
    /// Check the plan, log into its guests and look, print what a run would do in order and when, and change nothing.
    #[arg(long, conflicts_with_all = ["fleet", "part"])]
    pub dry_run: bool,
    /// A limit for what the run finds, such as 'cpu.per_work of new > +3%' for a variant or 'cpu.per_work of qemu > 2x' for a
    /// tax: exit status 4 where the interval is beyond it, 3 where the interval contains it. It can be given several times.
    #[arg(long = "fail-on", value_name = "GATE", conflicts_with_all = ["fleet", "part", "shard"])]
    pub gates: Vec<Gate>,
    /// Append the findings and the gates to this file as Markdown, such as the summary of a pipeline.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["fleet", "part", "shard"])]
    pub summary: Option<PathBuf>,
    #[command(flatten)]
    pub fleet: FleetArgs,
    #[command(flatten)]
    pub command: CommandArgs,
}

/// A command that is measured without a plan file.
#[derive(Debug, Default, Args)]
#[command(group(clap::ArgGroup::new("guests").args(["platform", "image", "variants"]).multiple(true)))]
pub struct CommandArgs {
    /// Measure the command after `--` on these platforms, without a plan file; the plan that is made is written beside
    /// the results. The kinds.
    #[arg(long, value_name = "KIND,…", value_delimiter = ',',
          value_parser = known(StringValueParser::new(), platforms), conflicts_with_all = ["plan", "fleet", "quick"])]
    pub platform: Vec<String>,
    /// Measure an image: oci:DIR, oci:FILE.tar, dir:ROOT or podman:NAME. Its entry point is the service, unless --serve
    /// gives another. Without --platform it runs natively, in a container and in a VM (qemu). `host` are the files of this host,
    /// with the current directory, natively and in a container; it is the default where the command names a file of this host, or
    /// a program that vtax's image lacks.
    #[arg(long, value_name = "IMAGE", conflicts_with_all = ["plan", "fleet", "quick"])]
    pub image: Option<String>,
    /// Compare variants in one run, such as two builds: NAME=VALUE, first the one that the others are compared with. The value
    /// takes the place of {variant} in commands, --files, --input and --image. One that is a file is added to the files, and one
    /// that is an image is the image. It is given two times or more.
    #[arg(long = "variant", value_name = "NAME=VALUE", action = clap::ArgAction::Append, conflicts_with_all = ["plan", "fleet", "quick"])]
    pub variants: Vec<String>,
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
    /// End the run when it knows enough: `METRIC ± 2%`, or `decided: GATE`. Its intervals hold at every look, so that the
    /// looks make no false alarms. --runs is then the least number of runs.
    #[arg(long, value_name = "WHEN", requires = "guests")]
    pub until: Option<Until>,
    /// The most runs on each platform, with --until.
    #[arg(long, value_name = "RUNS", default_value_t = 100, requires = "until", value_parser = clap::value_parser!(u32).range(2..=100_000))]
    pub at_most: u32,
    /// Compare the typical pair of trials, which rare slow trials do not move, in place of the mean of all.
    #[arg(long, requires = "guests", conflicts_with = "until")]
    pub typical: bool,
    /// Run no canary, the short reference beside trials that shows how fast this host is at that time.
    #[arg(long, requires = "guests")]
    pub no_canary: bool,
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
    /// The work that the measured command does: an expression whose group is the number in its output, or a fixed number,
    /// and its unit, such as --work 'served ([0-9]+)' request. Load generators that vtax knows are read without it.
    #[arg(long, num_args = 2, value_names = ["REGEX", "UNIT"], allow_hyphen_values = true, requires = "guests")]
    pub work: Vec<String>,
    /// A number that the measured command prints, as the metric own.NAME: NAME=REGEX, and its unit. It can be given several
    /// times.
    #[arg(long = "metric", num_args = 2, value_names = ["NAME=…", "UNIT"], action = clap::ArgAction::Append, requires = "guests")]
    pub metrics: Vec<String>,
    /// The name of the run and its workload, by which later runs are compared with it.
    #[arg(long, value_name = "NAME", requires = "guests")]
    pub name: Option<String>,
    /// A file that the measured command in the target reads as its standard input.
    #[arg(long, value_name = "FILE", requires = "guests")]
    pub input: Option<PathBuf>,
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
    #[command(flatten)]
    pub details: Details,
}

#[derive(Debug, Args)]
pub struct ShardArgs {
    /// The work directory of the run, RESULTS.fleet.
    pub workdir: PathBuf,
    /// Which shard.
    pub shard: u32,
}

/// The place of a run, and the part of it that another vtax starts there.
#[derive(Debug, Args)]
pub struct PlaceArgs {
    /// Where to run: `local`, `ssh:HOST`, `testbed:kvm` or `testbed:xen`.
    #[arg(long, value_name = "PLACE", default_value = "local", value_parser = place())]
    pub place: Place,
    /// Settings of the testbed, a TOML file (with `--place testbed:…`).
    #[arg(long, value_name = "FILE")]
    pub testbed: Option<PathBuf>,
    /// Emulated hosts at the same time (with `--place testbed:…`) [default: as many as there are
    /// processors, and memory for them].
    #[arg(long, value_name = "N")]
    pub jobs: Option<NonZeroUsize>,
    /// The name of the place in the results, when another vtax starts this one.
    #[arg(long, hide = true)]
    pub place_name: Option<String>,
    /// Run this treatment alone, once, for another vtax.
    #[arg(long, hide = true)]
    pub treatment: Option<usize>,
    /// The draw of that trial, of a plan with `draws`.
    #[arg(long, hide = true, value_name = "NUMBER", requires = "treatment")]
    pub draw: Option<u32>,
    /// Flag every number as simulated: this host is an emulated one.
    #[arg(long, hide = true)]
    pub emulated: bool,
}

/// The climbs of guests and their place.
#[derive(Debug, Args)]
pub struct DensityArgs {
    /// A density plan, a TOML file, such as plans/density.toml
    #[arg(conflicts_with = "platform", required_unless_present_any = ["platform", "supervise"])]
    pub plan: Option<PathBuf>,
    /// Climb these platforms as they are, without a plan: mvm-parked, mvm-live, qemu, firecracker, cloud-hypervisor,
    /// container, process, thread
    #[arg(long, value_name = "KIND,…", value_delimiter = ',')]
    pub platform: Vec<String>,
    /// The expected maximum of every platform, in place of the plan's
    #[arg(long, value_name = "GUESTS", value_parser = clap::value_parser!(u32).range(1..))]
    pub max: Option<u32>,
    /// A quick run: fewer guests and one climb each, marked as such in the report
    #[arg(long)]
    pub quick: bool,
    /// The results directory [default: results/NAME-TIME]
    #[arg(long, value_name = "DIR")]
    pub results: Option<PathBuf>,
    /// The format of the events
    #[command(flatten)]
    pub format: FormatArgs,
    /// Make and hold the guests of a climb; `vtax density` starts this itself
    #[arg(long, hide = true, value_name = "JSON")]
    pub supervise: Option<String>,
    #[command(flatten)]
    pub at: PlaceArgs,
    #[command(flatten)]
    pub details: Details,
}

/// The plan, its place and its output.
#[derive(Debug, Args)]
pub struct PlanRunArgs {
    /// The plan: a TOML file, or a name in `vtax plan list`.
    #[arg(required = true, index = 1, value_parser = plan())]
    pub plan: Option<PathBuf>,
    /// The results directory [default: results/PLAN-NAME].
    #[arg(long, value_name = "DIR")]
    pub results: Option<PathBuf>,
    /// Use the quick profile: short durations, few repetitions, marked as such in the report.
    #[arg(long)]
    pub quick: bool,
    /// Add this many blocks to the run of the results directory. Its intervals then hold at every look, and are wider.
    #[arg(long, value_name = "BLOCKS", default_value_t, requires = "results", value_parser = clap::value_parser!(u32).range(0..=10_000))]
    pub more: u32,
    #[command(flatten)]
    pub at: PlaceArgs,
    #[command(flatten)]
    pub format: FormatArgs,
    #[command(flatten)]
    pub details: Details,
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
