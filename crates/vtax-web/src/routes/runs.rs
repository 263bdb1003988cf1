//! Runs: plans, what is wrong with one, what runs, and telling it to start and to end.

use crate::access::refusal;
use crate::answers::{answer, change, document, json, posted, read, work_out, wrong};
use crate::keeper::{Keeper, Order, Start};
use crate::lab::same;
use crate::plans::{self, LONGEST, Plans};
use crate::routes::results::Which;
use crate::site::Site;
use crate::testbed::Testbed;
use axum::body::Bytes;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use futures_util::stream;
use serde::Deserialize;
use serde_json::json;
use std::convert::Infallible;
use std::path::Path;
use std::time::Duration;
use vtax_lab::place::Place;

/// Between two looks at a run's directory.
const LOOK: Duration = Duration::from_secs(1);

pub async fn list(State(site): State<Site>) -> Response {
    answer(work_out(move || document(&plans(&site)?.list())).await)
}

/// Trials of a schedule that are shown before the start.
const MOST_SHOWN: usize = 2000;

/// A plan, by its path.
#[derive(Debug, Deserialize)]
pub struct Chosen {
    path: String,
}

pub async fn plan(
    State(site): State<Site>,
    chosen: Result<Query<Chosen>, QueryRejection>,
) -> Response {
    match chosen {
        Ok(Query(Chosen { path })) => {
            let text = move || document(&json!({ "text": plans(&site)?.text(&path)? }));
            answer(read(text).await)
        }
        Err(rejection) => wrong(&rejection),
    }
}

/// A plan as it is typed.
#[derive(Debug, Deserialize)]
struct Typed {
    text: String,
    #[serde(default)]
    quick: bool,
    at: String,
    #[serde(flatten)]
    testbed: Testbed,
}

pub async fn check(headers: HeaderMap, body: Bytes) -> Response {
    let typed: Typed = match posted(&headers, &body) {
        Ok(typed) => typed,
        Err(refused) => return *refused,
    };
    let checked = move || {
        let (place, wrong_place) = match typed.at.parse() {
            Ok(place) => (place, None),
            Err(why) => (Place::Local, Some(why)),
        };
        let (mut plan, mistakes) = match plans::check(&typed.text, typed.quick, &place) {
            Ok(plan) => (Some(plan), Vec::new()),
            Err(mistakes) => (None, mistakes),
        };
        let wrong_testbed = typed.testbed.check(&place).err();
        let trials = plan.as_ref().map(|plan| plan.schedule.len());
        if let Some(plan) = &mut plan {
            plan.schedule.truncate(MOST_SHOWN);
        }
        document(
            &json!({ "plan": plan, "trials": trials, "mistakes": mistakes, "place": wrong_place.or(wrong_testbed) }),
        )
    };
    answer(work_out(checked).await)
}

/// What was started from the page, and what else runs here.
pub async fn started(State(site): State<Site>) -> Response {
    let runs = move || {
        let mut elsewhere = Vec::new();
        let mut all = Vec::new();
        for path in site.runs.started() {
            let Some(dir) = site.results.name(&path) else {
                elsewhere.push(path.display().to_string());
                continue;
            };
            let open = || site.results.open(&dir).ok();
            if let Ok(progress) = site.runs.progress(&path, open) {
                all.push(progress.brief(&dir));
            }
        }
        document(&json!({ "runs": all, "elsewhere": elsewhere }))
    };
    answer(read(runs).await)
}

/// A run now and whenever it says something new.
pub async fn follow(
    State(site): State<Site>,
    which: Result<Query<Which>, QueryRejection>,
) -> Response {
    let Which { dir } = match which {
        Ok(Query(which)) => which,
        Err(rejection) => return wrong(&rejection),
    };
    let progress = move |site: Site, dir: String| {
        read(move || {
            let path = site.results.place(&dir)?;
            if site.runs.record(&same(&path)).is_none() {
                site.results.open(&dir)?;
            }
            let open = || site.results.open(&dir).ok();
            document(&site.runs.progress(&path, open)?)
        })
    };
    // One that is not there is refused at once, in words.
    let first = match progress(site.clone(), dir.clone()).await {
        Ok(first) => first,
        Err(refused) => return refused,
    };
    let begin = (site, dir, Some(first), String::new());
    let updates = stream::unfold(begin, move |(site, dir, first, mut last)| async move {
        let mut next = first;
        loop {
            let now = match next.take() {
                Some(now) => now,
                None => {
                    tokio::time::sleep(LOOK).await;
                    // Ends when the directory went; the page asks again and is told.
                    progress(site.clone(), dir.clone()).await.ok()?
                }
            };
            if now != last {
                last.clone_from(&now);
                let event = Event::default().data(now);
                return Some((Ok::<_, Infallible>(event), (site, dir, None, last)));
            }
        }
    });
    let alive = KeepAlive::new().interval(Duration::from_secs(15));
    Sse::new(updates).keep_alive(alive).into_response()
}

/// A run to start.
#[derive(Debug, Deserialize)]
struct Wanted {
    text: String,
    dir: String,
    #[serde(default)]
    quick: bool,
    at: String,
    #[serde(flatten)]
    testbed: Testbed,
}

pub async fn start(State(site): State<Site>, headers: HeaderMap, body: Bytes) -> Response {
    let wanted: Wanted = match posted(&headers, &body) {
        Ok(wanted) => wanted,
        Err(refused) => return *refused,
    };
    change(move || {
        let keeper = keeper(&site)?;
        let path = site.results.free(&wanted.dir)?;
        let place: Place = wanted.at.parse()?;
        wanted.testbed.check(&place)?;
        let plan = plans::check(&wanted.text, wanted.quick, &place)
            .map_err(|mistakes| format!("the plan has {} mistakes", mistakes.len()))?;
        keeper.order(Order::Start(Box::new(Start {
            results: same(&path),
            text: wanted.text,
            plan,
            place,
            quick: wanted.quick,
            testbed: wanted.testbed,
        })))
    })
    .await
}

fn plans(site: &Site) -> Result<&Plans, String> {
    let plans = site.plans.as_deref();
    plans.ok_or_else(|| {
        "this server only shows: it was started without an operator’s token".to_owned()
    })
}

fn keeper(site: &Site) -> Result<&Keeper, String> {
    plans(site)?;
    let keeper = site.keeper.as_ref();
    keeper.ok_or_else(|| "this server starts nothing".to_owned())
}

/// What a run is asked to do.
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Ask {
    Pause,
    Proceed,
    Resume,
    Cancel,
}

#[derive(Debug, Deserialize)]
struct Told {
    dir: String,
    ask: Ask,
}

pub async fn tell(State(site): State<Site>, headers: HeaderMap, body: Bytes) -> Response {
    let told: Told = match posted(&headers, &body) {
        Ok(told) => told,
        Err(refused) => return *refused,
    };
    if site.results.place(&told.dir).is_err() {
        return refusal(StatusCode::NOT_FOUND, "there is no such run");
    }
    change(move || {
        let keeper = keeper(&site)?;
        let path = same(&site.results.place(&told.dir)?);
        keeper.order(match told.ask {
            Ask::Pause => Order::Pause(path),
            Ask::Proceed => Order::Proceed(path),
            Ask::Cancel => Order::Cancel(path),
            Ask::Resume => Order::Start(Box::new(again(&site, &told.dir, &path)?)),
        })
    })
    .await
}

/// The run that goes on with what is in a directory: the same plan, profile and place.
fn again(site: &Site, dir: &str, path: &Path) -> Result<Start, String> {
    let record = site.runs.record(path);
    let started_here = record.as_ref().is_some_and(|record| record.plan.is_some());
    let testbed = record.as_ref().map(|record| record.testbed.clone());
    let (text, place, quick) = match site.results.open(dir) {
        Ok(results) => {
            // What others left there is theirs to run, also where this page's own directory was.
            if results.dir().owner().ok() != Some(rustix::process::geteuid().as_raw()) {
                return Err(format!(
                    "{} belongs to another user: run its plan in a terminal as that one",
                    path.display()
                ));
            }
            let text = results.dir().read_text("plan.toml", LONGEST);
            let text = text.map_err(|error| format!("cannot read the plan of {dir:?}: {error}"))?;
            let run = results.run();
            (text, run.place.clone(), run.profile == "quick")
        }
        Err(why) => {
            let record = record.ok_or(why)?;
            let text = site
                .runs
                .plan_of(path)
                .map_err(|cause| format!("its plan is gone: {cause}"))?;
            (text, record.place, record.quick)
        }
    };
    let place: Place = place.parse()?;
    if matches!(place, Place::Testbed(_)) && !started_here {
        return Err(format!(
            "it was begun in a terminal, perhaps with settings of the testbed, which its directory does not tell: go on there, with vtax run PLAN --at {place} --results {}",
            path.display()
        ));
    }
    let plan = plans::check(&text, quick, &place)
        .map_err(|_| "this vtax does not understand the plan of that run any more".to_owned())?;
    Ok(Start {
        results: path.to_owned(),
        text,
        plan,
        place,
        quick,
        testbed: testbed.unwrap_or_default(),
    })
}

/// Whether runs can be started here.
pub fn can_start(site: &Site) -> bool {
    site.plans.is_some()
}

/// The version, how stages look, and what whoever asks may do.
pub fn about(role: &str, site: &Site, stages: &[serde_json::Value]) -> Response {
    json(&json!({
        "version": env!("CARGO_PKG_VERSION"),
        "stages": stages,
        "may": role,
        "starts": can_start(site),
    }))
}
