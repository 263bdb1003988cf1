// SPDX-License-Identifier: Apache-2.0
//! Estimates of what knobs that merge a guest's notifications would save, from the rates of the host's ledger.
//!
//! [`advise`] is a pure function. Its model is in `docs/howto/advise.md`:
//!
//! 1. Notifications are bounded by counters: at most one for each frame and each VM exit, at least half of that.
//! 2. A knob that delays notifications by T leaves n / (1 + n T) of n a second, and needs a timer for each of these. A knob
//!    that polls for T saves the notification of a frame that comes within T, and spends the time until it comes.
//! 3. Each notification and each timer has a price in processor time, between [`PRICE`]'s ends.

mod observed;
#[cfg(test)]
mod tests;

pub use observed::{AdviseError, read};

use serde::Serialize;

/// The shortest observation of a guest that is judged, in seconds.
const SHORTEST: f64 = 10.0;
/// The share of a guest's cost below which a saving is not worth a knob.
const LEAST_SHARE: f64 = 0.01;
/// The processor time of a notification, in seconds. Least: the exit of the cost model with the cheapest one (`rome`, 1,360
/// cycles) at 3.5 GHz. Most: the dearest exit (`genoa`, 3,390), an interrupt (1,000) and a context switch (1,500) at 2 GHz.
pub const PRICE: Range = range(0.4e-6, 2.9e-6);

/// The ends of an estimate.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Range {
    /// The lower end.
    pub low: f64,
    /// The upper end.
    pub high: f64,
}

const fn range(low: f64, high: f64) -> Range {
    Range { low, high }
}

/// The rates of a guest, as the ledger counts them. Times are processors.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct GuestRates {
    /// The guest's name.
    pub guest: String,
    /// Its platform.
    pub platform: String,
    /// The time that it was observed.
    pub seconds: f64,
    /// All that it costs, the host's work for it included.
    pub cpu: f64,
    /// The time of its virtual processors.
    pub vcpu: f64,
    /// The time of its monitor and its I/O threads.
    pub emulator: f64,
    /// The time of vhost workers.
    pub vhost: f64,
    /// The time of the host's soft interrupts for it.
    pub softirq: f64,
    /// Frames that it receives in a second.
    pub received: f64,
    /// Frames that it sends in a second.
    pub sent: f64,
    /// VM exits in a second; `None` where they are not counted.
    pub exits: Option<f64>,
}

/// The advice for a guest.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Advice {
    /// The rates that it comes from.
    #[serde(flatten)]
    pub rates: GuestRates,
    /// The knobs: the advised ones first, those that save most before others.
    pub knobs: Vec<KnobAdvice>,
}

/// The advice about a knob.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct KnobAdvice {
    /// The knob in words.
    pub knob: &'static str,
    /// The platform of `plans/moderation.toml` that has it; `None` where the plan cannot measure it.
    pub platform: Option<&'static str>,
    /// Its settings in a plan.
    pub settings: &'static str,
    /// Whether the counters support it.
    pub is_advised: bool,
    /// The estimate of the processors that it saves; negative where it costs more. `None` without an estimate.
    pub saved_processors: Option<Range>,
    /// The same as a share of all that the guest costs.
    pub saved_share: Option<Range>,
    /// The delay that it adds to a frame at most, in seconds.
    pub delay_seconds: f64,
    /// The reason why it is not advised; `None` where it is.
    pub reason: Option<String>,
}

/// The part of a host that moves the frames.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Mover {
    Any,
    Vhost,
    Qemu,
}

/// The effect of a knob on the notifications of frames that a guest receives, sends, or both.
#[derive(Debug, Clone, Copy)]
enum Effect {
    /// They are delayed, with a timer for each delay that costs so many notifications.
    Delay { seconds: f64, timer: Range },
    /// The guest or the host polls for the next frame.
    Poll { seconds: f64 },
    /// The ledger's counters do not show it, for this reason.
    Hidden(&'static str),
}

struct Knob {
    knob: &'static str,
    platform: Option<&'static str>,
    settings: &'static str,
    effect: Effect,
    receives: bool,
    sends: bool,
    mover: Mover,
}

/// A timer of the guest: an exit to set it, and mostly one when it expires.
const GUEST_TIMER: Range = range(1.0, 2.0);
/// A timer of the host's kernel: its interrupt, and a wake-up of the worker that may run anyway.
const HOST_TIMER: Range = range(0.5, 1.5);
/// A timer of QEMU's main loop: a wake-up with system calls.
const QEMU_TIMER: Range = range(1.0, 3.0);

const fn delay(seconds: f64, timer: Range) -> Effect {
    Effect::Delay { seconds, timer }
}

/// A knob of what a guest receives, whatever moves the frames.
const OF_RECEIVED: Knob = Knob {
    knob: "",
    platform: None,
    settings: "",
    effect: Effect::Hidden(""),
    receives: true,
    sends: false,
    mover: Mover::Any,
};

const KNOBS: &[Knob] = &[
    Knob {
        knob: "the guest's deferral, 0.1 ms",
        platform: Some("deferral-0.1ms"),
        settings: "guest.napi_defer_hard_irqs = 1, guest.gro_flush_timeout = 100_000",
        effect: delay(1e-4, GUEST_TIMER),
        ..OF_RECEIVED
    },
    Knob {
        knob: "the guest's deferral, 1 ms",
        platform: Some("deferral-1ms"),
        settings: "guest.napi_defer_hard_irqs = 1, guest.gro_flush_timeout = 1_000_000",
        effect: delay(1e-3, GUEST_TIMER),
        ..OF_RECEIVED
    },
    Knob {
        knob: "vtax-nic, adaptive, 1 ms",
        platform: Some("adaptive"),
        settings: "nic.backend = \"vtax\", nic.datapath = \"kernel\", nic.hold_us = 1000",
        effect: delay(1e-3, HOST_TIMER),
        receives: true,
        sends: true,
        mover: Mover::Vhost,
    },
    Knob {
        knob: "QEMU's timer, 0.15 ms",
        platform: Some("tap-timer"),
        settings: "vm.tx_timer = 150_000",
        effect: delay(1.5e-4, QEMU_TIMER),
        receives: false,
        sends: true,
        mover: Mover::Qemu,
    },
    Knob {
        knob: "vhost's busy loop, 50 µs",
        platform: Some("vhost-busyloop"),
        settings: "host.vhost_busyloop = 50",
        effect: Effect::Poll { seconds: 5e-5 },
        receives: false,
        sends: true,
        mover: Mover::Vhost,
    },
    Knob {
        knob: "the guest's busy polling, 50 µs",
        platform: Some("busy-poll"),
        settings: "guest.busy_poll = 50",
        effect: Effect::Hidden(
            "the host's counters do not show whether the guest's programs wait in poll, select or reads",
        ),
        ..OF_RECEIVED
    },
    Knob {
        knob: "the guest's IRQ suspension",
        platform: None,
        settings: "guest.irq_suspend_timeout",
        effect: Effect::Hidden(
            "it serves only programs that set prefer_busy_poll on their epoll, which the host's counters do not show",
        ),
        ..OF_RECEIVED
    },
    Knob {
        knob: "the guest's adaptive moderation (DIM)",
        platform: None,
        settings: "guest.coalesce = \"adaptive-rx on\"",
        effect: Effect::Hidden(
            "it needs a device that offers notification coalescing, which QEMU's own does not, and the host's counters do not show the device",
        ),
        ..OF_RECEIVED
    },
];

/// Returns the advice for a guest.
pub fn advise(rates: &GuestRates) -> Advice {
    let mut knobs: Vec<KnobAdvice> = KNOBS.iter().map(|knob| judge(knob, rates)).collect();
    let middle = |one: &KnobAdvice| one.saved_processors.map_or(f64::MIN, |r| r.low + r.high);
    knobs.sort_by(|a, b| {
        (b.is_advised.cmp(&a.is_advised)).then_with(|| middle(b).total_cmp(&middle(a)))
    });
    Advice {
        rates: rates.clone(),
        knobs,
    }
}

fn judge(knob: &Knob, rates: &GuestRates) -> KnobAdvice {
    let estimate = estimate(knob, rates);
    let saved = estimate.as_ref().ok().copied();
    let share = match saved {
        Some(saved) if rates.cpu > 0.0 => Some(Range {
            low: saved.low / rates.cpu,
            high: saved.high / rates.cpu,
        }),
        _ => None,
    };
    let reason = match (estimate, share) {
        (Err(reason), _) => Some(reason.to_string()),
        (Ok(saved), _) if saved.low + saved.high <= 0.0 => Some(match knob.effect {
            Effect::Poll { .. } => "polling would cost more than the notifications".to_owned(),
            _ => "its timers would cost as much as the notifications".to_owned(),
        }),
        (_, Some(share)) if share.high >= LEAST_SHARE => None,
        _ => Some(format!(
            "it would save less than {:.0} % of what the guest costs",
            LEAST_SHARE * 100.0
        )),
    };
    let delay_seconds = match knob.effect {
        Effect::Delay { seconds, .. } => seconds,
        Effect::Poll { .. } | Effect::Hidden(_) => 0.0,
    };
    KnobAdvice {
        knob: knob.knob,
        platform: knob.platform,
        settings: knob.settings,
        is_advised: reason.is_none(),
        saved_processors: saved,
        saved_share: share,
        delay_seconds,
        reason,
    }
}

/// The reason why the counters do not support an estimate.
#[derive(Debug, thiserror::Error)]
enum Unsupported {
    #[error(
        "its VM exits are not counted: it is no VM, or the kernel does not show them (`vtax doctor`)"
    )]
    NoExits,
    #[error("{0:.1} s were observed; {least:.0} s are needed", least = SHORTEST)]
    TooShort(f64),
    #[error(
        "no vhost worker was busy: QEMU or another back end moves its frames; vhost (`vhost=on`) comes first where QEMU does"
    )]
    NoVhost,
    #[error("vhost moves its frames, and QEMU's timer delays only QEMU's own")]
    Vhost,
    #[error("{0}")]
    Hidden(&'static str),
}

/// The processors that a knob saves, or the reason why that cannot be estimated.
fn estimate(knob: &Knob, rates: &GuestRates) -> Result<Range, Unsupported> {
    let exits = rates.exits.ok_or(Unsupported::NoExits)?;
    if rates.seconds < SHORTEST {
        return Err(Unsupported::TooShort(rates.seconds));
    }
    match (knob.mover, rates.vhost > 0.0) {
        (Mover::Vhost, false) => return Err(Unsupported::NoVhost),
        (Mover::Qemu, true) => return Err(Unsupported::Vhost),
        _ => {}
    }
    if let Effect::Hidden(reason) = knob.effect {
        return Err(Unsupported::Hidden(reason));
    }
    let frames = rates.received + rates.sent;
    let of = |frames_a_second: f64| {
        if frames > 0.0 {
            exits.min(frames) * frames_a_second / frames
        } else {
            0.0
        }
    };
    let directions = [(knob.receives, rates.received), (knob.sends, rates.sent)];
    let directions = || {
        let ours = directions.into_iter().filter(|(is_ours, _)| *is_ours);
        ours.map(|(_, frames)| (frames, of(frames)))
    };
    let saved = |certain: f64, price: f64, high: bool| -> f64 {
        let each = directions().map(|(frames, most)| {
            let n = most * certain;
            match knob.effect {
                Effect::Delay { seconds, timer } => {
                    let left = n / (1.0 + n * seconds);
                    let timer = if high { timer.low } else { timer.high };
                    price * (n - left - timer * left)
                }
                Effect::Poll { seconds } if frames > 0.0 => {
                    let comes = 1.0 - (-frames * seconds).exp();
                    n * comes * (price - 1.0 / frames)
                }
                Effect::Poll { .. } | Effect::Hidden(_) => 0.0,
            }
        });
        each.sum::<f64>().min(rates.cpu)
    };
    let mut range = Range {
        low: f64::INFINITY,
        high: f64::NEG_INFINITY,
    };
    for certain in [0.5, 1.0] {
        for price in [PRICE.low, PRICE.high] {
            for value in [false, true].map(|high| saved(certain, price, high)) {
                range.low = range.low.min(value);
                range.high = range.high.max(value);
            }
        }
    }
    Ok(range)
}

/// The platforms of `plans/moderation.toml` that measure knobs.
pub fn platforms() -> impl Iterator<Item = &'static str> {
    KNOBS.iter().filter_map(|knob| knob.platform)
}
