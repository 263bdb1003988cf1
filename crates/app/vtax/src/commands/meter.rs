// SPDX-License-Identifier: Apache-2.0
//! `vtax meter`: energy meters, and fitting the power model from one.

use super::json;
use crate::Outcome;
use crate::output::outln;
use crate::progress::note;
use serde_json::{Value, json};
use std::path::Path;
use std::time::Duration;
use vtax_core::Source;
use vtax_host::Roots;
use vtax_host::meters;
use vtax_host::signals::end_with_reader;
use vtax_meter::{
    Bench, BusyLoad, CalibrationSettings, Discovery, Meter, calibrate as fit, host_domains,
};
use vtax_observe::clock::SystemClock;

pub fn list(as_json: bool) -> Outcome {
    let all = meters::list(&Roots::host())?;
    end_with_reader()?;
    if as_json {
        return json(&all.iter().map(document).collect::<Vec<_>>());
    }
    for found in all {
        match found {
            Ok(meter) => {
                let domains: Vec<&str> = meter
                    .domains()
                    .iter()
                    .map(|domain| domain.name.as_str())
                    .collect();
                outln!(
                    "{:<11} {}: {}",
                    meter.name(),
                    meter.source(),
                    domains.join(", ")
                )?;
                for caveat in meter.caveats() {
                    outln!("{:<11} {caveat}", "")?;
                }
            }
            Err(absent) => {
                outln!("{:<11} absent: {}", absent.meter, absent.reason)?;
                if let Some(remedy) = absent.remedy {
                    outln!("{:<11} {remedy}", "")?;
                }
            }
        }
    }
    Ok(())
}

fn document(found: &Discovery) -> Value {
    match found {
        Ok(meter) => {
            let domains = meter.domains().iter().map(|domain| domain.name.as_str());
            json!({
                "name": meter.name(),
                "source": meter.source(),
                "domains": domains.collect::<Vec<_>>(),
                "caveats": meter.caveats(),
            })
        }
        Err(absent) => json!({
            "name": absent.meter,
            "absent": absent.reason,
            "remedy": absent.remedy,
        }),
    }
}

pub fn calibrate(output: &Path, step: Duration) -> Outcome {
    let covers_host = |meter: &dyn Meter| {
        meter.source() == Source::Measured && !host_domains(meter.domains()).0.is_empty()
    };
    let roots = Roots::host();
    let mut meter = meters::list(&roots)?
        .into_iter()
        .flatten()
        .find(|meter| covers_host(meter.as_ref()))
        .ok_or("no meter of this host measures it, so there is nothing to fit a model to; `vtax meter list` says why")?;
    let settings = CalibrationSettings {
        observations: u32::try_from(step.as_secs().div_ceil(2))
            .unwrap_or(u32::MAX)
            .max(1),
        ..CalibrationSettings::default()
    };
    let mut load = BusyLoad::start()?;
    let mut bench = Bench {
        load: &mut load,
        clock: &SystemClock,
        wait: &mut |time: Duration| std::thread::sleep(time),
    };
    note(&format!(
        "fitting the model to {}; leave the host alone meanwhile",
        meter.name()
    ));
    let mut fitted = fit(
        meter.as_mut(),
        &mut bench,
        &roots.proc,
        "this host",
        settings,
        &mut |step| {
            note(&format!(
                "{:>3} %  busy {:>5.1} %  {:>7.2} W",
                step.level * 10,
                step.utilization * 100.0,
                step.power.0
            ));
        },
    )?;
    fitted.model.date = Some(jiff::Zoned::now().date().to_string());
    vtax_files::write(output, fitted.to_toml().as_bytes())?;
    end_with_reader()?;
    outln!("wrote {}", output.display())?;
    Ok(())
}
