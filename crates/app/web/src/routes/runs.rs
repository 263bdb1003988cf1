// SPDX-License-Identifier: Apache-2.0
//! Runs: plans and their mistakes, runs in progress, and the requests to start and to end one.

use crate::app_state::AppState;
use crate::error::RequestError;
use crate::host_check::HostCheck;
use crate::lab::canonical;
use crate::plans::{self, MAX_PLAN_BYTES, Plans};
use crate::response::{Answer, Params, analysis, change, document, json, posted, read, updates};
use crate::routes::results::RunQuery;
use crate::run_manager::{Order, RunError, RunManager, Start};
use crate::testbed::Testbed;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::Response;
use futures_util::stream;
use serde::Deserialize;
use serde_json::json;
use std::path::Path;
use std::time::Duration;
use vtax_lab::place::Place;

/// The time between two readings of a run's directory.
const INTERVAL: Duration = Duration::from_secs(1);
/// The largest number of trials of a schedule that are shown before the start.
const MAX_SCHEDULE_SHOWN: usize = 2000;

pub async fn list(State(app): State<AppState>) -> Answer {
    analysis(move || Ok(plans(&app)?.list())).await
}

/// A plan, by its path.
#[derive(Debug, Deserialize)]
pub struct PlanQuery {
    path: String,
}

pub async fn plan(State(app): State<AppState>, Params(query): Params<PlanQuery>) -> Answer {
    document(move || Ok(json!({ "text": plans(&app)?.text(&query.path)? }))).await
}

/// A plan while it is being typed, or one to run, with its place.
#[derive(Debug, Deserialize)]
struct PlanText {
    text: String,
    #[serde(default)]
    quick: bool,
    at: String,
    #[serde(flatten)]
    testbed: Testbed,
}

pub async fn check(headers: HeaderMap, body: Bytes) -> Answer {
    let typed: PlanText = posted(&headers, &body)?;
    analysis(move || {
        let (place, place_error) = match place(&typed.at) {
            Ok(place) => (place, None),
            Err(error) => (Place::Local, Some(error.to_string())),
        };
        let (mut plan, mistakes) = match plans::check(&typed.text, typed.quick, &place) {
            Ok(plan) => (Some(plan), Vec::new()),
            Err(mistakes) => (None, mistakes),
        };
        let testbed_error = || Some(typed.testbed.check(&place).err()?.to_string());
        let trials = plan.as_ref().map(|plan| plan.schedule.len());
        if let Some(plan) = &mut plan {
            plan.schedule.truncate(MAX_SCHEDULE_SHOWN);
        }
        let place = place_error.or_else(testbed_error);
        Ok(json!({ "plan": plan, "trials": trials, "mistakes": mistakes, "place": place }))
    })
    .await
}

/// A plan that a host is checked for.
#[derive(Debug, Deserialize)]
struct PlanToCheck {
    text: String,
    #[serde(default)]
    quick: bool,
}

/// Checks that this host can run a plan.
pub async fn check_host(State(app): State<AppState>, headers: HeaderMap, body: Bytes) -> Answer {
    let PlanToCheck { text, quick } = posted(&headers, &body)?;
    analysis(move || {
        let run_manager = run_manager(&app)?;
        let plan = plans::check(&text, quick, &Place::Local)
            .map_err(|mistakes| RunError::Mistakes(mistakes.len()))?;
        if plan.kind == plans::Kind::Density {
            return Ok(HostCheck::not_made("The host is checked when the climbs start."));
        }
        // The check logs into such guests, which somebody who only reads a plan has not asked for.
        if plan.external {
            return Ok(HostCheck::not_made(
                "The plan has external guests. They are checked when the run starts; vtax run --dry-run checks them now.",
            ));
        }
        Ok(run_manager.check_host(text, quick)?)
    })
    .await
}

/// The runs that the page started, and other runs on this host.
pub async fn started(State(app): State<AppState>) -> Answer {
    document(move || {
        let mut elsewhere = Vec::new();
        let mut all = Vec::new();
        for path in app.runs.started() {
            let Some(dir) = app.results.name(&path) else {
                elsewhere.push(path.display().to_string());
                continue;
            };
            let open = || app.results.open(&dir).ok();
            if let Ok(progress) = app.runs.progress(&path, open) {
                all.push(progress.brief(&dir));
            }
        }
        Ok(json!({ "runs": all, "elsewhere": elsewhere }))
    })
    .await
}

/// Sends the state of a run, then each change of it.
pub async fn follow(
    State(app): State<AppState>,
    Params(RunQuery { dir }): Params<RunQuery>,
) -> Answer {
    let progress = move |app: AppState, dir: String| {
        read(move || {
            let path = app.results.place(&dir)?;
            if app.runs.record(&canonical(&path)).is_none() {
                app.results.open(&dir)?;
            }
            let open = || app.results.open(&dir).ok();
            Ok(serde_json::to_string(&app.runs.progress(&path, open)?)?)
        })
    };
    // A run that does not exist gives an error response, not an error in the stream.
    let first = progress(app.clone(), dir.clone()).await?;
    let begin = (app, dir, Some(first), String::new());
    let texts = stream::unfold(begin, move |(app, dir, first, mut last)| async move {
        let mut next = first;
        loop {
            let now = match next.take() {
                Some(now) => now,
                None => {
                    tokio::time::sleep(INTERVAL).await;
                    // Ends when the directory is removed. The page then sends a new request and receives the error.
                    progress(app.clone(), dir.clone()).await.ok()?
                }
            };
            if now != last {
                last.clone_from(&now);
                return Some((now, (app, dir, None, last)));
            }
        }
    });
    Ok(updates(texts))
}

/// A run to start.
#[derive(Debug, Deserialize)]
struct NewRun {
    dir: String,
    #[serde(flatten)]
    plan: PlanText,
}

pub async fn start(State(app): State<AppState>, headers: HeaderMap, body: Bytes) -> Answer {
    let NewRun { dir, plan: run } = posted(&headers, &body)?;
    change(move || {
        let run_manager = run_manager(&app)?;
        let path = app.results.free(&dir)?;
        let place = place(&run.at)?;
        run.testbed.check(&place)?;
        let plan = plans::check(&run.text, run.quick, &place)
            .map_err(|mistakes| RunError::Mistakes(mistakes.len()))?;
        Ok::<_, RequestError>(run_manager.order(Order::Start(Box::new(Start {
            results: canonical(&path),
            text: run.text,
            plan,
            place,
            quick: run.quick,
            testbed: run.testbed,
        })))?)
    })
    .await
}

fn place(text: &str) -> Result<Place, RunError> {
    let place = text.parse::<Place>();
    place.map_err(|cause| RunError::Place(cause.to_string()))
}

fn plans(app: &AppState) -> Result<&Plans, RequestError> {
    app.plans.as_deref().ok_or(RequestError::ReadOnly)
}

fn run_manager(app: &AppState) -> Result<&RunManager, RequestError> {
    plans(app)?;
    Ok(app.run_manager.as_ref().ok_or(RunError::NoManager)?)
}

/// The request to a run.
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Ask {
    Pause,
    Proceed,
    Resume,
    Cancel,
}

#[derive(Debug, Deserialize)]
struct RunCommand {
    dir: String,
    ask: Ask,
}

pub async fn control(State(app): State<AppState>, headers: HeaderMap, body: Bytes) -> Answer {
    let command: RunCommand = posted(&headers, &body)?;
    change(move || {
        let path = canonical(&app.results.place(&command.dir)?);
        let order = match command.ask {
            Ask::Pause => Order::Pause(path),
            Ask::Proceed => Order::Proceed(path),
            Ask::Cancel => Order::Cancel(path),
            Ask::Resume => Order::Start(Box::new(resumed(&app, &command.dir, &path)?)),
        };
        Ok::<_, RequestError>(run_manager(&app)?.order(order)?)
    })
    .await
}

/// The run that completes a results directory, with its plan, profile and place.
fn resumed(app: &AppState, dir: &str, path: &Path) -> Result<Start, RequestError> {
    let record = app.runs.record(path);
    let started_here = record.as_ref().is_some_and(|record| record.plan.is_some());
    let testbed = record.as_ref().map(|record| record.testbed.clone());
    let (text, at, quick) = match app.results.open(dir) {
        Ok(results) => {
            // A plan of another user is never run, also where that user replaced the directory of this page's run.
            if results.dir().owner().ok() != Some(rustix::process::geteuid().as_raw()) {
                return Err(RunError::OtherOwner(path.to_owned()).into());
            }
            let text = results.dir().read_text("plan.toml", MAX_PLAN_BYTES);
            let text = text.map_err(|cause| RunError::Plan {
                dir: dir.to_owned(),
                cause,
            })?;
            let run = results.run();
            (text, run.place.clone(), run.profile == "quick")
        }
        Err(error) => {
            let record = record.ok_or(error)?;
            let text = app.runs.plan_of(path).map_err(RunError::PlanCopy)?;
            (text, record.place, record.quick)
        }
    };
    let place = place(&at)?;
    if matches!(place, Place::Testbed(_)) && !started_here {
        let path = path.to_owned();
        return Err(RunError::ForeignTestbed { place, path }.into());
    }
    let plan = plans::check(&text, quick, &place).map_err(|mistakes| {
        let first = mistakes.into_iter().next();
        RunError::OldPlan(first.map_or_else(String::new, |one| one.message))
    })?;
    Ok(Start {
        results: path.to_owned(),
        text,
        plan,
        place,
        quick,
        testbed: testbed.unwrap_or_default(),
    })
}

/// The version, the colours of stages, and the permissions of the client.
pub fn about(role: &str, app: &AppState, stages: &[serde_json::Value]) -> Response {
    let about = json!({
        "version": env!("CARGO_PKG_VERSION"),
        "stages": stages,
        "processors": std::thread::available_parallelism().map_or(1, usize::from),
        "may": role,
        // Whether runs can be started here.
        "starts": app.plans.is_some(),
    });
    json(about.to_string())
}
