// SPDX-License-Identifier: Apache-2.0
//! `vtax web`: a page that shows the results of the command line from the same structures, and starts runs as the
//! command line does. See `docs/howto/web.md`.
//!
//! One thread reads the host once a second ([`Watch::run`]) into [`Live`]; another serves it ([`Server`]); a third
//! starts runs and sends requests to end to them ([`RunManager`]). Results and runs are read from their directories on
//! request.

#![cfg_attr(
    not(test),
    deny(clippy::disallowed_methods, clippy::print_stdout, clippy::print_stderr)
)]

mod access;
mod analyses;
mod app_state;
mod assets;
mod comparison;
mod connections;
mod curves;
mod density;
mod error;
mod events;
mod findings;
mod history;
mod host_check;
mod lab;
mod listener;
mod live;
mod machines;
mod meters;
mod notes;
mod plan_history;
mod plans;
mod privileges;
mod process;
mod records;
mod refusals;
mod response;
mod results;
mod routes;
mod run_manager;
mod run_name;
mod runs;
mod server;
mod share;
mod testbed;
mod text;
mod tls;
mod token_file;
mod trials;

pub use app_state::AppState;
pub use error::WebError;
pub use listener::ListenerSettings;
pub use live::Live;
pub use machines::Machines;
pub use run_manager::{RunManager, Starter};
pub use server::Server;
pub use tls::Certificate;
pub use vtax_http::Token;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;
use token_file::TokenFile;
use tracing::{info, warn};
use vtax_charge::{Problems, Watch};
use vtax_serve::Outage;

/// The time between two readings of the host.
const INTERVAL: Duration = Duration::from_secs(1);

/// The options of `vtax web`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WebOptions {
    /// The address; one that is not loopback needs a certificate and a token.
    pub listen: SocketAddr,
    /// The results directories below this one are shown, and runs write results there.
    pub results: PathBuf,
    /// The plans below this directory can be run.
    pub plans: PathBuf,
    /// Encrypts connections.
    pub certificate: Option<Certificate>,
    /// The file of the operator's token; without it a token is created.
    pub token: Option<PathBuf>,
    /// Whether only the user reads standard error: a new token is printed there, and written to a file otherwise.
    pub is_private: bool,
    /// The file of the watchers' token.
    pub watch_token: Option<PathBuf>,
    /// Whether every client is denied changes.
    pub watch_only: bool,
    /// NICs and populations of micro VMs to show.
    pub machines: Machines,
    /// How runs are started.
    pub starter: Starter,
}

/// Serves the page until `stop` is set. `print` receives its address.
///
/// # Errors
/// When the address cannot be listened on, a file of the certificate or of a token cannot be used, or the host cannot
/// be read at all.
pub fn run(
    mut watch: Watch,
    options: &WebOptions,
    stop: &AtomicBool,
    print: &mut dyn FnMut(&str),
) -> Result<(), WebError> {
    let live = Arc::new(Live::default());
    let run_manager = RunManager::start(options.starter.clone()).map_err(WebError::Thread)?;
    let state = &options.starter.state;
    let mut app = AppState::new(Arc::clone(&live), &options.results, state)
        .with_machines(options.machines.clone())
        .with_run_manager(state, run_manager);
    let read = |path: &PathBuf| Token::read(path);
    let mut settings = ListenerSettings {
        certificate: options.certificate.clone(),
        watcher: options.watch_token.as_ref().map(read).transpose()?,
        ..ListenerSettings::open(options.listen)
    };
    let mut new_token = None;
    if !options.watch_only {
        settings.operator = options.token.as_ref().map(read).transpose()?;
        // On other addresses a token is not created: the users must already have one.
        if settings.operator.is_none() && options.listen.ip().is_loopback() {
            let (token, text) = Token::random().map_err(WebError::RandomToken)?;
            settings.operator = Some(token);
            new_token = Some(text);
        }
    }
    // Only the operator may start runs.
    if settings.operator.is_some() {
        app = app.with_plans(&options.plans);
    }
    let server = Server::start(app, &settings)?;
    let scheme = if settings.certificate.is_some() {
        "https"
    } else {
        "http"
    };
    let address = server.address();
    // The file is removed when this function returns.
    let mut _token_file = None;
    let key = match new_token {
        None => String::new(),
        Some(text) if options.is_private => format!("/#token={text}"),
        Some(text) => {
            let file = TokenFile::write(state, address.port(), &text)?;
            let note = format!("; the operator's token is in {}", file.path().display());
            _token_file = Some(file);
            note
        }
    };
    print(&format!("the page is at {scheme}://{address}{key}"));
    if server.dropped_capabilities() {
        info!("the thread that answers the network has dropped all capabilities but to read files");
    }
    info!(
        "vtax {} serves the page; runs {} be started from it",
        env!("CARGO_PKG_VERSION"),
        if settings.operator.is_some() {
            "can"
        } else {
            "cannot"
        }
    );
    let (mut outage, mut problems) = (Outage::default(), Problems::default());
    let notes = watch.notes().to_vec();
    watch.run(INTERVAL, stop, |snapshot, _| match snapshot {
        Ok(mut snapshot) => {
            // A source that cannot be read at all is a problem of every interval.
            snapshot.problems.extend(notes.iter().cloned());
            outage.succeed();
            problems.report_new(&snapshot.problems, &mut |problem| warn!("{problem}"));
            live.show(snapshot);
        }
        Err(error) => {
            let why = error.to_string();
            outage.fail(&why);
            live.fail(&why);
        }
    })?;
    info!("the page ends; the runs that it started go on");
    Ok(())
}
