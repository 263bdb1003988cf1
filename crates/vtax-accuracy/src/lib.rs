//! How right charge-back is. Two guests are charged together, and each of them alone under the same
//! load: alone, all that the host does for guests is for this one, so that is what is true.
//!
//! [`run`] measures what an ordinary plan describes: its first and its last workload are the loads of
//! the two guests; what stands between them is run alone, in a guest of its own, and is what the
//! weights of the counted method are fitted to. [`study`] is the record, [`analysis`] compares, and
//! [`table`] shows it. See `docs/charge.md`.

pub mod analysis;
pub mod run;
pub mod study;
pub mod table;
