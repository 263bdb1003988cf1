//! Xen: a paravirtual guest whose disks and network device have their back ends in Dom0, driven
//! with `xl` and, inside, over the QEMU guest agent on a console channel.

mod config;
mod domain;
mod stat;

use super::{GuestFiles, Platform, Target};
use crate::LabError;
use crate::cell::Cell;
use crate::settings::{Domain as Bounds, Parameter, Settings};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

const PARAMETERS: &[Parameter] = &[
    Parameter {
        key: "vm.vcpus",
        domain: Bounds::Integer(1, 256),
        default: Some("1"),
        help: "number of vCPUs",
    },
    Parameter {
        key: "vm.memory_mib",
        domain: Bounds::Integer(128, 1 << 20),
        default: Some("512"),
        help: "memory of the guest, in MiB",
    },
];

/// A paravirtual domain under Xen; vtax itself runs in Dom0.
#[derive(Debug, Clone, Copy)]
pub struct Xen;

impl Platform for Xen {
    fn kind(&self) -> &'static str {
        "xen"
    }

    fn parameters(&self) -> &'static [Parameter] {
        PARAMETERS
    }

    fn check(&self, _settings: &Settings) -> Result<(), LabError> {
        // The file exists under every Xen; only in Dom0 does it say so.
        let capabilities = std::fs::read_to_string("/proc/xen/capabilities").unwrap_or_default();
        if !capabilities.contains("control_d") {
            return Err(LabError::Missing {
                what: "Xen with this host as its Dom0".into(),
                remedy: "boot it under Xen (with xenfs on /proc/xen), or run the plan with --at testbed:xen".into(),
            });
        }
        xl(&["info"]).map(drop)
    }

    fn expected_overhead(&self) -> Duration {
        Duration::from_secs(8)
    }

    fn boot(
        &self,
        cell: &Cell,
        guest: &GuestFiles,
        settings: &Settings,
    ) -> Result<Box<dyn Target>, LabError> {
        let size = config::Size {
            vcpus: settings.integer("vm.vcpus", 1),
            memory_mib: settings.integer("vm.memory_mib", 512),
        };
        Ok(Box::new(domain::Domain::boot(cell, guest, size)?))
    }
}

/// Runs xl; its standard output.
fn xl(arguments: &[&str]) -> Result<String, LabError> {
    let output = Command::new("xl")
        .args(arguments)
        .stdin(Stdio::null())
        .output()
        .map_err(|cause| LabError::Missing {
            what: format!("the program xl ({cause})"),
            remedy: "apt-get install xen-utils".into(),
        })?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    Err(LabError::Program {
        command: format!("xl {}", arguments.join(" ")),
        status: output.status.to_string(),
        output: String::from_utf8_lossy(&output.stderr).into_owned(),
    })
}

/// A path in xl's configuration, where quotes and commas would end it.
fn plain(path: &Path) -> Result<&str, LabError> {
    path.to_str()
        .filter(|text| !text.contains(['"', '\'', ',', '\n', '\\']))
        .ok_or_else(|| {
            LabError::Other(format!(
                "the path {} cannot stand in xl's configuration: use one without quotes and commas",
                path.display()
            ))
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_without_xen_is_told_what_is_missing() {
        if Path::new("/proc/xen/capabilities").exists() {
            eprintln!("SKIPPED: this host runs under Xen");
            return;
        }
        let said = Xen.check(&Settings::default()).unwrap_err().to_string();
        assert!(
            said.contains("Dom0") && said.contains("testbed:xen"),
            "{said}"
        );
    }

    #[test]
    fn a_path_that_would_end_its_value_is_refused() {
        assert_eq!(plain(Path::new("/var/cache/x")).unwrap(), "/var/cache/x");
        for path in ["/a,b", "/a\"b", "/a'b", "/a\nb"] {
            assert!(plain(Path::new(path)).is_err(), "{path}");
        }
    }
}
