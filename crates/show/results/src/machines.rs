// SPDX-License-Identifier: Apache-2.0
//! The machines that ran the blocks of a run, and the merge of several results directories.
//!
//! A block belongs to one machine: its trials are pairs, and a pair that spans two machines measures their difference.
//! Within a block a machine is one boot of it, since a reboot changes a measurement. Where machines are counted, boots of one
//! machine are one ([`Identities`]).
//! Machines of different kinds are never merged: a mean over two processors describes neither.

use super::directory::{TRIALS, trial_name};
use super::hosts::{FACTS, Fact, Weight, text};
use super::{Aside, ResultsDir, ResultsError, TrialOutcome};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ffi::OsStr;
use std::fs;
use std::io;
use std::path::Path;
use vtax_core::counted;
use vtax_files::Dir;

const FILE: &str = "machines.json";
/// Longest `machines.json` that is read, in bytes: the facts of a thousand machines, some hundred times over.
const MOST_BYTES: u64 = 256 << 20;

/// The facts that define the kind of a machine.
fn of_kind() -> impl Iterator<Item = &'static Fact> {
    FACTS.iter().filter(|fact| fact.weight != Weight::Tells)
}

/// A machine that ran blocks.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Machine {
    /// Its `host.json`.
    pub host: Value,
}

impl Machine {
    /// Identity of the machine: the kernel's boot id, or all of its facts without one.
    pub fn name(&self) -> String {
        match self.host.pointer("/boot_id").and_then(Value::as_str) {
            Some(boot) => boot.to_owned(),
            None => self.host.to_string(),
        }
    }

    /// Version of the vtax that measured there.
    pub fn vtax(&self) -> Option<&str> {
        self.host.pointer("/vtax").and_then(Value::as_str)
    }

    /// Facts of the machine's kind, by the names of [`Machine::differences`]; unknown facts are absent.
    pub fn kind(&self) -> BTreeMap<&'static str, String> {
        let fact = |fact: &Fact| Some((fact.name, text(&self.host, fact.path)?));
        of_kind().filter_map(fact).collect()
    }

    /// Differences in kind between two machines, in words; empty for machines of one kind.
    pub fn differences(&self, other: &Self) -> Vec<String> {
        let (mine, theirs) = (self.kind(), other.kind());
        let differing = of_kind().filter_map(|fact| {
            let (mine, theirs) = (mine.get(fact.name), theirs.get(fact.name));
            let [one, other] = [mine, theirs].map(|fact| fact.map_or("unknown", String::as_str));
            (mine != theirs).then(|| format!("{}: {one}, {other}", fact.name))
        });
        differing.collect()
    }
}

/// Numbers machines by what `host.json` knows of them: boots of one machine have one number.
///
/// Two boots are of one machine where the digests of the board's UUID agree or, where one of them lacks it, those of the
/// installation. A boot without either is of a machine of its own.
#[derive(Debug, Default)]
pub struct Identities {
    products: HashMap<String, usize>,
    /// Machines by installation, and whether their board is known.
    installations: HashMap<String, Vec<(usize, bool)>>,
    /// Boots by their names.
    boots: HashMap<String, usize>,
    machines: usize,
    unknown: usize,
}

impl Identities {
    /// The number of the machine, from 0 in the order of their first boots.
    pub fn number(&mut self, machine: &Machine) -> usize {
        let name = machine.name();
        if let Some(known) = self.boots.get(&name) {
            return *known;
        }
        let digest = |path: &str| machine.host.pointer(path)?.as_str().map(str::to_owned);
        let product = digest("/machine/product");
        let installation = digest("/machine/installation");
        let by_product = product.as_ref().and_then(|one| self.products.get(one));
        let by_installation = || {
            let known = self.installations.get(installation.as_ref()?)?;
            let mut known = known.iter();
            let found = known.find(|(_, has_product)| product.is_none() || !has_product);
            found.map(|(number, _)| number)
        };
        let number = by_product.or_else(by_installation).copied();
        let number = number.unwrap_or_else(|| {
            self.machines += 1;
            self.machines - 1
        });
        self.unknown += usize::from(product.is_none() && installation.is_none());
        if let Some(installation) = installation {
            let known = self.installations.entry(installation).or_default();
            known.push((number, product.is_some()));
        }
        if let Some(product) = product {
            self.products.insert(product, number);
        }
        self.boots.insert(name, number);
        number
    }

    /// Number of machines; a boot of which nothing is known counts as one.
    pub fn machines(&self) -> usize {
        self.machines
    }

    /// Number of boots.
    pub fn boots(&self) -> usize {
        self.boots.len()
    }

    /// `4 machines`, or `30 boots of 1 machine`.
    pub fn in_words(&self) -> String {
        let machines = counted(self.machines, "machine");
        if self.boots() > self.machines {
            format!("{} of {machines}", counted(self.boots(), "boot"))
        } else {
            machines
        }
    }

    /// What is not known of the machines; `None` where each is known, and of one boot.
    pub fn caution(&self) -> Option<String> {
        let is_open = self.unknown > 0 && self.boots() > 1;
        is_open.then(|| {
            format!(
                "the records of {} do not identify their machine: each counts as a machine, and some may be of one",
                counted(self.unknown, "boot")
            )
        })
    }
}

/// `machines.json`: the machine of each block.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Machines {
    /// The machines.
    pub machines: Vec<Machine>,
    /// Index of the machine of each block.
    pub blocks: BTreeMap<u32, usize>,
}

impl Machines {
    /// The machine of a block; `None` for a block that has not been run.
    pub fn of_block(&self, block: u32) -> Option<&Machine> {
        self.machines.get(*self.blocks.get(&block)?)
    }
}

/// Directories of one run, merged in memory.
#[derive(Debug, Default)]
pub struct Together<'a> {
    /// The machines, and their blocks.
    pub machines: Machines,
    /// Directory of each trial, by its index.
    pub trials: BTreeMap<u32, &'a ResultsDir>,
    /// Data left out, in sentences: blocks that several machines ran.
    pub notes: Vec<String>,
}

/// The trials of one machine in one block, each with its directory.
type Part<'a> = BTreeMap<u32, &'a ResultsDir>;

/// Selects for each block the machine with the most complete trials of it; the first one of equals.
///
/// # Errors
/// When they are not of one run, one version of vtax and one kind of machine.
pub fn together<'a>(directories: &[&'a ResultsDir]) -> Result<Together<'a>, ResultsError> {
    let Some((first, others)) = directories.split_first() else {
        return Err(ResultsError::NotARun(std::path::PathBuf::new()));
    };
    for other in others {
        one_run(first, other)?;
    }
    let mut of: Vec<Machine> = Vec::new();
    let mut places: HashMap<String, usize> = HashMap::new();
    let mut parts: BTreeMap<u32, BTreeMap<usize, Part<'a>>> = BTreeMap::new();
    for directory in directories {
        let machines = directory.machines()?;
        let names: Vec<String> = machines.machines.iter().map(Machine::name).collect();
        let indexes = directory.trial_indexes();
        for index in indexes {
            let Some(block) = directory.block_of(index) else {
                continue;
            };
            let own = machines.blocks.get(&block);
            let own = own.and_then(|own| machines.machines.get(*own).zip(names.get(*own)));
            let Some((machine, name)) = own else {
                continue;
            };
            let at = places.get(name).copied().unwrap_or(of.len());
            if at == of.len() {
                if let Some(other) = of.first() {
                    one_kind(first, other, directory, machine)?;
                }
                of.push(machine.clone());
                places.insert(name.clone(), at);
            }
            let part = parts.entry(block).or_default().entry(at).or_default();
            part.entry(index).or_insert(directory);
        }
    }
    let mut found = Together::default();
    let mut chosen: HashMap<usize, usize> = HashMap::new();
    for (block, mut candidates) in parts {
        // Trials are read only where several machines ran the block.
        let is_contested = candidates.len() > 1;
        let complete = |part: &Part<'_>| {
            let counts = |(index, from): &(&u32, &&ResultsDir)| from.is_complete(**index);
            if is_contested {
                part.iter().filter(counts).count()
            } else {
                0
            }
        };
        let rank = |(at, part): &(&usize, &Part<'_>)| (complete(part), Reverse(**at));
        let Some((&at, _)) = candidates.iter().max_by_key(rank) else {
            continue;
        };
        let part = candidates.remove(&at);
        let left: usize = candidates.values().map(BTreeMap::len).sum();
        if left > 0 {
            found.notes.push(format!(
                "block {block} was run on more than one machine: {left} trials of the other are left out, since pairs do not span machines"
            ));
        }
        if let (Some(part), Some(machine)) = (part, of.get(at)) {
            let known = &mut found.machines;
            let place = *chosen.entry(at).or_insert_with(|| {
                known.machines.push(machine.clone());
                known.machines.len() - 1
            });
            known.blocks.insert(block, place);
            found.trials.extend(part);
        }
    }
    Ok(found)
}

/// # Errors
/// When plans, schedules, profiles or versions differ.
fn one_run(first: &ResultsDir, other: &ResultsDir) -> Result<(), ResultsError> {
    let (a, b) = (first.run(), other.run());
    let version = |of: &ResultsDir| -> Result<Option<String>, ResultsError> {
        let machines = of.machines()?;
        let first = machines.machines.first();
        Ok(first.and_then(Machine::vtax).map(str::to_owned))
    };
    let what = if a.plan_sha256 != b.plan_sha256 {
        "plans".to_owned()
    } else if a.profile != b.profile {
        format!("profiles ({}, {})", a.profile, b.profile)
    } else if a.seed != b.seed || a.schedule != b.schedule {
        "schedules".to_owned()
    } else {
        match (version(first)?, version(other)?) {
            (Some(one), Some(two)) if one != two => format!("versions of vtax ({one}, {two})"),
            _ => return Ok(()),
        }
    };
    Err(ResultsError::NotOneRun {
        first: first.path().to_owned(),
        other: other.path().to_owned(),
        what,
    })
}

fn one_kind(
    first: &ResultsDir,
    one: &Machine,
    other: &ResultsDir,
    two: &Machine,
) -> Result<(), ResultsError> {
    let differences = one.differences(two);
    if differences.is_empty() {
        return Ok(());
    }
    Err(ResultsError::NotOneKind {
        first: first.path().to_owned(),
        other: other.path().to_owned(),
        differences: differences.join("; "),
    })
}

impl ResultsDir {
    /// The machine of each block: from `machines.json`, or the single machine of `host.json` without it.
    ///
    /// # Errors
    /// When the file exists and cannot be read.
    pub fn machines(&self) -> Result<Machines, ResultsError> {
        let file = self.path().join(FILE);
        if self.is_merged() {
            let bytes = self.dir().read(FILE, MOST_BYTES)?;
            return serde_json::from_slice(&bytes).map_err(|cause| ResultsError::Corrupted {
                path: file,
                why: cause.to_string(),
                remedy: "Remove it and merge again from the shards' directories".to_owned(),
            });
        }
        // A run without host facts is valid; its machine equals only machines that lack them too.
        let host = self.host().unwrap_or(Value::Null);
        Ok(Machines {
            machines: vec![Machine { host }],
            blocks: (self.run().schedule.iter())
                .map(|entry| (entry.block, 0))
                .collect(),
        })
    }

    /// Whether the run was merged from several directories.
    pub fn is_merged(&self) -> bool {
        self.dir().contains(FILE)
    }

    /// The block of a trial; `None` where the schedule has no such trial.
    pub fn block_of(&self, index: u32) -> Option<u32> {
        let index = usize::try_from(index).ok()?;
        Some(self.run().schedule.get(index)?.block)
    }

    /// The blocks with every trial present and complete.
    pub fn whole_blocks(&self) -> BTreeSet<u32> {
        let schedule = &self.run().schedule;
        let mut whole: BTreeSet<u32> = schedule.iter().map(|entry| entry.block).collect();
        for (index, entry) in (0..).zip(schedule) {
            if whole.contains(&entry.block) && !self.is_complete(index) {
                whole.remove(&entry.block);
            }
        }
        whole
    }

    fn is_complete(&self, index: u32) -> bool {
        let trial = self.trial(index);
        trial.is_ok_and(|trial| trial.outcome == TrialOutcome::Complete)
    }
}

/// Merges the results of several directories into one, which may already hold some of them. The sources do not change.
/// Trials are linked, or copied where a link is impossible. Returns the data left out, in sentences.
///
/// # Errors
/// As [`together`], and when `into` holds a run that was not merged, or cannot be written.
pub fn merge(sources: &[ResultsDir], into: &Path) -> Result<Vec<String>, ResultsError> {
    let mut notes = Vec::new();
    let mut known = BTreeSet::new();
    let mut from: Vec<&ResultsDir> = Vec::new();
    for source in sources {
        let path =
            fs::canonicalize(source.path()).map_err(ResultsError::io("find", source.path()))?;
        if known.insert(path) {
            from.push(source);
        } else {
            let path = source.path().display();
            notes.push(format!("{path} was given twice and is read once"));
        }
    }
    let Some(first) = from.first().copied() else {
        return Err(ResultsError::NotARun(into.to_owned()));
    };
    let earlier = if into.join("run.json").exists() {
        if !ResultsDir::open(into)?.is_merged() {
            return Err(ResultsError::AlreadyARun(into.to_owned()));
        }
        Some(ResultsDir::resume(into)?)
    } else {
        None
    };
    if let Some(earlier) = &earlier {
        from.insert(0, earlier);
    }
    let found = together(&from)?;
    notes.extend(found.notes);
    let target = match &earlier {
        Some(earlier) => earlier.clone(),
        None => ResultsDir::create(into, first.run(), &first.plan_text()?, &first.host()?)?,
    };
    // A trial that is not selected is set aside before its block belongs to another machine.
    for index in target.trial_indexes() {
        let stays = found
            .trials
            .get(&index)
            .is_some_and(|chosen| chosen.path() == target.path());
        if !stays {
            target.set_aside(index, Aside::Again)?;
        }
    }
    let file = into.join(FILE);
    let json = serde_json::to_vec(&found.machines)
        .map_err(|cause| ResultsError::io("write", &file)(io::Error::other(cause)))?;
    target.dir().write(FILE, &json)?;
    let trials = target.dir().create_dir(TRIALS)?;
    for (index, from) in &found.trials {
        if from.path() != target.path() {
            take(from, &trials, OsStr::new(&trial_name(*index)))?;
        }
    }
    for source in from.iter().filter(|source| source.path() != target.path()) {
        for attempt in source.attempts() {
            let block = target.block_of(attempt.index);
            let of = |machines: &Machines| Some(machines.of_block(block?)?.name());
            let (chosen, its) = (
                of(&found.machines),
                of(&source.machines().unwrap_or_default()),
            );
            if let (Some(name), true) = (attempt.path.file_name(), chosen == its) {
                take(source, &trials, name)?;
            }
        }
    }
    trials.sync()?;
    Ok(notes)
}

/// Links or copies a trial's directory to another place, atomically; an existing one is kept.
fn take(source: &ResultsDir, trials: &Dir, name: &OsStr) -> Result<(), ResultsError> {
    if trials.contains(name) {
        return Ok(());
    }
    let from = source.dir().dir(Path::new(TRIALS).join(name))?;
    let prefix = format!(".{}.partial-{}-", name.display(), std::process::id());
    let here = trials.new_dir_named(&prefix)?;
    for entry in from.list()?.iter().filter(|entry| entry.is_file) {
        from.link_or_copy(&entry.name, &here)?;
    }
    Ok(trials.rename_new(here.path().file_name().unwrap_or_default(), name)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn boots_of_one_machine_have_one_number_with_and_without_root() {
        let machine = |boot: &str, installation: Option<&str>, product: Option<&str>| Machine {
            host: json!({"boot_id": boot, "machine": {"installation": installation, "product": product}}),
        };
        let mut all = Identities::default();
        let mut number =
            |boot, installation, product| all.number(&machine(boot, installation, product));
        assert_eq!(number("1", Some("i"), None), 0);
        assert_eq!(number("2", Some("i"), Some("p")), 0, "by the installation");
        assert_eq!(number("3", Some("new"), Some("p")), 0, "installed anew");
        assert_eq!(
            number("4", Some("i"), Some("other")),
            0,
            "the first boot may be of either"
        );
        assert_eq!(number("5", Some("image"), Some("q")), 1);
        assert_eq!(
            number("6", Some("image"), Some("r")),
            2,
            "a cloned installation"
        );
        assert_eq!(number("1", Some("i"), None), 0, "the same boot");
        assert_eq!((all.machines(), all.boots(), all.caution()), (3, 6, None));
        assert_eq!(all.in_words(), "6 boots of 3 machines");
        for boot in ["7", "8"] {
            all.number(&Machine {
                host: json!({"boot_id": boot}),
            });
        }
        assert_eq!(all.machines(), 5);
        assert!(
            all.caution()
                .unwrap()
                .starts_with("the records of 2 boots do not identify")
        );
    }
}
