//! The server: a thread of its own with one task a connection, and who answers what.
//!
//! GET changes nothing.

use crate::access::{self, Access, Entered, refusal};
use crate::answers::posted;
use crate::assets;
use crate::connections;
use crate::listener::ListenerSettings;
use crate::privileges;
use crate::routes::{atlas, host, machines, results, runs};
use crate::site::Site;
use axum::Router;
use axum::body::Bytes;
use axum::extract::{DefaultBodyLimit, Extension, State};
use axum::http::{HeaderMap, StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use serde::Deserialize;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use vtax_report::results::Stage;

/// Of what is posted: a plan and a little.
const LONGEST_BODY: usize = 512 << 10;

/// Why the page cannot be served.
#[derive(Debug, thiserror::Error)]
pub enum WebError {
    /// Other hosts could reach it.
    #[error(
        "cannot serve the page on {0}: other hosts would reach it, {1}; give --certificate and --key, and --token or --watch-token, or a loopback address such as 127.0.0.1:19191, and forward it from elsewhere: ssh -L 19191:127.0.0.1:19191 THIS-HOST"
    )]
    LeavesTheHost(SocketAddr, &'static str),
    /// A file of the certificate or of a token is no good.
    #[error("{0}")]
    Listener(String),
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

/// A running server; it ends when dropped.
#[derive(Debug)]
pub struct Server {
    address: SocketAddr,
    gave_up: bool,
    end: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    /// Serves a site; port 0 is any free one.
    ///
    /// # Errors
    /// When the address cannot be listened on, or is no loopback one and not guarded.
    pub fn start(site: Site, settings: &ListenerSettings) -> Result<Self, WebError> {
        let listen = settings.listen;
        if let Some(why) = settings.unguarded() {
            return Err(WebError::LeavesTheHost(listen, why));
        }
        let failed = |cause| WebError::Listen {
            address: listen,
            cause,
        };
        let identity = settings.certificate.as_ref().map(|files| files.read());
        let identity = identity.transpose().map_err(WebError::Listener)?;
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
        let encrypted = identity.as_ref().map(|identity| identity.acceptor());
        let access = Access {
            operator: settings.operator.clone(),
            watcher: settings.watcher.clone(),
            closed: settings.is_closed(),
            identity,
            port: address.port(),
            longest: access::LONGEST,
        };
        let router = router(site, Arc::new(access));
        let patience = settings.patience;
        let (end, ended) = oneshot::channel::<()>();
        let (tell, told) = mpsc::channel();
        let thread = std::thread::Builder::new()
            .name("web".to_owned())
            .spawn(move || {
                let given_up = privileges::give_up();
                let is_safe = given_up.is_ok();
                // Who started this thread waits for it.
                let _ = tell.send(given_up);
                if !is_safe {
                    return;
                }
                runtime.block_on(async {
                    tokio::spawn(connections::serve(listener, encrypted, router, patience));
                    // Ends when the server is dropped, and every connection with it.
                    let _ = ended.await;
                });
                runtime.shutdown_background();
            })
            .map_err(failed)?;
        let given_up = told.recv().unwrap_or(Ok(false));
        Ok(Self {
            address,
            gave_up: given_up.map_err(failed)?,
            end: Some(end),
            thread: Some(thread),
        })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Whether it had rights that it does not need, and gave them up.
    pub fn gave_up(&self) -> bool {
        self.gave_up
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

fn router(site: Site, access: Arc<Access>) -> Router {
    let mut router = Router::new()
        .route("/api/about", get(about))
        .route("/api/enter", post(enter))
        .route("/api/live", get(host::live))
        .route("/api/history", get(host::history))
        .route("/api/history.csv", get(host::history_csv))
        .route("/api/atlas.html", get(atlas::page))
        .route("/api/results", get(results::list))
        .route("/api/compare", get(results::compare))
        .route("/api/compare.html", get(results::shared))
        .route("/api/curves", get(results::curves))
        .route("/api/notes", get(results::notes).post(results::note))
        .route("/api/run", get(runs::follow).post(runs::tell))
        .route("/api/runs", get(runs::started).post(runs::start))
        .route("/api/plans", get(runs::list))
        .route("/api/plan", get(runs::plan).post(runs::check))
        .route("/api/machines", get(machines::look).post(machines::budget))
        .route("/report", get(results::report));
    for path in assets::paths() {
        router = router.route(path, get(asset));
    }
    router
        .fallback(|| async { refusal(StatusCode::NOT_FOUND, "there is no such page") })
        .layer(DefaultBodyLimit::max(LONGEST_BODY))
        .layer(Extension(Arc::clone(&access)))
        .layer(axum::middleware::from_fn_with_state(access, access::guard))
        .with_state(site)
}

async fn asset(uri: Uri) -> Response {
    assets::file(uri.path())
        .unwrap_or_else(|| refusal(StatusCode::NOT_FOUND, "there is no such file"))
}

/// A token that is shown.
#[derive(Deserialize)]
struct Entry {
    token: String,
}

/// Takes a token, and gives the cookie and the key that stand for it.
async fn enter(
    Extension(access): Extension<Arc<Access>>,
    headers: HeaderMap,
    body: Bytes,
) -> Response {
    let shown: Entry = match posted(&headers, &body) {
        Ok(shown) => shown,
        Err(refused) => return *refused,
    };
    match access.enter(shown.token.trim()) {
        Some(Entered { role, cookie, key }) => (
            [
                (header::SET_COOKIE, cookie),
                (header::CONTENT_TYPE, "application/json".to_owned()),
            ],
            serde_json::json!({ "may": role.name(), "key": key }).to_string(),
        )
            .into_response(),
        // Not 401, which takes the page back to where one enters, and the message away.
        None => refusal(StatusCode::FORBIDDEN, "this is no token of this server"),
    }
}

/// The version, how stages look, as in every report, and what whoever asks may do.
async fn about(
    State(site): State<Site>,
    Extension(access): Extension<Arc<Access>>,
    headers: HeaderMap,
) -> Response {
    let stages: Vec<serde_json::Value> = Stage::CHARGED
        .into_iter()
        .map(|stage| looks(stage.name(), stage))
        .chain([
            looks("host", Stage::Rest),
            looks("unattributed", Stage::Observer),
        ])
        .collect();
    runs::about(access.role(&headers).name(), &site, &stages)
}

fn looks(name: &str, like: Stage) -> serde_json::Value {
    serde_json::json!({ "name": name, "color": like.color() })
}
