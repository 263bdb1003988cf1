// SPDX-License-Identifier: Apache-2.0
//! CPU profiles: TOML that describes when a guest is busy, compiled to assembly.
//!
//! One program repeats a table of busy ticks, idle ticks and repetitions, which is made from the profile. A tick is 10
//! ms of the guest's timer, so that the cost of the timer's interrupts is negligible.

use crate::error::{Error, Result};
use serde::Deserialize;

/// The length of a tick in ms.
const TICK_MS: u64 = 10;

/// The program of every profile, with the steps of one.
const WORKING: &str = include_str!("../../images/working.asm");

/// The line in it that has the steps.
const STEPS: &str = "        dw 1, 99, 1\n";

/// Steps that fit into the boot sector beside the program.
const MAX_STEPS: usize = 60;

/// A load shape.
#[derive(Clone, Debug, Deserialize, PartialEq)]
#[serde(tag = "profile", rename_all = "lowercase", deny_unknown_fields)]
pub enum Profile {
    /// Busy for `share` of every period.
    Duty {
        /// Busy share of the period, 0 to 1.
        share: f64,
        /// The period, in ms.
        period_ms: u64,
    },
    /// `bursts` times busy for `burst_ms` and idle for `gap_ms`, then idle for `rest_ms`.
    Bursty {
        /// Bursts in a row.
        bursts: u64,
        /// Length of one burst, in ms.
        burst_ms: u64,
        /// Pause after each burst, in ms.
        gap_ms: u64,
        /// Pause after the last, in ms.
        rest_ms: u64,
    },
    /// The busy share goes from `from` to `to` in `steps`, then starts again.
    Ramp {
        /// Share of the first step, 0 to 1.
        from: f64,
        /// Share of the last step, 0 to 1.
        to: f64,
        /// Number of steps, at least 2.
        steps: usize,
        /// Length of one step, in ms.
        step_ms: u64,
        /// Busy and idle alternate within a step with this period, in ms.
        period_ms: u64,
    },
}

/// Busy ticks, idle ticks and repetitions.
type Step = (u16, u16, u16);

/// The reason why a guest cannot follow a profile.
#[derive(Debug, thiserror::Error)]
enum ProfileError {
    #[error(transparent)]
    Syntax(#[from] toml::de::Error),
    #[error("share = {0}: a share is between 0 and 1")]
    Share(f64),
    #[error("{key} = {ms}: times are multiples of {TICK_MS} ms")]
    Ticks { key: &'static str, ms: u64 },
    #[error("{0} is too large for the guest's 15 bits")]
    TooLarge(&'static str),
    #[error("steps = {0}: a ramp has 2 to {MAX_STEPS} steps")]
    Steps(usize),
    #[error("step_ms = {step_ms} holds no whole period of {period_ms} ms")]
    NoPeriod { step_ms: u64, period_ms: u64 },
    #[error("it has no duration")]
    NoDuration,
}

impl Profile {
    /// Reads a profile and checks it. `name` is for errors.
    ///
    /// # Errors
    /// [`Error::Image`] when the text is no profile, or one that a guest cannot follow.
    pub fn parse(name: &str, text: &str) -> Result<Self> {
        let read = || {
            let profile: Self = toml::from_str(text)?;
            profile.steps().map(|_| profile)
        };
        let remedy = "see docs/components/mvm.md, CPU profiles";
        read().map_err(|problem: ProfileError| Error::image(name, problem.to_string(), remedy))
    }

    fn steps(&self) -> std::result::Result<Vec<Step>, ProfileError> {
        let steps = match *self {
            Self::Duty { share, period_ms } => vec![split(share, period_ms, 1)?],
            Self::Bursty {
                bursts,
                burst_ms,
                gap_ms,
                rest_ms,
            } => {
                let burst = (
                    ticks("burst_ms", burst_ms)?,
                    ticks("gap_ms", gap_ms)?,
                    count("bursts", bursts)?,
                );
                let mut steps = vec![burst];
                if rest_ms > 0 {
                    steps.push((0, ticks("rest_ms", rest_ms)?, 1));
                }
                steps
            }
            Self::Ramp {
                from,
                to,
                steps,
                step_ms,
                period_ms,
            } => {
                if !(2..=MAX_STEPS).contains(&steps) {
                    return Err(ProfileError::Steps(steps));
                }
                if period_ms == 0 || step_ms < period_ms {
                    return Err(ProfileError::NoPeriod { step_ms, period_ms });
                }
                let times = count("step_ms / period_ms", step_ms / period_ms)?;
                let last = (steps - 1) as f64;
                (0..steps)
                    .map(|i| split(from + (to - from) * i as f64 / last, period_ms, times))
                    .collect::<std::result::Result<_, _>>()?
            }
        };
        if steps.iter().all(|&(busy, idle, _)| busy == 0 && idle == 0) {
            return Err(ProfileError::NoDuration);
        }
        Ok(steps)
    }

    /// The program of the profile: 16-bit assembly for nasm.
    #[must_use]
    pub fn to_assembly(&self) -> String {
        let steps = self.steps().unwrap_or_default().into_iter();
        let line = |(busy, idle, times)| format!("        dw {busy}, {idle}, {times}\n");
        let (_, program) = WORKING.split_once("\nbits").unwrap_or_default();
        let program = program.replace(STEPS, &steps.map(line).collect::<String>());
        format!("; {self:?}\nbits{program}")
    }
}

fn split(share: f64, period_ms: u64, times: u16) -> std::result::Result<Step, ProfileError> {
    if !(0.0..=1.0).contains(&share) {
        return Err(ProfileError::Share(share));
    }
    let period = ticks("period_ms", period_ms)?;
    // In range: a share of a u16.
    let busy = (f64::from(period) * share).round() as u16;
    Ok((busy, period - busy, times))
}

fn ticks(key: &'static str, ms: u64) -> std::result::Result<u16, ProfileError> {
    if !ms.is_multiple_of(TICK_MS) {
        return Err(ProfileError::Ticks { key, ms });
    }
    count(key, ms / TICK_MS)
}

fn count(key: &'static str, value: u64) -> std::result::Result<u16, ProfileError> {
    let count = u16::try_from(value).ok().filter(|v| *v < 32_768);
    count.ok_or(ProfileError::TooLarge(key))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::image::assemble_source;

    #[test]
    fn a_quarter_duty_of_100_ms_is_busy_for_3_of_10_ticks_rounded() {
        let profile =
            Profile::parse("p", "profile = 'duty'\nshare = 0.25\nperiod_ms = 100").unwrap();
        assert_eq!(profile.steps().unwrap(), [(3, 7, 1)]);
    }

    #[test]
    fn a_ramp_walks_from_first_to_last_share() {
        let text =
            "profile = 'ramp'\nfrom = 0.0\nto = 1.0\nsteps = 3\nstep_ms = 1000\nperiod_ms = 100";
        let profile = Profile::parse("p", text).unwrap();
        assert_eq!(
            profile.steps().unwrap(),
            [(0, 10, 10), (5, 5, 10), (10, 0, 10)]
        );
    }

    #[test]
    fn what_a_guest_cannot_follow_is_refused_with_the_key() {
        for (text, expected) in [
            (
                "profile = 'duty'\nshare = 1.5\nperiod_ms = 100",
                "share = 1.5",
            ),
            (
                "profile = 'duty'\nshare = 0.5\nperiod_ms = 15",
                "period_ms = 15",
            ),
            (
                "profile = 'duty'\nshare = 0.5\nperiod_ms = 0",
                "no duration",
            ),
            ("profile = 'duty'\nshare = 0.5\nperiod = 10", "period"),
            (
                "profile = 'ramp'\nfrom = 0.0\nto = 1.0\nsteps = 1\nstep_ms = 100\nperiod_ms = 100",
                "steps = 1",
            ),
            ("profile = 'square'", "square"),
        ] {
            let error = Profile::parse("p.toml", text).unwrap_err().to_string();
            assert!(
                error.contains(expected) && error.contains("p.toml"),
                "{error}"
            );
        }
    }

    #[test]
    fn the_shipped_image_that_works_has_the_program_of_its_profile() {
        let text = "profile = 'duty'\nshare = 0.01\nperiod_ms = 1000";
        let source = Profile::parse("working", text).unwrap().to_assembly();
        let program = source.split_once('\n').unwrap().1;
        assert!(program.starts_with("bits 16\norg 0x7C00"), "{source}");
        assert!(WORKING.ends_with(program), "{source}");
        let half = Profile::parse("half", &text.replace("0.01", "0.5")).unwrap();
        assert!(
            half.to_assembly()
                .contains("        dw 50, 50, 1\ntable_end:")
        );
    }

    #[test]
    fn the_longest_ramp_fits_a_boot_sector() {
        let text = format!(
            "profile = 'ramp'\nfrom = 0.0\nto = 1.0\nsteps = {MAX_STEPS}\nstep_ms = 1000\nperiod_ms = 100"
        );
        let profile = Profile::parse("p", &text).unwrap();
        match assemble_source("ramp", &profile.to_assembly()) {
            Err(Error::Program { problem, .. }) if problem.contains("not installed") => {
                eprintln!("SKIPPED: nasm is not installed (Debian package nasm)");
            }
            outcome => {
                outcome.unwrap();
            }
        }
    }
}
