//! NICs and micro VMs.

use crate::answers::{answer, change, document, posted, read};
use crate::site::Site;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::Response;

pub async fn look(State(site): State<Site>) -> Response {
    answer(read(move || document(&site.machines.look())).await)
}

pub async fn budget(State(site): State<Site>, headers: HeaderMap, body: Bytes) -> Response {
    match posted(&headers, &body) {
        Ok(budget) => change(move || site.machines.set(&budget)).await,
        Err(refused) => *refused,
    }
}
