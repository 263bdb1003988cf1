//! The live host and its history.

use crate::access::refusal;
use crate::answers::{text, wrong};
use crate::history::Span;
use crate::live::Look;
use crate::site::Site;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State};
use axum::http::{StatusCode, header};
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use futures_util::stream;
use serde::Deserialize;
use std::convert::Infallible;
use std::time::Duration;

/// An update now and whenever there is a new one. A watcher that reads slowly misses updates, and keeps
/// nobody else waiting.
pub async fn live(State(site): State<Site>, look: Result<Query<Look>, QueryRejection>) -> Response {
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
pub struct Past {
    span: Span,
    guest: Option<u32>,
    /// The first and last moment, in seconds since 1970.
    from: Option<f64>,
    to: Option<f64>,
}

const FORGOTTEN: &str = "nothing is kept of that guest";

pub async fn history(
    State(site): State<Site>,
    past: Result<Query<Past>, QueryRejection>,
) -> Response {
    match past {
        Ok(Query(past)) => match site.live.history(past.guest, past.span) {
            Some(document) => text("application/json", document),
            None => refusal(StatusCode::NOT_FOUND, FORGOTTEN),
        },
        Err(rejection) => wrong(&rejection),
    }
}

pub async fn history_csv(
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
