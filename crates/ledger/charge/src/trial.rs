// SPDX-License-Identifier: Apache-2.0
//! The instruments that read this host during a trial.

use super::Charger;
use super::subjects::{KeptPrograms, SubjectSoftirqs, boxed};
use vtax_observe::counters::{self, Grants};
use vtax_observe::{Instrument, ObserveError, Roots, Subject};

/// Opens all instruments of this host and its subjects for a trial; also returns the instruments that are unavailable,
/// with the reasons. In a trial whose guests are charged, the charger's BPF programs serve both purposes; in others,
/// those of the trial before, where they were kept.
pub fn instruments(
    subjects: &[Subject],
    charger: Option<&Charger>,
    kept: &KeptPrograms,
    roots: &Roots,
) -> (Vec<Box<dyn Instrument>>, Vec<ObserveError>) {
    let (proc, sys) = (&roots.proc, &roots.sys);
    let (mut instruments, mut absent) = counters::for_host(proc, sys);
    for subject in subjects {
        instruments.extend(counters::for_subject(subject, proc, sys));
    }
    instruments.extend(counters::asked_for(subjects, roots));
    if subjects.is_empty() {
        return (instruments, absent);
    }
    let of_programs = match charger {
        Some(charger) => {
            kept.release();
            charger.instruments(subjects, roots)
        }
        None => {
            let softirqs = SubjectSoftirqs::open(subjects, kept, roots);
            let grants = Grants::open(subjects, sys).transpose();
            boxed(Some(softirqs), grants)
        }
    };
    for opened in of_programs {
        match opened {
            Ok(instrument) => instruments.push(instrument),
            Err(error) => absent.push(error),
        }
    }
    (instruments, absent)
}
