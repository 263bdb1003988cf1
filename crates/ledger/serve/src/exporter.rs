// SPDX-License-Identifier: Apache-2.0
//! `vtax exporter`: passes on this thread, scrapes on the server's, and one shared snapshot between them. A scrape
//! reads nothing of the host, so scrapers add no work. Each thread is sandboxed.

use crate::jail;
use crate::metrics::{self, Own};
use crate::outage::Outage;
use crate::push::{Message, PushError, PushOptions, Pusher};
use crate::roster::{Listing, Roster};
use crate::share::Shares;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tracing::{info, warn};
use vtax_charge::jail::{ReaderAccess, enter_reader};
use vtax_charge::{LedgerSnapshot, Problems, Watch};
use vtax_http::metrics::Format;
use vtax_http::unix::Users;
use vtax_http::{Address, Limits, ListenError, Listeners, Request, Response, Server, Token};
use vtax_jail::JailError;
use vtax_observe::ObserveError;

/// A scrape is one small request every few seconds from one or two clients.
const LIMITS: Limits = Limits {
    connections: 16,
    patience: Duration::from_secs(10),
    idle: None,
};

/// The options of `vtax exporter`.
#[derive(Debug, Clone)]
pub struct ExporterOptions {
    /// The addresses to listen on.
    pub listen: Vec<Address>,
    /// The token that clients send, except on UNIX sockets. Without it no other host may reach the exporter.
    pub token: Option<Token>,
    /// The time between passes.
    pub interval: Duration,
    /// Guests that may have series of their own.
    pub max_guests: usize,
    /// The directory of the sockets on which guests get their own share.
    pub share: Option<PathBuf>,
    /// The servers to push to.
    pub push: PushOptions,
}

/// The reason that the exporter failed.
#[derive(Debug, thiserror::Error)]
pub enum ExporterError {
    /// It cannot listen.
    #[error(transparent)]
    Listen(#[from] ListenError),
    /// It cannot read the host at all.
    #[error(transparent)]
    Observe(#[from] ObserveError),
    /// It cannot push.
    #[error(transparent)]
    Push(#[from] PushError),
    /// It cannot be sandboxed.
    #[error(transparent)]
    Jail(#[from] JailError),
}

/// The data of scrapes.
#[derive(Debug, Default)]
pub struct Shared(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    /// The last pass that succeeded.
    last: Option<Arc<Pass>>,
    /// The number of failed passes, and the error of the last pass, if it failed.
    failed: u64,
    failure: Option<String>,
}

#[derive(Debug)]
struct Pass {
    snapshot: LedgerSnapshot,
    listing: Listing,
    own: Own,
    taken: Instant,
    stale_after: Duration,
}

impl Shared {
    /// Serves `snapshot` from now on. It is stale `stale_after` from now.
    pub fn show(
        &self,
        snapshot: LedgerSnapshot,
        listing: Listing,
        own: Own,
        stale_after: Duration,
    ) {
        let pass = Pass {
            snapshot,
            listing,
            own,
            taken: Instant::now(),
            stale_after,
        };
        let mut state = self.lock();
        state.last = Some(Arc::new(pass));
        state.failure = None;
    }

    /// Counts a failed pass; the last snapshot is still served.
    pub fn fail(&self, why: &str) {
        let mut state = self.lock();
        state.failed += 1;
        state.failure = Some(why.to_owned());
    }

    fn failed(&self) -> u64 {
        self.lock().failed
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The answer to a request.
    pub fn answer(&self, request: &Request<'_>) -> Response {
        let state = self.lock();
        let (last, failed) = (state.last.clone(), state.failed);
        let failure = state.failure.clone();
        drop(state);
        let Some(pass) = last else {
            return Response::text(503, "the first pass is not over yet");
        };
        match request.path() {
            "/metrics" => {
                let format = Format::accepted(request.accept);
                let own = Own {
                    failed,
                    since_pass: pass.taken.elapsed(),
                    ..pass.own.clone()
                };
                let text = metrics::write(&pass.snapshot, &pass.listing, &own, format);
                Response {
                    status: 200,
                    content_type: format.content_type(),
                    body: text.into_bytes(),
                }
            }
            "/healthz" => {
                let age = pass.taken.elapsed();
                if let Some(why) = failure {
                    Response::text(503, &format!("the last pass failed: {why}"))
                } else if age > pass.stale_after {
                    let line = format!("the last pass ended {:.0} s ago", age.as_secs_f64());
                    Response::text(503, &line)
                } else {
                    Response::text(200, "ok")
                }
            }
            "/" => Response::text(
                200,
                "vtax exporter: /metrics has the metrics, /healthz the exporter's own state",
            ),
            _ => Response::text(404, "there are /metrics and /healthz"),
        }
    }

    /// Answers on all of `addresses` until the server is dropped.
    ///
    /// # Errors
    /// When any of them cannot be listened on, or the server cannot be sandboxed.
    pub fn serve(
        self: &Arc<Self>,
        addresses: &[Address],
        token: Option<Token>,
    ) -> Result<Server, ExporterError> {
        let shared = Arc::clone(self);
        let listeners = Listeners::bind_for(addresses, Users::ByUmask, token)?;
        let sockets: Vec<&Path> = addresses
            .iter()
            .filter_map(|address| match address {
                Address::Unix(path) => Some(path.as_path()),
                Address::Tcp(_) => None,
            })
            .collect();
        let answer = Arc::new(move |request: &Request<'_>| shared.answer(request));
        let server = jail::spawn_sandboxed(
            || jail::enter_server(&sockets),
            || listeners.serve(LIMITS, answer),
        )?;
        Ok(server?)
    }
}

/// Exports until `stop` is set. Its addresses and every new problem are logged. `serves` is called after each good
/// pass. The calling thread is sandboxed for good (`vtax_charge::jail`).
///
/// # Errors
/// When it cannot listen, or not read the host in its first pass. Later passes that fail are counted, and the last good
/// snapshot is still served: its age is a metric.
pub fn run(
    mut watch: Watch,
    options: &ExporterOptions,
    stop: &AtomicBool,
    mut serves: impl FnMut(),
) -> Result<(), ExporterError> {
    let shared = Arc::new(Shared::default());
    let server = shared.serve(&options.listen, options.token.clone())?;
    info!(
        "vtax {} reads this host every {} s",
        env!("CARGO_PKG_VERSION"),
        options.interval.as_secs_f64()
    );
    for address in server.addresses() {
        match address {
            Address::Tcp(_) => info!("metrics at {address}/metrics"),
            Address::Unix(_) => info!("metrics at {address}"),
        }
        if address.leaves_the_host() {
            warn!(
                "connections are not encrypted: every reader of the network's traffic reads the token and the metrics"
            );
        }
    }
    let mut pusher = (!options.push.to.is_empty())
        .then(|| Pusher::start(&options.push))
        .transpose()?;
    for state in pusher.iter().flat_map(Pusher::states) {
        let waiting = state.queue_samples;
        info!("pushes to {}; {waiting} samples of before wait", state.to);
    }
    let mut log = |problem: &str| warn!("{problem}");
    let mut shares = options.share.as_deref().map(Shares::new);
    let mut roster = Roster::new(options.max_guests);
    let mut own = Own {
        max_guests: options.max_guests,
        ..Own::default()
    };
    // A slow pass is no failure.
    let stale_after = options.interval * 3 + Duration::from_secs(5);
    let mut problems = Problems::default();
    let mut outage = Outage::default();
    for note in watch.notes() {
        warn!("{note}");
    }
    enter_reader(ReaderAccess {
        queues: pusher.is_some(),
        shares: shares.is_some(),
        ..ReaderAccess::default()
    })?;
    watch.run(options.interval, stop, |snapshot, took| match snapshot {
        Ok(snapshot) => {
            outage.succeed();
            own.passes += 1;
            own.pass_seconds = took.as_secs_f64();
            let unserved: Vec<String> = shares
                .iter_mut()
                .flat_map(|shares| shares.hand_out(&snapshot))
                .map(|error| error.to_string())
                .collect();
            problems.report_new(snapshot.problems.iter().chain(&unserved), &mut log);
            let listing = roster.update(&snapshot);
            own.resident_bytes = resident_bytes();
            own.failed = shared.failed();
            if let Some(pusher) = &mut pusher {
                own.pushes = pusher.states();
                pusher.push(&snapshot, &listing, &own);
                pusher.take_messages().iter().for_each(Message::log);
            }
            shared.show(snapshot, listing, own.clone(), stale_after);
            serves();
        }
        Err(error) => {
            let why = error.to_string();
            shared.fail(&why);
            outage.fail(&why);
        }
    })?;
    if let Some(pusher) = pusher {
        pusher.finish().iter().for_each(Message::log);
    }
    info!(
        "ends after {} passes, {} of them failed",
        own.passes + shared.failed(),
        shared.failed()
    );
    Ok(())
}

/// Returns the resident memory of this process in bytes, by the kernel's count of pages.
fn resident_bytes() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/self/statm").ok()?;
    let pages: u64 = text.split_ascii_whitespace().nth(1)?.parse().ok()?;
    let page = u64::try_from(rustix::param::page_size()).ok()?;
    Some(pages.saturating_mul(page))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::net::TcpStream;
    use vtax_charge::fake::Host;
    use vtax_http::Parsed;

    fn ask(shared: &Shared, path: &str) -> Response {
        let request = format!("GET {path} HTTP/1.1\r\n\r\n");
        match vtax_http::parse(request.as_bytes()) {
            Parsed::Request(request) => shared.answer(&request),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn nothing_is_shown_before_the_first_pass_and_health_says_when_passes_stall() {
        let shared = Shared::default();
        assert_eq!(ask(&shared, "/metrics").status, 503);
        let mut host = Host::default();
        host.start(1);
        let snapshot = host.pass(5);
        let listing = Roster::new(9).update(&snapshot);
        shared.show(
            snapshot.clone(),
            listing.clone(),
            Own {
                resident_bytes: resident_bytes(),
                ..Own::default()
            },
            Duration::from_secs(60),
        );
        assert_eq!(ask(&shared, "/healthz").status, 200);
        assert_eq!(ask(&shared, "/nothing").status, 404);
        let answer = ask(&shared, "/metrics");
        let text = String::from_utf8(answer.body).unwrap();
        assert!(
            answer.status == 200 && text.contains("guest=\"guest-1\""),
            "{text}"
        );
        assert!(
            text.contains("vtax_exporter_resident_memory_bytes "),
            "{text}"
        );
        shared.show(snapshot, listing, Own::default(), Duration::ZERO);
        std::thread::sleep(Duration::from_millis(2));
        assert_eq!(ask(&shared, "/healthz").status, 503);
    }

    #[test]
    fn a_pass_that_fails_is_counted_at_once_and_health_says_why() {
        let shared = Shared::default();
        let mut host = Host::default();
        let snapshot = host.pass(5);
        let listing = Roster::new(9).update(&snapshot);
        let show = || {
            let own = Own::default();
            shared.show(snapshot.clone(), listing.clone(), own, LONG);
        };
        let metric = |name: &str| -> f64 {
            let text = String::from_utf8(ask(&shared, "/metrics").body).unwrap();
            let value = text.lines().find_map(|line| line.strip_prefix(name));
            value.expect(name).trim().parse().unwrap()
        };
        show();
        assert_eq!(metric("vtax_exporter_failed_passes_total "), 0.0);
        for failed in [1.0, 2.0] {
            let before = metric("vtax_exporter_snapshot_age_seconds ");
            shared.fail("cannot read /proc/stat: Too many open files");
            assert_eq!(metric("vtax_exporter_failed_passes_total "), failed);
            std::thread::sleep(Duration::from_millis(2));
            assert!(metric("vtax_exporter_snapshot_age_seconds ") > before);
            let health = ask(&shared, "/healthz");
            let why = String::from_utf8(health.body).unwrap();
            assert!(
                health.status == 503 && why.contains("Too many open"),
                "{why}"
            );
        }
        show();
        assert_eq!(ask(&shared, "/healthz").status, 200);
        assert_eq!(metric("vtax_exporter_failed_passes_total "), 2.0);
    }

    const LONG: Duration = Duration::from_secs(3600);

    #[test]
    fn silent_clients_that_stay_keep_no_scrape_out() {
        let server = Arc::new(Shared::default())
            .serve(&["0".parse().unwrap()], None)
            .unwrap();
        let Some(Address::Tcp(address)) = server.addresses().first() else {
            panic!("no TCP address");
        };
        let silent: Vec<_> = (0..LIMITS.connections + 4)
            .map(|_| TcpStream::connect(address).unwrap())
            .collect();
        let mut client = TcpStream::connect(address).unwrap();
        client.write_all(b"GET /metrics HTTP/1.1\r\n\r\n").unwrap();
        client.set_read_timeout(Some(LIMITS.patience / 2)).unwrap();
        let mut answer = String::new();
        client.read_to_string(&mut answer).unwrap();
        assert!(answer.contains("the first pass"), "{answer}");
        drop(silent);
    }
}
