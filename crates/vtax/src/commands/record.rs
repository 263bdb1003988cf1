//! `vtax record`, and recordings as `vtax report`, `vtax compare` and `vtax export` show them.

use super::charge::{note, watch};
use crate::Outcome;
use crate::cli::RecordArgs;
use vtax_core::counted;
use vtax_host::Roots;
use vtax_host::facts;
use vtax_host::signals::Signals;
use vtax_record::recorder::{self, RecordOptions};
use vtax_record::store::Facts;

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
