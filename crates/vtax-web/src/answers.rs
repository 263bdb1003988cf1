//! How answers are made: documents, errors in words, and work that reads files.

use crate::access::refusal;
use axum::body::Bytes;
use axum::extract::rejection::QueryRejection;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::de::DeserializeOwned;
use tokio::sync::Semaphore;

/// JSON.
pub fn json(value: &serde_json::Value) -> Response {
    text("application/json", value.to_string())
}

/// Text of a kind.
pub fn text(kind: &'static str, body: String) -> Response {
    ([(header::CONTENT_TYPE, kind)], body).into_response()
}

/// A query that makes no sense.
pub fn wrong(rejection: &QueryRejection) -> Response {
    refusal(StatusCode::BAD_REQUEST, &rejection.body_text())
}

/// What reads files does so on a thread of its own. Its errors are words for the reader.
///
/// # Errors
/// The answer that says why there is none.
pub async fn read<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, String> + Send + 'static,
) -> Result<T, Response> {
    perform(StatusCode::NOT_FOUND, work).await
}

/// Pieces of work at once that may take seconds: analyses, checks of plans. More wait, so that no number of clients
/// keeps the host's processors busy.
const MOST_AT_WORK: usize = 4;

static AT_WORK: Semaphore = Semaphore::const_new(MOST_AT_WORK);

/// As [`read`], of what may take seconds. Whoever leaves while it waits for its turn takes it along.
///
/// # Errors
/// The answer that says why there is none.
pub async fn work_out<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, String> + Send + 'static,
) -> Result<T, Response> {
    in_turn(&AT_WORK, work).await
}

async fn in_turn<T: Send + 'static>(
    turns: &'static Semaphore,
    work: impl FnOnce() -> Result<T, String> + Send + 'static,
) -> Result<T, Response> {
    // It is never closed.
    let turn = turns.acquire().await.ok();
    read(move || {
        // Until the work is done, whether or not somebody still waits for it.
        let _turn = turn;
        work()
    })
    .await
}

/// What changes something; refused where it cannot.
pub async fn change(work: impl FnOnce() -> Result<(), String> + Send + 'static) -> Response {
    match perform(StatusCode::CONFLICT, work).await {
        Ok(()) => json(&serde_json::json!({})),
        Err(refused) => refused,
    }
}

async fn perform<T: Send + 'static>(
    otherwise: StatusCode,
    work: impl FnOnce() -> Result<T, String> + Send + 'static,
) -> Result<T, Response> {
    match tokio::task::spawn_blocking(work).await {
        Ok(Ok(value)) => Ok(value),
        Ok(Err(why)) => Err(refusal(otherwise, &why)),
        Err(_) => Err(refusal(
            StatusCode::INTERNAL_SERVER_ERROR,
            "vtax failed to do this: a defect",
        )),
    }
}

/// As JSON.
///
/// # Errors
/// What cannot be written as JSON.
pub fn document<T: serde::Serialize>(value: &T) -> Result<String, String> {
    serde_json::to_string(value).map_err(|cause| cause.to_string())
}

/// A document, or why there is none.
pub fn answer(outcome: Result<String, Response>) -> Response {
    outcome.map_or_else(|refused| refused, |body| text("application/json", body))
}

/// What was posted: JSON that says so, which no form of another page can send.
///
/// # Errors
/// The answer that says what is wrong with it.
pub fn posted<T: DeserializeOwned>(headers: &HeaderMap, body: &Bytes) -> Result<T, Box<Response>> {
    let kind = headers.get(header::CONTENT_TYPE);
    if kind.is_none_or(|kind| !kind.as_bytes().starts_with(b"application/json")) {
        let why = "only application/json is understood here";
        return Err(Box::new(refusal(StatusCode::UNSUPPORTED_MEDIA_TYPE, why)));
    }
    serde_json::from_slice(body).map_err(|cause| {
        let why = format!("not understood: {cause}");
        Box::new(refusal(StatusCode::BAD_REQUEST, &why))
    })
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
    fn work_waits_for_its_turn_and_whoever_leaves_meanwhile_takes_it_along() {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .build()
            .unwrap();
        let _inside = runtime.enter();
        let done = Arc::new(AtomicUsize::new(0));
        let count = || {
            let done = Arc::clone(&done);
            move || Ok::<_, String>(done.fetch_add(1, Ordering::SeqCst))
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
