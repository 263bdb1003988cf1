// SPDX-License-Identifier: Apache-2.0
//! The cost of KVM itself: the same guests, booted with the fewest possible calls and without this monitor.

use crate::crowd::{host_memory, memory, per_process};
use crate::table::{Cost, Marks, row};
use kvm_bindings::{KVM_EXIT_HLT, KVM_EXIT_IO, kvm_regs, kvm_userspace_memory_region};
use kvm_ioctls::{IoEventAddress, Kvm, SyncReg, VcpuFd};
use std::collections::VecDeque;
use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use vtax_mvm::Error;
use vtax_mvm::Result;
use vtax_mvm::image::Image;
use vtax_mvm::machine::MEMORY;
use vtax_mvm::machine::kvm::Host;

fn failed(tried: &str, cause: impl Into<std::io::Error>) -> Error {
    Error::of_limit(tried, cause.into())
}

/// Boots `count` guests in as many processes as this monitor would use, and prints their cost and its ratios to `ours`.
pub fn measure(count: u32, ours: Option<Cost>) -> Result<()> {
    let size = per_process();
    println!(
        "# {count} guests by bare KVM calls, {size} a process ({})",
        Host::backend()
    );
    let before = host_memory();
    let cores = std::thread::available_parallelism().map_or(2, usize::from);
    let program = std::env::current_exe().map_err(|e| failed("find this program", e))?;
    let (mut starting, mut holding) = (VecDeque::new(), Vec::new());
    let (mut asked, mut booted) = (0, 0);
    let mut marks = Marks::new(count);
    let start = Instant::now();
    while booted < count {
        while asked < count && starting.len() < 2 * cores {
            let held = size.min(count - asked);
            let child = Command::new(&program)
                .args(["bare-shard", &held.to_string()])
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .spawn()
                .map_err(|e| failed("start a process", e))?;
            asked += held;
            starting.push_back((child, held));
        }
        let Some((mut child, held)) = starting.pop_front() else {
            break;
        };
        let mut line = String::new();
        if let Some(out) = child.stdout.take() {
            let _ = BufReader::new(out).read_line(&mut line);
        }
        let steps: Option<Vec<f64>> = line.split(' ').map(|w| w.trim().parse().ok()).collect();
        holding.push(End(child));
        let Some(steps) = steps else { break };
        booted += held;
        marks.note(booted, start.elapsed());
        if booted >= count {
            let names = ["VM", "memory", "posting", "vCPU", "registers", "first run"];
            let text = names.iter().zip(&steps);
            let text: Vec<String> = text.map(|(name, us)| format!("{name} {us:.0}")).collect();
            row("last process, µs a guest", String::new(), &text.join(", "));
        }
    }
    let (rate, first_rate) = marks.print("");
    std::thread::sleep(Duration::from_secs(1));
    memory(before, count, "")?;
    if let Some(ours) = ours {
        row(
            "this monitor's boot rate ÷ bare, overall",
            format!("{:.2}", ours.rate / rate),
            "",
        );
        row(
            "  of the first tenth",
            format!("{:.2}", ours.first_rate / first_rate),
            "",
        );
    }
    Ok(())
}

/// A child process that is killed when this is dropped.
struct End(Child);

impl Drop for End {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Boots `count` guests, prints the time of each step, and holds the guests until standard input closes.
pub fn hold(count: u32) -> Result<()> {
    let kvm = Kvm::new().map_err(|e| failed("open /dev/kvm", e))?;
    let image = Image::shipped("web").expect("shipped");
    let region: vm_memory::MmapRegion = vm_memory::MmapRegion::build(
        None,
        count as usize * MEMORY,
        libc::PROT_READ | libc::PROT_WRITE,
        libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
    )
    .map_err(|e| failed("reserve memory", std::io::Error::other(e.to_string())))?;
    let mut steps = [Duration::ZERO; 6];
    let mut guests = Vec::new();
    for index in 0..count as usize {
        guests.push(boot(&kvm, &region, index, &image, &mut steps).map_err(|e| failed("boot", e))?);
    }
    let text: Vec<String> = steps
        .iter()
        .map(|time| format!("{:.1}", time.as_secs_f64() * 1e6 / f64::from(count)))
        .collect();
    println!("{}", text.join(" "));
    let _ = std::io::stdout().flush();
    let _ = std::io::stdin().read(&mut [0]);
    Ok(())
}

fn boot(
    kvm: &Kvm,
    region: &vm_memory::MmapRegion,
    index: usize,
    image: &Image,
    steps: &mut [Duration; 6],
) -> std::result::Result<VcpuFd, kvm_ioctls::Error> {
    let mut clock = Instant::now();
    let mut step = |i: usize| {
        steps[i] += clock.elapsed();
        clock = Instant::now();
    };
    let vm = kvm.create_vm()?;
    step(0);
    let at = region.as_ptr().wrapping_add(index * MEMORY);
    let memory = kvm_userspace_memory_region {
        slot: 0,
        flags: 0,
        guest_phys_addr: 0,
        memory_size: MEMORY as u64,
        userspace_addr: at as u64,
    };
    // SAFETY: each index has its own part of the region, which outlives the guests.
    unsafe { vm.set_user_memory_region(memory) }?;
    step(1);
    vm.register_coalesced_mmio(IoEventAddress::Pio(0x3F8), 8)?;
    vm.register_coalesced_mmio(IoEventAddress::Pio(0x20), 2)?;
    step(2);
    let mut vcpu = vm.create_vcpu(0)?;
    step(3);
    // SAFETY: the boot sector lies within this index's part, which nobody else has.
    unsafe { std::ptr::copy_nonoverlapping(image.bytes().as_ptr(), at.add(0x7C00), 512) };
    let mut sregs = vcpu.get_sregs()?;
    sregs.cs.base = 0;
    sregs.cs.selector = 0;
    let shared = vcpu.sync_regs_mut();
    shared.sregs = sregs;
    shared.regs = kvm_regs {
        rip: 0x7C00,
        rflags: 2,
        ..Default::default()
    };
    vcpu.set_sync_dirty_reg(SyncReg::Register);
    vcpu.set_sync_dirty_reg(SyncReg::SystemRegister);
    step(4);
    loop {
        vcpu.run()?;
        vcpu.get_kvm_run().kvm_dirty_regs = 0;
        match vcpu.get_kvm_run().exit_reason {
            KVM_EXIT_HLT => break,
            KVM_EXIT_IO => {}
            _ => return Err(kvm_ioctls::Error::new(libc::EIO)),
        }
    }
    step(5);
    Ok(vcpu)
}
