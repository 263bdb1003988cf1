// SPDX-License-Identifier: Apache-2.0
//! Tests of a command's definition, its command line and what is read from its output.

use super::*;
use figure::Place;
use vtax_core::metric::Better;

fn figure(place: Place, unit: &str) -> Figure {
    Figure {
        place,
        unit: unit.to_owned(),
        better: Better::Higher,
    }
}

fn redis() -> Definition {
    let rate = Place::Csv {
        column: "rps".to_owned(),
        row: Some("SET".to_owned()),
    };
    Definition {
        load: "redis-benchmark -h {target} -n {level} --csv".to_owned(),
        serve: Some("redis-server --save ''".to_owned()),
        ready: Some("tcp:6379".to_owned()),
        prepare: None,
        packages: vec!["redis-server".to_owned()],
        stdin: None,
        files: Vec::new(),
        work: Some(figure(Place::Count(100.0), "request")),
        metrics: [("rate".to_owned(), figure(rate, "request/s"))].into(),
    }
}

fn load(settings: &Settings) -> LoadCommand {
    let scratch = &Scratch {
        device: "/dev/vdb".into(),
        directory: "/scratch".into(),
    };
    let address = IpAddr::from([10, 0, 0, 2]);
    Command
        .load(LoadSpec {
            address,
            scratch,
            settings,
            timing: TIMING,
        })
        .unwrap()
}

#[test]
fn a_command_runs_without_a_shell_as_the_client_of_its_service() {
    let mut settings = redis().settings();
    let level = Level::Number(250.0);
    settings.0.insert("load.level".to_owned(), level);
    let command = load(&settings);
    assert_eq!(command.runs, Runs::Client);
    let own = command.line.iter().skip_while(|word| *word != MARK).skip(1);
    let own: Vec<&str> = own.map(String::as_str).collect();
    assert_eq!(own.join(" "), "redis-benchmark -h 10.0.0.2 -n 250 --csv");
    assert_eq!(
        Command.client_program(&settings).unwrap(),
        "redis-benchmark"
    );
    assert_eq!(Command.packages(&settings), ["redis-server"]);
}

#[test]
fn a_command_without_a_service_runs_in_the_target_with_its_words_as_they_are() {
    let definition = Definition {
        load: "sh -c 'echo \"{seconds} $1\"\nexit' x".to_owned(),
        ..Definition::default()
    };
    let command = load(&definition.settings());
    assert_eq!(command.runs, Runs::Target);
    let end = &command.line[command.line.len() - 4..];
    assert_eq!(end, ["sh", "-c", "echo \"3 $1\"\nexit", "x"]);
    assert_eq!(Command.client_program(&definition.settings()), None);
}

#[test]
fn the_first_program_in_the_target_is_that_of_the_preparation_the_service_or_the_load() {
    let mut definition = redis();
    let first = |definition: &Definition| Command.target_program(&definition.settings());
    assert_eq!(first(&definition).unwrap(), "redis-server");
    definition.prepare = Some("'/opt/my app' --install".to_owned());
    assert_eq!(first(&definition).unwrap(), "/opt/my app");
    let alone = Definition {
        load: "sysbench cpu run".to_owned(),
        ..Definition::default()
    };
    assert_eq!(first(&alone).unwrap(), "sysbench");
}

#[test]
fn commands_in_the_target_run_beside_the_plan_s_files_and_the_client_s_do_not() {
    let mut definition = Definition {
        load: "./app --bench".to_owned(),
        stdin: None,
        files: vec!["../target/app".to_owned(), "data dir".to_owned()],
        ..Definition::default()
    };
    let settings = definition.settings();
    assert_eq!(files_of(&settings), definition.files);
    let in_target = load(&settings);
    assert_eq!(in_target.line[..3], ["env", "-C", "/files"]);
    assert_eq!(Command.target_program(&settings).as_deref(), Some("./app"));
    definition.serve = Some("./app --serve".to_owned());
    definition.ready = Some("tcp:80".to_owned());
    let of_client = load(&definition.settings());
    assert_eq!(of_client.runs, Runs::Client);
    assert!(!of_client.line.iter().any(|word| word == "/files"));
    assert!(files_of(&Settings::default()).is_empty());
}

#[test]
fn with_an_image_the_target_s_commands_run_in_it_and_its_entry_point_may_be_the_service() {
    let with_image = |definition: &Definition| {
        let mut settings = definition.settings();
        let image = Level::Text("oci:app.tar".to_owned());
        settings.0.insert(oci::PARAMETER.key.to_owned(), image);
        settings
    };
    let mut definition = Definition {
        load: "app --bench".to_owned(),
        ..Definition::default()
    };
    let in_target = load(&with_image(&definition));
    assert_eq!(in_target.runs, Runs::Target);
    let end = &in_target.line[in_target.line.len() - 3..];
    assert_eq!(end, [oci::ENTER, "app", "--bench"]);
    definition.ready = Some("tcp:80".to_owned());
    let settings = with_image(&definition);
    let of_client = load(&settings);
    assert_eq!(of_client.runs, Runs::Client);
    assert!(!of_client.line.iter().any(|word| word == oci::ENTER));
    assert!(serves_entry_point(&settings));
    assert_eq!(Command.client_program(&settings).as_deref(), Some("app"));
    assert_eq!(Command.target_program(&settings), None);
    definition.serve = Some("app --serve".to_owned());
    assert!(!serves_entry_point(&with_image(&definition)));
}

#[test]
fn work_time_and_metrics_are_read_from_the_output() {
    let raw = b"\"test\",\"rps\"\n\"SET\",\"1500.0\"\n\nvtax: elapsed_us 2000000\n";
    let result = Command.parse(raw, &redis().settings(), TIMING).unwrap();
    assert_eq!(
        result.metrics["own.rate"].quantity.to_string(),
        "1.50 krequest/s"
    );
    assert_eq!(result.metrics["elapsed"].quantity.value, 2.0);
    match result.work {
        Some(WorkDone::Total(work)) => {
            assert_eq!((work.amount, work.phrase.as_str()), (100.0, "do 1 request"));
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_command_that_counts_nothing_does_the_work_of_one_run() {
    let settings = Settings::default();
    let result = Command
        .parse(b"\nvtax: elapsed_us 5\n", &settings, TIMING)
        .unwrap();
    assert!(matches!(result.work, Some(WorkDone::Total(work)) if work.amount == 1.0));
}

#[test]
fn a_duration_needs_work_per_second() {
    let mut settings = redis().settings();
    let duration = Level::Text("duration".to_owned());
    settings.0.insert("load.extent".to_owned(), duration);
    let raw = b"\"test\",\"rps\"\n\"SET\",\"1500\"\n\nvtax: elapsed_us 2000000\n";
    let message = Command
        .parse(raw, &settings, TIMING)
        .unwrap_err()
        .to_string();
    assert!(message.contains("unit per second"), "{message}");
    let work = serde_json::to_string(&figure(Place::Count(5.0), "request/s")).unwrap();
    settings.0.insert("load.work".to_owned(), Level::Text(work));
    let result = Command.parse(raw, &settings, TIMING).unwrap();
    assert!(matches!(result.work, Some(WorkDone::Rate(work)) if work.amount == 5.0));
    assert!(!result.metrics.contains_key("elapsed"));
}

#[test]
fn output_that_is_not_as_the_plan_says_is_an_error_with_its_last_lines() {
    let raw = b"connection refused\n\nvtax: elapsed_us 2000000\n";
    let message = Command
        .parse(raw, &redis().settings(), TIMING)
        .unwrap_err()
        .to_string();
    assert!(message.contains("`rate` cannot be read"), "{message}");
    assert!(message.contains("connection refused"), "{message}");
}

#[test]
fn readiness_is_a_port_a_line_of_the_log_or_an_end() {
    let ready = |text: &str| text.parse::<Ready>();
    assert_eq!(ready("tcp:6379"), Ok(Ready::Tcp(6379)));
    assert_eq!(ready("log:a:b"), Ok(Ready::Log("a:b".to_owned())));
    assert_eq!(ready("exit"), Ok(Ready::Exit));
    for wrong in [
        "tcp:0",
        "tcp:70000",
        "tcp:",
        "tcp",
        "log:",
        "log:(",
        "exit:",
        "udp:1",
        "",
    ] {
        assert!(ready(wrong).is_err(), "{wrong}");
    }
}

#[test]
fn standard_input_is_a_file_beside_the_command() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("in put's"), "one\ntwo\n").unwrap();
    let definition = Definition {
        load: "wc -l".to_owned(),
        files: vec!["x/in put's".to_owned()],
        stdin: Some("in put's".to_owned()),
        ..Definition::default()
    };
    let line = Command.timed(
        vec!["wc".into(), "-l".into()],
        &definition.settings(),
        NO_TIMES,
    );
    let output = std::process::Command::new(&line[0])
        .args(&line[1..])
        .current_dir(folder.path())
        .output()
        .unwrap();
    let printed = String::from_utf8(output.stdout).unwrap();
    assert!(printed.starts_with("2\n"), "{printed}");
    let result = Command
        .parse(printed.as_bytes(), &definition.settings(), NO_TIMES)
        .unwrap();
    assert!(
        result.own_cpu.is_some_and(|own| (0.0..5.0).contains(&own)),
        "{printed}"
    );
}

#[test]
fn a_line_of_times_is_read_with_either_decimal_sign() {
    assert_eq!(times("0m0.010s 0m0.002s"), Some(0.012));
    assert_eq!(times("1m2,500s 0m0,250s"), Some(62.75));
    for wrong in ["", "0m0.010s", "m s", "0m0.010 0m0.002", "0mNaNs 0m0.002s"] {
        assert_eq!(times(wrong), None, "{wrong}");
    }
}

#[test]
fn standard_error_is_read_where_a_known_generator_prints_its_work_there() {
    let reads = |text: &str, work: Option<Figure>| {
        let definition = Definition {
            load: text.to_owned(),
            work,
            ..Definition::default()
        };
        let line = load(&definition.settings()).line.join(" ");
        line.contains("\"$@\" 2>&1")
    };
    assert!(reads("stress-ng --cpu 1 --metrics", None));
    assert!(!reads("sysbench cpu run", None));
    let count = figure(Place::Count(1.0), "run");
    assert!(!reads("stress-ng --cpu 1 --metrics", Some(count)));
}

#[test]
fn the_total_of_a_known_generator_is_the_work_unless_the_plan_names_another() {
    let output = b"  1234 requests in 1.00s, 1MB read\n  Non-2xx or 3xx responses: 4\n\nvtax: elapsed_us 1000000\n0m0.0s 0m0.0s\n0m0.5s 0m0.5s\n";
    let parse = |load: &str, work: Option<Figure>| {
        let definition = Definition {
            load: load.to_owned(),
            work,
            ..Definition::default()
        };
        let result = Command
            .parse(output, &definition.settings(), TIMING)
            .unwrap();
        let Some(WorkDone::Total(work)) = result.work else {
            panic!("{result:?}");
        };
        (work.amount, work.phrase, result.suspect.len())
    };
    let known = parse("wrk http://127.0.0.1/", None);
    assert_eq!(known, (1234.0, "serve 1 request".to_owned(), 1));
    let named = parse(
        "wrk http://127.0.0.1/",
        Some(figure(Place::Count(2.0), "run")),
    );
    assert_eq!(named, (2.0, "do 1 run".to_owned(), 0));
    assert_eq!(parse("other", None), (1.0, Work::ONCE.to_owned(), 0));
}
