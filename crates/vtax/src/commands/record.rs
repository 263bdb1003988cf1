//! `vtax record`, and recordings as `vtax report`, `vtax compare` and `vtax export` show them.

use super::charge::{note, watch};
use super::json;
use crate::Outcome;
use crate::cli::RecordArgs;
use crate::output::{out, outln};
use std::path::Path;
use vtax_core::counted;
use vtax_host::Roots;
use vtax_host::facts;
use vtax_host::signals::Signals;
use vtax_record::recorder::{self, RecordOptions};
use vtax_record::report::{self, Report};
use vtax_record::store::Facts;
use vtax_record::summary::Recording;

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
    let recorded = recorder::run(watch(&arguments.ledger)?, &options, &stop, &mut note)?;
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
    let report = Report::of(&recording);
    if as_json {
        return json(&report);
    }
    out!("{}", report::table(&report, &recording, width))?;
    outln!("\nreport: {}", path.join("report.html").display())?;
    Ok(())
}
