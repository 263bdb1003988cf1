// SPDX-License-Identifier: Apache-2.0
//! The cost of isolated branch predictions: two processes on one processor wake each other by turns, once with one of
//! the two isolated as a monitor is and once without isolation.

use rustix::thread::{CpuSet, sched_setaffinity};
use std::io::{Read, Write};
use std::process::{Command, Stdio};
use std::time::Instant;
use vtax_mvm::Result;
use vtax_mvm::jail::isolate_branch_predictor;

const TURNS: u32 = 100_000;
const ROUNDS: usize = 9;

fn stay_on_one_processor() {
    let mut first = CpuSet::new();
    first.set(0);
    sched_setaffinity(None, &first).expect("processor 0");
}

/// The second process: returns each byte that it reads.
pub fn other(apart: bool) -> Result<()> {
    stay_on_one_processor();
    if apart {
        isolate_branch_predictor();
    }
    let (mut input, mut output) = (std::io::stdin(), std::io::stdout());
    let mut byte = [0];
    while input.read_exact(&mut byte).is_ok() {
        output.write_all(&byte).expect("an answer");
        output.flush().expect("an answer");
    }
    Ok(())
}

/// Nanoseconds per context switch. A turn has two switches.
fn switch(part: &str) -> f64 {
    let mut other = Command::new(std::env::current_exe().expect("this program"))
        .arg(part)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("this program again");
    let mut input = other.stdin.take().expect("its input");
    let mut output = other.stdout.take().expect("its output");
    let mut byte = [7];
    let mut turn = || {
        input.write_all(&byte).expect("a question");
        output.read_exact(&mut byte).expect("an answer");
    };
    (0..1000).for_each(|_| turn());
    let started = Instant::now();
    (0..TURNS).for_each(|_| turn());
    let each = started.elapsed().as_secs_f64() * 1e9 / f64::from(2 * TURNS);
    drop(input);
    other.wait().expect("its end");
    each
}

/// Measures both cases by turns, so that other load on the machine affects both.
pub fn measure() -> Result<()> {
    stay_on_one_processor();
    let mut each = [const { Vec::new() }; 2];
    for _ in 0..ROUNDS {
        for (kind, part) in ["barrier-without", "barrier-with"].iter().enumerate() {
            each[kind].push(switch(part));
        }
    }
    for (kind, name) in ["without the barrier", "with it"].iter().enumerate() {
        each[kind].sort_by(f64::total_cmp);
        let of = &each[kind];
        println!(
            "{name}: {:.0} ns a switch between two processes, lowest {:.0}, highest {:.0} ({ROUNDS} rounds of {TURNS} turns)",
            of[ROUNDS / 2],
            of[0],
            of[ROUNDS - 1]
        );
    }
    Ok(())
}
