// SPDX-License-Identifier: Apache-2.0
//! The watchdog of guests: runs inside an emulated host, beside the trial, and reports a guest that hangs.
//!
//! QEMU's emulation of SVM sometimes delivers an interrupt twice (`docs/why/testbed.md`), and the guest's kernel
//! may then wait with interrupts off for a lock that it holds itself. Such a guest exits only for interrupts of the
//! host: it takes none, never halts and accesses no device.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::io::Write;
use std::path::Path;
use std::time::Duration;
use vtax_host::roots::Roots;

/// Time between two checks, by the host's clock. A second in which a guest waits for its own lock costs QEMU some 24 s
/// of processor time, several times as much as others.
const INTERVAL: Duration = Duration::from_millis(200);

/// Checks without activity after which a guest hangs. No kernel keeps interrupts off for that long.
const CHECKS: u32 = 3;

/// Interrupts after which a guest's kernel has booted. Firmware and decompression take none.
const UP: u64 = 100;

/// The least exits between two checks of a guest that computes, caused by timers of the host. A paused or halted guest
/// has none.
const COMPUTES: u64 = 10;

/// The prefix of the name of a QEMU process.
const QEMU: &str = "qemu-system";

/// The line that ends a trial whose guest is stuck.
pub(crate) const STUCK: &str = "{\"testbed\":\"stuck\"}";

/// Starts to watch the guests of this host; prints `STUCK` to standard output when one hangs.
pub fn watch() {
    std::thread::spawn(|| {
        let roots = Roots::host();
        let mut seen = BTreeMap::new();
        loop {
            std::thread::sleep(INTERVAL);
            if check(&roots, &mut seen) {
                // A closed output means that the trial has ended.
                let _ = writeln!(vtax_core::terminal::stdout(), "{STUCK}");
                return;
            }
        }
    });
}

/// The activity of a guest: its counts, and the number of checks without activity.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Activity {
    exits: u64,
    interrupts: u64,
    life: u64,
    without: u32,
}

/// Checks each guest of a QEMU; returns whether one hangs.
fn check(roots: &Roots, seen: &mut BTreeMap<OsString, Activity>) -> bool {
    let entries = fs::read_dir(roots.sys.join("kernel/debug/kvm"));
    let mut now = BTreeMap::new();
    for entry in entries.into_iter().flatten().flatten() {
        if let Some(found) = read(roots, &entry.file_name().to_string_lossy(), &entry.path()) {
            let before = seen.get(&entry.file_name()).copied();
            now.insert(entry.file_name(), found.after(before));
        }
    }
    *seen = now;
    seen.values().any(|watchdog| watchdog.without >= CHECKS)
}

/// The activity of a VM from its directory, whose name has its process and descriptor.
fn read(roots: &Roots, name: &str, directory: &Path) -> Option<Activity> {
    let (process, _) = name.split_once('-')?;
    // Other VMs, such as micro VMs, may take no interrupts.
    roots
        .proc_text(&format!("{process}/comm"))
        .filter(|comm| comm.starts_with(QEMU))?;
    let count = |file: &str| -> Option<u64> {
        let text = fs::read_to_string(directory.join(file)).ok()?;
        text.trim().parse().ok()
    };
    let interrupts = count("irq_injections")?;
    let mut life = ["halt_exits", "io_exits", "mmio_exits"].into_iter();
    Some(Activity {
        exits: count("exits")?,
        interrupts,
        life: life.try_fold(interrupts, |sum, file| sum.checked_add(count(file)?))?,
        without: 0,
    })
}

impl Activity {
    fn after(self, before: Option<Self>) -> Self {
        let without = before.map_or(0, |before| {
            let computed = self.exits.saturating_sub(before.exits) >= COMPUTES;
            if computed && self.life == before.life && self.interrupts >= UP {
                before.without.saturating_add(1)
            } else {
                0
            }
        });
        Self { without, ..self }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use vtax_host::fake_host::FakeHost;

    /// The number of the check, of ten, at which a guest counts as stuck. It has taken `before` interrupts, has this
    /// many more exits and interrupts at each check, and its process has the name `comm`.
    fn stuck_after(comm: &str, before: u64, exits: u64, interrupts: u64) -> Option<u64> {
        let host = FakeHost::empty();
        host.file("proc/70/comm", &format!("{comm}\n"));
        let mut seen = BTreeMap::new();
        (0..10).find(|round| {
            for (file, count) in [
                ("exits", 1000 + round * exits),
                ("irq_injections", before + round * interrupts),
                ("halt_exits", 3),
                ("io_exits", 40),
                ("mmio_exits", 5),
            ] {
                let path = format!("sys/kernel/debug/kvm/70-9/{file}");
                host.file(&path, &format!("{count}\n"));
            }
            check(&host.roots, &mut seen)
        })
    }

    #[test]
    fn a_guest_that_computes_and_takes_no_interrupts_is_stuck() {
        assert_eq!(
            stuck_after("qemu-system-x86", 5000, 50, 0),
            Some(u64::from(CHECKS))
        );
    }

    #[test]
    fn firmware_and_decompression_need_no_interrupts() {
        assert_eq!(stuck_after("qemu-system-x86", 20, 50, 0), None);
    }

    #[test]
    fn one_that_takes_interrupts_is_paused_or_is_no_qemu_is_not() {
        assert_eq!(stuck_after("qemu-system-x86", 5000, 50, 1), None);
        assert_eq!(stuck_after("qemu-system-x86", 5000, 0, 0), None);
        assert_eq!(stuck_after("vtax", 5000, 50, 0), None);
    }

    #[test]
    fn life_starts_the_count_again() {
        let still = Activity {
            exits: 2000,
            interrupts: 5000,
            life: 5007,
            without: 1,
        };
        let later = |exits, life| Activity {
            exits,
            interrupts: 5000,
            life,
            without: 0,
        };
        assert_eq!(later(3000, 5007).after(Some(still)).without, 2);
        assert_eq!(later(3000, 5008).after(Some(still)).without, 0);
    }
}
