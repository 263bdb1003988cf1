// SPDX-License-Identifier: Apache-2.0
//! The progress of a run: one moving line on a terminal, plain lines in a log, JSON for programs.

use crate::output;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use vtax_core::{counted, terminal};
use vtax_host::signals::Signals;
use vtax_lab::run::{Event, FinishedTrial, Progress, RunState};

/// JSON lines, or the format that suits standard error.
pub fn choose(json: bool, signals: &Signals) -> Box<dyn Progress> {
    if json {
        Box::new(Json {
            interrupted: signals.flag(),
        })
    } else {
        for_people(signals)
    }
}

/// The format for people that suits standard error: a moving line on a terminal, else plain lines. Lines of a log would
/// break the moving line.
pub fn for_people(signals: &Signals) -> Box<dyn Progress> {
    if terminal::stderr().is_terminal() && !vtax_log::is_on() {
        Box::new(Terminal::default())
    } else {
        Box::new(Plain {
            interrupted: signals.flag(),
        })
    }
}

/// Writes a line to standard error; an error is ignored.
pub fn note(line: &str) {
    let _ = terminal::note(line);
}

/// Whether standard output or standard error is a pipe without a reader.
pub fn is_unread() -> bool {
    let (out, err) = (terminal::stdout(), terminal::stderr());
    let mut pipes = [
        PollFd::new(&out, PollFlags::empty()),
        PollFd::new(&err, PollFlags::empty()),
    ];
    let _ = poll(&mut pipes, Some(&Timespec::default()));
    pipes
        .iter()
        .any(|pipe| pipe.revents().contains(PollFlags::ERR))
}

/// Progress as one JSON object a line on standard output.
struct Json {
    /// Set when there is no reader: the run must then end, as one over ssh whose connection broke.
    interrupted: Arc<AtomicBool>,
}

impl Progress for Json {
    fn event(&mut self, event: Event) {
        if let Ok(line) = serde_json::to_string(&event)
            && output::write_data(&line).is_err()
        {
            self.interrupted.store(true, Ordering::Relaxed);
        }
    }
}

/// Progress as plain lines on standard error.
struct Plain {
    /// Set when there is no reader.
    interrupted: Arc<AtomicBool>,
}

impl Progress for Plain {
    fn event(&mut self, event: Event) {
        if let Some(text) = lines(&event)
            && terminal::note(&text).is_err()
        {
            self.interrupted.store(true, Ordering::Relaxed);
        }
    }
}

/// Progress as plain lines above one moving line.
#[derive(Default)]
struct Terminal {
    state: RunState,
    /// The treatment of the trial that began last.
    trial: String,
    ends: Option<Instant>,
}

impl Progress for Terminal {
    fn event(&mut self, event: Event) {
        if let Event::TrialStarted { treatment, .. } = &event {
            self.trial.clone_from(treatment);
        }
        self.state.add(event.clone(), 0.0);
        if matches!(event, Event::Started { .. } | Event::TrialFinished(_)) {
            let left = self.state.remaining.unwrap_or_default().max(0.0);
            self.ends = Some(Instant::now() + Duration::from_secs_f64(left));
        }
        if let Some(text) = lines(&event) {
            let _ = terminal::stderr().over_line("");
            note(&text);
        }
        let RunState { done, of, .. } = self.state;
        if of > 0 && done != of {
            let left = self.ends.map_or(Duration::ZERO, |ends| {
                ends.saturating_duration_since(Instant::now())
            });
            let line = format!(
                "[{done}/{of}] {} … {}   about {} left",
                self.trial,
                self.state.trial.phase,
                in_words(left)
            );
            let width = 79;
            let shown: String = line.chars().take(width).collect();
            // A closed terminal has sent SIGHUP, which ends the run.
            let _ = terminal::stderr().over_line(&shown);
        }
    }
}

fn lines(event: &Event) -> Option<String> {
    match event {
        Event::Note { message } => Some(message.clone()),
        Event::Started {
            plan,
            results,
            trials,
            finished,
            expected_seconds,
        } => {
            let resumed = if *finished > 0 {
                format!(", {finished} already there")
            } else {
                String::new()
            };
            let expected = in_words(Duration::from_secs_f64(expected_seconds.max(0.0)));
            Some(format!(
                "{plan}: {} to run{resumed}, about {expected}; results in {results}",
                counted(*trials, "trial")
            ))
        }
        Event::TrialStarted { .. }
        | Event::Phase { .. }
        | Event::Objective { .. }
        | Event::Sampled(_)
        | Event::Metered(_) => None,
        Event::TrialFinished(FinishedTrial {
            treatment,
            seconds,
            done,
            of,
            headline,
            suspect,
            failed,
            ..
        }) => {
            let width = of.to_string().len();
            let mut text = format!("[{done:width$}/{of}] {treatment}  {seconds:.1} s");
            match failed {
                Some(reason) => text.push_str(&format!("  FAILED: {reason}")),
                None => text.push_str(&format!("  {headline}")),
            }
            for reason in suspect {
                text.push_str(&format!("\n        suspect: {reason}"));
            }
            Some(text)
        }
    }
}

/// A duration in words: `45 s`, `3 min 20 s`, `2 h 05 min`.
pub fn in_words(time: Duration) -> String {
    let seconds = time.as_secs_f64().round() as u64;
    match seconds {
        0..60 => format!("{seconds} s"),
        60..3600 => format!("{} min {:02} s", seconds / 60, seconds % 60),
        _ => format!("{} h {:02} min", seconds / 3600, seconds / 60 % 60),
    }
}
