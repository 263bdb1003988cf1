// SPDX-License-Identifier: Apache-2.0
//! The canary: a fixed reference that runs natively beside trials, so that the speed of this host at that time is known.
//!
//! It has five parts of equal time: integer work, memory streaming, system calls, a pipe's ping-pong between two threads, and
//! packets to itself over the loopback device.

#[cfg(target_arch = "x86_64")]
mod code;

#[cfg(target_arch = "x86_64")]
pub use measure::{digest, read};
#[cfg(not(target_arch = "x86_64"))]
pub use unsupported::{digest, read};

use std::time::Duration;

/// The parts, in their order.
pub const PARTS: [&str; 5] = ["integer", "memory", "calls", "pipe", "packets"];

/// What one part did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Part {
    /// Its name, one of [`PARTS`].
    pub name: &'static str,
    /// The rounds of its loop.
    pub rounds: u64,
    /// The time that passed.
    pub wall: Duration,
    /// The processor time of the thread.
    pub cpu: Duration,
}

#[cfg(not(target_arch = "x86_64"))]
mod unsupported {
    use super::Part;
    use std::time::Duration;

    /// The digest of the instructions; `None`: there are none for this processor.
    pub fn digest() -> Option<String> {
        None
    }

    /// Reads the speed of this host: nothing on this processor.
    pub fn read(_length: Duration) -> Vec<Part> {
        Vec::new()
    }
}

#[cfg(target_arch = "x86_64")]
mod measure {
    use super::{PARTS, Part, code};
    use rustix::time::{ClockId, clock_gettime};
    use std::net::{Ipv4Addr, UdpSocket};
    use std::os::fd::AsFd;
    use std::sync::OnceLock;
    use std::time::{Duration, Instant};

    /// The memory that the streaming part reads, in words of eight bytes: 32 MiB.
    const WORDS: usize = (32 << 20) / 8;
    /// The words of one call: 1 MiB.
    const SLICE: usize = (1 << 20) / 8;
    /// It is kept, since to prepare it takes as long as a short reading.
    static MEMORY: OnceLock<Vec<u64>> = OnceLock::new();
    /// The bytes of a packet.
    const PACKET: usize = 64;
    /// The wait after which a packet is lost.
    const LOST: Duration = Duration::from_millis(100);
    /// The rounds of one call of each part: some tenths of a millisecond.
    const INTEGER: u32 = 50_000;
    const CALLS: u32 = 1_000;
    const EXCHANGES: u32 = 50;

    /// The digest of the instructions of the loops; `None` on a processor that has none.
    pub fn digest() -> Option<String> {
        Some(code::digest())
    }

    /// Runs the canary for about `length`, and returns what each part did. A part that cannot run, such as packets where
    /// the loopback device is down, is missing.
    pub fn read(length: Duration) -> Vec<Part> {
        let each = length / PARTS.len() as u32;
        let [integer, memory, calls, pipe, packets] = PARTS;
        let words = MEMORY.get_or_init(|| vec![1; WORDS]);
        let mut slices = words.chunks_exact(SLICE).cycle();
        let parts = [
            timed(integer, each, u64::from(INTEGER), || {
                code::integer(INTEGER);
                true
            }),
            timed(memory, each, (SLICE / 8) as u64, || {
                slices.next().map(code::memory).is_some()
            }),
            timed(calls, each, u64::from(CALLS), || {
                code::calls(CALLS);
                true
            }),
            exchange_by_pipe(pipe, each),
            exchange_packets(packets, each),
        ];
        parts.into_iter().flatten().collect()
    }

    /// Repeats a call of `rounds` rounds for a time; `None` where a call fails.
    fn timed(
        name: &'static str,
        length: Duration,
        rounds: u64,
        mut call: impl FnMut() -> bool,
    ) -> Option<Part> {
        let (began, cpu_began) = (Instant::now(), cpu_time());
        let mut done = 0;
        loop {
            if !call() {
                return None;
            }
            done += rounds;
            let wall = began.elapsed();
            if wall >= length {
                let cpu = cpu_time().saturating_sub(cpu_began);
                return Some(Part {
                    name,
                    rounds: done,
                    wall,
                    cpu,
                });
            }
        }
    }

    /// The processor time of this thread.
    fn cpu_time() -> Duration {
        let time = clock_gettime(ClockId::ThreadCPUTime);
        Duration::try_from(time).unwrap_or_default()
    }

    fn exchange_by_pipe(name: &'static str, length: Duration) -> Option<Part> {
        let (answered, question) = std::io::pipe().ok()?;
        let (answer, asked) = std::io::pipe().ok()?;
        std::thread::scope(|scope| {
            let answering = move || {
                code::answer(answered.as_fd(), asked.as_fd(), &mut [0]);
            };
            std::thread::Builder::new()
                .spawn_scoped(scope, answering)
                .ok()?;
            let found = timed(name, length, u64::from(EXCHANGES), || {
                code::exchange(question.as_fd(), answer.as_fd(), EXCHANGES, &mut [0])
            });
            // The other thread ends when its pipe is closed.
            drop(question);
            found
        })
    }

    fn exchange_packets(name: &'static str, length: Duration) -> Option<Part> {
        let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).ok()?;
        socket.connect(socket.local_addr().ok()?).ok()?;
        socket.set_read_timeout(Some(LOST)).ok()?;
        let mut packet = [0; PACKET];
        timed(name, length, u64::from(EXCHANGES), || {
            code::exchange(socket.as_fd(), socket.as_fd(), EXCHANGES, &mut packet)
        })
    }
}

#[cfg(all(test, target_arch = "x86_64"))]
mod tests {
    use super::*;

    #[test]
    fn the_instructions_are_the_same_for_ever() {
        let digest_of_all_versions =
            "347321168fa290e495735c87b29887c08d4c1b193d12249c02df8e22422df271";
        assert_eq!(digest().unwrap(), digest_of_all_versions);
    }

    #[test]
    fn each_part_counts_its_rounds_within_the_time() {
        let length = Duration::from_millis(50);
        let parts = read(length);
        // A sandbox may have no loopback device; everything else is there.
        let names: Vec<&str> = parts.iter().map(|part| part.name).collect();
        assert!(PARTS.starts_with(&names), "{names:?}");
        assert!(names.len() >= 4, "{names:?}");
        for part in parts {
            assert!(part.rounds > 0, "{part:?}");
            assert!(part.wall >= length / 5, "{part:?}");
            assert!(
                part.cpu > Duration::ZERO && part.cpu <= part.wall * 2,
                "{part:?}"
            );
        }
    }
}
