// SPDX-License-Identifier: Apache-2.0
//! The host's side of a trace of Xen: whether one can begin, and its end, also after a killed run. The trace itself is
//! `vtax_observe::counters::XenTrace`.

use crate::{HostError, Roots, xl};
use std::process::Command;
use vtax_observe::counters;

/// Checks that a trace can begin.
///
/// # Errors
/// When xentrace is not installed, or another one runs.
pub fn check(roots: &Roots) -> Result<(), HostError> {
    counters::xentrace(&roots.sys).map_err(|error| HostError::Setting(error.to_string()))?;
    if counters::is_traced(&roots.proc) {
        return Err(HostError::Setting(
            "xen.trace: another xentrace runs, and two would get half of the records each; end it, or take xen.trace out of the plan"
                .to_owned(),
        ));
    }
    Ok(())
}

/// Ends all tracing and sets Xen's own mask. Does nothing on a host without Xen.
///
/// # Errors
/// When xentrace is gone or fails.
pub(crate) fn end() -> Result<(), HostError> {
    let roots = Roots::host();
    if !roots.sys.join("hypervisor/version").is_dir() {
        return Ok(());
    }
    let program =
        counters::xentrace(&roots.sys).map_err(|error| HostError::Setting(error.to_string()))?;
    let mut command = Command::new(&program);
    command.args(counters::XENTRACE_ENDING);
    xl::output(command, &program.to_string_lossy()).map(drop)
}
