// SPDX-License-Identifier: Apache-2.0
//! The live host and its history.

use crate::app_state::AppState;
use crate::error::RequestError;
use crate::history::Span;
use crate::live::View;
use crate::response::{Answer, json};
use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State};
use axum::http::header;
use axum::response::IntoResponse;
use axum::response::sse::{Event, KeepAlive, Sse};
use futures_util::stream;
use serde::Deserialize;
use std::convert::Infallible;
use std::time::Duration;

/// The time between two keep-alive messages on a connection without updates.
const KEEP_ALIVE: Duration = Duration::from_secs(15);

/// Sends the present update, then each new one. A client that reads slowly misses updates, and does not delay others.
pub async fn live(
    State(app): State<AppState>,
    view: Result<Query<View>, QueryRejection>,
) -> Answer {
    let Query(view) = view?;
    let mut watch = app.live.watch();
    watch.mark_changed();
    let updates = stream::unfold((app, view, watch), |(app, view, mut watch)| async move {
        loop {
            // Ends when the host is no longer read.
            watch.changed().await.ok()?;
            if let Some(text) = app.live.update(&view) {
                let event = Event::default().data(text);
                return Some((Ok::<_, Infallible>(event), (app, view, watch)));
            }
        }
    });
    let alive = KeepAlive::new().interval(KEEP_ALIVE);
    Ok(Sse::new(updates).keep_alive(alive).into_response())
}

/// The owner of a history, its resolution, and its range of time.
#[derive(Debug, Deserialize)]
pub struct HistoryQuery {
    span: Span,
    guest: Option<u32>,
    /// The first and last time, in seconds since 1970.
    from: Option<f64>,
    to: Option<f64>,
}

pub async fn history(
    State(app): State<AppState>,
    query: Result<Query<HistoryQuery>, QueryRejection>,
) -> Answer {
    let Query(query) = query?;
    let document = app.live.history(query.guest, query.span);
    document.map(json).ok_or(RequestError::NoHistory)
}

pub async fn history_csv(
    State(app): State<AppState>,
    query: Result<Query<HistoryQuery>, QueryRejection>,
) -> Answer {
    let Query(query) = query?;
    let range = (query.from.unwrap_or(f64::MIN), query.to.unwrap_or(f64::MAX));
    let table = app.live.csv(query.guest, query.span, range);
    let table = table.ok_or(RequestError::NoHistory)?;
    // A guest's name is arbitrary text; its number is safe in a file name.
    let owner = match query.guest {
        Some(number) => format!("guest-{number}"),
        None => "host".to_owned(),
    };
    let headers = [
        (header::CONTENT_TYPE, "text/csv; charset=utf-8".to_owned()),
        (
            header::CONTENT_DISPOSITION,
            format!("attachment; filename=\"vtax-{owner}.csv\""),
        ),
    ];
    Ok((headers, table).into_response())
}
