//! `vtax web`: the page that one keeps open. It shows what the command line can show, and reads the
//! same structures. See `docs/web.md`.
//!
//! One thread reads the host once a second, whoever watches ([`Watch::run`]); another serves
//! ([`Server`]). Between them is [`Live`]. Results and runs are read from their directories when somebody
//! looks.

mod access;
mod assets;
mod connections;
mod history;
mod live;
mod results;
mod runs;
mod server;
mod within;

pub use live::Live;
pub use server::{Server, Site, WebError};

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;
use vtax_serve::Watch;

/// Between two readings of the host: what the history is made of.
const INTERVAL: Duration = Duration::from_secs(1);

/// What to serve, and where.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WebOptions {
    /// A loopback address.
    pub listen: SocketAddr,
    /// The results directories below this one are shown.
    pub results: PathBuf,
}

/// Serves the page until `stop` is set. `say` gets where it is.
///
/// # Errors
/// When it cannot listen there, or not read the host at all.
pub fn run(
    mut watch: Watch,
    options: &WebOptions,
    stop: &AtomicBool,
    say: &mut dyn FnMut(&str),
) -> Result<(), WebError> {
    let live = Arc::new(Live::default());
    let site = Site::new(Arc::clone(&live), &options.results);
    let server = Server::start(site, options.listen)?;
    say(&format!("the page is at http://{}", server.address()));
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
