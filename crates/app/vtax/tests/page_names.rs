// SPDX-License-Identifier: Apache-2.0
//! The names in code spans of `docs/why/design.md` and `docs/contributing.md` exist in the tree: paths, crates, functions
//! and types, commands, settings.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use vtax_testkit::workspace::{crates, named, root};

/// Paths of the repository's files and directories, and the text of its code.
struct Tree {
    paths: BTreeSet<String>,
    code: String,
    crates: BTreeMap<String, PathBuf>,
}

impl Tree {
    fn read() -> Self {
        let mut tree = Self {
            paths: BTreeSet::new(),
            code: String::new(),
            crates: crates(),
        };
        for part in [
            ".ci",
            "benches",
            "contrib",
            "crates",
            "docs",
            "papers",
            "plans",
            "scripts",
            "Cargo.toml",
            "Makefile",
            "clippy.toml",
        ] {
            tree.add(&root().join(part), part);
        }
        tree
    }

    fn add(&mut self, path: &Path, name: &str) {
        if let Ok(entries) = fs::read_dir(path) {
            for entry in entries.map(Result::unwrap) {
                let below = format!("{name}/{}", entry.file_name().to_string_lossy());
                self.add(&entry.path(), &below);
            }
        } else if !name.ends_with("page_names.rs")
            && let Ok(text) = fs::read_to_string(path)
            && !name.ends_with(".md")
        {
            self.code.push_str(&text);
            self.code.push('\n');
        }
        self.paths.insert(format!("/{name}"));
    }

    fn has_path(&self, path: &str) -> bool {
        let end = format!("/{}", path.trim_matches('/'));
        self.paths.iter().any(|known| known.ends_with(&end))
    }

    fn has_word(&self, word: &str) -> bool {
        let is_part = |c: Option<char>| c.is_some_and(|c| c.is_alphanumeric() || c == '_');
        let mut found = self.code.match_indices(word);
        found.any(|(at, _)| {
            !is_part(self.code[..at].chars().next_back())
                && !is_part(self.code[at + word.len()..].chars().next())
        })
    }

    fn defines(&self, kinds: &[&str], name: &str) -> bool {
        kinds
            .iter()
            .any(|kind| self.has_word(&format!("{kind} {name}")))
    }

    /// Whether the item that a code span without spaces names exists.
    fn has(&self, span: &str) -> bool {
        const TYPES: [&str; 5] = ["struct", "enum", "trait", "type", "mod"];
        let is_file = [".rs", ".md", ".toml"]
            .iter()
            .any(|end| span.ends_with(end));
        let is_type =
            |name: &str| name.starts_with(char::is_uppercase) && name.contains(char::is_lowercase);
        if let Some(function) = span.strip_suffix("()") {
            let (_, name) = function.rsplit_once("::").unwrap_or(("", function));
            self.defines(&["fn"], name)
        } else if span.contains('/') || is_file {
            self.has_path(span)
        } else if let Some((of, name)) = span.rsplit_once("::") {
            let of_what = of.rsplit("::").next().unwrap();
            let is_there = self.defines(&TYPES, of_what)
                || self.crates.contains_key(&of_what.replace('_', "-"));
            // The name is a method, a type or function of a module, or a variant.
            let is_known = is_there
                && (self.defines(&["fn", "struct", "enum", "trait", "const"], name)
                    || is_type(name));
            is_known || self.has_word(span)
        } else if is_type(span) {
            // A type of another crate is imported.
            self.defines(&TYPES, span) || self.has_word(span)
        } else if span.starts_with("vtax-") {
            self.crates.contains_key(span) || self.has_word(&format!("name = \"{span}\""))
        } else {
            self.has_word(span)
        }
    }
}

/// The text in single backquotes, without fenced blocks and the table of commits: that table names earlier code.
fn spans(page: &str) -> Vec<String> {
    let mut text = String::new();
    let (mut is_fenced, mut is_history) = (false, false);
    for line in page.lines() {
        if line.starts_with("```") {
            is_fenced = !is_fenced;
        } else if let Some(title) = line.strip_prefix("## ") {
            is_history = title == "What a change touched";
        } else if !is_fenced && !is_history {
            text.push_str(line);
            text.push('\n');
        }
    }
    text.split('`')
        .skip(1)
        .step_by(2)
        .map(str::to_owned)
        .collect()
}

/// The fixed parts of a span: `ssh:HOST` gives `ssh`, `make lint` the goal of the Makefile.
fn names(span: &str) -> Vec<String> {
    if let Some(goal) = span.strip_prefix("make ") {
        return vec![format!("{goal}:")];
    }
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "_-./:()".contains(c);
    if !span.chars().all(is_plain) || span.contains("NNNN") {
        return Vec::new();
    }
    let fixed = span.split(':').filter(|part| !part.is_empty());
    if span.contains("::") || span.contains("()") {
        vec![span.to_owned()]
    } else {
        let is_placeholder = |part: &str| !part.contains(char::is_lowercase);
        let parts = fixed.filter(|part| !is_placeholder(part));
        parts.map(str::to_owned).collect()
    }
}

#[test]
fn what_the_pages_for_contributors_name_in_code_is_in_the_tree() {
    let tree = Tree::read();
    let mut checked = 0;
    let mut missing = Vec::new();
    for page in ["docs/why/design.md", "docs/contributing.md"] {
        let text = fs::read_to_string(root().join(page)).unwrap();
        for name in spans(&text).iter().flat_map(|span| names(span)) {
            checked += 1;
            if !tree.has(&name) {
                missing.push(format!("{page}: `{name}`"));
            }
        }
    }
    assert!(checked > 100, "{checked}");
    assert!(missing.is_empty(), "{}", missing.join("\n"));
}

#[test]
fn the_layout_in_the_design_names_every_crate_and_no_module_that_is_not_there() {
    let page = fs::read_to_string(root().join("docs/why/design.md")).unwrap();
    let block = page
        .split("```")
        .find(|block| block.contains("\ncrates/\n"))
        .unwrap();
    let (mut room, mut listed) = (String::new(), Vec::<String>::new());
    let mut missing = Vec::new();
    // The first line is the language of the fence.
    for line in block.lines().skip(1).filter(|line| !line.trim().is_empty()) {
        let indent = line.len() - line.trim_start().len();
        let name = line
            .split_whitespace()
            .next()
            .unwrap()
            .trim_end_matches('/');
        let of = listed.last().cloned().unwrap_or_default();
        let path = match indent {
            0 => name.to_owned(),
            2 => {
                room = format!("crates/{name}");
                room.clone()
            }
            4 => {
                listed.push(format!("{room}/{name}"));
                format!("{room}/{name}")
            }
            6 => format!("{of}/src/{name}"),
            _ => continue,
        };
        if !root().join(&path).exists() {
            missing.push(path);
        }
    }
    let folders = crates().into_values();
    let folders = folders.map(|folder| folder.strip_prefix(root()).unwrap().display().to_string());
    missing.extend(
        folders
            .filter(|folder| !listed.contains(folder))
            .map(|folder| format!("unlisted: {folder}")),
    );
    assert!(missing.is_empty(), "{}", missing.join("\n"));
}

/// The first name of each row of a page's tables.
fn rows(page: &str) -> BTreeSet<String> {
    let rows = page.lines().filter_map(|line| line.strip_prefix("| `"));
    rows.map(|row| row.split('`').next().unwrap().to_owned())
        .collect()
}

#[test]
fn the_page_of_dependencies_gives_a_reason_for_each_that_the_manifests_name() {
    let page = fs::read_to_string(root().join("docs/reference/dependencies.md")).unwrap();
    let (shipped, of_tests) = page.split_once("## In tests only").unwrap();
    let folders: Vec<PathBuf> = crates().into_values().collect();
    let all = |section: &str| -> BTreeSet<String> {
        let names = folders.iter().flat_map(|folder| named(folder, section));
        names.filter(|name| !name.starts_with("vtax-")).collect()
    };
    let (used, tested) = (all("dependencies"), all("dev-dependencies"));
    assert!(used.len() > 30, "{used:?}");
    assert_eq!(rows(shipped), used);
    assert_eq!(rows(of_tests), tested.difference(&used).cloned().collect());
}

#[test]
fn every_file_of_an_integration_test_is_a_module_of_its_program() {
    let mut missing = Vec::new();
    for folder in crates().into_values() {
        let tests = folder.join("tests");
        let Ok(main) = fs::read_to_string(tests.join("main.rs")) else {
            continue;
        };
        for file in fs::read_dir(&tests)
            .unwrap()
            .map(|file| file.unwrap().path())
        {
            let module = file.file_stem().unwrap().to_string_lossy().into_owned();
            let is_module =
                file.extension().is_some_and(|end| end == "rs") || file.join("mod.rs").exists();
            if is_module && module != "main" && !main.contains(&format!("mod {module};")) {
                missing.push(file.display().to_string());
            }
        }
    }
    assert!(missing.is_empty(), "not compiled: {}", missing.join("\n"));
}

#[test]
fn test_commands_in_the_docs_name_a_program_and_a_module_that_are_there() {
    let tree = Tree::read();
    let mut seen = 0;
    let mut wrong = Vec::new();
    for page in vtax_testkit::pages::all() {
        let page = fs::read_to_string(page)
            .unwrap()
            .replace("\n--test", " --test");
        for line in page.split("cargo test -p ").skip(1) {
            let command = line.split(['`', '\n']).next().unwrap();
            let words: Vec<&str> = command.split(' ').filter(|word| *word != "--").collect();
            let [package, "--test", program, filter @ ..] = words.as_slice() else {
                continue;
            };
            seen += 1;
            let manifest = tree
                .crates
                .get(*package)
                .map(|folder| folder.join("Cargo.toml"));
            let manifest =
                manifest.map_or_else(String::new, |path| fs::read_to_string(path).unwrap());
            let module = filter.first().filter(|word| !word.starts_with('-'));
            let is_module = |module: &&str| {
                let module = module.trim_end_matches(':');
                tree.code.contains(&format!("mod {module}"))
                    || tree.code.contains(&format!("fn {module}"))
            };
            if !manifest.contains(&format!("name = \"{program}\"")) || !module.is_none_or(is_module)
            {
                wrong.push(command.to_owned());
            }
        }
    }
    assert!(seen > 20, "{seen}");
    assert!(wrong.is_empty(), "{wrong:#?}");
}
