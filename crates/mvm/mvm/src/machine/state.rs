// SPDX-License-Identifier: Apache-2.0
//! A guest's whole state: processor, devices and memory.

use super::MEMORY;
use super::devices::{Devices, Pic, Pit};
use crate::error::{Error, Result};
use crate::image::{Image, ORIGIN, SECTOR};
use kvm_bindings::{kvm_fpu, kvm_regs, kvm_sregs, kvm_vcpu_events};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes};

/// The floating-point and vector registers in FXSAVE's layout.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, FromBytes, IntoBytes, Immutable)]
pub struct Fpu {
    registers: [[u8; 16]; 8],
    xmm: [[u8; 16]; 16],
    last_instruction: u64,
    last_data: u64,
    control: u16,
    status: u16,
    last_opcode: u16,
    tags: u16,
    mxcsr: u64,
}

impl Default for Fpu {
    fn default() -> Self {
        Self {
            control: 0x37F,
            ..Self::new_zeroed()
        }
    }
}

impl Fpu {
    pub(super) fn from_kvm(fpu: &kvm_fpu) -> Self {
        Self {
            registers: fpu.fpr,
            xmm: fpu.xmm,
            last_instruction: fpu.last_ip,
            last_data: fpu.last_dp,
            control: fpu.fcw,
            status: fpu.fsw,
            last_opcode: fpu.last_opcode,
            tags: u16::from(fpu.ftwx),
            mxcsr: u64::from(fpu.mxcsr),
        }
    }

    pub(super) fn to_kvm(self) -> kvm_fpu {
        kvm_fpu {
            fpr: self.registers,
            xmm: self.xmm,
            last_ip: self.last_instruction,
            last_dp: self.last_data,
            fcw: self.control,
            fsw: self.status,
            last_opcode: self.last_opcode,
            // Both were widened by `from_kvm` or checked by `unpack`, so nothing is cut.
            ftwx: self.tags as u8,
            mxcsr: self.mxcsr as u32,
            ..Default::default()
        }
    }
}

/// The state of the processor that a guest can observe.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, FromBytes, IntoBytes, Immutable)]
pub struct Processor {
    pub(super) regs: kvm_regs,
    pub(super) sregs: kvm_sregs,
    events: kvm_vcpu_events,
    pub(super) fpu: Fpu,
    pub(super) debug: [u64; 6],
    pub(super) halted: u64,
}

impl Processor {
    pub(super) fn new(
        regs: &kvm_regs,
        sregs: &kvm_sregs,
        events: &kvm_vcpu_events,
        fpu: Fpu,
        debug: [u64; 6],
        halted: bool,
    ) -> Self {
        let mut processor = Self {
            regs: *regs,
            sregs: *sregs,
            events: *events,
            fpu,
            debug,
            halted: u64::from(halted),
        };
        // The guest cannot observe which parts of the events were valid when read.
        processor.events.flags = 0;
        // A pending interrupt is stored once, in the events.
        processor.sregs.interrupt_bitmap = [0; 4];
        processor
    }

    pub(super) fn events(&self) -> kvm_vcpu_events {
        kvm_vcpu_events {
            flags: kvm_bindings::KVM_VCPUEVENT_VALID_SHADOW
                | kvm_bindings::KVM_VCPUEVENT_VALID_NMI_PENDING,
            ..self.events
        }
    }
}

/// Devices as plain bytes; the serial line's queue is stored separately.
#[repr(C)]
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable)]
pub(super) struct PlainDevices {
    pub(super) pit: Pit,
    pub(super) pic: Pic,
    pub(super) uart: [u8; 8],
}

impl PlainDevices {
    pub(super) fn from_devices(devices: &Devices) -> Self {
        let mut uart = [0; 8];
        uart.copy_from_slice(devices.uart.registers.as_bytes());
        Self {
            pit: devices.pit,
            pic: devices.pic,
            uart,
        }
    }
}

/// Copies the image to its place in a guest's memory.
pub(super) fn lay_image(memory: &mut [u8], image: &Image) {
    let at = usize::from(ORIGIN);
    if let Some(sector) = memory.get_mut(at..at + SECTOR) {
        sector.copy_from_slice(image.bytes());
    }
}

/// The state at reset: processor, devices and memory with the image in it.
#[derive(Clone, Debug)]
pub struct Reset {
    pub(super) processor: Processor,
    pub(super) devices: Vec<u8>,
    pub(super) memory: Vec<u8>,
}

impl Reset {
    pub(super) fn new(processor: Processor, image: &Image) -> Self {
        let mut memory = vec![0; MEMORY];
        lay_image(&mut memory, image);
        Self {
            processor,
            devices: PlainDevices::from_devices(&Devices::default())
                .as_bytes()
                .to_vec(),
            memory,
        }
    }

    /// The processor at reset as bytes, for a snapshot's header.
    #[must_use]
    pub fn processor_bytes(&self) -> &[u8] {
        self.processor.as_bytes()
    }

    /// The inverse of [`Reset::processor_bytes`].
    ///
    /// # Errors
    /// [`Error::State`] when the length is another.
    pub fn from_processor_bytes(bytes: &[u8], image: &Image) -> Result<Self> {
        let processor = Processor::read_from_bytes(bytes)
            .map_err(|_| Error::State("processor of another size"))?;
        Ok(Self::new(processor, image))
    }
}
