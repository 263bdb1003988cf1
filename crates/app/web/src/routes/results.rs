// SPDX-License-Identifier: Apache-2.0
//! Results: the list, reports, comparisons, curves, notes.

use crate::access;
use crate::app_state::AppState;
use crate::comparison::{ComparisonTable, MAX_COMPARED};
use crate::curves::{Curves, Panel};
use crate::error::RequestError;
use crate::findings;
use crate::notes;
use crate::response::{self, Answer, Params, analyse, analysis, change, document, posted, read};
use crate::share;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::{HeaderMap, header};
use axum::response::IntoResponse;
use serde::Deserialize;

type Pairs = Params<Vec<(String, String)>>;

/// A run, by its directory.
#[derive(Debug, Deserialize)]
pub struct RunQuery {
    pub dir: String,
}

pub async fn list(State(app): State<AppState>) -> Answer {
    document(move || Ok(app.results.list(&app.runs))).await
}

/// The runs to compare: `dir` once for each, and whether `all` asks for every metric.
fn selection(Params(pairs): Pairs) -> (Vec<String>, bool) {
    let all = pairs.iter().any(|(name, _)| name == "all");
    let dirs = pairs.into_iter().filter(|(name, _)| name == "dir");
    (dirs.map(|(_, dir)| dir).collect(), all)
}

pub async fn compare(State(app): State<AppState>, query: Pairs) -> Answer {
    let (dirs, all) = selection(query);
    analysis(move || comparison(&app, &dirs, all)).await
}

/// A comparison with its curves and notes.
fn comparison(app: &AppState, dirs: &[String], all: bool) -> Result<ComparisonTable, RequestError> {
    let mut table = app.analyses.compare(&app.results, dirs, all)?;
    for dir in dirs {
        table.notes.push(notes::read(app.results.open(dir)?.dir()));
    }
    table.panels = panels(app, dirs)?;
    Ok(table)
}

fn panels(app: &AppState, dirs: &[String]) -> Result<Vec<Panel>, RequestError> {
    if !(1..=MAX_COMPARED).contains(&dirs.len()) {
        return Err(RequestError::RunCount {
            least: 1,
            most: MAX_COMPARED,
            action: "draw",
        });
    }
    let mut curves = Curves::default();
    for (run, dir) in dirs.iter().enumerate() {
        let results = app.results.open(dir)?;
        if vtax_density::run::is_density(&results) {
            curves.add_climbs(run, &results);
        } else {
            curves.add_levels(run, &*app.analyses.analysis(&results)?);
        }
    }
    Ok(curves.panels())
}

pub async fn curves(State(app): State<AppState>, query: Pairs) -> Answer {
    let (dirs, _) = selection(query);
    analysis(move || panels(&app, &dirs)).await
}

/// The numbers of a run.
pub async fn numbers(State(app): State<AppState>, Params(query): Params<RunQuery>) -> Answer {
    analysis(move || {
        let results = app.results.open(&query.dir)?;
        Ok(findings::findings(&*app.analyses.analysis(&results)?))
    })
    .await
}

/// The comparison as one self-contained file.
pub async fn shared(State(app): State<AppState>, query: Pairs) -> Answer {
    let (dirs, all) = selection(query);
    let page = analyse(move || {
        Ok(share::page(&serde_json::to_value(comparison(
            &app, &dirs, all,
        )?)?))
    })
    .await?;
    let headers = [
        (header::CONTENT_TYPE, "text/html; charset=utf-8"),
        (header::CONTENT_SECURITY_POLICY, access::REPORT),
        (
            header::CONTENT_DISPOSITION,
            "attachment; filename=\"vtax-comparison.html\"",
        ),
    ];
    Ok((headers, page).into_response())
}

pub async fn report(State(app): State<AppState>, Params(query): Params<RunQuery>) -> Answer {
    let page = read(move || app.results.report(&query.dir)).await;
    page.map(response::report)
}

/// A plan, by its name.
#[derive(Debug, Deserialize)]
pub struct PlanName {
    pub plan: String,
}

pub async fn plan_history(State(app): State<AppState>, Params(query): Params<PlanName>) -> Answer {
    let page = analyse(move || app.analyses.history(&app.results, &query.plan)).await;
    page.map(response::report)
}

pub async fn notes(State(app): State<AppState>, Params(query): Params<RunQuery>) -> Answer {
    document(move || Ok(notes::read(app.results.open(&query.dir)?.dir()))).await
}

/// A note to add.
#[derive(Debug, Deserialize)]
struct NewNote {
    dir: String,
    trial: Option<u32>,
    text: String,
}

pub async fn note(State(app): State<AppState>, headers: HeaderMap, body: Bytes) -> Answer {
    let NewNote { dir, trial, text } = posted(&headers, &body)?;
    change(move || {
        let results = app.results.open(&dir)?;
        let planned = results.run().schedule.len();
        if let Some(trial) = trial
            && usize::try_from(trial).map_or(true, |trial| trial >= planned)
        {
            return Err(RequestError::NoTrial { trial, planned });
        }
        notes::add(results.dir(), trial, &text)
    })
    .await
}
