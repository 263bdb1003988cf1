// SPDX-License-Identifier: Apache-2.0
//! The cost of one exchange relative to the others, which a user may set.

use super::cost::{Amounts, KINDS};
use std::str::FromStr;

/// Nanoseconds that receiving a packet is expected to take before any observation; the other kinds follow by their
/// weights. About the time that processors of 2020 take for a small datagram over a veth pair.
const RECEIVED: f64 = 3300.0;

/// The costs of exchanges, relative to each other. Only ratios count.
///
/// The defaults were fitted to traced soft interrupts of containers that serve files of 10, 30 and 50 KB (Linux 6.1,
/// emulated, by an earlier state of the tracing programs; `make accuracy` prints the current fit); the weights of the
/// block request and of the other soft interrupt are estimates. `docs/why/charge.md` describes their error.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Weights(Amounts);

/// The kinds of exchanges, in the order of [`Amounts`]: a packet that the guest received, one that it sent, a KiB of a
/// packet in either direction in addition (copies and checksums), a block request's completion, and a run of a soft
/// interrupt of any other kind.
const NAMES: [&str; KINDS] = ["received", "sent", "kibibyte", "block-request", "other"];

impl Default for Weights {
    fn default() -> Self {
        Self([16_500.0, 4300.0, 0.0, 6000.0, 1200.0])
    }
}

/// A text that is no weight.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum WeightsError {
    /// Not one of the kinds with a number.
    #[error(
        "`{0}` is no weight: give received, sent, kibibyte, block-request or other, \
         each as NAME=NUMBER, with commas between"
    )]
    Unknown(String),
    /// A number that no weight can have.
    #[error("`{0}`: a weight is a number from 0 on")]
    Range(String),
}

/// Parses `received=4,sent=1,kibibyte=0,block-request=2,other=0.3`: kinds that are not named are 0.
impl FromStr for Weights {
    type Err = WeightsError;

    fn from_str(text: &str) -> Result<Self, WeightsError> {
        let mut weights = Amounts::default();
        for part in text.split(',') {
            let wrong = || WeightsError::Unknown(part.to_owned());
            let (name, value) = part.split_once('=').ok_or_else(wrong)?;
            let value: f64 = value.trim().parse().map_err(|_| wrong())?;
            if !value.is_finite() || value < 0.0 {
                return Err(WeightsError::Range(part.to_owned()));
            }
            let known = NAMES.into_iter().zip(&mut weights);
            let mut of_name = known.filter(|(known, _)| *known == name.trim());
            let (_, weight) = of_name.next().ok_or_else(wrong)?;
            *weight = value;
        }
        Ok(Self(weights))
    }
}

impl Weights {
    /// The weights in nanoseconds, as expected before any observation.
    pub(super) fn nanoseconds(&self) -> Amounts {
        let [received, ..] = self.0;
        let most = self.0.into_iter().fold(f64::MIN_POSITIVE, f64::max);
        let reference = if received > 0.0 { received } else { most };
        self.0.map(|weight| weight / reference * RECEIVED)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn weights_are_read_from_words_and_wrong_ones_are_named() {
        let weights: Weights = "received=4, sent=1,block-request=2.5".parse().unwrap();
        assert_eq!(weights.0, [4.0, 1.0, 0.0, 2.5, 0.0]);
        for wrong in ["", "sent", "sent=x", "sent=-1", "sent=inf", "bytes=1"] {
            let message = wrong.parse::<Weights>().unwrap_err().to_string();
            assert!(message.contains(wrong), "{message}");
        }
    }
}
