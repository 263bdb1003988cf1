// SPDX-License-Identifier: Apache-2.0
//! Boot sectors of misbehaving guests, and the conditions for running guests.

use vtax_mvm::image::{Image, SECTOR};
use vtax_mvm::machine::kvm::Host;
use vtax_testkit::needs::Need;

/// The condition that KVM can run micro VMs.
pub fn micro_vms() -> Need {
    Need::from(Host::open().map(drop).map_err(|reason| reason.to_string()))
}

/// A boot sector with this code.
pub fn program(code: &[u8]) -> Image {
    let mut bytes = [0u8; SECTOR];
    bytes[..code.len()].copy_from_slice(code);
    bytes[510..].copy_from_slice(&[0x55, 0xAA]);
    Image::from_bytes("program", &bytes).unwrap()
}

/// A program that sleeps until its serial port interrupts, with `handler` at 0x7C24.
pub fn on_serial(handler: &[u8]) -> Image {
    let sleeper = [
        0xFA, 0x31, 0xC0, 0x8E, 0xD8, 0x8E, 0xD0, 0xBC, 0x00, 0x7C, // cli; segments; stack
        0xC7, 0x06, 0x30, 0x00, 0x24, 0x7C, 0xA3, 0x32, 0x00, // vector 0x0C -> 0x7C24
        0xB0, 0xEF, 0xE6, 0x21, 0xBA, 0xF9, 0x03, 0xB0, 0x01, 0xEE, 0xFB, // unmask
        0xF4, 0xEB, 0xFD, 0x90, 0x90, 0x90, // hlt; jmp
    ];
    program(&[&sleeper[..], handler].concat())
}

/// A program that waits for a byte, then loads an empty interrupt table and faults.
pub fn faulting() -> Image {
    on_serial(&[
        0x0F, 0x01, 0x1E, 0x50, 0x7C, // 0x7C24: lidt [0x7C50], which is empty
        0x0F, 0x20, 0xC0, 0x0C, 0x01, 0x0F, 0x22, 0xC0, // protected mode
        0xCC, 0x0F, 0x0B, // int3; ud2
    ])
}
