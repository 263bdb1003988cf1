// SPDX-License-Identifier: Apache-2.0
//! Closed loop: every connection downloads the file again and again.

use super::Arguments;
use crate::generator::connection::Progress;
use crate::generator::pool::Pool;
use crate::generator::report::{Errors, Report, Times};
use crate::generator::{nanoseconds, seconds};
use vtax_host::HostError;
use vtax_observe::clock::process_cpu;

/// The most download times that a report lists one by one.
const MAX_LISTED_TIMES: usize = 10_000;

/// Downloads of the measured part.
struct Count {
    latency: Times,
    listed: Vec<f64>,
    bytes: u64,
    requests: u64,
}

/// When a phase of downloads ends.
#[derive(Clone, Copy)]
enum Until {
    /// At this time, also during a download.
    Moment(u64),
    /// When this many downloads are complete.
    Downloads(u64),
}

/// Runs for the duration, or until the downloads are done.
///
/// A download that fails ends the run, since the total can no longer be reached.
pub fn run(arguments: &Arguments) -> Result<Report, HostError> {
    let common = &arguments.common;
    let begin = nanoseconds(common.warmup);
    let mut pool = arguments.pool()?;
    let mut count = Count {
        latency: Times::new(),
        listed: Vec::new(),
        bytes: 0,
        requests: 0,
    };
    let measured = match arguments.downloads {
        None => {
            let end = begin + nanoseconds(common.duration);
            phase(arguments, &mut pool, &mut count, begin, Until::Moment(end))?;
            common.duration
        }
        Some(downloads) => {
            if begin > 0 {
                phase(
                    arguments,
                    &mut pool,
                    &mut count,
                    u64::MAX,
                    Until::Moment(begin),
                )?;
                // The measured downloads begin together, on new connections.
                pool.close_all();
            }
            let begun = pool.now();
            phase(
                arguments,
                &mut pool,
                &mut count,
                0,
                Until::Downloads(downloads),
            )?;
            seconds(pool.now().saturating_sub(begun))
        }
    };
    Ok(Report {
        mode: "closed".to_owned(),
        rate: None,
        seconds: measured,
        requests: count.requests,
        bytes: count.bytes,
        due: None,
        last_answer: None,
        errors: Errors::default(),
        latency: count.latency.summary(),
        histogram: count.latency.encoded(),
        lag: None,
        timer: None,
        connections: pool.opened,
        cpu_seconds: process_cpu().as_secs_f64(),
        download_seconds: count.listed,
    })
}

/// Downloads until `until`, and counts from `counted_from` on.
fn phase(
    arguments: &Arguments,
    pool: &mut Pool,
    count: &mut Count,
    counted_from: u64,
    until: Until,
) -> Result<(), HostError> {
    let common = &arguments.common;
    let timeout = nanoseconds(common.timeout);
    let (end, wanted) = match until {
        Until::Moment(end) => (end, u64::MAX),
        Until::Downloads(wanted) => (u64::MAX, wanted),
    };
    let failed = |done: u64, cause: &dyn std::fmt::Display| HostError::Protocol {
        peer: format!("http://{}{}", common.address, arguments.path),
        detail: format!(
            "download {} failed: {cause}; the service in the target may have died or refused",
            done + 1
        ),
    };
    let (mut begun, mut done) = (0, 0);
    for _ in 0..u64::from(common.connections).min(wanted) {
        let now = pool.now();
        again(pool, None, now).map_err(|cause| failed(done, &cause))?;
        begun += 1;
    }
    let mut ready = Vec::new();
    let mut last_progress = pool.now();
    while done < wanted {
        let now = pool.now();
        if now >= end {
            break;
        }
        let silent_until = last_progress.saturating_add(timeout);
        if now >= silent_until {
            return Err(failed(
                done,
                &format!("the server sent nothing for {} s", common.timeout),
            ));
        }
        pool.wait(end.min(silent_until), &mut ready)?;
        for &slot in &ready {
            let Some((progress, since)) = pool.advance(slot) else {
                continue;
            };
            let now = pool.now();
            let counted = now >= counted_from && now < end;
            match progress {
                Progress::Waiting(0) => {}
                Progress::Waiting(bytes) => {
                    last_progress = now;
                    count.bytes += if counted { bytes } else { 0 };
                }
                Progress::Done {
                    refused: Some(answer),
                    ..
                } => return Err(failed(done, &format!("the server answered with {answer}"))),
                Progress::Done {
                    bytes, reusable, ..
                } => {
                    last_progress = now;
                    done += 1;
                    if counted {
                        count.bytes += bytes;
                        count.requests += 1;
                        count.latency.record(now.saturating_sub(since));
                        if count.listed.len() < MAX_LISTED_TIMES {
                            count.listed.push(seconds(now.saturating_sub(since)));
                        }
                    }
                    if begun < wanted {
                        begun += 1;
                        again(pool, reusable.then_some(slot), now)
                            .map_err(|cause| failed(done, &cause))?;
                    }
                }
                Progress::Stale => {
                    again(pool, None, since).map_err(|cause| failed(done, &cause))?
                }
                // A connection that is no longer needed.
                Progress::Closed => {}
                Progress::Failed(cause) => return Err(failed(done, &cause)),
            }
        }
    }
    Ok(())
}

/// Begins a download that counts from `since`, on a kept connection or a new one.
fn again(pool: &mut Pool, kept: Option<usize>, since: u64) -> std::io::Result<()> {
    let slot = match kept {
        Some(slot) => slot,
        None => pool
            .open()
            .unwrap_or_else(|| Err(std::io::ErrorKind::NotConnected.into()))?,
    };
    let now = pool.now();
    pool.begin(slot, since, now)
}
