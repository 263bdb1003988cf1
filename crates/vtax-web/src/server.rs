//! The server: a thread of its own with one task a connection, and what it answers.
//!
//! Only GET changes nothing, and only GET is there.

use crate::access::{self, refusal};
use crate::assets;
use crate::connections::Bounded;
use crate::history::Span;
use crate::live::{Live, Look};
use crate::results::Results;
use crate::runs::Runs;
use axum::Router;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State};
use axum::http::{StatusCode, Uri, header};
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use futures_util::stream;
use serde::Deserialize;
use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use vtax_observe::charge::Stage;
use vtax_report::results::Stage as Shown;

/// Connections at the same time; more wait. A page that is looked at holds one.
const CONNECTIONS: usize = 256;

/// Between two looks at a run's directory.
const LOOK: Duration = Duration::from_secs(1);

/// Why the page cannot be served.
#[derive(Debug, thiserror::Error)]
pub enum WebError {
    /// Other hosts could reach it.
    #[error(
        "cannot serve the page on {0}: other hosts would reach it, unencrypted and without a password; give a loopback address such as 127.0.0.1:19191, and forward it from elsewhere: ssh -L 19191:127.0.0.1:19191 THIS-HOST"
    )]
    LeavesTheHost(SocketAddr),
    /// The kernel refused.
    #[error("cannot serve the page on {address}: {cause}{}", remedy(.cause))]
    Listen {
        /// Where.
        address: SocketAddr,
        /// Why.
        cause: io::Error,
    },
    /// The host cannot be read at all.
    #[error(transparent)]
    Observe(#[from] vtax_observe::ObserveError),
}

fn remedy(cause: &io::Error) -> &'static str {
    match cause.kind() {
        io::ErrorKind::AddrInUse => {
            "; another program has it, perhaps a page that is open already: give another port with --listen"
        }
        io::ErrorKind::PermissionDenied => "; ports below 1024 need root: give another one",
        io::ErrorKind::AddrNotAvailable => "; no interface of this host has that address",
        _ => "",
    }
}

/// What is served.
#[derive(Debug, Clone)]
pub struct Site {
    live: Arc<Live>,
    results: Arc<Results>,
    runs: Arc<Runs>,
}

impl Site {
    /// The live host, and the results below a directory.
    pub fn new(live: Arc<Live>, results: &Path) -> Self {
        Self {
            live,
            results: Arc::new(Results::below(results)),
            runs: Arc::default(),
        }
    }
}

/// A running server; it ends when dropped.
#[derive(Debug)]
pub struct Server {
    address: SocketAddr,
    end: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    /// Serves a site on a loopback address; port 0 is any free one.
    ///
    /// # Errors
    /// When the address is no loopback one, or cannot be listened on.
    pub fn start(site: Site, listen: SocketAddr) -> Result<Self, WebError> {
        if !listen.ip().is_loopback() {
            return Err(WebError::LeavesTheHost(listen));
        }
        let failed = |cause| WebError::Listen {
            address: listen,
            cause,
        };
        let listener = std::net::TcpListener::bind(listen).map_err(failed)?;
        listener.set_nonblocking(true).map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(failed)?;
        let listener = {
            let _inside = runtime.enter();
            TcpListener::from_std(listener).map_err(failed)?
        };
        let listener = Bounded::new(listener, CONNECTIONS);
        let (end, ended) = oneshot::channel::<()>();
        let thread = std::thread::Builder::new()
            .name("web".to_owned())
            .spawn(move || {
                runtime.block_on(async {
                    let serving = axum::serve(listener, router(site)).into_future();
                    tokio::spawn(serving);
                    // Ends when the server is dropped, and every connection with it.
                    let _ = ended.await;
                });
                runtime.shutdown_background();
            })
            .map_err(failed)?;
        Ok(Self {
            address,
            end: Some(end),
            thread: Some(thread),
        })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.end.take());
        if let Some(thread) = self.thread.take() {
            // A thread that panicked has ended too.
            let _ = thread.join();
        }
    }
}

fn router(site: Site) -> Router {
    let mut router = Router::new()
        .route("/api/about", get(about))
        .route("/api/live", get(live))
        .route("/api/history", get(history))
        .route("/api/history.csv", get(history_csv))
        .route("/api/results", get(results))
        .route("/api/compare", get(compare))
        .route("/api/run", get(run))
        .route("/report", get(report));
    for path in assets::paths() {
        router = router.route(path, get(asset));
    }
    router
        .fallback(|| async { refusal(StatusCode::NOT_FOUND, "there is no such page") })
        .layer(axum::middleware::from_fn(access::guard))
        .with_state(site)
}

async fn asset(uri: Uri) -> Response {
    assets::file(uri.path())
        .unwrap_or_else(|| refusal(StatusCode::NOT_FOUND, "there is no such file"))
}

/// What does not change: the version, and how stages look, as in every report.
async fn about() -> Response {
    let stages: Vec<serde_json::Value> = Stage::ALL
        .into_iter()
        .map(|stage| looks(stage.name(), stage.name()))
        .chain([
            looks("host", Shown::Rest.name()),
            looks("unattributed", Shown::Observer.name()),
        ])
        .collect();
    json(serde_json::json!({
        "version": env!("CARGO_PKG_VERSION"),
        "stages": stages,
    }))
}

fn looks(name: &str, like: &str) -> serde_json::Value {
    let shown = Shown::ALL.into_iter().find(|one| one.name() == like);
    let color = shown.unwrap_or(Shown::Rest).color();
    serde_json::json!({ "name": name, "color": color })
}

fn json(value: serde_json::Value) -> Response {
    text("application/json", value.to_string())
}

fn text(kind: &'static str, body: String) -> Response {
    ([(header::CONTENT_TYPE, kind)], body).into_response()
}

fn wrong(rejection: &QueryRejection) -> Response {
    refusal(StatusCode::BAD_REQUEST, &rejection.body_text())
}

/// An update now and whenever there is a new one. A watcher that reads slowly misses updates, and keeps
/// nobody else waiting.
async fn live(State(site): State<Site>, look: Result<Query<Look>, QueryRejection>) -> Response {
    let look = match look {
        Ok(Query(look)) => look,
        Err(rejection) => return wrong(&rejection),
    };
    let mut watch = site.live.watch();
    watch.mark_changed();
    let updates = stream::unfold((site, look, watch), |(site, look, mut watch)| async move {
        loop {
            // Ends with the host's watching.
            watch.changed().await.ok()?;
            if let Some(text) = site.live.update(&look) {
                let event = Event::default().data(text);
                return Some((Ok::<_, Infallible>(event), (site, look, watch)));
            }
        }
    });
    let alive = KeepAlive::new().interval(Duration::from_secs(15));
    Sse::new(updates).keep_alive(alive).into_response()
}

/// Of what, and how far back.
#[derive(Debug, Deserialize)]
struct Past {
    span: Span,
    guest: Option<u32>,
    /// The first and last moment, in seconds since 1970.
    from: Option<f64>,
    to: Option<f64>,
}

const FORGOTTEN: &str = "nothing is kept of that guest";

async fn history(State(site): State<Site>, past: Result<Query<Past>, QueryRejection>) -> Response {
    match past {
        Ok(Query(past)) => match site.live.history(past.guest, past.span) {
            Some(document) => text("application/json", document),
            None => refusal(StatusCode::NOT_FOUND, FORGOTTEN),
        },
        Err(rejection) => wrong(&rejection),
    }
}

async fn history_csv(
    State(site): State<Site>,
    past: Result<Query<Past>, QueryRejection>,
) -> Response {
    let past = match past {
        Ok(Query(past)) => past,
        Err(rejection) => return wrong(&rejection),
    };
    let within = (past.from.unwrap_or(f64::MIN), past.to.unwrap_or(f64::MAX));
    let Some(table) = site.live.csv(past.guest, past.span, within) else {
        return refusal(StatusCode::NOT_FOUND, FORGOTTEN);
    };
    // Names are anybody's; a number is harmless in a file's name.
    let whose = match past.guest {
        Some(number) => format!("guest-{number}"),
        None => "host".to_owned(),
    };
    let headers = [
        (header::CONTENT_TYPE, "text/csv; charset=utf-8".to_owned()),
        (
            header::CONTENT_DISPOSITION,
            format!("attachment; filename=\"vtax-{whose}.csv\""),
        ),
    ];
    (headers, table).into_response()
}

/// What reads files does so on a thread of its own. Its errors are words for the reader.
async fn read<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, String> + Send + 'static,
) -> Result<T, Response> {
    match tokio::task::spawn_blocking(work).await {
        Ok(Ok(value)) => Ok(value),
        Ok(Err(why)) => Err(refusal(StatusCode::NOT_FOUND, &why)),
        Err(_) => Err(refusal(
            StatusCode::INTERNAL_SERVER_ERROR,
            "vtax failed to read this: a defect",
        )),
    }
}

fn document<T: serde::Serialize>(value: &T) -> Result<String, String> {
    serde_json::to_string(value).map_err(|cause| cause.to_string())
}

fn answer(outcome: Result<String, Response>) -> Response {
    outcome.map_or_else(|refused| refused, |body| text("application/json", body))
}

async fn results(State(site): State<Site>) -> Response {
    answer(read(move || document(&site.results.list())).await)
}

/// `dir` as often as there are runs; `all` for every metric.
async fn compare(
    State(site): State<Site>,
    query: Result<Query<Vec<(String, String)>>, QueryRejection>,
) -> Response {
    let pairs = match query {
        Ok(Query(pairs)) => pairs,
        Err(rejection) => return wrong(&rejection),
    };
    let all = pairs.iter().any(|(name, _)| name == "all");
    let dirs = pairs.into_iter().filter(|(name, _)| name == "dir");
    let dirs: Vec<String> = dirs.map(|(_, dir)| dir).collect();
    answer(read(move || document(&site.results.compare(&dirs, all)?)).await)
}

/// A run, by its directory.
#[derive(Debug, Deserialize)]
struct Which {
    dir: String,
}

async fn report(State(site): State<Site>, which: Result<Query<Which>, QueryRejection>) -> Response {
    let Which { dir } = match which {
        Ok(Query(which)) => which,
        Err(rejection) => return wrong(&rejection),
    };
    match read(move || site.results.report(&dir)).await {
        Ok(page) => {
            let headers = [
                (header::CONTENT_TYPE, "text/html; charset=utf-8"),
                (header::CONTENT_SECURITY_POLICY, access::REPORT),
            ];
            (headers, page).into_response()
        }
        Err(refused) => refused,
    }
}

/// A run now and whenever its directory says something new.
async fn run(State(site): State<Site>, which: Result<Query<Which>, QueryRejection>) -> Response {
    let Which { dir } = match which {
        Ok(Query(which)) => which,
        Err(rejection) => return wrong(&rejection),
    };
    let progress = move |site: Site, dir: String| {
        read(move || document(&site.runs.progress(&site.results.open(&dir)?)))
    };
    // One that is not there is refused at once, in words.
    let first = match progress(site.clone(), dir.clone()).await {
        Ok(first) => first,
        Err(refused) => return refused,
    };
    let begin = (site, dir, Some(first), String::new());
    let updates = stream::unfold(begin, move |(site, dir, first, mut last)| async move {
        let mut next = first;
        loop {
            let now = match next.take() {
                Some(now) => now,
                None => {
                    tokio::time::sleep(LOOK).await;
                    // Ends when the directory went; the page asks again and is told.
                    progress(site.clone(), dir.clone()).await.ok()?
                }
            };
            if now != last {
                last.clone_from(&now);
                let event = Event::default().data(now);
                return Some((Ok::<_, Infallible>(event), (site, dir, None, last)));
            }
        }
    });
    let alive = KeepAlive::new().interval(Duration::from_secs(15));
    Sse::new(updates).keep_alive(alive).into_response()
}
