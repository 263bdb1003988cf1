//! Micro VMs: guests that are one 512-byte boot sector, and a monitor that holds a million of them.
//!
//! An [`image::Image`] is the whole guest. A [`machine::Machine`] runs one on KVM, with interrupt
//! controller, timer and serial port in user space, so that a halted guest needs no thread. A
//! [`population::Population`] holds many: parked ones as a few hundred bytes each, live ones with
//! their KVM objects. [`front`] gives every guest an address.


pub mod error;

pub mod image;
pub mod machine;





pub use error::{Error, Result};
