// SPDX-License-Identifier: Apache-2.0
//! Generators that go from level to level by themselves, beside ones that are started for each: from
//! outside does not show which it was.

use super::*;
use crate::plan::{self, Catalogue, Plan, load_seed};
use crate::run::Progress;
use crate::run::scenario::findings::late_in_a_ramp;
use crate::run::scenario::guest::{Guest, GuestSpec};
use crate::run::scenario::load::is_seeded_by_block;
use crate::run::scenario::observation::ObservedGuest;
use crate::run::trial::Watchers;
use std::cell::Cell;
use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};
use std::process::{Command, Stdio};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use vtax_core::owner::Owner;
use vtax_core::{Base, Hertz, Series, Unit};
use vtax_guest::platform::native::Native;
use vtax_guest::platform::{self, CommandLine, Finished, Job, Target};
use vtax_host::HostError;
use vtax_host::cell::ClientProcess;
use vtax_host::settings::{Level, Settings};
use vtax_load::workload::{
    About, LOAD_SEED, Lateness, LoadClient, LoadCommand, LoadSpec, Outcome, Running as Process,
    Service, Workload,
};
use vtax_observe::clock::{Clock, SystemClock};
use vtax_observe::{ObserverConfig, Roots, SeriesId, Sink, Subject};
use vtax_results::{Better, Metric};

/// From 300 on requests fail and the generator takes long to end; at one rate it gives up.
const GENERATOR: &str = "
    warm=$1; window=$2; settle=$3; gives_up_at=$4; shift 4
    for rate; do
        sleep $warm; opened=$(date +%s.%N)
        sleep $window; closed=$(date +%s.%N)
        [ $rate = $gives_up_at ] && exit 3
        [ $rate -ge 300 ] && sleep 0.3
        echo $rate $opened $closed
        warm=$settle
    done";

const PLAN: &str = r#"
name = "ramp"
repetitions = 1
warmup = "400ms"
duration = "1s"
[[platform]]
kind = "native"
[[workload]]
kind = "http-rate"
profile = { ramp = { from = 100, to = 600, step = 100, every = "600ms", beyond = "2s" } }
objective = "errors <= 0.1%"
"#;

struct Fake {
    ramps: bool,
    /// From 300 on it does not ask for as much as it should, and what it asks for does not fail.
    falls_short: bool,
    /// From this rate on it sends late.
    late_from: f64,
    /// The load that it offers over the load that it is asked for.
    offers: f64,
    /// At this rate it gives up.
    gives_up_at: f64,
    /// Whether requests at 200 are still to fail once.
    stalls: Option<&'static AtomicBool>,
}

const NEVER: f64 = f64::INFINITY;
const STARTED_EACH: Fake = Fake {
    ramps: false,
    falls_short: false,
    late_from: NEVER,
    offers: 1.0,
    gives_up_at: 400.0,
    stalls: None,
};
const BY_ITSELF: Fake = Fake {
    ramps: true,
    falls_short: false,
    late_from: NEVER,
    offers: 1.0,
    gives_up_at: 400.0,
    stalls: None,
};
const SHORT: Fake = Fake {
    ramps: false,
    falls_short: true,
    late_from: NEVER,
    offers: 1.0,
    gives_up_at: 400.0,
    stalls: None,
};
const LATE_AT_THE_BREAK: Fake = Fake {
    ramps: true,
    falls_short: false,
    late_from: 300.0,
    offers: 1.0,
    gives_up_at: 400.0,
    stalls: None,
};
const OFFERS_MORE: Fake = Fake {
    offers: 1.1,
    ..STARTED_EACH
};
const LATE_FROM_THE_BREAK: Fake = Fake {
    gives_up_at: NEVER,
    ..LATE_AT_THE_BREAK
};
const ALWAYS_LATE: Fake = Fake {
    late_from: 0.0,
    ..LATE_FROM_THE_BREAK
};
const LATE_BEYOND: Fake = Fake {
    ramps: true,
    falls_short: false,
    late_from: 500.0,
    offers: 1.0,
    gives_up_at: 400.0,
    stalls: None,
};

static TO_STALL: AtomicBool = AtomicBool::new(true);
const STALLS_ONCE: Fake = Fake {
    stalls: Some(&TO_STALL),
    ..STARTED_EACH
};

impl Fake {
    fn command(&self, levels: &[Settings], first: Timing, settle: Duration) -> LoadCommand {
        let times = [first.warmup, first.duration, settle];
        let rates = levels.iter().map(|level| match level.0.get("load.rate") {
            Some(Level::Number(rate)) => rate.to_string(),
            other => panic!("{other:?}"),
        });
        let line = ["sh", "-c", GENERATOR, "generator"].map(str::to_owned);
        let times = times.map(|time| time.as_secs_f64().to_string());
        let gives_up_at = std::iter::once(self.gives_up_at.to_string());
        let line = line.into_iter().chain(times).chain(gives_up_at);
        LoadCommand::client(line.chain(rates).collect())
    }
}

static ABOUT: About = About {
    kind: "fake",
    parameters: &[LOAD_SEED],
    level: Some(LoadLevel {
        key: "load.rate",
        unit: Unit::per(Base::Request, Base::Second),
        scale: 1.0,
        title: "load",
    }),
    ..About::NONE
};

impl Workload for Fake {
    fn about(&self) -> &'static About {
        &ABOUT
    }
    fn load(&self, spec: LoadSpec) -> Outcome<LoadCommand> {
        let only = std::slice::from_ref(spec.settings);
        Ok(self.command(only, spec.timing, Duration::ZERO))
    }
    fn ramp(
        &self,
        _: IpAddr,
        levels: &[Settings],
        first: Timing,
        settle: Duration,
    ) -> Outcome<Option<LoadCommand>> {
        Ok(self.ramps.then(|| self.command(levels, first, settle)))
    }
    fn parse(&self, raw: &[u8], settings: &Settings, _: Timing) -> Outcome<WorkloadResult> {
        let text = String::from_utf8_lossy(raw);
        let words: Vec<f64> = text.split_whitespace().flat_map(str::parse).collect();
        let [rate, opened, closed] = words.as_slice() else {
            panic!("one level's line: {text:?}");
        };
        let metric = |name: &str, value: f64, base| {
            let metric = Metric {
                quantity: Quantity::new(value, Unit::from_base(base)),
                source: Source::Measured,
                model: None,
                meter: None,
                better: Better::Neither,
                headline: false,
                title: name.to_owned(),
            };
            (name.to_owned(), metric)
        };
        let is_too_much = *rate >= 300.0;
        let stalls = *rate == 200.0
            && self
                .stalls
                .is_some_and(|once| once.swap(false, Ordering::Relaxed));
        let errors = f64::from(stalls || is_too_much && !self.falls_short);
        let mut offered = metric("offered", rate * self.offers, Base::Request);
        offered.1.quantity.unit = Unit::per(Base::Request, Base::Second);
        let metrics = [
            offered,
            metric("errors", errors, Base::Percent),
            metric("opened", *opened, Base::Second),
            metric("closed", *closed, Base::Second),
            metric("seed", LOAD_SEED.integer(settings) as f64, Base::Second),
        ];
        Ok(WorkloadResult {
            metrics: metrics.into(),
            unreached: (is_too_much && self.falls_short).then(|| "250 of 300".to_owned()),
            late: (*rate >= self.late_from).then(|| Lateness {
                text: "sent late".to_owned(),
                is_typical: false,
                is_of_timer: false,
            }),
            ..WorkloadResult::default()
        })
    }
}

struct Nothing(platform::About);

impl Target for Nothing {
    fn about(&self) -> &platform::About {
        &self.0
    }
    fn start(&mut self, _: &CommandLine) -> Outcome<Job> {
        Err(HostError::Interrupted)
    }
    fn poll(&mut self, _: Job) -> Outcome<Option<Finished>> {
        Ok(None)
    }
    fn inner_counters(&mut self) -> Outcome<BTreeMap<String, f64>> {
        Ok(BTreeMap::new())
    }
    fn console_tail(&self) -> String {
        String::new()
    }
    fn stop(self: Box<Self>) -> Outcome<()> {
        Ok(())
    }
}

/// A client on this host that counts what it starts.
struct Here {
    started: Rc<Cell<usize>>,
    streams_lines: bool,
}

impl LoadClient for Here {
    fn start(&self, line: &CommandLine) -> Outcome<Box<dyn Process>> {
        self.started.set(self.started.get() + 1);
        let (program, arguments) = line.split_first().unwrap();
        let mut command = Command::new(program);
        command.args(arguments).stdout(Stdio::piped());
        let child = command.stderr(Stdio::null()).spawn().unwrap();
        Ok(Box::new(ClientProcess::new(child)))
    }
    fn can_connect(&self, _: IpAddr, _: u16) -> Outcome<bool> {
        Ok(true)
    }
    fn streams_lines(&self) -> bool {
        self.streams_lines
    }
}

struct Nowhere;

impl Sink for Nowhere {
    fn record(&mut self, _: SeriesId, _: &Series, _: Nanoseconds, _: f64) -> std::io::Result<()> {
        Ok(())
    }
    fn finish(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[derive(Default)]
struct Heard {
    phases: Vec<String>,
    objectives: Vec<String>,
    levels: Vec<(f64, Option<bool>)>,
    meters: usize,
}

impl Progress for Heard {
    fn event(&mut self, event: Event) {
        match event {
            Event::Phase { phase } => self.phases.push(phase),
            Event::Objective { text } => self.objectives.push(text),
            Event::Sampled(sampled) => self.levels.push((sampled.level, sampled.kept)),
            Event::Metered(_) => self.meters += 1,
            _ => {}
        }
    }
}

/// What of a measured part is to be seen from outside, and how many processes it took.
#[derive(Debug, PartialEq)]
struct Seen {
    phases: Vec<String>,
    levels: Vec<(String, Option<bool>)>,
    objective: Option<ObjectiveOutcome>,
    seeds: Vec<f64>,
    late: Option<String>,
}

fn drive(workload: &'static Fake, streams_lines: bool) -> (Seen, usize) {
    let catalogue = Catalogue::standard();
    let plan = Plan::read("plan.toml", PLAN, &catalogue).unwrap();
    let planned = plan::treatments(&plan, &catalogue).remove(0);
    let folder = tempfile::tempdir().unwrap();
    let rate = ObserverConfig { rate: Hertz(1.0) };
    let (clock, sink) = (Arc::new(SystemClock), Box::new(Nowhere));
    let observer = Observer::start(rate, clock, Vec::new(), sink).unwrap();
    let started = Rc::new(Cell::new(0));
    let client = Here {
        started: Rc::clone(&started),
        streams_lines,
    };
    let mut guests = [Guest {
        spec: GuestSpec {
            name: TARGET,
            platform: &Native,
            workload,
            settings: &planned.settings,
            is_twin: false,
        },
        client: Box::new(client),
        client_subject: Subject::default(),
        client_place: "local".to_owned(),
        switch: None,
        client_environment: BTreeMap::new(),
        target: Box::new(Nothing(platform::About {
            address: Ipv4Addr::LOCALHOST.into(),
            subject: Subject::default(),
            source: Source::Measured,
            environment: BTreeMap::new(),
            scratch: Default::default(),
            is_shared: false,
        })),
        knobs: BTreeMap::new(),
        service: Service::default(),
    }];
    let metering = Metering {
        guests: vec![ObservedGuest {
            owner: Owner::Target,
            client: Owner::Client,
            is_vm: false,
            is_here: true,
            source: Source::Measured,
            is_paced: false,
            is_own: false,
        }],
        processors: 1,
        energy: &[],
        idle: None,
        host: Source::Measured,
        claims_latency: true,
    };
    let mut heard = Heard::default();
    let events = folder.path().join("events");
    let runner = PhaseRunner {
        trial: TrialContext {
            plan: &plan,
            planned: &planned,
            block: 1,
            host: Source::Measured,
        },
        signals: &Signals::install().unwrap(),
        guests: DrivenGuests::from_guests(&mut guests).unwrap(),
        instruments: Instruments {
            observer: &observer,
            watch: &HostWatch::new(&Roots::host(), folder.path()),
            metering: &metering,
            charging: None,
            live: LiveSampler::for_host(Source::Measured),
        },
        log: &mut Log {
            file: std::fs::File::create(folder.path().join("log")).unwrap(),
            began: Instant::now(),
            watchers: Watchers {
                events: Some(std::fs::File::create(&events).unwrap()),
                progress: &mut heard,
            },
        },
        measured: Measurement::default(),
    };
    let measured = runner.run(&mut PhaseTimes::default()).unwrap();
    let to_wall = SystemClock.wall().as_secs_f64() - SystemClock.now().as_secs_f64();
    // What a level's marks enclose is the time of its own requests, however late a busy machine makes both.
    let by_marks = |window: &MeasuredWindow| {
        [&window.begin, &window.end].map(|mark| mark.at.as_secs_f64() + to_wall)
    };
    let by_generator = |window: &MeasuredWindow| {
        let found = &window.of_target().unwrap().metrics;
        ["opened", "closed"].map(|mark| found[mark].quantity.value)
    };
    for window in &measured.windows {
        let [begin, end] = by_marks(window);
        let shared = |other: &MeasuredWindow| {
            let [opened, closed] = by_generator(other);
            end.min(closed) - begin.max(opened)
        };
        let most = measured.windows.iter();
        let most = most.max_by(|one, other| shared(one).total_cmp(&shared(other)));
        assert_eq!(most.unwrap().name, window.name, "{begin} to {end}");
    }
    let text = String::from_utf8(measured.raw).unwrap();
    let rates: Vec<&str> = text
        .lines()
        .flat_map(|line| line.split(' ').next())
        .collect();
    let measured_at = measured.windows.iter().filter_map(|window| window.level);
    let measured_at: Vec<String> = measured_at.map(|level| level.value.to_string()).collect();
    assert_eq!(rates, measured_at.join("  ").split(' ').collect::<Vec<_>>());
    // Events name every level, the one without an answer too, and the seconds between.
    let mut levels: Vec<f64> = heard.levels.iter().map(|(level, _)| *level).collect();
    let count = levels.len();
    levels.dedup();
    if workload.gives_up_at.is_finite() {
        assert_eq!(levels, [100.0, 200.0, 300.0, 400.0, 500.0]);
        assert!(heard.levels.contains(&(400.0, Some(false))));
    } else {
        assert_eq!(levels[..4], [100.0, 200.0, 300.0, 400.0])
    }
    assert_eq!(heard.objectives, ["errors <= 0.10 %"]);
    assert!(heard.meters >= 1, "{}", heard.meters);
    let written = std::fs::read_to_string(&events).unwrap();
    assert_eq!(
        written.lines().count(),
        heard.phases.len() + count + heard.meters + 1
    );
    let late = late_in_a_ramp(&measured.windows, &|late| {
        late.is_suspect(Source::Measured, true)
    });
    let results = measured
        .windows
        .iter()
        .filter_map(MeasuredWindow::of_target);
    let seeds = results.map(|result| result.metrics["seed"].quantity.value);
    let seeds = seeds.collect();
    let levels = measured.windows.into_iter();
    let seen = Seen {
        seeds,
        late,
        phases: heard.phases,
        levels: levels.map(|level| (level.name, level.kept)).collect(),
        objective: measured.objective,
    };
    (seen, started.get())
}

#[test]
#[ignore = "takes 12 s: make test-all"]
fn a_generator_that_ramps_by_itself_looks_like_one_that_is_started_for_each_level() {
    let (each, processes) = drive(&STARTED_EACH, true);
    assert_eq!(processes, 6);
    // Objective broken twice at 300, no answer at 400, and two seconds are over after 500.
    let kept: Vec<_> = each.levels.iter().map(|(_, kept)| *kept).collect();
    assert_eq!(kept, [true, true, false, false, false].map(Some));
    assert_eq!(each.levels[3].0, "300 request/s, again");
    let objective = each.objective.as_ref().unwrap();
    assert_eq!(objective.knee.unwrap().value, 200.0);
    assert!(objective.broke.as_ref().unwrap().contains("300"));
    assert_eq!(objective.next.unwrap().value, 300.0);
    assert_eq!(each.phases.len(), 12, "{:?}", each.phases);

    // It was started again for the repeat, and where it gave up.
    assert_eq!(drive(&BY_ITSELF, true), (each, 3));
}

#[test]
#[ignore = "takes 6 s: make test-all"]
fn a_level_that_stalls_once_is_repeated_and_the_ramp_goes_on() {
    let (seen, _) = drive(&STALLS_ONCE, true);
    let levels: Vec<_> = seen.levels.iter().take(4).collect();
    assert_eq!(levels[1], &("200 request/s".to_owned(), Some(false)));
    assert_eq!(levels[2], &("200 request/s, again".to_owned(), Some(true)));
    assert_eq!(levels[3].0, "300 request/s");
    assert_eq!(seen.objective.unwrap().knee.unwrap().value, 200.0);
}

#[test]
fn a_level_at_which_the_generator_is_late_is_repeated_and_not_judged() {
    let (seen, _) = drive(&LATE_AT_THE_BREAK, true);
    let judged: Vec<_> = seen.levels.iter().map(|(_, kept)| *kept).collect();
    assert_eq!(judged[..4], [Some(true), Some(true), None, None]);
}

#[test]
#[ignore = "takes 6 s: make test-all"]
fn a_level_that_the_generator_did_not_reach_is_not_borne() {
    let objective = drive(&SHORT, true).0.objective.unwrap();
    assert_eq!(objective.knee.unwrap().value, 200.0);
    let broke = objective.broke.unwrap();
    assert!(broke.contains("250 of 300"), "{broke}");
}

#[test]
fn a_knee_that_a_late_generator_hides_is_a_lower_bound_and_the_trial_counts() {
    let (seen, _) = drive(&LATE_FROM_THE_BREAK, true);
    let objective = seen.objective.unwrap();
    assert_eq!(objective.knee.unwrap().value, 200.0);
    assert_eq!((objective.broke, objective.next), (None, None));
    assert_eq!(objective.late_from.unwrap().value, 300.0);
    assert_eq!(seen.late, None);
}

#[test]
fn a_knee_is_the_load_that_was_offered_and_levels_have_the_name_that_was_asked_for() {
    let (seen, _) = drive(&OFFERS_MORE, true);
    assert_eq!(seen.levels[0].0, "100 request/s");
    let objective = seen.objective.unwrap();
    let loads = [objective.knee, objective.next].map(|load| load.unwrap().value.round());
    assert_eq!(loads, [220.0, 330.0]);
    let broke = objective.broke.unwrap();
    assert!(broke.ends_with(" at 300 request/s"), "{broke}");
}

#[test]
#[ignore = "takes 6 s: make test-all"]
fn a_generator_that_is_late_beyond_the_level_that_broke_hides_nothing() {
    let (seen, _) = drive(&LATE_BEYOND, true);
    assert_eq!(seen.objective.unwrap().next.unwrap().value, 300.0);
    assert_eq!(seen.late, None);
}

#[test]
#[ignore = "takes 6 s: make test-all"]
fn a_generator_that_is_late_at_every_level_names_no_knee_and_makes_the_trial_suspect() {
    let (seen, _) = drive(&ALWAYS_LATE, true);
    let late = seen.late.unwrap();
    assert!(late.starts_with("at 100 request/s: "), "{late}");
    assert!(late.ends_with("sent late"), "{late}");
    assert_eq!(seen.objective.unwrap().knee, None);
}

#[test]
#[ignore = "takes 6 s: make test-all"]
fn a_load_has_its_blocks_seed_unless_the_plan_sets_it_or_the_host_is_emulated() {
    let (seen, _) = drive(&STARTED_EACH, true);
    assert_eq!(seen.seeds, [load_seed(1, 1, 0) as f64; 5]);
    let seeded = |settings: &Settings, host| is_seeded_by_block(&STARTED_EACH, settings, host);
    let mut settings = Settings::default();
    assert!(seeded(&settings, Source::Measured));
    assert!(!seeded(&settings, Source::Simulated));
    settings.0.insert("load.seed".to_owned(), Level::Integer(7));
    assert!(!seeded(&settings, Source::Measured));
}

#[test]
#[ignore = "takes 6 s: make test-all"]
fn where_nobody_sees_its_lines_it_is_started_for_each_level() {
    let (_, processes) = drive(&BY_ITSELF, false);
    assert_eq!(processes, 6);
}

#[test]
fn a_level_of_which_too_little_is_answered_is_not_kept_whatever_its_latency() {
    let per_second = Unit::per(Base::Operation, Base::Second);
    let level = Quantity::new(349.0, per_second);
    let lacks = |rate: f64, seconds: u64| {
        let rate = Metric::new(metric::RATE, "", per_second, rate, Source::Measured);
        let metrics = [(metric::RATE.name.to_owned(), rate)].into();
        unanswered(level, Nanoseconds(seconds * 1_000_000_000), &metrics)
    };
    let found = lacks(258.0, 2).unwrap();
    assert!(found.contains("258") && found.contains("349"), "{found}");
    assert_eq!(lacks(332.0, 10), None);
    assert!(lacks(330.0, 10).is_some());
    // Two operations on the edges of a short window are no backlog.
    assert_eq!(lacks(330.0, 1), None);
    // A load that is counted in another unit has no share.
    let connections = Quantity::new(349.0, Unit::from_base(Base::Byte));
    let rate = Metric::new(metric::RATE, "", per_second, 1.0, Source::Measured);
    let metrics = [(metric::RATE.name.to_owned(), rate)].into();
    assert_eq!(
        unanswered(connections, Nanoseconds(1_000_000_000), &metrics),
        None
    );
}

/// The knee, the load above it and the load from which requests are too few, of levels judged one after the other: the load,
/// its number of requests, their p99 in milliseconds, and the share of failed requests in percent.
fn knee_of(levels: &[(f64, u64, u64, f64)]) -> (Option<f64>, Option<f64>, Option<f64>) {
    let objective = Objective {
        metric: "latency.p99".to_owned(),
        at_least: false,
        limit: Quantity::new(0.02, Unit::from_base(Base::Second)),
        has_unit: true,
    };
    let mut knee = Knee::default();
    for (load, requests, milliseconds, errors) in levels {
        let mut histogram = hdrhistogram::Histogram::new(3).unwrap();
        histogram
            .record_n(milliseconds * 1_000_000, *requests)
            .unwrap();
        let result = WorkloadResult {
            histograms: vec![("latency".to_owned(), histogram)],
            ..WorkloadResult::default()
        };
        let value = *milliseconds as f64 / 1e3;
        let seconds = Unit::from_base(Base::Second);
        let p99 = Metric::new(metric::LATENCY_P99, "", seconds, value, Source::Measured);
        let percent = Unit::from_base(Base::Percent);
        let failed = Metric::new(metric::ERRORS, "", percent, *errors, Source::Measured);
        let metrics = [(metric::LATENCY_P99, p99), (metric::ERRORS, failed)];
        let metrics = metrics.map(|(of, metric)| (of.name.to_owned(), metric));
        let mut verdict = Verdict::new(
            &objective,
            None,
            Nanoseconds(1),
            &metrics.into(),
            Some(&result),
        )
        .unwrap();
        verdict.load = *load;
        knee.judged(*load, vec![verdict]);
    }
    let few_from = knee.hidden_from(Discounted::Unsupported);
    assert_eq!(knee.hidden_from(Discounted::Late), None);
    (knee.best(), knee.broke().map(|(next, ..)| next), few_from)
}

#[test]
fn a_level_with_too_few_requests_for_its_quantile_neither_keeps_nor_breaks_an_objective() {
    let few_below = [
        (50.0, 200, 300, 0.0),
        (100.0, 400, 5, 0.0),
        (200.0, 800, 300, 0.0),
    ];
    assert_eq!(knee_of(&few_below), (Some(100.0), Some(200.0), None));
    let few_above = [(100.0, 400, 5, 0.0), (110.0, 300, 300, 0.0)];
    assert_eq!(knee_of(&few_above), (Some(100.0), None, Some(110.0)));
    let only_few = [(10.0, 40, 5, 0.0), (20.0, 80, 300, 0.0)];
    assert_eq!(knee_of(&only_few), (None, None, Some(10.0)));
    let few_between = [
        (100.0, 400, 5, 0.0),
        (110.0, 300, 5, 0.0),
        (120.0, 480, 300, 0.0),
    ];
    assert_eq!(knee_of(&few_between), (Some(100.0), Some(120.0), None));
}

#[test]
fn failed_requests_break_an_objective_however_few_were_answered() {
    let failing = [(100.0, 400, 5, 0.0), (200.0, 40, 5, 90.0)];
    assert_eq!(knee_of(&failing), (Some(100.0), Some(200.0), None));
    let also_slow = [(100.0, 400, 5, 0.0), (200.0, 40, 300, 90.0)];
    assert_eq!(knee_of(&also_slow), (Some(100.0), Some(200.0), None));
}

#[test]
fn too_few_requests_do_not_end_a_ramp_and_a_late_generator_does() {
    let broken = |discounted| Verdict {
        kept: false,
        found: String::new(),
        load: 1.0,
        discounted,
    };
    assert!(broken(None).ends_ramp() && broken(Some(Discounted::Late)).ends_ramp());
    assert!(!broken(Some(Discounted::Unsupported)).ends_ramp());
}
