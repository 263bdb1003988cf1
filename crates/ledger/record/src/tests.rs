// SPDX-License-Identifier: Apache-2.0
//! Recordings of a host in memory: what is written is read again, whatever happens to the files.

#![allow(clippy::indexing_slicing, reason = "a failure is a panic")]

use crate::compare::compare;
use crate::recorder::Writer;
use crate::report::{GuestReport, Report};
use crate::second::{Identity, OF_GUEST, Second};
use crate::store::{self, Facts, RECORDING, Store, StoreError};
use crate::summary::Recording;
use jiff::{SignedDuration, Timestamp};
use proptest::prelude::*;
use std::fs;
use std::path::{Path, PathBuf};
use vtax_charge::LedgerSnapshot;
use vtax_charge::fake::Host;
use vtax_charge::{Stage, Stages};
use vtax_core::{Joules, Nanoseconds, SplitMix64};
use vtax_inventory::Platform;
use vtax_observe::clock::thread_cpu;
use vtax_report::gate::{AcrossHosts, GateOutcome, judge_comparison};

/// A recorder of snapshots in memory.
struct Recorder {
    writer: Writer,
    printed: Vec<String>,
}

impl Recorder {
    fn open(path: &Path) -> Self {
        let (store, note) = Store::open(path).unwrap();
        Self {
            writer: Writer::new(store, Facts::default()),
            printed: note.into_iter().collect(),
        }
    }

    fn take(&mut self, snapshot: &LedgerSnapshot) {
        let printed = &mut self.printed;
        self.writer
            .take(snapshot, &mut |line| printed.push(line.to_owned()));
    }
}

/// A directory for a recording.
fn place() -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("recording");
    (folder, path)
}

fn host(guests: u32) -> Host {
    let mut host = Host::since(Timestamp::from_second(1_700_000_000).unwrap());
    (1..=guests).for_each(|number| host.start(number));
    host
}

/// The numbers of the seconds of a recording.
fn numbers(path: &Path) -> Vec<u64> {
    let mut numbers = Vec::new();
    store::read(path, |read| numbers.push(read.number)).unwrap();
    numbers
}

/// Sets the processor time and exchanges of a guest in a snapshot.
fn set(snapshot: &mut LedgerSnapshot, at: usize, own: u64, softirq: u64, packets: u64) {
    let mut stages = Stages::default();
    stages.add(Stage::Vcpu, Nanoseconds(own));
    stages.add(Stage::Softirq, Nanoseconds(softirq));
    let used = &mut snapshot.guests[at].used;
    let before = used.stages.total().0;
    used.stages = stages;
    used.exchanges.received = packets;
    used.exchanges.sent = packets / 2;
    used.exchanges.bytes = packets * 700;
    let row = &mut snapshot.ledger.rows[at];
    row.stages = stages;
    row.modelled = None;
    snapshot.ledger.total = Nanoseconds(snapshot.ledger.total.0 - before + stages.total().0);
}

#[test]
fn what_is_recorded_is_read_again_and_sums_are_exact_to_a_unit() {
    let (_folder, path) = place();
    let mut recorder = Recorder::open(&path);
    let mut host = host(3);
    let mut last = None;
    for second in 0..150 {
        host.depart(1_000_000);
        let snapshot = host.pass(12_345_678 + second);
        recorder.take(&snapshot);
        last = Some(snapshot);
    }
    let recorded = recorder.writer.finish().unwrap();
    assert_eq!(
        (recorded.seconds, recorded.lost, recorder.printed.len()),
        (150, 0, 0)
    );
    let last = last.unwrap();
    let recording = Recording::read(&path).unwrap();
    assert_eq!(
        (recording.seconds, recording.missing, recording.damaged),
        (150, 0, 0)
    );
    assert_eq!(
        (recording.windows.len(), recording.windows[0].span.0),
        (3, 60_000_000_000)
    );
    let unit = crate::second::UNIT;
    assert_eq!(recording.host.departed.0, 150_000_000);
    assert_eq!(
        Report::from_recording(&recording).departed_cpu_seconds,
        0.15
    );
    for guest in &recording.guests {
        let truth = &last
            .guests
            .iter()
            .find(|other| other.name == guest.name)
            .unwrap()
            .total;
        for stage in [Stage::Vcpu, Stage::Softirq] {
            let (read, truth) = (guest.total.stages.get(stage).0, truth.stages.get(stage).0);
            assert!(
                read <= truth && truth - read < unit,
                "{stage:?}: {read}, {truth}"
            );
        }
        assert_eq!(guest.total.exchanges.sent, truth.exchanges.sent);
        assert!((guest.total.energy.0 / truth.energy.0 - 1.0).abs() < 1e-3);
        assert!(
            guest.total.error.0 >= truth.error.0,
            "an error is rounded up"
        );
    }
    let parts: u64 = recording
        .guests
        .iter()
        .map(|guest| guest.total.cpu().0)
        .sum();
    assert_eq!(
        recording.host.busy.0,
        parts + recording.host.departed.0 + recording.host.host.0 + recording.host.unattributed.0
    );
}

#[test]
fn a_recorder_that_is_killed_at_any_second_loses_no_second_before() {
    for seconds in [1_u64, 2, 59, 60, 61, 119, 120, 125] {
        let (_folder, path) = place();
        let mut recorder = Recorder::open(&path);
        let mut host = host(2);
        for _ in 0..seconds {
            recorder.take(&host.pass(1_000_000));
        }
        // Dropped without an end, as by `kill -9`.
        drop(recorder);
        assert_eq!(numbers(&path), (0..seconds).collect::<Vec<_>>());
        // Another session goes on behind it.
        let mut recorder = Recorder::open(&path);
        assert_eq!(recorder.printed, Vec::<String>::new());
        recorder.take(&host.pass(1_000_000));
        recorder.writer.finish().unwrap();
        assert_eq!(numbers(&path), (0..=seconds).collect::<Vec<_>>());
        assert_eq!(Recording::read(&path).unwrap().sessions, 2);
    }
}

#[test]
fn a_second_that_was_cut_off_anywhere_is_left_out_and_those_before_stay() {
    let (_folder, path) = place();
    let mut recorder = Recorder::open(&path);
    let mut host = host(2);
    for _ in 0..70 {
        recorder.take(&host.pass(1_000_000));
    }
    let tail = path.join("tail.vtax");
    let before = fs::metadata(&tail).unwrap().len();
    recorder.take(&host.pass(1_000_000));
    drop(recorder);
    let whole = fs::read(&tail).unwrap();
    for cut in usize::try_from(before).unwrap()..whole.len() {
        fs::write(&tail, &whole[..cut]).unwrap();
        assert_eq!(numbers(&path).len(), 70, "cut at {cut}");
    }
    let recorder = Recorder::open(&path);
    assert!(
        recorder.printed[0].contains("no whole second"),
        "{:?}",
        recorder.printed
    );
    assert_eq!(numbers(&path).len(), 70);
}

#[test]
fn a_block_that_was_written_before_its_tail_was_emptied_counts_once() {
    let (_folder, path) = place();
    let mut recorder = Recorder::open(&path);
    let mut host = host(2);
    for _ in 0..119 {
        recorder.take(&host.pass(1_000_000));
    }
    let tail = fs::read(path.join("tail.vtax")).unwrap();
    recorder.take(&host.pass(1_000_000));
    drop(recorder);
    fs::write(path.join("tail.vtax"), tail).unwrap();
    assert_eq!(numbers(&path), (0..120).collect::<Vec<_>>());
    drop(Recorder::open(&path));
    assert_eq!(numbers(&path), (0..120).collect::<Vec<_>>());
}

#[test]
fn guests_of_one_name_are_one_and_a_new_guest_of_the_name_continues_it() {
    let (_folder, path) = place();
    let mut recorder = Recorder::open(&path);
    let mut host = Host::default();
    host.start_named(1, "web", Platform::Docker);
    host.start_named(2, "web #2", Platform::Docker);
    host.start_named(3, "web", Platform::Qemu);
    let pass = |host: &mut Host| {
        let mut snapshot = host.pass(1_000_000);
        for guest in &mut snapshot.guests {
            guest.called = "web".to_owned();
        }
        snapshot
    };
    recorder.take(&pass(&mut host));
    host.end(1);
    host.start_named(4, "web", Platform::Docker);
    recorder.take(&pass(&mut host));
    recorder.writer.finish().unwrap();
    let recording = Recording::read(&path).unwrap();
    let mut guests: Vec<_> = recording
        .guests
        .iter()
        .map(|guest| {
            (
                guest.name.as_str(),
                guest.platform.as_str(),
                guest.instances,
                guest.total.cpu().0,
            )
        })
        .collect();
    guests.sort_unstable();
    assert_eq!(
        guests,
        [
            ("web", "docker", 3, 4_000_000),
            ("web", "qemu", 1, 2_000_000)
        ]
    );
}

#[test]
fn a_step_of_the_clock_is_counted_and_changes_no_length() {
    let (_folder, path) = place();
    let mut recorder = Recorder::open(&path);
    let mut host = host(1);
    for second in 0..130 {
        let mut snapshot = host.pass(1_000_000);
        if second >= 65 {
            let step = SignedDuration::from_hours(-2);
            snapshot.began = snapshot.began.checked_add(step).unwrap();
            snapshot.ended = snapshot.ended.checked_add(step).unwrap();
        }
        recorder.take(&snapshot);
    }
    recorder.writer.finish().unwrap();
    let recording = Recording::read(&path).unwrap();
    assert_eq!(
        (
            recording.clock_steps,
            recording.windows.len(),
            recording.host.span.0
        ),
        (1, 3, 130_000_000_000)
    );
}

#[test]
fn a_second_recorder_is_refused_and_so_is_a_directory_of_other_files() {
    let (folder, path) = place();
    let first = Recorder::open(&path);
    assert!(matches!(Store::open(&path), Err(StoreError::Busy(_))));
    drop(first);
    // A process that another test has just forked holds the lock until it executes its program.
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(10);
    while let Err(refused) = Store::open(&path) {
        assert!(std::time::Instant::now() < deadline, "{refused}");
    }
    let other = folder.path().join("other");
    fs::create_dir(&other).unwrap();
    fs::write(other.join("letter"), "dear").unwrap();
    assert!(matches!(Store::open(&other), Err(StoreError::NotEmpty(_))));
    fs::write(path.join(RECORDING), "a text that is no recording").unwrap();
    assert!(matches!(
        Store::open(&path),
        Err(StoreError::NotARecording(_))
    ));
    assert_eq!(
        fs::read(path.join(RECORDING)).unwrap(),
        b"a text that is no recording"
    );
}

#[test]
fn seconds_are_held_while_the_disk_is_full_and_written_when_there_is_room() {
    let (_folder, path) = place();
    let mut recorder = Recorder::open(&path);
    let mut host = host(2);
    for _ in 0..70 {
        recorder.take(&host.pass(1_000_000));
    }
    recorder.writer.store.fail_writes(true);
    for _ in 0..100 {
        recorder.take(&host.pass(1_000_000));
    }
    assert_eq!(recorder.printed.len(), 1, "{:?}", recorder.printed);
    assert!(
        recorder.printed[0].starts_with("cannot write: "),
        "{:?}",
        recorder.printed
    );
    assert_eq!(numbers(&path).len(), 70);
    recorder.writer.store.fail_writes(false);
    recorder.take(&host.pass(1_000_000));
    assert_eq!(recorder.printed[1], "writes again");
    assert_eq!(numbers(&path), (0..171).collect::<Vec<_>>());
    // More than the memory may hold.
    recorder.writer.store.fail_writes(true);
    for _ in 0..700 {
        recorder.take(&host.pass(1_000_000));
    }
    recorder.writer.store.fail_writes(false);
    let recorded = recorder.writer.finish().unwrap();
    assert_eq!(
        (recorded.seconds + recorded.lost, recorded.lost),
        (871, 120)
    );
    let recording = Recording::read(&path).unwrap();
    assert_eq!((recording.seconds, recording.missing), (751, 120));
}

/// Records guests of which every `every`th is busy, each value with noise of up to `noise` per mille of it, and returns the
/// bytes for each guest and second, and the processor time that writing a second takes.
fn size(guests: u32, every: usize, noise: u64, minutes: u64) -> (f64, Nanoseconds) {
    let (_folder, path) = place();
    let mut recorder = Recorder::open(&path);
    let mut host = host(guests);
    let mut random = SplitMix64::new(7);
    let mut cpu = Nanoseconds(0);
    let mut noise = |mean: u64| mean * (1000 - noise + random.bits() % (2 * noise)) / 1000;
    for _ in 0..minutes * 60 {
        let mut snapshot = host.pass(0);
        for at in 0..snapshot.guests.len() {
            match at % every {
                0 => set(
                    &mut snapshot,
                    at,
                    noise(30_000_000),
                    noise(4_000_000),
                    noise(2000),
                ),
                _ => set(&mut snapshot, at, noise(300_000), noise(20_000), noise(4)),
            }
        }
        let before = thread_cpu();
        recorder.take(&snapshot);
        cpu += thread_cpu().saturating_since(before);
    }
    let recorded = recorder.writer.finish().unwrap();
    let each = recorded.bytes as f64 / (recorded.seconds * u64::from(guests)) as f64;
    (each, Nanoseconds(cpu.0 / recorded.seconds))
}

#[test]
fn a_day_of_100_guests_takes_less_than_40_megabytes() {
    // 100 guests of which all are busy, each second by up to a tenth more or less; and one in five by up to a half.
    for (every, noise) in [(1, 100), (5, 500)] {
        let (each, cpu) = size(100, every, noise, 6);
        let day = each * 100.0 * 86_400.0 / 1e6;
        println!(
            "one guest of {every} busy, ±{} %: {each:.2} bytes for each guest and second, {day:.1} MB a day, {:.2} ms to write",
            noise / 10,
            cpu.as_secs_f64() * 1e3
        );
        assert!(day < 40.0, "{day:.1} MB a day");
    }
}

/// A recording of one guest whose packets cost `each` nanoseconds in soft interrupts.
fn recorded(path: &Path, each: u64, minutes: u64, note: &str) -> Recording {
    let mut recorder = Recorder::open(path);
    recorder.writer.set_note(note);
    let mut host = Host::default();
    host.start_named(1, "web", Platform::Docker);
    if note == "after" {
        host.start_named(2, "new", Platform::Docker);
    }
    let mut random = SplitMix64::new(each);
    for _ in 0..minutes * 60 {
        let mut snapshot = host.pass(1_000_000);
        let packets = 800 + random.bits() % 400;
        set(
            &mut snapshot,
            0,
            9_000_000 + random.bits() % 2_000_000,
            packets * each,
            packets,
        );
        recorder.take(&snapshot);
    }
    recorder.writer.finish().unwrap();
    Recording::read(path).unwrap()
}

#[test]
fn a_comparison_finds_the_cost_of_a_packet_that_rose_and_gates_judge_it() {
    let (_folder, path) = place();
    let before = recorded(&path, 2000, 30, "before");
    let after = recorded(&path.with_extension("after"), 3000, 30, "after");
    let comparison = compare(&before, &after);
    let run = &comparison.others[0];
    assert_eq!(
        (run.only_first.len(), run.only_here.as_slice()),
        (0, ["new (docker)".to_owned()].as_slice())
    );
    let row = run
        .comparisons
        .iter()
        .find(|row| row.metric == vtax_core::metric::COST_HOST_PER_PACKET.name)
        .unwrap();
    let interval = row.interval().unwrap();
    assert!(
        interval.contains(1.5) && interval.high - interval.low < 0.02,
        "{row:?}"
    );
    let text = vtax_report::compare::table(&comparison, 100);
    assert!(text.contains("1.50"), "{text}");
    for (gate, outcome) in [
        ("+60%", GateOutcome::Passed),
        ("+40%", GateOutcome::Missed),
        ("+50%", GateOutcome::Undecided),
    ] {
        let gate = format!("{} of web (docker) > {gate}", row.metric)
            .parse()
            .unwrap();
        let judged = judge_comparison(&[gate], &comparison, AcrossHosts::default()).unwrap();
        assert_eq!(
            (judged.len(), judged[0].outcome),
            (1, outcome),
            "{}",
            judged[0]
        );
    }
}

#[test]
fn the_hidden_time_and_the_exchanges_of_a_service_are_not_known() {
    let (_folder, path) = place();
    let mut recorder = Recorder::open(&path);
    let mut host = Host::default();
    host.start_named(1, "redis-server", Platform::Native);
    host.start_named(2, "web", Platform::Docker);
    for _ in 0..3 {
        recorder.take(&host.pass(1_000_000_000));
    }
    recorder.writer.finish().unwrap();
    let recording = Recording::read(&path).unwrap();
    let report = Report::from_recording(&recording);
    let of = |platform: &str| {
        let mut guests = report.guests.iter();
        let found = guests.find(|guest| guest.platform == platform);
        found.unwrap()
    };
    let (service, container) = (of("native"), of("docker"));
    assert_eq!(
        (service.hidden_share, container.hidden_share),
        (None, Some(0.1))
    );
    assert!(service.hidden_cpu_seconds.is_none() && container.hidden_cpu_seconds > Some(0.0));
    let exchanges = |guest: &GuestReport<'_>| [guest.packets, guest.bytes, guest.block_requests];
    assert_eq!(exchanges(service), [None; 3]);
    assert!(exchanges(container).iter().all(Option::is_some));
}

#[test]
fn the_page_escapes_names_and_names_the_model() {
    let (_folder, path) = place();
    let mut recorder = Recorder::open(&path);
    let mut host = Host::default();
    host.start_named(1, "<script>alert(1)</script>", Platform::Docker);
    for _ in 0..5 {
        recorder.take(&host.pass(1_000_000));
    }
    recorder.writer.finish().unwrap();
    let recording = Recording::read(&path).unwrap();
    let report = Report::from_recording(&recording);
    let page = crate::page::page(&report, &recording);
    assert!(!page.contains("<script>alert") && page.contains("&lt;script&gt;alert"));
    assert!(page.contains("another machine") && page.contains("modelled"));
}

#[test]
fn a_short_recording_has_a_point_a_second_and_the_rows_of_its_energy_add_up() {
    let (_folder, path) = place();
    let mut recorder = Recorder::open(&path);
    let mut host = host(2);
    for _ in 0..30 {
        recorder.take(&host.pass(1_000_000));
    }
    recorder.writer.finish().unwrap();
    let recording = Recording::read(&path).unwrap();
    let report = Report::from_recording(&recording);
    assert_eq!(report.minutes.len(), 1);
    let fine = recording.in_seconds().unwrap().unwrap();
    let windows = crate::report::windows(&fine);
    assert!((29..=30).contains(&windows.len()), "{}", windows.len());
    let page = crate::page::page(&report, &recording);
    assert!(page.contains("seconds into the recording"));
    let parts = [
        report.host_energy_joules,
        report.departed_energy_joules,
        report.unattributed_energy_joules,
        report.idle_energy_joules,
    ];
    let guests = report.guests.iter().map(|guest| guest.energy_joules);
    let sum: f64 = parts.into_iter().chain(guests).map(Option::unwrap).sum();
    let all = report.energy_joules.unwrap();
    assert!(
        all > 0.0 && (sum / all - 1.0).abs() < 1e-6,
        "{sum} of {all}"
    );
    // No guest does a countable unit of work, and there is no table without rows.
    assert_eq!(
        page.contains("The cost of a unit of work"),
        report.guests.iter().any(|guest| guest.per_packet.is_some()
            || guest.per_exit.is_some()
            || guest.per_gigabyte.is_some())
    );
}

#[test]
fn an_export_has_the_records_of_each_second_and_they_add_up() {
    let (_folder, path) = place();
    let mut recorder = Recorder::open(&path);
    let mut host = host(2);
    for _ in 0..3 {
        recorder.take(&host.pass(10_000_000));
    }
    recorder.writer.finish().unwrap();
    let mut out = Vec::new();
    assert_eq!(crate::export::csv(&path, &mut out).unwrap(), 0);
    let text = String::from_utf8(out).unwrap();
    let rows: Vec<Vec<&str>> = text
        .lines()
        .skip(1)
        .map(|line| line.split(',').collect())
        .collect();
    let seconds: f64 = rows.iter().map(|row| row[10].parse::<f64>().unwrap()).sum();
    let total: f64 = 3.0 * (0.03 + 0.005);
    assert!(
        (seconds - total).abs() < 2e-3,
        "{seconds} of {total}: {text}"
    );
    let joules: f64 = rows
        .iter()
        .filter_map(|row| row[12].parse::<f64>().ok())
        .sum();
    let Joules(energy) = host
        .pass(0)
        .totals
        .guests
        .values()
        .map(|guest| guest.energy)
        .fold(Joules(0.0), |sum, more| sum + more);
    assert!(joules > energy, "the host's energy is there too");
    assert!(
        rows.iter()
            .any(|row| row[4] == "guest-2" && row[9] == "softirq"),
        "{text}"
    );
}

/// A recording of one block that no recorder would write.
fn hostile(path: &Path, seconds: &[Second], declared: &[Identity]) {
    let (mut store, _) = Store::open(path).unwrap();
    store.write_facts(&Facts::default()).unwrap();
    store.write_block(seconds, declared).unwrap();
}

fn second(guests: impl Iterator<Item = u32>) -> Second {
    let mut second = Second::default();
    second.host[0] = 10_000;
    second.guests = guests.map(|number| (number, [1; OF_GUEST])).collect();
    second
}

#[test]
fn more_names_than_a_host_has_guests_are_one_sum() {
    let (_folder, path) = place();
    hostile(&path, &[second(0..150_000)], &[]);
    let recording = Recording::read(&path).unwrap();
    assert_eq!(recording.guests.len(), 100_001);
    let sum = recording
        .guests
        .iter()
        .find(|guest| guest.name == "further guests")
        .unwrap();
    assert_eq!(sum.instances, 50_000);
}

#[test]
fn names_without_end_and_names_with_commas_and_lines_do_no_harm() {
    let (_folder, path) = place();
    let named = |number: u32, text: &str| -> Identity {
        serde_json::from_value(
            serde_json::json!({"n": number, "name": text, "platform": text, "manager": text}),
        )
        .unwrap()
    };
    let declared = [
        named(1, &"x".repeat(1 << 20)),
        named(2, "a,b\n=c\u{1b}[1m\""),
    ];
    hostile(&path, &[second(1..3)], &declared);
    let recording = Recording::read(&path).unwrap();
    assert!(
        recording
            .guests
            .iter()
            .any(|guest| guest.name == "guest 1 of unknown name")
    );
    let table = crate::report::table(&Report::from_recording(&recording), &recording, 80);
    assert!(
        !table.contains('\u{1b}') && table.lines().all(|line| line.len() < 400),
        "{table}"
    );
    let mut out = Vec::new();
    crate::export::csv(&path, &mut out).unwrap();
    let text = String::from_utf8(out).unwrap();
    // Outside of quotes every record has the columns of the header.
    let mut quoted = false;
    let mut commas = vec![0];
    for letter in text.chars() {
        match letter {
            '"' => quoted = !quoted,
            ',' if !quoted => *commas.last_mut().unwrap() += 1,
            '\n' if !quoted => commas.push(0),
            _ => {}
        }
    }
    commas.pop();
    assert!(
        commas.iter().all(|count| *count == commas[0]),
        "{commas:?}: {text}"
    );
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Whatever is done to the files, reading ends, gives seconds in order, and a recorder goes on behind them.
    #[test]
    fn a_mutated_recording_is_read_without_panic_and_continued(
        at in any::<prop::sample::Index>(), byte in any::<u8>(), cut in any::<bool>(), tail in any::<bool>(),
    ) {
        let (_folder, path) = place();
        let mut recorder = Recorder::open(&path);
        let mut host = host(3);
        for _ in 0..250 {
            recorder.take(&host.pass(1_234_567));
        }
        drop(recorder);
        let file = path.join(if tail { "tail.vtax" } else { RECORDING });
        let mut bytes = fs::read(&file).unwrap();
        let at = at.index(bytes.len());
        if cut { bytes.truncate(at) } else { bytes[at] = byte }
        fs::write(&file, &bytes).unwrap();
        let mut before = Vec::new();
        match store::read(&path, |read| before.push(read.number)) {
            Ok(_) => prop_assert!(before.windows(2).all(|pair| pair[0] < pair[1])),
            Err(error) => prop_assert!(matches!(error, StoreError::NotARecording(_)), "{error}"),
        }
        if let Ok(recording) = Recording::read(&path) {
            let report = Report::from_recording(&recording);
            prop_assert!(!crate::report::table(&report, &recording, 80).is_empty());
        }
        if let Ok((store, _)) = Store::open(&path) {
            let mut recorder = Recorder { writer: Writer::new(store, Facts::default()), printed: Vec::new() };
            recorder.take(&host.pass(1_000_000));
            recorder.writer.finish().unwrap();
            prop_assert!(numbers(&path).len() > before.len().saturating_sub(1));
        }
    }
}

#[test]
fn the_rates_of_an_advice_are_those_of_the_recording() {
    let (_folder, path) = place();
    let mut recorder = Recorder::open(&path);
    let mut host = host(2);
    for _ in 0..20 {
        let mut snapshot = host.pass(100_000_000);
        set(&mut snapshot, 0, 300_000_000, 100_000_000, 8_000);
        snapshot.guests[0].used.exchanges.exits = Some(9_000);
        recorder.take(&snapshot);
    }
    recorder.writer.finish().unwrap();
    let rates = crate::advise::read(&path).unwrap();
    assert_eq!(rates.len(), 2);
    let first = &rates[0];
    assert_eq!(
        (first.guest.as_str(), first.exits),
        ("guest-1", Some(9_000.0))
    );
    assert_eq!((first.received, first.sent), (8_000.0, 4_000.0));
    assert!((first.seconds - 20.0).abs() < 1e-9);
    assert!((first.cpu - 0.4).abs() < 1e-3 && (first.softirq - 0.1).abs() < 1e-3);
    // The other guest's exits were not counted.
    assert_eq!(rates[1].exits, None);
}
