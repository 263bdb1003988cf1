// SPDX-License-Identifier: Apache-2.0
//! A TCP stream in the simulation: a sender that waits for acknowledgements, and stages that handle frames by turns on
//! one processor.

use std::collections::VecDeque;

use vtax_nic::hold::Nanos;

/// The time that any stage needs for an acknowledgement.
const ACKNOWLEDGE_TIME: Nanos = Nanos::from_micros(4);

/// Payload of the largest frame that TCP sends over IPv4 with timestamps, in bytes: 45 segments of 1,448.
const LARGEST_FRAME: u64 = 45 * 1_448;

/// Payload of the smallest frame. Linux sizes frames for a millisecond at the stream's pace (`tcp_tso_autosize`), with
/// two segments at least.
const SMALLEST_FRAME: u64 = 2 * 1_448;
const PACING_INTERVAL: Nanos = Nanos::from_micros(1_000);

/// The initial window (RFC 6928).
const FIRST_WINDOW: u64 = 10 * 1_448;

/// Acknowledgements at the start of a stream that Linux does not delay.
const QUICK_ACKS: u32 = 16;

/// Bytes that Linux's back end moves before it yields (`VHOST_NET_WEIGHT`).
const BACKEND_ROUND: u64 = 0x8_0000;

/// A TCP stream.
#[derive(Clone, Debug, PartialEq)]
pub struct Stream {
    /// Whether the guest sends it; otherwise it receives.
    pub guest_sends: bool,
    /// The largest window, in bytes.
    pub window: u64,
    /// Bytes that the application writes at a time.
    pub write: u64,
    /// The time between two writes; `None`: as fast as possible.
    pub every: Option<Nanos>,
    /// The processor time per GB of the sender, the back end and the receiver.
    pub costs: [Nanos; 3],
}

impl Stream {
    /// The settings of the emulated testbed (`plans/nic-floor.toml`): the windows of a guest of 256 MiB, the time of
    /// each part for 1 GB with holds of 1 ms at full speed, and iperf3, which writes 128 KiB at a time.
    pub fn of_testbed(guest_sends: bool, bits_per_second: Option<u64>) -> Self {
        let write = 131_072;
        let milliseconds = |parts: [u32; 3]| parts.map(|part| Nanos::from_micros(part * 1_000));
        let (window, costs) = if guest_sends {
            (1_110_000, milliseconds([518, 569, 672]))
        } else {
            (550_000, milliseconds([464, 489, 632]))
        };
        Self {
            guest_sends,
            window,
            write,
            every: bits_per_second.map(|rate| Nanos(write * 8_000_000_000 / rate.max(1))),
            costs,
        }
    }

    fn cost(&self, part: usize, bytes: u64) -> Nanos {
        let whole = self.costs.get(part).map_or(0, |cost| cost.0);
        Nanos(whole.saturating_mul(bytes) / 1_000_000_000)
    }
}

/// A stage of the handling of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stage {
    /// The sender makes a frame.
    Send,
    /// The back end moves a frame.
    Carry,
    /// The peer takes a frame or an acknowledgement.
    Peer,
    /// The guest takes a frame or an acknowledgement.
    Guest,
}

impl Stage {
    /// The stage after the worker's drain.
    pub fn of_drained(stream: &Stream) -> Self {
        if stream.guest_sends {
            Self::Carry
        } else {
            Self::Peer
        }
    }
}

/// The processor that the stages share. The last stage that woke up has it until it has no more work. The back end
/// yields only at the end of its round, as Linux's kernel thread does.
#[derive(Debug, Default)]
pub struct Processor {
    /// Stages that wait for the processor; the last one has the next turn.
    turns: Vec<Stage>,
    is_at_work: bool,
    /// Bytes that the back end has moved in its round.
    round: u64,
    /// The end of the back end's present work.
    back_end_until: Nanos,
}

impl Processor {
    /// Adds a stage that has work.
    pub fn wake(&mut self, stage: Stage) {
        self.turns.retain(|waiting| *waiting != stage);
        self.turns.push(stage);
    }

    /// Adds a stage that has work and runs after the present stage.
    pub fn wake_next(&mut self, stage: Stage) {
        if !self.turns.contains(&stage) {
            self.turns.insert(self.turns.len().saturating_sub(1), stage);
        }
    }

    /// The stage with the next turn, unless a stage is at work.
    pub fn next(&self) -> Option<Stage> {
        match self.round {
            _ if self.is_at_work => None,
            0 => self.turns.last().copied(),
            _ => Some(Stage::Carry),
        }
    }

    /// Starts a stage's work, which lasts until `until`.
    pub fn starts(&mut self, stage: Stage, until: Nanos) {
        self.is_at_work = true;
        if stage == Stage::Carry {
            self.back_end_until = until;
        }
    }

    /// Records that a stage has handled `bytes`.
    pub fn ended(&mut self, stage: Stage, bytes: u64) {
        self.is_at_work = false;
        if stage == Stage::Carry {
            self.round += bytes;
        }
        if self.round >= BACKEND_ROUND {
            self.round = 0;
            // The other stages run first.
            self.turns.retain(|waiting| *waiting != stage);
            self.turns.insert(0, stage);
        }
    }

    /// Records that a stage has no work.
    pub fn has_nothing(&mut self, stage: Stage) {
        if stage == Stage::Carry {
            self.round = 0;
        }
        self.turns.retain(|waiting| *waiting != stage);
    }

    /// The end of the back end's present work, if it is at work at `now`.
    pub fn is_taken_until(&self, now: Nanos) -> Option<Nanos> {
        (now < self.back_end_until).then_some(self.back_end_until)
    }
}

/// The effects of a stage's work.
#[derive(Debug, Default)]
pub struct StageResult {
    /// The next stage.
    pub next: Option<Stage>,
    /// Whether the guest's receive ring has a frame.
    pub to_guest: bool,
    /// Whether the guest's send ring has a frame.
    pub from_guest: bool,
    /// Bytes acknowledged to the sender.
    pub acknowledged: u64,
}

/// The state of a stream.
#[derive(Debug, Default)]
pub struct Flow {
    /// Bytes that were written and not sent.
    written: u64,
    /// Bytes that were sent and are not acknowledged.
    under_way: u64,
    /// Bytes and frames that were received and not acknowledged.
    taken: (u64, u32),
    /// Undelayed acknowledgements so far.
    quick: u32,
    is_used: bool,
    is_sending: bool,
    /// Frames that were sent and are not acknowledged, with their times.
    sent: VecDeque<(Nanos, u64)>,
    round_trip: Nanos,
    /// Bytes that are acknowledged.
    arrived: u64,
    /// The size of the frame that the sender makes.
    made: u64,
    /// The queue before each stage, in bytes of frames or of acknowledged data.
    before_carry: VecDeque<u64>,
    before_peer: VecDeque<u64>,
    before_guest: VecDeque<u64>,
}

impl Flow {
    /// Whether a stream is simulated.
    pub fn is_used(&self) -> bool {
        self.is_used
    }

    /// Performs a write of the application.
    pub fn write(&mut self, stream: &Stream) {
        self.is_used = true;
        // Bytes that do not fit into the socket are written later.
        self.written = match stream.every {
            Some(_) => self.written + stream.write,
            None => u64::MAX / 4,
        };
    }

    /// Whether the sender begins to make frames now.
    pub fn begins_to_send(&mut self, stream: &Stream) -> bool {
        if self.is_sending || self.next_frame(stream).is_none() {
            return false;
        }
        self.is_sending = true;
        true
    }

    fn next_frame(&self, stream: &Stream) -> Option<u64> {
        // Slow start (RFC 5681) from ten segments (RFC 6928), up to the window for which both ends have memory.
        let window = (FIRST_WINDOW + self.arrived).min(stream.window);
        // Data that the application has not read fills the socket of the receiver.
        let unread: u64 = if stream.guest_sends {
            self.before_peer.iter().sum()
        } else {
            0
        };
        let room = window
            .saturating_sub(self.under_way)
            .min((2 * stream.window).saturating_sub(self.under_way + unread));
        // The pace is 1.2 windows per round trip.
        let paced = window * 6 / 5 * PACING_INTERVAL.0 / self.round_trip.0.max(1);
        let largest = paced.clamp(SMALLEST_FRAME, LARGEST_FRAME);
        let bytes = self.written.min(room).min(largest);
        // A small rest of the window is not sent before the window has grown.
        let is_worth_it = bytes == self.written || bytes * 2 >= largest.min(window);
        (bytes > 0 && is_worth_it).then_some(bytes)
    }

    /// Starts a stage's work. Returns its end and the bytes, or `None` if the stage has no work.
    pub fn start(&mut self, stage: Stage, stream: &Stream, now: Nanos) -> Option<(Nanos, u64)> {
        let (part, bytes) = match stage {
            Stage::Send => {
                let Some(bytes) = self.next_frame(stream) else {
                    self.is_sending = false;
                    return None;
                };
                self.made = bytes;
                self.written -= bytes;
                self.under_way += bytes;
                self.sent.push_back((now, bytes));
                (0, bytes)
            }
            Stage::Carry => (1, *self.before_carry.front()?),
            Stage::Peer => (2, *self.before_peer.front()?),
            Stage::Guest => (2, *self.before_guest.front()?),
        };
        let is_acknowledgement = match stage {
            Stage::Peer => !stream.guest_sends,
            Stage::Guest => stream.guest_sends,
            Stage::Send | Stage::Carry => false,
        };
        let cost = if is_acknowledgement {
            ACKNOWLEDGE_TIME
        } else {
            stream.cost(part, bytes)
        };
        Some((cost, bytes))
    }

    /// Ends a stage's work and returns its effects.
    pub fn end(&mut self, stage: Stage, stream: &Stream, now: Nanos) -> StageResult {
        let mut done = StageResult::default();
        match stage {
            Stage::Send => {
                self.before_carry.push_back(self.made);
                if stream.guest_sends {
                    done.from_guest = true;
                } else {
                    done.next = Some(Stage::Carry);
                }
            }
            Stage::Carry => {
                let bytes = self.before_carry.pop_front().unwrap_or(0);
                self.before_guest.push_back(bytes);
                done.to_guest = true;
                if stream.guest_sends {
                    // The host's TCP acknowledges at once, in the back end's processor time; the application reads
                    // later.
                    self.before_peer.push_back(bytes);
                    done.next = Some(Stage::Peer);
                }
            }
            Stage::Peer => {
                let bytes = self.before_peer.pop_front().unwrap_or(0);
                if !stream.guest_sends {
                    done.acknowledged = self.acknowledge(bytes, now);
                }
            }
            Stage::Guest => {
                let bytes = self.before_guest.pop_front().unwrap_or(0);
                if stream.guest_sends {
                    done.acknowledged = self.acknowledge(bytes, now);
                } else if let Some(bytes) = self.take(bytes) {
                    self.before_peer.push_back(bytes);
                    done.from_guest = true;
                }
            }
        }
        done
    }

    fn acknowledge(&mut self, bytes: u64, now: Nanos) -> u64 {
        self.arrived += bytes;
        self.under_way = self.under_way.saturating_sub(bytes);
        let mut left = bytes;
        while let Some((at, frame)) = self.sent.front().copied()
            && left >= frame
        {
            left -= frame;
            self.sent.pop_front();
            // The smoothed round-trip time of RFC 6298.
            self.round_trip = Nanos(self.round_trip.0 / 8 * 7 + now.since(at).0 / 8);
        }
        bytes
    }

    /// Delivers a frame to the guest. Returns the bytes to acknowledge: those of two or more frames once no others
    /// wait, which is when the application reads.
    fn take(&mut self, bytes: u64) -> Option<u64> {
        self.taken.0 += bytes;
        self.taken.1 += 1;
        let is_due = self.taken.1 >= 2 && self.before_guest.is_empty();
        let is_quick = self.quick < QUICK_ACKS;
        self.quick += u32::from(is_quick);
        (is_due || is_quick).then(|| std::mem::take(&mut self.taken).0)
    }
}
