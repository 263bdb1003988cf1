//! The atlas: the papers' figures beside ours, with the runs below the results directory.

use crate::access;
use crate::answers::work_out;
use crate::site::Site;
use axum::extract::State;
use axum::http::header;
use axum::response::{IntoResponse, Response};
use vtax_atlas::{Folders, whole_page};

pub async fn page(State(site): State<Site>) -> Response {
    let made = work_out(move || {
        let results = site.results.root();
        // Plans are told by the names of their runs: what is offered to be run may be elsewhere.
        let folders = Folders {
            results,
            plans: results,
        };
        whole_page(Some(&folders)).map_err(|cause| cause.to_string())
    });
    match made.await {
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
