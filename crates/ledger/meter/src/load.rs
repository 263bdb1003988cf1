// SPDX-License-Identifier: Apache-2.0
//! A load generator: threads that keep every processor busy for a set share of the time.

use rustix::thread::{CpuSet, sched_setaffinity};
use std::hint::black_box;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// A load whose busy share can be set.
pub trait Load {
    /// Sets the busy share of all processors' time, 0 to 1.
    fn set(&mut self, share: f64);
}

/// The length of one duty cycle: short against a meter's averaging, long against a scheduler's tick.
const CYCLE: Duration = Duration::from_millis(20);

/// Threads that end when this value is dropped. Each ends its work when [`Threads::stop`] is set, and may park.
#[derive(Debug, Default)]
pub(super) struct Threads {
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl Threads {
    /// Whether the threads are to end.
    pub(super) fn stop(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.stop)
    }

    pub(super) fn start(
        &mut self,
        name: String,
        work: impl FnOnce() + Send + 'static,
    ) -> io::Result<()> {
        let thread = thread::Builder::new().name(name).spawn(work)?;
        self.threads.push(thread);
        Ok(())
    }
}

impl Drop for Threads {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            thread.thread().unpark();
            // Fails only if the thread panicked.
            let _ = thread.join();
        }
    }
}

/// Threads that are busy for a share of every cycle, one pinned to each processor that this process may use. They end
/// when the value is dropped.
#[derive(Debug)]
pub struct BusyLoad {
    shared: Arc<Shared>,
    threads: Threads,
}

#[derive(Debug, Default)]
struct Shared {
    /// The busy share of a cycle, in millionths.
    share: AtomicU64,
    rounds: AtomicU64,
}

impl BusyLoad {
    /// Starts the threads, at rest.
    ///
    /// # Errors
    /// When the processors cannot be listed or a thread cannot be started.
    pub fn start() -> io::Result<Self> {
        let allowed = rustix::thread::sched_getaffinity(None)?;
        let mut load = Self {
            shared: Arc::default(),
            threads: Threads::default(),
        };
        for cpu in (0..CpuSet::MAX_CPU).filter(|cpu| allowed.is_set(*cpu)) {
            let (shared, stop) = (Arc::clone(&load.shared), load.threads.stop());
            load.threads.start(format!("load {cpu}"), move || {
                let mut only = CpuSet::new();
                only.set(cpu);
                // Unpinned threads also spread over the processors, but less evenly.
                let _ = sched_setaffinity(None, &only);
                shared.work(&stop);
            })?;
        }
        Ok(load)
    }

    /// The number of threads, one per processor.
    pub fn threads(&self) -> usize {
        self.threads.threads.len()
    }
}

impl Shared {
    fn work(&self, stop: &AtomicBool) {
        let mut number = 1u64;
        while !stop.load(Ordering::Relaxed) {
            let start = Instant::now();
            let share = self.share.load(Ordering::Relaxed).min(1_000_000);
            let busy = Duration::from_nanos(share.saturating_mul(20));
            while start.elapsed() < busy {
                for _ in 0..1000 {
                    number = black_box(
                        number
                            .wrapping_mul(6_364_136_223_846_793_005)
                            .wrapping_add(1),
                    );
                }
                self.rounds.fetch_add(1, Ordering::Relaxed);
            }
            if let Some(rest) = CYCLE.checked_sub(start.elapsed()) {
                thread::park_timeout(rest);
            }
        }
    }
}

impl Load for BusyLoad {
    // Clamped to 0..=1e6.
    fn set(&mut self, share: f64) {
        let millionths = (share.clamp(0.0, 1.0) * 1e6) as u64;
        self.shared.share.store(millionths, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_load_works_on_request_and_ends_with_its_owner() {
        let mut load = BusyLoad::start().unwrap();
        assert_eq!(
            load.threads(),
            thread::available_parallelism().unwrap().get()
        );
        assert_eq!(
            load.shared.rounds.load(Ordering::Relaxed),
            0,
            "at rest until told"
        );
        load.set(0.5);
        while load.shared.rounds.load(Ordering::Relaxed) < 100 {
            thread::yield_now();
        }
        let shared = Arc::clone(&load.shared);
        drop(load);
        assert_eq!(Arc::strong_count(&shared), 1, "every thread has ended");
    }
}
