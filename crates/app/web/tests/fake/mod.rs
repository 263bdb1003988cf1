// SPDX-License-Identifier: Apache-2.0
//! A stand-in for `vtax`: this test program, started by a script of that name. It takes the arguments of `vtax run`,
//! holds the lab's lock, writes the same events, ends in order on request, and writes invented trials.

pub mod machines;
pub mod page;

use std::fs;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use vtax_core::{Quantity, Source};
use vtax_host::lock::Lock;
use vtax_host::signals::Signals;
use vtax_lab::run::{Event, FinishedTrial, LiveSample, SampledLevel};
use vtax_results::ResultsDir;
use vtax_testkit::results::Fake;

const ARGUMENTS: &str = "VTAX_FAKE";
const STATE: &str = "VTAX_FAKE_STATE";

/// The results that it writes.
pub fn invented() -> Fake {
    Fake {
        platforms: vec!["native", "qemu"],
        blocks: 4,
        seconds: 6,
        ..Fake::default()
    }
}

/// A plan without mistakes. The stand-in runs [`invented`] in its place.
pub const PLAN: &str = "name = \"small\"\ndescription = \"a small <b>plan</b>\"\nrepetitions = 4\n\
    [[platform]]\nkind = \"native\"\n[[platform]]\nkind = \"qemu\"\n[[workload]]\nkind = \"idle\"\n";

/// The result of a check of this host.
const DRY: &str = r#"{"missing":["host.governor: no <cpufreq> here"],"notes":[]}"#;

/// Creates the program in a folder, which also holds its state.
pub fn program(folder: &Path) -> PathBuf {
    let path = folder.join("vtax");
    let own = vtax_testkit::child_of_a_test("fake::vtax");
    let words = [own.get_program()].into_iter().chain(own.get_args());
    let words: Vec<String> = words.map(|word| format!("'{}'", word.display())).collect();
    let script = format!(
        "#!/bin/sh\ncase \"$*\" in *--dry-run*) cat > /dev/null; echo '{DRY}'; exit 5;; esac\n{ARGUMENTS}=\"$*\" {STATE}='{}' exec {}\n",
        folder.join("state").display(),
        words.join(" ")
    );
    fs::write(&path, script).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    path
}

/// Sets the duration of each later trial.
pub fn pace(folder: &Path, milliseconds: u64) {
    fs::create_dir_all(folder.join("state")).unwrap();
    let (new, path) = (folder.join("state/pace.new"), folder.join("state/pace"));
    fs::write(&new, milliseconds.to_string()).unwrap();
    fs::rename(new, path).unwrap();
}

/// A plan of climbs without mistakes.
pub const CLIMBS: &str = "name = \"climbs\"\nrepetitions = 2\n[density]\n[[platform]]\nkind = \"thread\"\nmaximum = 40\n";

/// The event of a trial for one second.
pub fn metered(at: f64) -> Event {
    let stages = |stages: &[(&str, f64)]| {
        let stages = stages.iter();
        stages
            .map(|(name, value)| ((*name).to_owned(), value * at))
            .collect()
    };
    Event::Metered(LiveSample {
        at,
        seconds: 1.0,
        cpu: [
            (
                "target".to_owned(),
                stages(&[("vcpu", 0.3), ("vhost", 0.1)]),
            ),
            ("client".to_owned(), stages(&[("client", 0.2)])),
            ("vtax".to_owned(), stages(&[("observer", 0.01)])),
            ("host".to_owned(), stages(&[("rest", 0.05)])),
        ]
        .into(),
        carried: [(
            "to its network device".to_owned(),
            Quantity::new(1e8 * at, "B/s".parse().unwrap()),
        )]
        .into(),
        source: Source::Emulated,
    })
}

fn say(event: &Event) {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{}", serde_json::to_string(event).unwrap()).unwrap();
    out.flush().unwrap();
}

/// The stand-in itself, not a test of its own.
#[test(needs = [by_name_only()])]
fn vtax() {
    let arguments = std::env::var(ARGUMENTS).unwrap();
    let arguments: Vec<&str> = arguments.split(' ').collect();
    let after = |name: &str| {
        let at = arguments.iter().position(|one| *one == name).unwrap();
        arguments[at + 1]
    };
    let is_climb = arguments[0] == "density";
    let place = after("--place");
    let path = Path::new(after("--results"));
    assert!(arguments.contains(&"--json") && (is_climb || arguments[0] == "run"));
    let plan = if is_climb { CLIMBS } else { PLAN };
    assert_eq!(fs::read_to_string(arguments[1]).unwrap(), plan);
    if place == "ssh:nowhere" {
        eprintln!("vtax: cannot reach <nowhere>");
        std::process::exit(1);
    }
    let state = PathBuf::from(std::env::var(STATE).unwrap());
    fs::write(state.join("arguments"), arguments.join("\n")).unwrap();
    let signals = Signals::install().unwrap();
    // A run elsewhere takes no lock of this host, and its results arrive here at its end.
    let here = place == "local";
    let _lock = here.then(|| {
        Lock::acquire(
            &state,
            &format!("running plan small into {}", path.display()),
        )
        .unwrap()
    });
    let elsewhere = state.join("elsewhere");
    let directory = if here { path } else { &elsewhere };
    let fake = invented();
    let results = match ResultsDir::resume(directory) {
        Ok(results) => results,
        Err(_) => fake.create_with_plan(directory, plan),
    };
    let pending = results.pending();
    say(&Event::Started {
        plan: "small".to_owned(),
        results: path.display().to_string(),
        trials: pending.len(),
        finished: results.trial_indexes().len(),
        expected_seconds: 60.0,
    });
    say(&Event::Note {
        message: "an image is <built>".to_owned(),
    });
    for (done, index) in (1..).zip(&pending) {
        let scheduled = &results.run().schedule[*index as usize];
        let treatment = results.run().treatments[scheduled.treatment].label.clone();
        say(&Event::TrialStarted {
            index: *index,
            treatment: treatment.clone(),
        });
        let writer = results.trial_writer(*index).unwrap();
        writeln!(writer.log().unwrap(), "boot {treatment}").unwrap();
        let mut events = writer.events().unwrap();
        let mut say = |event: &Event| {
            writeln!(events, "{}", serde_json::to_string(event).unwrap()).unwrap();
            say(event);
        };
        say(&Event::Phase {
            phase: "measure".to_owned(),
        });
        for at in 1..4_u32 {
            say(&metered(at.into()));
        }
        let memory = |level: u32| {
            let used = Quantity::new(f64::from(level), "%".parse().unwrap());
            [("memory".to_owned(), used)].into()
        };
        if is_climb {
            for level in [10, 20, 30] {
                say(&Event::Sampled(SampledLevel {
                    level: level.into(),
                    of: 40.0,
                    across: "guests".to_owned(),
                    readings: memory(level),
                    kept: None,
                }));
            }
        }
        let began = Instant::now();
        let lasts = || {
            let text = fs::read_to_string(state.join("pace")).unwrap_or_default();
            Duration::from_millis(text.parse().unwrap_or(0))
        };
        while began.elapsed() < lasts() {
            if signals.interrupted() {
                drop(writer);
                eprintln!("vtax: interrupted; the same command goes on");
                std::process::exit(1);
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        let trial = fake.trial(results.run(), *index);
        let suspect = trial.suspect.clone();
        writer.finish(trial).unwrap();
        say(&Event::TrialFinished(FinishedTrial {
            index: *index,
            treatment,
            seconds: 0.1,
            done,
            of: pending.len(),
            remaining_seconds: 5.0,
            headline: "CPU 1 core".to_owned(),
            suspect,
            disturbed: Vec::new(),
            failed: None,
        }));
    }
    if !here {
        fs::rename(directory, path).unwrap();
    }
    std::process::exit(0);
}
