// SPDX-License-Identifier: Apache-2.0
//! Compares the processor time of a signal that never blocks with that of a plain write to the event descriptor.
//!
//! `cargo bench -p vtax-nic --bench signal`

use std::os::fd::OwnedFd;
use vtax_nic::poller::cpu_time;
use vtax_nic::signal;

const SIGNALS: u32 = 100_000;
const ROUNDS: usize = 15;

/// Nanoseconds of processor time for each signal.
fn cost(signal: impl Fn()) -> f64 {
    let before = cpu_time();
    (0..SIGNALS).for_each(|_| signal());
    cpu_time().since(before).0 as f64 / f64::from(SIGNALS)
}

/// Median, least and largest.
fn summary(mut costs: Vec<f64>) -> String {
    costs.sort_by(f64::total_cmp);
    let at = |index: usize| costs.get(index).copied().unwrap_or(f64::NAN);
    format!(
        "{:.0} ns [{:.0} to {:.0}], n = {ROUNDS}",
        at(ROUNDS / 2),
        at(0),
        at(ROUNDS - 1)
    )
}

fn main() -> std::io::Result<()> {
    let flags = rustix::event::EventfdFlags::CLOEXEC | rustix::event::EventfdFlags::NONBLOCK;
    let event: OwnedFd = rustix::event::eventfd(0, flags)?;
    if !signal::prepare() {
        eprintln!("this kernel has no asynchronous I/O: both are plain writes");
    }
    let (mut writes, mut signals) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        writes.push(cost(|| {
            let _ = rustix::io::write(&event, &1_u64.to_ne_bytes());
        }));
        signals.push(cost(|| {
            signal::raise(&event);
        }));
    }
    println!("write: {}", summary(writes));
    println!("signal::raise: {}", summary(signals));
    Ok(())
}
