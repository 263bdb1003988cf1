//! The notification handshake, in every order of its steps: our real rings, a driver as Linux has it
//! (`virtqueue_enable_cb`, `virtqueue_kick_prepare`), and vhost-net's `vhost_notify`. Whatever the order, nobody
//! sleeps while the other has left something to be found.
//!
//! A step is one access to what is shared, and steps follow each other: that a store is seen before the load
//! after it is what the fences at these places are for, which no order of whole steps can show.

use super::*;
use crate::testing::{BUFFERS, Driver, Ring, SIZE};
use std::collections::HashSet;
use std::fmt::Debug;

const RING: Ring = Ring(0);

/// How many frames come.
const FRAMES: u16 = 3;

/// All that the sides know, and the memory that they share.
trait World: Clone + Debug {
    /// Puts the shared memory where our rings look.
    fn load(&self, driver: &Driver);
    /// Takes it from there.
    fn save(&mut self, driver: &Driver);
    /// Whether all may sleep.
    fn rests(&self) -> bool;
}

/// One step of one side, if it has anything to do.
type Actor<W> = fn(&mut W, &Driver) -> bool;

/// Takes every step of every actor in every state that can be reached. How many states there are.
fn explore<W: World>(first: W, actors: &[Actor<W>], driver: &Driver) -> usize {
    let mut seen = HashSet::from([format!("{first:?}")]);
    let mut waiting = vec![first];
    while let Some(world) = waiting.pop() {
        let mut moved = false;
        for actor in actors {
            let mut next = world.clone();
            next.load(driver);
            if !actor(&mut next, driver) {
                continue;
            }
            moved = true;
            next.save(driver);
            if seen.insert(format!("{next:?}")) {
                waiting.push(next);
            }
        }
        assert!(moved || world.rests(), "all sleep: {world:?}");
    }
    seen.len()
}

/// A guest's NAPI: woken, it takes all, asks for the next signal, and looks once more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Poll {
    Sleeps,
    Takes,
    Arms,
    LooksAgain,
}

/// What a receive ring's three sides know.
#[derive(Debug, Clone)]
struct Receive<R> {
    ring: R,
    /// Shared memory: the used index, and the driver's event.
    used: u16,
    event: u16,
    interrupt: bool,
    guest: Poll,
    seen: u16,
    /// Frames that are still to come.
    left: u16,
    /// The kernel's, where it returns buffers: what it has signalled, whether it is about to, and that it did.
    kernel: (u16, bool, bool),
    /// Ours: which step of a release is next.
    release: u8,
}

impl<R> Receive<R> {
    fn new(ring: R) -> Self {
        Self {
            ring,
            used: 0,
            event: 0,
            interrupt: false,
            guest: Poll::Sleeps,
            seen: 0,
            left: FRAMES,
            kernel: (0, false, false),
            release: 0,
        }
    }

    /// One step of the guest.
    fn poll(&mut self, _driver: &Driver) -> bool {
        self.guest = match self.guest {
            Poll::Sleeps if self.interrupt => {
                self.interrupt = false;
                Poll::Takes
            }
            Poll::Sleeps => return false,
            Poll::Takes => {
                self.seen = self.used;
                Poll::Arms
            }
            Poll::Arms => {
                self.event = self.seen;
                Poll::LooksAgain
            }
            Poll::LooksAgain if self.used == self.seen => Poll::Sleeps,
            Poll::LooksAgain => Poll::Takes,
        };
        true
    }
}

impl<R: Clone + Debug> World for Receive<R> {
    fn load(&self, driver: &Driver) {
        driver.write(RING.used() + 2, &self.used.to_le_bytes());
        RING.set_used_event(driver, self.event);
    }

    fn save(&mut self, driver: &Driver) {
        self.used = RING.used_index(driver);
    }

    fn rests(&self) -> bool {
        self.seen == FRAMES
    }
}

impl Receive<RingView> {
    /// One step of vhost-net: it returns a buffer, then looks whether a signal is wanted.
    fn vhost(&mut self, driver: &Driver) -> bool {
        let (signalled, looks, _) = self.kernel;
        if looks {
            if passed(self.event, self.used, signalled) {
                self.kernel.2 = true;
            }
            (self.kernel.0, self.kernel.1) = (self.used, false);
        } else if self.left > 0 {
            self.left -= 1;
            driver.write(RING.used() + 2, &(self.used + 1).to_le_bytes());
            self.kernel.1 = true;
        } else {
            return false;
        }
        true
    }

    /// One step of ours, between vhost-net and the guest: see `Guest::release`.
    fn pass_on(&mut self, _driver: &Driver) -> bool {
        self.release = match self.release {
            0 if self.kernel.2 => {
                self.kernel.2 = false;
                1
            }
            0 => return false,
            1 => u8::from(self.ring.wants_signal()) * 2,
            2 => {
                self.interrupt = true;
                3
            }
            _ => {
                self.ring.signalled();
                0
            }
        };
        true
    }
}

impl Receive<SplitRing> {
    /// One step of ours where we move the frames.
    fn serve(&mut self, _driver: &Driver) -> bool {
        self.release = match self.release {
            0 if self.left > 0 => {
                self.left -= 1;
                self.ring.give(Place::default(), 64);
                self.ring.publish(None);
                1
            }
            0 => return false,
            1 => u8::from(self.ring.wants_signal()) * 2,
            2 => {
                self.interrupt = true;
                3
            }
            _ => {
                self.ring.signalled();
                0
            }
        };
        true
    }
}

#[test]
fn no_order_loses_a_call_between_vhost_net_and_the_guest() {
    let driver = Driver::new();
    let memory = driver.device_memory();
    let view = RingView::new(&memory, &RING.addresses(), SIZE, Features::EVENT_IDX).unwrap();
    let states = explore(
        Receive::new(view),
        &[Receive::vhost, Receive::pass_on, Receive::poll],
        &driver,
    );
    assert!(states > 500, "{states}");
}

#[test]
fn no_order_loses_a_call_of_ours() {
    let driver = Driver::new();
    let memory = driver.device_memory();
    let ring = SplitRing::new(&memory, &RING.addresses(), SIZE, 0, true, true).unwrap();
    let states = explore(
        Receive::new(ring),
        &[Receive::serve, Receive::poll],
        &driver,
    );
    assert!(states > 50, "{states}");
}

/// What a transmit ring's two sides know.
#[derive(Debug, Clone)]
struct Transmit {
    ring: SplitRing,
    /// Shared memory: the available index, and our event.
    available: u16,
    event: u16,
    kick: bool,
    /// The driver's: frames to send, and whether it is about to look whether a kick is wanted.
    left: u16,
    looks: bool,
    /// Ours.
    worker: Poll,
    taken: u16,
}

impl Transmit {
    /// One step of the guest: it offers a frame, then looks whether a kick is wanted.
    fn send(&mut self, _driver: &Driver) -> bool {
        if self.looks {
            self.looks = false;
            self.kick |= passed(self.event, self.available, self.available - 1);
        } else if self.left > 0 {
            self.left -= 1;
            self.available += 1;
            self.looks = true;
        } else {
            return false;
        }
        true
    }

    /// One step of ours.
    fn drain(&mut self, driver: &Driver) -> bool {
        self.worker = match self.worker {
            Poll::Sleeps if self.kick => {
                self.kick = false;
                self.ring.disarm(None);
                Poll::Takes
            }
            Poll::Sleeps => return false,
            Poll::Takes => {
                let memory = driver.device_memory();
                while let Ok(Some(_)) =
                    self.ring
                        .take(&memory, Direction::Readable, &mut Vec::new())
                {
                    self.taken += 1;
                }
                Poll::Arms
            }
            Poll::Arms => match self.ring.arm(None) {
                Ok(false) => Poll::Sleeps,
                _ => Poll::Takes,
            },
            Poll::LooksAgain => return false,
        };
        true
    }
}

impl World for Transmit {
    fn load(&self, driver: &Driver) {
        RING.set_available(driver, self.available);
        let at = RING.used() + 4 + u64::from(SIZE) * 8;
        driver.write(at, &self.event.to_le_bytes());
    }

    fn save(&mut self, driver: &Driver) {
        self.event = RING.available_event(driver);
    }

    fn rests(&self) -> bool {
        self.taken == FRAMES
    }
}

#[test]
fn no_order_loses_a_kick() {
    let driver = Driver::new();
    let memory = driver.device_memory();
    RING.describe(&driver, 0, (BUFFERS, 64, 0, 0));
    let ring = SplitRing::new(&memory, &RING.addresses(), SIZE, 0, true, true).unwrap();
    let first = Transmit {
        ring,
        available: 0,
        event: 0,
        kick: false,
        left: FRAMES,
        looks: false,
        worker: Poll::Sleeps,
        taken: 0,
    };
    let states = explore(first, &[Transmit::send, Transmit::drain], &driver);
    assert!(states > 20, "{states}");
}
