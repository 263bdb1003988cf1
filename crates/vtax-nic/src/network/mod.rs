//! Networks: ports, and how frames get from one to another.

mod packet;

pub use packet::{BATCH, Batch, Frame, Packet, own, peek};
