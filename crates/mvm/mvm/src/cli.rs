// SPDX-License-Identifier: Apache-2.0
//! The command line: `vtax-mvm build|run`, which `vtax mvm` includes.

use crate::error::{Error, Result};
use crate::front::router::{Route, Router};
use crate::image::{DiskFormat, Image, write_disk};
use crate::jail;
use crate::machine::kvm::Host;
use crate::population::capacity::Capacity;
use crate::population::memory::return_large_allocations;
use crate::population::share::Share;
use crate::population::worker::{Addresses, Listeners, Workers};
use crate::population::{Holding, Plan, Population};
use crate::shard::{GUESTS_PER_PROCESS, ShardCommand, Shards};
use crate::tcg::{Accelerator, Qemus};
use clap::{Args, Subcommand, ValueEnum};
use std::io::{Read, Write};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use vtax_core::terminal;
use vtax_log::Verbosity;

/// The commands of micro VMs.
#[derive(Debug, Subcommand)]
pub enum MvmCommand {
    /// Build a 512-byte boot sector from assembly or from a CPU profile
    Build(BuildArguments),
    /// Run guests until Ctrl-C
    Run(RunArguments),
    /// Hold a part of a live population; started by `run`
    #[command(hide = true)]
    Shard(ShardArguments),
}

/// `build`.
#[derive(Debug, Args)]
pub struct BuildArguments {
    /// An .asm file, a .toml CPU profile, or a shipped image: echo, idle, idle-pit, spin, web
    image: String,
    /// The file to write [default: IMAGE with the format's extension, in the current directory]
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// The format of the output
    #[arg(long, value_enum, value_name = "FORMAT", default_value = "sector")]
    format: DiskFormat,
}

/// The accelerators of guests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Accel {
    /// KVM, in this monitor
    Kvm,
    /// One emulating QEMU per guest, for a few
    Tcg,
}

/// `run`.
#[derive(Debug, Args)]
pub struct RunArguments {
    /// A shipped image, an .asm or .toml file, or a boot sector
    #[arg(long, value_name = "IMAGE", default_value = "web")]
    image: String,
    /// The number of guests
    #[arg(long = "guests", value_name = "N", default_value_t = 1)]
    count: u32,
    /// Keep every guest's KVM objects, instead of parking halted guests
    #[arg(long)]
    live: bool,
    /// What runs the guests: KVM, or an emulating QEMU for each
    #[arg(long, value_enum, value_name = "ACCELERATOR", default_value = "kvm")]
    accel: Accel,
    /// The address to listen on for HTTP. Guests answer every client of an address other than loopback
    #[arg(
        long = "listen",
        value_name = "ADDRESS",
        default_value = "127.0.0.1:8080"
    )]
    http: SocketAddr,
    /// Serve the multiplexed UNIX socket here: `CONNECT N`, then the guest's serial port
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
    /// Worker threads [default: one for each core]
    #[arg(long, value_name = "N")]
    workers: Option<usize>,
    /// Load this population instead of booting one
    #[arg(long, value_name = "FILE", conflicts_with_all = ["live", "image", "count"])]
    load: Option<PathBuf>,
    /// Save the population here when it ends
    #[arg(long, value_name = "FILE", conflicts_with = "live")]
    save: Option<PathBuf>,
    #[command(flatten)]
    verbosity: Verbosity,
}

/// `shard`.
#[derive(Debug, Args)]
pub struct ShardArguments {
    #[arg(long)]
    image: PathBuf,
    #[arg(long)]
    first: u32,
    #[arg(long)]
    count: u32,
    #[arg(long)]
    workers: usize,
    #[arg(long)]
    socket: PathBuf,
    /// How processor time is shared with other shards
    #[arg(long, requires = "place")]
    share: Option<PathBuf>,
    /// This shard's index among them
    #[arg(long)]
    place: Option<u32>,
}

/// Runs a command. `words` are the words before a subcommand on this command line: none for `vtax-mvm`, `["mvm"]` for
/// `vtax mvm`.
///
/// # Errors
/// When the command fails.
pub fn execute(command: MvmCommand, words: &[&str]) -> Result<()> {
    match command {
        MvmCommand::Build(arguments) => build(&arguments),
        MvmCommand::Run(arguments) => run(&arguments, words),
        MvmCommand::Shard(arguments) => shard(&arguments),
    }
}

fn build(arguments: &BuildArguments) -> Result<()> {
    let image = Image::open(&arguments.image)?;
    let extension = match arguments.format {
        DiskFormat::Sector => "img",
        DiskFormat::Raw => "raw",
        DiskFormat::Qcow2 => "qcow2",
    };
    let output = arguments.output.clone().unwrap_or_else(|| {
        let name = PathBuf::from(&arguments.image);
        PathBuf::from(name.file_stem().unwrap_or_default()).with_extension(extension)
    });
    write_disk(&image, arguments.format, &output)?;
    writeln!(
        terminal::stdout(),
        "{}: 512-byte boot sector of {}",
        output.display(),
        image.name()
    )
    .map_err(Error::file("write", Path::new("standard output")))
}

/// Prints a line. Failures are ignored, so that guests do not end when the reader of the output does.
macro_rules! say {
    ($($words:tt)*) => {{
        let _ = writeln!(terminal::stdout(), $($words)*);
    }};
}

/// Set by SIGINT and SIGTERM.
static ENDED: AtomicBool = AtomicBool::new(false);

extern "C" fn end(_signal: libc::c_int) {
    ENDED.store(true, Ordering::SeqCst);
}

fn catch_signals() {
    for signal in [libc::SIGINT, libc::SIGTERM] {
        // SAFETY: the handler only stores to an atomic, which is async-signal-safe.
        unsafe {
            libc::signal(
                signal,
                end as extern "C" fn(libc::c_int) as libc::sighandler_t,
            )
        };
    }
}

fn until_ended(mut look: impl FnMut() -> bool) {
    while !ENDED.load(Ordering::SeqCst) && look() {
        std::thread::sleep(Duration::from_millis(50));
    }
}

fn run(arguments: &RunArguments, words: &[&str]) -> Result<()> {
    arguments.verbosity.start_log();
    catch_signals();
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let workers = arguments.workers.unwrap_or(cores);
    if arguments.accel == Accel::Tcg {
        let image = Image::open(&arguments.image)?;
        let qemus = Qemus::start(&image, arguments.count, Accelerator::Tcg)?;
        let what = format!("{} emulated guests", arguments.count);
        return serve(arguments.http, Arc::new(qemus.route()), &what);
    }
    if arguments.live {
        let capacity = Capacity::of_this_process();
        let in_one = match arguments.socket {
            // One socket leads to one process.
            Some(_) => capacity.guests,
            None => capacity.guests.min(GUESTS_PER_PROCESS),
        };
        if arguments.count > in_one {
            return run_shards(arguments, words, capacity);
        }
    }
    let started = Instant::now();
    return_large_allocations();
    let population = Arc::new(match &arguments.load {
        Some(path) => Population::load(path)?,
        None => Population::new(Plan {
            image: Image::open(&arguments.image)?,
            first: 0,
            count: arguments.count,
            holding: if arguments.live {
                Holding::Live
            } else {
                Holding::Parked
            },
        })?,
    });
    let addresses = Addresses {
        http: Some(arguments.http),
        unix: arguments.socket.clone(),
    };
    let listeners = Listeners::open(&addresses)?;
    jail::enter(arguments.save.as_deref(), arguments.socket.as_deref())?;
    let running = Workers::serve(Arc::clone(&population), workers, listeners)?;
    let count = population.plan().count;
    until_ended(|| population.census().booted < count && !running.stopped());
    let state = if arguments.live {
        "live"
    } else {
        "parked when halted"
    };
    say!(
        "{count} guests, {state}, on {} after {:.1} s",
        Host::backend(),
        started.elapsed().as_secs_f64()
    );
    if let Some(address) = running.http() {
        say!("http://{address}/vm/N/path, http://{address}/status");
    }
    if let Some(socket) = &arguments.socket {
        say!("{}: CONNECT N", socket.display());
    }
    until_ended(|| !running.stopped());
    if let (Some(path), false) = (&arguments.save, running.stopped()) {
        population.save(path)?;
        say!("saved to {}", path.display());
    }
    running.stop()
}

fn run_shards(arguments: &RunArguments, words: &[&str], capacity: Capacity) -> Result<()> {
    if capacity.guests == 0 {
        let problem = format!("{} leave room for none", capacity.limit);
        let asked = format!("{} live guests", arguments.count);
        return Err(Error::configuration(asked, problem));
    }
    if arguments.socket.is_some() {
        let asked = "one UNIX socket for several shards";
        return Err(Error::configuration(
            asked,
            "use HTTP, or fewer live guests",
        ));
    }
    let size = GUESTS_PER_PROCESS.min(capacity.guests);
    let count = arguments.count.div_ceil(size);
    if size < GUESTS_PER_PROCESS {
        say!(
            "{count} processes: {} allow {size} live guests each",
            capacity.limit
        );
    } else {
        say!("{count} processes of {size} live guests: more in one would slow each other");
    }
    let started = Instant::now();
    let words = words.iter().chain(&["shard"]);
    let words: Vec<String> = words.map(|word| (*word).to_owned()).collect();
    let command = ShardCommand::of_this_program(&words)?;
    let mut shards = Shards::new(command, &Image::open(&arguments.image)?, size)?;
    shards.grow(arguments.count, || !ENDED.load(Ordering::SeqCst), |_| ())?;
    if ENDED.load(Ordering::SeqCst) {
        return Ok(());
    }
    let what = format!(
        "{} guests, live, on {} after {:.1} s",
        arguments.count,
        Host::backend(),
        started.elapsed().as_secs_f64()
    );
    serve(arguments.http, Arc::new(shards.route()), &what)
}

fn serve(address: SocketAddr, route: Arc<dyn Route>, what: &str) -> Result<()> {
    let router = Router::start(address, route)?;
    say!(
        "{what}\nhttp://{}/vm/N/path, http://{0}/status",
        router.address()
    );
    until_ended(|| true);
    Ok(())
}

/// The least processor time of a live guest's boot on any known machine.
const FASTEST_BOOT: Duration = Duration::from_micros(100);

fn shard(arguments: &ShardArguments) -> Result<()> {
    Verbosity::default().start_log();
    // If the parent ends before this call, standard input closes.
    rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL)).map_err(
        |cause| Error::System {
            tried: "end with the parent".into(),
            cause: cause.into(),
        },
    )?;
    let image = Image::open(&arguments.image.to_string_lossy())?;
    let plan = Plan {
        image,
        first: arguments.first,
        count: arguments.count,
        holding: Holding::Live,
    };
    let population = Arc::new(Population::new(plan)?);
    if let (Some(share), Some(place)) = (&arguments.share, arguments.place) {
        population.join(Share::join(share, place)?);
    }
    let addresses = Addresses {
        http: None,
        unix: Some(arguments.socket.clone()),
    };
    let listeners = Listeners::open(&addresses)?;
    jail::enter(None, Some(&arguments.socket))?;
    let workers = Workers::serve(Arc::clone(&population), arguments.workers, listeners)?;
    loop {
        let missing = arguments.count.saturating_sub(population.census().booted);
        if missing == 0 {
            break;
        }
        if workers.stopped() {
            return workers.stop();
        }
        // No guest boots faster, and more frequent checks would take processor time from boots.
        std::thread::sleep(FASTEST_BOOT * missing);
    }
    say!("ready");
    let _ = terminal::stdout().flush();
    // The parent holds the other end: the shard ends with the parent.
    let _ = std::io::stdin().read(&mut [0]);
    workers.stop()
}
