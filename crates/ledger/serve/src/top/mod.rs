// SPDX-License-Identifier: Apache-2.0
//! `vtax top`: guests by their full cost to the host.

mod rows;
mod table;
mod terminal;

pub use rows::{Key, Party, Rates, Row, Sort, StagePercents, WaitedFor};

use rustix::process::{Signal, getpid, kill_process};
use std::fmt::Write as _;
use std::io::{self, ErrorKind, Write};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use table::{Line, Style, View};
use terminal::Screen;
use vtax_charge::pace::Pace;
use vtax_charge::{LedgerSnapshot, Watch};
use vtax_core::terminal::{self as output, shown};
use vtax_observe::ObserveError;

/// Options of `vtax top`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TopOptions {
    /// Time between passes.
    pub interval: Duration,
    /// The number of intervals; `None`: until stopped.
    pub count: Option<u64>,
    /// Writes one JSON object per interval instead of tables.
    pub json: bool,
    /// The order at the start.
    pub sort: Sort,
}

/// The reason that a run failed.
#[derive(Debug, thiserror::Error)]
pub enum TopError {
    /// The host cannot be read.
    #[error(transparent)]
    Observe(#[from] ObserveError),
    /// The terminal or the output failed.
    #[error("cannot show the table: {0}")]
    Show(#[from] io::Error),
}

/// Shows guests until `stop` is set or `q` is typed: on a screen where standard input and output are a terminal, else
/// as one table per interval.
///
/// # Errors
/// When the host cannot be read, or the output fails. A closed pipe is not an error.
pub fn run(mut watch: Watch, options: &TopOptions, stop: &AtomicBool) -> Result<(), TopError> {
    let outcome = if options.count.is_some() || options.json || !terminal::is_interactive() {
        print(&mut watch, options, stop)
    } else {
        Interactive::start(&mut watch, options)?.run(&mut watch, stop)
    };
    match outcome {
        Err(TopError::Show(cause)) if cause.kind() == ErrorKind::BrokenPipe => Ok(()),
        other => other,
    }
}

fn print(watch: &mut Watch, options: &TopOptions, stop: &AtomicBool) -> Result<(), TopError> {
    watch.pass()?;
    let mut pace = Pace::new(options.interval);
    let mut out = if options.json {
        output::data()
    } else {
        output::stdout()
    };
    let mut left = options.count;
    while left != Some(0) && pace.wait(stop) {
        left = left.map(|left| left - 1);
        let mut snapshot = watch.pass()?;
        add_notes(&mut snapshot, watch);
        let rates = Rates::from_snapshot(&snapshot, options.sort);
        if options.json {
            let line = serde_json::to_string(&rates).map_err(io::Error::from)?;
            writeln!(out, "{line}")?;
        } else {
            let view = View {
                width: terminal::width(),
                sort: options.sort,
                ..View::default()
            };
            for line in table::lines(&rates, &view) {
                writeln!(out, "{}", line.text)?;
            }
            if left != Some(0) {
                writeln!(out)?;
            }
        }
        out.flush()?;
    }
    Ok(())
}

/// Adds the limitations of this host, which are problems of every interval.
fn add_notes(snapshot: &mut LedgerSnapshot, watch: &Watch) {
    snapshot.problems.extend(watch.notes().iter().cloned());
}

struct Interactive {
    screen: Screen,
    pace: Pace,
    shown: LedgerSnapshot,
    view: View,
    size: (usize, usize),
}

/// The effect of a key.
enum Next {
    Nothing,
    Redraw,
    Quit,
    Suspend,
}

impl Interactive {
    /// Starts with a short interval, so that the first screen has values.
    fn start(watch: &mut Watch, options: &TopOptions) -> Result<Self, TopError> {
        watch.pass()?;
        std::thread::sleep(options.interval.min(Duration::from_millis(250)));
        let mut shown = watch.pass()?;
        add_notes(&mut shown, watch);
        Ok(Self {
            screen: Screen::enter()?,
            pace: Pace::new(options.interval),
            shown,
            view: View {
                sort: options.sort,
                ..View::default()
            },
            size: (0, 0),
        })
    }

    fn run(mut self, watch: &mut Watch, stop: &AtomicBool) -> Result<(), TopError> {
        self.draw()?;
        // A signal ends a wait; a signal just before the wait is noticed after this time.
        let look = Duration::from_millis(250);
        while !stop.load(Ordering::SeqCst) {
            let mut redraw = self.screen.size() != self.size;
            let typed = self.screen.keys(self.pace.left().min(look))?;
            for key in keys(&typed) {
                match self.press(key) {
                    Next::Nothing => {}
                    Next::Redraw => redraw = true,
                    Next::Quit => return Ok(()),
                    Next::Suspend => {
                        self = self.suspend()?;
                        redraw = true;
                    }
                }
            }
            if self.pace.left().is_zero() {
                self.pace.advance();
                // A pass is taken while paused too, so that the first interval afterwards is as long as others.
                let mut snapshot = watch.pass()?;
                if !self.view.paused {
                    add_notes(&mut snapshot, watch);
                    self.shown = snapshot;
                    redraw = true;
                }
            }
            if redraw {
                self.draw()?;
            }
        }
        Ok(())
    }

    fn press(&mut self, key: Pressed) -> Next {
        let page = self.view.room().max(1);
        match key {
            Pressed::Char('q' | '\x03' | '\x04' | '\x1c') => return Next::Quit,
            Pressed::Char('\x1a') => return Next::Suspend,
            Pressed::Char('r') => self.view.sort.reversed = !self.view.sort.reversed,
            Pressed::Char(' ') => self.view.paused = !self.view.paused,
            Pressed::Up | Pressed::Char('k') => {
                self.view.skipped = self.view.skipped.saturating_sub(1)
            }
            Pressed::Down | Pressed::Char('j') => self.view.skipped += 1,
            Pressed::PageUp => self.view.skipped = self.view.skipped.saturating_sub(page),
            Pressed::PageDown => self.view.skipped = self.view.skipped.saturating_add(page),
            Pressed::Home => self.view.skipped = 0,
            Pressed::End => self.view.skipped = usize::MAX,
            Pressed::Char(letter) => {
                let mut all = Key::ALL.into_iter();
                let Some((.., key)) = all.find(|(own, ..)| *own == letter) else {
                    return Next::Nothing;
                };
                self.view.sort.key = key;
                self.view.skipped = 0;
            }
            Pressed::Other => return Next::Nothing,
        }
        Next::Redraw
    }

    /// Suspends on Ctrl-Z: the shell gets its terminal back until it continues this process.
    fn suspend(self) -> io::Result<Self> {
        let Self {
            screen,
            pace,
            shown,
            view,
            ..
        } = self;
        drop(screen);
        kill_process(getpid(), Signal::TSTP)?;
        Ok(Self {
            screen: Screen::enter()?,
            pace,
            shown,
            view,
            size: (0, 0),
        })
    }

    fn draw(&mut self) -> io::Result<()> {
        self.size = self.screen.size();
        self.view.width = self.size.0;
        self.view.height = Some(self.size.1);
        let last = self.shown.guests.len().saturating_sub(self.view.room());
        self.view.skipped = self.view.skipped.min(last);
        let rates = Rates::from_snapshot(&self.shown, self.view.sort);
        self.screen.show(&frame(&table::lines(&rates, &self.view)))
    }
}

/// Returns the lines as one write over the earlier frame, without a flicker. A line is erased before it is written:
/// after a line as wide as the screen, the cursor is still on its last character, which erasing would remove.
fn frame(lines: &[Line]) -> String {
    let mut frame = String::from("\x1b[H");
    for (index, line) in lines.iter().enumerate() {
        if index > 0 {
            frame.push_str("\r\n");
        }
        // The last line also erases the rows below it, left by an earlier, higher screen.
        let erase = if index + 1 < lines.len() { "K" } else { "J" };
        let style = match line.style {
            Style::Plain => "",
            Style::Heading => "\x1b[7m",
            Style::Faint => "\x1b[2m",
        };
        // Writing to a string does not fail.
        let _ = write!(frame, "\x1b[{erase}{style}{}\x1b[0m", shown(&line.text));
    }
    frame
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Pressed {
    Char(char),
    Up,
    Down,
    PageUp,
    PageDown,
    Home,
    End,
    /// A key without a function. The rest of its sequence must not be taken for letters.
    Other,
}

/// Returns the keys in one read from a terminal.
fn keys(typed: &[u8]) -> Vec<Pressed> {
    let mut keys = Vec::new();
    let mut rest = typed;
    while let Some((&first, tail)) = rest.split_first() {
        rest = tail;
        if first != 0x1b {
            let c = char::from(first).to_ascii_lowercase();
            keys.push(if first.is_ascii() {
                Pressed::Char(c)
            } else {
                Pressed::Other
            });
            continue;
        }
        let Some((b'[' | b'O', tail)) = rest.split_first() else {
            keys.push(Pressed::Other);
            continue;
        };
        // Parameters, then one final byte.
        let end = tail.iter().position(|byte| (0x40..=0x7e).contains(byte));
        let end = end.unwrap_or(tail.len().saturating_sub(1));
        let (sequence, after) = tail.split_at((end + 1).min(tail.len()));
        rest = after;
        keys.push(match sequence {
            b"A" => Pressed::Up,
            b"B" => Pressed::Down,
            b"H" | b"1~" | b"7~" => Pressed::Home,
            b"F" | b"4~" | b"8~" => Pressed::End,
            b"5~" => Pressed::PageUp,
            b"6~" => Pressed::PageDown,
            _ => Pressed::Other,
        });
    }
    keys
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn keys_are_read_one_by_one_and_unknown_sequences_are_no_letters() {
        use Pressed::{Char, Down, Other, PageUp, Up};
        assert_eq!(
            keys(b"cW\x1b[A\x1bOB\x1b[5~q"),
            [Char('c'), Char('w'), Up, Down, PageUp, Char('q')]
        );
        assert_eq!(keys(b"\x1b[1;5C\x1b[20~x"), [Other, Other, Char('x')]);
        assert_eq!(keys(b"\x1b"), [Other]);
        assert_eq!(keys(b"\x1b["), [Other]);
    }

    #[test]
    fn a_frame_overwrites_the_last_one_and_keeps_its_own_last_column() {
        let line = |text: &str| Line {
            text: text.to_owned(),
            style: Style::Heading,
        };
        let frame = frame(&[line("a"), line("b")]);
        assert_eq!(
            frame,
            "\x1b[H\x1b[K\x1b[7ma\x1b[0m\r\n\x1b[J\x1b[7mb\x1b[0m"
        );
    }

    proptest! {
        #[test]
        fn nothing_that_is_typed_panics(typed in prop::collection::vec(any::<u8>(), 0..300)) {
            let _ = keys(&typed);
        }
    }
}
