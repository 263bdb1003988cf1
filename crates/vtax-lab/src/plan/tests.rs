// SPDX-License-Identifier: Apache-2.0
//! Tests of the reader of plans and of their expansion, with valid and faulty plans.

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
fn a_plan_with_xens_own_key_of_a_size_has_it_in_its_labels() {
    let all = swept("xen.vcpus", "xen.memory_mib = 256").unwrap();
    let labels: Vec<&str> = all
        .iter()
        .map(|treatment| treatment.record.label.as_str())
        .collect();
    let expected = [
        "qemu · idle",
        "xen · idle · xen.vcpus=1",
        "xen · idle · xen.vcpus=2",
    ];
    assert_eq!(labels, expected);
}

#[test]
fn a_size_that_is_given_by_both_of_its_keys_is_refused_where_the_second_is() {
    for (factor, xen, place) in [
        ("vm.vcpus", "xen.vcpus = 2", "swept.toml:9:5"),
        ("xen.vcpus", "vm.vcpus = 2", "swept.toml:4:5"),
        (
            "xen.vcpus",
            "[quick]\nsettings = { vm.vcpus = 2 }",
            "swept.toml:4:5",
        ),
        (
            "xen.vcpus",
            "[[neighbour]]\nname = \"beside\"\nkind = \"idle\"\nvm.vcpus = 2",
            "swept.toml:4:5",
        ),
    ] {
        let refused = swept(factor, xen).unwrap_err().to_string();
        assert!(
            refused.contains("`vm.vcpus` and `xen.vcpus` are the same setting"),
            "{refused}"
        );
        assert!(refused.contains(place), "{refused}");
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
    let (without, _) = expected("auto", "0s");
    let (with, blocks) = expected("auto", "7s");
    assert_eq!(with - without, Duration::from_secs(7) * blocks);
    assert_eq!(expected("none", "7s").0, without);
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

/// A plan of a command with an image: lines of the plan, of its platform, and of its workload.
fn with_image(plan: &str, platform: &str, workload: &str) -> Result<Plan, String> {
    let text = format!(
        "name = \"x\"\n{plan}\n[[platform]]\nkind = \"native\"\n{platform}\n\
         [[workload]]\nkind = \"command\"\nload = \"a\"\n{workload}\n"
    );
    Plan::read("plan.toml", &text, &Catalogue::standard()).map_err(|wrong| wrong.to_string())
}

#[test]
fn an_image_is_a_key_of_the_plan_a_platform_and_a_factor() {
    let image = |planned: &PlannedTreatment| planned.settings.text("image").map(str::to_owned);
    for (plan, platform) in [
        ("image = \"oci:a.tar\"", ""),
        ("settings = { image = \"oci:a.tar\" }", ""),
        ("", "image = \"oci:a.tar\""),
    ] {
        let plan = with_image(plan, platform, "ready = \"tcp:80\"").unwrap();
        let planned = treatments(&plan, &Catalogue::standard());
        assert_eq!(image(&planned[0]).as_deref(), Some("oci:a.tar"));
    }
    let factor = "factors = { image = [\"oci:a.tar\", \"podman:b\"] }";
    let plan = with_image(factor, "", "").unwrap();
    let planned = treatments(&plan, &Catalogue::standard());
    let images: Vec<_> = planned.iter().filter_map(image).collect();
    assert_eq!(images, ["oci:a.tar", "podman:b"]);
}

#[test]
fn files_are_copied_by_their_last_names_which_must_differ() {
    let files = |list: &str| with_image("", "", &format!("files = {list}"));
    let plan = files("[\"../target/app\", \"data dir/\"]").unwrap();
    let files_of = vtax_load::workload::command::files_of;
    assert_eq!(
        files_of(&plan.workloads[0].settings),
        ["../target/app", "data dir/"]
    );
    for (list, wanted) in [
        (
            "[\"a/app\", \"b/app\"]",
            "two `files` have the name of `b/app`",
        ),
        ("[\".\"]", "`.` does not end with the name"),
        ("[\"a/..\"]", "`a/..` does not end with the name"),
        ("[\"a\\u0000b\"]", "cannot contain a NUL"),
        ("\"./app\"", "`files` must be a list"),
        ("[3]", "`files` must be"),
    ] {
        let refused = files(list).unwrap_err();
        assert!(refused.contains(wanted), "{list}: {refused}");
    }
    let refused = with_image(
        "[[platform]]\nkind = \"ssh\"\nhost = \"h\"",
        "",
        "files = [\"./app\"]",
    );
    let refused = refused.unwrap_err();
    assert!(
        refused.contains("`files` are not copied into the guests of `ssh`"),
        "{refused}"
    );
}

#[test]
fn a_text_that_is_no_image_packages_beside_one_and_other_workloads_are_refused() {
    for (plan, workload, wanted) in [
        ("image = \"a.tar\"", "", "`a.tar` is not an image"),
        (
            "factors = { image = [\"oci:a\", \"x\"] }",
            "",
            "`x` is not an image",
        ),
        ("image = 3", "", "`image` must be"),
        (
            "image = \"dir:/x\"",
            "packages = [\"jq\"]",
            "not added to an `image`",
        ),
        (
            "image = \"dir:/x\"",
            "files = [\"./app\"]",
            "not added to an `image`",
        ),
        ("", "ready = \"tcp:80\"", "`ready` needs `serve`"),
        (
            "image = \"dir:/x\"",
            "[[workload]]\nkind = \"idle\"",
            "`idle` does not run in an image",
        ),
        (
            "image = \"dir:/x\"\n[[platform]]\nkind = \"container\"\ncontainer.runtime = \"podman\"",
            "",
            "cannot run a guest with an image",
        ),
        (
            "image = \"dir:/x\"\nfactors = { container.runtime = [\"runc\", \"podman\"] }\n[[platform]]\nkind = \"container\"",
            "",
            "cannot run a guest with an image",
        ),
    ] {
        let message = with_image(plan, "", workload).unwrap_err();
        assert!(message.contains(wanted), "{message}");
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

/// A plan with one command, whose section has these lines.
fn of_command(lines: &str) -> Result<Plan, Diagnostics> {
    let text = format!(
        "name = \"own\"\n[[platform]]\nkind = \"native\"\n[[workload]]\nkind = \"command\"\nname = \"redis\"\n{lines}\n"
    );
    Plan::read("plan.toml", &text, &Catalogue::standard())
}

const REDIS: &str = r#"
serve = "redis-server --port 6379 --save ''"
ready = "tcp:6379"
load = "redis-benchmark -h {target} -n 100000 --csv"
work = { count = 100000, unit = "request" }
packages = ["redis-server", "redis-tools"]
[workload.metrics]
rate = { csv = "rps", row = "SET", unit = "request/s", better = "higher" }
"#;

#[test]
fn a_command_of_a_plan_is_read_into_settings_of_its_treatment() {
    let plan = of_command(REDIS).unwrap();
    let settings = &plan.workloads[0].settings;
    assert_eq!(settings.text("load.ready"), Some("tcp:6379"));
    assert_eq!(
        settings.text("load.packages"),
        Some("redis-server redis-tools")
    );
    let metrics = settings.text("load.metrics").unwrap();
    assert!(
        metrics.contains(r#""csv":{"column":"rps","row":"SET"}"#),
        "{metrics}"
    );
    let newline = of_command("load = \"\"\"sh -c 'echo a\necho b'\"\"\"").unwrap();
    let load = newline.workloads[0].settings.text("load.load").unwrap();
    assert_eq!(load, "sh -c 'echo a\necho b'");
}

#[test]
fn every_mistake_of_a_command_is_refused_with_its_cause() {
    for (lines, cause) in [
        ("", "this command has no `load`"),
        ("load = \"a | b\"", "means something to a shell only"),
        ("load = \"a 'b\"", "is not closed"),
        ("load = \"a\"\nserve = \"b\"", "`serve` needs `ready`"),
        ("load = \"a\"\nready = \"tcp:1\"", "`ready` needs `serve`"),
        (
            "load = \"a\"\nserve = \"b\"\nready = \"tcp:x\"",
            "is not a port",
        ),
        (
            "load = \"a\"\npackages = [\"--x\"]",
            "not the name of a Debian package",
        ),
        ("load = \"a\"\npackages = \"b\"", "must be a list"),
        ("load = \"a\"\nfields = [\"b\"]", "has no setting `fields`"),
        ("load = \"a\"\nlevel = 3", "no command contains {level}"),
        ("load = \"a\"\nextent = \"duration\"", "needs `work`"),
        ("load = \"a\"\nwork = { count = 1 }", "has no `unit`"),
        (
            "load = \"a\"\nwork = { count = 1, unit = \"parsec\" }",
            "is not a unit",
        ),
        (
            "load = \"a\"\nwork = { count = 1, unit = \"request/s\" }",
            "is a total",
        ),
        (
            "load = \"a\"\nwork = { count = 0, unit = \"op\" }",
            "`count` must be",
        ),
        (
            "load = \"a\"\nmetrics = { Rate = { json = \"/a\", unit = \"1\" } }",
            "not the name of a metric",
        ),
        (
            "load = \"a\"\nmetrics = { \"cpu.per_work\" = { json = \"/a\", unit = \"1\" } }",
            "not the name of a metric",
        ),
        (
            "load = \"a\"\nmetrics = { a = { unit = \"1\" } }",
            "needs one place",
        ),
        (
            "load = \"a\"\nmetrics = { a = { json = \"/a\", regex = \"(a)\", unit = \"1\" } }",
            "needs one place",
        ),
        (
            "load = \"a\"\nmetrics = { a = { count = 1, unit = \"1\" } }",
            "has no key `count`",
        ),
        (
            "load = \"a\"\nmetrics = { a = { regex = \"(\", unit = \"1\" } }",
            "is not valid",
        ),
        (
            "load = \"a\"\nmetrics = { a = { json = \"/a\", unit = \"1\", better = \"up\" } }",
            "cannot be `up`",
        ),
        ("load = \"a\"\nmetrics = 3", "must be a section"),
        ("load = 3", "`load` must be text"),
    ] {
        let found = of_command(lines).map(|_| ()).unwrap_err().to_string();
        assert!(found.contains(cause), "{lines}: {found}");
    }
}

#[test]
fn a_profile_of_a_command_varies_its_level() {
    let profile = "extent = \"duration\"\nwork = { count = 1, unit = \"request/s\" }\nprofile = { ramp = { from = 1, to = 4, step = 1, every = \"1s\" } }";
    assert!(of_command(&format!("load = \"a {{level}}\"\n{profile}")).is_ok());
    let found = of_command(&format!("load = \"a\"\n{profile}")).unwrap_err();
    assert!(
        found.to_string().contains("does not contain {level}"),
        "{found}"
    );
}

#[test]
fn a_neighbour_is_not_a_command_and_a_command_is_no_factor() {
    let plan = |more: &str| {
        of_command(&format!("load = \"a\"\n{more}"))
            .unwrap_err()
            .to_string()
    };
    let neighbour = plan("[[neighbour]]\nname = \"b\"\nkind = \"command\"");
    assert!(neighbour.contains("cannot be a command"), "{neighbour}");
    let factor = plan("[factors]\n\"load.load\" = [\"a\", \"b\"]");
    assert!(factor.contains("load.load"), "{factor}");
}

/// A plan on two platforms with one gate, whose section has these lines.
fn of_gate(lines: &str) -> Result<Plan, Diagnostics> {
    let text = format!(
        "name = \"gated\"\n[[platform]]\nkind = \"native\"\n[[platform]]\nkind = \"qemu\"\nname = \"vm\"\n\
         [[workload]]\nkind = \"idle\"\n[[gate]]\n{lines}\n"
    );
    Plan::read("plan.toml", &text, &Catalogue::standard())
}

#[test]
fn a_gate_limits_a_change_or_a_tax_of_all_treatments_a_platform_or_a_treatment() {
    for (lines, expected) in [
        (
            "limit = \"> +5%\"",
            "cpu.per_work > +5% (change of the tax from a base run)",
        ),
        (
            "limit = \"< -5 %\"\nof = \"cost\"\nplatform = \"native\"",
            "cpu.per_work of native < -5 % (change of the cost from a base run)",
        ),
        (
            "limit = \"> 2.5x\"\nplatform = \"vm\"",
            "cpu.per_work of vm > 2.5x (tax of the run)",
        ),
        (
            "limit = \"> 2x\"\ntreatment = \"vm\"",
            "cpu.per_work of vm > 2x (tax of the run)",
        ),
    ] {
        let plan = of_gate(&format!("metric = \"cpu.per_work\"\n{lines}")).unwrap();
        let gates: Vec<String> = plan.gates.iter().map(ToString::to_string).collect();
        assert_eq!(gates, [expected]);
    }
}

#[test]
fn every_mistake_of_a_gate_is_refused_with_its_cause() {
    for (lines, cause) in [
        ("limit = \"> 5%\"", "this gate has no `metric`"),
        ("metric = \"cpu.per_work\"", "this gate has no `limit`"),
        ("limit = \"5%\"\nmetric = \"cpu.per_work\"", "no `>` or `<`"),
        (
            "limit = \"> 5\"\nmetric = \"cpu.per_work\"",
            "does not end with `%` or `x`",
        ),
        ("limit = \"> 0x\"\nmetric = \"cpu.per_work\"", "above 0"),
        ("limit = \"> 5%\"\nmetric = \"a b\"", "a metric is one word"),
        (
            "limit = \"> 5%\"\nmetric = \"own.rate\"",
            "no command of this plan has the metric",
        ),
        (
            "limit = \"> 5%\"\nmetric = \"cpu.per_work\"\nplatform = \"qemu\"",
            "no platform called `qemu`",
        ),
        (
            "limit = \"> 5%\"\nmetric = \"cpu.per_work\"\ntreatment = \"wm\"",
            "no treatment `wm`",
        ),
        (
            "limit = \"> 5%\"\nmetric = \"cpu.per_work\"\ntreatment = \"vm\"\nplatform = \"vm\"",
            "both given",
        ),
        (
            "limit = \"> 2x\"\nmetric = \"cpu.per_work\"\nof = \"cost\"",
            "is for a tax",
        ),
        (
            "limit = \"> 2x\"\nmetric = \"cpu.per_work\"\nplatform = \"native\"",
            "has a baseline",
        ),
        (
            "limit = \"> 5%\"\nmetric = \"cpu.per_work\"\nof = \"taxes\"",
            "\"tax\" or \"cost\"",
        ),
        (
            "limit = \"> 5%\"\nmetric = \"cpu.per_work\"\nbase = \"x\"",
            "no key `base`",
        ),
    ] {
        let found = of_gate(lines).unwrap_err().to_string();
        assert!(found.contains(cause), "{lines}: {found}");
    }
}
