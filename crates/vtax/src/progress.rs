//! How a run looks: one moving line on a terminal, plain lines in a log, JSON for programs.

use std::io::{self, IsTerminal, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use vtax_host::signals::Signals;
use vtax_lab::run::{Event, Progress};

/// JSON lines, or what fits where standard error goes.
pub fn choose(json: bool, signals: &Signals) -> Box<dyn Progress> {
    if json {
        Box::new(Json {
            interrupted: signals.flag(),
        })
    } else {
        for_people()
    }
}

/// The progress that fits where standard error goes.
pub fn for_people() -> Box<dyn Progress> {
    if io::stderr().is_terminal() {
        Box::new(Terminal::default())
    } else {
        Box::new(Plain)
    }
}

/// One JSON object a line on standard output.
struct Json {
    /// Set when nobody reads any more: a run over ssh whose connection broke must end.
    interrupted: Arc<AtomicBool>,
}

impl Progress for Json {
    fn event(&mut self, event: Event) {
        if let Ok(line) = serde_json::to_string(&event) {
            let mut out = io::stdout().lock();
            if writeln!(out, "{line}").and_then(|()| out.flush()).is_err() {
                self.interrupted.store(true, Ordering::Relaxed);
            }
        }
    }
}

/// Plain lines.
struct Plain;

impl Progress for Plain {
    fn event(&mut self, event: Event) {
        if let Some(text) = lines(&event) {
            eprintln!("{text}");
        }
    }
}

/// Plain lines above one line that moves.
#[derive(Default)]
struct Terminal {
    trial: String,
    phase: String,
    done: usize,
    of: usize,
    ends: Option<Instant>,
}

impl Progress for Terminal {
    fn event(&mut self, event: Event) {
        match &event {
            Event::Started {
                trials,
                expected_seconds,
                ..
            } => {
                self.of = *trials;
                self.ends =
                    Some(Instant::now() + Duration::from_secs_f64(expected_seconds.max(0.0)));
            }
            Event::TrialStarted { treatment, .. } => self.trial.clone_from(treatment),
            Event::Phase { phase } => self.phase.clone_from(phase),
            Event::TrialFinished {
                done,
                remaining_seconds,
                ..
            } => {
                self.done = *done;
                self.ends =
                    Some(Instant::now() + Duration::from_secs_f64(remaining_seconds.max(0.0)));
            }
            Event::Note { .. } | Event::Sampled { .. } => {}
        }
        if let Some(text) = lines(&event) {
            eprintln!("\r\x1b[K{text}");
        }
        let finished = self.of > 0 && self.done == self.of;
        if self.of > 0 && !finished {
            let left = self.ends.map_or(Duration::ZERO, |ends| {
                ends.saturating_duration_since(Instant::now())
            });
            let line = format!(
                "[{}/{}] {} … {}   about {} left",
                self.done,
                self.of,
                self.trial,
                self.phase,
                in_words(left)
            );
            let width = 79;
            let shown: String = line.chars().take(width).collect();
            eprint!("\r\x1b[K{shown}");
            let _ = io::stderr().flush();
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
                "{plan}: {trials} trials to run{resumed}, about {expected}; results in {results}"
            ))
        }
        Event::TrialStarted { .. } | Event::Phase { .. } | Event::Sampled { .. } => None,
        Event::TrialFinished {
            treatment,
            seconds,
            done,
            of,
            headline,
            suspect,
            failed,
            ..
        } => {
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

/// `45 s`, `3 min 20 s`, `2 h 05 min`.
pub fn in_words(time: Duration) -> String {
    let seconds = time.as_secs_f64().round() as u64;
    match seconds {
        0..60 => format!("{seconds} s"),
        60..3600 => format!("{} min {:02} s", seconds / 60, seconds % 60),
        _ => format!("{} h {:02} min", seconds / 3600, seconds / 60 % 60),
    }
}
