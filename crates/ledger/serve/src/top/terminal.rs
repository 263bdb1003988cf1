// SPDX-License-Identifier: Apache-2.0
//! The terminal of a screen, and its restoration at the end, on an error and on a panic of any thread.

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::termios::{
    LocalModes, OptionalActions, SpecialCodeIndex, Termios, isatty, tcgetattr, tcgetwinsize,
    tcsetattr,
};
use std::io::{self, Write};
use std::sync::{Mutex, Once, PoisonError};
use std::time::Duration;
use vtax_charge::pace::timespec;
use vtax_core::terminal as output;

/// Enters the alternate screen, hides the cursor and disables wrapping at the right edge.
const ENTER: &[u8] = b"\x1b[?1049h\x1b[?25l\x1b[?7l";
/// Reverts `ENTER` and resets colours.
const LEAVE: &[u8] = b"\x1b[0m\x1b[?7h\x1b[?25h\x1b[?1049l";

/// The terminal's settings before the screen; set while a screen is in use.
static BEFORE: Mutex<Option<Termios>> = Mutex::new(None);

/// Returns whether there is a terminal for a screen and for its keys.
pub fn is_interactive() -> bool {
    isatty(io::stdin()) && isatty(output::stdout())
}

/// Returns the columns of the terminal at standard output; 80 without a terminal.
pub fn width() -> usize {
    size().0
}

fn size() -> (usize, usize) {
    match tcgetwinsize(output::stdout()) {
        Ok(size) if size.ws_col > 0 && size.ws_row > 0 => {
            (usize::from(size.ws_col), usize::from(size.ws_row))
        }
        _ => (80, 24),
    }
}

/// A terminal in screen mode until this is dropped.
#[derive(Debug)]
pub struct Screen(());

impl Screen {
    /// Enters screen mode: no echo, unbuffered keys, Ctrl-C and Ctrl-Z as keys.
    ///
    /// # Errors
    /// When there is no terminal or it was closed.
    pub fn enter() -> io::Result<Self> {
        static HOOK: Once = Once::new();
        HOOK.call_once(|| {
            let before = std::panic::take_hook();
            // The terminal is restored before the message is printed, which would be lost on the alternate screen.
            std::panic::set_hook(Box::new(move |panic| {
                restore();
                before(panic);
            }));
        });
        let found = tcgetattr(io::stdin())?;
        let mut raw = found.clone();
        raw.local_modes
            .remove(LocalModes::ICANON | LocalModes::ECHO | LocalModes::ISIG | LocalModes::IEXTEN);
        raw.special_codes[SpecialCodeIndex::VMIN] = 0;
        raw.special_codes[SpecialCodeIndex::VTIME] = 0;
        *BEFORE.lock().unwrap_or_else(PoisonError::into_inner) = Some(found);
        let screen = Self(());
        tcsetattr(io::stdin(), OptionalActions::Now, &raw)?;
        write(ENTER)?;
        Ok(screen)
    }

    /// Returns columns and lines.
    pub fn size(&self) -> (usize, usize) {
        size()
    }

    /// Writes a frame.
    ///
    /// # Errors
    /// When the terminal was closed.
    pub fn show(&self, frame: &str) -> io::Result<()> {
        write(frame.as_bytes())
    }

    /// Returns typed keys as the terminal sends them; empty after `wait` without a key, or after a signal.
    ///
    /// # Errors
    /// When the terminal was closed.
    pub fn keys(&self, wait: Duration) -> io::Result<Vec<u8>> {
        let stdin = io::stdin();
        let mut waiting = [PollFd::new(&stdin, PollFlags::IN)];
        match poll(&mut waiting, Some(&timespec(wait))) {
            Ok(0) | Err(Errno::INTR) => return Ok(Vec::new()),
            Ok(_) => {}
            Err(cause) => return Err(cause.into()),
        }
        let [waiting] = waiting;
        let mut typed = [0u8; 256];
        let read = match rustix::io::read(&stdin, &mut typed) {
            Ok(read) => read,
            Err(Errno::INTR | Errno::AGAIN) => return Ok(Vec::new()),
            Err(cause) => return Err(cause.into()),
        };
        if read == 0
            && waiting
                .revents()
                .intersects(PollFlags::HUP | PollFlags::ERR)
        {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        Ok(typed.get(..read).unwrap_or_default().to_vec())
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        restore();
    }
}

fn restore() {
    let before = BEFORE.lock().unwrap_or_else(PoisonError::into_inner).take();
    if let Some(before) = before {
        // A closed terminal needs no restoration, so errors are ignored.
        let _ = write(LEAVE);
        let _ = tcsetattr(io::stdin(), OptionalActions::Flush, &before);
    }
}

fn write(bytes: &[u8]) -> io::Result<()> {
    #[expect(
        clippy::disallowed_methods,
        reason = "frames of its own, with cleaned text"
    )]
    let mut out = io::stdout().lock();
    out.write_all(bytes)?;
    out.flush()
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{Mode, OFlags, open};
    use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
    use std::fs::File;
    use std::io::Read;
    use std::process::{Command, Stdio};

    const ROLE: &str = "VTAX_SCREEN_TEST_CHILD";

    /// Not a test of its own: the process whose terminal the other test reads.
    #[test]
    fn child_process() {
        if std::env::var_os(ROLE).is_none() {
            return;
        }
        let screen = Screen::enter().unwrap();
        screen.show("shown").unwrap();
        panic!("it broke");
    }

    #[test]
    fn a_panic_gives_the_terminal_back_before_it_says_anything() {
        let ours = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
        grantpt(&ours).unwrap();
        unlockpt(&ours).unwrap();
        let path = ptsname(&ours, Vec::new()).unwrap();
        let theirs = open(path, OFlags::RDWR | OFlags::NOCTTY, Mode::empty()).unwrap();
        let before = tcgetattr(&theirs).unwrap();
        let stdio = || Stdio::from(theirs.try_clone().unwrap());
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args([
                "--exact",
                "top::terminal::tests::child_process",
                "--nocapture",
            ])
            .env(ROLE, "1")
            .stdin(stdio())
            .stdout(stdio())
            .stderr(stdio())
            .spawn()
            .unwrap();
        let mut from = File::from(ours);
        let reader = std::thread::spawn(move || {
            let mut seen = Vec::new();
            let mut piece = [0; 1024];
            while let Ok(read @ 1..) = from.read(&mut piece) {
                seen.extend_from_slice(&piece[..read]);
            }
            String::from_utf8_lossy(&seen).into_owned()
        });
        assert!(!child.wait().unwrap().success());
        assert_eq!(tcgetattr(&theirs).unwrap().local_modes, before.local_modes);
        // The reader ends when the last descriptor of the other side is closed.
        drop(theirs);
        let seen = reader.join().unwrap();
        let left = seen.find("\x1b[?1049l").unwrap();
        assert!(seen.find("shown").unwrap() < left, "{seen}");
        assert!(left < seen.find("it broke").unwrap(), "{seen}");
    }
}
