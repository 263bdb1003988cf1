// SPDX-License-Identifier: Apache-2.0
//! Probes whose results each test chooses.

use super::{Counters, KvmBoot, Probes, SshKeys};
use std::io;
use std::path::Path;
use std::sync::Arc;
use vtax_guest::platform::Platform;
use vtax_guest::platform::container::Runtime;
use vtax_host::cell::LinkConfig;
use vtax_host::{HostError, Roots};
use vtax_meter::Discovery;
use vtax_observe::ObserveError;
use vtax_observe::clock::{Clock, SystemClock};

/// Probes whose results each test chooses.
pub(crate) struct FakeProbes {
    pub(crate) boot: KvmBoot,
    /// Whether a platform, container runtime or source of counts with this name can be used.
    pub(crate) answers: fn(&str) -> bool,
    pub(crate) cell: fn(&LinkConfig) -> Result<(), HostError>,
    pub(crate) scan: &'static str,
    pub(crate) free_space: u64,
}

impl Default for FakeProbes {
    fn default() -> Self {
        Self {
            boot: KvmBoot::Boots("to its init in 1.2 s".to_owned()),
            answers: |_| true,
            cell: |_| Ok(()),
            scan: "",
            free_space: 100 << 30,
        }
    }
}

impl FakeProbes {
    fn ask(&self, name: &str) -> Result<(), HostError> {
        let missing = || HostError::Missing {
            what: name.to_owned(),
            remedy: format!("bring {name}"),
        };
        (self.answers)(name).then_some(()).ok_or_else(missing)
    }
}

impl Probes for FakeProbes {
    fn platform(&self, platform: &dyn Platform) -> Result<(), HostError> {
        self.ask(platform.kind())
    }

    fn boot_on_kvm(&self) -> KvmBoot {
        self.boot.clone()
    }

    fn runtime(&self, runtime: Runtime) -> Result<(), HostError> {
        self.ask(runtime.name())
    }

    fn cell(&self, link: LinkConfig) -> Result<(), HostError> {
        (self.cell)(&link)
    }

    fn meters(&self, roots: &Roots) -> Result<Vec<Discovery>, HostError> {
        // Meters are not measured under load here; the code that measures them has its own tests.
        let options = vtax_meter::Options {
            only: ["powercap", "hwmon", "model"].map(str::to_owned).to_vec(),
            ..vtax_meter::Options::default()
        };
        let clock: Arc<dyn Clock> = Arc::new(SystemClock);
        Ok(vtax_meter::discover(roots, &options, &clock))
    }

    fn counters(&self, counters: Counters, _roots: &Roots) -> Result<String, ObserveError> {
        let what = format!("{counters:?}");
        if (self.answers)(&what) {
            return Ok("cycles 7".to_owned());
        }
        Err(ObserveError::Permission {
            what,
            remedy: "kernel.perf_event_paranoid is 3".to_owned(),
        })
    }

    fn open_device(&self, device: &Path) -> io::Result<()> {
        std::fs::File::open(device).map(drop)
    }

    fn libvirt(&self) -> Result<String, HostError> {
        self.ask("libvirt").map(|()| "2 domains".to_owned())
    }

    fn ssh_keys(&self) -> SshKeys {
        SshKeys {
            files: usize::from((self.answers)("a key")),
            agent: None,
        }
    }

    fn engine(&self, name: &'static str) -> Result<String, HostError> {
        self.ask(name).map(|()| "4.3.1".to_owned())
    }

    fn testbed(&self, name: &str) -> Result<String, HostError> {
        self.ask(name).map(|()| "QEMU 7.2".to_owned())
    }

    fn scan_wall_meters(&self) -> io::Result<String> {
        Ok(self.scan.to_owned())
    }

    fn free_space(&self, _path: &Path) -> Option<u64> {
        Some(self.free_space)
    }
}
