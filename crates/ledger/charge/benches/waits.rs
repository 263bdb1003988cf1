// SPDX-License-Identifier: Apache-2.0
//! The cost of tracing waits for processors: two threads on one processor that wake one another by pipes, with and
//! without it in turns.

#![allow(
    clippy::unwrap_used,
    reason = "a benchmark that cannot be set up should fail"
)]

use rustix::thread::{CpuSet, sched_setaffinity};
use std::io::{PipeReader, PipeWriter, Read, Write, pipe};
use std::time::{Duration, Instant};
use vtax_charge::{Charger, ChargerOptions, MethodChoice};

/// Switches in each round, and pairs of rounds.
const SWITCHES: u32 = 400_000;
const ROUNDS: usize = 9;

/// Switches a second at which the cost is shown.
const RATE: f64 = 20_000.0;

fn main() {
    let mut gains = Vec::new();
    let (mut without, mut with) = (Vec::new(), Vec::new());
    switch(SWITCHES);
    for _ in 0..ROUNDS {
        let before = switch(SWITCHES);
        let Some(charger) = traced() else { return };
        let during = switch(SWITCHES);
        drop(charger);
        let after = switch(SWITCHES);
        let plain = (before + after) / 2.0;
        without.push(plain);
        with.push(during);
        gains.push(during - plain);
    }
    let gain = median(&gains);
    println!("| | ns a switch |\n|---|---:|");
    println!("| without | {:.0} |", median(&without));
    println!("| with | {:.0} |", median(&with));
    println!("| difference, median of {ROUNDS} | {gain:.0} |");
    let low = quantile(&gains, 0.1);
    let high = quantile(&gains, 0.9);
    println!("| difference, 0.1 and 0.9 quantile | {low:.0}, {high:.0} |");
    println!(
        "\n{RATE} switches a second cost {:.2} % of a processor [{:.2}, {:.2}]",
        gain * RATE / 1e7,
        low * RATE / 1e7,
        high * RATE / 1e7
    );
}

/// A charger that traces waits. It traces soft interrupts too, of which the load has none.
fn traced() -> Option<Charger> {
    let charger = Charger::open(ChargerOptions {
        method: MethodChoice::Auto,
        traces_waits: true,
        ..ChargerOptions::default()
    })
    .unwrap();
    let note = charger
        .notes()
        .iter()
        .find(|note| note.contains("waited for"));
    if let Some(note) = note {
        println!("SKIPPED: {note}");
        return None;
    }
    Some(charger)
}

/// Nanoseconds a switch between two threads of the last processor.
fn switch(switches: u32) -> f64 {
    let (mut here, there) = pipe().unwrap();
    let (other, mut back) = pipe().unwrap();
    let partner = std::thread::spawn(move || {
        pin();
        let (mut other, mut there): (PipeReader, PipeWriter) = (other, there);
        let mut byte = [0];
        while other.read(&mut byte).unwrap() > 0 {
            there.write_all(&byte).unwrap();
        }
    });
    let mine = std::thread::spawn(move || {
        pin();
        let mut byte = [0];
        let started = Instant::now();
        for _ in 0..switches / 2 {
            back.write_all(&byte).unwrap();
            here.read_exact(&mut byte).unwrap();
        }
        started.elapsed()
    });
    let time: Duration = mine.join().unwrap();
    partner.join().unwrap();
    time.as_nanos() as f64 / f64::from(switches)
}

fn pin() {
    let mut set = CpuSet::new();
    let last = std::thread::available_parallelism().map_or(1, usize::from) - 1;
    set.set(last);
    sched_setaffinity(None, &set).unwrap();
}

fn quantile(of: &[f64], at: f64) -> f64 {
    let mut sorted = of.to_vec();
    sorted.sort_by(f64::total_cmp);
    let index = (at * (sorted.len().saturating_sub(1)) as f64).round() as usize;
    sorted.get(index).copied().unwrap_or(f64::NAN)
}

fn median(of: &[f64]) -> f64 {
    quantile(of, 0.5)
}
