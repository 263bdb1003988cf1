// SPDX-License-Identifier: Apache-2.0
//! Time of processors in soft interrupts, and the tasks in whose context it was spent, by samples of perf's `cpu-clock`
//! at times that are independent of the kernel's tick.
//!
//! The tick's own samples (`softirq` of `/proc/stat`) are correct on average only for work that arrives at random. The
//! work of a program with a period of a millisecond always falls at the same phase of the tick, which then finds it
//! always or never. The period of these samples is drawn again for each interval.
//!
//! A sample counts as a soft interrupt if its call chain contains `handle_softirqs` (`__do_softirq` before Linux 6.9).
//! perf must be allowed to sample kernels (CAP_PERFMON), and `/proc/kallsyms` to show addresses (kptr_restrict).

use super::event_group::{check, explain};
use crate::ObserveError;
use perf_event_open_sys as perf;
use perf_event_open_sys::bindings as abi;
use std::collections::HashMap;
use std::io;
use std::ops::Range;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::path::Path;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;
use vtax_core::Nanoseconds;
use vtax_kernel::KernelFile;
use vtax_kernel::text;

const WHAT: &str = "sampling of soft interrupts (perf)";

/// The functions that run soft interrupts, and the functions that these call, with the kind of work of each. Includes
/// all names that changed between kernel versions.
const FUNCTIONS: [(&[u8], Option<Work>); 15] = [
    (b"handle_softirqs", None),
    (b"__do_softirq", None),
    (b"net_rx_action", Some(Work::Network)),
    (b"net_tx_action", Some(Work::Network)),
    (b"blk_done_softirq", Some(Work::Block)),
    (b"irq_poll_softirq", Some(Work::Block)),
    (b"run_timer_softirq", Some(Work::Other)),
    (b"hrtimer_run_softirq", Some(Work::Other)),
    (b"rcu_core_si", Some(Work::Other)),
    (b"rcu_core", Some(Work::Other)),
    (b"rcu_process_callbacks", Some(Work::Other)),
    (b"sched_balance_softirq", Some(Work::Other)),
    (b"run_rebalance_domains", Some(Work::Other)),
    (b"tasklet_action", Some(Work::Other)),
    (b"tasklet_hi_action", Some(Work::Other)),
];

/// The largest ratio of due samples to taken samples at which the clocks are trusted.
const MOST_MISSING: f64 = 1.5;

/// The kind of work of a soft interrupt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Work {
    /// Packets.
    Network,
    /// Completions of block requests.
    Block,
    /// Timers, scheduler, RCU, tasklets.
    Other,
}

/// The addresses of a function and its kind of work; `None` if it runs soft interrupts.
type Function = (Range<u64>, Option<Work>);

/// The shortest period in nanoseconds, on average: 250 samples a second of each processor.
const PERIOD: u64 = 4_000_000;

/// The approximate size in bytes of a sample with its call chain.
const SAMPLE: u64 = 320;

/// The size in bytes of the buffers for the samples of an interval: for each processor, and for all.
const RING: usize = 512 << 10;
const RINGS: usize = 32 << 20;

/// Samples of all processors.
pub struct ClockSamples {
    rings: Vec<Ring>,
    functions: Vec<Function>,
    period: u64,
    /// The time since which samples are taken.
    began: Option<Instant>,
    lot: u64,
    buffer: Vec<u8>,
}

/// Time in soft interrupts in one interval.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Sampled {
    /// Nanoseconds by the process in whose context they were spent (0 is the idle task), and by kind of work.
    pub time: HashMap<(u32, Work), f64>,
    /// The time that one sample counts for, in nanoseconds.
    pub period: f64,
}

impl ClockSamples {
    /// Opens an event on each online processor; none is started.
    pub fn open(proc: &Path) -> Result<Self, ObserveError> {
        let functions = functions(KernelFile::open(proc.join("kallsyms"))?.read()?);
        if functions.is_empty() {
            return Err(ObserveError::unavailable(
                WHAT,
                "/proc/kallsyms shows no address of handle_softirqs; run as root, with \
                 sysctl kernel.kptr_restrict at 1 or lower",
            ));
        }
        let mut stat = KernelFile::open_one_piece(proc.join("stat"))?;
        let processors: Vec<u32> = text::lines(stat.read()?)
            .filter_map(|line| text::small(text::fields(line).next()?.strip_prefix(b"cpu")?))
            .collect();
        let bytes = RINGS / processors.len().max(1);
        // A power of two of pages, and at least 16 pages for any number of processors.
        let bytes = bytes.clamp(64 << 10, RING);
        let bytes = bytes.next_power_of_two() >> usize::from(!bytes.is_power_of_two());
        let rings = processors
            .iter()
            .map(|processor| Ring::open(*processor, bytes));
        let rings: Vec<Ring> = rings
            .collect::<io::Result<_>>()
            .map_err(|cause| explain(WHAT, &cause))?;
        Ok(Self {
            rings,
            functions,
            period: PERIOD,
            began: None,
            lot: crate::clock::process_cpu().0 ^ u64::from(std::process::id()),
            buffer: Vec::new(),
        })
    }

    /// The number of processors that are sampled.
    pub fn processors(&self) -> usize {
        self.rings.len()
    }

    /// The samples since the last call, `span` ago. `None` if sampling began since then. Sampling continues after the
    /// call if `goes_on`: each sample wakes an idle processor.
    pub fn read(&mut self, span: Nanoseconds, goes_on: bool) -> Option<Sampled> {
        let mut found = Parsed::default();
        for ring in &mut self.rings {
            self.buffer.clear();
            ring.drain(&mut self.buffer);
            parse(&self.buffer, &self.functions, &mut found);
        }
        let processors = self.rings.len() as f64;
        let sampled = self.began.take().map(|began| {
            let due = began.elapsed().as_nanos() as f64 / self.period as f64 * processors;
            found.sampled(self.period, due)
        });
        if goes_on {
            self.draw(span);
        }
        self.began = goes_on.then(Instant::now);
        for ring in &self.rings {
            // A processor that went offline has no samples in either case.
            let _ = ring.set(goes_on.then_some(self.period));
        }
        sampled
    }

    /// Draws the next interval's period: between 3/4 and 5/4 of the mean, which is as short as the buffers allow.
    fn draw(&mut self, span: Nanoseconds) {
        let room = self.rings.first().map_or(1, |ring| ring.bytes as u64) / SAMPLE / 2;
        let mean = PERIOD.max(span.0 / room.max(1));
        // A linear congruential generator (Knuth's MMIX).
        self.lot = self
            .lot
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        let share = (self.lot >> 33) % 1_000_003;
        self.period = mean / 4 * 3 + (u128::from(mean / 2) * u128::from(share) / 1_000_003) as u64;
    }
}

/// The content of the records.
#[derive(Debug, Default, PartialEq)]
struct Parsed {
    /// By process; the work is `None` between two soft interrupts, before the first and after the last.
    hits: HashMap<(u32, Option<Work>), u64>,
    /// The number of all samples, including those outside soft interrupts.
    samples: u64,
    lost: u64,
}

impl Parsed {
    /// Missing samples are assumed to be distributed like the others: the buffer was full, or the hypervisor below ran
    /// another guest when they were due.
    fn sampled(self, period: u64, due: f64) -> Sampled {
        let taken = self.samples.max(1) as f64;
        let all = (taken + self.lost as f64).max(due.min(taken * MOST_MISSING)) / taken;
        let period = period as f64 * all;
        let mut time: HashMap<(u32, Work), f64> = HashMap::new();
        let mut between = Vec::new();
        for ((process, work), hits) in self.hits {
            match work {
                Some(work) => *time.entry((process, work)).or_default() += hits as f64 * period,
                None => between.push((process, hits as f64 * period)),
            }
        }
        // Counted as the other work that ran there.
        for (process, more) in between {
            let works = [Work::Network, Work::Block, Work::Other].map(|work| (process, work));
            let known = works.map(|key| time.get(&key).copied().unwrap_or(0.0));
            let sum: f64 = known.iter().sum();
            for (key, known) in works.into_iter().zip(known) {
                let share = match sum > 0.0 {
                    true => known / sum,
                    false if key.1 == Work::Other => 1.0,
                    false => 0.0,
                };
                if share > 0.0 {
                    *time.entry(key).or_default() += more * share;
                }
            }
        }
        Sampled { time, period }
    }
}

/// The addresses of the functions, from the kernel's list of symbols. Empty where the list shows no addresses.
fn functions(symbols: &[u8]) -> Vec<Function> {
    let symbol = |line| {
        let mut fields = text::fields(line);
        let address = std::str::from_utf8(fields.next()?).ok()?;
        let address = u64::from_str_radix(address, 16).ok()?;
        Some((address, fields.next()?, fields.next()?))
    };
    let mut starts = Vec::new();
    let mut found = Vec::new();
    for (address, kind, name) in text::lines(symbols).filter_map(symbol) {
        starts.push(address);
        let is_code = address != 0 && kind.eq_ignore_ascii_case(b"t");
        if let Some(work) = is_code.then(|| wanted(name)).flatten() {
            found.push((address, work));
        }
    }
    if found.iter().all(|(_, work)| work.is_some()) {
        return Vec::new();
    }
    starts.sort_unstable();
    let end = |start: u64| {
        let next = starts.partition_point(|other| *other <= start);
        starts.get(next).copied()
    };
    let of = |(start, work)| Some((start..end(start)?, work));
    found.into_iter().filter_map(of).collect()
}

/// The kind of work of a function with this name, if it is one of [`FUNCTIONS`] or a variant of one that a compiler
/// made.
fn wanted(name: &[u8]) -> Option<Option<Work>> {
    let is_it = |function: &[u8]| {
        let rest = name.strip_prefix(function);
        rest.is_some_and(|rest| {
            rest.is_empty() || rest.starts_with(b".isra.") || rest.starts_with(b".constprop.")
        })
    };
    let is_cold = name.ends_with(b".cold");
    let mut functions = FUNCTIONS.into_iter();
    functions.find_map(|(function, work)| (!is_cold && is_it(function)).then_some(work))
}

/// Parses records (`struct perf_event_header` and its payload, as described in perf_event_open(2)). A truncated record
/// ends the parsing.
fn parse(mut records: &[u8], functions: &[Function], into: &mut Parsed) {
    let word = |bytes: &[u8], at: usize| {
        let bytes = bytes.get(at..at.checked_add(8)?)?;
        Some(u64::from_ne_bytes(bytes.try_into().ok()?))
    };
    while let Some(header) = word(records, 0) {
        let [kind @ .., _, _, low, high] = header.to_ne_bytes();
        let kind = u32::from_ne_bytes(kind);
        let size = usize::from(u16::from_ne_bytes([low, high]));
        if size < 8 {
            return;
        }
        let Some((record, rest)) = records.split_at_checked(size) else {
            return;
        };
        records = rest;
        if kind == abi::PERF_RECORD_LOST {
            into.lost += word(record, 16).unwrap_or(0);
        }
        if kind != abi::PERF_RECORD_SAMPLE {
            continue;
        }
        // The process and the thread, then the call chain: the number of addresses, and each address.
        let (Some(process), Some(count)) = (word(record, 8), word(record, 16)) else {
            continue;
        };
        into.samples += 1;
        let [a, b, c, d, ..] = process.to_ne_bytes();
        let process = u32::from_ne_bytes([a, b, c, d]);
        let count = usize::try_from(count).unwrap_or(0);
        let addresses =
            (0..count).map_while(|index| word(record, index.checked_mul(8)?.checked_add(24)?));
        let (mut is_softirq, mut found) = (false, None);
        for address in addresses {
            for (_, work) in functions
                .iter()
                .filter(|(function, _)| function.contains(&address))
            {
                is_softirq |= work.is_none();
                found = work.or(found);
            }
        }
        if is_softirq {
            *into.hits.entry((process, found)).or_default() += 1;
        }
    }
}

/// The event of one processor, and the memory to which the kernel writes its samples.
struct Ring {
    event: OwnedFd,
    /// One page of positions, then `bytes` of records.
    memory: NonNull<u8>,
    page: usize,
    bytes: usize,
}

// SAFETY: the memory belongs to this value alone; only `drain` reads it, through `&mut self`.
unsafe impl Send for Ring {}

impl Ring {
    fn open(processor: u32, bytes: usize) -> io::Result<Self> {
        let mut attributes = abi::perf_event_attr {
            type_: abi::PERF_TYPE_SOFTWARE,
            config: abi::PERF_COUNT_SW_CPU_CLOCK.into(),
            size: u32::try_from(size_of::<abi::perf_event_attr>()).map_err(io::Error::other)?,
            sample_type: (abi::PERF_SAMPLE_TID | abi::PERF_SAMPLE_CALLCHAIN).into(),
            ..Default::default()
        };
        attributes.__bindgen_anon_1.sample_period = PERIOD;
        attributes.set_disabled(1);
        attributes.set_exclude_callchain_user(1);
        let processor = i32::try_from(processor).map_err(io::Error::other)?;
        let flags = abi::PERF_FLAG_FD_CLOEXEC.into();
        // SAFETY: `attributes` is fully initialised (zero where not set) and its size says how large it is.
        let event =
            check(unsafe { perf::perf_event_open(&raw mut attributes, -1, processor, -1, flags) })?;
        // SAFETY: the call succeeded, so this is a new descriptor that nothing else owns.
        let event = unsafe { OwnedFd::from_raw_fd(event) };
        let page = rustix::param::page_size();
        // SAFETY: a new shared mapping at an address of the kernel's choice; no memory of this process is touched.
        let memory = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                page + bytes,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED,
                event.as_raw_fd(),
                0,
            )
        };
        if memory == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let memory = NonNull::new(memory.cast()).ok_or_else(|| io::Error::other("no memory"))?;
        Ok(Self {
            event,
            memory,
            page,
            bytes,
        })
    }

    /// Sets the sampling period, or stops sampling.
    fn set(&self, period: Option<u64>) -> io::Result<()> {
        let event = self.event.as_raw_fd();
        if let Some(mut period) = period {
            // The library's function passes the number itself instead of its address.
            // SAFETY: the descriptor is an open perf event; the kernel reads a number that lives.
            check(unsafe { libc::ioctl(event, abi::PERIOD as libc::Ioctl, &raw mut period) })?;
            // SAFETY: as above; this request takes a plain number.
            check(unsafe { perf::ioctls::ENABLE(event, 0) })?;
        } else {
            // SAFETY: as above.
            check(unsafe { perf::ioctls::DISABLE(event, 0) })?;
        }
        Ok(())
    }

    /// Takes all records that the kernel has completed.
    fn drain(&mut self, into: &mut Vec<u8>) {
        let positions: NonNull<abi::perf_event_mmap_page> = self.memory.cast();
        let positions = positions.as_ptr();
        // SAFETY: the mapping begins with this structure and lives as long as `self`; the kernel and this process
        // access both positions as atomic words alone.
        let (head, tail) = unsafe {
            (
                AtomicU64::from_ptr(&raw mut (*positions).data_head),
                AtomicU64::from_ptr(&raw mut (*positions).data_tail),
            )
        };
        let (from, to) = (tail.load(Ordering::Relaxed), head.load(Ordering::Acquire));
        let length = usize::try_from(to.wrapping_sub(from))
            .unwrap_or(0)
            .min(self.bytes);
        // `bytes` is a power of two, so that a position wraps consistently.
        let start = usize::try_from(from % self.bytes as u64).unwrap_or(0);
        let first = length.min(self.bytes - start);
        for (start, length) in [(start, first), (0, length - first)] {
            // SAFETY: within the `bytes` of records, which the kernel does not write to before `data_tail` passes them.
            let piece = unsafe {
                std::slice::from_raw_parts(self.memory.as_ptr().add(self.page + start), length)
            };
            into.extend_from_slice(piece);
        }
        tail.store(to, Ordering::Release);
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        // SAFETY: the mapping that `open` made, which nothing refers to any more.
        unsafe { libc::munmap(self.memory.as_ptr().cast(), self.page + self.bytes) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn sample(process: u32, chain: &[u64]) -> Vec<u8> {
        let size = u16::try_from(24 + chain.len() * 8).unwrap();
        let mut record = abi::PERF_RECORD_SAMPLE.to_ne_bytes().to_vec();
        record.extend([0, 0]);
        record.extend(size.to_ne_bytes());
        record.extend(process.to_ne_bytes());
        record.extend(process.to_ne_bytes());
        record.extend((chain.len() as u64).to_ne_bytes());
        chain
            .iter()
            .for_each(|address| record.extend(address.to_ne_bytes()));
        record
    }

    #[test]
    fn a_sample_counts_whose_call_chain_passes_a_function_that_runs_soft_interrupts() {
        let functions = [
            (100..200, None),
            (300..400, Some(Work::Network)),
            (400..500, Some(Work::Other)),
        ];
        let mut records = sample(7, &[900, 350, 150, 800]);
        records.extend(sample(7, &[900, 200]));
        // A process that handles packets itself is not in a soft interrupt.
        records.extend(sample(7, &[900, 300]));
        records.extend(sample(0, &[450, 100]));
        // A sample between two soft interrupts counts as the other work there.
        records.extend(sample(7, &[100]));
        let mut lost = abi::PERF_RECORD_LOST.to_ne_bytes().to_vec();
        lost.extend([0, 0, 24, 0]);
        lost.extend(1u64.to_ne_bytes());
        lost.extend(5u64.to_ne_bytes());
        records.extend(lost);
        let read = || {
            let mut found = Parsed::default();
            parse(&records, &functions, &mut found);
            found
        };
        let found = read();
        assert_eq!((found.samples, found.lost), (5, 5));
        let sampled = found.sampled(1000, 9.5);
        let expected = [((7, Work::Network), 4000.0), ((0, Work::Other), 2000.0)];
        assert_eq!(sampled.time, expected.into(), "as many were lost");
        let none_lost = |due: f64| Parsed { lost: 0, ..read() }.sampled(1000, due).period;
        assert_eq!(none_lost(4.9), 1000.0);
        assert_eq!(none_lost(6.0), 1200.0, "one was due that was not taken");
        assert_eq!(none_lost(400.0), 1500.0, "a clock that leapt");
    }

    #[test]
    fn a_function_ends_where_the_next_symbol_begins_and_hidden_addresses_are_none() {
        let symbols = b"0000000000000300 T other\n0000000000000100 t handle_softirqs\n\
            0000000000000050 t handle_softirqs.cold\n0000000000000180 D data\n\
            0000000000000200 t __do_softirq_x\n0000000000000280 t net_rx_action.isra.0\n";
        let expected = [(0x100..0x180, None), (0x280..0x300, Some(Work::Network))];
        assert_eq!(functions(symbols), expected);
        assert!(functions(b"0000000000000000 t handle_softirqs\n0 t x\n").is_empty());
        assert!(functions(b"0000000000000010 t net_rx_action\n20 t x\n").is_empty());
    }

    #[test]
    fn soft_interrupts_of_this_kernel_are_sampled_in_the_context_that_they_ran_in() {
        let mut samples = match ClockSamples::open(Path::new("/proc")) {
            Ok(samples) => samples,
            Err(error) => return eprintln!("SKIPPED: {error}"),
        };
        let second = Nanoseconds(1_000_000_000);
        assert_eq!(samples.read(second, true), None, "it begins");
        let receiver = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        let sender = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        sender.connect(receiver.local_addr().unwrap()).unwrap();
        let used = crate::clock::thread_cpu();
        let busy = Nanoseconds(600_000_000);
        while crate::clock::thread_cpu().saturating_since(used) < busy {
            let _ = sender.send(&[0; 64]);
        }
        let sampled = samples.read(second, false).unwrap();
        let own = sampled
            .time
            .get(&(std::process::id(), Work::Network))
            .copied()
            .unwrap_or(0.0);
        assert!(
            (0.02..1.0).contains(&(own / busy.0 as f64)),
            "{own} of {busy:?}"
        );
        assert_eq!(samples.read(second, false), None, "it has ended");
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_without_an_end_in_panic(bytes in prop::collection::vec(any::<u8>(), 0..600)) {
            let mut found = Parsed::default();
            parse(&bytes, &[(0..u64::MAX, None)], &mut found);
            prop_assert!(found.samples <= bytes.len() as u64 / 8);
            functions(&bytes);
        }
    }
}
