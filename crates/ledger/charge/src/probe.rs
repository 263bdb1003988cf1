// SPDX-License-Identifier: Apache-2.0
//! The BPF programs at the kernel's tracepoints that time each soft interrupt and key it by the network device, and so
//! by the owner, that it worked for (`bpf/charge.bpf.c`). They are loaded once and shared by all readers.

use super::bpf::{
    ENTRIES, LastValue, Wanted, advances, attach, entries_on, kernel_types, processors, take,
};
use aya::maps::{Array, MapData, PerCpuArray, PerCpuHashMap};
use aya::programs::{BtfTracePoint, FExit};
use aya::{Btf, Ebpf, EbpfLoader};
use std::collections::HashMap;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use vtax_observe::ObserveError;
use vtax_observe::bpf::{chain, explain};

/// Built by `build.sh` of vtax-observe.
static OBJECT: &[u8] = aya::include_bytes_aligned!("../bpf/charge.bpf.o");

/// Tracepoints that every kernel with BTF has.
const PROGRAMS: [&str; 6] = [
    "softirq_entry",
    "softirq_exit",
    "napi_poll",
    "netif_receive_skb",
    "net_dev_start_xmit",
    "block_rq_complete",
];

/// The tracepoint and the function at which BPF programs of other software redirect packets; of the function, the
/// return is probed. On a kernel that lacks one of the two, packets redirected there are charged to the host.
const XDP_REDIRECT: &str = "xdp_redirect";
const REDIRECT: &str = "skb_do_redirect";

const WHAT: &str = "tracing of soft interrupts (BPF)";

/// The number of soft interrupts for the network that are skipped for each one that is examined, at high rates.
pub(super) const MOST_OTHERS: u32 = 15;

/// The owner of a segment: `struct owner` of the BPF program.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Key {
    kind: u32,
    a: u32,
    b: u64,
}

/// `struct charge` of the BPF program.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
struct Charge {
    ns: u64,
    events: u64,
}

/// `struct device` of the BPF program.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct DeviceKey {
    pub(super) namespace: u32,
    pub(super) index: u32,
}

/// `struct holder` of the BPF program.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Holder {
    /// The cookie of the network namespace; 0 where it is not known.
    pub(super) cookie: u64,
    pub(super) guest: u32,
    padding: u32,
}

impl Holder {
    /// Creates the holder for a guest, in the namespace with this cookie.
    pub(super) fn new(guest: u32, cookie: Option<u64>) -> Self {
        Self {
            cookie: cookie.unwrap_or(0),
            guest,
            padding: 0,
        }
    }
}

/// `struct registration` of the BPF program.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
struct Registration {
    generation: u32,
    monitors: u32,
}

// SAFETY: `repr(C)`, integers only and no padding, so that any bytes are a value.
unsafe impl aya::Pod for Key {}
// SAFETY: as above.
unsafe impl aya::Pod for Registration {}
// SAFETY: as above.
unsafe impl aya::Pod for Holder {}
// SAFETY: as above.
unsafe impl aya::Pod for Charge {}
// SAFETY: as above.
unsafe impl aya::Pod for DeviceKey {}

// `enum kind` of the BPF program; every other value is a kind of soft interrupt.
const GUEST: u32 = 1;
const DEVICE: u32 = 2;
const BLOCK: u32 = 3;

// Contexts, as defined in the BPF program.
const IDLE: u64 = 0;
const KSOFTIRQD: u64 = 1 << 62;
const PROCESS: u64 = 1 << 63;

/// The programs, attached for the lifetime of this value, and their maps.
struct Probe {
    charges: PerCpuHashMap<MapData, Key, Charge>,
    contexts: PerCpuHashMap<MapData, u64, u64>,
    lost: PerCpuArray<MapData, u64>,
    devices: Wanted<DeviceKey, Holder>,
    monitors: Wanted<u32, u32>,
    registration: Array<MapData, Registration>,
    generation: u32,
    seen_charges: HashMap<Key, LastValue>,
    seen_contexts: HashMap<u64, LastValue>,
    seen_lost: u64,
    /// The results that each reader has not read yet.
    unread: Vec<Option<SoftirqTimes>>,
    entries: u32,
    /// The reason that redirected packets are not seen.
    unseen: Option<String>,
    /// Keeps the programs attached.
    _programs: Ebpf,
}

/// The beneficiary of a soft interrupt, as the programs identify it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Worked {
    /// An owner, by its number.
    Owner(u32),
    /// A device that is not registered with an owner.
    Device {
        key: DeviceKey,
        /// The low half of its namespace's cookie.
        cookie: u32,
    },
    /// A request for a disk (major << 20 | minor), from a control group.
    Block { disk: u32, group: u64 },
    /// None of these.
    Other,
}

/// The task that a soft interrupt interrupted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Interrupted {
    /// The idle task.
    Idle,
    /// A kernel thread for soft interrupts.
    Ksoftirqd,
    /// A process of a registered monitor, by the owner's number.
    Owner(u32),
    /// A task of a control group.
    Group(u64),
    /// A process that was a monitor and is no longer registered.
    Other,
}

/// The results of the programs since the last reading.
#[derive(Debug, Clone, Default)]
pub(super) struct SoftirqTimes {
    /// Soft interrupt time by beneficiary.
    pub(super) worked: HashMap<Worked, u64>,
    /// Soft interrupt time by interrupted task.
    pub(super) interrupted: HashMap<Interrupted, u64>,
    /// Time that found no free entry in the maps.
    pub(super) lost: u64,
}

impl SoftirqTimes {
    fn add(&mut self, other: &Self) {
        for (worked, ns) in &other.worked {
            *self.worked.entry(*worked).or_default() += ns;
        }
        for (interrupted, ns) in &other.interrupted {
            *self.interrupted.entry(*interrupted).or_default() += ns;
        }
        self.lost += other.lost;
    }
}

/// The programs, attached as long as any clone of this handle exists.
#[derive(Clone)]
pub(super) struct Programs(Arc<Mutex<Probe>>);

impl Programs {
    /// Loads and attaches the programs. `by_cpuacct`: control groups are those of v1's `cpuacct`, not v2's. For each
    /// examined soft interrupt for the network, at most `others` are skipped, a power of two less one.
    pub(super) fn open(sys: &Path, by_cpuacct: bool, others: u32) -> Result<Self, ObserveError> {
        Self::with_room(sys, by_cpuacct, others, ENTRIES)
    }

    fn with_room(
        sys: &Path,
        by_cpuacct: bool,
        others: u32,
        entries: u32,
    ) -> Result<Self, ObserveError> {
        let probe = Probe::open(sys, by_cpuacct, others, entries)?;
        Ok(Self(Arc::new(Mutex::new(probe))))
    }

    /// Creates a reader of all results from now on.
    pub(super) fn reader(&self) -> Reader {
        let mut probe = self.probe();
        let earlier = probe.read();
        probe.keep(&earlier);
        let free = probe.unread.iter().position(Option::is_none);
        let place = free.unwrap_or(probe.unread.len());
        if free.is_none() {
            probe.unread.push(None);
        }
        if let Some(unread) = probe.unread.get_mut(place) {
            *unread = Some(SoftirqTimes::default());
        }
        Reader {
            place,
            programs: self.clone(),
        }
    }

    /// Registers the owners of devices, and the processes that are monitors.
    pub(super) fn register(
        &self,
        devices: &HashMap<DeviceKey, Holder>,
        monitors: &HashMap<u32, u32>,
    ) {
        self.probe().register(devices, monitors);
    }

    /// The reason that redirected packets are not seen, if so.
    pub(super) fn unseen(&self) -> Option<String> {
        self.probe().unseen.clone()
    }

    /// Whether both are handles of the same programs.
    #[cfg(test)]
    pub(super) fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    fn probe(&self) -> MutexGuard<'_, Probe> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A reader of the programs' results.
pub(super) struct Reader {
    programs: Programs,
    place: usize,
}

impl Reader {
    /// The results since the last call.
    pub(super) fn read(&self) -> SoftirqTimes {
        let mut probe = self.programs.probe();
        let found = probe.read();
        probe.keep(&found);
        let unread = probe.unread.get_mut(self.place).and_then(Option::as_mut);
        unread.map(std::mem::take).unwrap_or_default()
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        if let Some(unread) = self.programs.probe().unread.get_mut(self.place) {
            *unread = None;
        }
    }
}

impl Probe {
    fn open(sys: &Path, by_cpuacct: bool, others: u32, entries: u32) -> Result<Self, ObserveError> {
        let btf = kernel_types(WHAT, sys)?;
        let by_cpuacct = u32::from(by_cpuacct);
        let processors = processors(WHAT)?;
        let entries = entries.min(entries_on(processors));
        let mut programs = EbpfLoader::new()
            .btf(Some(&btf))
            .set_global("accounted_by_cpuacct", &by_cpuacct, true)
            .set_global("most_others", &others, true)
            .set_max_entries("charges", entries)
            .set_max_entries("contexts", entries)
            .load(OBJECT)
            .map_err(|error| explain(WHAT, &error))?;
        attach(WHAT, &mut programs, &PROGRAMS, &btf)?;
        let unseen = attach_to_redirects(&mut programs, &btf);
        Ok(Self {
            charges: take(WHAT, &mut programs, "charges")?,
            contexts: take(WHAT, &mut programs, "contexts")?,
            lost: take(WHAT, &mut programs, "lost")?,
            devices: Wanted::new(take(WHAT, &mut programs, "devices")?),
            monitors: Wanted::new(take(WHAT, &mut programs, "vmms")?),
            registration: take(WHAT, &mut programs, "registration")?,
            generation: 0,
            seen_charges: HashMap::new(),
            seen_contexts: HashMap::new(),
            seen_lost: 0,
            unread: Vec::new(),
            entries,
            unseen,
            _programs: programs,
        })
    }

    /// Registers the owners of devices, and the thread groups that are VMs.
    fn register(&mut self, devices: &HashMap<DeviceKey, Holder>, monitors: &HashMap<u32, u32>) {
        self.devices.set(devices);
        self.monitors.set(monitors);
        // The generation changes each time: a device may have been created again in place of a registered one.
        self.generation = self.generation.wrapping_add(1);
        let registration = Registration {
            generation: self.generation,
            monitors: u32::try_from(monitors.len()).unwrap_or(u32::MAX),
        };
        // An element of an array map always exists.
        let _ = self.registration.set(0, registration, 0);
    }

    /// Adds results to what each reader has not read.
    fn keep(&mut self, found: &SoftirqTimes) {
        for unread in self.unread.iter_mut().flatten() {
            unread.add(found);
        }
    }

    /// The results since the last call.
    fn read(&mut self) -> SoftirqTimes {
        let charges = advances(
            &mut self.charges,
            &mut self.seen_charges,
            self.entries,
            |charge| charge.ns,
        );
        let contexts = advances(
            &mut self.contexts,
            &mut self.seen_contexts,
            self.entries,
            |ns| *ns,
        );
        let mut found = SoftirqTimes {
            lost: self.lost(),
            ..SoftirqTimes::default()
        };
        for (key, ns) in charges {
            *found.worked.entry(worked(key)).or_default() += ns;
        }
        let monitors = &self.monitors.present;
        for (context, ns) in contexts {
            let interrupted = match context {
                IDLE => Interrupted::Idle,
                KSOFTIRQD => Interrupted::Ksoftirqd,
                // A process number.
                process if process & PROCESS != 0 => monitors
                    .get(&(process as u32))
                    .map_or(Interrupted::Other, |owner| Interrupted::Owner(*owner)),
                group => Interrupted::Group(group),
            };
            *found.interrupted.entry(interrupted).or_default() += ns;
        }
        found
    }

    /// Time that found no free entry in the maps since the last call.
    fn lost(&mut self) -> u64 {
        let sum = (0..2)
            .filter_map(|which| self.lost.get(&which, 0).ok())
            .flat_map(|values| values.iter().copied().collect::<Vec<_>>())
            .fold(0u64, u64::saturating_add);
        let new = sum.saturating_sub(self.seen_lost);
        self.seen_lost = sum;
        new
    }
}

/// Attaches to the points of redirection that the kernel has. Returns a description of the packets that are not seen,
/// if any.
fn attach_to_redirects(programs: &mut Ebpf, btf: &Btf) -> Option<String> {
    let xdp = programs.program_mut(XDP_REDIRECT).map(|program| {
        let program = <&mut BtfTracePoint>::try_from(program)?;
        program.load(XDP_REDIRECT, btf)?;
        program.attach()
    });
    let xdp = xdp.and_then(Result::err);
    let other = programs.program_mut(REDIRECT).map(|program| {
        let program = <&mut FExit>::try_from(program)?;
        program.load(REDIRECT, btf)?;
        program.attach()
    });
    let other = other.and_then(Result::err);
    let unseen = [("XDP redirects", xdp), ("BPF programs redirect", other)];
    let unseen: Vec<String> = unseen
        .into_iter()
        .filter_map(|(redirects, error)| {
            let why = chain(&error?);
            Some(format!(
                "packets that {redirects} to guests are charged to the host: {}",
                why.trim()
            ))
        })
        .collect();
    (!unseen.is_empty()).then(|| unseen.join("; "))
}

/// Decodes a key of the programs.
fn worked(key: Key) -> Worked {
    match key.kind {
        GUEST => Worked::Owner(key.a),
        DEVICE => Worked::Device {
            // The index of an interface, and half of a cookie.
            key: DeviceKey {
                namespace: key.a,
                index: key.b as u32,
            },
            cookie: (key.b >> 32) as u32,
        },
        BLOCK => Worked::Block {
            disk: key.a,
            group: key.b,
        },
        _ => Worked::Other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn programs(entries: u32) -> Option<Programs> {
        match Programs::with_room(Path::new("/sys"), false, MOST_OTHERS, entries) {
            Ok(programs) => Some(programs),
            Err(error) => {
                // A program that the kernel rejects is a defect of vtax.
                let text = error.to_string();
                let lacks = ["CAP_BPF", "CONFIG_DEBUG_INFO_BTF", "not implemented"];
                assert!(lacks.iter().any(|lack| text.contains(lack)), "{text}");
                eprintln!("SKIPPED: {text}");
                None
            }
        }
    }

    #[test]
    fn a_kernel_without_types_says_so_and_what_is_missing() {
        let root = tempfile::tempdir().unwrap();
        let error = Programs::open(root.path(), false, 0).err().unwrap();
        assert!(
            error.to_string().contains("CONFIG_DEBUG_INFO_BTF"),
            "{error}"
        );
        let types = root.path().join("kernel/btf/vmlinux");
        std::fs::create_dir_all(types.parent().unwrap()).unwrap();
        std::fs::write(&types, b"no types at all").unwrap();
        let error = Programs::open(root.path(), false, 0).err().unwrap();
        assert!(error.to_string().contains("vmlinux"), "{error}");
    }

    #[test]
    fn time_that_finds_no_room_in_a_full_map_is_nobodys_and_not_lost() {
        let Some(programs) = programs(1) else {
            return;
        };
        let reader = programs.reader();
        reader.read();
        let before = programs.probe().seen_lost;
        // Timers, RCU and the scheduler give at least two entries.
        std::thread::sleep(Duration::from_millis(500));
        let found = reader.read();
        assert!(found.worked.len() <= 1);
        assert!(found.lost > 0, "{found:?}");
        let counted = programs.probe().seen_lost - before;
        assert_eq!(found.lost, counted, "counted once");
    }

    #[test]
    fn each_reader_reads_all_that_the_programs_found() {
        let Some(programs) = programs(ENTRIES) else {
            return;
        };
        let [often, seldom] = [(); 2].map(|()| programs.reader());
        let time = |found: &SoftirqTimes| found.worked.values().sum::<u64>();
        often.read();
        // What is found between both first calls is in the first reader's sum, too.
        let mut all = seldom.read();
        let mut sum = SoftirqTimes::default();
        for _ in 0..3 {
            std::thread::sleep(Duration::from_millis(100));
            sum.add(&often.read());
        }
        let since = seldom.read();
        all.add(&since);
        assert!(time(&sum) > 0);
        for (worked, ns) in &sum.worked {
            assert!(all.worked.get(worked) >= Some(ns), "{worked:?}");
        }
        // Includes results after the first reader's last call.
        sum.add(&often.read());
        assert!(time(&sum) >= time(&since));
    }

    #[test]
    fn a_reader_gets_nothing_from_before_it_and_leaves_no_place_behind() {
        let Some(programs) = programs(ENTRIES) else {
            return;
        };
        let time = |found: &SoftirqTimes| {
            let worked = found.worked.values().chain(found.interrupted.values());
            worked.sum::<u64>()
        };
        let early = programs.reader();
        std::thread::sleep(Duration::from_millis(500));
        drop(programs.reader());
        let late = programs.reader();
        let [of_late, of_early] = [late.read(), early.read()].map(|found| time(&found));
        assert!(of_early > of_late, "{of_early} ns, {of_late} ns");
        drop(late);
        drop(programs.reader());
        assert_eq!(programs.probe().unread.len(), 2);
    }

    /// Two probes at the same time, one of which examines all soft interrupts and the other a random sample. Tests that
    /// have them wait for one another: the rate of packets determines the sample.
    struct AllAndDrawn([Programs; 2], #[expect(dead_code)] MutexGuard<'static, ()>);

    impl AllAndDrawn {
        fn open() -> Option<Self> {
            static ONE: Mutex<()> = Mutex::new(());
            let one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
            let opened =
                [0, MOST_OTHERS].map(|others| Programs::open(Path::new("/sys"), false, others));
            let [Ok(all), Ok(drawn)] = opened else {
                drop(programs(ENTRIES));
                return None;
            };
            Some(Self([all, drawn], one))
        }

        /// The packets of devices that each counts while `work` runs. Packets are compared, not times: a packet during
        /// which the host or its hypervisor runs something else takes as long as thousands of others, and few samples
        /// contain it.
        fn packets_of(&self, work: impl FnOnce()) -> [u64; 2] {
            let before = self.0.each_ref().map(packets);
            work();
            let [all, drawn] = self.0.each_ref().map(packets);
            [all - before[0], drawn - before[1]]
        }
    }

    fn packets(programs: &Programs) -> u64 {
        let probe = programs.probe();
        let entries = probe.charges.iter().map(Result::unwrap);
        let devices = entries.filter(|(key, _)| matches!(worked(*key), Worked::Device { .. }));
        devices
            .flat_map(|(_, each)| each.to_vec())
            .map(|charge| charge.events)
            .sum()
    }

    /// Returns a function that sends datagrams over the loopback device, each of which is a soft interrupt.
    fn sender() -> impl Fn(u32) {
        let receiver = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        let sender = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        sender.connect(receiver.local_addr().unwrap()).unwrap();
        receiver.set_nonblocking(true).unwrap();
        move |packets| {
            for _ in 0..packets {
                sender.send(&[0; 64]).unwrap();
                while receiver.recv(&mut [0; 64]).is_ok() {}
            }
        }
    }

    #[test]
    fn what_is_drawn_by_lot_counts_for_all() {
        let Some(both) = AllAndDrawn::open() else {
            return;
        };
        let send = sender();
        // Until the sample is at its smallest share.
        send(50_000);
        let counted = both.packets_of(|| send(300_000));
        // A standard deviation of a sample of one in 16 is 0.7 % of 300,000 packets.
        let ratio = counted[1] as f64 / counted[0] as f64;
        assert!((0.95..1.05).contains(&ratio), "{counted:?}");
        assert!(counted[0] >= 300_000, "{counted:?}");
    }

    #[test]
    fn bursts_at_a_low_mean_rate_are_examined_as_a_whole() {
        let Some(both) = AllAndDrawn::open() else {
            return;
        };
        let send = sender();
        let bursts = || {
            for _ in 0..5 {
                send(400);
                std::thread::sleep(Duration::from_millis(300));
            }
        };
        // Other programs' packets may raise the mean rate, and come between the readings of the two probes.
        let rounds = (0..5).map(|_| both.packets_of(bursts));
        let mut seen = Vec::new();
        for [all, drawn] in rounds {
            assert!(all >= 2000, "{all}");
            if all.abs_diff(drawn) <= 4 {
                return;
            }
            seen.push([all, drawn]);
        }
        if seen.iter().all(|[all, _]| *all > 4000) {
            eprintln!(
                "SKIPPED: other programs sent more packets than the test all the time: {seen:?}"
            );
            return;
        }
        panic!("all and the sample: {seen:?}");
    }
}
