//! Whom the counters are about: a subject is the target or the client of a trial.

use std::path::PathBuf;

/// A network device as the host sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NetDevice {
    /// A process whose network namespace holds the device (its `/proc/PID/net/dev` is read).
    pub namespace_of: u32,
    /// The device's name there, such as `tap0`.
    pub name: String,
}

/// Whom to observe.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Subject {
    /// The owner in every series: `target` or `client`.
    pub owner: String,
    /// Its control group directories: on v1 and hybrid one for each controller, on v2 one.
    pub cgroups: Vec<PathBuf>,
    /// The VMM's process, when the subject is a VM whose threads are to be told apart.
    pub vmm: Option<u32>,
    /// Thread ids of the vCPUs as the VMM itself reports them (QMP `query-cpus-fast`).
    pub vcpu_threads: Vec<u32>,
    /// Thread ids of dedicated I/O threads (QMP `query-iothreads`).
    pub iothreads: Vec<u32>,
    /// The process of its virtual NIC, where vhost workers of that are told apart as well.
    pub nic: Option<u32>,
    /// The number of the Xen domain, when the subject is one.
    pub domain: Option<u32>,
    /// Its network devices.
    pub net_devices: Vec<NetDevice>,
    /// Its block devices by kernel name, such as `loop3`.
    pub block_devices: Vec<String>,
}

impl Subject {
    /// Whether anything of it is on this host, to be watched.
    pub fn is_here(&self) -> bool {
        !self.cgroups.is_empty() || self.vmm.is_some() || self.domain.is_some()
    }
}
