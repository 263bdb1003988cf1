//! `vtax top`, `vtax exporter`, `vtax charge`: what each guest of this host causes.

use crate::Outcome;
use crate::cli::{ChargeArgs, ChargingArgs, ExporterArgs, TopArgs};
use std::error::Error;
use std::io::{self, Write};
use std::time::{Duration, Instant};
use vtax_lab::Roots;
use vtax_lab::run::meters;
use vtax_observe::charge::{Charger, ChargerOptions, IdleEnergy};
use vtax_observe::clock::{Clock, SystemClock};
use vtax_serve::exporter::{self, ExporterOptions};
use vtax_serve::record::{self, RecordFormat};
use vtax_serve::top as view;
use vtax_units::Watts;

fn open(arguments: &ChargingArgs) -> Result<Charger, Box<dyn Error>> {
    let charger = Charger::open(ChargerOptions {
        method: arguments.method,
        meters: meters::open(&Roots::host())?,
        idle_energy: match arguments.idle_watts {
            Some(watts) if watts.is_finite() && watts >= 0.0 => IdleEnergy::Fixed(Watts(watts)),
            Some(watts) => return Err(format!("{watts} W is no idle power").into()),
            None => IdleEnergy::Lowest,
        },
        idle_rule: arguments.idle,
        ..ChargerOptions::default()
    })?;
    for note in charger.notes() {
        eprintln!("vtax: {note}");
    }
    Ok(charger)
}

/// Between a tenth of a second, below which ticks are coarser than what they measure, and a day.
fn interval(seconds: f64) -> Result<Duration, String> {
    if (0.1..=86_400.0).contains(&seconds) {
        Ok(Duration::from_secs_f64(seconds))
    } else {
        Err(format!("an interval of {seconds} s: give 0.1 to 86400"))
    }
}

pub fn top(arguments: &TopArgs) -> Outcome {
    let interval = interval(arguments.interval)?;
    let mut charger = open(&arguments.charging)?;
    match arguments.batch {
        Some(count) => view::batch(
            &mut charger,
            interval,
            count,
            arguments.sort,
            &mut io::stdout(),
        )?,
        None => view::interactive(&mut charger, interval, arguments.sort)?,
    }
    Ok(())
}

pub fn exporter(arguments: &ExporterArgs) -> Outcome {
    let options = ExporterOptions {
        listen: arguments.listen,
        interval: interval(arguments.interval)?,
        most_guests: arguments.most_guests,
    };
    let charger = open(&arguments.charging)?;
    exporter::run(
        charger,
        options,
        &mut |address| eprintln!("metrics at http://{address}/metrics"),
        &mut |problem| eprintln!("vtax: {problem}"),
    )?;
    Ok(())
}

pub fn charge(arguments: &ChargeArgs) -> Outcome {
    let interval = interval(arguments.interval)?;
    let format = if arguments.json {
        RecordFormat::Json
    } else {
        RecordFormat::Csv
    };
    let mut charger = open(&arguments.charging)?;
    let mut output = io::stdout().lock();
    if format == RecordFormat::Csv {
        record::write_heading(&mut output)?;
    }
    charger.pass(SystemClock.now())?;
    let began = Instant::now();
    let mut intervals = 0u32;
    while arguments
        .count
        .is_none_or(|count| u64::from(intervals) < count)
    {
        intervals = intervals.saturating_add(1);
        // Whole intervals from the beginning, so that a pass's own time does not add up.
        let due = interval.saturating_mul(intervals);
        std::thread::sleep(due.saturating_sub(began.elapsed()));
        let pass = charger.pass(SystemClock.now())?;
        for problem in &pass.problems {
            eprintln!("vtax: {problem}");
        }
        for record in record::records(&charger, &pass, SystemClock.wall()) {
            record::write(&record, format, &mut output)?;
        }
        output.flush()?;
    }
    Ok(())
}
