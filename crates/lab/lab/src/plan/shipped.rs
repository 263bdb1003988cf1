// SPDX-License-Identifier: Apache-2.0
//! The plans that are part of the program, the files of `plans/`: they run from any directory.

use std::fs;
use std::io::ErrorKind;
use std::path::Path;
use vtax_host::HostError;

/// The name and text of each file, in order of the names: `network-tax`, `papers/rossi`.
pub const ALL: &[(&str, &str)] = include!(concat!(env!("OUT_DIR"), "/plans.rs"));

/// The text of a plan or of another file of `plans/`.
#[derive(Debug, PartialEq, Eq)]
pub struct PlanText {
    /// Its text.
    pub text: String,
    /// The name of the shipped file; none for a file of this host.
    pub shipped: Option<&'static str>,
}

impl PlanText {
    /// The source of the text in words, where it is not the file that the user named.
    #[must_use]
    pub fn note(&self) -> Option<String> {
        let name = self.shipped?;
        Some(format!(
            "using the plan {name} that is part of vtax: `vtax plan show {name}`"
        ))
    }
}

/// The shipped file of a name, which may have the ending and the directory of the repository: `plans/network-tax.toml`.
#[must_use]
pub fn named(name: &str) -> Option<(&'static str, &'static str)> {
    let name = name.strip_prefix("plans/").unwrap_or(name);
    let name = name.strip_suffix(".toml").unwrap_or(name);
    let found = ALL.binary_search_by(|(known, _)| (*known).cmp(name)).ok()?;
    ALL.get(found).copied()
}

/// Reads a plan: the file at the path, or where there is none, the shipped one of this name.
///
/// # Errors
/// When the file cannot be read, and when there is neither.
pub fn read(path: &Path) -> Result<PlanText, HostError> {
    let cause = match fs::read_to_string(path) {
        Ok(text) => {
            return Ok(PlanText {
                text,
                shipped: None,
            });
        }
        Err(cause) => cause,
    };
    // A directory, such as one of results, hides no plan.
    let is_absent = matches!(cause.kind(), ErrorKind::NotFound | ErrorKind::IsADirectory);
    match path.to_str().and_then(named) {
        Some((name, text)) if is_absent => Ok(PlanText {
            text: text.to_owned(),
            shipped: Some(name),
        }),
        None if cause.kind() == ErrorKind::NotFound => Err(HostError::Setting(format!(
            "{}: no such file, and no plan of vtax has this name: `vtax plan list` lists them",
            path.display()
        ))),
        _ => Err(HostError::file("read", path)(cause)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_file_of_the_directory_of_plans_is_part_of_the_program() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../plans");
        assert!(ALL.is_sorted());
        assert!(ALL.len() > 40);
        for (name, text) in ALL {
            let file = root.join(format!("{name}.toml"));
            assert_eq!(fs::read_to_string(&file).unwrap(), *text, "{name}");
            assert_eq!(named(name), Some((*name, *text)));
        }
    }

    #[test]
    fn a_file_that_exists_wins_over_the_plan_of_its_name() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("plans/network-tax.toml");
        fs::create_dir(folder.path().join("plans")).unwrap();
        fs::write(&path, "name = \"mine\"").unwrap();
        let found = read(&path).unwrap();
        assert_eq!(found.text, "name = \"mine\"");
        assert_eq!(found.note(), None);
    }

    #[test]
    fn a_plan_is_found_by_its_name_and_by_its_path_in_the_repository() {
        for name in [
            "papers/rossi",
            "papers/rossi.toml",
            "plans/papers/rossi.toml",
        ] {
            let found = read(Path::new(name)).unwrap();
            assert_eq!(found.shipped, Some("papers/rossi"), "{name}");
            assert!(found.text.contains("Rossi"), "{name}");
        }
    }

    #[test]
    fn a_plan_that_is_nowhere_is_an_error_that_names_the_list() {
        let cause = read(Path::new("plans/network-taxes.toml")).unwrap_err();
        let words = cause.to_string();
        assert!(words.contains("plans/network-taxes.toml"), "{words}");
        assert!(words.contains("vtax plan list"), "{words}");
    }

    #[test]
    fn a_file_that_cannot_be_read_is_never_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("binary.toml");
        fs::write(&path, [0xFF, 0xFE]).unwrap();
        let words = read(&path).unwrap_err().to_string();
        assert!(words.contains("cannot read"), "{words}");
    }
}
