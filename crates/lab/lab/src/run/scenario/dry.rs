// SPDX-License-Identifier: Apache-2.0
//! `vtax run --dry-run`: what a run of a plan would check, start and change, in order and with times. Nothing is changed:
//! external guests are read by one login each, and no lock, journal, image or results directory is written.

use super::Scenarios;
use super::guest::GuestSpec;
use super::programs::{self, Whose};
use super::requirements::lacks;
use crate::LabError;
use crate::external::look::{self, GuestLook};
use crate::place::actor::this_system;
use crate::plan::{PlannedTreatment, schedule};
use crate::run::{PlanTrials, Planned, RunOptions, busy};
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::time::Duration;
use vtax_guest::image;
use vtax_host::HostError;
use vtax_host::roots::Roots;
use vtax_host::settings::Settings;
use vtax_host::signals::Signals;
use vtax_load::workload::{Program, command};
use vtax_results::{ResultsDir, ResultsError};

/// Space in a guest beside the copy of vtax, in KiB: for what its shell writes.
const SPARE_KIB: u64 = 10 << 10;

/// A run of a plan that was not started.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct DryRun {
    /// The plan's name.
    pub plan: String,
    /// What is missing, each with its remedy; empty where the run can start.
    pub missing: Vec<String>,
    /// What may disturb the run or make it longer.
    pub notes: Vec<String>,
    /// The external guests and other machines, as one login each shows them.
    pub guests: Vec<SeenGuest>,
    /// What each trial of a treatment does, in order.
    pub treatments: Vec<DryTreatment>,
    /// The trials in their order, without those that are finished.
    pub trials: Vec<DryTrial>,
    /// The results directory, with its state.
    pub results: String,
    /// The expected time of all trials, in seconds.
    pub seconds: f64,
}

/// A machine that is not this host.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct SeenGuest {
    /// The platforms of the plan that it is, or its role.
    pub platform: String,
    /// What it shows.
    #[serde(flatten)]
    pub look: GuestLook,
}

/// A treatment of a plan.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct DryTreatment {
    /// Its name.
    pub label: String,
    /// What a trial of it does, in order.
    pub steps: Vec<String>,
    /// The expected time of a trial, in seconds.
    pub seconds: f64,
}

/// A trial that a run would perform.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct DryTrial {
    /// Its position in the schedule.
    pub index: u32,
    /// Its block.
    pub block: u32,
    /// The index of its treatment.
    pub treatment: usize,
    /// When it starts, in seconds since the start of the first trial.
    pub starts: f64,
}

/// Checks a plan on this host, looks at its guests, and returns what a run would do.
///
/// # Errors
/// When the plan names what does not exist, or the user interrupts. A missing requirement is no error.
pub fn dry_run(
    planned: Planned<'_>,
    options: &RunOptions,
    signals: &Signals,
) -> Result<DryRun, LabError> {
    let roots = Roots::host();
    let scenarios = Scenarios::new(planned, options, &roots, signals);
    let mut dry = DryRun {
        plan: planned.plan.name.clone(),
        ..DryRun::default()
    };
    dry.notes
        .extend(busy::wait(&roots, Duration::ZERO, signals)?);
    let mut looks = Looks::from_scenarios(&scenarios)?;
    dry.guests = looks.take(signals)?;
    let mut check = |spec: &GuestSpec<'_>| looks.check(spec);
    let mut missing = scenarios.missing(None, &mut check)?;
    missing.extend(client_machine(&scenarios, &mut dry.guests)?);
    missing.extend(lacking_in_images(&scenarios)?);
    dry.missing = missing.into_iter().collect();
    dry.notes.extend(images(&scenarios)?);
    dry.notes.extend(scenarios.assumption());
    dry.schedule(planned, options)?;
    Ok(dry)
}

/// The external guests of a plan.
struct Looks {
    wanted: BTreeMap<String, Wanted>,
    looked: BTreeMap<String, LookOutcome>,
}

/// The result of a look.
enum LookOutcome {
    Seen(Box<GuestLook>),
    /// The guest cannot be looked at. The reason is reported for the first workload that needs the guest.
    Failed(Option<HostError>),
    /// The guest is made for each trial.
    Made,
}

/// The platforms of one external guest, and the programs that their workloads need.
struct Wanted {
    kind: &'static str,
    settings: Settings,
    platforms: BTreeSet<String>,
    programs: BTreeSet<Program>,
}

/// The part of the settings that selects an external guest.
fn key(spec: &GuestSpec<'_>) -> String {
    let parameters = spec.platform.parameters();
    let own = parameters.iter().filter_map(|one| {
        let level = spec.settings.0.get(one.key)?;
        Some(format!("{}={level}\n", one.key))
    });
    format!("{}\n{}", spec.platform.kind(), own.collect::<String>())
}

impl Looks {
    fn from_scenarios(scenarios: &Scenarios<'_>) -> Result<Self, LabError> {
        let mut wanted: BTreeMap<String, Wanted> = BTreeMap::new();
        for planned in scenarios.planned {
            for spec in scenarios.specs(planned)? {
                if !spec.platform.is_external(spec.settings) {
                    continue;
                }
                let one = wanted.entry(key(&spec)).or_insert_with(|| Wanted {
                    kind: spec.platform.kind(),
                    settings: spec.settings.clone(),
                    platforms: BTreeSet::new(),
                    programs: BTreeSet::new(),
                });
                one.platforms.insert(planned.record.platform.clone());
                let about = spec.workload.about();
                one.programs.extend(about.target_programs.iter().copied());
            }
        }
        Ok(Self {
            wanted,
            looked: BTreeMap::new(),
        })
    }

    /// Logs into every guest once.
    fn take(&mut self, signals: &Signals) -> Result<Vec<SeenGuest>, HostError> {
        let mut guests = Vec::new();
        for (key, wanted) in &self.wanted {
            signals.check()?;
            let programs: Vec<Program> = wanted.programs.iter().copied().collect();
            let looked = match look::look(wanted.kind, &wanted.settings, &programs) {
                Ok(None) => LookOutcome::Made,
                Ok(Some(look)) => {
                    let platforms: Vec<&str> =
                        wanted.platforms.iter().map(String::as_str).collect();
                    guests.push(SeenGuest {
                        platform: platforms.join(", "),
                        look: look.clone(),
                    });
                    LookOutcome::Seen(Box::new(look))
                }
                Err(cause) => LookOutcome::Failed(Some(cause)),
            };
            self.looked.insert(key.clone(), looked);
        }
        Ok(guests)
    }

    /// Returns what a guest lacks. Guests of vtax are checked as before a run.
    fn check(&mut self, spec: &GuestSpec<'_>) -> Result<Vec<HostError>, HostError> {
        if !spec.platform.is_external(spec.settings) {
            return lacks(spec);
        }
        programs::refuse_scratch(spec.workload, spec.settings)?;
        let look = match self.looked.get_mut(&key(spec)) {
            Some(LookOutcome::Seen(look)) => look,
            Some(LookOutcome::Failed(cause)) => return cause.take().map_or(Ok(Vec::new()), Err),
            Some(LookOutcome::Made) | None => return lacks(spec),
        };
        let needed: Vec<&str> = spec
            .workload
            .about()
            .target_programs
            .iter()
            .map(|one| one.name)
            .collect();
        let mut lacking = lacking(look, own_size_kib());
        lacking.extend(missing(look, &needed));
        Ok(lacking)
    }
}

/// Returns the programs in `needed` that a machine lacks, and those of every guest.
fn missing(look: &GuestLook, needed: &[&str]) -> Vec<HostError> {
    let lacking = look.missing.iter().filter(|(name, _)| {
        needed.contains(&name.as_str()) || look::NEEDED.iter().any(|one| one.name == name)
    });
    lacking
        .map(|(name, package)| programs::missing_in_guest(name, package))
        .collect()
}

/// Returns what a guest lacks for every workload.
fn lacking(look: &GuestLook, vtax_kib: u64) -> Vec<HostError> {
    let missing = |what: String, remedy: &str| HostError::Missing {
        what,
        remedy: remedy.to_owned(),
    };
    let here = this_system();
    let mut lacking = Vec::new();
    if look.machine != here {
        let what = format!(
            "a vtax for the guest ({}; this one is for {here})",
            look.machine
        );
        lacking.push(missing(what, "name a guest of this kind"));
    }
    if !look.is_root {
        let what = format!("root on {}, which starts servers there,", look.login);
        let remedy = "log in as root@…, or set ssh.sudo = true where sudo asks no password";
        lacking.push(missing(what, remedy));
    }
    let space = look.disks.iter().find(|(folder, _)| folder == "/var/tmp");
    if let Some((folder, free)) = space.filter(|(_, free)| *free < vtax_kib + SPARE_KIB) {
        let what = format!(
            "space in the guest: {folder} has {} MiB free, and vtax needs {} MiB while it runs,",
            free >> 10,
            (vtax_kib + SPARE_KIB) >> 10
        );
        lacking.push(missing(what, "make room there"));
    }
    lacking
}

/// The size of this program, which travels to external guests, in KiB.
fn own_size_kib() -> u64 {
    fs::metadata("/proc/self/exe").map_or(0, |found| found.len().div_ceil(1024))
}

/// Looks at the machine of the target's client. Returns what it lacks.
fn client_machine(
    scenarios: &Scenarios<'_>,
    guests: &mut Vec<SeenGuest>,
) -> Result<Vec<String>, LabError> {
    let Some(host) = &scenarios.client_host else {
        return Ok(Vec::new());
    };
    let wanted = programs::client_programs(scenarios.planned, scenarios.catalogue, Whose::Remote);
    let wanted: Vec<Program> = wanted.into_iter().map(|(_, program)| program).collect();
    let place = host.place();
    Ok(match look::look_at_client(&host.client.host, &wanted) {
        Err(cause) => vec![format!("{place}: {cause}")],
        Ok(look) => {
            let names: Vec<&str> = wanted.iter().map(|program| program.name).collect();
            let lacking = missing(&look, &names).into_iter();
            let lacking = lacking.map(|what| format!("{place}: {what}")).collect();
            guests.push(SeenGuest {
                platform: "the clients' machine".to_owned(),
                look,
            });
            lacking
        }
    })
}

/// Returns a note for each image that a run would build.
fn images(scenarios: &Scenarios<'_>) -> Result<Vec<String>, LabError> {
    let mut notes = Vec::new();
    let recipes: BTreeSet<image::Recipe> = (scenarios.planned.iter())
        .flat_map(|planned| scenarios.of.recipes_of(planned))
        .collect();
    for recipe in recipes {
        if image::cached(&recipe)?.is_none() {
            let with = match recipe.differences().as_slice() {
                [] => String::new(),
                some => format!(" with {}", some.join(", ")),
            };
            notes.push(format!(
                "the image of guests{with} is built first, which takes minutes and a Debian mirror: `vtax image build`"
            ));
        }
    }
    Ok(notes)
}

/// Returns what the images that exist lack of the commands that run in them, as a run finds it.
fn lacking_in_images(scenarios: &Scenarios<'_>) -> Result<Option<String>, LabError> {
    let recipes = (scenarios.planned.iter()).flat_map(|planned| scenarios.of.recipes_of(planned));
    let mut files: BTreeMap<image::Recipe, image::GuestFiles> = BTreeMap::new();
    for recipe in recipes {
        if let Some(found) = image::cached(&recipe)? {
            files.insert(recipe, found);
        }
    }
    let found = programs::check_commands(scenarios.planned, scenarios.catalogue, &|guest| {
        let settings = guest.settings;
        let workload = scenarios.catalogue.workload(guest.workload_kind)?;
        // The files of a plan are put above the image when it runs.
        let program = workload.target_program(settings)?;
        if program.contains('/') && !command::files_of(settings).is_empty() {
            return None;
        }
        let recipe = image::Recipe::of_guest(&workload.packages(settings), settings);
        Some(files.get(&recipe)?.root.as_path())
    });
    match found {
        Ok(()) => Ok(None),
        Err(LabError::Host(lacking @ HostError::Missing { .. })) => Ok(Some(lacking.to_string())),
        Err(cause) => Err(cause),
    }
}

impl DryRun {
    /// Fills in the treatments, the trials and the results directory.
    fn schedule(&mut self, planned: Planned<'_>, options: &RunOptions) -> Result<(), LabError> {
        let plan = planned.plan;
        self.treatments = (planned.treatments.iter().enumerate())
            .map(|(number, treatment)| DryTreatment {
                label: treatment.record.label.clone(),
                steps: steps(planned, treatment),
                seconds: planned.expected(number).as_secs_f64(),
            })
            .collect();
        let (finished, state) = match ResultsDir::open(&options.results) {
            Ok(results) => {
                results.verify()?;
                planned.new_run("").check(&results, &planned.records())?;
                let finished = results.trial_indexes();
                let state = format!(
                    "goes on with its run, of which {} trials exist",
                    finished.len()
                );
                (finished, state)
            }
            Err(ResultsError::NotARun(_)) => {
                ResultsDir::check_free(&options.results)?;
                (Vec::new(), "is created".to_owned())
            }
            Err(cause) => return Err(cause.into()),
        };
        self.results = format!("{} {state}", options.results.display());
        let all = schedule(
            planned.treatments.len(),
            plan.repetitions,
            plan.order,
            plan.seed,
        );
        let shard = options.shard.as_ref();
        for (index, scheduled) in (0..).zip(all) {
            let is_of_shard = shard.is_none_or(|shard| shard.contains(scheduled.block));
            if finished.contains(&index) || !is_of_shard {
                continue;
            }
            if self
                .trials
                .last()
                .is_none_or(|last| last.block != scheduled.block)
            {
                self.seconds += plan.idle_phase().as_secs_f64();
            }
            self.trials.push(DryTrial {
                index,
                block: scheduled.block,
                treatment: scheduled.treatment,
                starts: self.seconds,
            });
            self.seconds += planned.expected(scheduled.treatment).as_secs_f64();
        }
        Ok(())
    }
}

/// Returns what a trial of a treatment does, in order.
fn steps(planned: Planned<'_>, treatment: &PlannedTreatment) -> Vec<String> {
    let mut steps = Vec::new();
    let settings = treatment.settings.0.iter();
    let changed = settings.filter(|(key, _)| key.starts_with("host."));
    let changed: Vec<String> = changed
        .map(|(key, level)| format!("{key} = {level}"))
        .collect();
    if !changed.is_empty() {
        steps.push(format!(
            "set {} on this host, written to the journal before and set back after",
            changed.join(", ")
        ));
    }
    for guest in treatment.guests() {
        let catalogue = planned.catalogue;
        let is_external = catalogue.is_external(guest.platform_kind, guest.settings);
        steps.push(if is_external { format!(
            "log into the existing guest of {}, copy vtax ({} MiB) into an unlinked file of its /var/tmp, and \
             start it in namespaces with a /tmp of their own",
            treatment.record.platform,
            own_size_kib() >> 10
        ) } else { format!("start {} ({}) in a cell of this host", guest.name, guest.platform_kind) });
        let Some(workload) = planned.catalogue.workload(guest.workload_kind) else {
            continue;
        };
        let programs = workload.about().target_programs.iter().map(|one| one.name);
        let programs: Vec<&str> = programs.collect();
        let commands = ["prepare", "serve"].iter().filter_map(|key| {
            let text = guest.settings.text(&format!("load.{key}"))?;
            Some(format!("{key} in it: {text}"))
        });
        steps.extend(commands);
        if !programs.is_empty() {
            steps.push(format!("start {} in it", programs.join(", ")));
        }
        let load = (guest.settings.0.iter())
            .filter_map(|(key, level)| Some(format!("{} = {level}", key.strip_prefix("load.")?)));
        let load: Vec<String> = load.collect();
        let with = if load.is_empty() {
            String::new()
        } else {
            format!(" ({})", load.join(", "))
        };
        steps.push(format!(
            "load it by {}{with}: {}",
            guest.workload_kind,
            workload.about().summary
        ));
    }
    let plan = planned.plan;
    let longest = treatment
        .profile
        .longest(plan.duration, 1 + treatment.neighbours.len());
    let warm_up = if plan.warmup.is_zero() {
        String::new()
    } else {
        format!("warm up for {:.0?} and ", plan.warmup)
    };
    steps.push(format!(
        "{warm_up}measure for {longest:.0?}, or until the load ends"
    ));
    steps.push("end all of it, remove the cell, and set the host back".to_owned());
    steps
}

#[cfg(test)]
mod tests {
    use super::*;

    fn look() -> GuestLook {
        GuestLook {
            login: "root@web".to_owned(),
            is_root: true,
            machine: this_system(),
            disks: vec![("/var/tmp".to_owned(), 100 << 10)],
            ..GuestLook::default()
        }
    }

    #[test]
    fn a_guest_without_root_space_or_this_architecture_is_refused() {
        assert!(lacking(&look(), 20 << 10).is_empty());
        let others = [
            (
                "a vtax for the guest (Linux m68k",
                GuestLook {
                    machine: "Linux m68k".to_owned(),
                    ..look()
                },
            ),
            (
                "root on root@web",
                GuestLook {
                    is_root: false,
                    ..look()
                },
            ),
            (
                "/var/tmp has 1 MiB free",
                GuestLook {
                    disks: vec![("/var/tmp".to_owned(), 1 << 10)],
                    ..look()
                },
            ),
        ];
        for (expected, look) in others {
            let found = lacking(&look, 20 << 10);
            assert_eq!(found.len(), 1, "{found:?}");
            assert!(found[0].to_string().contains(expected), "{}", found[0]);
        }
    }
}
