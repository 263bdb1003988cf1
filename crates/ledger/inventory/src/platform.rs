// SPDX-License-Identifier: Apache-2.0
//! The platforms that run guests, by name.

/// The software that runs a guest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub enum Platform {
    /// QEMU, with KVM or without.
    #[default]
    Qemu,
    /// Cloud Hypervisor.
    CloudHypervisor,
    /// Firecracker.
    Firecracker,
    /// A population of vtax's 512-byte VMs.
    MicroVm,
    /// A domain of the Xen hypervisor whose Dom0 is this host.
    Xen,
    /// Docker.
    Docker,
    /// Podman.
    Podman,
    /// containerd without Kubernetes.
    Containerd,
    /// A container of a Kubernetes pod, with any runtime.
    Kubernetes,
    /// runc without an engine.
    Runc,
    /// crun without an engine.
    Crun,
    /// LXC and its relatives.
    Lxc,
    /// systemd-nspawn, and other containers that are registered with systemd-machined.
    Nspawn,
    /// A job of Slurm.
    Slurm,
    /// A slot of HTCondor.
    HtCondor,
    /// A job of Flux.
    Flux,
    /// Apptainer.
    Apptainer,
    /// SingularityCE.
    Singularity,
    /// Garden of Cloud Foundry.
    Garden,
    /// None: processes of this host that a user names as a service.
    Native,
}

impl Platform {
    /// Its name in tables and labels.
    pub fn name(self) -> &'static str {
        match self {
            Self::Qemu => "qemu",
            Self::CloudHypervisor => "cloud-hypervisor",
            Self::Firecracker => "firecracker",
            Self::MicroVm => "mvm",
            Self::Xen => "xen",
            Self::Docker => "docker",
            Self::Podman => "podman",
            Self::Containerd => "containerd",
            Self::Kubernetes => "kubernetes",
            Self::Runc => "runc",
            Self::Crun => "crun",
            Self::Lxc => "lxc",
            Self::Nspawn => "nspawn",
            Self::Slurm => "slurm",
            Self::HtCondor => "htcondor",
            Self::Flux => "flux",
            Self::Apptainer => "apptainer",
            Self::Singularity => "singularity",
            Self::Garden => "garden",
            Self::Native => "native",
        }
    }

    /// Whether its guests are VMs, as opposed to containers and jobs.
    pub fn is_vm(self) -> bool {
        matches!(
            self,
            Self::Qemu | Self::CloudHypervisor | Self::Firecracker | Self::MicroVm | Self::Xen
        )
    }
}
