// SPDX-License-Identifier: Apache-2.0
//! Text of plans and images on its way to a terminal.

use crate::support::vtax;
use std::fs;
use std::process::Output;

/// Bytes that set a title, change colours, begin a control sequence in C1, change the direction of writing, and more.
const STEERING: &str = "x\\u001b]0;OWNED\\u0007\\u001b[31m\\u009b2J\\u202e\\u001a\\u007f\\ry";

fn assert_plain(output: &Output, what: &str) {
    for stream in [&output.stdout, &output.stderr] {
        let text = String::from_utf8_lossy(stream);
        let steers = |c: char| {
            c.is_control() && c != '\n' && c != '\t' || matches!(c, '\u{202a}'..='\u{202e}')
        };
        let found: String = text.chars().filter(|c| steers(*c)).collect();
        assert!(found.is_empty(), "{what}: {found:?} in {text:?}");
    }
}

#[test]
fn no_text_of_a_plan_steers_the_terminal_that_shows_it() {
    let work = tempfile::tempdir().unwrap();
    let path = work.path().join("plan.toml");
    let plain = [
        ("name", "a"),
        ("description", "b"),
        ("profile", "default"),
        ("image", "oci:missing.tar"),
        ("kind", "native"),
        ("workload", "command"),
        ("load", "true"),
        ("files", "missing"),
        ("unit", "op"),
    ];
    for (hostile, _) in plain {
        let value = |key: &str| {
            let (_, value) = plain.iter().find(|(name, _)| *name == key).unwrap();
            if key == hostile {
                STEERING.to_owned()
            } else {
                (*value).to_owned()
            }
        };
        let of = |key: &str| (key == hostile).then(|| format!("{key} = \"{}\"\n", value(key)));
        let plan = format!(
            "name = \"{}\"\ndescription = \"{}\"\n{}{}[[platform]]\nkind = \"{}\"\n[[workload]]\nkind = \"{}\"\nload = \"{}\"\n\
             work = {{ count = 1, unit = \"{}\" }}\n{}",
            value("name"),
            value("description"),
            of("profile").unwrap_or_default(),
            of("image").map_or_else(String::new, |_| format!("image = \"oci:{STEERING}\"\n")),
            value("kind"),
            value("workload"),
            value("load"),
            value("unit"),
            of("files").map_or_else(String::new, |_| format!("files = [\"{STEERING}\"]\n")),
        );
        // Once with escapes of TOML, and once with the bytes themselves, which TOML refuses and its errors quote.
        let raw = plan
            .replace("\\u001b", "\u{1b}")
            .replace("\\u0007", "\u{7}")
            .replace("\\u009b", "\u{9b}")
            .replace("\\u202e", "\u{202e}")
            .replace("\\u001a", "\u{1a}");
        for text in [&plan, &raw] {
            fs::write(&path, text).unwrap();
            for words in [&["plan", "check"][..], &["run", "--dry-run"]] {
                let output = vtax(work.path()).args(words).arg(&path).output().unwrap();
                assert_plain(&output, hostile);
            }
        }
    }
}
