// SPDX-License-Identifier: Apache-2.0
//! QEMU: a VM that vtax controls over QMP, and its guest over the QEMU guest agent. Neither needs a network or a
//! password.

mod command_line;
mod kvm;
pub mod libvirt;
mod machine;
mod nic;
mod options;
mod qmp;
mod threads;
mod vm;

pub use kvm::{KvmVerdict, kvm_boots};
pub use options::{Options, Q35, value};
pub use qmp::Qmp;

use super::vm::host::backend;
use super::vm::size::MEMORY_MIB;
use super::vm::surroundings::Surroundings;
use super::{Booted, GuestFiles, Means, Platform};
use machine::{Accel, Machine};
use std::time::Duration;
use vm::Vm;
use vtax_host::HostError;
use vtax_host::cell::{self, Seat};
use vtax_host::settings::{Parameter, Settings};

/// A virtual machine of QEMU, with KVM where it boots a stock kernel, else emulated.
#[derive(Debug, Clone, Copy)]
pub struct Qemu;

impl Platform for Qemu {
    fn kind(&self) -> &'static str {
        "qemu"
    }

    fn parameters(&self) -> &'static [Parameter] {
        machine::PARAMETERS
    }

    fn check(&self, settings: &Settings) -> Result<(), HostError> {
        let machine = Machine::from_settings(settings)?;
        vm::check(&machine)?;
        if machine.backend.has_tap() {
            cell::check_with_tap(settings)
        } else {
            cell::check(settings)
        }
    }

    fn memory_mib(&self, settings: &Settings) -> u64 {
        u64::try_from(MEMORY_MIB.integer(settings)).unwrap_or(u64::MAX)
    }

    fn means(&self) -> Means {
        Means::KvmOrEmulation
    }

    fn expected_overhead(&self) -> Duration {
        match backend().as_str() {
            "kvm_vmx" | "kvm_svm" => Duration::from_millis(1500),
            // The time of an emulated boot on two cores.
            _ => Duration::from_millis(3500),
        }
    }

    fn boot(&self, seat: &Seat, guest: &GuestFiles, settings: &Settings) -> Booted {
        let machine = Machine::from_settings(settings)?;
        Ok(Box::new(boot(machine, guest, seat)?))
    }
}

/// Decides the accelerator and boots.
fn boot(
    mut machine: Machine,
    guest: &GuestFiles,
    place: &dyn Surroundings,
) -> Result<Vm, HostError> {
    let backend = match machine.accel {
        Accel::Tcg => backend(),
        Accel::Auto | Accel::Kvm => {
            let verdict = kvm::kvm_boots_with(&machine.binary, guest);
            if machine.accel == Accel::Kvm && !verdict.boots {
                return Err(HostError::Missing {
                    what: format!(
                        "a KVM that boots a stock kernel ({})",
                        verdict.evidence.replace('\n', "; ")
                    ),
                    remedy: "set vm.accel = \"auto\" or \"tcg\" to emulate instead".into(),
                });
            }
            machine.accel = if verdict.boots {
                Accel::Kvm
            } else {
                Accel::Tcg
            };
            verdict.backend
        }
    };
    machine.msix = machine.msix && kvm::vhost_user_has_msix(&machine)?;
    Vm::boot(&machine, &backend, guest, place)
}

#[cfg(test)]
mod tests;
