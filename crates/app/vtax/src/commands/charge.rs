// SPDX-License-Identifier: Apache-2.0
//! `vtax top`, `vtax charge`, `vtax cap`, `vtax exporter`, `vtax share`, `vtax web`: the costs of guests for their
//! host.

use crate::Outcome;
use crate::cli::{
    By, CapArgs, ChargeArgs, ChargeFormat, ExporterArgs, LedgerArgs, PushArgs, ServiceArgs,
    ShareArgs, TopArgs, WebArgs,
};
use crate::exit::NeedsRoot;
use crate::output::{outln, write_data};
use rustix::process::geteuid;
use std::error::Error;
use std::io::{self, Write};
use std::path::Path;
use vtax_cap::CapOptions;
use vtax_charge::Watch;
use vtax_charge::records::{self, RecordFormat, RecordOptions};
use vtax_charge::{Charger, ChargerOptions, IdleEnergy};
use vtax_core::{Watts, terminal};
use vtax_host::journal::Journal;
use vtax_host::lock::Lock;
use vtax_host::meters;
use vtax_host::signals::Signals;
use vtax_host::{HostError, Roots};
use vtax_inventory::{Service, ServiceError};
use vtax_lab::run::default_state_dir;
use vtax_log::Startup;
use vtax_serve::Token;
use vtax_serve::exporter::{self, ExporterOptions};
use vtax_serve::push::PushOptions;
use vtax_serve::share;
use vtax_serve::top::{self, Sort, TopOptions};
use vtax_web::{Certificate, Machines, Starter, WebOptions};

pub fn top(arguments: &TopArgs) -> Outcome {
    let stop = Signals::install()?.flag();
    let options = TopOptions {
        interval: arguments.interval,
        count: arguments.count,
        json: arguments.format.is_json(),
        sort: Sort {
            key: arguments.sort,
            reversed: false,
        },
    };
    let watch = watch_waits(&arguments.ledger, services(&arguments.services)?)?;
    Ok(top::run(watch, &options, &stop)?)
}

pub fn charge(arguments: &ChargeArgs) -> Outcome {
    let stop = Signals::install()?.flag();
    let options = RecordOptions {
        interval: arguments.interval,
        count: arguments.count,
        format: match arguments.format.format() {
            ChargeFormat::Csv => RecordFormat::Csv,
            ChargeFormat::Json => RecordFormat::Json,
        },
        by: match arguments.by {
            By::Guest => records::By::Guest,
            By::Pod => records::By::Pod,
        },
    };
    let mut out = io::BufWriter::new(terminal::data());
    Ok(records::run(
        watch(&arguments.ledger, Vec::new())?,
        &options,
        &stop,
        &mut out,
        &mut note,
    )?)
}

/// The directory of the journal of `vtax cap` below the state directory. It is separate from the lab's journal, which a
/// run undoes when it starts.
pub const CAP: &str = "cap";

pub fn cap(arguments: &CapArgs) -> Outcome {
    if !arguments.dry_run {
        NeedsRoot::check("a cap sets limits of control groups")?;
    }
    let stop = Signals::install()?.flag();
    let options = CapOptions {
        interval: arguments.interval,
        count: arguments.count,
        guests: arguments.guest.iter().cloned().collect(),
        each: arguments.each,
        is_rehearsal: arguments.dry_run,
        json: arguments.format.is_json(),
    };
    let state = default_state_dir().join(CAP);
    let _lock = Lock::acquire(&state, "vtax cap")?;
    let mut journal = Journal::open(&state)?;
    let undone = journal.undo_all()?;
    let left = journal.take_left();
    if undone > left.len() {
        note(&format!(
            "restored {} limits that a `vtax cap` that was killed had changed",
            undone - left.len()
        ));
    }
    for left in left {
        note(&left.to_string());
    }
    let mut out: Box<dyn Write> = if options.json {
        Box::new(terminal::data())
    } else {
        Box::new(terminal::stdout())
    };
    let watch = watch(&arguments.ledger, Vec::new())?;
    Ok(vtax_cap::run(
        watch,
        &options,
        &mut journal,
        &stop,
        &mut out,
        &mut note,
    )?)
}

pub fn exporter(arguments: ExporterArgs) -> Outcome {
    arguments.verbosity.start_log();
    let mut startup = Startup::connect();
    let stop = Signals::install()?.flag();
    let options = ExporterOptions {
        listen: arguments.listen,
        token: arguments
            .token_file
            .as_deref()
            .map(Token::read)
            .transpose()?,
        interval: arguments.interval,
        max_guests: arguments.max_guests,
        share: arguments.share,
        push: push(arguments.push)?,
    };
    let watch = watch_waits(&arguments.ledger, Vec::new())?;
    Ok(exporter::run(watch, &options, &stop, || {
        startup.report_ready();
    })?)
}

fn push(arguments: PushArgs) -> Result<PushOptions, Box<dyn Error>> {
    let mut labels = arguments.push_label;
    let has =
        |labels: &[(String, String)], name: &str| labels.iter().any(|(given, _)| given == name);
    if !has(&labels, "job") {
        labels.push(("job".to_owned(), "vtax".to_owned()));
    }
    if !has(&labels, "instance") {
        let system = rustix::system::uname();
        let name = system.nodename().to_string_lossy().into_owned();
        labels.push(("instance".to_owned(), name));
    }
    let token = arguments.push_token_file.as_deref();
    Ok(PushOptions {
        to: arguments.push,
        token: token.map(Token::read).transpose()?,
        is_plain_allowed: arguments.push_plain,
        authorities: arguments.push_ca,
        labels,
        queue: arguments
            .queue
            .unwrap_or_else(|| default_state_dir().join("push")),
        queue_bytes: arguments.queue_mib << 20,
    })
}

pub fn share(arguments: &ShareArgs) -> Outcome {
    let port = arguments
        .port
        .clone()
        .unwrap_or_else(|| share::port(Path::new("/")));
    let shares = share::read(&port)?;
    for share in shares.take(arguments.count.unwrap_or(usize::MAX)) {
        let share = share?;
        if arguments.format.is_json() {
            write_data(&serde_json::to_string(&share)?)?;
        } else {
            outln!("{share}")?;
        }
    }
    Ok(())
}

pub fn web(arguments: &WebArgs) -> Outcome {
    arguments.verbosity.start_log();
    let mut startup = Startup::connect();
    let stop = Signals::install()?.flag();
    // One that is named must be there; without the usual one no plans are offered.
    if let Some(named) = &arguments.plans {
        std::fs::read_dir(named).map_err(HostError::file("read", named))?;
    }
    let options = WebOptions {
        listen: arguments.listen,
        results: arguments.results_root.clone(),
        plans: arguments.plans.clone().unwrap_or_else(|| "plans".into()),
        certificate: arguments
            .certificate
            .clone()
            .zip(arguments.key.clone())
            .map(|(chain, key)| Certificate { chain, key }),
        token: arguments.token_file.clone(),
        is_private: terminal::stderr().is_terminal(),
        watch_token: arguments.watch_token_file.clone(),
        watch_only: arguments.watch_only,
        machines: Machines {
            nics: arguments.nic.clone(),
            populations: arguments.mvm.clone(),
        },
        starter: Starter {
            program: std::env::current_exe()?,
            state: default_state_dir(),
        },
    };
    Ok(vtax_web::run(
        watch(&arguments.ledger, Vec::new())?,
        &options,
        &stop,
        &mut |line: &str| {
            note(line);
            startup.report_ready();
        },
    )?)
}

pub(super) fn note(line: &str) {
    crate::progress::note(&format!("vtax: {line}"));
}

/// The services that are named on a command line.
pub(super) fn services(arguments: &ServiceArgs) -> Result<Vec<Service>, Box<dyn Error>> {
    let (proc, user) = (Roots::host().proc, geteuid().as_raw());
    let mut services = Vec::new();
    for pid in &arguments.pid {
        let found = Service::find(&proc, *pid, user);
        if let Err(ServiceError::AnotherUsers { .. }) = found {
            NeedsRoot::check("a process of --pid is another user's")?;
        }
        services.push(found?);
    }
    Ok(services)
}

/// Opens the ledger for an output without waits for processors, which are not traced for it.
pub(super) fn watch(
    arguments: &LedgerArgs,
    services: Vec<Service>,
) -> Result<Watch, Box<dyn Error>> {
    watch_with(arguments, services, ChargerOptions::default())
}

/// Opens the ledger for an output that shows waits for processors.
fn watch_waits(arguments: &LedgerArgs, services: Vec<Service>) -> Result<Watch, Box<dyn Error>> {
    let options = ChargerOptions {
        traces_waits: true,
        ..ChargerOptions::default()
    };
    watch_with(arguments, services, options)
}

fn watch_with(
    arguments: &LedgerArgs,
    services: Vec<Service>,
    options: ChargerOptions,
) -> Result<Watch, Box<dyn Error>> {
    let opened = meters::open(&Roots::host())?;
    let charger = Charger::open(ChargerOptions {
        method: arguments.method,
        weights: arguments.weights.unwrap_or_default(),
        meters: opened.meters,
        notes: opened.unreadable,
        idle_energy: match arguments.idle_watts {
            Some(watts) => IdleEnergy::Fixed(Watts(watts)),
            None => IdleEnergy::Learned,
        },
        idle_rule: arguments.idle,
        services,
        ..options
    })?;
    Ok(Watch::new(charger))
}
