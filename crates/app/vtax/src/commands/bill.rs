// SPDX-License-Identifier: Apache-2.0
//! `vtax bill`: what the guests of a recording cost in money and CO₂e, by a tariff.

use super::json;
use super::report::width;
use crate::Outcome;
use crate::cli::{BillArgs, BillFormat};
use crate::output::{cannot_write, fail, out};
use crate::progress::note;
use std::error::Error;
use std::fs::File;
use std::io::{BufWriter, Read};
use std::path::Path;
use vtax_core::terminal;
use vtax_files::FileError;
use vtax_record::bill::intensity::{self, Intensity};
use vtax_record::bill::tariff::{self, Carbon, Tariff};
use vtax_record::bill::{self, Bill, BillError, Document, FocusError, FocusRows, Per, Sci};
use vtax_serve::client;

pub fn bill(arguments: &BillArgs) -> Outcome {
    let per = match arguments.per.as_deref() {
        Some([number, unit]) => Some(Per::parse(number, unit)?),
        _ => None,
    };
    let tariff = tariff(&arguments.tariff)?;
    let intensity = intensity(&arguments.tariff, &tariff)?;
    let path = &arguments.recording;
    let format = arguments.format.format();
    if format == BillFormat::Focus {
        if per.is_some() {
            fail!(
                "rows of FOCUS have no Software Carbon Intensity: leave out --per, or take --json"
            );
        }
        let made = focus(path, &tariff, intensity.as_ref())?;
        warn(path, &made);
        return Ok(());
    }
    let made = bill::made(path, &tariff, intensity.as_ref(), &mut |_| Ok(()))?;
    let guest = arguments.guest.as_deref();
    let sci = per
        .map(|per| Sci::of(&made, &tariff, guest, &per))
        .transpose()?;
    match format {
        BillFormat::Json => json(&Document::new(&made, &tariff, sci))?,
        _ => {
            let name = path.display().to_string();
            out!(
                "{}",
                bill::table(&made, &tariff, sci.as_ref(), &name, width())
            )?;
        }
    }
    warn(path, &made);
    Ok(())
}

/// Writes rows of FOCUS to standard output.
fn focus(
    path: &Path,
    tariff: &Tariff,
    intensity: Option<&Intensity>,
) -> Result<Bill, Box<dyn Error>> {
    let mut out = BufWriter::new(terminal::data());
    let mut rows = FocusRows::new(&mut out, tariff).map_err(|why| match why {
        FocusError::Write(cause) => cannot_write(cause).into(),
        why => Box::<dyn Error>::from(why),
    })?;
    let made = bill::made(path, tariff, intensity, &mut |hour| rows.hour(hour));
    let made = made.map_err(|why| match why {
        BillError::Write(cause) => cannot_write(cause).into(),
        why => Box::<dyn Error>::from(why),
    })?;
    rows.finish().map_err(cannot_write)?;
    Ok(made)
}

/// Says what of a recording was left out.
fn warn(path: &Path, made: &Bill) {
    if made.damaged > 0 {
        note(&format!(
            "{} bytes of {} are no whole interval: they are left out",
            made.damaged,
            path.display()
        ));
    }
}

/// Reads a file that the user named, of at most `most` bytes.
fn read(path: &Path, most: u64) -> Result<Vec<u8>, Box<dyn Error>> {
    let cannot = |cause| FileError::of("read", path)(cause);
    let mut bytes = Vec::new();
    let file = File::open(path).map_err(cannot)?;
    let size = file
        .take(most.saturating_add(1))
        .read_to_end(&mut bytes)
        .map_err(cannot)?;
    if u64::try_from(size)? > most {
        fail!("{} has more than {most} bytes", path.display());
    }
    Ok(bytes)
}

fn tariff(path: &Path) -> Result<Tariff, Box<dyn Error>> {
    let text = read(path, tariff::MOST_BYTES)?;
    let wrong = |why: &dyn Error| format!("{}: {why}", path.display());
    let text = String::from_utf8(text).map_err(|why| wrong(&why))?;
    Ok(Tariff::parse(&text).map_err(|why| wrong(&why))?)
}

/// The carbon intensity of a tariff, from where it says.
fn intensity(path: &Path, tariff: &Tariff) -> Result<Option<Intensity>, Box<dyn Error>> {
    let (named, bytes) = match &tariff.carbon {
        None | Some(Carbon::Fixed(_)) => return Ok(tariff.fixed()),
        Some(Carbon::File(file)) => {
            let file = path.parent().unwrap_or(Path::new("")).join(file);
            let bytes = read(&file, intensity::MOST_BYTES)?;
            (file.display().to_string(), bytes)
        }
        Some(Carbon::Url(url)) => (url.clone(), client::fetch(url, intensity::MOST_BYTES)?),
    };
    let series = Intensity::series(&bytes).map_err(|why| format!("{named}: {why}"))?;
    Ok(Some(series))
}
