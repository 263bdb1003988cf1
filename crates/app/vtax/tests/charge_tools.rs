// SPDX-License-Identifier: Apache-2.0
//! `vtax top`, `vtax charge`, `vtax exporter` and `vtax web` on this host, with real processes as guests.

use crate::guest::{
    Guest, Running, eventually, exporter, exporter_with_log, get, get_from, unique,
};
use rustix::fs::{Mode, OFlags, open};
use rustix::process::{Pid, Signal, kill_process};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Winsize, tcgetattr, tcsetwinsize};
use serde_json::Value;
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

fn vtax(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_vtax"));
    command.args(arguments);
    command
}

fn output(arguments: &[&str]) -> String {
    let output = vtax(arguments).output().unwrap();
    let printed = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{arguments:?}: {printed}");
    String::from_utf8(output.stdout).unwrap()
}

fn number(value: &Value) -> f64 {
    value.as_f64().unwrap_or(0.0)
}

#[test]
fn top_shows_a_guest_and_rows_that_add_up() {
    let name = unique("shown");
    let _guest = Guest::start(&name);
    let text = output(&["top", "--count", "1", "--json", "--interval", "1s"]);
    let rates: Value = serde_json::from_str(&text).unwrap();
    let rows = rates["rows"].as_array().unwrap();
    let row = rows
        .iter()
        .find(|row| row["name"] == name.as_str())
        .unwrap();
    assert_eq!(row["platform"], "firecracker");
    assert!(number(&row["cpu_percent"]) > 0.5, "{row}");
    let parts: f64 = rows
        .iter()
        .skip(1)
        .map(|row| number(&row["cpu_percent"]))
        .sum();
    let all = number(&rows[0]["cpu_percent"]);
    assert!((parts - all).abs() <= all * 1e-6, "{parts} and {all}");
}

#[test(needs = [root()])]
fn without_root_guests_are_shown_and_what_is_missing_is_named_in_80_columns() {
    let name = unique("unprivileged");
    let _guest = Guest::start(&name);
    // A directory whose files any user may read and execute.
    let directory = tempfile::tempdir_in("/tmp").unwrap();
    let open = |path: &Path| {
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        std::fs::set_permissions(path, mode).unwrap();
    };
    open(directory.path());
    let program = directory.path().join("vtax");
    std::fs::copy(env!("CARGO_BIN_EXE_vtax"), &program).unwrap();
    open(&program);
    let output = Command::new("setpriv")
        .args(["--reuid=65534", "--regid=65534", "--clear-groups"])
        .args(["--bounding-set=-all", "--"])
        .arg(&program)
        .args(["top", "--count", "1", "--interval", "1s", "--sort", "name"])
        .output()
        .unwrap();
    let (text, printed) = (
        String::from_utf8_lossy(&output.stdout).into_owned(),
        String::from_utf8_lossy(&output.stderr).into_owned(),
    );
    assert!(output.status.success(), "{printed}");
    let row = text.lines().find(|line| line.starts_with("unprivileged-"));
    assert!(row.is_some(), "{text}");
    assert!(text.contains("CAP_BPF and CAP_PERFMON"), "{text}");
    assert!(
        text.lines().all(|line| line.chars().count() <= 80),
        "{text}"
    );
}

#[test]
fn a_hostile_name_cannot_draw_on_the_terminal_or_widen_the_table() {
    let name = format!("{}\n\x1b[2J\u{202e}\"{}", unique("evil"), "x".repeat(4096));
    let _guest = Guest::start(&name);
    let text = output(&[
        "top",
        "--count",
        "1",
        "--interval",
        "500ms",
        "--sort",
        "name",
    ]);
    assert!(text.contains("evil-"), "{text}");
    for line in text.lines() {
        assert!(line.chars().count() <= 80, "{line}");
        assert!(!line.chars().any(char::is_control), "{line:?}");
    }
}

/// The time that a hypervisor below has taken from this machine, in seconds.
fn stolen() -> f64 {
    let stat = std::fs::read_to_string("/proc/stat").unwrap();
    let ticks = stat.split_ascii_whitespace().nth(8).unwrap();
    ticks.parse::<f64>().unwrap() / 100.0
}

#[test(needs = [test_all("takes 5 s")])]
fn records_add_up_to_what_was_measured() {
    let name = unique("billed");
    let _guest = Guest::start(&name);
    let before = stolen();
    let text = output(&["charge", "--interval", "2s", "--count", "2", "--json"]);
    let stolen = stolen() - before;
    let records: Vec<Value> = text
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let (mut measured, mut last) = (0.0, String::new());
    for record in &records {
        if record["ended"] != last.as_str() {
            measured += number(&record["interval_cpu_seconds"]);
            record["ended"].as_str().unwrap().clone_into(&mut last);
        }
    }
    let of = |wanted: &dyn Fn(&&Value) -> bool| -> f64 {
        let wanted = records.iter().filter(wanted);
        wanted.map(|record| number(&record["cpu_seconds"])).sum()
    };
    let sum = of(&|_| true);
    // Kernels book stolen time on the task that it was stolen from, but the measured total excludes it. The sources may
    // also differ by a tick for each processor.
    let slack = measured * 0.01 + 0.1 + stolen;
    assert!(
        (sum - measured).abs() <= slack,
        "{sum} and {measured}, {stolen} stolen"
    );
    let own = of(&|record| record["guest"] == name.as_str());
    assert!(own > 0.02 && own < measured, "{own} of {measured}");
    for party in ["host", "unattributed"] {
        assert!(
            records.iter().any(|record| record["party"] == party),
            "{party}"
        );
    }
}

#[test]
fn a_bill_that_is_stopped_has_the_interval_so_far() {
    let mut child = vtax(&["charge", "--interval", "1h", "--format", "csv"])
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .map(Running)
        .unwrap();
    let mut out = BufReader::new(child.0.stdout.take().unwrap());
    let mut names = String::new();
    // The line is written when the first interval has begun.
    out.read_line(&mut names).unwrap();
    assert!(
        names.contains("cpu_seconds") && names.contains("energy_joules"),
        "{names}"
    );
    std::thread::sleep(Duration::from_millis(300));
    kill_process(Pid::from_child(&child.0), Signal::TERM).unwrap();
    let mut rest = String::new();
    out.read_to_string(&mut rest).unwrap();
    assert!(child.0.wait().unwrap().success());
    let last = rest.lines().last().unwrap();
    assert!(last.contains(",unattributed,"), "{rest}");
    let seconds: f64 = last.split(',').nth(2).unwrap().parse().unwrap();
    assert!(seconds > 0.2 && seconds < 60.0, "{seconds}");
}

#[test]
fn a_reader_that_goes_away_is_no_failure() {
    for arguments in [
        &["charge", "--interval", "100ms", "--json"][..],
        &["top", "--json", "--interval", "100ms"],
    ] {
        let mut child = vtax(arguments)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .map(Running)
            .unwrap();
        let mut out = BufReader::new(child.0.stdout.take().unwrap());
        out.read_line(&mut String::new()).unwrap();
        drop(out);
        let mut printed = String::new();
        child
            .0
            .stderr
            .take()
            .unwrap()
            .read_to_string(&mut printed)
            .unwrap();
        assert!(
            child.0.wait().unwrap().success() && !printed.contains("panic"),
            "{printed}"
        );
    }
}

#[test]
fn wrong_arguments_are_answered_with_what_is_right() {
    for (arguments, expected) in [
        (&["charge", "--format", "xml"][..], "csv, json"),
        (&["charge", "--json", "--interval", "10"], "unit"),
        (&["top", "--sort", "load"], "softirq"),
        (&["exporter", "--listen", "here"], "unix:PATH"),
        (
            &["exporter", "--listen", "203.0.113.1:19190"],
            "give a token",
        ),
    ] {
        let output = vtax(arguments).output().unwrap();
        let printed = String::from_utf8_lossy(&output.stderr);
        assert!(
            !output.status.success() && printed.contains(expected),
            "{arguments:?}: {printed}"
        );
    }
}

#[test]
fn the_exporter_shows_a_guest_that_only_grows_until_it_is_gone() {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("vtax.sock");
    let on_socket = format!("unix:{}", socket.display());
    let name = unique("exported");
    let guest = Guest::start(&name);
    let (mut child, address) = exporter(&["--interval", "200ms", "--listen", &on_socket]);
    let label = format!("guest=\"{name}\"");
    let used = |text: &str| -> f64 {
        let lines = text.lines().filter(|line| {
            line.starts_with("vtax_guest_cpu_seconds_total") && line.contains(&label)
        });
        lines
            .map(|line| line.rsplit(' ').next().unwrap().parse::<f64>().unwrap())
            .sum()
    };
    let mut before = 0.0;
    eventually("a guest that uses time", || {
        let text = get(&address, "/metrics", "")?;
        let now = used(&text);
        assert!(now >= before, "{now} after {before}");
        before = now;
        if now > 0.05 { Ok(()) } else { Err(text) }
    });
    let stream = UnixStream::connect(&socket).unwrap();
    let text = get_from(stream, "/metrics", "application/openmetrics-text").unwrap();
    assert!(text.contains(&label) && text.ends_with("# EOF\n"), "{text}");
    drop(guest);
    eventually("its series vanish", || {
        let text = get(&address, "/metrics", "")?;
        if text.contains(&label) {
            Err(text)
        } else {
            Ok(())
        }
    });
    assert_eq!(get(&address, "/healthz", "").unwrap(), "ok\n");
    kill_process(Pid::from_child(&child.0), Signal::TERM).unwrap();
    assert!(child.0.wait().unwrap().success());
    assert!(!socket.exists());
}

#[test]
fn the_exporter_open_to_other_hosts_answers_nobody_without_its_token() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("token");
    fs::write(&file, "0123456789abcdef\n").unwrap();
    fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
    let file = file.to_str().unwrap();
    let socket = directory.path().join("vtax.sock");
    let on_socket = format!("unix:{}", socket.display());
    let wide = ["--listen", "0.0.0.0:0", "--listen", &on_socket];
    let arguments = [&wide[..], &["--token-file", file]].concat();
    let (mut child, address, log) = exporter_with_log(&arguments);
    let with = |token: &str| format!("text/plain\r\nAuthorization: Bearer {token}");
    let refused = get(&address, "/metrics", "").unwrap_err();
    assert!(refused.starts_with("HTTP/1.1 401 "), "{refused}");
    let refused = get(&address, "/metrics", &with("0123456789abcdeg")).unwrap_err();
    assert!(refused.starts_with("HTTP/1.1 401 "), "{refused}");
    eventually("the metrics", || {
        get(&address, "/metrics", &with("0123456789abcdef")).map(drop)
    });
    let stream = UnixStream::connect(&socket).unwrap();
    assert!(get_from(stream, "/metrics", "").is_ok(), "the mode decides");
    kill_process(Pid::from_child(&child.0), Signal::TERM).unwrap();
    assert!(child.0.wait().unwrap().success());
    let log = log.join().unwrap();
    // The second refusal is another line only if it came a second later.
    let mut refusals = log
        .lines()
        .filter(|line| line.contains(" is refused with 401: "));
    assert!(refusals.next().unwrap().contains(" WARN "), "{log}");
    assert!(!log.contains("0123456789abcde"), "no token: {log}");
    assert!(
        log.contains(" INFO vtax_serve::exporter: ends after "),
        "{log}"
    );
}

#[test]
fn the_help_of_the_exporter_has_only_what_pushes_under_pushing() {
    let output = vtax(&["exporter", "--help"]).output().unwrap();
    let help = String::from_utf8(output.stdout).unwrap();
    let (others, pushing) = help.split_once("\nPushing:\n").unwrap();
    for name in [
        "--method",
        "--weights",
        "--idle",
        "--idle-watts",
        "--listen",
    ] {
        assert!(others.contains(&format!("{name} ")), "{name}: {help}");
    }
    let names = pushing
        .lines()
        .filter_map(|line| line.trim_start().strip_prefix("--"));
    for name in names {
        let name = name.split(' ').next().unwrap();
        assert!(
            name.starts_with("push") || name.starts_with("queue"),
            "{name}"
        );
    }
}

#[test]
fn the_page_shows_a_guest_live_stays_on_this_host_and_ends_when_asked() {
    let name = unique("paged");
    let _guest = Guest::start(&name);
    let state = tempfile::tempdir().unwrap();
    let mut child = vtax(&["web", "--listen", "0"])
        .env("VTAX_STATE_DIR", state.path())
        .stderr(Stdio::piped())
        .spawn()
        .map(Running)
        .unwrap();
    let mut printed = BufReader::new(child.0.stderr.take().unwrap()).lines();
    let line = printed.next().unwrap().unwrap();
    let reported = line.split("http://").nth(1).unwrap();
    let (address, file) = reported
        .split_once("; the operator's token is in ")
        .expect("no terminal, so there is no token in the output");
    let token = fs::read_to_string(file).unwrap();
    assert!(
        token.trim().len() > 32 && !line.contains(token.trim()),
        "{line}"
    );
    let mode = fs::metadata(file).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let mut stream = TcpStream::connect(address).unwrap();
    stream
        .set_read_timeout(Some(Duration::from_secs(30)))
        .unwrap();
    write!(
        stream,
        "GET /api/live?find={name} HTTP/1.1\r\nHost: localhost\r\n\r\n"
    )
    .unwrap();
    let cpu = |row: &Value| -> f64 { (0..6).map(|stage| number(&row["values"][stage])).sum() };
    let updates = BufReader::new(stream).lines().map_while(Result::ok);
    let shown = updates
        .filter_map(|line| serde_json::from_str::<Value>(line.strip_prefix("data: ")?).ok())
        .take(30)
        .find_map(|update| Some(update["rows"][0].clone()).filter(|row| cpu(row) > 0.5))
        .unwrap();
    assert_eq!(shown["name"], name.as_str());
    assert_eq!(shown["platform"], "firecracker");
    let mut stream = TcpStream::connect(address).unwrap();
    let evil = "GET / HTTP/1.1\r\nHost: evil.example\r\nConnection: close\r\n\r\n";
    stream.write_all(evil.as_bytes()).unwrap();
    stream.read_to_end(&mut Vec::new()).unwrap();
    kill_process(Pid::from_child(&child.0), Signal::TERM).unwrap();
    assert!(child.0.wait().unwrap().success());
    let log: Vec<String> = printed.map(Result::unwrap).collect();
    for (level, text) in [
        ("INFO", "runs can be started from it"),
        ("WARN", "it names the host [\"evil.example\"]"),
        ("INFO", "the page ends"),
    ] {
        let is_it = |line: &String| line.contains(level) && line.contains(text);
        assert!(log.iter().any(is_it), "{text}: {log:#?}");
    }
    assert!(!log.concat().contains(token.trim()), "{log:#?}");
    assert!(!Path::new(file).exists(), "the token goes with the page");
    let refused = vtax(&["web", "--listen", "0.0.0.0:0"]).output().unwrap();
    assert_eq!(refused.status.code(), Some(1));
    let why = String::from_utf8_lossy(&refused.stderr);
    assert!(why.contains("ssh -L"), "{why}");
}

/// `vtax top` on a terminal of its own, 80 × 24.
struct Terminal {
    ours: File,
    theirs: OwnedFd,
    child: Running,
    seen: Arc<Mutex<Vec<u8>>>,
}

impl Terminal {
    fn start() -> Self {
        let ours = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
        grantpt(&ours).unwrap();
        unlockpt(&ours).unwrap();
        let path = ptsname(&ours, Vec::new()).unwrap();
        let theirs = open(path, OFlags::RDWR | OFlags::NOCTTY, Mode::empty()).unwrap();
        let size = Winsize {
            ws_row: 24,
            ws_col: 80,
            ws_xpixel: 0,
            ws_ypixel: 0,
        };
        tcsetwinsize(&theirs, size).unwrap();
        let stdio = || Stdio::from(theirs.try_clone().unwrap());
        let child = vtax(&["top", "--interval", "200ms"])
            .stdin(stdio())
            .stdout(stdio())
            .stderr(stdio())
            .spawn()
            .map(Running)
            .unwrap();
        let seen = Arc::new(Mutex::new(Vec::new()));
        let ours = File::from(ours);
        let (mut from, into) = (ours.try_clone().unwrap(), Arc::clone(&seen));
        std::thread::spawn(move || {
            let mut piece = [0; 4096];
            while let Ok(read @ 1..) = from.read(&mut piece) {
                into.lock().unwrap().extend_from_slice(&piece[..read]);
            }
        });
        Self {
            ours,
            theirs,
            child,
            seen,
        }
    }

    fn seen(&self) -> String {
        String::from_utf8_lossy(&self.seen.lock().unwrap()).into_owned()
    }

    /// The lines of the last whole frame, without escape sequences.
    fn frame(&self) -> Option<Vec<String>> {
        let seen = self.seen();
        // The last line of a frame ends with J; a frame without it is incomplete.
        let is_whole = |frame: &&str| frame.contains("\x1b[J") && frame.ends_with("\x1b[0m");
        let frame = seen.rsplit("\x1b[H").find(is_whole)?;
        let plain = ["\x1b[0m", "\x1b[2m", "\x1b[7m", "\x1b[K", "\x1b[J"]
            .into_iter()
            .fold(frame.to_owned(), |text, code| text.replace(code, ""));
        // The terminal driver adds a carriage return at the end of each line.
        let lines = plain.split("\r\n").map(|line| line.trim_end_matches('\r'));
        Some(lines.map(str::to_owned).collect())
    }

    fn wait_for(&self, what: &str, is_there: impl Fn(&[String]) -> bool) -> Vec<String> {
        eventually(what, || match self.frame() {
            Some(frame) if is_there(&frame) => Ok(frame),
            _ => Err(self.seen()),
        })
    }
}

#[test]
fn the_screen_has_80_columns_and_sorts_by_keys() {
    let name = unique("seen");
    let _guest = Guest::start(&name);
    let mut terminal = Terminal::start();
    let shown = name.chars().take(13).collect::<String>();
    let frame = terminal.wait_for("the guest", |frame| {
        frame.iter().any(|line| line.starts_with(&shown))
    });
    assert_eq!(frame.len(), 24, "{frame:#?}");
    for line in &frame {
        assert!(
            line.chars().count() <= 80 && !line.chars().any(char::is_control),
            "{line:?}"
        );
    }
    assert!(
        frame.iter().any(|line| line.starts_with("unattributed ")),
        "{frame:#?}"
    );
    terminal.ours.write_all(b"p").unwrap();
    terminal.wait_for("sorted by packets", |frame| frame[2].contains(">PKT"));
    terminal.ours.write_all(b"r").unwrap();
    terminal.wait_for("reversed", |frame| frame[2].contains("<PKT"));
    let size = Winsize {
        ws_row: 10,
        ws_col: 100,
        ws_xpixel: 0,
        ws_ypixel: 0,
    };
    tcsetwinsize(&terminal.theirs, size).unwrap();
    terminal.wait_for("the new size", |frame| {
        frame.len() == 10 && frame[2].chars().count() == 100
    });
}

#[test]
fn the_terminal_is_given_back_as_it_was_found() {
    type End = fn(&mut Terminal);
    let ends: [(&str, End); 4] = [
        ("q", |terminal| terminal.ours.write_all(b"q").unwrap()),
        ("Ctrl-C", |terminal| {
            terminal.ours.write_all(b"\x03").unwrap()
        }),
        ("SIGTERM", |terminal| {
            kill_process(Pid::from_child(&terminal.child.0), Signal::TERM).unwrap()
        }),
        ("SIGINT", |terminal| {
            kill_process(Pid::from_child(&terminal.child.0), Signal::INT).unwrap()
        }),
    ];
    for (name, end) in ends {
        let mut terminal = Terminal::start();
        let before = tcgetattr(&terminal.theirs).unwrap();
        terminal.wait_for("a frame", |_| true);
        let during = tcgetattr(&terminal.theirs).unwrap();
        assert_ne!(during.local_modes, before.local_modes, "{name}: taken over");
        end(&mut terminal);
        assert!(
            terminal.child.0.wait().unwrap().success(),
            "{name}: {}",
            terminal.seen()
        );
        let after = tcgetattr(&terminal.theirs).unwrap();
        assert_eq!(after.local_modes, before.local_modes, "{name}");
        assert_eq!(after.input_modes, before.input_modes, "{name}");
        eventually("the screen from before, with its cursor", || {
            let seen = terminal.seen();
            if seen.ends_with("\x1b[0m\x1b[?7h\x1b[?25h\x1b[?1049l") {
                Ok(())
            } else {
                Err(seen)
            }
        });
    }
}
