// SPDX-License-Identifier: Apache-2.0
//! `vtax export` of a recording: the records of `vtax charge` for each second, as CSV.

use crate::second::Identity;
use crate::store::{self, StoreError};
use jiff::Timestamp;
use std::io::{self, Write};
use std::path::Path;
use vtax_charge::records::{Charged, Interval, RecordFormat, of_ledger, write, write_header};

/// The reason that an export failed.
#[derive(Debug, thiserror::Error)]
pub enum ExportError {
    /// The recording cannot be read.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The output cannot be written.
    #[error("cannot write the records: {0}")]
    Write(#[from] io::Error),
}

/// Writes the records of a recording as CSV, with a header line. Returns the number of damaged bytes.
///
/// # Errors
/// When the recording cannot be read, or the output cannot be written.
pub fn csv(path: &Path, out: &mut impl Write) -> Result<u64, ExportError> {
    write_header(RecordFormat::Csv, out)?;
    let mut outcome = Ok(());
    let end = store::read(path, |read| {
        if outcome.is_ok() {
            outcome = second(&read, out);
        }
    })?;
    outcome?;
    out.flush()?;
    Ok(end.damaged)
}

fn second(read: &store::Read<'_>, out: &mut impl Write) -> io::Result<()> {
    let account = read.second.account();
    let at = |milliseconds: i64| Timestamp::from_millisecond(milliseconds).unwrap_or_default();
    let length = i64::try_from(account.ledger.span.0 / 1_000_000).unwrap_or(i64::MAX);
    let ended = read.second.ended;
    let unknown: Vec<Identity> = (account.ledger.rows.iter())
        .filter(|row| !read.guests.contains_key(&row.number))
        .map(|row| Identity::unknown(row.number))
        .collect();
    let identity = |number: u32| {
        let lost = || unknown.iter().find(|other| other.number == number);
        read.guests.get(&number).or_else(lost)
    };
    let guests = account
        .ledger
        .rows
        .iter()
        .filter_map(|row| identity(row.number));
    let interval = Interval {
        began: at(ended.saturating_sub(length)),
        ended: at(ended),
        energy: account.energy,
        energy_model: read.facts.energy_model.clone(),
        energy_meter: read.facts.energy_covers.clone(),
        guests: guests
            .map(|guest| Charged {
                number: guest.number,
                name: &guest.name,
                platform: &guest.platform,
                manager: &guest.manager,
                uuid: &guest.uuid,
            })
            .collect(),
    };
    for record in of_ledger(&interval, &read.facts.method, &account.ledger) {
        write(&record, RecordFormat::Csv, out)?;
    }
    Ok(())
}
