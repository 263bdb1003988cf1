// SPDX-License-Identifier: Apache-2.0
//! The live host and its history.

use crate::app_state::AppState;
use crate::error::RequestError;
use crate::history::Span;
use crate::live::View;
use crate::response::{Answer, Params, json, updates};
use axum::extract::State;
use axum::http::header;
use axum::response::{IntoResponse, Response};
use futures_util::stream;
use serde::Deserialize;

/// Sends the present update, then each new one. A client that reads slowly misses updates, and does not delay others.
pub async fn live(State(app): State<AppState>, Params(view): Params<View>) -> Response {
    let mut watch = app.live.watch();
    watch.mark_changed();
    let texts = stream::unfold((app, view, watch), |(app, view, mut watch)| async move {
        loop {
            // Ends when the host is no longer read.
            watch.changed().await.ok()?;
            if let Some(text) = app.live.update(&view) {
                return Some((text.to_string(), (app, view, watch)));
            }
        }
    });
    updates(texts)
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

pub async fn history(State(app): State<AppState>, Params(query): Params<HistoryQuery>) -> Answer {
    let document = app.live.history(query.guest, query.span);
    document.map(json).ok_or(RequestError::NoHistory)
}

pub async fn history_csv(
    State(app): State<AppState>,
    Params(query): Params<HistoryQuery>,
) -> Answer {
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
