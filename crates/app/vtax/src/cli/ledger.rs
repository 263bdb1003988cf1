// SPDX-License-Identifier: Apache-2.0
//! The commands that charge guests for time and energy.

use super::values::{known, label, processors, share, socket, watts};
use clap::{Args, ValueEnum};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;
use vtax_args::time::between;
use vtax_args::{FormatArgs, HasJson};
use vtax_charge::{IdleRule, MethodChoice, Weights};
use vtax_log::{Details, Verbosity};
use vtax_serve::Address;
use vtax_serve::push::Destination;
use vtax_serve::top::Key;

/// How time and energy are charged. The topic `charging` of the help has the full text.
#[derive(Debug, Args)]
pub struct LedgerArgs {
    /// How soft interrupts are charged, see `vtax help charging`.
    #[arg(long, value_name = "METHOD", default_value = "auto", help_heading = CHARGING,
          value_parser = known(MethodChoice::from_str, || METHODS.to_vec()))]
    pub method: MethodChoice,
    /// The costs of exchanges, where soft interrupts are counted.
    #[arg(long, value_name = "WEIGHTS", help_heading = CHARGING)]
    pub weights: Option<Weights>,
    /// Who pays for the idle host's energy.
    #[arg(long, value_name = "RULE", default_value = "host", help_heading = CHARGING,
          value_parser = known(IdleRule::from_str, || RULES.map(IdleRule::name).to_vec()))]
    pub idle: IdleRule,
    /// The power of the idle host [default: learned].
    #[arg(long, value_name = "WATTS", help_heading = CHARGING, value_parser = watts)]
    pub idle_watts: Option<f64>,
}

const CHARGING: &str = "Charging";
const METHODS: [&str; 4] = ["auto", "traced", "counted", "both"];
const RULES: [IdleRule; 3] = [IdleRule::Host, IdleRule::Equal, IdleRule::Reservation];

/// Services that are guests too.
#[derive(Debug, Args)]
pub struct ServiceArgs {
    /// The number of a process that runs already: it, its descendants and those that it starts later are one guest.
    /// Nothing of them is changed. It can be given several times. Other users' processes need root.
    #[arg(long, value_name = "PID", value_parser = clap::value_parser!(u32).range(1..))]
    pub pid: Vec<u32>,
}

#[derive(Debug, Args)]
pub struct TopArgs {
    #[command(flatten)]
    pub services: ServiceArgs,
    /// The time between two readings.
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = between("100ms", "24h"))]
    pub interval: Duration,
    /// The number of intervals [default: until stopped].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub count: Option<u64>,
    #[command(flatten)]
    pub format: FormatArgs,
    /// The key to sort by: cpu, a stage (vcpu, emulator, iothread, vhost, softirq, backend), hidden, watts, packets,
    /// exits, wait or name.
    #[arg(long, value_name = "KEY", default_value = "cpu",
          value_parser = known(Key::from_str, || Key::ALL.map(|(_, name, _)| name).to_vec()))]
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
    /// The unit to charge: each guest, or the guests of a Kubernetes pod as one. By pod, the cost of a sandboxed pod
    /// beyond its containers is printed too, in the form of a RuntimeClass (podFixed).
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
    #[command(flatten)]
    pub services: ServiceArgs,
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
pub struct AdviseArgs {
    /// A recording of `vtax record`, or a file with lines of `vtax top --json`; - is standard input.
    #[arg(value_name = "RECORDING|FILE")]
    pub source: PathBuf,
    /// The guest, by its name [default: every guest].
    pub guest: Option<String>,
    /// The file to write the plan to that measures the advised knobs.
    #[arg(long, short, value_name = "FILE")]
    pub output: Option<PathBuf>,
    #[command(flatten)]
    pub format: FormatArgs,
}

/// The formats of a bill.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum BillFormat {
    /// Text for terminals
    Text,
    /// One document of JSON
    Json,
    /// Rows of FOCUS 1.3 as CSV: one for each guest, hour and charge
    Focus,
}

impl HasJson for BillFormat {
    const DEFAULT: &'static str = "text";
    const JSON: Self = Self::Json;
}

#[derive(Debug, Args)]
pub struct BillArgs {
    /// A recording of `vtax record`.
    pub recording: PathBuf,
    /// The guest whose Software Carbon Intensity is computed, by its name [default: the whole host].
    #[arg(requires = "per")]
    pub guest: Option<String>,
    /// The tariff: prices and carbon intensities, a file in TOML.
    #[arg(long, value_name = "FILE")]
    pub tariff: PathBuf,
    /// Compute the Software Carbon Intensity for each unit of the recorded work, of which there were N: 120000 request.
    #[arg(long, num_args = 2, value_names = ["N", "UNIT"])]
    pub per: Option<Vec<String>>,
    #[command(flatten)]
    pub format: FormatArgs<BillFormat>,
}

#[derive(Debug, Args)]
pub struct CapArgs {
    /// The share of a guest in processors, for its own time and the host's work for it. Each of several guests of that
    /// name has this share. It can be given several times. The share of other guests is the limit of their control
    /// group.
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
    pub details: Details,
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
    #[arg(long, value_name = "NAME=…", requires = "push", value_parser = label)]
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
    /// The directory of the plans that are offered [default: plans].
    #[arg(long, value_name = "DIR")]
    pub plans: Option<PathBuf>,
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
    /// Serve for reading only: no client can start a run, write a note or set a budget.
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
