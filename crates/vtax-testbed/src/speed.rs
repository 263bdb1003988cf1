//! An emulated processor that is as fast as its frequency says (`bpf/speed.bpf.c`).
//!
//! The real cpufreq driver switches frequencies there, but the emulator executes on at the same
//! pace. BPF programs make up for it: one follows the frequency of each processor, another one
//! interrupts it every [`STEP`] and, where it interrupts work, lets it stand still for the share that
//! it would have lacked. So the ratios of speeds are those of the frequencies, in every context alike.

use aya::maps::{Array, MapData, PerCpuHashMap, PerCpuValues};
use aya::programs::perf_event::{PerfEventScope, PerfTypeId, SamplePolicy};
use aya::programs::{BtfTracePoint, PerfEvent};
use aya::{Btf, Ebpf, EbpfLoader};
use std::collections::{BTreeMap, BTreeSet};
use std::error::Error;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use vtax_host::HostError;
use vtax_host::facts::{cpu_directories, frequency_policies};
use vtax_host::roots::{Roots, numbered, text};
use vtax_lab::run::OwnInstruments;
use vtax_observe::{Instrument, Kind, ObserveError, Readings, Series, SeriesId, metric};
use vtax_units::{Base, Nanoseconds, Source, Unit};

/// Built by `bpf/build.sh`.
static OBJECT: &[u8] = aya::include_bytes_aligned!("../bpf/speed.bpf.o");

/// Time between two interruptions: 1 ms over the golden ratio, never in step with what is
/// done every millisecond or every tick.
const STEP: Nanoseconds = Nanoseconds(618_034);

/// `PERF_COUNT_SW_CPU_CLOCK` (perf_event_open(2)).
const CPU_CLOCK: u64 = 0;

/// `struct cpu` of the BPF program.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
struct Cpu {
    khz: u64,
    most: u64,
    stepped: u64,
}

// SAFETY: `repr(C)`, integers only and no padding, so that any bytes are a value.
unsafe impl aya::Pod for Cpu {}

type Busy = PerCpuHashMap<MapData, u64, u64>;

/// Processors that follow their frequencies while this lives.
pub struct Speed {
    busy: Arc<Mutex<Busy>>,
    /// Keeps the programs attached.
    _programs: Ebpf,
}

impl fmt::Debug for Speed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Speed").finish_non_exhaustive()
    }
}

/// What the trial's environment says of it.
pub(crate) fn fact() -> String {
    format!(
        "acpi-cpufreq; BPF stalls a busy processor for 1 - f/f_max of each {:.3} ms",
        STEP.as_secs_f64() * 1e3
    )
}

impl Speed {
    /// Starts it on a host that has frequencies; `None` on one that has not.
    ///
    /// # Errors
    /// When the kernel does not let these programs in: it must describe its types (BTF).
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
        let symbols = roots.proc_text("kallsyms").unwrap_or_default();
        let symbol =
            |name: &str| address(&symbols, name).ok_or_else(|| format!("no symbol {name}"));
        let idle = [
            symbol("__cpuidle_text_start")?,
            symbol("__cpuidle_text_end")?,
        ];
        let mut programs = EbpfLoader::new()
            .btf(Some(&types))
            .set_global("idle_start", &idle[0], true)
            .set_global("idle_end", &idle[1], true)
            .load(OBJECT)?;
        let missing = "the BPF object is not the one that this was built with";

        let mut cpus: Array<MapData, Cpu> = programs.take_map("cpus").ok_or(missing)?.try_into()?;
        let frequency: &mut BtfTracePoint = programs
            .program_mut("frequency")
            .ok_or(missing)?
            .try_into()?;
        frequency.load("cpu_frequency", &types)?;
        frequency.attach()?;
        let present = present(roots);
        for (number, cpu) in &present {
            cpus.set(*number, cpu, 0)?;
        }
        let mut busy: Busy = programs.take_map("busy").ok_or(missing)?.try_into()?;
        for khz in offered(roots) {
            // Also what nobody works at is counted.
            let none = PerCpuValues::try_from(vec![0; aya::util::nr_cpus().map_err(|(_, e)| e)?])?;
            busy.insert(khz, none, 0)?;
        }
        let stall: &mut PerfEvent = programs.program_mut("stall").ok_or(missing)?.try_into()?;
        stall.load()?;
        for cpu in present.keys().copied() {
            stall.attach(
                PerfTypeId::Software,
                CPU_CLOCK,
                PerfEventScope::AllProcessesOneCpu { cpu },
                SamplePolicy::Period(STEP.0),
                false,
            )?;
        }
        Ok(Self {
            busy: Arc::new(Mutex::new(busy)),
            _programs: programs,
        })
    }
}

/// The processors with a frequency, and what it is.
fn present(roots: &Roots) -> BTreeMap<u32, Cpu> {
    let all = cpu_directories(roots).into_iter().filter_map(|directory| {
        let number = numbered(directory.file_name()?.to_str()?, "cpu")?;
        let khz = |file: &str| text(&directory.join("cpufreq").join(file))?.parse().ok();
        let cpu = Cpu {
            khz: khz("scaling_cur_freq")?,
            most: khz("cpuinfo_max_freq")?,
            stepped: 0,
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

/// The address of a symbol of the kernel (`/proc/kallsyms`).
fn address(symbols: &str, name: &str) -> Option<u64> {
    let found = symbols.lines().find_map(|line| {
        let (address, rest) = line.split_once(' ')?;
        (rest.split_once(' ')?.1 == name).then_some(address)
    })?;
    u64::from_str_radix(found, 16).ok().filter(|at| *at > 0)
}

fn chain(error: &dyn Error) -> String {
    let own = error.to_string();
    error
        .source()
        .map_or(own.clone(), |cause| format!("{own}: {}", chain(cause)))
}

impl OwnInstruments for Speed {
    fn open(&self) -> Vec<Box<dyn Instrument>> {
        vec![Box::new(BusyByFrequency {
            busy: Arc::clone(&self.busy),
            columns: BTreeMap::new(),
        })]
    }
}

/// The time that processors worked at each frequency, sampled every [`STEP`].
struct BusyByFrequency {
    busy: Arc<Mutex<Busy>>,
    columns: BTreeMap<u64, SeriesId>,
}

impl Instrument for BusyByFrequency {
    fn name(&self) -> &str {
        "work by frequency"
    }

    fn read(&mut self, _now: Nanoseconds, into: &mut Readings) -> Result<(), ObserveError> {
        let busy = self.busy.lock().unwrap_or_else(PoisonError::into_inner);
        for entry in busy.iter() {
            let (khz, times) = entry.map_err(|cause| ObserveError::Unavailable {
                what: "work by frequency".to_owned(),
                reason: cause.to_string(),
            })?;
            let id = *self.columns.entry(khz).or_insert_with(|| {
                into.register(Series {
                    owner: "host".to_owned(),
                    metric: metric::cpu_busy_at(khz),
                    unit: Unit::of(Base::Nanosecond),
                    kind: Kind::Counter,
                    source: Source::Emulated,
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
    use std::path::Path;
    use std::process::Command;

    #[test]
    fn a_host_without_frequencies_is_left_alone() {
        let root = tempfile::tempdir().unwrap();
        assert!(Speed::start(&Roots::below(root.path())).unwrap().is_none());
    }

    #[test]
    fn a_symbol_is_found_by_its_whole_name() {
        let symbols = "ffffffff81000000 T startup\nffffffff81a5b0c0 T __cpuidle_text_start\n\
                       0000000000000000 T hidden\n";
        assert_eq!(
            address(symbols, "__cpuidle_text_start"),
            Some(0xffff_ffff_81a5_b0c0)
        );
        assert_eq!(address(symbols, "cpuidle_text_start"), None);
        assert_eq!(address(symbols, "hidden"), None);
    }

    /// The committed object is what the source says, where the compiler that made it is at hand.
    #[test]
    fn the_object_is_built_from_its_source() {
        let version = Command::new("clang").arg("--version").output();
        let is_same = version.is_ok_and(|version| {
            String::from_utf8_lossy(&version.stdout).contains("clang version 14.0.6")
        });
        if !is_same {
            eprintln!("SKIPPED: clang 14.0.6, which made the committed object, is not installed");
            return;
        }
        let output = tempfile::tempdir().unwrap();
        let object = output.path().join("speed.bpf.o");
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("bpf/build.sh");
        let built = Command::new(script).arg(&object).output().unwrap();
        if !built.status.success() {
            let said = String::from_utf8_lossy(&built.stderr);
            assert!(said.contains("not found"), "{said}");
            eprintln!("SKIPPED: libbpf's headers or llvm-strip are not installed: {said}");
            return;
        }
        let rebuilt = std::fs::read(&object).unwrap();
        assert!(rebuilt == OBJECT, "run bpf/build.sh and commit speed.bpf.o");
    }
}
