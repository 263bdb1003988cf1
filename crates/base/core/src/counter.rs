// SPDX-License-Identifier: Apache-2.0
//! The names and units of the series that are counted and measured during a trial.

use crate::{Base, Pattern, Unit};

/// Declares names as constants, and all of them as one table with their units.
macro_rules! counters {
    ($($(#[$doc:meta])* $id:ident = $name:literal, $base:ident;)*) => {
        $($(#[$doc])* pub const $id: &str = $name;)*

        /// Every series with a name of its own, with its unit.
        pub const COUNTERS: &[(&str, Base)] = &[$(($id, Base::$base)),*];
    };
}

counters! {
    /// CPU time that an owner's control group or process used, by the scheduler's clock.
    CPU_TOTAL = "cpu.total_ns", Nanosecond;
    /// CPU time of a VM's vCPU threads.
    CPU_VCPU = "cpu.vcpu_ns", Nanosecond;
    /// CPU time of a VM's dedicated I/O threads.
    CPU_IOTHREAD = "cpu.iothread_ns", Nanosecond;
    /// CPU time of the vhost workers that serve a VM.
    CPU_VHOST = "cpu.vhost_ns", Nanosecond;
    /// CPU time that Domain 0 spent for a VM of another host, by a method of charge-back.
    CPU_BACKEND = "cpu.backend_ns", Nanosecond;
    /// CPU time of a Xen domain's vCPUs, which no process of the host has.
    CPU_DOMAIN = "cpu.domain_ns", Nanosecond;
    /// CPU time in software interrupt handlers: of the whole host, or of the handlers that worked for a subject.
    CPU_SOFTIRQ = "cpu.softirq_ns", Nanosecond;
    /// CPU time in software interrupt handlers, for any owner, that ran in the context of a subject's tasks and is
    /// inside [`CPU_TOTAL`]: 0 on kernels that account it separately.
    CPU_SOFTIRQ_CONTEXT = "cpu.softirq_context_ns", Nanosecond;
    /// Time with nothing to run and no I/O outstanding.
    CPU_IDLE = "cpu.idle_ns", Nanosecond;
    /// Time with nothing to run while I/O was outstanding.
    CPU_IOWAIT = "cpu.iowait_ns", Nanosecond;
    /// Time that a hypervisor below this host ran something else.
    CPU_STEAL = "cpu.steal_ns", Nanosecond;
    /// CPU time of Dom0's vCPUs, as Xen counts it.
    CPU_DOM0 = "cpu.dom0_ns", Nanosecond;
    /// CPU time in user mode; for the host, `nice` included.
    CPU_USER = "cpu.user_ns", Nanosecond;
    /// CPU time in the kernel on behalf of tasks.
    CPU_SYSTEM = "cpu.system_ns", Nanosecond;
    /// Host CPU time in hardware interrupt handlers.
    CPU_IRQ = "cpu.irq_ns", Nanosecond;
    /// Time that vCPUs spent in guest mode; already inside [`CPU_USER`].
    CPU_GUEST = "cpu.guest_ns", Nanosecond;
    /// All host CPU time that was neither idle, waiting for I/O, nor stolen.
    CPU_BUSY = "cpu.busy_ns", Nanosecond;
    /// Host CPU time during which tasks were scheduled, from a source that counts nanoseconds.
    CPU_SCHEDULED = "cpu.scheduled_ns", Nanosecond;
    /// Time that a VM's vCPU threads were ready to run and no CPU was free.
    CPU_VCPU_WAIT = "cpu.vcpu_wait_ns", Nanosecond;
    /// CPU time of all other threads of a VMM, dead ones included.
    CPU_EMULATOR = "cpu.emulator_ns", Nanosecond;
    /// Context switches: all of them for the host; for threads, the number of times they were put on a CPU.
    CONTEXT_SWITCHES = "context_switches", One;
    /// Memory charged to a control group, page cache included (a gauge).
    MEMORY = "memory_bytes", Byte;
    /// Resident memory of the processes of a guest without a control group; what two of them share counts twice (a gauge).
    MEMORY_RESIDENT = "memory.resident_bytes", Byte;
    /// Every interrupt that the host took.
    INTERRUPTS_TOTAL = "interrupts.total", Interrupt;
    /// Every software interrupt that the host ran.
    SOFTIRQS_TOTAL = "softirqs.total", One;
    /// Bytes that a device received, as the host sees the device.
    NET_RX_BYTES = "net.rx_bytes", Byte;
    /// Packets that a device received; a packet may be an aggregate of many segments (GRO, TSO).
    NET_RX_PACKETS = "net.rx_packets", Packet;
    /// Receive errors.
    NET_RX_ERRORS = "net.rx_errors", One;
    /// Received packets that were dropped.
    NET_RX_DROPS = "net.rx_drops", One;
    /// Bytes that a device transmitted, as the host sees the device.
    NET_TX_BYTES = "net.tx_bytes", Byte;
    /// Packets that a device transmitted.
    NET_TX_PACKETS = "net.tx_packets", Packet;
    /// Transmit errors.
    NET_TX_ERRORS = "net.tx_errors", One;
    /// Packets that were dropped instead of transmitted.
    NET_TX_DROPS = "net.tx_drops", One;
    /// Bytes read from a block device.
    BLOCK_READ_BYTES = "block.read_bytes", Byte;
    /// Read requests that a block device completed.
    BLOCK_READ_REQUESTS = "block.read_requests", Request;
    /// Bytes written to a block device.
    BLOCK_WRITE_BYTES = "block.write_bytes", Byte;
    /// Write requests that a block device completed.
    BLOCK_WRITE_REQUESTS = "block.write_requests", Request;
    /// Time that a block device had at least one request in flight.
    BLOCK_BUSY = "block.busy_ns", Nanosecond;
    /// Read requests that a Xen guest put into the rings of its block devices.
    VBD_READ_REQUESTS = "vbd.read_requests", Request;
    /// Write requests that a Xen guest put into the rings of its block devices.
    VBD_WRITE_REQUESTS = "vbd.write_requests", Request;
    /// Bytes that a Xen guest read through these rings.
    VBD_READ_BYTES = "vbd.read_bytes", Byte;
    /// Bytes that a Xen guest wrote through these rings.
    VBD_WRITE_BYTES = "vbd.write_bytes", Byte;
    /// Number of times that blkback had no room for a request and made the ring wait.
    VBD_STALLS = "vbd.stalls", One;
    /// Pages that back ends of this host exchanged with a Xen guest; the host's count covers all guests.
    XEN_PAGES_EXCHANGED = "xen.pages_exchanged", Page;
    /// The exchanged pages that a grant operation copied.
    XEN_PAGES_COPIED = "xen.pages_copied", Page;
    /// The exchanged pages that a grant operation mapped. The rest were mapped already.
    XEN_PAGES_MAPPED = "xen.pages_mapped", Page;
    /// Time that the records of Xen's trace cover, by which rates of the series below are computed.
    XEN_TRACE = "xen.trace_ns", Nanosecond;
    /// Hypercalls of all paravirtual domains, Dom0 included.
    XEN_HYPERCALLS = "xen.hypercalls", One;
    /// Switches of the machine's processors from one domain to another.
    XEN_DOMAIN_SWITCHES = "xen.domain_switches", One;
    /// VM exits of all HVM and PVH domains.
    XEN_VM_EXITS = "xen.vm_exits", Exit;
    /// Time that a domain's virtual processors were runnable and did not run.
    XEN_WAIT = "xen.wait_ns", Nanosecond;
    /// Number of times that a blocked virtual processor of a domain became runnable.
    XEN_WAKEUPS = "xen.wakeups", One;
    /// [`XEN_WAIT`] of Dom0.
    XEN_DOM0_WAIT = "xen.dom0_wait_ns", Nanosecond;
    /// [`XEN_WAKEUPS`] of Dom0.
    XEN_DOM0_WAKEUPS = "xen.dom0_wakeups", One;
    /// Processor cycles, guest mode included.
    HW_CYCLES = "hw.cycles", Cycle;
    /// Retired instructions, guest mode included.
    HW_INSTRUCTIONS = "hw.instructions", Instruction;
    /// References to the last-level cache (whichever cache the CPU's generic event counts).
    HW_LLC_REFERENCES = "hw.llc_references", CacheEvent;
    /// Misses of the last-level cache.
    HW_LLC_MISSES = "hw.llc_misses", CacheEvent;
    /// Share of the last period during which the hardware counters ran; below 100, the counts are scaled up from that
    /// share (a gauge).
    HW_RUNNING = "hw.running_percent", Percent;
    /// Every VM exit on the host.
    KVM_EXITS = "kvm.exits", Exit;
    /// VM exits that the kernel passed on to the VMM.
    KVM_USERSPACE_EXITS = "kvm.userspace_exits", Exit;
    /// Interrupts of a guest's paravirtual devices, as the guest counts them.
    INTERRUPTS_PARAVIRTUAL = "interrupts.paravirtual", Interrupt;
    /// Bytes of all frames that a guest sent and received, as the guest counts them.
    NET_BYTES = "net.bytes", Byte;
    /// Interrupts that the vtax NIC raised in a guest.
    NIC_CALLS = "nic.calls", Interrupt;
    /// Notifications that a guest sent to the vtax NIC.
    NIC_KICKS = "nic.kicks", Interrupt;
    /// Frames that the vtax NIC dropped.
    NIC_DROPS = "nic.drops", Packet;
}

/// Declares names with parts that vary as constants, and all of them as one table with their units.
macro_rules! families {
    ($($(#[$doc:meta])* $id:ident = $name:literal, $base:ident;)*) => {
        $($(#[$doc])* pub const $id: Pattern = Pattern($name);)*

        /// Every family of series, with its unit.
        pub const FAMILIES: &[(Pattern, Base)] = &[$(($id, Base::$base)),*];
    };
}

families! {
    /// Interrupts of one source.
    INTERRUPTS = "interrupts.*", Interrupt;
    /// Software interrupts of one kind, such as `NET_RX`.
    SOFTIRQS = "softirqs.*", One;
    /// VM exits for one reason, such as `HLT`.
    KVM_EXITS_FOR = "kvm.exits.*", Exit;
    /// Context switches of the threads of one role, such as `vcpu`.
    CONTEXT_SWITCHES_OF = "context_switches.*", One;
    /// CPU time of one vCPU of a Xen domain.
    CPU_DOMAIN_VCPU = "cpu.domain.*_ns", Nanosecond;
    /// Time that processors were set to a frequency in kHz, busy or idle.
    CPU_AT = "cpu.at.*_ns", Nanosecond;
    /// The busy part of that time, where it is known.
    CPU_BUSY_AT = "cpu.busy_at.*_ns", Nanosecond;
    /// Time of one host CPU in an idle state, by the name that its driver gives it.
    CPU_IDLE_IN = "cpu.*.idle_in.*_ns", Nanosecond;
    /// Time of one host CPU in idle gaps from an age in µs to twice that age: 0, 1, 2, 4, …
    CPU_IDLE_GAPS_TIME = "cpu.*.idle_gaps.*us.time_ns", Nanosecond;
    /// The number of gaps that reached this age.
    CPU_IDLE_GAPS = "cpu.*.idle_gaps.*us.count", One;
    /// Busy time of one host CPU.
    CPU_BUSY_OF = "cpu.*.busy_ns", Nanosecond;
    /// Joules of a meter's domain.
    ENERGY = "energy.*.*_joules", Joule;
    /// Watts of a meter's domain.
    POWER = "power.*.*_watts", Watt;
    /// Share of one of the host's resources that is in use.
    SHARE = "share.*", Percent;
}

/// The name of [`CPU_IDLE_IN`] for one CPU and state.
pub fn cpu_idle_in(cpu: u32, state: &str) -> String {
    let state = state.replace(char::is_whitespace, "_");
    CPU_IDLE_IN.name(&[&cpu.to_string(), &state])
}

/// The idle state in the name of a [`cpu_idle_in`] series; `None` for any other series.
pub fn idle_state(series: &str) -> Option<&str> {
    let (cpu, state) = CPU_IDLE_IN.part(series)?.split_once(".idle_in.")?;
    cpu.parse::<u32>().ok()?;
    Some(state)
}

/// The CPU and the age in µs in the name of a series of `family`, [`CPU_IDLE_GAPS_TIME`] or
/// [`CPU_IDLE_GAPS`]; `None` for any other series.
pub fn idle_gap(family: Pattern, series: &str) -> Option<(u32, u64)> {
    let (cpu, from_us) = family.part(series)?.split_once(".idle_gaps.")?;
    Some((cpu.parse().ok()?, from_us.parse().ok()?))
}

/// The unit of a series; 1 for a series that is not declared.
pub fn unit(name: &str) -> Unit {
    let mut named = COUNTERS.iter();
    let named = named.find(|(known, _)| *known == name);
    let base = named.map(|(_, base)| *base).or_else(|| {
        let mut families = FAMILIES.iter();
        let family = families.find(|(family, _)| family.part(name).is_some())?;
        Some(family.1)
    });
    Unit::from_base(base.unwrap_or(Base::One))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn every_name_is_declared_once() {
        let names: BTreeSet<&str> = COUNTERS.iter().map(|(name, _)| *name).collect();
        assert_eq!(names.len(), COUNTERS.len());
    }

    #[test]
    fn a_name_that_ends_in_a_unit_is_declared_in_it() {
        let named = COUNTERS.iter().map(|(name, base)| (*name, *base));
        let families = FAMILIES.iter().map(|(family, base)| (family.0, *base));
        for (name, base) in named.chain(families) {
            let unit = match name.rsplit('_').next() {
                Some("ns") => Base::Nanosecond,
                Some("bytes") => Base::Byte,
                Some("packets") => Base::Packet,
                Some("requests") => Base::Request,
                Some("percent") => Base::Percent,
                Some("joules") => Base::Joule,
                Some("watts") => Base::Watt,
                _ => continue,
            };
            assert_eq!(base, unit, "{name}");
        }
    }

    #[test]
    fn the_unit_of_a_series_is_the_declared_one() {
        for (name, unit) in [
            (CPU_TOTAL, "ns"),
            ("interrupts.virtio0", "interrupt"),
            ("cpu.3.busy_ns", "ns"),
            ("kvm.exits.HLT", "exit"),
            ("an.unknown_one", "1"),
        ] {
            assert_eq!(self::unit(name).to_string(), unit, "{name}");
        }
    }

    #[test]
    fn the_name_of_a_series_gives_back_its_idle_state() {
        assert_eq!(cpu_idle_in(3, "C1 ACPI"), "cpu.3.idle_in.C1_ACPI_ns");
        assert_eq!(idle_state("cpu.3.idle_in.C1_ACPI_ns"), Some("C1_ACPI"));
        assert_eq!(idle_state("cpu.x.idle_in.C1_ns"), None);
        assert_eq!(idle_state("cpu.3.busy_ns"), None);
    }

    #[test]
    fn the_name_of_a_series_gives_back_its_idle_gaps() {
        for family in [CPU_IDLE_GAPS_TIME, CPU_IDLE_GAPS] {
            let name = family.name(&["3", "64"]);
            assert_eq!(idle_gap(family, &name), Some((3, 64)));
            assert_eq!(idle_state(&name), None);
        }
        let time = CPU_IDLE_GAPS_TIME.name(&["3", "64"]);
        assert_eq!(
            (time.as_str(), idle_gap(CPU_IDLE_GAPS, &time)),
            ("cpu.3.idle_gaps.64us.time_ns", None)
        );
        assert_eq!(self::unit(&time).to_string(), "ns");
    }
}
