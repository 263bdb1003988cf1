// SPDX-License-Identifier: Apache-2.0
//! The live host: the last interval, the history, and the updates of open pages.
//!
//! An update holds the sums, the first [`MAX_ROWS`] guests in the order of its view, and the other guests as one sum:
//! its size does not grow with the number of guests. Pages with the same view share one text.

use crate::history::{
    GUEST, HOST, History, Point, Series, Span, guest_point, guests, host_point, sum,
};
use serde::Deserialize;
use serde_json::{Value, json};
use std::collections::HashMap;
use std::fmt::Write as _;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::watch;
use vtax_charge::{ChargedGuest, LedgerSnapshot};
use vtax_charge::{Ledger, Stage};
use vtax_core::Nanoseconds;
use vtax_serve::top::{Key, Rates, Row, Sort};

/// The number of guests with rows of their own in an update.
pub const MAX_ROWS: usize = 40;
/// The number of guests that are listed as those in whose time soft interrupts ran.
const MAX_CONTEXTS: usize = 5;

/// The view of the host that a page shows.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default, Deserialize)]
#[serde(default)]
pub struct View {
    /// A sort key of `vtax top`; processor time where it is not one.
    pub sort: String,
    /// Whether the order is reversed.
    pub reversed: bool,
    /// A part of the names of the guests to show.
    pub find: String,
    /// The guest to show in detail.
    pub guest: Option<u32>,
}

/// The live host.
#[derive(Debug)]
pub struct Live {
    state: Mutex<State>,
    changed: watch::Sender<()>,
}

#[derive(Debug, Default)]
struct State {
    history: History,
    last: Option<LastInterval>,
    /// The reason why the last pass failed; none where it did not.
    failure: Option<String>,
    written: HashMap<View, Arc<str>>,
}

#[derive(Debug)]
struct LastInterval {
    snapshot: LedgerSnapshot,
    coarse: Option<Point<{ HOST.len() }>>,
}

impl Default for Live {
    fn default() -> Self {
        Self {
            state: Mutex::default(),
            changed: watch::Sender::new(()),
        }
    }
}

impl Live {
    /// Makes a snapshot the present one. The first snapshot of a watch only begins an interval and is not shown.
    pub fn show(&self, snapshot: LedgerSnapshot) {
        if snapshot.ledger.span == Nanoseconds(0) {
            return;
        }
        let mut state = self.state();
        let rates = Rates::from_snapshot(&snapshot, Sort::default());
        let coarse = state.history.add(seconds(&snapshot), &rates);
        state.last = Some(LastInterval { snapshot, coarse });
        state.failure = None;
        state.written.clear();
        drop(state);
        self.changed.send_replace(());
    }

    /// Adds the error of a pass that failed to the last snapshot.
    pub fn fail(&self, why: &str) {
        let mut state = self.state();
        state.failure = Some(why.to_owned());
        state.written.clear();
        drop(state);
        self.changed.send_replace(());
    }

    /// A receiver that wakes up at each update.
    pub fn watch(&self) -> watch::Receiver<()> {
        self.changed.subscribe()
    }

    /// The present update as one line of JSON; `None` before the first interval is over.
    pub fn update(&self, view: &View) -> Option<Arc<str>> {
        let mut state = self.state();
        if let Some(written) = state.written.get(view) {
            return Some(Arc::clone(written));
        }
        let text: Arc<str> = update(state.last.as_ref()?, &state, view)
            .to_string()
            .into();
        state.written.insert(view.clone(), Arc::clone(&text));
        Some(text)
    }

    /// The history of the host or of a guest as JSON; `None` where none is kept.
    pub fn history(&self, guest: Option<u32>, span: Span) -> Option<String> {
        let state = self.state();
        match guest {
            None => document(
                &HOST,
                &state.history.host(span),
                state.history.ticks(),
                None,
            ),
            Some(number) => {
                let series = state.history.guest(number, span)?;
                let name = state.history.name(number);
                document(&GUEST, &series, state.history.ticks(), name)
            }
        }
    }

    /// The same as comma-separated values, within a range of times in seconds since 1970.
    pub fn csv(&self, guest: Option<u32>, span: Span, range: (f64, f64)) -> Option<String> {
        let state = self.state();
        Some(match guest {
            None => csv(&HOST, &state.history.host(span), range),
            Some(number) => csv(&GUEST, &state.history.guest(number, span)?, range),
        })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The end of a snapshot, in seconds since 1970.
#[allow(
    clippy::cast_precision_loss,
    reason = "milliseconds of this millennium fit"
)]
fn seconds(snapshot: &LedgerSnapshot) -> f64 {
    snapshot.ended.as_millisecond() as f64 / 1e3
}

/// A number with three decimal places: a thousandth of a percent, a milliwatt. NaN becomes `null`.
fn short(value: f32) -> Option<f64> {
    let value = f64::from(value);
    value.is_finite().then(|| (value * 1e3).round() / 1e3)
}

fn shorts<const N: usize>(point: &Point<N>) -> Vec<Option<f64>> {
    point.iter().copied().map(short).collect()
}

fn document<const N: usize>(
    names: &[&str; N],
    series: &Series<N>,
    tick: u64,
    of: Option<(&str, &str)>,
) -> Option<String> {
    let columns: Vec<Vec<Option<f64>>> = (0..N)
        .map(|column| {
            let points = series.points.iter();
            points
                .map(|point| point.get(column).copied().and_then(short))
                .collect()
        })
        .collect();
    let document = json!({
        "tick": tick,
        "name": of.map(|(name, _)| name),
        "platform": of.map(|(_, platform)| platform),
        "names": names.as_slice(),
        "at": series.at,
        "columns": columns,
    });
    Some(document.to_string())
}

/// The heading of a column, with its unit.
fn heading(name: &str) -> String {
    match name {
        "watts" => "watts".to_owned(),
        "packets" | "exits" => format!("{name}_per_second"),
        stage => format!("{stage}_cpu_percent"),
    }
}

fn csv<const N: usize>(names: &[&str; N], series: &Series<N>, (from, to): (f64, f64)) -> String {
    let headings: Vec<String> = names.iter().map(|name| heading(name)).collect();
    let mut text = format!("time,{}\r\n", headings.join(","));
    for (at, point) in series.at.iter().zip(&series.points) {
        if *at < from || *at > to {
            continue;
        }
        #[allow(clippy::cast_possible_truncation, reason = "a time of this millennium")]
        let time = jiff::Timestamp::from_millisecond((at * 1e3).round() as i64);
        // Writing to a string does not fail.
        let _ = write!(text, "{}", time.unwrap_or_default());
        for value in point {
            let _ = match short(*value) {
                Some(value) => write!(text, ",{value}"),
                None => write!(text, ","),
            };
        }
        text.push_str("\r\n");
    }
    text
}

/// A guest in an update.
fn guest_row(row: &Row) -> Value {
    json!({
        "number": row.number.unwrap_or(0),
        "name": row.name,
        "platform": row.platform,
        "hidden": row.hidden_percent.map(rounded),
        "values": shorts(&guest_point(row)),
    })
}

/// An update of a page.
fn update(last: &LastInterval, state: &State, view: &View) -> Value {
    let snapshot = &last.snapshot;
    let sort = Sort {
        key: view.sort.parse().unwrap_or(Key::Cpu),
        reversed: view.reversed,
    };
    let rates = Rates::from_snapshot(snapshot, sort);
    let wanted = view.find.to_lowercase();
    let matches = |name: &str| wanted.is_empty() || name.to_lowercase().contains(&wanted);
    let mut matching = guests(&rates).filter(|row| matches(&row.name));
    let rows: Vec<Value> = matching.by_ref().take(MAX_ROWS).map(guest_row).collect();
    let mut others = 0;
    let rest = sum(matching.inspect(|_| others += 1).map(guest_point));
    let mut problems = snapshot.problems.clone();
    problems.extend(state.failure.clone());
    let detail = |number| detail(snapshot, &rates, number);
    json!({
        // The number of the interval, its end in seconds since 1970, and its length in seconds.
        "tick": state.history.ticks(),
        "at": seconds(snapshot),
        "span": rates.interval_seconds,
        // The host's point, and the point of ten seconds that this interval completed.
        "point": shorts(&host_point(&rates)),
        "coarse": last.coarse.as_ref().map(shorts),
        "guests": snapshot.guests.len(),
        // The guests that the view selects, and the sum of those without a row.
        "matching": rows.len() + others,
        "rows": rows,
        "rest": (others > 0).then(|| shorts(&rest)),
        "method": rates.method,
        "softirq_source": rates.softirq_source,
        "energy_covers": rates.energy_covers,
        "energy_source": rates.energy_source,
        "problems": problems,
        "guest": view.guest.and_then(detail),
    })
}

fn rounded(value: f64) -> f64 {
    (value * 1e3).round() / 1e3
}

/// Soft interrupts that ran in a guest's time: the part of its booked time that is not its own.
fn taken(ledger: &Ledger, number: u32) -> Nanoseconds {
    ledger
        .row(number)
        .map(|row| row.taken())
        .unwrap_or_default()
}

/// The detail of one guest, in percent of one processor in the interval.
fn detail(snapshot: &LedgerSnapshot, rates: &Rates, number: u32) -> Option<Value> {
    let guest: &ChargedGuest = snapshot.guests.iter().find(|one| one.number == number)?;
    let row = guests(rates).find(|row| row.number == Some(number))?;
    let ledger = &snapshot.ledger;
    let percent = |time: Nanoseconds| {
        let share = time.as_secs_f64() / ledger.span.as_secs_f64().max(1e-9);
        rounded(share * 100.0)
    };
    let taken_of = |other: &ChargedGuest| taken(ledger, other.number);
    let in_guests = snapshot.guests.iter().map(taken_of);
    let in_guests = in_guests.fold(Nanoseconds(0), |sum, time| sum + time);
    let softirqs = snapshot
        .guests
        .iter()
        .map(|one| one.used.stages.get(Stage::Softirq));
    let softirqs = softirqs.fold(ledger.host_softirq, |sum, time| sum + time);
    // The other guests in whose time soft interrupts ran, the most first.
    let others = snapshot
        .guests
        .iter()
        .filter(|other| other.number != number);
    let mut contexts: Vec<(Nanoseconds, &ChargedGuest)> =
        others.map(|other| (taken_of(other), other)).collect();
    contexts.retain(|(time, _)| time.0 > 0);
    contexts.sort_by(|(a, one), (b, other)| b.cmp(a).then(one.number.cmp(&other.number)));
    contexts.truncate(MAX_CONTEXTS);
    let contexts = contexts.into_iter().map(|(time, other)| {
        json!({ "number": other.number, "name": other.name, "percent": percent(time) })
    });
    let booked = ledger.row(number).map_or(Nanoseconds(0), |row| row.booked);
    let mut detail = guest_row(row);
    let more = json!({
        "manager": guest.manager,
        "uuid": guest.uuid,
        // The time that the kernel books on the guest's threads and processes.
        "booked": percent(booked),
        // Soft interrupts for the guest's devices, wherever they ran.
        "moved_to": percent(guest.used.stages.get(Stage::Softirq)),
        // Soft interrupts for any device that ran in the guest's time and were subtracted from it.
        "taken_from": percent(taken(ledger, number)),
        "contexts": contexts.collect::<Vec<_>>(),
        // Soft interrupts of all guests in the time of no guest.
        "elsewhere": percent(softirqs.saturating_since(in_guests)),
        // Since the server started.
        "total_cpu_seconds": guest.total.stages.total().as_secs_f64(),
        "total_joules": snapshot.energy.map(|_| guest.total.energy.0),
    });
    if let (Value::Object(detail), Value::Object(more)) = (&mut detail, more) {
        detail.extend(more);
    }
    Some(detail)
}

#[cfg(test)]
mod tests {
    use super::*;
    use vtax_charge::fake::Host;

    fn parsed(live: &Live, view: &View) -> Value {
        serde_json::from_str(&live.update(view).unwrap()).unwrap()
    }

    #[test]
    fn nothing_is_shown_before_the_first_interval_is_over() {
        let live = Live::default();
        assert!(live.update(&View::default()).is_none());
        let mut first = Host::default().pass(5);
        first.ledger = Ledger::default();
        live.show(first);
        assert!(live.update(&View::default()).is_none());
        assert!(live.history(Some(3), Span::Hour).is_none());
    }

    #[test]
    fn an_update_of_a_thousand_guests_is_small_and_its_rows_and_rest_are_all_of_them() {
        let mut host = Host::default();
        for number in 0..1000 {
            host.start(number);
        }
        let live = Live::default();
        live.show(host.pass(1_000_000));
        let text = live.update(&View::default()).unwrap();
        assert!(text.len() < 8 * 1024, "{} bytes", text.len());
        let update: Value = serde_json::from_str(&text).unwrap();
        let vcpu = |values: &Value| values[0].as_f64().unwrap();
        let rows = update["rows"].as_array().unwrap();
        assert_eq!((rows.len(), &update["matching"]), (MAX_ROWS, &1000.into()));
        let all: f64 = rows.iter().map(|row| vcpu(&row["values"])).sum();
        let all = all + vcpu(&update["rest"]);
        assert!((all - vcpu(&update["point"])).abs() < 0.01, "{all}");
    }

    #[test]
    fn guests_are_found_by_name_and_sorted_as_in_top() {
        let mut host = Host::default();
        for number in 0..30 {
            host.start(number);
        }
        let live = Live::default();
        let mut snapshot = host.pass(1000);
        snapshot.guests[7].used.exchanges.sent = 1_000_000;
        live.show(snapshot);
        let view = View {
            sort: "packets".to_owned(),
            ..View::default()
        };
        assert_eq!(parsed(&live, &view)["rows"][0]["number"], 7);
        let view = View {
            sort: "nonsense".to_owned(),
            find: "GUEST-2".to_owned(),
            ..View::default()
        };
        let update = parsed(&live, &view);
        assert_eq!(
            (&update["matching"], &update["guests"]),
            (&11.into(), &30.into())
        );
        assert!(update["rest"].is_null());
    }

    #[test]
    fn what_was_moved_to_a_guest_and_taken_from_it_is_reported() {
        let mut host = Host::default();
        host.start(1);
        host.start(2);
        let mut snapshot = host.pass(100_000_000);
        // The kernel books 5 % of soft interrupts on the second guest that were not its own.
        snapshot.ledger.rows[0].booked = Nanoseconds(90_000_000);
        snapshot.ledger.rows[1].booked = Nanoseconds(140_000_000);
        let live = Live::default();
        live.show(snapshot);
        let view = |guest| View {
            guest: Some(guest),
            ..View::default()
        };
        let one = &parsed(&live, &view(1))["guest"];
        assert_eq!(
            (&one["booked"], &one["moved_to"], &one["taken_from"]),
            (&9.0.into(), &1.0.into(), &0.0.into())
        );
        assert_eq!(
            one["contexts"],
            serde_json::json!([{"number": 2, "name": "guest-2", "percent": 5.0}])
        );
        assert_eq!(parsed(&live, &view(2))["guest"]["taken_from"], 5.0);
        assert!(parsed(&live, &view(9))["guest"].is_null());
    }

    #[test]
    fn a_pass_that_failed_leaves_the_last_one_with_the_reason() {
        let live = Live::default();
        let mut host = Host::default();
        live.show(host.pass(1000));
        live.fail("cannot read /proc/stat");
        let update = parsed(&live, &View::default());
        assert_eq!(
            update["problems"],
            serde_json::json!(["cannot read /proc/stat"])
        );
        live.show(host.pass(1000));
        assert_eq!(
            parsed(&live, &View::default())["problems"],
            serde_json::json!([])
        );
    }

    #[test]
    fn a_table_of_values_has_units_and_gaps_and_only_what_was_asked_for() {
        let live = Live::default();
        let mut host = Host::default();
        host.start(1);
        for _ in 0..3 {
            live.show(host.pass(10_000_000));
        }
        let text = live
            .csv(Some(1), Span::Hour, (1_700_000_002.0, 2e9))
            .unwrap();
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(
            lines[0],
            "time,vcpu_cpu_percent,emulator_cpu_percent,iothread_cpu_percent,vhost_cpu_percent,softirq_cpu_percent,backend_cpu_percent,watts,packets_per_second,exits_per_second"
        );
        assert_eq!(
            lines[1],
            "2023-11-14T22:13:22Z,0.9,0,0,0,0.1,0,10,30000000,"
        );
        assert_eq!(lines.len(), 3);
    }
}
