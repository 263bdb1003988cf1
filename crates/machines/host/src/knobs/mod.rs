// SPDX-License-Identifier: Apache-2.0
//! Knobs: settings of a host's kernel, a guest's kernel and a VMM's devices that change what notifications cost.
//!
//! [`TABLE`] declares each of them once: its key and values, where it is set, the reading that proves that it is in force,
//! and the kernel that first has it. The keys of plans, the checks before a run, the undoing, the readings of a trial and
//! the table in `docs/reference/plans.md` follow from it. [`host`] sets the host's knobs, under the journal; a guest's are set by
//! [`guest`]'s shell lines, which each platform runs in its way; a VMM's are on its command line.

mod assignment;
mod files;
pub mod guest;
pub mod host;
pub mod pages;

use crate::settings::{Domain, Parameter};
use files::Files;
use guest::GuestSetting;
use std::collections::BTreeMap;

/// A knob.
#[derive(Debug, Clone, Copy)]
pub struct Knob {
    /// Its key in plans, its values and its description.
    pub parameter: Parameter,
    /// The place in which it is set.
    pub place: Place,
    /// The reading that proves that it is in force.
    pub reading: &'static str,
    /// The first Linux that has it; `None`: older than any that vtax supports.
    pub since: Option<(u32, u32)>,
    /// Where it is documented: a page of the kernel's documentation, or a manual page.
    pub page: &'static str,
}

/// The place in which a knob is set.
#[derive(Debug, Clone, Copy)]
pub enum Place {
    /// Files of the host's kernel, under the journal.
    Host(Files),
    /// The guest's kernel.
    Guest {
        /// How it is set and read.
        setting: GuestSetting,
        /// Whether a network namespace of the host's kernel has it too, on its veth.
        on_veth: bool,
    },
    /// The VMM, on its command line.
    Vmm,
}

const MOST_NANOSECONDS: i64 = 1_000_000_000;

/// QEMU's delay of a guest's transmissions.
pub const TX_TIMER: Knob = Knob {
    parameter: Parameter::unset("vm.tx_timer", Domain::Integer(1, MOST_NANOSECONDS)).help(
        "QEMU sends a guest's frames that long after its notification, in nanoseconds (tx=timer, x-txtimer); unset: at once",
    ),
    place: Place::Vmm,
    reading: "`qom-get` of the device's `tx` and `x-txtimer`",
    since: None,
    page: "`qemu-system-x86_64 -device virtio-net-pci,help`",
};

/// The busy loop of vhost-net.
pub const VHOST_BUSYLOOP: Knob = Knob {
    parameter: Parameter::unset("host.vhost_busyloop", Domain::Integer(0, 1_000_000)).help(
        "vhost-net polls a guest's rings that long before it sleeps, in microseconds (poll-us)",
    ),
    place: Place::Vmm,
    reading: "`/dev/vhost-net` among QEMU's open files: QEMU gives it up where the kernel refuses the time",
    since: Some((4, 6)),
    page: "`qemu-system-x86_64(1)`, `-netdev tap,poll-us=`",
};

/// Huge pages below a guest's memory.
pub const HUGE_PAGES: Knob = Knob {
    parameter: Parameter::new("vm.hugepages", Domain::Bool, "false").help(
        "whether a guest's memory is in huge pages of 2 MiB, which vtax reserves for the trial",
    ),
    place: Place::Vmm,
    reading: "`HugetlbPages` in `/proc/PID/status` of the VMM",
    since: None,
    page: "`admin-guide/mm/hugetlbpage.rst`",
};

const fn host(
    parameter: Parameter,
    files: Files,
    reading: &'static str,
    page: &'static str,
) -> Knob {
    Knob {
        parameter,
        place: Place::Host(files),
        reading,
        since: None,
        page,
    }
}

const fn guest(
    parameter: Parameter,
    (setting, on_veth): (GuestSetting, bool),
    reading: &'static str,
    since: Option<(u32, u32)>,
    page: &'static str,
) -> Knob {
    let place = Place::Guest { setting, on_veth };
    Knob {
        parameter,
        place,
        reading,
        since,
        page,
    }
}

/// Every knob. The host's are set in this order: SMT determines which CPUs exist for the others, and the journal undoes in
/// reverse.
pub static TABLE: &[Knob] = &[
    host(
        Parameter::unset("host.smt", Domain::Bool)
            .help("simultaneous multithreading of every core"),
        files::smt,
        "`/sys/devices/system/cpu/smt/control`",
        "`ABI/testing/sysfs-devices-system-cpu`",
    ),
    host(
        Parameter::unset(
            "host.governor",
            Domain::Choice(&[
                "performance",
                "powersave",
                "schedutil",
                "ondemand",
                "conservative",
                "userspace",
            ]),
        )
        .help("cpufreq governor of every CPU"),
        files::governor,
        "`cpufreq/policy*/scaling_governor`",
        "`admin-guide/pm/cpufreq.rst`",
    ),
    host(
        Parameter::unset("host.turbo", Domain::Bool)
            .help("frequency boost above the nominal frequency"),
        files::turbo,
        "`intel_pstate/no_turbo` or `cpufreq/boost`",
        "`admin-guide/pm/intel_pstate.rst`",
    ),
    host(
        Parameter::unset("host.ksm", Domain::Bool)
            .help("kernel same-page merging; off also unmerges what was merged"),
        files::ksm,
        "`/sys/kernel/mm/ksm/run`",
        "`admin-guide/mm/ksm.rst`",
    ),
    host(
        Parameter::unset("host.thp", Domain::Choice(&["always", "madvise", "never"]))
            .help("transparent hugepages"),
        files::hugepages,
        "`/sys/kernel/mm/transparent_hugepage/enabled`",
        "`admin-guide/mm/transhuge.rst`",
    ),
    host(
        Parameter::unset(
            "host.idle_max",
            Domain::Text("an idle state, in quotes: its name or number"),
        )
        .help("deepest idle state that a CPU may enter, such as \"C1\" or \"1\""),
        files::idle,
        "`cpuidle/state*/disable` of every CPU",
        "`admin-guide/pm/cpuidle.rst`",
    ),
    host(
        Parameter::unset("host.halt_poll_ns", Domain::Integer(0, 10_000_000)).help(
            "the longest that KVM polls for a virtual processor's wake-up before it sleeps, in nanoseconds; 0: never",
        ),
        files::halt_poll,
        "`/sys/module/kvm/parameters/halt_poll_ns`",
        "`virt/kvm/halt-polling.rst`",
    ),
    guest(
        Parameter::unset("guest.napi_defer_hard_irqs", Domain::Integer(0, 1 << 30)).help(
            "how many empty polls the guest's NAPI makes, each guest.gro_flush_timeout apart, before it enables interrupts again",
        ),
        (GuestSetting::DeviceFile("napi_defer_hard_irqs"), true),
        "`/sys/class/net/eth0/napi_defer_hard_irqs`",
        Some((5, 8)),
        "`networking/napi.rst`",
    ),
    guest(
        Parameter::unset("guest.gro_flush_timeout", Domain::Integer(0, MOST_NANOSECONDS))
            .help("the time from one deferred poll of the guest's NAPI to the next, in nanoseconds"),
        (GuestSetting::DeviceFile("gro_flush_timeout"), true),
        "`/sys/class/net/eth0/gro_flush_timeout`",
        Some((3, 19)),
        "`networking/napi.rst`",
    ),
    guest(
        Parameter::unset("guest.irq_suspend_timeout", Domain::Integer(0, MOST_NANOSECONDS)).help(
            "how long interrupts stay off while a program polls by epoll with prefer_busy_poll, in nanoseconds; others are not affected",
        ),
        (GuestSetting::IrqSuspension, false),
        "`napi-get` of the netlink family `netdev`",
        Some((6, 13)),
        "`networking/napi.rst`",
    ),
    guest(
        Parameter::unset("guest.busy_poll", Domain::Integer(0, 1_000_000))
            .help("how long the guest's poll, select and reads busy-poll the device, in microseconds"),
        (
            GuestSetting::Sysctls(&["net/core/busy_poll", "net/core/busy_read"]),
            false,
        ),
        "`net.core.busy_poll` and `net.core.busy_read`",
        Some((3, 11)),
        "`admin-guide/sysctl/net.rst`",
    ),
    guest(
        Parameter::unset("guest.coalesce", Domain::Text("words of `ethtool -C`"))
            .help("the guest's interrupt coalescing, such as \"rx-usecs 100 rx-frames 64\" or \"adaptive-rx on\""),
        (
            GuestSetting::Words {
                set: "-C",
                show: "-c",
                words: &[
                    "adaptive-rx",
                    "adaptive-tx",
                    "rx-usecs",
                    "rx-frames",
                    "tx-usecs",
                    "tx-frames",
                ],
            },
            false,
        ),
        "`ethtool -c eth0`",
        None,
        "`ethtool(8)`",
    ),
    guest(
        Parameter::unset("guest.ring", Domain::Text("words of `ethtool -G`"))
            .help("the descriptors of the guest's rings, such as \"rx 256 tx 256\""),
        (
            GuestSetting::Words {
                set: "-G",
                show: "-g",
                words: &["rx", "tx"],
            },
            false,
        ),
        "`ethtool -g eth0`",
        Some((6, 1)),
        "`ethtool(8)`",
    ),
    guest(
        Parameter::unset("guest.gro", Domain::Bool)
            .help("whether the guest merges received segments (generic receive offload)"),
        (
            GuestSetting::Feature("gro", "generic-receive-offload"),
            true,
        ),
        "`ethtool -k eth0`",
        None,
        "`networking/segmentation-offloads.rst`",
    ),
    guest(
        Parameter::unset("guest.tso", Domain::Bool)
            .help("whether the guest leaves the segmentation of TCP to the device"),
        (
            GuestSetting::Feature("tso", "tcp-segmentation-offload"),
            true,
        ),
        "`ethtool -k eth0`",
        None,
        "`networking/segmentation-offloads.rst`",
    ),
    TX_TIMER,
    VHOST_BUSYLOOP,
    HUGE_PAGES,
];

/// The knob of a key.
pub fn by_key(key: &str) -> Option<&'static Knob> {
    TABLE.iter().find(|knob| knob.parameter.key == key)
}

/// The knobs of a guest's kernel.
pub fn of_guests() -> impl Iterator<Item = (&'static Knob, &'static GuestSetting)> {
    TABLE.iter().filter_map(|knob| match &knob.place {
        Place::Guest { setting, .. } => Some((knob, setting)),
        Place::Host(_) | Place::Vmm => None,
    })
}

/// The differences between the readings of knobs before and after a trial's load, as sentences.
pub fn changes(before: &BTreeMap<String, String>, after: &BTreeMap<String, String>) -> Vec<String> {
    let changed = before.iter().filter_map(|(key, was)| {
        let is = after.get(key).map_or("nothing", String::as_str);
        (is != was).then(|| {
            format!("another program changed {key} during the trial: `{was}` at its begin, `{is}` at its end")
        })
    });
    changed.collect()
}

#[cfg(test)]
mod tests;
