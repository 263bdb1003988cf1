// SPDX-License-Identifier: Apache-2.0
//! NICs and micro VMs.

use crate::app_state::AppState;
use crate::machines::Budget;
use crate::response::{Answer, change, document, posted};
use axum::body::Bytes;
use axum::extract::State;
use axum::http::HeaderMap;

pub async fn list(State(app): State<AppState>) -> Answer {
    document(move || Ok(app.machines.list())).await
}

pub async fn budget(State(app): State<AppState>, headers: HeaderMap, body: Bytes) -> Answer {
    let budget: Budget = posted(&headers, &body)?;
    change(move || app.machines.set(&budget)).await
}
