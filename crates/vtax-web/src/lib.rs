//! `vtax web`: the page that one keeps open. It shows what the command line can show, reads the same
//! structures, and starts runs as the command line does. See `docs/web.md`.
//!
//! One thread reads the host once a second, whoever watches ([`Watch::run`]); another serves
//! ([`Server`]); a third starts runs and tells them to end ([`Keeper`]). Between the first two is
//! [`Live`]. Results and runs are read from their directories when somebody looks.

#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

mod access;
mod analyses;
mod answers;
mod assets;
mod comparison;
mod connections;
mod curves;
mod density;
mod events;
mod history;
mod keeper;
mod lab;
mod listener;
mod live;
mod machines;
mod meters;
mod notes;
mod plans;
mod privileges;
mod process;
mod records;
mod results;
mod routes;
mod runs;
mod server;
mod share;
mod site;
mod testbed;
mod text;
mod tls;
mod token_file;
mod trials;

pub use keeper::{Keeper, Starter};
pub use listener::ListenerSettings;
pub use live::Live;
pub use machines::Machines;
pub use server::{Server, WebError};
pub use site::Site;
pub use tls::Certificate;
pub use vtax_http::Token;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;
use token_file::TokenFile;
use vtax_serve::Watch;

/// Between two readings of the host: what the history is made of.
const INTERVAL: Duration = Duration::from_secs(1);

/// What to serve, where, and to whom.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WebOptions {
    /// The address; off loopback it needs a certificate and a token.
    pub listen: SocketAddr,
    /// The results directories below this one are shown, and runs write theirs there.
    pub results: PathBuf,
    /// The plans below this directory can be run.
    pub plans: PathBuf,
    /// Encrypts.
    pub certificate: Option<Certificate>,
    /// The file of the operator's token; without it one is made.
    pub token: Option<PathBuf>,
    /// Whether only the user reads what is said: a token that is made may be part of it. It is in a file otherwise.
    pub is_private: bool,
    /// The file of the watchers' token.
    pub watch_token: Option<PathBuf>,
    /// Nobody changes anything.
    pub watch_only: bool,
    /// What has interfaces of its own.
    pub machines: Machines,
    /// What runs are started with.
    pub starter: Starter,
}

/// Serves the page until `stop` is set. `say` gets where it is.
///
/// # Errors
/// When it cannot listen there, a file of the certificate or of a token is no good, or the host cannot
/// be read at all.
pub fn run(
    mut watch: Watch,
    options: &WebOptions,
    stop: &AtomicBool,
    say: &mut dyn FnMut(&str),
) -> Result<(), WebError> {
    let live = Arc::new(Live::default());
    let keeper = Keeper::start(options.starter.clone());
    let keeper =
        keeper.map_err(|cause| WebError::Listener(format!("cannot start a thread: {cause}")))?;
    let state = &options.starter.state;
    let mut site = Site::new(Arc::clone(&live), &options.results, state)
        .with_machines(options.machines.clone())
        .with_keeper(state, keeper);
    let read =
        |path: &PathBuf| Token::read(path).map_err(|error| WebError::Listener(error.to_string()));
    let mut settings = ListenerSettings {
        certificate: options.certificate.clone(),
        watcher: options.watch_token.as_ref().map(read).transpose()?,
        ..ListenerSettings::open(options.listen)
    };
    let mut made = None;
    if !options.watch_only {
        settings.operator = options.token.as_ref().map(read).transpose()?;
        // Elsewhere a token must be one that its users were given.
        if settings.operator.is_none() && options.listen.ip().is_loopback() {
            let (token, text) = Token::random()
                .map_err(|cause| WebError::Listener(format!("cannot make a token: {cause}")))?;
            settings.operator = Some(token);
            made = Some(text);
        }
    }
    // Nobody else could start them.
    if settings.operator.is_some() {
        site = site.with_plans(&options.plans);
    }
    let server = Server::start(site, &settings)?;
    let scheme = if settings.certificate.is_some() {
        "https"
    } else {
        "http"
    };
    let address = server.address();
    // It goes with the page.
    let mut _kept = None;
    let key = match made {
        None => String::new(),
        Some(text) if options.is_private => format!("/#token={text}"),
        Some(text) => {
            let file = TokenFile::write(state, address.port(), &text)?;
            let told = format!("; the operator's token is in {}", file.path().display());
            _kept = Some(file);
            told
        }
    };
    say(&format!("the page is at {scheme}://{address}{key}"));
    if server.gave_up() {
        say(if options.watch_only {
            "it runs as root to read every guest; what answers the network has given up all rights but to read"
        } else {
            "it runs as root to read every guest and to start runs; what answers the network has given up all rights but to read"
        });
    }
    let notes = watch.notes().to_vec();
    watch.run(INTERVAL, stop, |snapshot, _| match snapshot {
        Ok(mut snapshot) => {
            // What does not work at all is a problem of every interval.
            snapshot.problems.extend(notes.iter().cloned());
            live.show(snapshot);
        }
        Err(error) => live.fail(&error.to_string()),
    })?;
    Ok(())
}
