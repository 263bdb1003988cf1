// SPDX-License-Identifier: Apache-2.0
//! The speed of an emulated processor in proportion to its frequency (`bpf/speed.bpf.c`).
//!
//! The cpufreq driver of an emulated host switches frequencies, but the emulator executes at a constant speed. BPF
//! programs correct this: they count the run time of every task and soft interrupt, and stall each for the additional
//! time at the lower frequency. So the ratios of speeds are those of the frequencies for any load.

use aya::maps::{Array, MapData, PerCpuHashMap, PerCpuValues};
use aya::programs::BtfTracePoint;
use aya::programs::tp_btf::BtfTracePointLinkId;
use aya::{Btf, Ebpf, EbpfLoader};
use std::collections::{BTreeMap, BTreeSet};
use std::error::Error;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use vtax_core::counter;
use vtax_core::owner::Owner;
use vtax_core::{Base, Nanoseconds, Series, SeriesKind, Source, Unit};
use vtax_host::HostError;
use vtax_host::facts::{cpu_directories, frequency_policies};
use vtax_host::roots::{Roots, numbered, text};
use vtax_lab::run::OwnInstruments;
use vtax_observe::{Instrument, ObserveError, Readings, SeriesId};

/// Built by `bpf/build.sh`.
static OBJECT: &[u8] = aya::include_bytes_aligned!("../bpf/speed.bpf.o");

/// The programs for frequencies and tasks, with the names of their tracepoints.
const PROGRAMS: [&str; 3] = ["cpu_frequency", "sched_switch", "local_timer_entry"];

/// The programs for soft interrupts. Programs of one tracepoint run in the order of their attachment: these are
/// attached after those of the ledger, so that a stall counts to its soft interrupt.
const SOFTIRQ_PROGRAMS: [&str; 2] = ["softirq_entry", "softirq_exit"];

/// `struct cpu` of the BPF program.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
struct Cpu {
    khz: u64,
    most: u64,
    since: u64,
    owed: u64,
    softirq_owed: u64,
    softirq: u64,
}

// SAFETY: `repr(C)`, integers only and no padding, so that any bytes are a value.
unsafe impl aya::Pod for Cpu {}

type Busy = PerCpuHashMap<MapData, u64, u64>;

/// Attached programs; processors follow their frequencies until this is dropped.
pub struct Speed {
    busy: Arc<Mutex<Busy>>,
    programs: Mutex<Programs>,
}

/// The attached programs.
struct Programs {
    all: Ebpf,
    /// The links of the programs for soft interrupts.
    attached: Vec<(&'static str, BtfTracePointLinkId)>,
}

impl fmt::Debug for Speed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Speed").finish_non_exhaustive()
    }
}

/// The fact about the emulated speed in the environment of a trial.
pub(crate) const FACT: &str =
    "acpi-cpufreq; BPF stalls whatever ran for a time t at f for t (f_max / f - 1)";

impl Speed {
    /// Attaches the programs on a host with frequencies; `None` on one without.
    ///
    /// # Errors
    /// When the kernel refuses the programs: it needs a description of its types (BTF).
    pub fn start(roots: &Roots) -> Result<Option<Self>, HostError> {
        if frequency_policies(roots).is_empty() {
            return Ok(None);
        }
        Self::attach(roots).map(Some).map_err(|cause| {
            HostError::Setting(format!(
                "cannot make this emulated host as fast as its frequency (BPF): {}",
                chain(cause.as_ref())
            ))
        })
    }

    fn attach(roots: &Roots) -> Result<Self, Box<dyn Error>> {
        let types = Btf::parse_file(
            roots.sys.join("kernel/btf/vmlinux"),
            aya::Endianness::default(),
        )?;
        let mut programs = EbpfLoader::new().btf(Some(&types)).load(OBJECT)?;
        let missing = "the BPF object is not the one that this was built with";

        let mut cpus: Array<MapData, Cpu> = programs.take_map("cpus").ok_or(missing)?.try_into()?;
        for (number, cpu) in &present(roots) {
            cpus.set(*number, cpu, 0)?;
        }
        let mut busy: Busy = programs.take_map("busy").ok_or(missing)?.try_into()?;
        for khz in offered(roots) {
            // Unused frequencies are counted as well.
            let none = PerCpuValues::try_from(vec![0; aya::util::nr_cpus().map_err(|(_, e)| e)?])?;
            busy.insert(khz, none, 0)?;
        }
        for name in PROGRAMS.into_iter().chain(SOFTIRQ_PROGRAMS) {
            program(&mut programs, name)?.load(name, &types)?;
        }
        for name in PROGRAMS {
            program(&mut programs, name)?.attach()?;
        }
        Ok(Self {
            busy: Arc::new(Mutex::new(busy)),
            programs: Mutex::new(Programs {
                all: programs,
                attached: Vec::new(),
            }),
        })
    }

    /// Attaches the programs for soft interrupts after all others.
    fn attach_last(&self) -> Result<(), Box<dyn Error>> {
        let mut programs = self.programs.lock().unwrap_or_else(PoisonError::into_inner);
        let Programs { all, attached } = &mut *programs;
        // The programs of an earlier trial were attached before this trial's ledger.
        for (name, link) in attached.drain(..) {
            program(all, name)?.detach(link)?;
        }
        for name in SOFTIRQ_PROGRAMS {
            let program = program(all, name)?;
            let link = program.attach()?;
            attached.push((name, link));
        }
        Ok(())
    }
}

fn program<'a>(
    programs: &'a mut Ebpf,
    name: &str,
) -> Result<&'a mut BtfTracePoint, Box<dyn Error>> {
    let program = programs
        .program_mut(name)
        .ok_or_else(|| format!("the BPF object has no program {name}"))?;
    Ok(program.try_into()?)
}

/// The processors with a frequency, and the frequency.
fn present(roots: &Roots) -> BTreeMap<u32, Cpu> {
    let all = cpu_directories(roots).into_iter().filter_map(|directory| {
        let number = numbered(directory.file_name()?.to_str()?, "cpu")?;
        let khz = |file: &str| text(&directory.join("cpufreq").join(file))?.parse().ok();
        let cpu = Cpu {
            khz: khz("scaling_cur_freq")?,
            most: khz("cpuinfo_max_freq")?,
            since: 0,
            owed: 0,
            softirq_owed: 0,
            softirq: 0,
        };
        Some((number, cpu))
    });
    all.collect()
}

/// All frequencies that processors can be set to, in kHz.
fn offered(roots: &Roots) -> BTreeSet<u64> {
    let lists = frequency_policies(roots)
        .into_iter()
        .filter_map(|policy| text(&policy.join("scaling_available_frequencies")));
    let numbers = lists.flat_map(|list| {
        let numbers = list.split_whitespace().map(str::parse);
        numbers.flatten().collect::<Vec<u64>>()
    });
    numbers.collect()
}

fn chain(error: &dyn Error) -> String {
    let own = error.to_string();
    error
        .source()
        .map_or(own.clone(), |cause| format!("{own}: {}", chain(cause)))
}

impl OwnInstruments for Speed {
    fn open(&self) -> Vec<Box<dyn Instrument>> {
        let attached = self.attach_last();
        vec![Box::new(BusyByFrequency {
            broken: attached.err().map(|cause| chain(cause.as_ref())),
            busy: Arc::clone(&self.busy),
            columns: BTreeMap::new(),
        })]
    }
}

/// The time that processors worked at each frequency, stalls included.
struct BusyByFrequency {
    busy: Arc<Mutex<Busy>>,
    /// The reason why soft interrupts do not follow the frequency, if any.
    broken: Option<String>,
    columns: BTreeMap<u64, SeriesId>,
}

impl Instrument for BusyByFrequency {
    fn name(&self) -> &str {
        "work by frequency"
    }

    fn read(&mut self, _now: Nanoseconds, into: &mut Readings) -> Result<(), ObserveError> {
        if let Some(reason) = &self.broken {
            return Err(ObserveError::Unavailable {
                what: "the speed of soft interrupts (BPF)".to_owned(),
                reason: reason.clone(),
            });
        }
        let busy = self.busy.lock().unwrap_or_else(PoisonError::into_inner);
        for entry in busy.iter() {
            let (khz, times) = entry.map_err(|cause| ObserveError::Unavailable {
                what: "work by frequency".to_owned(),
                reason: cause.to_string(),
            })?;
            let id = *self.columns.entry(khz).or_insert_with(|| {
                into.register(Series {
                    owner: Owner::Host,
                    metric: counter::CPU_BUSY_AT.fill(khz),
                    unit: Unit::from_base(Base::Nanosecond),
                    kind: SeriesKind::Counter,
                    source: Source::Simulated,
                })
            });
            into.record(id, times.iter().sum::<u64>() as f64);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_without_frequencies_is_left_alone() {
        let root = tempfile::tempdir().unwrap();
        assert!(Speed::start(&Roots::below(root.path())).unwrap().is_none());
    }
}
