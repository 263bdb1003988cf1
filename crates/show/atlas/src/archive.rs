// SPDX-License-Identifier: Apache-2.0
//! Archives of runs: the records of all trials of a plan in one file, without their samples, so that every stored number can
//! be computed again.
//!
//! `PLAN.jsonl.gz` has a line for each file of the run: its path below the results directory and its text.

use crate::AtlasError;
use flate2::read::GzDecoder;
use flate2::{Compression, GzBuilder};
use serde::{Deserialize, Serialize};
use std::borrow::Cow;
use std::fs;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use vtax_results::{ResultsDir, is_record};

/// The end of an archive's name.
const END: &str = ".jsonl.gz";
/// Longest text of an archive that is unpacked, in bytes: some ten times the largest.
const MOST_BYTES: u64 = 256 << 20;
/// The files of a run and of a trial in an archive.
const OF_RUN: [&str; 4] = ["run.json", "plan.toml", "host.json", "SHA256SUMS"];
const OF_TRIAL: [&str; 2] = ["trial.json", "SHA256SUMS"];

/// One file of a run.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Packed<'a> {
    path: Cow<'a, Path>,
    text: Cow<'a, str>,
}

/// The archive of a plan below a directory.
pub fn path_of(folder: &Path, plan: &str) -> PathBuf {
    folder.join(format!("{plan}{END}"))
}

/// The bytes of the archive of a run: the same run gives the same bytes.
///
/// # Errors
/// When a record cannot be read, or was edited.
pub fn packed(results: &ResultsDir) -> Result<Vec<u8>, AtlasError> {
    results.verify()?;
    let of_run = OF_RUN.iter().map(PathBuf::from);
    let trials = results.trial_indexes().into_iter();
    let of_trials = trials.flat_map(|index| {
        let trial = Path::new("trials").join(format!("{index:04}"));
        OF_TRIAL.map(|name| trial.join(name))
    });
    // A trial of an earlier vtax has no sums.
    let of_trials = of_trials.filter(|path| results.dir().contains(path));
    let mut packed = GzBuilder::new().write(Vec::new(), Compression::best());
    for path in of_run.chain(of_trials) {
        let file = results.path().join(&path);
        let text = results
            .dir()
            .read_text(&path, MOST_BYTES)
            .map_err(|error| AtlasError::file("read", &file)(error.cause))?;
        let line = Packed {
            path: path.into(),
            text: text.into(),
        };
        serde_json::to_writer(&mut packed, &line)
            .map_err(io::Error::other)
            .and_then(|()| packed.write_all(b"\n"))
            .map_err(AtlasError::file("pack", &file))?;
    }
    let bytes = packed.finish();
    bytes.map_err(AtlasError::file("pack", results.path()))
}

/// Unpacks an archive into an empty directory. Only files of a record are written.
///
/// # Errors
/// When the archive cannot be read, is no archive of a run, or a file cannot be written.
pub fn unpack(archive: &Path, into: &Path) -> Result<(), AtlasError> {
    let failed = |cause| AtlasError::file("unpack", archive)(cause);
    let file = fs::File::open(archive).map_err(failed)?;
    let text = GzDecoder::new(file).take(MOST_BYTES);
    for line in BufReader::new(text).lines() {
        let line = line.map_err(failed)?;
        let Packed { path, text } = serde_json::from_str(&line)
            .map_err(|cause| failed(io::Error::new(io::ErrorKind::InvalidData, cause)))?;
        if !is_record(&path) {
            let what = format!("it holds {}, which is no record of a run", path.display());
            return Err(failed(io::Error::new(io::ErrorKind::InvalidData, what)));
        }
        let file = into.join(&path);
        if let Some(folder) = file.parent() {
            fs::create_dir_all(folder).map_err(AtlasError::file("create", folder))?;
        }
        vtax_files::write_scratch(&file, text.as_bytes())
            .map_err(|error| AtlasError::file("write", &file)(error.cause))?;
    }
    Ok(())
}
