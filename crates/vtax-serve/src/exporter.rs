//! `vtax exporter`: passes on this thread, scrapes on the server's, and between them one shared
//! snapshot. A scrape reads nothing of the host, so no number of scrapers makes it work more. Each thread has no more
//! rights than it needs.

use crate::jail;
use crate::metrics::{self, Own};
use crate::push::{PushError, PushOptions, Pusher};
use crate::roster::{Listing, Roster};
use crate::said::Said;
use crate::share::Shares;
use crate::snapshot::{Snapshot, Watch};
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
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

/// How to export.
#[derive(Debug, Clone)]
pub struct ExporterOptions {
    /// Where to listen.
    pub listen: Vec<Address>,
    /// What clients must send, except on UNIX sockets. Without it no other host may reach it.
    pub token: Option<Token>,
    /// Between passes.
    pub interval: Duration,
    /// Guests that may have series of their own.
    pub most_guests: usize,
    /// Where the sockets are of the ports on which guests are told their own share.
    pub share: Option<PathBuf>,
    /// Who is told without asking.
    pub push: PushOptions,
}

/// Why it ended.
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
    /// It cannot give up what it does not need.
    #[error(transparent)]
    Jail(#[from] JailError),
}

/// What scrapes are answered from.
#[derive(Debug, Default)]
pub struct Shared(Mutex<Inside>);

#[derive(Debug, Default)]
struct Inside {
    /// The last pass that succeeded.
    shown: Option<Arc<Shown>>,
    /// Passes that failed, and why the last pass did, if it did.
    failed: u64,
    failure: Option<String>,
}

#[derive(Debug)]
struct Shown {
    snapshot: Snapshot,
    listing: Listing,
    own: Own,
    taken: Instant,
    stale_after: Duration,
}

impl Shared {
    /// Shows `snapshot` from now on. It is stale `stale_after` from now.
    pub fn show(&self, snapshot: Snapshot, listing: Listing, own: Own, stale_after: Duration) {
        let shown = Shown {
            snapshot,
            listing,
            own,
            taken: Instant::now(),
            stale_after,
        };
        let mut inside = self.lock();
        inside.shown = Some(Arc::new(shown));
        inside.failure = None;
    }

    /// A pass failed: what was shown stays, with the number of passes that failed.
    pub fn fail(&self, why: &str) {
        let mut inside = self.lock();
        inside.failed += 1;
        inside.failure = Some(why.to_owned());
    }

    fn failed(&self) -> u64 {
        self.lock().failed
    }

    fn lock(&self) -> MutexGuard<'_, Inside> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The answer to a request.
    pub fn answer(&self, request: &Request<'_>) -> Response {
        let inside = self.lock();
        let (shown, failed) = (inside.shown.clone(), inside.failed);
        let failure = inside.failure.clone();
        drop(inside);
        let Some(shown) = shown else {
            return Response::text(503, "the first pass is not over yet");
        };
        match request.path() {
            "/metrics" => {
                let format = Format::accepted(request.accept);
                let own = Own {
                    failed,
                    since_pass: shown.taken.elapsed(),
                    ..shown.own.clone()
                };
                let text = metrics::write(&shown.snapshot, &shown.listing, &own, format);
                Response {
                    status: 200,
                    content_type: format.content_type(),
                    body: text.into_bytes(),
                }
            }
            "/healthz" => {
                let age = shown.taken.elapsed();
                if let Some(why) = failure {
                    Response::text(503, &format!("the last pass failed: {why}"))
                } else if age > shown.stale_after {
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
    /// When any of them cannot be listened on, or who answers there not be shut in.
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
        let server = jail::within(
            || jail::of_answers(&sockets),
            || listeners.serve(LIMITS, answer),
        )?;
        Ok(server?)
    }
}

/// Exports until `stop` is set. `say` gets where it listens, and every new problem once. The thread that calls it
/// gives up for good what passes do not need ([`crate::jail`]).
///
/// # Errors
/// When it cannot listen, or not read the host in its first pass. Later passes that fail are
/// counted, and the last good snapshot stays shown: its age is a metric.
pub fn run(
    mut watch: Watch,
    options: &ExporterOptions,
    stop: &AtomicBool,
    say: &mut dyn FnMut(&str),
) -> Result<(), ExporterError> {
    let shared = Arc::new(Shared::default());
    let server = shared.serve(&options.listen, options.token.clone())?;
    for address in server.addresses() {
        match address {
            Address::Tcp(_) => say(&format!("metrics at {address}/metrics")),
            Address::Unix(_) => say(&format!("metrics at {address}")),
        }
        if address.leaves_the_host() {
            say(
                "there is no encryption: whoever can listen on the way reads the token and the metrics",
            );
        }
    }
    let mut pusher = (!options.push.to.is_empty())
        .then(|| Pusher::start(&options.push))
        .transpose()?;
    let mut shares = options.share.as_deref().map(Shares::new);
    let mut roster = Roster::new(options.most_guests);
    let mut own = Own {
        most_guests: options.most_guests,
        ..Own::default()
    };
    // A slow pass is not a stalled one.
    let stale_after = options.interval * 3 + Duration::from_secs(5);
    let mut said = Said::default();
    for note in watch.notes() {
        say(note);
    }
    jail::of_passes(pusher.is_some(), shares.is_some())?;
    watch.run(options.interval, stop, |snapshot, took| match snapshot {
        Ok(snapshot) => {
            own.passes += 1;
            own.pass_seconds = took.as_secs_f64();
            let untold = shares.as_mut().map(|shares| shares.hand_out(&snapshot));
            said.say_new(snapshot.problems.iter().chain(untold.iter().flatten()), say);
            let listing = roster.update(&snapshot);
            own.resident_bytes = resident_bytes();
            own.failed = shared.failed();
            if let Some(pusher) = &mut pusher {
                own.pushes = pusher.states();
                pusher.push(&snapshot, &listing, &own);
                pusher.said().iter().for_each(|line| say(line));
            }
            shared.show(snapshot, listing, own.clone(), stale_after);
        }
        Err(error) => {
            let why = error.to_string();
            shared.fail(&why);
            said.say_new([&why], say);
        }
    })?;
    if let Some(pusher) = pusher {
        pusher.finish().iter().for_each(|line| say(line));
    }
    Ok(())
}

/// Memory of this process, by the kernel's own count of pages.
fn resident_bytes() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/self/statm").ok()?;
    let pages: u64 = text.split_ascii_whitespace().nth(1)?.parse().ok()?;
    let page = u64::try_from(rustix::param::page_size()).ok()?;
    Some(pages.saturating_mul(page))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake::Host;
    use std::io::{Read, Write};
    use std::net::TcpStream;
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
