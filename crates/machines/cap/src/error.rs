// SPDX-License-Identifier: Apache-2.0
//! Reasons that a guest's time cannot be limited.

use std::path::PathBuf;
use vtax_host::HostError;
use vtax_kernel::KernelError;

/// A guest whose time cannot be limited.
#[derive(Debug, thiserror::Error)]
pub enum LimitError {
    /// It has no control group.
    #[error("it has no control group that is known")]
    NoGroup,
    /// Its monitor is not known.
    #[error("its monitor is not known")]
    NoMonitor,
    /// Its control group holds other processes.
    #[error(
        "its control group `{}` is that of other processes too, which the quota would hold as well; start it in one of its own (`systemd-run --scope`, libvirt)",
        .0.display()
    )]
    SharedGroup(PathBuf),
    /// Its control group has no quota.
    #[error("its control group has no quota: {0}; is the controller `cpu` enabled for it?")]
    NoQuota(#[from] KernelError),
    /// The toolstack of Xen refuses.
    #[error(transparent)]
    Domain(#[from] HostError),
}
