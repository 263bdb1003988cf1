// SPDX-License-Identifier: Apache-2.0
//! A real `sigrok-cli` reads a Mastech MAS-345 that is a thread behind a pseudo-terminal, through
//! the wall meter, and the joules are those of the current that the thread showed.
//!
//! The protocol (<https://sigrok.org/wiki/MASTECH_MAS345>): the host asks with a byte (`D`) and
//! the multimeter answers with 14 characters at 600 baud, 7n2: mode, space, sign, value, unit,
//! carriage return.

use rustix::fs::{Mode, OFlags, open};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{OptionalActions, tcgetattr, tcsetattr};
use std::fs::File;
use std::io::{ErrorKind, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::Duration;
use tempfile::TempDir;
use vtax_core::Nanoseconds;
use vtax_core::owner::Owner;
use vtax_meter::{Meter, Polled, Volts, WallConfig, host_energy, wall};
use vtax_observe::clock::{Clock, SystemClock};
use vtax_observe::{Instrument, Readings, Snapshot};
use vtax_testkit::{needs::find_program, skip};

/// 600 baud, 10 bits a character, 14 characters: a frame takes 233 ms on the wire.
const FRAME_TIME: Duration = Duration::from_millis(233);

const VOLTS: f64 = 230.0;

/// One answer of the multimeter, as on the wire.
fn frame(mode: &str, value: &str, unit: &str) -> [u8; 14] {
    let text = format!("{mode:<2} {value:>6}{unit:>4}\r");
    text.as_bytes()
        .try_into()
        .expect("a frame has 14 characters")
}

/// A multimeter and the other side of its cable.
struct Multimeter {
    /// A link to the terminal that sigrok opens.
    port: PathBuf,
    /// Every answer: when it was complete, and the amperes in it.
    shown: Arc<Mutex<Vec<(Nanoseconds, f64)>>>,
    thread: Option<JoinHandle<()>>,
    /// Keeps the terminal alive between two openings by sigrok; dropping it ends the thread.
    terminal: Option<OwnedFd>,
}

impl Multimeter {
    /// Answers with each of `currents` in turn, and again from the start.
    fn start(directory: &Path, currents: &'static [f64]) -> Self {
        let controller = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
        grantpt(&controller).unwrap();
        unlockpt(&controller).unwrap();
        let name = ptsname(&controller, Vec::new()).unwrap();
        let terminal = open(&*name, OFlags::RDWR | OFlags::NOCTTY, Mode::empty()).unwrap();
        let mut settings = tcgetattr(&terminal).unwrap();
        settings.make_raw();
        tcsetattr(&terminal, OptionalActions::Now, &settings).unwrap();
        let port = directory.join("multimeter");
        symlink(name.to_str().unwrap(), &port).unwrap();
        let shown = Arc::new(Mutex::new(Vec::new()));
        let thread = {
            let shown = Arc::clone(&shown);
            thread::spawn(move || answer(File::from(controller), currents, &shown))
        };
        Self {
            port,
            shown,
            thread: Some(thread),
            terminal: Some(terminal),
        }
    }

    /// The port as libserialport accepts it. It insists on `/dev/NAME` where `/sys/class/tty/NAME`
    /// exists and is a link; both of these lead through the root to our link.
    fn connection(&self) -> String {
        format!("mastech-mas345:conn=/dev/../../..{}", self.port.display())
    }

    /// The integral of the shown current over time, in joules at [`VOLTS`].
    fn joules(&self, from: Nanoseconds, until: Nanoseconds) -> f64 {
        let shown = self.shown.lock().unwrap();
        let ends = shown.iter().skip(1).map(|(at, _)| *at).chain([until]);
        shown
            .iter()
            .zip(ends)
            .map(|((at, amperes), end)| {
                let (start, end) = ((*at).max(from), end.min(until));
                amperes * VOLTS * end.saturating_since(start).as_secs_f64()
            })
            .sum()
    }
}

impl Drop for Multimeter {
    fn drop(&mut self) {
        self.terminal = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn answer(mut wire: File, currents: &[f64], shown: &Mutex<Vec<(Nanoseconds, f64)>>) {
    // sigrok asks again while an answer is under way; all those requests get one answer.
    let mut requests = [0u8; 256];
    for amperes in currents.iter().cycle() {
        match wire.read(&mut requests) {
            Ok(1..) => (),
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            // The terminal is closed for good.
            _ => return,
        }
        thread::sleep(FRAME_TIME);
        if wire
            .write_all(&frame("AC", &format!("{amperes:.3}"), "A"))
            .is_err()
        {
            return;
        }
        shown.lock().unwrap().push((SystemClock.now(), *amperes));
    }
}

/// A `sigrok-cli` that takes a pseudo-terminal for a serial port; skips the test where the machine cannot make one.
fn sigrok(directory: &Path) -> PathBuf {
    if find_program("sigrok-cli").is_none() {
        skip!("needs the program sigrok-cli");
    }
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/sigrok/serial_port.c");
    let library = directory.join("serial_port.so");
    let built = Command::new("cc")
        .args(["-shared", "-fPIC", "-o"])
        .arg(&library)
        .arg(source)
        .status();
    if !built.is_ok_and(|status| status.success()) {
        skip!("no C compiler for the stand-in of a serial port's modem lines");
    }
    let program = directory.join("sigrok-cli");
    let script = format!(
        "#!/bin/sh\nLD_PRELOAD={} exec sigrok-cli \"$@\"\n",
        library.display()
    );
    // Written by another process: see the same in the wall meter's own tests.
    let written = Command::new("sh")
        .args(["-c", "printf %s \"$1\" > \"$0\" && chmod +x \"$0\""])
        .arg(&program)
        .arg(script)
        .status();
    assert!(written.unwrap().success());
    program
}

fn configuration(program: PathBuf, multimeter: &Multimeter) -> WallConfig {
    let mut config = WallConfig::new(multimeter.connection());
    config.program = program;
    config.volts = Some(Volts(VOLTS));
    config.stands = Duration::from_secs(20);
    config
}

fn snapshot(meter: &mut Polled) -> Snapshot {
    let mut readings = Readings::default();
    let now = SystemClock.now();
    meter.read(now, &mut readings).unwrap();
    Snapshot::from_readings(now, &readings)
}

#[test]
fn frames_are_fourteen_characters_as_the_multimeter_sends_them() {
    assert_eq!(&frame("DC", "-000.0", "V"), b"DC -000.0   V\r");
    assert_eq!(&frame("AC", "00.00", "A"), b"AC  00.00   A\r");
    assert_eq!(&frame("OH", "O.L", "MOhm"), b"OH    O.LMOhm\r");
}

#[test(needs = [test_all("takes 6 s")])]
fn a_mastech_mas345_behind_a_pseudo_terminal_gives_the_joules_of_its_current() {
    let directory = TempDir::new().unwrap();
    let program = sigrok(directory.path());
    let multimeter = Multimeter::start(directory.path(), &[0.5, 0.62, 1.318, 0.4]);
    let config = configuration(program, &multimeter);
    let mut meter = wall(&config, Arc::new(SystemClock)).unwrap();
    assert!(
        meter
            .caveats()
            .iter()
            .any(|caveat| caveat.contains("power factor"))
    );
    let before = snapshot(&mut meter);
    let already = multimeter.shown.lock().unwrap().len();
    while multimeter.shown.lock().unwrap().len() < already + 12 {
        thread::sleep(Duration::from_millis(20));
    }
    let after = snapshot(&mut meter);

    let energy = host_energy([&meter as &dyn Meter]).unwrap();
    let [metric] = energy.series.as_slice() else {
        panic!("{energy:?}")
    };
    let measured = after.since(&before, &Owner::Host, metric).unwrap().value;
    let truth = multimeter.joules(before.at, after.at);
    // Both ends may miss one another by the delay of a frame through sigrok.
    let delay = 1.4 * VOLTS * 0.1;
    assert!(truth > 300.0, "a real amount of energy: {truth} J");
    assert!(
        (measured - truth).abs() < truth * 0.03 + delay,
        "{measured} J for {truth} J"
    );

    let watts = after
        .get(&Owner::Host, "power.wall.host_watts")
        .unwrap()
        .value;
    let possible = [0.5, 0.62, 1.318, 0.4].map(|amperes| amperes * VOLTS);
    assert!(
        possible.iter().any(|power| (power - watts).abs() < 0.01),
        "{watts} W"
    );
}

#[test(needs = [test_all("takes 4 s")])]
fn a_multimeter_without_a_configured_voltage_is_absent_and_says_what_to_configure() {
    let directory = TempDir::new().unwrap();
    let program = sigrok(directory.path());
    let multimeter = Multimeter::start(directory.path(), &[0.5]);
    let config = WallConfig {
        volts: None,
        ..configuration(program, &multimeter)
    };
    let absent = wall(&config, Arc::new(SystemClock)).unwrap_err();
    assert!(absent.reason.contains("needs a voltage"), "{absent}");
}

#[test]
fn a_port_that_is_not_there_is_reported_in_sigroks_own_words() {
    let directory = TempDir::new().unwrap();
    let program = sigrok(directory.path());
    let mut config = WallConfig::new("mastech-mas345:conn=/dev/ttyNOWHERE");
    config.program = program;
    let absent = wall(&config, Arc::new(SystemClock)).unwrap_err();
    assert!(absent.reason.contains("No devices found"), "{absent}");
}
