// SPDX-License-Identifier: Apache-2.0
//! Commands as workloads: with and without a service, and with each way in which one can fail.

use crate::host::*;
use std::time::Duration;
use vtax_guest::platform::Target;
use vtax_host::settings::{Level, Settings};
use vtax_load::workload::command::Definition;
use vtax_load::workload::{Workload, by_kind};

/// A TCP server on port 8099, which prints lines until it is killed.
const SERVER: &str = "python3 -uc 'import socket, time\ns = socket.create_server((\"\", 8099))\nprint(\"listens now\")\nwhile True: s.accept()[0].close()'";
const CLIENT: &str = "bash -c 'exec 3<>/dev/tcp/{target}/8099 && echo answered'";

fn workload() -> &'static dyn Workload {
    by_kind("command").unwrap()
}

fn of(load: &str, service: Option<(&str, &str)>) -> Settings {
    let definition = Definition {
        load: load.to_owned(),
        serve: service.map(|(serve, _)| serve.to_owned()),
        ready: service.map(|(_, ready)| ready.to_owned()),
        ..Definition::default()
    };
    definition.settings()
}

fn with(mut settings: Settings, key: &str, value: f64) -> Settings {
    settings.0.insert(key.to_owned(), Level::Number(value));
    settings
}

/// The error of a command that must fail.
fn failure(settings: &Settings) -> String {
    let failed = drive(&mut Host::new(), workload(), settings).map(String::from_utf8);
    failed.unwrap_err().to_string()
}

#[test(needs = [root()])]
fn a_command_in_the_target_is_timed_by_its_own_clock() {
    let result = run("command", &of("sleep 0.3", None));
    let elapsed = value(&result, "elapsed");
    assert!(elapsed >= 0.3, "{elapsed}");
    assert_eq!(total(&result), 1.0);
}

#[test(needs = [root(), program("python3")])]
fn a_service_is_awaited_by_its_port_its_log_or_its_end() {
    for ready in ["tcp:8099", "log:listens n(.)w"] {
        let result = run("command", &of(CLIENT, Some((SERVER, ready))));
        assert!(value(&result, "elapsed") > 0.0, "{ready}");
    }
    let settings = of("test -e /proc/self", Some(("true", "exit")));
    assert!(value(&run("command", &settings), "elapsed") > 0.0);
}

#[test(needs = [root(), program("python3")])]
fn a_port_that_opens_late_is_awaited_as_long_as_the_plan_says() {
    let late = SERVER.replace(
        "s = socket",
        "print(\"loads data\")\ntime.sleep(1.5)\ns = socket",
    );
    let settings = || of(CLIENT, Some((&late, "tcp:8099")));
    assert!(value(&run("command", &settings()), "elapsed") > 0.0);
    let message = failure(&with(settings(), "load.ready_within_s", 0.5));
    assert!(
        message.contains("port 8099") && message.contains("loads data"),
        "{message}"
    );
}

#[test(needs = [root()])]
fn quotes_and_newlines_of_a_command_reach_its_program() {
    let load = "sh -c 'printf \"%s|\" \"$@\"' sh \"two words\" \"it'\\''s\" 'a\nb' ''";
    let raw = drive(&mut Host::new(), workload(), &of(load, None)).unwrap();
    let text = String::from_utf8(raw).unwrap();
    assert!(text.starts_with("two words|it'\\''s|a\nb||"), "{text}");
}

#[test(needs = [root()])]
fn a_preparation_and_warm_up_runs_come_before_the_measured_run() {
    let definition = Definition {
        load: "sh -c 'echo x >> /tmp/runs; wc -l < /tmp/runs'".to_owned(),
        prepare: Some("sh -c 'echo prepared > /tmp/runs'".to_owned()),
        ..Definition::default()
    };
    let mut settings = definition.settings();
    let runs = ("load.warmup_runs".to_owned(), Level::Integer(2));
    settings.0.extend([runs]);
    let raw = drive(&mut Host::new(), workload(), &settings).unwrap();
    assert!(raw.starts_with(b"4\n"), "{}", String::from_utf8_lossy(&raw));
}

#[test(needs = [root()])]
fn a_command_that_fails_or_is_missing_or_never_ends_is_an_error_with_its_last_lines() {
    let failed = failure(&of("sh -c 'echo cause >&2; exit 3'", None));
    assert!(
        failed.contains("exit code 3") && failed.contains("cause"),
        "{failed}"
    );
    assert!(failed.starts_with("`sh -c"), "{failed}");
    let missing = failure(&of("no-such-program -x", None));
    assert!(missing.contains("no-such-program"), "{missing}");
    let endless = with(
        of("sh -c 'echo waiting for godot; sleep 100'", None),
        "load.limit_s",
        0.5,
    );
    let endless = failure(&endless);
    assert!(endless.contains("did not end within 0.5 s"), "{endless}");
    assert!(endless.contains("waiting for godot"), "{endless}");
}

#[test(needs = [root()])]
fn a_service_that_dies_or_is_never_ready_is_an_error_with_its_last_lines() {
    let dies = failure(&of(
        "true",
        Some(("sh -c 'echo no config; exit 4'", "tcp:8099")),
    ));
    assert!(
        dies.contains("exit code 4") && dies.contains("no config"),
        "{dies}"
    );
    let late = of(
        "true",
        Some(("sh -c 'echo still loading; sleep 100'", "tcp:8099")),
    );
    let late = failure(&with(late, "load.ready_within_s", 1.0));
    assert!(
        late.contains("port 8099") && late.contains("still loading"),
        "{late}"
    );
    let silent = of(
        "true",
        Some(("sh -c 'echo still loading; sleep 100'", "log:ready")),
    );
    let silent = failure(&with(silent, "load.ready_within_s", 1.0));
    assert!(silent.contains("still loading"), "{silent}");
    let refused = failure(&of("true", Some(("sh -c 'echo not done; exit 1'", "exit"))));
    assert!(refused.contains("not done"), "{refused}");
}

#[test(needs = [root(), program("python3")])]
fn a_service_that_dies_during_the_load_is_named_as_the_cause() {
    let dying = SERVER.replace(
        "while True: s.accept()[0].close()",
        "s.accept()[0].close()\ns.accept()\nraise SystemExit(\"out of luck\")",
    );
    let load = format!("{CLIENT} ");
    let load = load.replace("echo answered", "sleep 0.3; exit 1");
    let settings = of(&load, Some((&dying, "tcp:8099")));
    let message = failure(&settings);
    assert!(message.contains("the service of the command"), "{message}");
    assert!(message.contains("out of luck"), "{message}");
}

#[test(needs = [root()])]
fn a_gigabyte_of_output_fills_neither_memory_nor_disk() {
    let mut host = Host::new();
    let long = "sh -c 'head -c 1000000000 /dev/zero; echo; echo p99 3.5'";
    let settings = of(long, Some(("true", "exit")));
    let output = drive(&mut host, workload(), &settings).unwrap();
    assert!(output.len() < 34 << 20, "{}", output.len());
    let end = String::from_utf8_lossy(&output[output.len() - 100..]);
    assert!(end.contains("\np99 3.5\n"), "{end}");

    let chatty = "sh -c 'head -c 50000000 /dev/zero; echo; echo ready now; sleep 100'";
    let settings = of("true", Some((chatty, "log:ready now")));
    drive(&mut host, workload(), &settings).unwrap();
    let size = ["du", "-sk", "/tmp/vtax-command"]
        .map(str::to_owned)
        .to_vec();
    let size = host.run(&size, Duration::from_secs(5)).unwrap().stdout;
    let size = String::from_utf8(size).unwrap();
    let kib: u32 = size.split_whitespace().next().unwrap().parse().unwrap();
    assert!(kib < 300, "{size}");
}
