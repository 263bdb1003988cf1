// SPDX-License-Identifier: Apache-2.0
//! Tests of the reader of plans and of their expansion, with valid and faulty plans.

mod command;
mod gate;
mod variants;

use super::*;
use proptest::prelude::*;
use vtax_guest::platform::{Booted, GuestFiles, Platform};
use vtax_host::HostError;
use vtax_host::cell::Seat;
use vtax_host::settings::{Domain, Parameter};
use vtax_load::workload::{
    About, LoadCommand, LoadLevel, LoadSpec, Timing, Workload, WorkloadResult,
};

struct FakePlatform(&'static str, &'static [Parameter]);

struct FakeWorkload(&'static About);

const fn parameter(key: &'static str, domain: Domain) -> Parameter {
    Parameter::unset(key, domain).help("for tests")
}

impl Platform for FakePlatform {
    fn kind(&self) -> &'static str {
        self.0
    }
    fn parameters(&self) -> &'static [Parameter] {
        self.1
    }
    fn check(&self, _: &Settings) -> Result<(), HostError> {
        Ok(())
    }
    fn expected_overhead(&self) -> Duration {
        Duration::from_secs(1)
    }
    fn boot(&self, _: &Seat, _: &GuestFiles, _: &Settings) -> Booted {
        Err(HostError::Interrupted)
    }
}

impl Workload for FakeWorkload {
    fn about(&self) -> &'static About {
        self.0
    }
    fn load(&self, _: LoadSpec) -> Result<LoadCommand, HostError> {
        Err(HostError::Interrupted)
    }
    fn parse(&self, _: &[u8], _: &Settings, _: Timing) -> Result<WorkloadResult, HostError> {
        Ok(WorkloadResult::default())
    }
}

static NATIVE: FakePlatform = FakePlatform("native", &[]);
static VM: FakePlatform = FakePlatform(
    "qemu",
    &[
        parameter("vm.vcpus", Domain::Integer(1, 64)),
        parameter("nic.backend", Domain::Choice(&["tap", "user"])),
    ],
);
static STREAM: FakeWorkload = FakeWorkload(&About {
    kind: "stream",
    parameters: &[parameter("load.rate_mbit", Domain::Number(0.0, 1e6))],
    level: Some(LoadLevel {
        key: "load.rate_mbit",
        unit: vtax_core::Unit::per(vtax_core::Base::Bit, vtax_core::Base::Second),
        scale: 1e6,
        title: "load",
    }),
    ..About::NONE
});
static IDLE: FakeWorkload = FakeWorkload(&About {
    kind: "idle",
    ..About::NONE
});

static PLATFORMS: [&dyn Platform; 2] = [&NATIVE, &VM];
static WORKLOADS: [&dyn Workload; 2] = [&STREAM, &IDLE];

fn catalogue() -> Catalogue {
    Catalogue {
        platforms: &PLATFORMS,
        workloads: &WORKLOADS,
        shared: vec![parameter("link.mtu", Domain::Integer(68, 9500))],
    }
}

const GOOD: &str = r#"
name = "sweep"
description = "everything a plan can say"
seed = 7
repetitions = 4
warmup = "500ms"
duration = "1m30s"
order = "interleaved"
sample_hz = 10
meters = ["auto"]
minimum_effect = 0.05
baseline = { platform = "native" }

[stop]
rule = "precision"
metric = "cpu.per_work"
width = 0.1
minimum = 3
time_cap = "1h"

[quick]
repetitions = 2
duration = "2s"
settings = { load.rate_mbit = 10 }

[settings]
link.mtu = 1500

[factors]
vm.vcpus = [1, 2]

[[platform]]
kind = "native"

[[platform]]
kind = "qemu"
name = "vm"
nic.backend = "tap"

[[workload]]
kind = "stream"
rate_mbit = 100

[[workload]]
kind = "idle"
"#;

fn read(text: &str) -> Result<Plan, Diagnostics> {
    Plan::read("plan.toml", text, &catalogue())
}

fn complaint(change: (&str, &str)) -> String {
    let text = GOOD.replacen(change.0, change.1, 1);
    assert_ne!(text, GOOD, "the change must apply");
    read(&text).expect_err("the plan is wrong").to_string()
}

#[test]
fn a_full_plan_is_read() {
    let plan = read(GOOD).unwrap();
    assert_eq!(plan.duration, Duration::from_secs(90));
    assert_eq!(
        plan.workloads[0].settings.number("load.rate_mbit", 0.0),
        100.0
    );
    assert_eq!(plan.platforms[1].settings.text("nic.backend"), Some("tap"));
    assert!(matches!(plan.stop, StopRule::Precision { minimum: 3, .. }));
}

#[test]
fn a_factor_multiplies_only_what_understands_it() {
    let plan = read(GOOD).unwrap();
    let labels: Vec<String> = treatments(&plan, &catalogue())
        .into_iter()
        .map(|planned| planned.record.label)
        .collect();
    assert_eq!(
        labels,
        [
            "native · stream",
            "native · idle",
            "vm · stream · vm.vcpus=1",
            "vm · stream · vm.vcpus=2",
            "vm · idle · vm.vcpus=1",
            "vm · idle · vm.vcpus=2",
        ]
    );
}

#[test]
fn every_treatment_knows_its_baseline_and_no_treatment_is_its_own() {
    let plan = read(GOOD).unwrap();
    for planned in treatments(&plan, &catalogue()) {
        let expected = (planned.record.platform != "native")
            .then(|| format!("native · {}", planned.record.workload));
        assert_eq!(planned.record.baseline, expected);
    }
}

#[test]
fn a_treatment_whose_baseline_the_plan_lacks_names_the_one_it_would_have() {
    let text = "name = \"both\"\nbaseline = \"qemu\"\n\
                [factors]\nnic.queues = [1, 2]\nxen.kind = [\"pv\", \"pvh\"]\n\
                [[platform]]\nkind = \"qemu\"\n[[platform]]\nkind = \"xen\"\n\
                [[workload]]\nkind = \"idle\"\n";
    let standard = Catalogue::standard();
    let plan = Plan::read("both.toml", text, &standard).unwrap();
    for planned in treatments(&plan, &standard) {
        let is_xen = planned.record.platform == "xen";
        assert_eq!(planned.record.baseline, None);
        let missing = is_xen.then_some("qemu · idle");
        assert_eq!(planned.missing_baseline.as_deref(), missing);
    }
}

/// Returns the treatments of a plan that varies `factor` on QEMU, the baseline, and on Xen with the settings `xen`.
fn swept(factor: &str, xen: &str) -> Result<Vec<PlannedTreatment>, Diagnostics> {
    let text = format!(
        "name = \"swept\"\nbaseline = \"qemu\"\n[factors]\n{factor} = [1, 2]\n\
         [[platform]]\nkind = \"qemu\"\n[[platform]]\nkind = \"xen\"\n{xen}\n\
         [[workload]]\nkind = \"idle\"\n"
    );
    let standard = Catalogue::standard();
    let plan = Plan::read("swept.toml", &text, &standard)?;
    Ok(treatments(&plan, &standard))
}

#[test]
fn each_size_of_a_xen_guest_is_compared_with_the_same_size_under_qemu() {
    for treatment in swept("vm.vcpus", "vm.memory_mib = 256").unwrap() {
        let record = treatment.record;
        let label = record.label.clone();
        let baseline = (record.platform == "xen").then(|| label.replacen("xen", "qemu", 1));
        assert!(label.contains(" · vm.vcpus="), "{label}");
        assert_eq!(record.baseline, baseline, "{label}");
        assert_eq!(treatment.missing_baseline, None, "{label}");
    }
}

#[test]
fn of_very_many_mistakes_the_first_are_explained_and_the_rest_counted() {
    let syntax = "x\n".repeat(30_000);
    let mut unknown = GOOD.to_owned();
    for number in 0..25_000 {
        unknown.insert_str(0, &format!("k{number} = 1\n"));
    }
    for (text, least) in [(syntax, 29_000), (unknown, 25_000)] {
        let wrong = read(&text).unwrap_err();
        assert_eq!(wrong.list.len(), 100);
        assert!(wrong.more + 100 >= least, "{}", wrong.more);
        assert!(wrong.to_string().ends_with("more mistakes"));
    }
    let large = read(&"#".repeat(1 + (1 << 20))).unwrap_err();
    assert_eq!((large.list.len(), large.more), (1, 0));
}

#[test]
fn a_level_can_be_the_baseline() {
    let text = GOOD.replacen("{ platform = \"native\" }", "{ vm.vcpus = 1 }", 1);
    let all = treatments(&read(&text).unwrap(), &catalogue());
    let find = |label: &str| {
        all.iter()
            .find(|planned| planned.record.label == label)
            .unwrap()
            .record
            .baseline
            .clone()
    };
    assert_eq!(
        find("vm · idle · vm.vcpus=2").as_deref(),
        Some("vm · idle · vm.vcpus=1")
    );
    assert_eq!(find("vm · idle · vm.vcpus=1"), None);
    assert_eq!(find("native · idle"), None);
}

#[test]
fn the_quick_profile_shrinks_and_overrides() {
    let plan = read(GOOD).unwrap().quick();
    assert_eq!(
        (plan.repetitions, plan.duration),
        (2, Duration::from_secs(2))
    );
    assert!(plan.is_quick);
    let stream = &treatments(&plan, &catalogue())[0];
    assert_eq!(stream.settings.number("load.rate_mbit", 0.0), 10.0);
}

#[test]
fn the_idle_phase_has_five_seconds_two_in_the_quick_profile_and_none_at_zero() {
    let idle = |line: &str| {
        let text = GOOD.replace("sample_hz = 10\n", &format!("sample_hz = 10\n{line}\n"));
        let plan = read(&text).unwrap();
        [plan.idle, plan.quick().idle].map(|length| length.as_secs())
    };
    assert_eq!(idle(""), [5, 2]);
    assert_eq!(idle("idle = \"30s\""), [30, 2]);
    assert_eq!(idle("idle = \"0s\""), [0, 0]);
}

#[test]
fn the_expected_time_has_an_idle_phase_for_each_block_of_a_plan_with_a_meter() {
    let catalogue = catalogue();
    let expected = |meter: &str, idle: &str| {
        let meters = format!("meters = [\"{meter}\"]\nidle = \"{idle}\"");
        let plan = read(&GOOD.replace("meters = [\"auto\"]", &meters)).unwrap();
        let all = treatments(&plan, &catalogue);
        (plan.expected_time(&all, &catalogue), plan.repetitions)
    };
    let (without, _) = expected("powercap", "0s");
    let (with, blocks) = expected("powercap", "7s");
    assert_eq!(with - without, Duration::from_secs(7) * blocks);
    for other in ["none", "model"] {
        assert_eq!(expected(other, "7s").0, without, "{other}");
    }
}

#[test]
fn the_expected_time_of_a_command_is_within_a_factor_of_1_5_of_what_trials_took() {
    // The mean time of a trial on two processors without a meter, in seconds; VMs were emulated, for want of KVM.
    let catalogue = Catalogue::standard();
    for (platform, load, took) in [
        (
            "native",
            "sysbench cpu --cpu-max-prime=2000 --time=2 run",
            2.28,
        ),
        (
            "qemu",
            "sysbench cpu --cpu-max-prime=2000 --time=2 run",
            6.52,
        ),
        ("native", "sysbench cpu run", 10.2),
        ("qemu", "sysbench cpu run", 14.6),
        ("container", "wrk -t1 -c4 -d2s http://127.0.0.1:8080/", 2.9),
    ] {
        let text = format!(
            "name = \"a\"\nrepetitions = 4\nwarmup = \"0s\"\n[[platform]]\nkind = \"{platform}\"\n\
             [[workload]]\nkind = \"command\"\nload = \"{load}\"\n"
        );
        let plan = Plan::read("plan.toml", &text, &catalogue).unwrap();
        let one = treatments(&plan, &catalogue).remove(0);
        let overhead = catalogue.platform(platform).unwrap().expected_overhead();
        let is_emulated = overhead > Duration::from_secs(2);
        let expected = one.expected_time(&plan, &catalogue).as_secs_f64();
        let factor = expected / took;
        assert!(
            (1.0 / 1.5..1.5).contains(&factor) || platform == "qemu" && !is_emulated,
            "{platform} {load}: {expected} s, and it took {took} s"
        );
    }
}

#[test]
fn runs_of_a_command_before_the_measured_one_are_counted_and_a_warm_up_is_not() {
    let catalogue = Catalogue::standard();
    let expected = |lines: &str| {
        let text = format!(
            "name = \"a\"\nrepetitions = 1\nwarmup = \"9s\"\n[[platform]]\nkind = \"native\"\n\
             [[workload]]\nkind = \"command\"\n{lines}\n"
        );
        let plan = Plan::read("plan.toml", &text, &catalogue).unwrap();
        let one = treatments(&plan, &catalogue).remove(0);
        let time = one.expected_time(&plan, &catalogue).as_millis();
        (time, one.assumption(&catalogue).is_some())
    };
    assert_eq!(
        expected("load = \"sysbench cpu --time=2 run\""),
        (2200, false)
    );
    let twice = "load = \"sysbench cpu --time=2 run\"\nwarmup_runs = 1";
    assert_eq!(expected(twice), (4200, false));
    // Nothing says how long another command takes.
    assert_eq!(expected("load = \"true\""), (3200, true));
}

#[test]
fn a_misspelt_setting_of_a_workload_suggests_the_nearest_one() {
    for key in ["ratte", "load.ratte"] {
        let text = format!(
            "name = \"a\"\nrepetitions = 1\n[[platform]]\nkind = \"native\"\n\
             [[workload]]\nkind = \"http-rate\"\n{key} = 5\n"
        );
        let wrong = Plan::read("plan.toml", &text, &Catalogue::standard()).unwrap_err();
        let printed = wrong.to_string();
        assert!(printed.contains("did you mean `rate`?"), "{printed}");
    }
}

#[test]
fn a_setting_that_nothing_in_the_plan_understands_is_refused() {
    let (before, after) = GOOD.split_once("[[platform]]\nkind = \"qemu\"").unwrap();
    let (_, workloads) = after.split_once("[[workload]]").unwrap();
    let printed = read(&format!("{before}[[workload]]{workloads}"))
        .expect_err("no platform has vCPUs")
        .to_string();
    assert!(
        printed.contains("no platform or workload of this plan has the setting `vm.vcpus`"),
        "{printed}"
    );
}

#[test]
fn complaints_point_at_the_place_and_suggest_the_nearest_word() {
    let unknown = complaint(("repetitions = 4", "repetition = 4"));
    assert!(
        unknown.contains("plan.toml:5:1: a plan has no key `repetition`"),
        "{unknown}"
    );
    assert!(unknown.contains("did you mean `repetitions`?"), "{unknown}");
    let kind = complaint(("kind = \"qemu\"", "kind = \"qemo\""));
    assert!(
        kind.contains("there is no platform `qemo`") && kind.contains("did you mean `qemu`?"),
        "{kind}"
    );
    let setting = complaint(("rate_mbit = 100", "rate_mbits = 100"));
    assert!(
        setting.contains("workload `stream` has no setting `rate_mbits`"),
        "{setting}"
    );
    assert!(setting.contains("did you mean `rate_mbit`?"), "{setting}");
    let choice = complaint(("nic.backend = \"tap\"", "nic.backend = \"tup\""));
    assert!(
        choice.contains("`nic.backend` must be one of \"tap\", \"user\""),
        "{choice}"
    );
    let range = complaint(("link.mtu = 1500", "link.mtu = 0"));
    assert!(
        range.contains("`link.mtu` must be a whole number from 68 to 9500"),
        "{range}"
    );
    let time = complaint(("\"1m30s\"", "90"));
    assert!(
        time.contains("`duration` must be a time") && time.contains("\"500ms\""),
        "{time}"
    );
    let level = complaint(("[1, 2]", "[1, 1]"));
    assert!(level.contains("has the level `1` twice"), "{level}");
    let list = complaint(("[1, 2]", "1"));
    assert!(
        list.contains("factor `vm.vcpus` must list its levels"),
        "{list}"
    );
    let baseline = complaint(("{ platform = \"native\" }", "\"nativ\""));
    assert!(
        baseline.contains("no platform called `nativ`")
            && baseline.contains("did you mean `native`?"),
        "{baseline}"
    );
    let stop = complaint(("minimum = 3", "minimum = 30"));
    assert!(stop.contains("exceeds `repetitions`"), "{stop}");
    let syntax = complaint(("seed = 7", "seed = = 7"));
    assert!(syntax.contains("plan.toml:4:"), "{syntax}");
    let many = complaint(("repetitions = 4", "repetitions = 99999"));
    assert!(many.contains("trials; more than"), "{many}");
    let twice = complaint(("kind = \"idle\"", "kind = \"stream\""));
    assert!(
        twice.contains("two workloads are called `stream`"),
        "{twice}"
    );
}

#[test]
fn an_empty_plan_says_everything_that_is_missing() {
    let all = read("").unwrap_err().to_string();
    for part in [
        "`name` is missing",
        "no `[[platform]]`",
        "no `[[workload]]`",
    ] {
        assert!(all.contains(part), "{all}");
    }
}

const SCENARIO: &str = r#"
name = "company"
repetitions = 2
warmup = "1s"
duration = "10s"
baseline = { platform = "qemu", neighbours = [] }

[again]
share = 0.25

[factors]
neighbours = [[], ["hog"], ["hog", "twin"]]
vm.vcpus = [1, 2]

[[platform]]
kind = "native"

[[platform]]
kind = "qemu"
nic.backend = "tap"

[[workload]]
kind = "stream"
rate_mbit = 10
profile = { ramp = { from = 10, to = 30, step = 10, every = "2s" } }
objective = "latency.p99 <= 20ms"

[[neighbour]]
name = "hog"
kind = "idle"
platform = "qemu"

[[neighbour]]
name = "twin"
same_as = "target"
"#;

const RAMP: &str = "{ ramp = { from = 10, to = 30, step = 10, every = \"2s\" } }";

#[test]
fn neighbours_are_chosen_by_name_and_share_what_is_varied_of_platforms() {
    let plan = read(SCENARIO).unwrap();
    assert_eq!(plan.again, 0.25);
    let all = treatments(&plan, &catalogue());
    let find = |label: &str| {
        let mut all = all.iter();
        all.find(|planned| planned.record.label == label)
            .unwrap_or_else(|| panic!("{label}"))
    };
    let alone = find("qemu · stream · neighbours=none · vm.vcpus=2");
    assert!(alone.neighbours.is_empty());
    let both = find("qemu · stream · neighbours=hog+twin · vm.vcpus=2");
    assert_eq!(
        both.record.baseline.as_deref(),
        Some("qemu · stream · neighbours=none · vm.vcpus=2")
    );
    let [hog, twin] = both.neighbours.as_slice() else {
        panic!("{:?}", both.neighbours);
    };
    assert_eq!(hog.settings.integer("vm.vcpus", 0), 2);
    assert_eq!(hog.settings.text("nic.backend"), Some("tap"));
    assert!(!hog.settings.0.contains_key("load.rate_mbit"));
    assert!(twin.is_twin && !hog.is_twin);
    assert_eq!(twin.settings, both.settings);
    // On the native platform only the neighbours vary.
    assert_eq!(find("native · stream · neighbours=hog").neighbours.len(), 1);
}

#[test]
fn a_plan_without_the_factor_has_all_its_neighbours_in_every_trial() {
    let text = SCENARIO
        .replace("neighbours = [[], [\"hog\"], [\"hog\", \"twin\"]]\n", "")
        .replace(", neighbours = []", "");
    for planned in treatments(&read(&text).unwrap(), &catalogue()) {
        assert_eq!(planned.neighbours.len(), 2, "{}", planned.record.label);
    }
}

#[test]
fn what_is_wrong_with_a_scenario_is_reported_where_it_stands() {
    for (old, new, expected) in [
        ("[\"hog\"],", "[\"hug\"],", "called `hug`"),
        ("[\"hog\"],", "\"hog\",", "neighbours are a list of names"),
        ("[[], ", "[[], [], ", "level `none` twice"),
        (
            "name = \"hog\"",
            "name = \"target\"",
            "cannot be called `target`",
        ),
        ("name = \"hog\"", "name = \"a+b\"", "cannot be called `a+b`"),
        ("name = \"hog\"", "name = \"a.b\"", "cannot be called `a.b`"),
        (
            "name = \"hog\"",
            "name = \"vtax\"",
            "cannot be called `vtax`",
        ),
        (
            "name = \"hog\"",
            "name = \"dom0\"",
            "cannot be called `dom0`",
        ),
        ("kind = \"idle\"", "kind = \"idel\"", "did you mean `idle`?"),
        (
            "same_as = \"target\"",
            "same_as = \"hog\"",
            "must be \"target\"",
        ),
        (
            "platform = \"qemu\"\n\n[[n",
            "platform = \"vm\"\n\n[[n",
            "no platform called `vm`",
        ),
        (
            "kind = \"idle\"",
            "kind = \"idle\"\nrate = 3",
            "has no setting `rate`",
        ),
        (
            "kind = \"idle\"",
            "kind = \"idle\"\nlink.mtu = 1500",
            "has no setting `link.mtu`",
        ),
        (
            "from = 10, to = 30",
            "from = 30, to = 10",
            "go from 30 down to 10",
        ),
        ("step = 10, ", "", "either a `step` or `times`"),
        (
            "step = 10",
            "step = 10, times = 2",
            "either a `step` or `times`",
        ),
        ("step = 10", "step = 0.001", "more than 1000 levels"),
        ("ramp", "ramb", "there is no profile `ramb`"),
        ("every = \"2s\"", "evry = \"2s\"", "did you mean `every`?"),
        (
            RAMP,
            "{ steps = { levels = [3, 2] } }",
            "each above the one before",
        ),
        (RAMP, "\"steedy\"", "there is no profile `steedy`"),
        ("<= 20ms", "< 20ms", "is no objective"),
        ("<= 20ms", "<= 20 apples", "is no limit"),
        ("share = 0.25", "share = -1", "`share` must be a number"),
        (
            "repetitions = 2",
            "repetitions = 2\nseeds = 2",
            "`seeds` and `repetitions` are both given",
        ),
        (
            "repetitions = 2",
            "seeds = 2\ndraws = 2",
            "`draws` and `seeds` are both given",
        ),
        (
            "[again]",
            "[places]\nclient = \"here\"\n[again]",
            "must be \"ssh:HOST\"",
        ),
        (
            "[again]",
            "[places]\nclient = \"ssh:h\"\n[again]",
            "needs `bridge` or `device`",
        ),
    ] {
        let text = SCENARIO.replacen(old, new, 1);
        assert_ne!(text, SCENARIO, "the change must apply: {old}");
        let printed = read(&text).expect_err(new).to_string();
        assert!(printed.contains(expected), "{new}: {printed}");
        assert!(printed.contains("plan.toml:"), "{printed}");
    }
}

#[test]
fn a_search_wants_an_objective_and_a_ramp_a_level() {
    let text = SCENARIO
        .replace(RAMP, "{ search = { from = 10, to = 30 } }")
        .replace("objective = \"latency.p99 <= 20ms\"\n", "");
    let printed = read(&text).unwrap_err().to_string();
    assert!(
        printed.contains("a search needs an `objective`"),
        "{printed}"
    );
    let idle = SCENARIO.replacen("kind = \"stream\"\nrate_mbit = 10", "kind = \"idle\"", 1);
    let printed = read(&idle).unwrap_err().to_string();
    assert!(
        printed.contains("no load level") && printed.contains("stream"),
        "{printed}"
    );
}

/// Generates damaged plans: text is deleted, duplicated or inserted at a position.
fn mutated() -> impl Strategy<Value = String> {
    let edit = (
        any::<prop::sample::Index>(),
        0usize..40,
        "[\\x00-\\x7fµ·\"\\[\\]{}=.0-9a-z\\n-]{0,12}",
    );
    let plan = prop::sample::select(vec![GOOD, SCENARIO]);
    (plan, prop::collection::vec(edit, 1..6)).prop_map(|(plan, edits)| {
        let mut characters: Vec<char> = plan.chars().collect();
        for (place, length, text) in edits {
            let start = place.index(characters.len().max(1)).min(characters.len());
            let end = (start + length).min(characters.len());
            characters.splice(start..end, text.chars());
        }
        characters.into_iter().collect()
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn mutated_plans_give_clear_errors_and_never_panic(text in mutated()) {
        match read(&text) {
            Ok(plan) => {
                let all = treatments(&plan, &catalogue());
                schedule(all.len(), plan.repetitions.min(50), plan.order, plan.seed);
            }
            Err(diagnostics) => {
                prop_assert!(!diagnostics.list.is_empty());
                let lines = text.lines().count() + 1;
                for found in &diagnostics.list {
                    prop_assert!(!found.message.is_empty());
                    prop_assert!(found.line >= 1 && found.line <= lines, "line {} of {}", found.line, lines);
                }
                prop_assert!(diagnostics.to_string().contains("plan.toml:"));
            }
        }
    }
}

#[test]
fn where_a_client_lives_is_a_factor_that_needs_to_know_elsewhere() {
    let catalogue = Catalogue::standard();
    let text = "name = \"x\"\nbaseline = { client.place = \"beside\" }\n\
                [factors]\nclient.place = [\"beside\", \"elsewhere\"]\n\
                [[platform]]\nkind = \"native\"\n[[workload]]\nkind = \"iperf3-send\"\n";
    let refused = Plan::read("plan.toml", text, &catalogue).unwrap_err();
    let printed = refused.to_string();
    assert!(
        printed.contains("`client.place` needs [places]"),
        "{printed}"
    );

    let places = "[places]\nclient = \"ssh:h\"\nbridge = \"lan\"\ntarget = \"192.0.2.10/24\"\n";
    let plan = Plan::read("plan.toml", &format!("{text}{places}"), &catalogue).unwrap();
    let all = treatments(&plan, &catalogue);
    let elsewhere: Vec<bool> = all.iter().map(|planned| planned.client_is_remote).collect();
    assert_eq!(elsewhere, [false, true]);
    assert_eq!(all[1].record.baseline.as_ref(), Some(&all[0].record.label));
}
