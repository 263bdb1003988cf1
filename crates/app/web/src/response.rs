// SPDX-License-Identifier: Apache-2.0
//! Builds responses: JSON documents, and results of work that reads files.

use crate::error::RequestError;
use axum::body::Bytes;
use axum::extract::{FromRequestParts, Query};
use axum::http::request::Parts;
use axum::http::{HeaderMap, header};
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use futures_util::{Stream, StreamExt};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::convert::Infallible;
use std::time::Duration;
use tokio::sync::Semaphore;

/// The time between two keep-alive messages on a connection without updates.
const KEEP_ALIVE: Duration = Duration::from_secs(15);

/// The fields of a request's query.
#[derive(Debug)]
pub struct Params<T>(pub T);

impl<T: DeserializeOwned, S: Send + Sync> FromRequestParts<S> for Params<T> {
    type Rejection = RequestError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, RequestError> {
        let Query(fields) = Query::from_request_parts(parts, state).await?;
        Ok(Self(fields))
    }
}

/// The result of a handler.
pub type Answer = Result<Response, RequestError>;

/// A response of JSON text.
pub fn json(text: String) -> Response {
    ([(header::CONTENT_TYPE, "application/json")], text).into_response()
}

/// A response with the page of a report, which the browser isolates from this server.
pub fn report(page: String) -> Response {
    let headers = [
        (header::CONTENT_TYPE, "text/html; charset=utf-8"),
        (header::CONTENT_SECURITY_POLICY, crate::access::REPORT),
    ];
    (headers, page).into_response()
}

/// A response that goes on: each text is an update of the page.
pub fn updates(texts: impl Stream<Item = String> + Send + 'static) -> Response {
    let events = texts.map(|text| Ok::<_, Infallible>(Event::default().data(text)));
    let alive = KeepAlive::new().interval(KEEP_ALIVE);
    Sse::new(events).keep_alive(alive).into_response()
}

/// Runs work that reads files, on a blocking thread.
///
/// # Errors
/// When the work fails or panics.
pub async fn read<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, RequestError> + Send + 'static,
) -> Result<T, RequestError> {
    let done = tokio::task::spawn_blocking(work).await;
    done.unwrap_or(Err(RequestError::Defect))
}

/// As [`read`]; the result becomes a JSON document.
pub async fn document<T: Serialize + 'static>(
    work: impl FnOnce() -> Result<T, RequestError> + Send + 'static,
) -> Answer {
    read(move || Ok(serde_json::to_string(&work()?)?))
        .await
        .map(json)
}

/// The limit of concurrent calls of [`analyse`]. More calls wait, so that clients cannot occupy all of the host's
/// processors.
const MAX_ANALYSES: usize = 4;

static ANALYSES: Semaphore = Semaphore::const_new(MAX_ANALYSES);

/// As [`read`], for work that may take seconds: analyses, checks of plans. Queued work is dropped when its client
/// disconnects.
///
/// # Errors
/// As [`read`].
pub async fn analyse<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, RequestError> + Send + 'static,
) -> Result<T, RequestError> {
    in_turn(&ANALYSES, work).await
}

/// As [`analyse`]; the result becomes a JSON document.
pub async fn analysis<T: Serialize + 'static>(
    work: impl FnOnce() -> Result<T, RequestError> + Send + 'static,
) -> Answer {
    analyse(move || Ok(serde_json::to_string(&work()?)?))
        .await
        .map(json)
}

async fn in_turn<T: Send + 'static>(
    turns: &'static Semaphore,
    work: impl FnOnce() -> Result<T, RequestError> + Send + 'static,
) -> Result<T, RequestError> {
    // The semaphore is never closed.
    let turn = turns.acquire().await.ok();
    read(move || {
        // The permit is held until the work is done, whether or not the client still waits.
        let _turn = turn;
        work()
    })
    .await
}

/// Runs work that changes state.
pub async fn change<E: Into<RequestError>>(
    work: impl FnOnce() -> Result<(), E> + Send + 'static,
) -> Answer {
    document(move || {
        work().map_err(Into::into)?;
        Ok(serde_json::json!({}))
    })
    .await
}

/// The JSON of a request. Its media type must be `application/json`, which no form of another site can set.
///
/// # Errors
/// When the media type is another one, or the JSON is not a `T`.
pub fn posted<T: DeserializeOwned>(headers: &HeaderMap, body: &Bytes) -> Result<T, RequestError> {
    let kind = headers.get(header::CONTENT_TYPE);
    if kind.is_none_or(|kind| !kind.as_bytes().starts_with(b"application/json")) {
        return Err(RequestError::ContentType);
    }
    serde_json::from_slice(body).map_err(RequestError::Body)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::Future;
    use std::pin::pin;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::{Arc, mpsc};
    use std::task::{Context, Waker};

    static TURNS: Semaphore = Semaphore::const_new(1);

    #[test]
    fn work_waits_for_its_turn_and_is_dropped_when_its_client_leaves() {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .build()
            .unwrap();
        let _inside = runtime.enter();
        let done = Arc::new(AtomicUsize::new(0));
        let count = || {
            let done = Arc::clone(&done);
            move || Ok::<_, RequestError>(done.fetch_add(1, Ordering::SeqCst))
        };
        let (go, wait) = mpsc::channel::<()>();
        let first = count();
        let mut first = pin!(in_turn(&TURNS, move || {
            let _ = wait.recv();
            first()
        }));
        let mut context = Context::from_waker(Waker::noop());
        assert!(first.as_mut().poll(&mut context).is_pending());
        let mut second = pin!(in_turn(&TURNS, count()));
        assert!(second.as_mut().poll(&mut context).is_pending());
        {
            let mut leaves = pin!(in_turn(&TURNS, count()));
            assert!(leaves.as_mut().poll(&mut context).is_pending());
        }
        assert_eq!(done.load(Ordering::SeqCst), 0, "one has the only turn");
        go.send(()).unwrap();
        assert!(matches!(runtime.block_on(first), Ok(0)));
        assert!(matches!(runtime.block_on(second), Ok(1)));
        drop(runtime);
        assert_eq!(done.load(Ordering::SeqCst), 2);
    }
}
