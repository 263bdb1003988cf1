// SPDX-License-Identifier: Apache-2.0
//! Checks of a load generator's figures against an independent count: the claim of the generator, the count, and the
//! permitted difference.

use super::output::SECONDS;
use serde::Deserialize;
use std::time::Duration;
use vtax_core::counter;
use vtax_core::{Base, Quantity, Unit};

/// Permitted difference between claim and count, as a share of the smaller one.
const SHARE: f64 = 0.1;
/// Permitted difference in addition, as a length of load: the windows of a generator and of the lab do not open and
/// close together.
const EDGES: Duration = Duration::from_millis(500);

/// The independent count.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Account {
    /// Bytes that the host handed to the target's network devices.
    BytesToTarget,
    /// Bytes that the target's network devices handed to the host.
    BytesFromTarget,
    /// Bytes in both directions.
    BytesBothWays,
    /// Frames that the host handed to the target's network devices.
    FramesToTarget,
    /// Frames that the target's network devices handed to the host.
    FramesFromTarget,
    /// Bytes read from the target's block devices.
    BytesRead,
    /// Seconds by the lab's clock.
    Clock,
}

impl Account {
    /// Returns the target's series whose sum is the count. The clock has none.
    pub const fn series(self) -> &'static [&'static str] {
        // A host receives what its guest sends.
        match self {
            Self::BytesToTarget => &[counter::NET_TX_BYTES],
            Self::BytesFromTarget => &[counter::NET_RX_BYTES],
            Self::BytesBothWays => &[counter::NET_TX_BYTES, counter::NET_RX_BYTES],
            Self::FramesToTarget => &[counter::NET_TX_PACKETS],
            Self::FramesFromTarget => &[counter::NET_RX_PACKETS],
            Self::BytesRead => &[counter::BLOCK_READ_BYTES],
            Self::Clock => &[],
        }
    }

    const fn words(self) -> &'static str {
        match self {
            Self::BytesToTarget | Self::FramesToTarget => "the target's network device was handed",
            Self::BytesFromTarget | Self::FramesFromTarget => {
                "the target's network device delivered"
            }
            Self::BytesBothWays => "the target's network device carried both ways",
            Self::BytesRead => "the target's disks delivered",
            Self::Clock => "the clock of vtax measured",
        }
    }

    const fn unit(self) -> Unit {
        match self {
            Self::BytesToTarget | Self::BytesFromTarget | Self::BytesBothWays | Self::BytesRead => {
                Unit::from_base(Base::Byte)
            }
            Self::FramesToTarget | Self::FramesFromTarget => Unit::from_base(Base::Packet),
            Self::Clock => SECONDS,
        }
    }
}

/// The time base of a claim.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Amount {
    /// An amount per second.
    PerSecond(f64),
    /// A total amount.
    InAll(f64),
}

/// A figure of a load generator that was also counted independently.
#[derive(Debug, Clone, PartialEq)]
pub struct Claim {
    /// The counted quantity, for messages: `payload received`.
    pub what: &'static str,
    /// The amount that the generator reports.
    pub amount: Amount,
    /// The independent count.
    pub account: Account,
    /// Limit on the ratio of the count to the amount, where it is known: a device also counts headers, retransmitted
    /// segments and acknowledgements, which are in no payload.
    pub most: Option<f64>,
    /// The factor by which the load varies from its own mean; 1 where it is steady.
    pub varies: f64,
}

impl Claim {
    /// A claim of at most the count.
    pub const fn at_most(what: &'static str, amount: Amount, account: Account) -> Self {
        Self {
            what,
            amount,
            account,
            most: None,
            varies: 1.0,
        }
    }

    /// A claim of the time that a load to completion took. It excludes a longer wait of the lab.
    pub const fn elapsed(seconds: f64) -> Self {
        Self::at_most("time to completion", Amount::InAll(seconds), Account::Clock)
    }

    /// Returns the reason that the claim cannot be true, where `counted` is the increase of the count in a window of
    /// `seconds` seconds; `None` where the two agree.
    pub fn disagreement(&self, counted: f64, seconds: f64) -> Option<String> {
        let claimed = match self.amount {
            Amount::PerSecond(rate) => rate * seconds,
            Amount::InAll(total) => total,
        };
        if seconds <= 0.0 {
            return None;
        }
        let tolerance = self.varies * (1.0 + SHARE + EDGES.as_secs_f64() / seconds) - 1.0;
        let is_too_much = claimed.is_nan() || claimed > counted * (1.0 + tolerance);
        let is_too_little = self
            .most
            .is_some_and(|most| counted > claimed * most * (1.0 + tolerance));
        if !is_too_much && !is_too_little {
            return None;
        }
        let shown = |value| Quantity::new(value, self.account.unit());
        let room = match self.most {
            Some(most) if is_too_little => {
                format!("{most:.2} times as much and {:.0} %", 100.0 * tolerance)
            }
            _ => format!("{:.0} %", 100.0 * tolerance),
        };
        Some(format!(
            "the load generator claims {} ({}), and {} {} in {seconds:.2} s: more than {room} apart",
            shown(claimed),
            self.what,
            self.account.words(),
            shown(counted),
        ))
    }
}

/// A reason for suspicion where a generator's own length of its measured part is not the one asked for.
pub fn duration(driver: &str, claimed: f64, asked: Duration) -> Option<String> {
    let asked = asked.as_secs_f64();
    let apart = SHARE * asked + EDGES.as_secs_f64();
    ((claimed - asked).abs() > apart).then(|| {
        format!("{driver} measured for {claimed:.2} s, and {asked:.2} s were asked for: more than {apart:.2} s apart")
    })
}

/// A reason for suspicion where there was more load than asked for: neither a plan's load nor possible
/// where the generator holds a rate. `asked` of 0 is no limit.
pub fn excess(what: &str, reached: f64, asked: f64, unit: Unit, seconds: f64) -> Option<String> {
    let tolerance = SHARE + EDGES.as_secs_f64() / seconds.max(1.0);
    (asked > 0.0 && reached > asked * (1.0 + tolerance)).then(|| {
        format!(
            "{what} reached {}, and {} were asked for: more than {:.0} % apart",
            Quantity::new(reached, unit),
            Quantity::new(asked, unit),
            100.0 * tolerance
        )
    })
}

/// As [`excess`], for operations that arrive at random: five standard deviations (Poisson) above what
/// was asked are mere chance.
pub fn random_excess(
    what: &str,
    reached: f64,
    asked: f64,
    unit: Unit,
    seconds: f64,
) -> Option<String> {
    let chance = 5.0 * (asked / seconds.max(1.0)).sqrt();
    if reached > asked + chance {
        excess(what, reached, asked, unit, seconds)
    } else {
        None
    }
}

/// A reason for suspicion where processes had more processor time than there was.
pub fn processor_time(driver: &str, spent: f64, processes: i64, seconds: f64) -> Option<String> {
    let most = processes.max(1) as f64 * (seconds * (1.0 + SHARE) + EDGES.as_secs_f64());
    (spent > most).then(|| {
        format!(
            "{driver} counts {spent:.2} s of processor time, and {processes} processes can have {most:.2} s in {seconds:.2} s"
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const BULK: Claim = Claim {
        what: "payload received",
        amount: Amount::PerSecond(1e9),
        account: Account::BytesToTarget,
        most: Some(1.5),
        varies: 1.0,
    };

    #[test]
    fn two_accounts_agree_within_a_tenth_and_half_a_second_of_load() {
        // 15 % in 10 s: 10 GB are claimed.
        assert_eq!(BULK.disagreement(8.70e9, 10.0), None);
        assert!(BULK.disagreement(8.69e9, 10.0).is_some());
        // In a window of 1 s the edges are most of it.
        assert_eq!(BULK.disagreement(0.63e9, 1.0), None);
        assert!(BULK.disagreement(0.62e9, 1.0).is_some());
    }

    #[test]
    fn a_claim_of_too_much_or_too_little_is_shown_with_both_numbers() {
        let reason = BULK.disagreement(5e9, 10.0).unwrap();
        assert_eq!(
            reason,
            "the load generator claims 10.0 GB (payload received), and the target's network device \
             was handed 5.00 GB in 10.00 s: more than 15 % apart"
        );
        // Headers and segments sent again may be half as much again.
        assert_eq!(BULK.disagreement(17e9, 10.0), None);
        let reason = BULK.disagreement(18e9, 10.0).unwrap();
        assert!(
            reason.contains("10.0 GB") && reason.contains("18.0 GB"),
            "{reason}"
        );
        let open = Claim { most: None, ..BULK };
        assert_eq!(open.disagreement(18e9, 10.0), None);
        let varying = Claim {
            varies: 2.0,
            ..BULK
        };
        assert!(varying.disagreement(5e9, 10.0).is_none());
    }

    #[test]
    fn nothing_counted_agrees_with_nothing_claimed_only() {
        let claim = |amount| Claim { amount, ..BULK };
        assert_eq!(claim(Amount::InAll(0.0)).disagreement(0.0, 1.0), None);
        assert!(claim(Amount::InAll(1.0)).disagreement(0.0, 1.0).is_some());
        assert!(
            claim(Amount::InAll(f64::NAN))
                .disagreement(1.0, 1.0)
                .is_some()
        );
        assert!(
            claim(Amount::InAll(f64::INFINITY))
                .disagreement(1.0, 1.0)
                .is_some()
        );
        // A window that never opened contradicts no claim.
        assert_eq!(claim(Amount::InAll(1.0)).disagreement(0.0, 0.0), None);
    }

    #[test]
    fn what_a_guest_sends_is_what_its_host_receives() {
        assert_eq!(Account::BytesFromTarget.series(), [counter::NET_RX_BYTES]);
        assert_eq!(Account::FramesToTarget.series(), [counter::NET_TX_PACKETS]);
    }

    #[test]
    fn a_length_other_than_asked_and_more_load_than_asked_are_suspect() {
        let seconds = Duration::from_secs;
        assert_eq!(duration("iperf3", 10.9, seconds(10)), None);
        assert!(
            duration("iperf3", 5.0, seconds(10))
                .unwrap()
                .contains("5.00 s")
        );
        assert!(
            duration("iperf3", 20.0, seconds(10))
                .unwrap()
                .contains("20.00 s")
        );
        let unit = super::super::output::OP_RATE;
        assert_eq!(excess("the rate", 114.0, 100.0, unit, 10.0), None);
        assert!(excess("the rate", 116.0, 100.0, unit, 10.0).is_some());
        assert_eq!(excess("the rate", 1e9, 0.0, unit, 10.0), None);
        // 100 in 10 s: a standard deviation of the rate is 3.2 a second.
        assert_eq!(random_excess("the rate", 115.5, 100.0, unit, 10.0), None);
        assert!(random_excess("the rate", 117.0, 100.0, unit, 10.0).is_some());
    }
    #[test]
    fn a_process_has_no_more_processor_time_than_time_passes() {
        assert_eq!(processor_time("the cpu script", 4.0, 2, 2.0), None);
        let reason = processor_time("the cpu script", 8.0, 2, 2.0).unwrap();
        assert!(
            reason.contains("8.00 s") && reason.contains("2 processes"),
            "{reason}"
        );
    }
}
