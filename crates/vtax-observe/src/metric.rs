//! The names of metrics, so that the lab and the counters cannot disagree about them.
//!
//! Metrics whose last part varies (a device, an exit reason) have a function; all others are
//! constants. Units: `_ns` nanoseconds, `_bytes` bytes, everything else a count.

pub use vtax_core::account::counter::{
    BACKEND as CPU_BACKEND, DOM0 as CPU_DOM0, DOMAIN as CPU_DOMAIN, IDLE as CPU_IDLE,
    IOTHREAD as CPU_IOTHREAD, IOWAIT as CPU_IOWAIT, SOFTIRQ as CPU_SOFTIRQ,
    SOFTIRQ_CONTEXT as CPU_SOFTIRQ_CONTEXT, STEAL as CPU_STEAL, TOTAL as CPU_TOTAL,
    VCPU as CPU_VCPU, VHOST as CPU_VHOST,
};

/// CPU time in user mode; for the host, `nice` included.
pub const CPU_USER: &str = "cpu.user_ns";
/// CPU time in the kernel on behalf of tasks.
pub const CPU_SYSTEM: &str = "cpu.system_ns";
/// Host CPU time in hardware interrupt handlers.
pub const CPU_IRQ: &str = "cpu.irq_ns";
/// Time that vCPUs spent in guest mode; already inside [`CPU_USER`].
pub const CPU_GUEST: &str = "cpu.guest_ns";
/// All host CPU time that was neither idle, waiting for I/O, nor stolen.
pub const CPU_BUSY: &str = "cpu.busy_ns";
/// Host CPU time that tasks were scheduled, from a source that counts nanoseconds.
pub const CPU_SCHEDULED: &str = "cpu.scheduled_ns";
/// Time that processors were set to a frequency in kHz, at work or not: `cpu.at.<kHz>_ns`.
pub const CPU_AT: &str = "cpu.at.";
/// The part of it at work, where that is known: `cpu.busy_at.<kHz>_ns`.
pub const CPU_BUSY_AT: &str = "cpu.busy_at.";
/// Time that a VM's vCPU threads were ready to run and no CPU was free.
pub const CPU_VCPU_WAIT: &str = "cpu.vcpu_wait_ns";
/// CPU time of all other threads of a VMM, dead ones included.
pub const CPU_EMULATOR: &str = "cpu.emulator_ns";
/// Context switches: on the host all of them; for threads, times put on a CPU.
pub const CONTEXT_SWITCHES: &str = "context_switches";
/// Memory charged to a control group, page cache included (a gauge).
pub const MEMORY: &str = "memory_bytes";
/// Every interrupt that the host took.
pub const INTERRUPTS_TOTAL: &str = "interrupts.total";
/// Every software interrupt that the host ran.
pub const SOFTIRQS_TOTAL: &str = "softirqs.total";
/// Bytes that a device received, as the host sees the device.
pub const NET_RX_BYTES: &str = "net.rx_bytes";
/// Packets that a device received; a packet may be an aggregate of many segments (GRO, TSO).
pub const NET_RX_PACKETS: &str = "net.rx_packets";
/// Receive errors.
pub const NET_RX_ERRORS: &str = "net.rx_errors";
/// Received packets that were dropped.
pub const NET_RX_DROPS: &str = "net.rx_drops";
/// Bytes that a device transmitted, as the host sees the device.
pub const NET_TX_BYTES: &str = "net.tx_bytes";
/// Packets that a device transmitted.
pub const NET_TX_PACKETS: &str = "net.tx_packets";
/// Transmit errors.
pub const NET_TX_ERRORS: &str = "net.tx_errors";
/// Packets that were dropped instead of transmitted.
pub const NET_TX_DROPS: &str = "net.tx_drops";
/// Bytes read from a block device.
pub const BLOCK_READ_BYTES: &str = "block.read_bytes";
/// Read requests that a block device completed.
pub const BLOCK_READ_REQUESTS: &str = "block.read_requests";
/// Bytes written to a block device.
pub const BLOCK_WRITE_BYTES: &str = "block.write_bytes";
/// Write requests that a block device completed.
pub const BLOCK_WRITE_REQUESTS: &str = "block.write_requests";
/// Time that a block device had at least one request in flight.
pub const BLOCK_BUSY: &str = "block.busy_ns";
/// Read requests that a Xen guest put into the rings of its block devices.
pub const VBD_READ_REQUESTS: &str = "vbd.read_requests";
/// Write requests that a Xen guest put into the rings of its block devices.
pub const VBD_WRITE_REQUESTS: &str = "vbd.write_requests";
/// Bytes that a Xen guest read through these rings.
pub const VBD_READ_BYTES: &str = "vbd.read_bytes";
/// Bytes that a Xen guest wrote through these rings.
pub const VBD_WRITE_BYTES: &str = "vbd.write_bytes";
/// How often blkback had no room for a request and made the ring wait.
pub const VBD_STALLS: &str = "vbd.stalls";
/// Pages that back ends of this host exchanged with a Xen guest; the host's are with all of them.
pub const XEN_PAGES_EXCHANGED: &str = "xen.pages_exchanged";
/// Those of them that a grant operation copied.
pub const XEN_PAGES_COPIED: &str = "xen.pages_copied";
/// Those of them that a grant operation mapped. The rest were mapped already.
pub const XEN_PAGES_MAPPED: &str = "xen.pages_mapped";
/// Processor cycles, guest mode included.
pub const HW_CYCLES: &str = "hw.cycles";
/// Retired instructions, guest mode included.
pub const HW_INSTRUCTIONS: &str = "hw.instructions";
/// References to the last-level cache (whichever cache the CPU's generic event counts).
pub const HW_LLC_REFERENCES: &str = "hw.llc_references";
/// Misses of the last-level cache.
pub const HW_LLC_MISSES: &str = "hw.llc_misses";
/// Share of the last period that the hardware counters really ran; below 100 the counts are
/// scaled up from that share (a gauge).
pub const HW_RUNNING: &str = "hw.running_percent";
/// Every VM exit on the host.
pub const KVM_EXITS: &str = "kvm.exits";
/// VM exits that the kernel handed on to the VMM.
pub const KVM_USERSPACE_EXITS: &str = "kvm.userspace_exits";

/// `interrupts.<source>`.
pub fn interrupts(source: &str) -> String {
    format!("interrupts.{source}")
}

/// `softirqs.<kind>`, such as `softirqs.NET_RX`.
pub fn softirqs(kind: &str) -> String {
    format!("softirqs.{kind}")
}

/// `kvm.exits.<reason>`, such as `kvm.exits.HLT`.
pub fn kvm_exits(reason: &str) -> String {
    format!("{KVM_EXITS}.{reason}")
}

/// `context_switches.<role>`, such as `context_switches.vcpu`.
pub fn context_switches(role: &str) -> String {
    format!("{CONTEXT_SWITCHES}.{role}")
}

/// `cpu.domain.<number>_ns`: one vCPU of a Xen domain.
pub fn cpu_domain_vcpu(vcpu: usize) -> String {
    format!("cpu.domain.{vcpu}_ns")
}

/// `cpu.at.<kHz>_ns`.
pub fn cpu_at(khz: u64) -> String {
    format!("{CPU_AT}{khz}_ns")
}

/// `cpu.busy_at.<kHz>_ns`.
pub fn cpu_busy_at(khz: u64) -> String {
    format!("{CPU_BUSY_AT}{khz}_ns")
}

/// `cpu.<number>.idle_in.<state>_ns`: one host CPU's time in an idle state, by the name that its
/// driver gives it.
pub fn cpu_idle_in(cpu: u32, state: &str) -> String {
    let state = state.replace(char::is_whitespace, "_");
    format!("cpu.{cpu}.idle_in.{state}_ns")
}

/// The idle state that a [`cpu_idle_in`] is about; `None` for any other series.
pub fn idle_state(series: &str) -> Option<&str> {
    let (cpu, rest) = series.strip_prefix("cpu.")?.split_once(".idle_in.")?;
    cpu.parse::<u32>().ok()?;
    rest.strip_suffix("_ns")
}

/// `cpu.<number>.busy_ns`: one host CPU's busy time.
pub fn cpu_busy(cpu: u32) -> String {
    format!("cpu.{cpu}.busy_ns")
}
