// SPDX-License-Identifier: Apache-2.0
//! The sampling thread: reads every instrument each period, passes the readings to the sink, answers marks, and
//! measures its own cost.

use crate::clock::{Clock, thread_cpu};
use crate::{Instrument, ObserveError, Readings, SeriesId, Sink, Snapshot};
use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, SyncSender, channel, sync_channel};
use std::thread::JoinHandle;
use std::time::Duration;
use vtax_core::counter;
use vtax_core::owner::Owner;
use vtax_core::{Base, Hertz, Nanoseconds, Series, SeriesKind, Source, Unit};

/// The lowest and the highest sampling rate, in passes per second.
const RATES: (f64, f64) = (0.1, 50.0);

/// Two readings of the monotonic clock around one of the wall clock must be this close for the
/// wall clock's reading to be trusted: otherwise the thread was interrupted between them.
const LONGEST_READING: Nanoseconds = Nanoseconds(100_000);

/// The configuration of sampling.
#[derive(Debug, Clone, Copy)]
pub struct ObserverConfig {
    /// Passes per second; clamped to 0.1-50.
    pub rate: Hertz,
}

impl ObserverConfig {
    /// Time from one pass to the next.
    // Between 0.02 and 10 seconds after clamping.
    fn period(self) -> Nanoseconds {
        let (slowest, fastest) = RATES;
        // `max` replaces NaN by the slowest rate; `clamp` would keep it.
        let rate = self.rate.0.max(slowest).min(fastest);
        Nanoseconds((1e9 / rate) as u64)
    }
}

/// Statistics and cost of the sampling.
#[derive(Debug, Clone, Default)]
pub struct ObserverReport {
    /// CPU time of the sampling thread.
    pub cpu: Nanoseconds,
    /// Passes taken, marks included.
    pub passes: u64,
    /// Passes that were due but skipped because an earlier pass took too long or the host stalled.
    pub missed: u64,
    /// The longest time between two passes.
    pub longest_gap: Nanoseconds,
    /// The movement of the wall clock relative to the monotonic clock: a step if over a millisecond.
    pub wall_clock_step: Nanoseconds,
    /// Failures by instrument: name, count, first message.
    pub failures: Vec<(String, u64, String)>,
}

/// A running sampling thread. Dropping it stops the thread and discards its report.
#[derive(Debug)]
pub struct Observer {
    requests: Sender<Request>,
    thread: Option<JoinHandle<Result<ObserverReport, ObserveError>>>,
}

enum Request {
    Mark(SyncSender<Snapshot>),
    Latest(SyncSender<Option<Snapshot>>),
    Stop,
}

impl Observer {
    /// Starts sampling: the first pass is taken immediately, the others at whole periods after it.
    ///
    /// # Errors
    /// When the thread cannot be started.
    pub fn start(
        config: ObserverConfig,
        clock: Arc<dyn Clock>,
        instruments: Vec<Box<dyn Instrument>>,
        sink: Box<dyn Sink>,
    ) -> Result<Self, ObserveError> {
        let (requests, inbox) = channel();
        let thread = std::thread::Builder::new()
            .name("vtax-observer".to_owned())
            .spawn(move || Sampler::new(clock, instruments, sink).run(config.period(), &inbox))
            .map_err(|cause| ObserveError::Stopped(format!("it could not be started: {cause}")))?;
        Ok(Self {
            requests,
            thread: Some(thread),
        })
    }

    /// Takes a pass immediately and returns it; it is also recorded. The times of the periodic passes do not change.
    ///
    /// # Errors
    /// When the thread has stopped.
    pub fn mark(&self) -> Result<Snapshot, ObserveError> {
        self.ask(Request::Mark)
    }

    /// Returns the readings of the last pass without a new reading; `None` before the first pass.
    ///
    /// # Errors
    /// When the thread has stopped.
    pub fn latest(&self) -> Result<Option<Snapshot>, ObserveError> {
        self.ask(Request::Latest)
    }

    /// Sends a request to the thread and waits for the response.
    fn ask<T>(&self, request: impl FnOnce(SyncSender<T>) -> Request) -> Result<T, ObserveError> {
        let stopped = || ObserveError::Stopped("stop the observer to see why".to_owned());
        let (reply, answer) = sync_channel(1);
        self.requests.send(request(reply)).map_err(|_| stopped())?;
        answer.recv().map_err(|_| stopped())
    }

    /// Ends sampling, finishes the sink and returns the report.
    ///
    /// # Errors
    /// When the sink failed at any time.
    pub fn stop(mut self) -> Result<ObserverReport, ObserveError> {
        self.join()
            .unwrap_or_else(|| Err(ObserveError::Stopped("it was stopped before".to_owned())))
    }

    fn join(&mut self) -> Option<Result<ObserverReport, ObserveError>> {
        let thread = self.thread.take()?;
        // A thread that has already ended needs no request.
        let _ = self.requests.send(Request::Stop);
        Some(
            thread.join().unwrap_or_else(|_| {
                Err(ObserveError::Stopped("an instrument panicked".to_owned()))
            }),
        )
    }
}

impl Drop for Observer {
    fn drop(&mut self) {
        self.join();
    }
}

/// The state of the sampling thread.
struct Sampler {
    clock: Arc<dyn Clock>,
    instruments: Vec<Box<dyn Instrument>>,
    sink: Box<dyn Sink>,
    readings: Readings,
    own_cpu: SeriesId,
    cpu_at_start: Nanoseconds,
    last_pass: Option<Nanoseconds>,
    wall_offset: Option<i128>,
    failures: Vec<Option<(u64, String)>>,
    report: ObserverReport,
}

impl Sampler {
    fn new(
        clock: Arc<dyn Clock>,
        instruments: Vec<Box<dyn Instrument>>,
        sink: Box<dyn Sink>,
    ) -> Self {
        let mut readings = Readings::default();
        let own_cpu = readings.register(Series {
            owner: Owner::Observer,
            metric: counter::CPU_TOTAL.to_owned(),
            unit: Unit::from_base(Base::Nanosecond),
            kind: SeriesKind::Counter,
            source: Source::Measured,
        });
        Self {
            clock,
            failures: instruments.iter().map(|_| None).collect(),
            instruments,
            sink,
            readings,
            own_cpu,
            cpu_at_start: thread_cpu(),
            last_pass: None,
            wall_offset: None,
            report: ObserverReport::default(),
        }
    }

    fn run(
        mut self,
        period: Nanoseconds,
        inbox: &Receiver<Request>,
    ) -> Result<ObserverReport, ObserveError> {
        let sampled = self.sample(period, inbox);
        // Also after a failure, so that the stored data stays readable.
        let finished = self.sink.finish();
        sampled
            .and(finished)
            .map_err(|cause| ObserveError::Sink { cause })?;
        self.report.cpu = thread_cpu().saturating_since(self.cpu_at_start);
        self.report.failures = self
            .instruments
            .iter()
            .zip(self.failures)
            .filter_map(|(instrument, failure)| {
                let (count, message) = failure?;
                Some((instrument.name().to_owned(), count, message))
            })
            .collect();
        Ok(self.report)
    }

    /// Takes passes at absolute deadlines, so that the duration of a pass does not accumulate.
    fn sample(&mut self, period: Nanoseconds, inbox: &Receiver<Request>) -> io::Result<()> {
        let mut deadline = self.clock.now();
        loop {
            let now = self.clock.now();
            if now >= deadline {
                self.pass()?;
                deadline += period;
                let now = self.clock.now();
                if now >= deadline {
                    let missed = now.saturating_since(deadline).0 / period.0.max(1) + 1;
                    self.report.missed += missed;
                    deadline += Nanoseconds(period.0.saturating_mul(missed));
                }
                continue;
            }
            match inbox.recv_timeout(Duration::from(deadline.saturating_since(now))) {
                Ok(Request::Mark(reply)) => {
                    let at = self.pass()?;
                    // The requester may have stopped waiting; the pass is recorded in any case.
                    let _ = reply.send(Snapshot::from_readings(at, &self.readings));
                }
                Ok(Request::Latest(reply)) => {
                    let latest = self
                        .last_pass
                        .map(|at| Snapshot::from_readings(at, &self.readings));
                    let _ = reply.send(latest);
                }
                Err(RecvTimeoutError::Timeout) => {}
                Ok(Request::Stop) | Err(RecvTimeoutError::Disconnected) => return Ok(()),
            }
        }
    }

    /// Reads every instrument once and stores the readings.
    fn pass(&mut self) -> io::Result<Nanoseconds> {
        let at = self.clock.now();
        self.note_time(at);
        self.readings.clear_values();
        for (instrument, failure) in self.instruments.iter_mut().zip(&mut self.failures) {
            if let Err(error) = instrument.read(at, &mut self.readings) {
                let (count, _) = failure.get_or_insert_with(|| (0, error.to_string()));
                *count += 1;
            }
        }
        let own = thread_cpu().saturating_since(self.cpu_at_start);
        self.readings.record(self.own_cpu, own.0 as f64);
        self.report.passes += 1;
        for (id, series, value) in self.readings.values() {
            self.sink.record(id, series, at, value)?;
        }
        Ok(at)
    }

    /// Records gaps and steps of the wall clock.
    fn note_time(&mut self, at: Nanoseconds) {
        if let Some(last) = self.last_pass.replace(at) {
            let gap = at.saturating_since(last);
            self.report.longest_gap = self.report.longest_gap.max(gap);
        }
        let wall = self.clock.wall();
        if self.clock.now().saturating_since(at) > LONGEST_READING {
            return;
        }
        let offset = i128::from(wall.0) - i128::from(at.0);
        let first = *self.wall_offset.get_or_insert(offset);
        let moved = u64::try_from((offset - first).unsigned_abs()).unwrap_or(u64::MAX);
        self.report.wall_clock_step = self.report.wall_clock_step.max(Nanoseconds(moved));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::SystemClock;
    use std::sync::Mutex;
    use std::sync::atomic::{AtomicU64, Ordering};

    /// A clock that only a test or an instrument advances.
    #[derive(Default)]
    struct ManualClock {
        now: AtomicU64,
        wall: AtomicU64,
    }

    impl ManualClock {
        fn advance(&self, by: Nanoseconds) {
            self.now.fetch_add(by.0, Ordering::SeqCst);
            self.wall.fetch_add(by.0, Ordering::SeqCst);
        }
    }

    impl Clock for ManualClock {
        fn now(&self) -> Nanoseconds {
            Nanoseconds(self.now.load(Ordering::SeqCst))
        }
        fn wall(&self) -> Nanoseconds {
            Nanoseconds(self.wall.load(Ordering::SeqCst))
        }
    }

    /// An instrument that counts its readings and runs a test's code at each.
    struct Counting {
        column: Option<SeriesId>,
        reads: u64,
        at_read: Box<dyn FnMut(u64) -> Result<(), ObserveError> + Send>,
    }

    impl Counting {
        fn new(at_read: impl FnMut(u64) -> Result<(), ObserveError> + Send + 'static) -> Box<Self> {
            Box::new(Self {
                column: None,
                reads: 0,
                at_read: Box::new(at_read),
            })
        }
    }

    impl Instrument for Counting {
        fn name(&self) -> &str {
            "counting"
        }
        fn read(&mut self, _now: Nanoseconds, into: &mut Readings) -> Result<(), ObserveError> {
            self.reads += 1;
            let id = *self.column.get_or_insert_with(|| {
                into.register(Series {
                    owner: Owner::named("test"),
                    metric: "reads".to_owned(),
                    unit: Unit::from_base(Base::One),
                    kind: SeriesKind::Counter,
                    source: Source::Measured,
                })
            });
            (self.at_read)(self.reads)?;
            into.record(id, self.reads as f64);
            Ok(())
        }
    }

    #[derive(Clone, Default)]
    struct RecordingSink {
        records: Arc<Mutex<Vec<(String, Nanoseconds, f64)>>>,
        finished: Arc<AtomicU64>,
        full_after: Option<usize>,
    }

    impl Sink for RecordingSink {
        fn record(
            &mut self,
            _id: SeriesId,
            series: &Series,
            at: Nanoseconds,
            value: f64,
        ) -> io::Result<()> {
            let mut records = self.records.lock().unwrap();
            if self.full_after.is_some_and(|limit| records.len() >= limit) {
                return Err(io::Error::from(io::ErrorKind::StorageFull));
            }
            records.push((format!("{}.{}", series.owner, series.metric), at, value));
            Ok(())
        }
        fn finish(&mut self) -> io::Result<()> {
            self.finished.fetch_add(1, Ordering::SeqCst);
            Ok(())
        }
    }

    fn config(rate: f64) -> ObserverConfig {
        ObserverConfig { rate: Hertz(rate) }
    }

    fn system_clock() -> Arc<dyn Clock> {
        Arc::new(SystemClock)
    }

    #[test]
    fn rates_are_clamped_and_nonsense_becomes_the_slowest() {
        assert_eq!(config(1e9).period(), Nanoseconds(20_000_000));
        assert_eq!(config(1.0).period(), Nanoseconds(1_000_000_000));
        for rate in [0.0, -3.0, f64::NAN, f64::NEG_INFINITY] {
            assert_eq!(config(rate).period(), Nanoseconds(10_000_000_000), "{rate}");
        }
    }

    #[test]
    fn a_mark_is_served_at_once_and_recorded_like_every_pass() {
        let kept = RecordingSink::default();
        let instruments: Vec<Box<dyn Instrument>> = vec![Counting::new(|_| Ok(()))];
        let sink = Box::new(kept.clone());
        let observer = Observer::start(config(0.1), system_clock(), instruments, sink).unwrap();
        let first = observer.mark().unwrap();
        let second = observer.mark().unwrap();
        let step = second
            .since(&first, &Owner::named("test"), "reads")
            .unwrap();
        assert_eq!(step.value, 1.0);
        assert!(second.at > first.at);
        let latest = observer.latest().unwrap().unwrap();
        assert_eq!(latest.at, second.at, "nothing is read for it");
        assert_eq!(
            latest.get(&Owner::named("test"), "reads"),
            second.get(&Owner::named("test"), "reads")
        );
        let report = observer.stop().unwrap();
        assert_eq!(
            report.passes, 3,
            "the first pass of the period and two marks"
        );
        assert_eq!(report.missed, 0);
        assert!(report.cpu.0 > 0);
        let records = kept.records.lock().unwrap();
        let marked = |at| {
            records
                .iter()
                .any(|(series, time, _)| series == "test.reads" && *time == at)
        };
        assert!(marked(first.at) && marked(second.at));
        let own = records
            .iter()
            .filter(|(series, ..)| series == "vtax.cpu.total_ns")
            .count();
        assert_eq!(own, 3, "the observer's own cost is a series too");
        assert_eq!(kept.finished.load(Ordering::SeqCst), 1);
    }

    #[test]
    fn passes_come_periodically_without_marks() {
        let (passed, passes) = channel();
        let counting = Counting::new(move |_| {
            let _ = passed.send(());
            Ok(())
        });
        let sink = Box::new(RecordingSink::default());
        let observer = Observer::start(config(50.0), system_clock(), vec![counting], sink).unwrap();
        for _ in 0..5 {
            passes.recv_timeout(Duration::from_secs(60)).unwrap();
        }
        assert!(observer.stop().unwrap().passes >= 5);
    }

    #[test]
    fn a_failing_instrument_is_counted_and_the_others_go_on() {
        let failing = Counting::new(|read| Err(ObserveError::Stopped(format!("broken {read}"))));
        let kept = RecordingSink::default();
        let instruments: Vec<Box<dyn Instrument>> = vec![failing, Counting::new(|_| Ok(()))];
        let observer = Observer::start(
            config(0.1),
            system_clock(),
            instruments,
            Box::new(kept.clone()),
        )
        .unwrap();
        observer.mark().unwrap();
        observer.mark().unwrap();
        let report = observer.stop().unwrap();
        let [(name, count, message)] = report.failures.as_slice() else {
            panic!("{:?}", report.failures);
        };
        assert_eq!((name.as_str(), *count), ("counting", 3));
        assert!(
            message.contains("broken 1"),
            "the first message is kept: {message}"
        );
        let good = kept.records.lock().unwrap();
        assert_eq!(
            good.iter()
                .filter(|(series, ..)| series == "test.reads")
                .count(),
            3
        );
    }

    #[test]
    fn a_full_disk_stops_sampling_and_surfaces_in_stop() {
        let kept = RecordingSink {
            full_after: Some(3),
            ..RecordingSink::default()
        };
        let instruments: Vec<Box<dyn Instrument>> = vec![Counting::new(|_| Ok(()))];
        let observer = Observer::start(
            config(50.0),
            system_clock(),
            instruments,
            Box::new(kept.clone()),
        )
        .unwrap();
        while observer.mark().is_ok() {}
        let error = observer.stop().unwrap_err();
        assert!(
            error.to_string().contains("cannot store the samples"),
            "{error}"
        );
        assert_eq!(
            kept.finished.load(Ordering::SeqCst),
            1,
            "what is stored is closed properly"
        );
    }

    #[test]
    fn passes_that_take_longer_than_a_period_are_counted_as_missed_and_as_a_gap() {
        let clock = Arc::new(ManualClock::default());
        let slow = {
            let clock = Arc::clone(&clock);
            Counting::new(move |read| {
                // The first pass takes three and a half periods of 20 ms.
                if read == 1 {
                    clock.advance(Nanoseconds(70_000_000));
                }
                Ok(())
            })
        };
        let sink = Box::new(RecordingSink::default());
        let observer = Observer::start(config(50.0), clock.clone(), vec![slow], sink).unwrap();
        observer.mark().unwrap();
        let report = observer.stop().unwrap();
        assert_eq!(report.missed, 3);
        assert_eq!(report.longest_gap, Nanoseconds(70_000_000));
    }

    #[test]
    fn a_step_of_the_wall_clock_is_reported_in_either_direction() {
        let clock = Arc::new(ManualClock::default());
        clock.wall.store(1_000_000_000_000, Ordering::SeqCst);
        let sink = Box::new(RecordingSink::default());
        let observer = Observer::start(config(0.1), clock.clone(), Vec::new(), sink).unwrap();
        observer.mark().unwrap();
        clock.wall.fetch_sub(5_000_000_000, Ordering::SeqCst);
        observer.mark().unwrap();
        let report = observer.stop().unwrap();
        assert_eq!(report.wall_clock_step, Nanoseconds(5_000_000_000));
    }

    #[test]
    fn an_observer_that_is_dropped_leaves_no_thread_and_finishes_its_sink() {
        let kept = RecordingSink::default();
        let observer = Observer::start(
            config(1.0),
            system_clock(),
            Vec::new(),
            Box::new(kept.clone()),
        )
        .unwrap();
        drop(observer);
        assert_eq!(kept.finished.load(Ordering::SeqCst), 1);
    }
}
