// SPDX-License-Identifier: Apache-2.0
//! Stop requests: SIGINT, SIGTERM and SIGHUP set a flag that the run loop polls, so that a trial is torn down in
//! order. A second signal ends the process at once; the remaining changes to the host are undone at the next start.

use crate::HostError;
use signal_hook::consts::{SIGHUP, SIGINT, SIGPIPE, SIGTERM};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// The stop requests that this process has received.
#[derive(Debug, Clone)]
pub struct Signals {
    asked: Arc<AtomicBool>,
    which: Arc<AtomicUsize>,
}

impl Signals {
    /// Installs the handlers. Call once, early.
    ///
    /// # Errors
    /// When the kernel refuses a handler.
    pub fn install() -> io::Result<Self> {
        let signals = Self {
            asked: Arc::new(AtomicBool::new(false)),
            which: Arc::new(AtomicUsize::new(0)),
        };
        for signal in [SIGINT, SIGTERM, SIGHUP] {
            // Actions run in the order of registration: at the first signal the flag is still
            // unset when the shutdown looks at it, at the second it is set.
            signal_hook::flag::register_conditional_shutdown(
                signal,
                128 + signal,
                signals.asked.clone(),
            )?;
            let number = usize::try_from(signal).unwrap_or(0);
            signal_hook::flag::register_usize(signal, signals.which.clone(), number)?;
            signal_hook::flag::register(signal, signals.asked.clone())?;
        }
        Ok(signals)
    }

    /// Whether a stop request has arrived.
    pub fn interrupted(&self) -> bool {
        self.asked.load(Ordering::SeqCst)
    }

    /// For the `?` of a loop that stops on request.
    ///
    /// # Errors
    /// [`HostError::Interrupted`] once a signal has arrived.
    pub fn check(&self) -> Result<(), HostError> {
        if self.interrupted() {
            Err(HostError::Interrupted)
        } else {
            Ok(())
        }
    }

    /// The exit status by the shell's convention: 128 + the signal's number; `None` before any signal.
    pub fn exit_status(&self) -> Option<u8> {
        let signal = self.which.load(Ordering::SeqCst);
        self.interrupted()
            .then(|| u8::try_from(128 + signal).unwrap_or(u8::MAX))
    }

    /// The flag itself, for code that takes a flag in place of this type.
    pub fn flag(&self) -> Arc<AtomicBool> {
        self.asked.clone()
    }
}

/// Makes this process end, as by SIGPIPE, when it writes to a pipe whose reader has closed it, as suits a command
/// that only prints. A process that writes to sockets must not call it first: Rust ignores SIGPIPE, so that a closed
/// connection is an error and does not end the process.
///
/// # Errors
/// When the kernel refuses the handler.
pub fn end_with_reader() -> io::Result<()> {
    signal_hook::flag::register_conditional_default(SIGPIPE, Arc::new(AtomicBool::new(true)))?;
    Ok(())
}

/// Ends this process as by SIGPIPE, after an orderly stop because the reader of its output has closed it.
pub fn end_unread() {
    // If the system call fails, the process goes on to end with its own exit status.
    let _ = signal_hook::low_level::emulate_default_handler(SIGPIPE);
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::process::{Pid, Signal, kill_process};
    use std::io::{BufRead, BufReader, Write};
    use std::process::{Child, ChildStdout, Command, Stdio};
    use std::time::Duration;

    const ROLE: &str = "VTAX_SIGNALS_TEST_CHILD";

    /// Not a test by itself: the process that the other tests send signals to.
    #[test]
    fn child_process() {
        if std::env::var_os(ROLE).is_none() {
            return;
        }
        let signals = Signals::install().unwrap();
        assert!(signals.check().is_ok());
        say("ready");
        while !signals.interrupted() {
            std::thread::sleep(Duration::from_millis(2));
        }
        assert!(matches!(signals.check(), Err(HostError::Interrupted)));
        say(&format!("asked {}", signals.exit_status().unwrap()));
        std::thread::sleep(Duration::from_secs(60));
    }

    // The test harness would capture the output of `println!`.
    fn say(line: &str) {
        writeln!(io::stdout().lock(), "\n>{line}").unwrap();
        io::stdout().flush().unwrap();
    }

    fn start() -> (Child, BufReader<ChildStdout>) {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "signals::tests::child_process", "--nocapture"])
            .env(ROLE, "1")
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut output = BufReader::new(child.stdout.take().unwrap());
        wait_for(&mut output, ">ready");
        (child, output)
    }

    fn wait_for(output: &mut impl BufRead, wanted: &str) {
        let mut line = String::new();
        while line.trim() != wanted {
            line.clear();
            assert_ne!(
                output.read_line(&mut line).unwrap(),
                0,
                "the child ended before it printed {wanted}"
            );
        }
    }

    fn send(child: &Child, signal: Signal) {
        kill_process(Pid::from_child(child), signal).unwrap();
    }

    #[test]
    fn first_signal_sets_the_flag_and_a_second_one_ends_the_process_at_once() {
        for (first, printed, second, code) in [
            (Signal::TERM, ">asked 143", Signal::TERM, 143),
            (Signal::INT, ">asked 130", Signal::HUP, 129),
            (Signal::HUP, ">asked 129", Signal::INT, 130),
        ] {
            let (mut child, mut output) = start();
            send(&child, first);
            wait_for(&mut output, printed);
            assert_eq!(
                child.try_wait().unwrap(),
                None,
                "the first signal must not end it"
            );
            send(&child, second);
            assert_eq!(child.wait().unwrap().code(), Some(code));
        }
    }
}
