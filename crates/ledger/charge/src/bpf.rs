// SPDX-License-Identifier: Apache-2.0
//! What the BPF programs of this crate share: how they are loaded and attached, and how their maps are filled and read.

use aya::maps::{Map, MapData, MapError, PerCpuHashMap};
use aya::programs::{BtfTracePoint, ProgramError};
use aya::{Btf, Ebpf};
use std::collections::HashMap;
use std::path::Path;
use vtax_observe::ObserveError;
use vtax_observe::bpf::{chain, explain};

/// The number of entries in each map without a size of its own.
pub(super) const ENTRIES: u32 = 16_384;

/// The size in bytes of the values of both maps of time of a program, of which each processor has its own copy.
const VALUES: usize = 32 << 20;

/// The size in bytes of a value in each of the two maps, together: time with a number of events, and time.
const VALUES_EACH: usize = 3 * size_of::<u64>();

/// The number of entries per processor in each map of time, on a small host. Allocating more takes the kernel a second
/// where it is emulated.
const ENTRIES_EACH: usize = 4096;

/// The number of entries in each map of time on a host with this many processors. Time that finds no free entry is
/// unattributed.
pub(super) fn entries_on(processors: usize) -> u32 {
    let processors = processors.max(1);
    let fit = (VALUES / (VALUES_EACH * processors)).min(ENTRIES_EACH * processors);
    u32::try_from(fit).map_or(ENTRIES, |fit| fit.clamp(1024, ENTRIES))
}

/// The number of passes after which an unchanged entry is removed, when its map is half full.
const FORGET_AFTER: u32 = 30;

/// The types of the running kernel. `what` needs them, for messages.
///
/// # Errors
/// When the kernel does not describe its types (BTF).
pub(super) fn kernel_types(what: &str, sys: &Path) -> Result<Btf, ObserveError> {
    let types = sys.join("kernel/btf/vmlinux");
    if !types.exists() {
        let why = "does not exist: this kernel was built without CONFIG_DEBUG_INFO_BTF";
        return Err(ObserveError::unavailable(
            what,
            format!("{} {why}", types.display()),
        ));
    }
    Btf::parse_file(&types, aya::Endianness::default()).map_err(|error| {
        ObserveError::unavailable(
            what,
            format!("cannot read {}: {}", types.display(), chain(&error)),
        )
    })
}

/// The number of processors of which maps have values.
///
/// # Errors
/// When the kernel does not list them.
pub(super) fn processors(what: &str) -> Result<usize, ObserveError> {
    aya::util::nr_cpus().map_err(|(file, cause)| {
        ObserveError::unavailable(what, format!("cannot count processors in {file}: {cause}"))
    })
}

/// Loads the programs of these names, and then attaches them in their order to the tracepoints of the same names.
///
/// # Errors
/// When the object lacks one, or the kernel refuses it.
pub(super) fn attach(
    what: &str,
    programs: &mut Ebpf,
    names: &[&str],
    btf: &Btf,
) -> Result<(), ObserveError> {
    let mut each = |step: &dyn Fn(&str, &mut BtfTracePoint) -> Result<(), ProgramError>| {
        for name in names {
            let program = programs.program_mut(name).ok_or_else(|| {
                ObserveError::unavailable(what, format!("the BPF object has no program {name}"))
            })?;
            (program.try_into())
                .and_then(|program| step(name, program))
                .map_err(|error: ProgramError| explain(what, &error))?;
        }
        Ok(())
    };
    each(&|name, program| program.load(name, btf))?;
    each(&|_, program| program.attach().map(drop))
}

/// Takes a map out of the loaded object.
///
/// # Errors
/// When the object has no such map, or one of another kind.
pub(super) fn take<M: TryFrom<Map, Error = MapError>>(
    what: &str,
    programs: &mut Ebpf,
    name: &str,
) -> Result<M, ObserveError> {
    let map = programs.take_map(name).ok_or_else(|| {
        ObserveError::unavailable(what, format!("the BPF object has no map {name}"))
    })?;
    map.try_into().map_err(|error| explain(what, &error))
}

#[derive(Debug, Clone, Copy, Default)]
pub(super) struct LastValue {
    ns: u64,
    idle_passes: u32,
}

/// A map that user space fills, with its contents, so that only differences are written.
pub(super) struct Wanted<K: aya::Pod, V: aya::Pod> {
    map: aya::maps::HashMap<MapData, K, V>,
    pub(super) present: HashMap<K, V>,
}

impl<K: aya::Pod + std::hash::Hash + Eq, V: aya::Pod + PartialEq> Wanted<K, V> {
    /// Takes over an empty map.
    pub(super) fn new(map: aya::maps::HashMap<MapData, K, V>) -> Self {
        Self {
            map,
            present: HashMap::new(),
        }
    }

    pub(super) fn set(&mut self, wanted: &HashMap<K, V>) {
        let map = &mut self.map;
        self.present.retain(|key, _| {
            let keep = wanted.contains_key(key);
            if !keep {
                // If the entry is gone already, there is nothing to remove.
                let _ = map.remove(key);
            }
            keep
        });
        for (key, value) in wanted {
            // If the map is full, the device's work stays keyed by the device, which is looked up below.
            if self.present.get(key) != Some(value) && map.insert(key, value, 0).is_ok() {
                self.present.insert(*key, *value);
            }
        }
    }
}

/// Reads all entries of a map and returns the advance of each. Unchanged entries are removed when there is little room;
/// an entry that is created again starts at zero.
pub(super) fn advances<K, V>(
    map: &mut PerCpuHashMap<MapData, K, V>,
    seen: &mut HashMap<K, LastValue>,
    entries: u32,
    time: fn(&V) -> u64,
) -> Vec<(K, u64)>
where
    K: aya::Pod + std::hash::Hash + Eq,
    V: aya::Pod,
{
    let mut advances = Vec::with_capacity(seen.len());
    let mut idle = Vec::new();
    // An entry that vanishes during the iteration ends it early; the next pass reads the rest.
    for (key, values) in map.iter().flatten() {
        let ns = values.iter().map(time).fold(0u64, u64::saturating_add);
        let before = seen.entry(key).or_default();
        let new = ns.saturating_sub(before.ns);
        before.ns = ns;
        before.idle_passes = if new == 0 { before.idle_passes + 1 } else { 0 };
        if before.idle_passes > FORGET_AFTER {
            idle.push(key);
        }
        if new > 0 {
            advances.push((key, new));
        }
    }
    if seen.len() > entries as usize / 2 {
        for key in idle {
            let _ = map.remove(&key);
            seen.remove(&key);
        }
    }
    advances
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_number_of_processors_makes_tracing_take_more_memory() {
        assert_eq!(entries_on(1), 4096);
        assert_eq!(entries_on(4), ENTRIES);
        for processors in [64, 128, 256, 1024] {
            let bytes = entries_on(processors) as usize * processors * 24;
            assert!(bytes <= VALUES, "{processors}: {bytes}");
        }
        assert!(
            entries_on(256) > 2 * 2000,
            "guests, their devices and the host's"
        );
    }
}
