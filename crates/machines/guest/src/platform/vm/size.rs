// SPDX-License-Identifier: Apache-2.0
//! The size of a VM: one set of keys for every platform, so that a plan varies it on all of them.

use vtax_host::HostError;
use vtax_host::cell::cpus::CpuList;
use vtax_host::settings::{Domain, Parameter, Settings};

pub(in crate::platform) const VCPUS: Parameter =
    Parameter::new("vm.vcpus", Domain::Integer(1, 256), "1").help("number of vCPUs");
pub(in crate::platform) const MEMORY_MIB: Parameter =
    Parameter::new("vm.memory_mib", Domain::Integer(128, 1 << 20), "512")
        .help("memory of the guest, in MiB");
pub(in crate::platform) const PIN: Parameter = Parameter::unset("vm.pin", Domain::Text("cpu list"))
    .help("processors for the vCPU threads, one each in ascending order, as in \"2-3\"");

/// The processors of [`PIN`], which must be online; `None` where it is not set.
pub(in crate::platform) fn pin(settings: &Settings) -> Result<Option<CpuList>, HostError> {
    let given = settings.text(PIN.key);
    given.map(CpuList::parse_online).transpose()
}
