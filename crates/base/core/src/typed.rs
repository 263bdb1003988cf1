// SPDX-License-Identifier: Apache-2.0
//! Numbers whose unit is part of their type, for use inside programs.

use crate::{Base, Quantity, Unit};
use serde::{Deserialize, Serialize};
use std::ops::{Add, AddAssign, Div, Sub};
use std::time::Duration;

macro_rules! typed {
    ($(#[$doc:meta])* $name:ident($inner:ty), $unit:expr) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, Default, PartialEq, PartialOrd, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(pub $inner);

        impl Add for $name {
            type Output = Self;
            fn add(self, other: Self) -> Self { Self(self.0 + other.0) }
        }
        impl AddAssign for $name {
            fn add_assign(&mut self, other: Self) { self.0 += other.0; }
        }
        impl Sub for $name {
            type Output = Self;
            fn sub(self, other: Self) -> Self { Self(self.0 - other.0) }
        }
        impl From<$name> for Quantity {
            #[allow(clippy::cast_precision_loss, reason = "counters stay below 2^53 in practice; beyond it the last bits carry no meaning")]
            fn from(value: $name) -> Self { Quantity::new(value.0 as f64, $unit) }
        }
    };
}

typed!(/// Energy in joules.
    Joules(f64), Unit::from_base(Base::Joule));
typed!(/// Power in watts.
    Watts(f64), Unit::from_base(Base::Watt));
typed!(/// A rate in events per second.
    Hertz(f64), Unit::per(Base::One, Base::Second));
typed!(/// A span of time in nanoseconds, or a point on the monotonic clock since its own zero.
    #[derive(Eq, Ord, Hash)] Nanoseconds(u64), Unit::from_base(Base::Nanosecond));
typed!(/// An amount of data in bytes.
    #[derive(Eq, Ord, Hash)] Bytes(u64), Unit::from_base(Base::Byte));

impl Nanoseconds {
    /// The span in seconds.
    #[allow(
        clippy::cast_precision_loss,
        reason = "2^53 ns are 104 days; longer spans lose nanoseconds only"
    )]
    pub fn as_secs_f64(self) -> f64 {
        self.0 as f64 / 1e9
    }

    /// The span from `earlier` to `self`, or zero if `earlier` is later.
    pub fn saturating_since(self, earlier: Self) -> Self {
        Self(self.0.saturating_sub(earlier.0))
    }
}

impl From<Duration> for Nanoseconds {
    fn from(value: Duration) -> Self {
        Self(u64::try_from(value.as_nanos()).unwrap_or(u64::MAX))
    }
}

impl From<Nanoseconds> for Duration {
    fn from(value: Nanoseconds) -> Self {
        Duration::from_nanos(value.0)
    }
}

impl Div<Nanoseconds> for Joules {
    type Output = Watts;
    /// Mean power over a span; not finite over an empty span.
    fn div(self, span: Nanoseconds) -> Watts {
        Watts(self.0 / span.as_secs_f64())
    }
}
