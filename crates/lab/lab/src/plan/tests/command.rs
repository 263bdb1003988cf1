// SPDX-License-Identifier: Apache-2.0
//! Tests of plans with commands, their images and their files.

use super::*;

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
            "load = \"a\"\nwork = { count = 1, unit = \"two words\" }",
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
        ("load = \"a\"\nstdin = \"/\"", "does not end with the name"),
        (
            "load = \"a\"\nserve = \"b\"\nready = \"exit\"\nstdin = \"in\"",
            "for a command in the target",
        ),
        (
            "load = \"a\"\nfiles = [\"x/in\"]\nstdin = \"y/in\"",
            "has the name of another",
        ),
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
