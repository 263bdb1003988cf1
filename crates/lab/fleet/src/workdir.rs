// SPDX-License-Identifier: Apache-2.0
//! The work directory of a run on many machines, `RESULTS.fleet`: the files for the machines, and their results.
//!
//! ```text
//! fleet.json           the run: version, plan, shards, the job's name
//! vtax, plan.toml      the files for the machines
//! job.sh               the script of the Slurm job
//! shard-3/BOOT/        the results directory of shard 3 on the machine of that boot
//! log/3.log            the output of that shard's machines
//! ```

use crate::FleetRun;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::collections::BTreeSet;
use std::fs;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use vtax_files::Dir;
use vtax_host::HostError;
use vtax_host::roots::Roots;
use vtax_host::untrusted::{end_of, shown};
use vtax_lab::LabError;
use vtax_lab::plan::{Shard, ShardError};
use vtax_results::ResultsDir;

/// `fleet.json`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Fleet {
    vtax: String,
    plan_sha256: String,
    /// Further arguments of each shard's `vtax run`.
    arguments: Vec<String>,
    shards: u32,
    blocks: u32,
    /// The name of the job, unique to the run.
    name: String,
    submitted: String,
}

/// A work directory.
#[derive(Debug, Clone)]
pub struct WorkDir {
    path: PathBuf,
    fleet: Fleet,
}

/// The kernel's id of this machine's boot.
///
/// # Errors
/// When it cannot be read.
pub fn boot(roots: &Roots) -> Result<String, LabError> {
    let id = roots.proc_text("sys/kernel/random/boot_id");
    checked_boot(id.unwrap_or_default().trim())
}

/// Checks that a boot's id can name a directory.
///
/// # Errors
/// When it cannot.
pub(crate) fn checked_boot(id: &str) -> Result<String, LabError> {
    let ok = |c: char| c.is_ascii_hexdigit() || c == '-';
    if (8..=64).contains(&id.len()) && id.chars().all(ok) {
        return Ok(id.to_owned());
    }
    Err(LabError::other(format!(
        "/proc/sys/kernel/random/boot_id does not identify the machine: got `{id}`; is /proc mounted?"
    )))
}

impl WorkDir {
    /// Creates the work directory of a run, or opens it.
    ///
    /// # Errors
    /// When it belongs to another plan, version, number of shards or arguments.
    pub fn open(run: &FleetRun) -> Result<Self, LabError> {
        let mut name = run.results.clone().into_os_string();
        name.push(".fleet");
        let path =
            std::path::absolute(&name).map_err(HostError::file("find", PathBuf::from(&name)))?;
        let file = path.join("fleet.json");
        let plan_sha256 = format!("{:x}", Sha256::digest(&run.plan));
        let wanted = Fleet {
            vtax: env!("CARGO_PKG_VERSION").to_owned(),
            plan_sha256,
            arguments: run.arguments.clone(),
            shards: run.shards,
            blocks: run.blocks,
            name: String::new(),
            submitted: String::new(),
        };
        if file.exists() {
            let workdir = Self::read(&path)?;
            let begun = &workdir.fleet;
            let other = if begun.plan_sha256 != wanted.plan_sha256 {
                "another plan".to_owned()
            } else if begun.vtax != wanted.vtax {
                format!("vtax {}, not {}", begun.vtax, wanted.vtax)
            } else if begun.shards != wanted.shards {
                format!("{} shards, not {}", begun.shards, wanted.shards)
            } else if begun.arguments != wanted.arguments {
                format!("the arguments `{}`", begun.arguments.join(" "))
            } else {
                return Ok(workdir);
            };
            return Err(LabError::other(format!(
                "{} belongs to a run with {other}: shards of two runs cannot be mixed. Give another directory with --results, or repeat the command of that run",
                path.display()
            )));
        }
        if run.results.join("run.json").exists() && !ResultsDir::open(&run.results)?.is_merged() {
            return Err(LabError::other(format!(
                "{} holds a run of one machine: give another directory with --results",
                run.results.display()
            )));
        }
        Dir::create(&path)
            .and_then(|workdir| workdir.create_dir("log"))
            .map_err(HostError::from)?;
        let submitted = jiff::Timestamp::now().to_string();
        // Unique among jobs of the same plan, so that it is found after a kill during the submission.
        let unique = Sha256::digest(format!(
            "{}{submitted}{}",
            path.display(),
            std::process::id()
        ));
        let fleet = Fleet {
            name: format!(
                "vtax-{}",
                format!("{unique:x}").get(..12).unwrap_or_default()
            ),
            submitted,
            ..wanted
        };
        let workdir = Self { path, fleet };
        workdir.ship(run)?;
        let json = serde_json::to_vec_pretty(&workdir.fleet)
            .map_err(|cause| LabError::other(cause.to_string()))?;
        workdir.write("fleet.json", &json, 0o644)?;
        Ok(workdir)
    }

    /// Opens an existing work directory.
    ///
    /// # Errors
    /// When it is missing or cannot be read.
    pub fn read(path: &Path) -> Result<Self, LabError> {
        let file = path.join("fleet.json");
        let bytes = fs::read(&file).map_err(HostError::file("read", &file))?;
        let fleet = serde_json::from_slice(&bytes).map_err(|cause| {
            LabError::other(format!(
                "{} is damaged ({cause}): move {} away; the results in it can be merged by hand (vtax merge)",
                file.display(),
                path.display()
            ))
        })?;
        Ok(Self {
            path: path.to_owned(),
            fleet,
        })
    }

    fn ship(&self, run: &FleetRun) -> Result<(), LabError> {
        let binary = fs::read(&run.binary).map_err(HostError::file("read", &run.binary))?;
        self.write("vtax", &binary, 0o755)?;
        self.write("plan.toml", run.plan.as_bytes(), 0o644)
    }

    /// Writes a file as a whole.
    pub(crate) fn write(&self, name: &str, bytes: &[u8], mode: u32) -> Result<(), LabError> {
        let path = self.path.join(name);
        let workdir = Dir::open(&self.path).map_err(HostError::from)?;
        let mut new = workdir.replace(name).map_err(HostError::from)?;
        let mode = fs::Permissions::from_mode(mode);
        new.file()
            .write_all(bytes)
            .and_then(|()| new.file().set_permissions(mode))
            .map_err(HostError::file("write", &path))?;
        Ok(new.finish().map_err(HostError::from)?)
    }

    /// Its path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The job's name.
    pub fn name(&self) -> &str {
        &self.fleet.name
    }

    /// Further arguments of each shard's `vtax run`.
    pub fn arguments(&self) -> &[String] {
        &self.fleet.arguments
    }

    /// The time of its creation, RFC 3339, by this machine's clock.
    pub fn submitted(&self) -> &str {
        &self.fleet.submitted
    }

    /// The log of a shard's machines.
    pub fn log(&self, shard: u32) -> PathBuf {
        self.path.join("log").join(format!("{shard}.log"))
    }

    /// The last line of that log.
    pub fn last_words(&self, shard: u32) -> String {
        let text = end_of(&self.log(shard), 64 << 10);
        let text = String::from_utf8_lossy(&text);
        let mut words = text
            .lines()
            .rev()
            .filter(|line| !line.trim().is_empty() && !line.starts_with("{\"event\":\"phase"));
        shown(words.next().unwrap_or("it has no output"))
    }

    /// The results directory of a shard on the machine of a boot.
    pub fn directory(&self, shard: u32, boot: &str) -> PathBuf {
        self.of_shard(shard).join(boot)
    }

    fn of_shard(&self, shard: u32) -> PathBuf {
        self.path.join(format!("shard-{shard}"))
    }

    /// The results directories of a shard, one for each machine that ran a part of it.
    fn parts(&self, shard: u32) -> Result<Vec<ResultsDir>, LabError> {
        let mut paths: Vec<PathBuf> = fs::read_dir(self.of_shard(shard))
            .into_iter()
            .flatten()
            .flatten()
            .map(|entry| entry.path())
            .filter(|path| path.join("run.json").exists())
            .collect();
        paths.sort();
        let opened = paths.iter().map(|path| ResultsDir::open(path));
        Ok(opened.collect::<Result<_, _>>()?)
    }

    /// The blocks of a shard that a machine runs: all but those that are complete on another machine.
    ///
    /// # Errors
    /// When there is no such shard, or the results of others cannot be read.
    pub fn rest(&self, shard: u32, boot: &str) -> Result<Shard, LabError> {
        let own = self.directory(shard, boot);
        let whole: BTreeSet<u32> = self
            .parts(shard)?
            .iter()
            .filter(|part| part.path() != own)
            .flat_map(ResultsDir::whole_blocks)
            .collect();
        let whole: BTreeSet<u32> = self.blocks(shard)?.intersection(&whole).copied().collect();
        let share = self.share(shard)?;
        Ok(share.but(whole))
    }

    fn share(&self, shard: u32) -> Result<Shard, LabError> {
        let share = format!("{shard}/{}", self.fleet.shards).parse();
        share.map_err(|wrong: ShardError| LabError::other(wrong.to_string()))
    }

    fn blocks(&self, shard: u32) -> Result<BTreeSet<u32>, LabError> {
        let share = self.share(shard)?;
        Ok((1..=self.fleet.blocks)
            .filter(|block| share.contains(*block))
            .collect())
    }

    /// Whether every block of a shard is complete on some machine.
    ///
    /// # Errors
    /// When a results directory cannot be read.
    pub fn is_finished(&self, shard: u32) -> Result<bool, LabError> {
        let parts = self.parts(shard)?;
        let whole: BTreeSet<u32> = parts.iter().flat_map(ResultsDir::whole_blocks).collect();
        Ok(self.blocks(shard)?.is_subset(&whole))
    }

    /// The unfinished shards.
    ///
    /// # Errors
    /// When a results directory cannot be read.
    pub fn unfinished(&self) -> Result<Vec<u32>, LabError> {
        let mut open = Vec::new();
        for shard in 1..=self.fleet.shards {
            if !self.is_finished(shard)? {
                open.push(shard);
            }
        }
        Ok(open)
    }

    /// Trials on all machines so far, cheaply counted.
    pub fn trials(&self) -> usize {
        let parts = (1..=self.fleet.shards).flat_map(|shard| self.parts(shard).unwrap_or_default());
        parts.map(|part| part.trial_indexes().len()).sum()
    }

    /// Every results directory that has a trial.
    ///
    /// # Errors
    /// When one cannot be read.
    pub fn directories(&self) -> Result<Vec<ResultsDir>, LabError> {
        let mut all = Vec::new();
        for shard in 1..=self.fleet.shards {
            let parts = self.parts(shard)?.into_iter();
            all.extend(parts.filter(|part| !part.trial_indexes().is_empty()));
        }
        Ok(all)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Engine, kubernetes::Pod};

    fn run(folder: &Path) -> FleetRun {
        let binary = folder.join("binary");
        fs::write(&binary, "a program").unwrap();
        FleetRun {
            engine: Engine::Slurm { partition: None },
            shards: 2,
            blocks: 5,
            name: "small".to_owned(),
            plan: "a plan".to_owned(),
            results: folder.join("results"),
            binary,
            arguments: Vec::new(),
            pod: Pod {
                image: String::new(),
                claim: String::new(),
            },
        }
    }

    #[test]
    fn a_work_directory_is_continued_by_its_own_run_and_by_no_other() {
        let folder = tempfile::tempdir().unwrap();
        let first = WorkDir::open(&run(folder.path())).unwrap();
        let again = WorkDir::open(&run(folder.path())).unwrap();
        assert_eq!(first.name(), again.name());
        assert_eq!(again.unfinished().unwrap(), [1, 2]);
        assert_eq!(again.rest(1, "0123-4567").unwrap().to_string(), "1/2");
        assert_eq!(again.blocks(1).unwrap(), BTreeSet::from([1, 3, 5]));
        let reported = |other: FleetRun| WorkDir::open(&other).unwrap_err().to_string();
        let shards = reported(FleetRun {
            shards: 3,
            ..run(folder.path())
        });
        assert!(shards.contains("2 shards, not 3"), "{shards}");
        let quick = reported(FleetRun {
            arguments: vec!["--quick".to_owned()],
            ..run(folder.path())
        });
        assert!(quick.contains("the arguments ``"), "{quick}");
        let file = first.path().join("fleet.json");
        let text = fs::read_to_string(&file).unwrap();
        fs::write(&file, text.replace(env!("CARGO_PKG_VERSION"), "0.0.0")).unwrap();
        assert!(reported(run(folder.path())).contains("vtax 0.0.0, not"));
        fs::write(&file, "{").unwrap();
        assert!(reported(run(folder.path())).contains("is damaged"));
    }

    #[test]
    fn a_boot_that_could_be_a_path_names_no_directory() {
        assert!(checked_boot("71f22f5e-4de1-46df-b5f9-51231fe313cf").is_ok());
        for wrong in ["", "..", "a/b", "/etc/passwd", "short", "71f22f5e\n-4de1"] {
            assert!(checked_boot(wrong).is_err(), "{wrong}");
        }
    }
}
