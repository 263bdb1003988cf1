// SPDX-License-Identifier: Apache-2.0
//! Plans below a root, and the check of a plan as by `vtax plan check`: its mistakes, or its trials and their time.

use serde::{Deserialize, Serialize};
use std::fs;
use std::io::Read;
use std::path::{Component, Path, PathBuf};
use vtax_density::plan as density;
use vtax_lab::place::Place;
use vtax_lab::plan::{Catalogue, Diagnostic, Order, Plan, StopRule, schedule, treatments};
use vtax_results::Scheduled;

/// The limit of a plan's file; a plan is a page or two.
pub const MAX_PLAN_BYTES: u64 = 256 << 10;
/// The largest number of directories between the root and a plan.
const MAX_DEPTH: usize = 3;
/// The largest number of plans in the list.
const MAX_PLANS: usize = 500;
/// The largest number of directory entries that are read for the list.
const MAX_FILES: usize = 5000;

/// Plans below a root.
#[derive(Debug, Clone)]
pub struct Plans {
    root: PathBuf,
}

/// The list of plans.
#[derive(Debug, Serialize)]
pub struct PlanList {
    root: String,
    plans: Vec<PlanEntry>,
    /// Files with settings of testbeds, by their paths.
    testbeds: Vec<String>,
}

/// One plan.
#[derive(Debug, Serialize)]
struct PlanEntry {
    path: String,
    name: String,
    description: String,
    mistakes: usize,
}

/// The command that runs a plan.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// `vtax run`.
    Run,
    /// `vtax density`.
    Density,
}

/// A plan without mistakes: its trials and their time.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PlanSummary {
    /// The command that runs it.
    pub kind: Kind,
    /// Its name.
    pub name: String,
    /// Its purpose.
    pub description: String,
    /// The labels of its treatments.
    pub treatments: Vec<String>,
    /// The commands that the plan itself runs, each with its workload and key.
    #[serde(default)]
    pub commands: Vec<String>,
    /// Its gates.
    #[serde(default)]
    pub gates: Vec<String>,
    /// Whether a treatment has a guest that exists without vtax.
    #[serde(default)]
    pub external: bool,
    /// Its trials in their scheduled order.
    pub schedule: Vec<Scheduled>,
    /// An estimate of the time for all trials, in seconds.
    pub expected_seconds: f64,
    /// Whether the estimate lacks the time to create guests, as for climbs.
    pub at_least: bool,
    /// Whether its stop rule may end it before the last block.
    pub may_stop_earlier: bool,
}

/// A plan that cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum PlanFileError {
    /// The path names no plan.
    #[error("there is no plan {path:?} below {}", root.display())]
    NoPlan {
        /// The path below the root.
        path: String,
        /// The root.
        root: PathBuf,
    },
    /// The file cannot be read.
    #[error("cannot read the plan {path:?} below {}: {cause}", root.display())]
    Unreadable {
        /// The path below the root.
        path: String,
        /// The root.
        root: PathBuf,
        /// The reason.
        cause: std::io::Error,
    },
}

impl Plans {
    /// Plans below `root`, which need not exist yet.
    pub fn below(root: &Path) -> Self {
        Self {
            root: root.to_owned(),
        }
    }

    /// All plans, including those with mistakes, in the order of their paths.
    pub fn list(&self) -> PlanList {
        let catalogue = Catalogue::standard();
        let mut plans: Vec<PlanEntry> = Vec::new();
        let mut testbeds = Vec::new();
        let mut open = vec![(self.root.clone(), 0)];
        let mut seen = 0;
        while let Some((directory, depth)) = open.pop() {
            for entry in fs::read_dir(&directory).into_iter().flatten().flatten() {
                let name = entry.file_name();
                seen += 1;
                if seen > MAX_FILES || plans.len() >= MAX_PLANS {
                    break;
                }
                if name.as_encoded_bytes().starts_with(b".") {
                    continue;
                }
                let kind = entry.file_type();
                if kind.as_ref().is_ok_and(fs::FileType::is_dir) && depth < MAX_DEPTH {
                    open.push((entry.path(), depth + 1));
                } else if kind.is_ok_and(|kind| kind.is_file())
                    && name.as_encoded_bytes().ends_with(b".toml")
                    && let Ok(below) = entry.path().strip_prefix(&self.root)
                    && let Some(path) = below.to_str()
                    && let Ok(text) = self.text(path)
                {
                    match plan_entry(path, &text, &catalogue) {
                        Some(plan) => plans.push(plan),
                        None if vtax_testbed::Settings::parse(&text).is_ok() => {
                            testbeds.push(path.to_owned());
                        }
                        None => {}
                    }
                }
            }
        }
        plans.sort_by(|a, b| a.path.cmp(&b.path));
        testbeds.sort();
        PlanList {
            root: self.root.display().to_string(),
            plans,
            testbeds,
        }
    }

    /// The text of a plan, by its path below the root.
    ///
    /// # Errors
    /// When there is none, or it cannot be read.
    pub fn text(&self, path: &str) -> Result<String, PlanFileError> {
        let below = Path::new(path);
        let plain = |part: Component<'_>| matches!(part, Component::Normal(name) if !name.as_encoded_bytes().starts_with(b"."));
        let (named, root) = (path.to_owned(), self.root.clone());
        if !path.ends_with(".toml") || !below.components().all(plain) {
            return Err(PlanFileError::NoPlan { path: named, root });
        }
        let read = || -> std::io::Result<String> {
            let file = vtax_files::Dir::open(&self.root)?.sole_file(below)?;
            let mut text = String::new();
            file.take(MAX_PLAN_BYTES).read_to_string(&mut text)?;
            Ok(text)
        };
        read().map_err(|cause| PlanFileError::Unreadable {
            path: named,
            root,
            cause,
        })
    }
}

/// The entry of a plan; none for other TOML files, which may be in the same directory.
fn plan_entry(path: &str, text: &str, catalogue: &Catalogue) -> Option<PlanEntry> {
    let is_density = density::Plan::is_meant(text);
    let read = if is_density {
        density::Plan::read(path, text, false).map(|plan| (plan.name, plan.description))
    } else {
        Plan::read(path, text, catalogue).map(|plan| (plan.name, plan.description))
    };
    let ((name, description), mistakes) = match read {
        Ok(plan) => (plan, 0),
        Err(found) if is_density || text.contains("[[platform]]") => {
            let plan = (path.to_owned(), String::new());
            (plan, found.list.len() + found.more)
        }
        Err(_) => return None,
    };
    Some(PlanEntry {
        path: path.to_owned(),
        name,
        description,
        mistakes,
    })
}

/// Checks a plan for a place where it is to run.
///
/// # Errors
/// All mistakes.
pub fn check(text: &str, quick: bool, place: &Place) -> Result<PlanSummary, Vec<Diagnostic>> {
    if density::Plan::is_meant(text) {
        let plan = density::Plan::read("plan", text, quick).map_err(|found| found.list)?;
        let labels = plan.variants.iter().map(|one| one.treatment.label.clone());
        return Ok(PlanSummary {
            kind: Kind::Density,
            treatments: labels.collect(),
            commands: Vec::new(),
            gates: Vec::new(),
            external: false,
            schedule: schedule(
                plan.variants.len(),
                plan.repetitions,
                Order::Interleaved,
                plan.seed,
            ),
            expected_seconds: plan.least_time().as_secs_f64(),
            at_least: true,
            may_stop_earlier: false,
            name: plan.name,
            description: plan.description,
        });
    }
    let catalogue = Catalogue::standard();
    let plan = Plan::read("plan", text, &catalogue).map_err(|found| found.list)?;
    let reachable = match place {
        Place::Local => plan.check_elsewhere("vtax web"),
        elsewhere => plan.check_place(elsewhere),
    };
    reachable.map_err(|wrong| vec![Diagnostic::at(text, 0, wrong.to_string())])?;
    let mut plan = if quick { plan.quick() } else { plan };
    if matches!(place, Place::Testbed(_)) {
        plan.without_repetitions();
    }
    let all = treatments(&plan, &catalogue);
    Ok(PlanSummary {
        kind: Kind::Run,
        treatments: all.iter().map(|one| one.record.label.clone()).collect(),
        commands: plan.commands(),
        gates: plan.gates.iter().map(ToString::to_string).collect(),
        external: all
            .iter()
            .any(|one| catalogue.is_external(one.record.kind(), &one.settings)),
        schedule: schedule(all.len(), plan.repetitions, plan.order, plan.seed),
        expected_seconds: plan.expected_time(&all, &catalogue).as_secs_f64(),
        at_least: false,
        may_stop_earlier: plan.stop != StopRule::Fixed,
        name: plan.name,
        description: plan.description,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOUND: &str = "name = \"small\"\nrepetitions = 3\n[[platform]]\nkind = \"native\"\n[[workload]]\nkind = \"idle\"\n";

    #[test]
    fn mistakes_have_the_places_and_words_of_the_command() {
        let text = SOUND.replace("repetitions", "repetition");
        let found = check(&text, false, &Place::Local).unwrap_err();
        let reported = Plan::read("plan", &text, &Catalogue::standard()).unwrap_err();
        assert_eq!(found, reported.list);
        assert_eq!((found[0].line, found[0].column), (2, 1));
        assert!(found[0].help.as_deref().unwrap().contains("repetitions"));
    }

    #[test]
    fn a_plan_s_own_commands_are_shown_before_they_run() {
        let command =
            "kind = \"command\"\nload = \"rm -r /\"\nserve = \"sh -c 'a | b'\"\nready = \"exit\"";
        let text = SOUND.replace("kind = \"idle\"", command);
        let checked = check(&text, false, &Place::Local).unwrap();
        let expected = ["command, serve: sh -c 'a | b'", "command, load: rm -r /"];
        assert_eq!(checked.commands, expected);
        assert!(
            check(SOUND, false, &Place::Local)
                .unwrap()
                .commands
                .is_empty()
        );
    }

    #[test]
    fn a_plan_with_a_guest_that_exists_without_vtax_is_marked_external() {
        let guest = "kind = \"ssh\"\nssh.host = \"root@web-1\"";
        let text = SOUND.replace("kind = \"native\"", guest);
        assert!(check(&text, false, &Place::Local).unwrap().external);
        assert!(!check(SOUND, false, &Place::Local).unwrap().external);
    }

    #[test]
    fn files_beside_a_plan_s_file_are_refused_since_the_page_has_only_its_text() {
        let with = |path: &str| {
            let command = format!("kind = \"command\"\nload = \"./app\"\nfiles = [\"{path}\"]");
            check(
                &SOUND.replace("kind = \"idle\"", &command),
                false,
                &Place::Local,
            )
        };
        let found = with("./app").unwrap_err();
        assert!(found[0].message.contains("absolute path"), "{found:?}");
        with("/opt/app").unwrap();
    }

    #[test]
    fn a_plan_s_gates_are_shown_with_what_they_limit() {
        let gates = "[[platform]]\nkind = \"container\"\n[[gate]]\nmetric = \"cpu.per_work\"\nlimit = \"> 2x\"\n\
                     [[gate]]\nmetric = \"cpu.host\"\nlimit = \"> +5%\"\nof = \"cost\"\nplatform = \"native\"\n";
        let checked = check(&format!("{SOUND}{gates}"), false, &Place::Local).unwrap();
        let expected = [
            "cpu.per_work > 2x (tax of the run)",
            "cpu.host of native > +5% (change of the cost from a base run)",
        ];
        assert_eq!(checked.gates, expected);
    }

    #[test]
    fn a_plan_comes_to_its_trials_and_their_time() {
        let sound = check(SOUND, false, &Place::Local).unwrap();
        assert_eq!((sound.kind, sound.schedule.len()), (Kind::Run, 3));
        assert!(sound.expected_seconds > 0.0 && !sound.at_least);
        let once = check(SOUND, false, &"testbed:kvm".parse().unwrap()).unwrap();
        assert_eq!(
            once.schedule.len(),
            1,
            "repeated there it is the same again"
        );
        let climbs = density::Plan::of_platforms(&["thread".to_owned()]);
        let climbs = check(&climbs, true, &Place::Local).unwrap();
        assert_eq!((climbs.kind, climbs.at_least), (Kind::Density, true));
    }

    #[test]
    fn plans_below_the_root_are_found_and_nothing_outside() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().join("plans");
        fs::create_dir_all(root.join("deep")).unwrap();
        fs::write(root.join("deep/small.toml"), SOUND).unwrap();
        fs::write(root.join("neither.toml"), "counts = 1\n").unwrap();
        fs::write(root.join("wrong.toml"), SOUND.replace("idle", "idel")).unwrap();
        fs::write(root.join("other.toml"), "deterministic = true\n").unwrap();
        fs::write(root.join(".hidden.toml"), SOUND).unwrap();
        fs::write(folder.path().join("outside.toml"), SOUND).unwrap();
        std::os::unix::fs::symlink("../outside.toml", root.join("link.toml")).unwrap();
        let plans = Plans::below(&root);
        assert_eq!(plans.list().testbeds, ["other.toml"]);
        let found: Vec<(String, usize)> = plans
            .list()
            .plans
            .into_iter()
            .map(|plan| (plan.path, plan.mistakes))
            .collect();
        assert_eq!(
            found,
            [
                ("deep/small.toml".to_owned(), 0),
                ("wrong.toml".to_owned(), 1)
            ]
        );
        assert_eq!(plans.text("deep/small.toml").unwrap(), SOUND);
        for outside in [
            "../outside.toml",
            "link.toml",
            ".hidden.toml",
            "/etc/passwd",
            "",
        ] {
            assert!(plans.text(outside).is_err(), "{outside}");
        }
        assert!(
            Plans::below(Path::new("/nonexistent"))
                .list()
                .plans
                .is_empty()
        );
    }
}
