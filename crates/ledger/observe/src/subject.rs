// SPDX-License-Identifier: Apache-2.0
//! Subjects of the counters: a subject is the target or the client of a trial.

use crate::namespace::NamespaceAccount;
use std::path::PathBuf;
use std::sync::Arc;
use vtax_core::owner::Owner;

/// A network device as the host sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NetDevice {
    /// A process whose network namespace holds the device (its `/proc/PID/net/dev` is read).
    pub namespace_of: u32,
    /// The device's name there, such as `tap0`.
    pub name: String,
}

/// The processes, domain and devices to observe.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Subject {
    /// The owner in every series: `target` or `client`.
    pub owner: Owner,
    /// Its control group directories: on v1 and hybrid one for each controller, on v2 one.
    pub cgroups: Vec<PathBuf>,
    /// The account of its PID namespace, where it has no control groups.
    pub namespace: Option<Arc<NamespaceAccount>>,
    /// The VMM's process, when the subject is a VM whose threads are accounted by role.
    pub vmm: Option<u32>,
    /// Thread ids of the vCPUs as the VMM itself reports them (QMP `query-cpus-fast`).
    pub vcpu_threads: Vec<u32>,
    /// Thread ids of dedicated I/O threads (QMP `query-iothreads`).
    pub iothreads: Vec<u32>,
    /// The process of its virtual NIC, whose vhost workers are then included.
    pub nic: Option<u32>,
    /// The number of the Xen domain, when the subject is one.
    pub domain: Option<u32>,
    /// Whether the hypervisor is traced while this domain is observed.
    pub is_traced: bool,
    /// Its network devices.
    pub net_devices: Vec<NetDevice>,
    /// Its block devices by kernel name, such as `loop3`.
    pub block_devices: Vec<String>,
}

impl Subject {
    /// Whether any part of the subject is on this host and can be observed.
    pub fn is_here(&self) -> bool {
        !self.cgroups.is_empty()
            || self.namespace.is_some()
            || self.vmm.is_some()
            || self.domain.is_some()
    }
}
