// SPDX-License-Identifier: Apache-2.0
//! The atlas: the figures of papers beside those of vtax, from the runs below the results directory.

use crate::app_state::AppState;
use crate::response::{self, Answer};
use axum::extract::State;
use vtax_atlas::{Folders, whole_page};

pub async fn page(State(app): State<AppState>) -> Answer {
    let page = response::analyse(move || {
        let results = app.results.root();
        // The names of runs identify their plans. The plans that this server offers may be other ones.
        let folders = Folders {
            results,
            plans: results,
            models: vtax_testbed::cost::modelled,
        };
        Ok(whole_page(Some(&folders))?)
    });
    page.await.map(response::report)
}
