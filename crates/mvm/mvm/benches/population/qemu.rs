// SPDX-License-Identifier: Apache-2.0
//! The same image in stock QEMU, one process a guest, beside this monitor's figures.

use crate::crowd::{host_memory, memory};
use crate::table::{Cost, row};
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};
use vtax_mvm::front::router::Route;
use vtax_mvm::image::Image;
use vtax_mvm::tcg::{Accelerator, Machine, Qemus};
use vtax_mvm::{Error, Result};

/// Boots `count` QEMUs of each kind until each has answered a request, and prints their cost and its ratios to `ours`.
pub fn measure(count: u32, ours: Option<Cost>) -> Result<()> {
    let image = Image::shipped("web").expect("shipped");
    for (machine, name) in [
        (Machine::Tuned, "1 MB, nothing but disk and serial port"),
        (Machine::Stock, "default machine, 128 MB"),
    ] {
        for accelerator in [Accelerator::Kvm, Accelerator::Tcg] {
            println!("# {count} QEMUs, {accelerator:?}, {name}");
            let before = host_memory();
            let start = Instant::now();
            let qemus = Qemus::start_on(machine, &image, count, accelerator)?;
            for guest in 0..count {
                if let Some(socket) = qemus.route().socket(guest)
                    && let Err(cause) = first_answer(&socket)
                {
                    row("not measured", String::new(), &cause.to_string());
                    return Ok(());
                }
            }
            let rate = f64::from(count) / start.elapsed().as_secs_f64();
            row(
                "booted, until each has answered",
                format!("{:.1} s", start.elapsed().as_secs_f64()),
                "",
            );
            row("boot rate", format!("{rate:.2} /s"), "");
            memory(before, count, "")?;
            let bytes = qemus.pids().map(own_pages).sum::<f64>() / f64::from(count);
            row(
                "its own pages, without the kernel's (Pss)",
                format!("{bytes:.0} B"),
                "",
            );
            let Some(ours) = ours else { continue };
            row(
                "this monitor's memory, all in ÷ QEMU's own",
                format!("1/{:.0}", bytes / ours.bytes),
                "≤ 1/10",
            );
            row(
                "this monitor's boot rate ÷ QEMU's",
                format!("{:.0}", ours.rate / rate),
                "≥ 100",
            );
        }
    }
    Ok(())
}

/// Memory of a process in bytes; a shared page counts by its share (PSS).
fn own_pages(pid: u32) -> f64 {
    let text = std::fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("Pss:"));
    let number = line.and_then(|rest| rest.split_whitespace().next()?.parse::<f64>().ok());
    number.unwrap_or(0.0) * 1024.0
}

/// Repeats a request until the guest answers it.
fn first_answer(socket: &std::path::Path) -> Result<()> {
    let failed = |cause| Error::System {
        tried: format!("talk to the guest at {}", socket.display()),
        cause,
    };
    let mut stream = UnixStream::connect(socket).map_err(failed)?;
    let wait = Some(Duration::from_millis(200));
    stream.set_read_timeout(wait).map_err(failed)?;
    let deadline = Instant::now() + Duration::from_secs(60);
    let mut buffer = [0; 256];
    let mut received: Vec<u8> = Vec::new();
    while Instant::now() < deadline {
        stream.write_all(b"/hi\n").map_err(failed)?;
        if let Ok(count) = stream.read(&mut buffer) {
            received.extend(&buffer[..count]);
        }
        if received.windows(4).any(|w| w == b"200 ") {
            return Ok(());
        }
    }
    Err(failed(std::io::ErrorKind::TimedOut.into()))
}
