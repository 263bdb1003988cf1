// SPDX-License-Identifier: Apache-2.0
//! The server: a thread of its own with one task for each connection, and the routes. GET changes no state.

use crate::access::{self, Access, Session};
use crate::app_state::AppState;
use crate::assets;
use crate::connections;
use crate::error::refusal;
use crate::error::{RequestError, WebError};
use crate::listener::ListenerSettings;
use crate::privileges;
use crate::refusals::Refusals;
use crate::response::{Answer, posted};
use crate::routes::{atlas, host, machines, results, runs};
use axum::Router;
use axum::body::Bytes;
use axum::extract::{DefaultBodyLimit, Extension, State};
use axum::http::{HeaderMap, StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use serde::Deserialize;
use std::net::SocketAddr;
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tracing::info;
use vtax_results::Stage;

/// The limit of a request's body: the largest plan and its other fields.
const MAX_BODY_BYTES: usize = 512 << 10;

/// A running server; it ends when dropped.
#[derive(Debug)]
pub struct Server {
    address: SocketAddr,
    dropped_capabilities: bool,
    end: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    /// Starts to serve; port 0 selects any free port.
    ///
    /// # Errors
    /// When the address cannot be listened on, or is not a loopback address and lacks encryption or a token.
    pub fn start(app: AppState, settings: &ListenerSettings) -> Result<Self, WebError> {
        let listen = settings.listen;
        if let Some(why) = settings.unguarded() {
            return Err(WebError::LeavesTheHost(listen, why));
        }
        let failed = |cause| WebError::Listen {
            address: listen,
            cause,
        };
        let identity = settings.certificate.as_ref().map(|files| files.read());
        let identity = identity.transpose()?;
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
            timeout: access::TIMEOUT,
            refusals: Refusals::default(),
        };
        let router = router(app, Arc::new(access));
        let idle_timeout = settings.idle_timeout;
        let (end, ended) = oneshot::channel::<()>();
        let (report, reported) = mpsc::channel();
        let thread = std::thread::Builder::new()
            .name("web".to_owned())
            .spawn(move || {
                let dropped = privileges::drop_capabilities();
                let is_safe = dropped.is_ok();
                // The thread that started this one waits for the report.
                let _ = report.send(dropped);
                if !is_safe {
                    return;
                }
                runtime.block_on(async {
                    tokio::spawn(connections::serve(
                        listener,
                        encrypted,
                        router,
                        idle_timeout,
                    ));
                    // When the server is dropped, this ends, and every connection with it.
                    let _ = ended.await;
                });
                runtime.shutdown_background();
            })
            .map_err(failed)?;
        let dropped = reported.recv().unwrap_or(Ok(false));
        Ok(Self {
            address,
            dropped_capabilities: dropped.map_err(failed)?,
            end: Some(end),
            thread: Some(thread),
        })
    }

    /// The address that it listens on.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Whether the server had capabilities that it does not need, and dropped them.
    pub fn dropped_capabilities(&self) -> bool {
        self.dropped_capabilities
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

fn router(app: AppState, access: Arc<Access>) -> Router {
    let mut router = Router::new()
        .route("/api/about", get(about))
        .route("/api/enter", post(enter))
        .route("/api/live", get(host::live))
        .route("/api/history", get(host::history))
        .route("/api/history.csv", get(host::history_csv))
        .route("/api/atlas.html", get(atlas::page))
        .route("/api/results", get(results::list))
        .route("/api/plan-history.html", get(results::plan_history))
        .route("/api/compare", get(results::compare))
        .route("/api/compare.html", get(results::shared))
        .route("/api/curves", get(results::curves))
        .route("/api/findings", get(results::numbers))
        .route("/api/notes", get(results::notes).post(results::note))
        .route("/api/run", get(runs::follow).post(runs::control))
        .route("/api/runs", get(runs::started).post(runs::start))
        .route("/api/plans", get(runs::list))
        .route("/api/plan", get(runs::plan).post(runs::check))
        .route("/api/plan/host", post(runs::check_host))
        .route("/api/machines", get(machines::list).post(machines::budget))
        .route("/report", get(results::report));
    for path in assets::paths() {
        router = router.route(path, get(asset));
    }
    router
        .fallback(|| async { RequestError::NoPage })
        .layer(DefaultBodyLimit::max(MAX_BODY_BYTES))
        .layer(Extension(Arc::clone(&access)))
        .layer(axum::middleware::from_fn_with_state(access, access::guard))
        .with_state(app)
}

async fn asset(uri: Uri) -> Answer {
    assets::file(uri.path()).ok_or(RequestError::NoPage)
}

/// A token to log in with.
#[derive(Deserialize)]
struct TokenEntry {
    token: String,
}

/// Takes a token, and returns the cookie and the key that are derived from it.
async fn enter(
    Extension(access): Extension<Arc<Access>>,
    headers: HeaderMap,
    body: Bytes,
) -> Answer {
    let entry: TokenEntry = posted(&headers, &body)?;
    let Some(Session { role, cookie, key }) = access.enter(entry.token.trim()) else {
        access
            .refusals
            .warn("a login is refused: its token is none of this server");
        // Not 401: the page would show its form again, without the message.
        let why = "this is no token of this server";
        return Ok(refusal(StatusCode::FORBIDDEN, why));
    };
    let role = role.name();
    info!("a client has logged in, and may {role}");
    let headers = [
        (header::SET_COOKIE, cookie),
        (header::CONTENT_TYPE, "application/json".to_owned()),
    ];
    let session = serde_json::json!({ "may": role, "key": key }).to_string();
    Ok((headers, session).into_response())
}

/// The version, the colours of stages as in every report, and the permissions of the client.
async fn about(
    State(app): State<AppState>,
    Extension(access): Extension<Arc<Access>>,
    headers: HeaderMap,
) -> Response {
    let stages: Vec<serde_json::Value> = Stage::CHARGED
        .into_iter()
        .map(|stage| stage_style(stage.name(), stage))
        .chain([
            stage_style("host", Stage::Rest),
            stage_style("unattributed", Stage::Observer),
        ])
        .collect();
    runs::about(access.role(&headers).name(), &app, &stages)
}

fn stage_style(name: &str, like: Stage) -> serde_json::Value {
    serde_json::json!({ "name": name, "color": like.color() })
}
