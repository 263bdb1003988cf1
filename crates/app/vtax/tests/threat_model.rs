// SPDX-License-Identifier: Apache-2.0
//! Every test that `docs/why/threat-model.md` names exists.

use std::fs;
use std::path::Path;

/// The text of every Rust file below `directory`.
fn sources(directory: &Path, into: &mut String) {
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            sources(&path, into);
        } else if path.extension().is_some_and(|kind| kind == "rs") {
            into.push_str(&fs::read_to_string(&path).unwrap());
        }
    }
}

#[test]
fn every_test_that_the_threat_model_names_exists() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../..");
    let page = fs::read_to_string(root.join("docs/why/threat-model.md")).unwrap();
    let mut code = String::new();
    sources(&root.join("crates"), &mut code);
    let quoted = page.split('`').skip(1).step_by(2);
    let tests: Vec<&str> = quoted
        .filter(|word| word.matches('_').count() > 2 && word.chars().any(char::is_lowercase))
        .collect();
    assert!(tests.len() > 40, "{tests:?}");
    for test in tests {
        // The attributes of a function are the text between the end of the item before it and the function.
        let attributes = |at: usize| code[..at].rsplit(['{', '}']).next().unwrap_or("");
        let function = format!("fn {test}(");
        let mut named = code.match_indices(&function);
        let found = named.any(|(at, _)| attributes(at).contains("#[test"));
        assert!(found, "no test is called {test}");
    }
}
