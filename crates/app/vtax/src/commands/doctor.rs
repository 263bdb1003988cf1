// SPDX-License-Identifier: Apache-2.0
//! `vtax doctor`: the platforms that this host can run, and the quantities that it can measure.

use crate::Outcome;
use crate::cli::DoctorArgs;
use crate::exit::CannotHere;
use crate::output::{out, write_data};
use crate::progress::note;
use vtax_doctor::{self as doctor, HostProbes, KvmBoot, Options, Style};
use vtax_guest::image::{self, Recipe};
use vtax_guest::platform::qemu;
use vtax_host::signals::{Signals, end_with_reader};
use vtax_host::{HostError, Roots, rootless};
use vtax_lab::place::Place;

pub fn run(arguments: &DoctorArgs) -> Outcome {
    // What a run of this user can do. Where it can do nothing, the findings say why.
    if !rootless::is_root()
        && let Err(refused) = rootless::enter()
    {
        note(&refused.to_string());
    }
    let signals = Signals::install()?;
    let probes = HostProbes {
        boot: Some(Box::new(boot_on_kvm)),
        testbed: Some(Box::new(testbed)),
    };
    let options = Options {
        probes: &probes,
        scan_wall_meters: arguments.scan_wall_meters,
        storage: image::cache_dir()?,
        signals: Some(&signals),
    };
    let findings = doctor::examine(&Roots::host(), &options);
    signals.check()?;
    end_with_reader()?;
    if arguments.format.is_json() {
        write_data(&doctor::json(&findings)?)?;
    } else {
        out!("{}", doctor::render(&findings, Style::for_stdout()))?;
    }
    if doctor::summarize(&findings).can_run() {
        Ok(())
    } else {
        Err(CannotHere("no platform can run on this host").into())
    }
}

/// Describes the emulator and the image of the testbed with this `--place` name. An error where there is no image: root
/// builds it once.
fn testbed(name: &str) -> Result<String, HostError> {
    let Ok(Place::Testbed(hypervisor)) = name.parse() else {
        return Err(HostError::Other(format!("{name} is no emulated host")));
    };
    vtax_testbed::available(hypervisor)
}

/// Boots the shared image's kernel, the one that trials boot, on KVM.
fn boot_on_kvm() -> KvmBoot {
    match image::cached(&Recipe::standard()) {
        Ok(Some(guest)) => {
            let verdict = qemu::kvm_boots(&guest);
            if verdict.boots {
                KvmBoot::Boots(format!("to user space in {:.1} s", verdict.seconds))
            } else {
                KvmBoot::Fails(verdict.evidence)
            }
        }
        Ok(None) => KvmBoot::NotTried(
            "no kernel to try it with yet; `vtax image build` brings one".to_owned(),
        ),
        Err(cause) => KvmBoot::NotTried(cause.to_string()),
    }
}
