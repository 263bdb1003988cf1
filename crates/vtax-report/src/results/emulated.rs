//! What facts of a trial in an emulated host are called, for those who write and who read them.

/// The seed that its host had.
pub const SEED: &str = "testbed.seed";
/// The length of an instruction, in ns; only a deterministic host has one.
pub const INSTRUCTION_NS: &str = "testbed.instruction_ns";
/// How often its host got stuck before, and the trial began anew with another seed.
pub const STUCK: &str = "testbed.stuck";
/// The QEMU that emulated it.
pub const QEMU: &str = "testbed.qemu";
/// How fast its processors are at which frequency.
pub const FREQUENCY: &str = "testbed.frequency";
