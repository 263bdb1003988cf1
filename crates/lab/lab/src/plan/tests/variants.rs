// SPDX-License-Identifier: Apache-2.0
//! Plans with variants.

use super::*;
use crate::plan::{Level, StopRule, VARIANT, treatments};

const HEAD: &str = "name = \"a\"\n[[platform]]\nkind = \"native\"\n[[platform]]\nkind = \"qemu\"\n";

fn read(text: &str) -> Result<Plan, String> {
    Plan::read(
        "plan.toml",
        &format!("{HEAD}{text}"),
        &Catalogue::standard(),
    )
    .map_err(|wrong| wrong.to_string())
}

#[test]
fn each_variant_runs_on_each_platform_and_the_first_is_the_baseline() {
    let plan = read(
        "[[workload]]\nkind = \"command\"\nname = \"app\"\nprepare = \"true\"\n\
         [[variant]]\nname = \"old\"\nload = \"./a-1 -n 3\"\nfiles = [\"/b/a-1\"]\n\
         [[variant]]\nname = \"new\"\nload = \"./a-2 -n 3\"\nfiles = [\"/b/a-2\"]\nvm.vcpus = 2\n",
    )
    .unwrap();
    let all = treatments(&plan, &Catalogue::standard());
    let seen: Vec<(&str, Option<&str>, &str)> = all
        .iter()
        .map(|one| {
            let load = one.settings.text("load.load").unwrap();
            (
                one.record.label.as_str(),
                one.record.baseline.as_deref(),
                load,
            )
        })
        .collect();
    assert_eq!(
        seen,
        [
            ("native · app · variant=old", None, "./a-1 -n 3"),
            (
                "native · app · variant=new",
                Some("native · app · variant=old"),
                "./a-2 -n 3"
            ),
            ("qemu · app · variant=old", None, "./a-1 -n 3"),
            (
                "qemu · app · variant=new",
                Some("qemu · app · variant=old"),
                "./a-2 -n 3"
            ),
        ]
    );
    let vcpus: Vec<i64> = all
        .iter()
        .map(|one| one.settings.integer("vm.vcpus", 1))
        .collect();
    assert_eq!(vcpus, [1, 1, 1, 2]);
    assert!(
        all.iter()
            .all(|one| one.settings.text("load.prepare") == Some("true"))
    );
    assert!(all.iter().all(|one| !one.settings.0.contains_key(VARIANT)));
    let files: Vec<String> = plan.paths().into_iter().map(|path| path.text).collect();
    assert_eq!(files, ["/b/a-1", "/b/a-2"]);
    assert_eq!(plan.commands().len(), 4);
}

#[test]
fn a_variant_of_one_platform_s_settings_does_not_multiply_the_others() {
    let plan = read(
        "[[workload]]\nkind = \"cpu\"\n[[variant]]\nname = \"a\"\nvm.vcpus = 1\n[[variant]]\nname = \"b\"\nvm.vcpus = 2\n",
    )
    .unwrap();
    let all = treatments(&plan, &Catalogue::standard());
    let labels: Vec<&str> = all.iter().map(|one| one.record.label.as_str()).collect();
    assert_eq!(
        labels,
        [
            "native · cpu",
            "qemu · cpu · variant=a",
            "qemu · cpu · variant=b"
        ]
    );
}

#[test]
fn a_baseline_of_its_own_compares_the_platforms_within_each_variant() {
    let plan = read(
        "baseline = \"native\"\n[[workload]]\nkind = \"cpu\"\n\
         [[variant]]\nname = \"a\"\nthreads = 1\n[[variant]]\nname = \"b\"\nthreads = 2\n"
            .replace("baseline = \"native\"\n", "")
            .as_str(),
    )
    .unwrap();
    assert_eq!(plan.baseline.levels[VARIANT], Level::Text("a".to_owned()));
    let text = format!(
        "baseline = \"native\"\n{HEAD}[[workload]]\nkind = \"cpu\"\n[[variant]]\nname = \"a\"\nvm.vcpus = 1\n[[variant]]\nname = \"b\"\nvm.vcpus = 2\n"
    );
    let plan = Plan::read("plan.toml", &text, &Catalogue::standard()).unwrap();
    assert_eq!(plan.baseline.platform.as_deref(), Some("native"));
}

#[test]
fn wrong_variants_are_refused_with_the_remedy() {
    let load = "[[workload]]\nkind = \"command\"\nload = \"a\"\n";
    for (variants, part) in [
        (
            "[[variant]]\nname = \"a\"\nload = \"b\"\n",
            "2 to 20 sections",
        ),
        ("[variant]\nname = \"a\"\n", "2 to 20 sections"),
        (
            "[[variant]]\nload = \"b\"\n[[variant]]\nname = \"b\"\n",
            "no `name`",
        ),
        (
            "[[variant]]\nname = \"a\"\n[[variant]]\nname = \"a\"\n",
            "also the name of another variant",
        ),
        (
            "[[variant]]\nname = \"native\"\nload = \"b\"\n[[variant]]\nname = \"b\"\n",
            "also the name of a platform",
        ),
        (
            "[[variant]]\nname = \"a\"\n[[variant]]\nname = \"b\"\n",
            "change no setting",
        ),
        (
            "[[variant]]\nname = \"a\"\nlaod = \"x\"\n[[variant]]\nname = \"b\"\n",
            "did you mean `load`?",
        ),
        (
            "[[variant]]\nname = \"a\"\nload = \"'x\"\n[[variant]]\nname = \"b\"\n",
            "the quote ' is not closed",
        ),
        (
            "[[variant]]\nname = \"a\"\nload = \"x\"\n[[variant]]\nname = \"b\"\n[[gate]]\nmetric = \"cpu.per_work\"\nlimit = \"> +3%\"\nvariant = \"c\"\n",
            "no variant called `c`",
        ),
    ] {
        let wrong = read(&format!("{load}{variants}")).unwrap_err();
        assert!(wrong.contains(part), "{variants}\n{wrong}");
    }
}

#[test]
fn variants_with_the_same_content_are_an_a_a_run() {
    let folder = tempfile::tempdir().unwrap();
    for (name, content) in [("a-1", "same"), ("a-2", "same"), ("a-3", "other")] {
        std::fs::write(folder.path().join(name), content).unwrap();
    }
    let variant = |name: &str| {
        format!("[[variant]]\nname = \"{name}\"\nload = \"./{name} x\"\nfiles = [\"{name}\"]\n")
    };
    let text = format!(
        "[[workload]]\nkind = \"command\"\n{}{}{}",
        variant("a-1"),
        variant("a-2"),
        variant("a-3")
    );
    let notes = read(&text).unwrap().same_variants(folder.path());
    assert_eq!(notes.len(), 1, "{notes:?}");
    assert!(notes[0].contains("a-1 and a-2 do the same"), "{notes:?}");
}

#[test]
fn a_run_may_end_when_it_knows_enough_and_an_end_that_nothing_reaches_is_refused() {
    let body = "[[workload]]\nkind = \"cpu\"\n";
    let stop =
        |until: &str| format!("[stop]\nrule = \"until\"\nuntil = \"{until}\"\nminimum = 4\n{body}");
    let plan = read(&stop("cpu.per_work of qemu ± 2%")).unwrap();
    let StopRule::Until { until, minimum, .. } = &plan.stop else {
        panic!("{:?}", plan.stop);
    };
    assert_eq!(
        (until.to_string().as_str(), *minimum),
        ("cpu.per_work of qemu ± 2%", 4)
    );
    assert!(read(&stop("decided: cpu.per_work > 2x")).is_ok());
    let fine: vtax_results::limit::Until = "cpu.per_work +- 0.25 %".parse().unwrap();
    assert_eq!(
        fine.to_string(),
        "cpu.per_work ± 0.25%",
        "a plan holds what was typed"
    );
    for (until, part) in [
        ("cpu.per_work", "no end of a run"),
        ("± 2%", "no end of a run"),
        ("cpu.per_work ± -2%", "no end of a run"),
        ("cpu.per_work ± 2", "no end of a run"),
        ("cpu.per_work ± NaN%", "no end of a run"),
        ("decided: cpu.per_work", "no `>` or `<`"),
        ("decided: cpu.per_work > +5%", "the plan has none"),
        ("cpu.per_work of xen ± 2%", "no treatment of this name"),
    ] {
        let wrong = read(&stop(until)).unwrap_err();
        assert!(wrong.contains(part), "{until}\n{wrong}");
    }
    let none = read(&format!("[stop]\nrule = \"until\"\n{body}")).unwrap_err();
    assert!(none.contains("has no `until`"), "{none}");
}
