//! Results: the list, reports, comparisons, curves, notes.

use crate::access::{self, refusal};
use crate::answers::{answer, change, document, posted, read, work_out, wrong};
use crate::comparison::MOST_COMPARED;
use crate::curves::Curves;
use crate::notes;
use crate::share;
use crate::site::Site;
use axum::body::Bytes;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::Deserialize;
use serde_json::{Value, json};

type Pairs = Result<Query<Vec<(String, String)>>, QueryRejection>;

/// A run, by its directory.
#[derive(Debug, Deserialize)]
pub struct Which {
    pub dir: String,
}

pub async fn list(State(site): State<Site>) -> Response {
    answer(read(move || document(&site.results.list(&site.runs))).await)
}

/// `dir` as often as there are runs; `all` for every metric.
fn asked(pairs: Pairs) -> Result<(Vec<String>, bool), Box<Response>> {
    let Query(pairs) = pairs.map_err(|rejection| Box::new(wrong(&rejection)))?;
    let all = pairs.iter().any(|(name, _)| name == "all");
    let dirs = pairs.into_iter().filter(|(name, _)| name == "dir");
    Ok((dirs.map(|(_, dir)| dir).collect(), all))
}

pub async fn compare(State(site): State<Site>, query: Pairs) -> Response {
    match asked(query) {
        Ok((dirs, all)) => answer(work_out(move || document(&compared(&site, &dirs, all)?)).await),
        Err(refused) => *refused,
    }
}

/// A comparison with its curves and notes.
fn compared(site: &Site, dirs: &[String], all: bool) -> Result<Value, String> {
    let compared = site.analyses.compare(&site.results, dirs, all)?;
    let mut value = serde_json::to_value(compared).map_err(|cause| cause.to_string())?;
    if let Some(fields) = value.as_object_mut() {
        let notes: Vec<_> = dirs
            .iter()
            .map(|dir| Ok(notes::read(site.results.open(dir)?.dir())))
            .collect::<Result<_, String>>()?;
        fields.insert("notes".to_owned(), json!(notes));
        fields.insert("panels".to_owned(), json!(panels(site, dirs)?));
    }
    Ok(value)
}

fn panels(site: &Site, dirs: &[String]) -> Result<Vec<crate::curves::Panel>, String> {
    if !(1..=MOST_COMPARED).contains(&dirs.len()) {
        return Err(format!("give 1 to {MOST_COMPARED} runs to draw"));
    }
    let mut curves = Curves::default();
    for (run, dir) in dirs.iter().enumerate() {
        let results = site.results.open(dir)?;
        if vtax_density::run::is_density(&results) {
            curves.add_climbs(run, &results);
        } else {
            curves.add_levels(run, &*site.analyses.of(&results)?);
        }
    }
    Ok(curves.panels())
}

pub async fn curves(State(site): State<Site>, query: Pairs) -> Response {
    match asked(query) {
        Ok((dirs, _)) => answer(work_out(move || document(&panels(&site, &dirs)?)).await),
        Err(refused) => *refused,
    }
}

/// The comparison as a file to hand on.
pub async fn shared(State(site): State<Site>, query: Pairs) -> Response {
    let (dirs, all) = match asked(query) {
        Ok(asked) => asked,
        Err(refused) => return *refused,
    };
    match work_out(move || Ok(share::page(&compared(&site, &dirs, all)?))).await {
        Ok(page) => {
            let headers = [
                (header::CONTENT_TYPE, "text/html; charset=utf-8"),
                (header::CONTENT_SECURITY_POLICY, access::REPORT),
                (
                    header::CONTENT_DISPOSITION,
                    "attachment; filename=\"vtax-comparison.html\"",
                ),
            ];
            (headers, page).into_response()
        }
        Err(refused) => refused,
    }
}

pub async fn report(
    State(site): State<Site>,
    which: Result<Query<Which>, QueryRejection>,
) -> Response {
    let Which { dir } = match which {
        Ok(Query(which)) => which,
        Err(rejection) => return wrong(&rejection),
    };
    match read(move || site.results.report(&dir)).await {
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

pub async fn notes(
    State(site): State<Site>,
    which: Result<Query<Which>, QueryRejection>,
) -> Response {
    match which {
        Ok(Query(Which { dir })) => {
            answer(read(move || document(&notes::read(site.results.open(&dir)?.dir()))).await)
        }
        Err(rejection) => wrong(&rejection),
    }
}

/// A note to add.
#[derive(Debug, Deserialize)]
struct Added {
    dir: String,
    trial: Option<u32>,
    text: String,
}

pub async fn note(State(site): State<Site>, headers: HeaderMap, body: Bytes) -> Response {
    let added: Added = match posted(&headers, &body) {
        Ok(added) => added,
        Err(refused) => return *refused,
    };
    let Ok(results) = site.results.open(&added.dir) else {
        return refusal(StatusCode::NOT_FOUND, "there is no such run");
    };
    let planned = results.run().schedule.len();
    if let Some(trial) = added
        .trial
        .filter(|trial| usize::try_from(*trial).map_or(true, |trial| trial >= planned))
    {
        let why = format!("there is no trial {trial}: this run has {planned}, and the first is 0");
        return refusal(StatusCode::CONFLICT, &why);
    }
    change(move || notes::add(results.dir(), added.trial, &added.text)).await
}
