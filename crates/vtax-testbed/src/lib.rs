//! Emulated hosts with real hypervisors in them: QEMU emulates the machine, and Debian's own
//! kernel with KVM and vhost-net, or Xen with a Linux Dom0, runs in it.
//!
//! [`build`] makes the host from a recipe, [`run_plan`] runs each trial of an unchanged plan in one with this
//! very binary and brings the results back, [`cost`] says what real hardware would have charged
//! for what was counted. By default the machine's clock is its instruction count, so that the
//! same plan gives the same numbers wherever and whenever it runs. See `docs/testbed.md`.

#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

pub mod cost;
pub mod emulator;
mod flight;
pub mod guard;
mod host;
mod hosts;
mod link;
mod machine;
mod moment;
mod outlet;
mod payload;
mod pstates;
mod pulse;
mod recipe;
mod running;
mod scratch;
mod settings;
mod shell;
mod speed;

pub use host::{Host, Kept, available, build, cached, list, ready, remove};
pub use hosts::{PlanRun, run_plan};
pub use pulse::watch;
pub use recipe::recipe;
pub use settings::{Frequency, Settings};
pub use shell::shell;
pub use speed::Speed;
