//! The metrics by which a trial says what was charged in it. All are rates, so that stretches compare:
//! times in processors kept busy, counts and work a second.

/// The ways to charge.
pub const METHODS: [&str; 2] = ["traced", "counted"];

/// The work that a guest's load saw done; absent where the guest had no load.
pub const WORK: &str = "charge.work";
/// What the kernel books on a guest's threads and processes.
pub const BOOKED: &str = "charge.booked";
/// Packets that a guest received.
pub const RECEIVED: &str = "charge.received";
/// Packets that it sent.
pub const SENT: &str = "charge.sent";
/// Bytes in both directions.
pub const BYTES: &str = "charge.bytes";
/// Its block requests.
pub const BLOCK_REQUESTS: &str = "charge.block_requests";
/// Pages that back ends exchanged with it, where it is a Xen domain.
pub const PAGES: &str = "charge.pages_exchanged";

/// What all of the host's processors did. This one and those below are with the target's.
pub const TOTAL: &str = "charge.total";
/// The kernel's own account of soft interrupts.
pub const SOFTIRQ: &str = "charge.softirq";
/// Packets that were no guest's.
pub const HOST_PACKETS: &str = "charge.host_packets";
/// Runs of soft interrupts for no I/O.
pub const OTHER_SOFTIRQS: &str = "charge.other_softirqs";

/// What a method charged to a guest for a stage.
pub fn stage(method: &str, stage: &str) -> String {
    format!("charge.{method}.{stage}")
}

/// What a method charged to the host's tasks.
pub fn host(method: &str) -> String {
    format!("charge.{method}.host")
}

/// Soft interrupts that a method found to be for no guest.
pub fn host_softirq(method: &str) -> String {
    format!("charge.{method}.host_softirq")
}

/// How far what a method charged to a guest may be off, all stages together; absent where it is measured.
pub fn error(method: &str) -> String {
    format!("charge.{method}.error")
}

/// What a method left unattributed.
pub fn unattributed(method: &str) -> String {
    format!("charge.{method}.unattributed")
}

/// The fact of a trial's environment that says why soft interrupts were not traced.
pub const NOT_TRACED: &str = "charge.not_traced";

/// The setting that chooses the methods; as a factor of a treatment it tells what tracing costs.
pub const CHARGE: &str = "observe.charge";

/// The factor that names the load of the second guest.
pub const NEIGHBOURS: &str = "neighbours";
