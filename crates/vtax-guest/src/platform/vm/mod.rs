//! What the platforms whose guests are VMs share: the size of a guest, its agent, what the agent reads,
//! the VMM's process, and the place that it runs in.

pub(super) mod agent;
pub(super) mod host;
pub mod inner;
pub(super) mod process;
pub(super) mod size;
pub(super) mod surroundings;
pub(super) mod wire;
