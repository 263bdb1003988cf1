// SPDX-License-Identifier: Apache-2.0
//! The catalogue of metrics. `{}` in a title is the workload's phrase for its work or its name for the metric.

use super::Better::{Higher, Lower, Neither};
use super::Measure::{Fixed, PerWork, Workload};
use super::{Family, Metric};
use crate::{Base, Unit};

const fn fixed(base: Base) -> super::Measure {
    Fixed(Unit::from_base(base))
}

const fn per_second(base: Base) -> super::Measure {
    Fixed(Unit::per(base, Base::Second))
}

const fn per_gigabyte(base: Base) -> super::Measure {
    Fixed(Unit::per(base, Base::Gigabyte))
}

/// Declares metrics as constants, and all of them as one table.
macro_rules! metrics {
    ($($id:ident = $name:literal, $measure:expr, $better:ident, $title:literal $(, $more:ident($($word:literal),*))*;)*) => {
        $(
            #[doc = concat!("`", $name, "`: ", $title, ".")]
            pub const $id: &Metric = &Metric::new($name, $measure, $better, $title)$(.$more($($word),*))*;
        )*

        /// Every metric with a name of its own.
        pub const METRICS: &[&Metric] = &[$($id),*];
    };
}

/// Declares families as constants, and all of them as one table.
macro_rules! families {
    ($($id:ident = $name:literal, $measure:expr, $better:ident, $title:literal;)*) => {
        $(
            #[doc = concat!("`", $name, "`: ", $title, ".")]
            pub const $id: &Family = &Family(Metric::new($name, $measure, $better, $title));
        )*

        /// Every family of metrics.
        pub const FAMILIES: &[&Family] = &[$($id),*];
    };
}

metrics! {
    // Processors of the host.
    CPU_CORES = "cpu.cores", fixed(Base::Core), Lower, "processors kept busy for the target";
    CPU_MACHINE = "cpu.machine", fixed(Base::Core), Lower, "processors kept busy in all";
    CPU_STEAL = "cpu.steal", fixed(Base::Core), Lower, "processors that this host's hypervisor gave to others";
    CPU_DOM0 = "cpu.dom0", fixed(Base::Core), Neither, "processors kept busy by Domain 0, counted by the pool";
    CPU_PER_WORK = "cpu.per_work", PerWork(Base::Second), Lower, "CPU time to {}",
        headline(), words("CPU", "costs", "CPU");
    LAUNCH_CPU = "launch.cpu", fixed(Base::Second), Lower, "CPU time of starting the command, which is no part of its cost";
    LAUNCH_SPREAD = "launch.spread", fixed(Base::Second), Lower, "how far the CPU time of starting the command is known";
    CPU_MACHINE_PER_WORK = "cpu.machine.per_work", PerWork(Base::Second), Lower, "CPU time of all of this host to {}";
    CPU_OUTSIDE_GUEST_PER_WORK = "cpu.outside_guest.per_work", PerWork(Base::Second), Lower,
        "CPU time outside guest code to {}";
    CPU_INSIDE_PER_WORK = "cpu.inside_per_work", Fixed(Unit::per(Base::Second, Base::Operation)), Lower,
        "CPU time per operation, as the target counts it";
    FREQUENCY_MEAN = "frequency.mean", per_second(Base::Cycle), Neither, "mean frequency that processors were set to";

    // Energy of the host.
    POWER_MEAN = "power.mean", fixed(Base::Watt), Lower, "mean power of the host", words("power", "draws", "power");
    ENERGY_TOTAL = "energy.total", fixed(Base::Joule), Lower, "energy of the host in the window";
    ENERGY_PER_WORK = "energy.per_work", PerWork(Base::Joule), Lower, "host energy to {}",
        headline(), words("energy", "takes", "energy");
    POWER_IDLE = "power.idle", fixed(Base::Watt), Neither, "power of the idle host";
    ENERGY_ABOVE_IDLE = "energy.above_idle", fixed(Base::Joule), Lower, "energy of the host above idle in the window";
    ENERGY_ABOVE_IDLE_PER_WORK = "energy.above_idle.per_work", PerWork(Base::Joule), Lower,
        "host energy above idle to {}", words("energy above idle", "takes", "energy above idle");
    ENERGY_ABOVE_IDLE_OF_TARGET_PER_WORK = "energy.above_idle.target.per_work", PerWork(Base::Joule), Lower,
        "energy above idle charged to the target to {}",
        words("charged energy above idle", "is charged", "energy above idle");

    // Counters of the host, per second.
    INTERRUPTS_PER_SECOND = "interrupts.per_second", per_second(Base::Interrupt), Neither, "interrupts of the host";
    CONTEXT_SWITCHES_PER_SECOND = "context_switches.per_second", per_second(Base::One), Neither,
        "context switches of the host";
    KVM_EXITS_PER_SECOND = "kvm.exits.per_second", per_second(Base::Exit), Neither, "VM exits";
    CYCLES_PER_SECOND = "cycles.per_second", per_second(Base::Cycle), Neither, "cycles of the host";
    INSTRUCTIONS_PER_SECOND = "instructions.per_second", per_second(Base::Instruction), Neither,
        "instructions of the host";
    LLC_REFERENCES_PER_SECOND = "llc.references_per_second", per_second(Base::CacheEvent), Neither,
        "last level cache references";
    LLC_MISSES_PER_SECOND = "llc.misses_per_second", per_second(Base::CacheEvent), Neither, "last level cache misses";
    XEN_MACHINE_PAGES_EXCHANGED_PER_SECOND = "xen.machine.pages_exchanged_per_second", per_second(Base::Page), Neither,
        "pages exchanged with all domains";
    XEN_HYPERCALLS_PER_SECOND = "xen.hypercalls_per_second", per_second(Base::One), Neither,
        "hypercalls of all paravirtual domains";
    XEN_DOMAIN_SWITCHES_PER_SECOND = "xen.domain_switches_per_second", per_second(Base::One), Neither,
        "switches of a processor between domains";
    XEN_VM_EXITS_PER_SECOND = "xen.vm_exits_per_second", per_second(Base::Exit), Neither,
        "VM exits of all HVM and PVH domains";
    XEN_DOM0_WAIT = "xen.dom0.wait", fixed(Base::Core), Neither, "processors that Dom0 was ready for and did not get";
    XEN_DOM0_WAKEUPS_PER_SECOND = "xen.dom0.wakeups_per_second", per_second(Base::One), Neither,
        "wakeups of Dom0's virtual processors";

    // Traffic of a guest's devices.
    NET_RX_PACKETS_PER_SECOND = "net.rx_packets_per_second", per_second(Base::Packet), Neither,
        "frames from the target's device";
    NET_TX_PACKETS_PER_SECOND = "net.tx_packets_per_second", per_second(Base::Packet), Neither,
        "frames to the target's device";
    NET_RX_BYTES_PER_SECOND = "net.rx_bytes_per_second", per_second(Base::Byte), Neither,
        "bytes from the target's device";
    NET_TX_BYTES_PER_SECOND = "net.tx_bytes_per_second", per_second(Base::Byte), Neither,
        "bytes to the target's device";
    NET_RX_DROPS_PER_SECOND = "net.rx_drops_per_second", per_second(Base::Packet), Lower,
        "frames from the target that its device dropped";
    NET_TX_DROPS_PER_SECOND = "net.tx_drops_per_second", per_second(Base::Packet), Lower,
        "frames to the target that its device dropped";
    BLOCK_READ_REQUESTS_PER_SECOND = "block.read_requests_per_second", per_second(Base::Request), Neither,
        "reads of the target's disk";
    BLOCK_WRITE_REQUESTS_PER_SECOND = "block.write_requests_per_second", per_second(Base::Request), Neither,
        "writes to the target's disk";
    BLOCK_READ_BYTES_PER_SECOND = "block.read_bytes_per_second", per_second(Base::Byte), Neither,
        "bytes read from the target's disk";
    BLOCK_WRITE_BYTES_PER_SECOND = "block.write_bytes_per_second", per_second(Base::Byte), Neither,
        "bytes written to the target's disk";
    NET_MACHINE_BYTES_PER_SECOND = "net.machine_bytes_per_second", per_second(Base::Byte), Neither,
        "bytes from and to the devices of all guests";
    XEN_PAGES_EXCHANGED_PER_SECOND = "xen.pages_exchanged_per_second", per_second(Base::Page), Neither,
        "pages exchanged with the target's domain";
    XEN_PAGES_COPIED_PER_SECOND = "xen.pages_copied_per_second", per_second(Base::Page), Neither,
        "pages copied by grant operations for it";
    XEN_PAGES_MAPPED_PER_SECOND = "xen.pages_mapped_per_second", per_second(Base::Page), Neither,
        "pages mapped by grant operations for it";
    XEN_WAIT = "xen.wait", fixed(Base::Core), Neither, "processors that the domain was ready for and did not get";
    XEN_WAKEUPS_PER_SECOND = "xen.wakeups_per_second", per_second(Base::One), Neither,
        "wakeups of the domain's virtual processors";
    XEN_PAGES_EXCHANGED_PER_WORK = "xen.pages_exchanged.per_work", PerWork(Base::Page), Lower, "pages exchanged to {}";

    // A guest's own counters.
    GUEST_CPU_CORES = "guest.cpu.cores", fixed(Base::Core), Neither, "processors busy as the guest sees them";
    GUEST_CPU_STEAL = "guest.cpu.steal", fixed(Base::Core), Neither,
        "processors that the guest was ready for and did not get";
    GUEST_INTERRUPTS_PER_SECOND = "guest.interrupts.per_second", per_second(Base::Interrupt), Lower,
        "interrupts inside the guest";
    GUEST_INTERRUPTS_PER_GB = "guest.interrupts.per_gb", per_gigabyte(Base::Interrupt), Lower,
        "interrupts of the guest's paravirtual devices for 1 GB of frames";
    NIC_CALLS_PER_SECOND = "nic.calls.per_second", per_second(Base::Interrupt), Lower,
        "interrupts that the NIC raised";
    NIC_CALLS_PER_GB = "nic.calls.per_gb", per_gigabyte(Base::Interrupt), Lower,
        "interrupts that the NIC raised for 1 GB of frames";
    NIC_KICKS_PER_SECOND = "nic.kicks.per_second", per_second(Base::Interrupt), Lower,
        "notifications that the guest sent to the NIC";
    NIC_KICKS_PER_GB = "nic.kicks.per_gb", per_gigabyte(Base::Interrupt), Lower,
        "notifications to the NIC for 1 GB of frames";

    // Results of load generators. The workload chooses the leading ones.
    THROUGHPUT = "throughput", Workload, Higher, "{}", words("throughput", "reaches", "throughput");
    RATE = "rate", Workload, Higher, "{}";
    OFFERED = "offered", per_second(Base::Request), Neither, "{} requests that were due";
    SENT = "sent", per_second(Base::Bit), Neither, "UDP rate sent";
    PACKETS = "packets", per_second(Base::Packet), Neither, "UDP datagrams sent";
    ELAPSED = "elapsed", fixed(Base::Second), Lower, "{}";
    ANSWERED = "answered", fixed(Base::Percent), Higher, "{}";
    ERRORS = "errors", fixed(Base::Percent), Lower, "{}";
    LOSS = "loss", fixed(Base::Percent), Lower, "UDP datagrams lost";
    OUT_OF_ORDER = "out_of_order", fixed(Base::Percent), Lower, "UDP datagrams out of order";
    JITTER = "jitter", fixed(Base::Second), Lower, "UDP jitter (RFC 3550)";
    RETRANSMITS = "retransmits", per_second(Base::Packet), Lower, "TCP segments sent again";
    RETRANSMISSIONS = "retransmissions", fixed(Base::Percent), Lower,
        "messages sent again, of each hundred calls begun";
    CALLS_CURRENT = "calls.current", fixed(Base::One), Lower, "most calls in progress";
    RTT_MEAN = "rtt.mean", fixed(Base::Second), Lower, "mean round trip that TCP saw";
    DOWNLOAD_P50 = "download.p50", fixed(Base::Second), Lower, "time of one download, median";
    DOWNLOAD_MAX = "download.max", fixed(Base::Second), Lower, "time of one download, longest";
    LATENCY_P50 = "latency.p50", fixed(Base::Second), Lower, "{}, median";
    LATENCY_P90 = "latency.p90", fixed(Base::Second), Lower, "{}, 90th percentile";
    LATENCY_P99 = "latency.p99", fixed(Base::Second), Lower, "{}, 99th percentile";
    LATENCY_P999 = "latency.p999", fixed(Base::Second), Lower, "{}, 99.9th percentile";
    LATENCY_MAX = "latency.max", fixed(Base::Second), Lower, "{}, longest";
    LATENCY_MEAN = "latency.mean", fixed(Base::Second), Lower, "{}, mean";
    LAG_P99 = "lag.p99", fixed(Base::Second), Neither, "lateness of the load generator itself, 99th percentile";
    KNEE = "knee", Workload, Higher, "highest load {}", headline(), words("the load borne", "bears", "load");

    // Results of a cost model for a trial of an emulated host.
    MODEL_CYCLES_PER_SECOND = "model.cycles_per_second", per_second(Base::Cycle), Lower, "cycles spent for the target";
    MODEL_POWER = "model.power", fixed(Base::Watt), Lower, "power of a host that does only this";
    MODEL_CYCLES_PER_WORK = "model.cycles_per_work", PerWork(Base::Cycle), Lower, "cycles to {}";
    MODEL_ENERGY_PER_WORK = "model.energy_per_work", PerWork(Base::Joule), Lower, "energy to {}";

    // Climbs.
    GUESTS = "guests", fixed(Base::One), Higher, "guests at the top", headline();
    HELD = "held", fixed(Base::One), Higher, "guests that the host holds, where a climb found its end";
    MEMORY_EACH = "memory.each", fixed(Base::Byte), Lower, "memory of a guest, all in", headline();
    MEMORY_CHARGED_EACH = "memory.charged.each", fixed(Base::Byte), Lower,
        "memory of a guest that its control group is charged for";
    MEMORY_USER_EACH = "memory.user.each", fixed(Base::Byte), Lower, "of which processes' pages";
    MEMORY_KERNEL_EACH = "memory.kernel.each", fixed(Base::Byte), Lower, "of which kernel";
    CPU_TOP = "cpu.top", fixed(Base::Percent), Lower, "CPU of the sleeping population at the top";
    CPU_IDLE = "cpu.idle", fixed(Base::Percent), Lower, "CPU of the idle population, of one processor", headline();
    BOOT_FIRST = "boot.first", fixed(Base::Second), Lower, "time to a booted guest, first interval";
    BOOT_LAST = "boot.last", fixed(Base::Second), Lower, "time to a booted guest, last interval", headline();
    PROBE_P50 = "probe.p50", fixed(Base::Second), Lower, "response time at the top, median";
    PROBE_P99 = "probe.p99", fixed(Base::Second), Lower, "response time at the top, 99th percentile", headline();
    JOULES_EACH = "joules.each", fixed(Base::Joule), Lower,
        "energy of an idle guest in a second, host's share included";
    RETURNED = "returned", fixed(Base::Percent), Higher, "memory that came back";
    OVERHEAD = "overhead", fixed(Base::Percent), Lower, "CPU of the climb itself, of one processor";
    BINDING = "binding", fixed(Base::Percent), Neither, "share of the binding resource";
    CLOUD_GUESTS = "cloud.guests", fixed(Base::One), Neither,
        "guests that were there while others came and went, mean";
    CLOUD_TURNED_AWAY = "cloud.turned_away", fixed(Base::Percent), Neither,
        "guests that came when all places were taken";
    CLOUD_BOOT_P99 = "cloud.boot.p99", fixed(Base::Second), Lower,
        "time to a booted guest while others come and go, 99th percentile";
    CLOUD_PROBE_P99 = "cloud.probe.p99", fixed(Base::Second), Lower,
        "response time while guests come and go, 99th percentile";
    CLOUD_LATE = "cloud.late", fixed(Base::Second), Lower, "how late a guest came or went, at most";
    CLOUD_CPU = "cloud.cpu", fixed(Base::Percent), Lower, "CPU of guests that come and go, of one processor";

    // Guests of a recording: all that they cost, the host's time for them included.
    COST_CPU = "cost.cpu", fixed(Base::Core), Lower, "processors that it costs", headline();
    COST_HIDDEN = "cost.hidden", fixed(Base::Percent), Lower, "hidden share of its CPU", headline();
    COST_CPU_PER_PACKET = "cost.cpu.per_packet", Fixed(Unit::per(Base::Second, Base::Packet)), Lower,
        "CPU a packet", headline();
    COST_CPU_PER_GB = "cost.cpu.per_gb", per_gigabyte(Base::Second), Lower, "CPU a gigabyte", headline();
    COST_CPU_PER_EXIT = "cost.cpu.per_exit", Fixed(Unit::per(Base::Second, Base::Exit)), Lower,
        "CPU a VM exit", headline();
    COST_HOST_PER_PACKET = "cost.host.per_packet", Fixed(Unit::per(Base::Second, Base::Packet)), Lower,
        "the host's CPU for it a packet", headline();
    COST_HOST_PER_GB = "cost.host.per_gb", per_gigabyte(Base::Second), Lower, "the host's CPU for it a gigabyte";
    COST_POWER = "cost.power", fixed(Base::Watt), Lower, "power that it is charged", headline();
    COST_ENERGY_PER_GB = "cost.energy.per_gb", per_gigabyte(Base::Joule), Lower, "energy a gigabyte";

    // Charges of a trial. All are rates, so that windows of different lengths compare.
    CHARGE_WORK = "charge.work", Workload, Neither, "work done";
    CHARGE_BOOKED = "charge.booked", fixed(Base::Core), Neither, "booked by the kernel on the guest's threads";
    CHARGE_RECEIVED = "charge.received", per_second(Base::Packet), Neither, "packets received";
    CHARGE_SENT = "charge.sent", per_second(Base::Packet), Neither, "packets sent";
    CHARGE_BYTES = "charge.bytes", per_second(Base::Byte), Neither, "bytes exchanged";
    CHARGE_BLOCK_REQUESTS = "charge.block_requests", per_second(Base::Request), Neither, "block requests";
    CHARGE_PAGES = "charge.pages_exchanged", per_second(Base::Page), Neither, "pages exchanged";
    CHARGE_TOTAL = "charge.total", fixed(Base::Core), Neither, "all that the processors did";
    CHARGE_SOFTIRQ = "charge.softirq", fixed(Base::Core), Neither, "soft interrupts by the kernel's account";
    CHARGE_HOST_PACKETS = "charge.host_packets", per_second(Base::Packet), Neither, "packets of no guest";
    CHARGE_OTHER_SOFTIRQS = "charge.other_softirqs", per_second(Base::One), Neither, "soft interrupts for no I/O";
}

families! {
    CPU_STAGE = "cpu.stage.*", fixed(Base::Core), Neither, "processors kept busy by {}";
    FREQUENCY_SET = "frequency.*_mhz", fixed(Base::Core), Neither, "processors set to {} MHz";
    FREQUENCY_BUSY = "frequency.*_mhz.busy", fixed(Base::Core), Neither, "processors kept busy at {} MHz";
    IDLE_STATE = "idle.*", fixed(Base::Core), Neither, "processors in the idle state {}";
    MODEL = "model.*", Workload, Lower, "{}, by a cost model";
    CHARGE_HOST = "charge.*.host", fixed(Base::Core), Neither, "the host's own tasks ({})";
    CHARGE_HOST_SOFTIRQ = "charge.*.host_softirq", fixed(Base::Core), Neither, "soft interrupts for no guest ({})";
    CHARGE_ERROR = "charge.*.error", fixed(Base::Core), Neither, "how far that may be off ({})";
    CHARGE_UNATTRIBUTED = "charge.*.unattributed", fixed(Base::Core), Neither, "unattributed ({})";
    CHARGE_STAGE = "charge.*.*", fixed(Base::Core), Neither, "charged for {}";
}
