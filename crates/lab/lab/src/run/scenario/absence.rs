// SPDX-License-Identifier: Apache-2.0
//! The wait for external guests that went away in a trial, such as one that restarts.

use crate::LabError;
use crate::external::ssh::{self, Presence};
use crate::run::Log;
use std::time::{Duration, Instant};
use tracing::{info, warn};
use vtax_host::signals::Signals;
use vtax_host::untrusted::first_line;

/// The time limit of the wait, longer than the firmware of a large server takes to start it.
const BACK_LIMIT: Duration = Duration::from_secs(600);
/// The interval between two logins.
const POLL_INTERVAL: Duration = Duration::from_secs(2);

/// Waits until every lost guest is back. Returns the failure of a trial with the restart of a guest as its reason, the
/// absence of a guest that does not come back, or the interrupt of the wait.
pub(super) fn explained(cause: LabError, signals: &Signals, log: &mut Log<'_>) -> LabError {
    if cause.is_interrupt() {
        return cause;
    }
    let mut cause = cause;
    for lost in ssh::lost() {
        log.phase(&format!("wait for {}", lost.name()));
        let mut wait = || {
            signals.check()?;
            std::thread::sleep(POLL_INTERVAL);
            Ok(())
        };
        let presence = || lost.presence();
        cause = match until_back(lost.name(), presence, BACK_LIMIT, &cause, &mut wait) {
            Ok(Presence::Restarted) => LabError::other(format!(
                "the guest {} has restarted (its boot id changed), so that the trial is invalid: {cause}",
                lost.name()
            )),
            Ok(Presence::Same | Presence::Away(_)) => cause,
            Err(cause) => return cause,
        };
    }
    cause
}

/// Looks for a guest until it is back. `wait` runs between two looks.
fn until_back(
    guest: &str,
    mut presence: impl FnMut() -> Presence,
    limit: Duration,
    cause: &LabError,
    wait: &mut dyn FnMut() -> Result<(), LabError>,
) -> Result<Presence, LabError> {
    let began = Instant::now();
    warn!("the guest {guest} is lost: {}", first_line(cause));
    loop {
        let evidence = match presence() {
            Presence::Away(evidence) => evidence,
            back => {
                let restarted = match back {
                    Presence::Restarted => ", and has restarted",
                    _ => "",
                };
                info!(
                    "the guest {guest} answers after {} s{restarted}",
                    began.elapsed().as_secs()
                );
                return Ok(back);
            }
        };
        if began.elapsed() >= limit {
            return Err(LabError::GuestGone {
                guest: guest.to_owned(),
                seconds: limit.as_secs(),
                evidence,
                cause: cause.to_string(),
            });
        }
        wait()?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use vtax_host::HostError;

    const WEB: &str = "root@web";

    fn away() -> Presence {
        Presence::Away("no route".to_owned())
    }

    fn cause() -> LabError {
        LabError::other("its connection ended")
    }

    #[test]
    fn a_guest_that_is_away_for_a_time_is_waited_for() {
        let mut looks = vec![Presence::Restarted, away(), away()];
        let presence = || looks.pop().unwrap();
        let mut waits = 0;
        let mut wait = || {
            waits += 1;
            Ok(())
        };
        let logged = vtax_log::testing::logged(|| {
            let back = until_back(WEB, presence, BACK_LIMIT, &cause(), &mut wait).unwrap();
            assert_eq!(back, Presence::Restarted);
        });
        assert_eq!(waits, 2);
        let of = "vtax_lab::run::scenario::absence: the guest root@web";
        assert_eq!(
            logged,
            format!(
                "<4>{of} is lost: its connection ended\n<6>{of} answers after 0 s, and has restarted\n"
            )
        );
    }

    #[test]
    fn a_guest_that_stays_away_ends_the_run_with_both_reasons() {
        let gone = until_back(WEB, away, Duration::ZERO, &cause(), &mut || Ok(())).unwrap_err();
        assert!(gone.ends_run());
        let text = gone.to_string();
        for part in [
            "root@web",
            "no route",
            "its connection ended",
            "run the same command again",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
    }

    #[test]
    fn an_interrupt_ends_the_wait() {
        let mut stop = || Err(HostError::Interrupted.into());
        let ended = until_back(WEB, away, BACK_LIMIT, &cause(), &mut stop).unwrap_err();
        assert!(ended.is_interrupt());
    }
}
