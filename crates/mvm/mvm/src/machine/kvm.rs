// SPDX-License-Identifier: Apache-2.0
//! A slot: the KVM objects and the memory that one guest at a time uses.
//!
//! It avoids vCPU ioctls, which are expensive on KVM PVM: registers are transferred in the shared run page
//! (KVM_CAP_SYNC_REGS), interrupts are injected there, and writes to the serial port and the interrupt controller are
//! posted (KVM_CAP_COALESCED_PIO), to be read before other work. A slot is one descriptor and one mapping: the vCPU
//! keeps its VM alive, and the ring of posted writes is part of the run mapping.

use super::slice::Running;
use super::state::{Fpu, Processor, Reset, lay_image};
use super::{MEMORY, slice};
use crate::error::{Error, Result};
use crate::image::{Image, ORIGIN};
use kvm_bindings::{
    KVM_API_VERSION, KVM_COALESCED_MMIO_PAGE_OFFSET, KVM_EXIT_HLT, KVM_EXIT_INTR, KVM_EXIT_IO,
    KVM_EXIT_IO_OUT, KVM_EXIT_IRQ_WINDOW_OPEN, KVM_EXIT_MMIO, KVM_EXIT_SHUTDOWN,
    kvm_coalesced_mmio, kvm_coalesced_mmio_ring, kvm_regs, kvm_sregs, kvm_userspace_memory_region,
    kvm_vcpu_events,
};
use kvm_ioctls::{
    Cap, IoEventAddress, Kvm, MsrFilterDefaultAction, MsrFilterRange, MsrFilterRangeFlags, SyncReg,
    VcpuFd,
};
use std::io;
use std::os::fd::AsRawFd;
use std::sync::Arc;
use vm_memory::MmapRegion;

/// Ports whose writes are posted: first port and number. A guest sees no effect of a posted write before its next exit,
/// except an interrupt that it just allowed, which comes with the exit or with the end of the slice. The timer's ports
/// are not posted, because its time would be wrong.
const POSTED: [(u64, u32); 2] = [(0x3F8, 8), (0x20, 2)];

/// The registers in the run page.
const SHARED_REGISTERS: [SyncReg; 3] = [
    SyncReg::Register,
    SyncReg::SystemRegister,
    SyncReg::VcpuEvents,
];

const RFLAGS_INTERRUPT: u64 = 1 << 9;
const CR0_PAGING: u64 = 1 << 31;

/// `_IOW(KVMIO, 0xE1, struct kvm_device_attr)`; kvm-ioctls has it for other architectures only.
const KVM_SET_DEVICE_ATTR: libc::Ioctl = 0x4018_AEE1;

/// KVM on this host, with the capabilities that slots need.
#[derive(Debug)]
pub struct Host {
    kvm: Kvm,
}

impl Host {
    /// Opens /dev/kvm.
    ///
    /// # Errors
    /// [`Error::Kvm`] with the reason and the remedy.
    pub fn open() -> Result<Self> {
        let refuse = |problem: String, remedy: &str| Error::Kvm {
            tried: "open /dev/kvm".to_owned(),
            problem,
            remedy: format!("{remedy}, or use --accel tcg for a few guests"),
        };
        let kvm = Kvm::new().map_err(|errno| {
            let cause = io::Error::from(errno);
            let remedy = match cause.raw_os_error() {
                Some(libc::ENOENT) => "load kvm_intel or kvm_amd, or enable virtualization in the firmware or outer hypervisor",
                Some(libc::EACCES | libc::EPERM) => "join the group that owns it (usually kvm) or run as root",
                Some(libc::EMFILE) => "raise `ulimit -n`",
                _ => "check that this kernel has KVM",
            };
            refuse(cause.to_string(), remedy)
        })?;
        if kvm.get_api_version() != KVM_API_VERSION.cast_signed() {
            let version = format!("API version {}", kvm.get_api_version());
            return Err(refuse(version, "use a newer kernel"));
        }
        for (capability, name) in [
            (Cap::UserMemory, "user memory"),
            (Cap::SyncRegs, "registers in the run page"),
            (Cap::CoalescedPio, "posted port writes"),
            (Cap::ImmediateExit, "immediate exit"),
            (Cap::X86MsrFilter, "MSR filters"),
        ] {
            if !kvm.check_extension(capability) {
                let problem = format!("this KVM lacks {name}");
                return Err(refuse(problem, "use Linux 5.10 or newer"));
            }
        }
        let ring_end = (KVM_COALESCED_MMIO_PAGE_OFFSET as usize + 1) * rustix::param::page_size();
        if !kvm.get_vcpu_mmap_size().is_ok_and(|size| size >= ring_end) {
            let problem = "this KVM has no ring of posted writes in the run mapping".to_owned();
            return Err(refuse(problem, "use Linux 5.10 or newer"));
        }
        Ok(Self { kvm })
    }

    /// The KVM module in use: `kvm_pvm`, `kvm_intel`, `kvm_amd` or `kvm`.
    #[must_use]
    pub fn backend() -> &'static str {
        ["kvm_pvm", "kvm_intel", "kvm_amd"]
            .into_iter()
            .find(|name| std::path::Path::new("/sys/module").join(name).exists())
            .unwrap_or("kvm")
    }
}

/// One mapping that holds the memory of many slots: a process has 65,530 mappings.
#[derive(Debug)]
pub struct Arena {
    region: MmapRegion,
    slots: usize,
}

impl Arena {
    /// Reserves memory for `slots` slots. Pages cost memory only once they are touched.
    ///
    /// # Errors
    /// [`Error::System`] when the address space is too small.
    pub fn new(slots: usize) -> Result<Arc<Self>> {
        let failed =
            |cause: io::Error| Error::of_limit(format!("reserve memory for {slots} guests"), cause);
        let size = slots
            .checked_mul(MEMORY)
            .ok_or_else(|| failed(io::Error::from_raw_os_error(libc::ENOMEM)))?;
        let region = MmapRegion::build(
            None,
            size.max(MEMORY),
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
        )
        .map_err(|e| failed(io::Error::other(e.to_string())))?;
        // SAFETY: the range is the whole of our own mapping, and the advice changes no content.
        // Without it one touched page could cost two megabytes.
        let advised = unsafe {
            rustix::mm::madvise(
                region.as_ptr().cast(),
                region.size(),
                rustix::mm::Advice::LinuxNoHugepage,
            )
        };
        // A kernel without huge pages refuses the advice and does not need it.
        let _ = advised;
        Ok(Arc::new(Self { region, slots }))
    }
}

/// The exits of a guest to the monitor.
#[derive(Debug)]
pub enum Exit<'a> {
    /// `hlt`.
    Halt,
    /// Writes of `size` bytes each to `port`.
    Write {
        /// The first port of each.
        port: u16,
        /// Bytes of each, at least 1.
        size: usize,
        /// All bytes.
        data: &'a [u8],
    },
    /// Reads of `size` bytes each from `port`, to be answered in `data`.
    Read {
        /// The first port of each.
        port: u16,
        /// Bytes of each, at least 1.
        size: usize,
        /// The answer.
        data: &'a mut [u8],
    },
    /// The guest can take an interrupt now.
    Window,
    /// The slice is over; the last access is complete.
    Preempted,
    /// Triple fault.
    Shutdown,
    /// KVM cannot continue; the exit reason of KVM.
    Unsupported(u32),
}

/// The use of a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tenancy {
    /// One guest for its whole life.
    One,
    /// Guests by turns. They get no model-specific registers, which are not part of a stored guest, and the host's time
    /// stamp counter, so that a guest that moves sees no jump.
    Turns,
}

/// VM, vCPU and memory.
#[derive(Debug)]
pub struct Slot {
    /// It keeps the VM alive. The VM's own descriptor is closed, because no request to it follows.
    vcpu: VcpuFd,
    arena: Arc<Arena>,
    index: usize,
    halted: bool,
    pending_stop: bool,
    /// The vCPU's registers that are not in the run page.
    fpu: Fpu,
    debug: [u64; 6],
}

// A slot moves between threads with its guest, and no other slot uses its raw pointers.
impl Slot {
    /// Makes slot `index` of `arena`, with `image` in memory and the processor at its entry.
    ///
    /// # Errors
    /// [`Error::Exhausted`] with the limit that binds, or [`Error::System`].
    pub fn new(
        host: &Host,
        arena: &Arc<Arena>,
        index: usize,
        image: &Image,
        tenancy: Tenancy,
    ) -> Result<Self> {
        if index >= arena.slots {
            let problem = format!("memory was reserved for {} slots", arena.slots);
            return Err(Error::configuration(format!("slot {index}"), problem));
        }
        let failed = |step: &str| {
            let tried = format!("{step} for guest {index}");
            move |errno: kvm_ioctls::Error| Error::of_limit(tried, errno.into())
        };
        let vm = host.kvm.create_vm().map_err(failed("create a VM"))?;
        // Memory before ports: the kernel waits for the readers of a VM's tables when memory is added, and that takes
        // milliseconds directly after a port is added.
        let memory = kvm_userspace_memory_region {
            slot: 0,
            flags: 0,
            guest_phys_addr: 0,
            memory_size: MEMORY as u64,
            // In bounds: `index` was checked.
            userspace_addr: arena.region.as_ptr() as u64 + (index * MEMORY) as u64,
        };
        // SAFETY: the range belongs to the arena, which this slot keeps alive, and no other slot
        // has this index: slots are made by one owner that counts.
        unsafe { vm.set_user_memory_region(memory) }.map_err(failed("give memory"))?;
        for (port, count) in POSTED {
            vm.register_coalesced_mmio(IoEventAddress::Pio(port), count)
                .map_err(failed("post port writes"))?;
        }
        // The kernel takes milliseconds for a filter, so only slots for guests by turns, which last, have one.
        if tenancy == Tenancy::Turns {
            let nothing = MsrFilterRange {
                flags: MsrFilterRangeFlags::READ | MsrFilterRangeFlags::WRITE,
                base: 0x10,
                msr_count: 1,
                bitmap: &[0],
            };
            vm.set_msr_filter(MsrFilterDefaultAction::DENY, &[nothing])
                .map_err(failed("filter MSRs"))?;
        }
        let mut vcpu = vm.create_vcpu(0).map_err(failed("create a vCPU"))?;
        for register in SHARED_REGISTERS {
            vcpu.set_sync_valid_reg(register);
        }
        if tenancy == Tenancy::Turns {
            let offset: u64 = 0;
            let attribute = kvm_bindings::kvm_device_attr {
                group: kvm_bindings::KVM_VCPU_TSC_CTRL,
                attr: u64::from(kvm_bindings::KVM_VCPU_TSC_OFFSET),
                addr: &raw const offset as u64,
                flags: 0,
            };
            // SAFETY: the ioctl reads the attribute and the offset behind it, which outlive the call.
            let set =
                unsafe { libc::ioctl(vcpu.as_raw_fd(), KVM_SET_DEVICE_ATTR, &raw const attribute) };
            if set != 0 {
                let cause = io::Error::last_os_error();
                return Err(Error::of_limit("set a guest's time stamp counter", cause));
            }
        }
        let mut slot = Self {
            vcpu,
            arena: Arc::clone(arena),
            index,
            halted: false,
            pending_stop: false,
            fpu: Fpu::default(),
            debug: [0; 6],
        };
        lay_image(slot.memory_mut(), image);
        slot.sync(|regs, sregs, _| {
            *regs = kvm_regs {
                rip: u64::from(ORIGIN),
                rflags: 2,
                rdx: 0x80,
                ..Default::default()
            };
            sregs.cs.base = 0;
            sregs.cs.selector = 0;
        })?;
        Ok(slot)
    }

    /// Fills the shared page from KVM, lets `change` edit it, and marks all of it to be loaded.
    fn sync(
        &mut self,
        change: impl FnOnce(&mut kvm_regs, &mut kvm_sregs, &mut kvm_vcpu_events),
    ) -> Result<()> {
        let sregs = self
            .vcpu
            .get_sregs()
            .map_err(|e| Error::of_limit("read segment registers", e.into()))?;
        let shared = self.vcpu.sync_regs_mut();
        shared.regs = kvm_regs::default();
        shared.sregs = sregs;
        shared.events = kvm_vcpu_events::default();
        change(&mut shared.regs, &mut shared.sregs, &mut shared.events);
        self.mark_dirty();
        Ok(())
    }

    fn mark_dirty(&mut self) {
        for register in SHARED_REGISTERS {
            self.vcpu.set_sync_dirty_reg(register);
        }
    }

    /// The state at reset on this KVM. Stored guests are differences from it.
    ///
    /// # Errors
    /// [`Error::System`] when KVM fails.
    pub fn reset_state(&mut self, image: &Image) -> Result<Reset> {
        let processor = self.save()?;
        Ok(Reset::new(processor, image))
    }

    /// The guest's memory.
    #[must_use]
    pub fn memory(&self) -> &[u8] {
        // SAFETY: the range is this slot's part of the arena, initialised by the kernel to zeros,
        // and nothing writes to it while `self` is borrowed: the guest runs only in `enter`.
        unsafe { std::slice::from_raw_parts(self.host_address(), MEMORY) }
    }

    /// The guest's memory, to change.
    pub fn memory_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and `self` is borrowed exclusively.
        unsafe { std::slice::from_raw_parts_mut(self.host_address(), MEMORY) }
    }

    fn host_address(&self) -> *mut u8 {
        // In bounds: `new` checked the index.
        self.arena.region.as_ptr().wrapping_add(self.index * MEMORY)
    }

    /// Reads the processor's state. The last access must be complete, as it is after
    /// [`Exit::Halt`] and [`Exit::Preempted`].
    ///
    /// # Errors
    /// [`Error::System`] when KVM fails.
    pub fn save(&mut self) -> Result<Processor> {
        let failed = |e: kvm_ioctls::Error| Error::of_limit("read processor state", e.into());
        let fpu = self.vcpu.get_fpu().map_err(failed)?;
        let debug = self.vcpu.get_debug_regs().map_err(failed)?;
        let [d0, d1, d2, d3] = debug.db;
        self.fpu = Fpu::from_kvm(&fpu);
        self.debug = [d0, d1, d2, d3, debug.dr6, debug.dr7];
        let shared = self.vcpu.sync_regs();
        Ok(Processor::new(
            &shared.regs,
            &shared.sregs,
            &shared.events,
            self.fpu,
            self.debug,
            self.halted,
        ))
    }

    /// Loads a processor's state. The caller restores the memory.
    ///
    /// # Errors
    /// [`Error::System`] when KVM refuses it.
    pub fn load(&mut self, processor: &Processor) -> Result<()> {
        let failed = |e: kvm_ioctls::Error| Error::of_limit("load processor state", e.into());
        if processor.fpu != self.fpu {
            self.vcpu.set_fpu(&processor.fpu.to_kvm()).map_err(failed)?;
            self.fpu = processor.fpu;
        }
        if processor.debug != self.debug {
            let mut debug = self.vcpu.get_debug_regs().map_err(failed)?;
            let [d0, d1, d2, d3, dr6, dr7] = processor.debug;
            debug.db = [d0, d1, d2, d3];
            debug.dr6 = dr6;
            debug.dr7 = dr7;
            self.vcpu.set_debug_regs(&debug).map_err(failed)?;
            self.debug = processor.debug;
        }
        let shared = self.vcpu.sync_regs_mut();
        shared.regs = processor.regs;
        shared.sregs = processor.sregs;
        shared.events = processor.events();
        self.mark_dirty();
        self.halted = processor.halted != 0;
        Ok(())
    }

    /// Whether the guest is halted.
    #[must_use]
    pub fn halted(&self) -> bool {
        self.halted
    }

    /// Whether the guest has turned on paging.
    #[must_use]
    pub fn paging(&self) -> bool {
        self.vcpu.sync_regs().sregs.cr0 & CR0_PAGING != 0
    }

    /// Whether an interrupt can be delivered before the next instruction.
    #[must_use]
    pub fn interruptible(&mut self) -> bool {
        let shared = self.vcpu.sync_regs_mut();
        shared.regs.rflags & RFLAGS_INTERRUPT != 0
            && shared.events.interrupt.injected == 0
            && shared.events.exception.injected == 0
            // A halted guest is past the instruction that an interrupt shadow protects.
            && (shared.events.interrupt.shadow == 0 || self.halted)
    }

    /// Delivers an interrupt at the next entry.
    pub fn interrupt(&mut self, vector: u8) {
        let events = &mut self.vcpu.sync_regs_mut().events;
        events.interrupt.injected = 1;
        events.interrupt.nr = vector;
        events.interrupt.soft = 0;
        events.interrupt.shadow = 0;
        self.vcpu.set_sync_dirty_reg(SyncReg::VcpuEvents);
        self.halted = false;
    }

    /// The next [`Slot::enter`] completes the last access and returns [`Exit::Preempted`].
    pub fn stop_at_entry(&mut self) {
        self.pending_stop = true;
    }

    /// Passes the writes that KVM has posted to `write`, in order.
    fn drain_posted(&mut self, mut write: impl FnMut(u16, u8)) {
        let page = rustix::param::page_size();
        let capacity =
            (page - size_of::<kvm_coalesced_mmio_ring>()) / size_of::<kvm_coalesced_mmio>();
        let base: *mut u8 = std::ptr::from_mut(self.vcpu.get_kvm_run()).cast();
        // SAFETY: `Host::open` checked that the run mapping has this page.
        let ring: *mut kvm_coalesced_mmio_ring =
            unsafe { base.add(KVM_COALESCED_MMIO_PAGE_OFFSET as usize * page) }.cast();
        loop {
            // SAFETY: the page lives as long as the vCPU; the kernel writes to it only in KVM_RUN,
            // which needs the exclusive borrow that this has.
            let (first, last) = unsafe { ((*ring).first, (*ring).last) };
            if first == last || first as usize >= capacity {
                return;
            }
            // SAFETY: as above, and `first` is within the ring.
            let posted = unsafe {
                let entries: *const kvm_coalesced_mmio = (&raw const (*ring).coalesced_mmio).cast();
                let posted = entries.add(first as usize).read();
                (*ring).first = (first + 1) % capacity as u32;
                posted
            };
            let port = (posted.phys_addr & 0xFFFF) as u16;
            for (i, value) in (0..).zip(posted.data.iter().take(posted.len as usize)) {
                write(port.wrapping_add(i), *value);
            }
        }
    }

    /// Enters the guest until it needs the monitor, and passes the port writes of that time to
    /// `posted`, in order. `window`: return as soon as it can take an interrupt.
    ///
    /// # Errors
    /// [`Error::System`] when KVM_RUN fails.
    pub fn enter(&mut self, window: bool, posted: impl FnMut(u16, u8)) -> Result<Exit<'_>> {
        self.halted = false;
        let stop = std::mem::take(&mut self.pending_stop);
        let run = self.vcpu.get_kvm_run();
        run.request_interrupt_window = u8::from(window);
        let immediate_exit: *mut u8 = &raw mut run.immediate_exit;
        let running = slice::Running::new(immediate_exit);
        if stop {
            self.vcpu.set_kvm_immediate_exit(1);
        }
        let outcome = self.vcpu.run().map(|_| ());
        drop::<Running>(running);
        self.vcpu.set_kvm_immediate_exit(0);
        self.vcpu.get_kvm_run().kvm_dirty_regs = 0;
        self.drain_posted(posted);
        if let Err(errno) = outcome {
            return match errno.errno() {
                libc::EINTR => Ok(Exit::Preempted),
                // Includes EAGAIN: newer kernels start a thread for each VM when it first runs.
                _ => Err(Error::of_limit("run a guest", errno.into())),
            };
        }
        let run = self.vcpu.get_kvm_run();
        match run.exit_reason {
            KVM_EXIT_HLT => {
                self.halted = true;
                Ok(Exit::Halt)
            }
            KVM_EXIT_IO => {
                // SAFETY: the exit reason says that `io` is the union's valid field.
                let io = unsafe { run.__bindgen_anon_1.io };
                let size = usize::from(io.size).max(1);
                let length = size * io.count as usize;
                let base: *mut u8 = std::ptr::from_mut(run).cast();
                // SAFETY: KVM put `length` bytes at `data_offset` of the run mapping, which lives
                // as long as the borrow of `self`, and nothing else refers to them.
                let data = unsafe {
                    std::slice::from_raw_parts_mut(base.add(io.data_offset as usize), length)
                };
                let port = io.port;
                Ok(if u32::from(io.direction) == KVM_EXIT_IO_OUT {
                    Exit::Write { port, size, data }
                } else {
                    Exit::Read { port, size, data }
                })
            }
            KVM_EXIT_MMIO => {
                // Memory that is not there: reads give ones, writes are lost.
                // SAFETY: the exit reason says that `mmio` is the union's valid field.
                let mmio = unsafe { &mut run.__bindgen_anon_1.mmio };
                if mmio.is_write == 0 {
                    mmio.data = [0xFF; 8];
                }
                Ok(Exit::Window)
            }
            KVM_EXIT_IRQ_WINDOW_OPEN => Ok(Exit::Window),
            KVM_EXIT_INTR => Ok(Exit::Preempted),
            KVM_EXIT_SHUTDOWN => Ok(Exit::Shutdown),
            reason => Ok(Exit::Unsupported(reason)),
        }
    }
}
