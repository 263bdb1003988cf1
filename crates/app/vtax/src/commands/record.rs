// SPDX-License-Identifier: Apache-2.0
//! `vtax record`, and recordings as `vtax report`, `vtax compare` and `vtax export` show them.

use super::charge::{note, services, watch};
use super::json;
use crate::Outcome;
use crate::cli::CompareArgs;
use crate::cli::RecordArgs;
use crate::output::{cannot_write_to, fail, out, outln};
use std::error::Error;
use std::io::BufWriter;
use std::path::Path;
use vtax_core::counted;
use vtax_core::terminal;
use vtax_host::Roots;
use vtax_host::facts;
use vtax_host::signals::Signals;
use vtax_record::export::{self, ExportError};
use vtax_record::recorder::{self, RecordOptions};
use vtax_record::report::{self, Report};
use vtax_record::store::Facts;
use vtax_record::summary::Recording;
use vtax_record::{compare, page};
use vtax_report::compare::RunComparison;
use vtax_report::gate::{self, AcrossHosts, JudgedGate};

pub fn record(arguments: &RecordArgs) -> Outcome {
    let stop = Signals::install()?.flag();
    let options = RecordOptions {
        output: arguments.output.clone(),
        interval: arguments.interval,
        length: arguments.length,
        facts: Facts {
            idle_rule: arguments.ledger.idle.name().to_owned(),
            note: arguments.note.clone(),
            host: serde_json::to_value(facts::facts(&Roots::host(), None))?,
            ..Facts::default()
        },
    };
    let watch = watch(&arguments.ledger, services(&arguments.services)?)?;
    let recorded = recorder::run(watch, &options, &stop, &mut note)?;
    let lost = match recorded.lost {
        0 => String::new(),
        lost => format!(", {lost} lost"),
    };
    note(&format!(
        "recorded {}{lost} in {}: {} bytes, {:.2} s of processor time",
        counted(usize::try_from(recorded.seconds)?, "interval"),
        arguments.output.display(),
        recorded.bytes,
        recorded.cpu.as_secs_f64()
    ));
    Ok(())
}

/// Shows a recording: writes report.html into its directory and prints the table, or prints JSON.
pub fn report(path: &Path, as_json: bool, width: usize) -> Outcome {
    let recording = Recording::read(path)?;
    let report = Report::from_recording(&recording);
    if as_json {
        return json(&report);
    }
    page::write(&report, &recording)?;
    out!("{}", report::table(&report, &recording, width))?;
    outln!("\nreport: {}", path.join("report.html").display())?;
    Ok(())
}

/// Compares two recordings, and judges gates.
pub fn compare(
    arguments: &CompareArgs,
) -> Result<(RunComparison, Vec<JudgedGate>), Box<dyn Error>> {
    let [before, after] = arguments.results.as_slice() else {
        fail!("give two recordings: BEFORE AFTER");
    };
    if arguments.of == crate::cli::HistoryOf::Tax {
        fail!("a recording has no baseline and so no tax: leave out --of");
    }
    let read = |path: &Path| -> Result<Recording, Box<dyn Error>> {
        if vtax_record::store::is_recording(path) {
            Ok(Recording::read(path)?)
        } else {
            Err(format!("{} is no recording, and the other one is", path.display()).into())
        }
    };
    let comparison = compare::compare(&read(before)?, &read(after)?);
    let gates = gate::judge_comparison(
        &arguments.gates,
        &comparison,
        AcrossHosts(arguments.across_hosts),
    )?;
    Ok((comparison, gates))
}

/// Writes the records of a recording as CSV.
pub fn export(path: &Path, output: Option<&Path>) -> Outcome {
    let damaged = match output {
        None => export::csv(path, &mut BufWriter::new(terminal::data()))?,
        Some(file) => {
            let mut output = vtax_files::output(file)?;
            let mut into = BufWriter::new(output.file());
            let damaged = match export::csv(path, &mut into) {
                Err(ExportError::Write(cause)) => return Err(cannot_write_to(file)(cause).into()),
                other => other?,
            };
            drop(into);
            output.finish()?;
            damaged
        }
    };
    if damaged > 0 {
        note(&format!(
            "{damaged} bytes of {} are no whole second: they are left out",
            path.display()
        ));
    }
    Ok(())
}
