// SPDX-License-Identifier: Apache-2.0
//! Compiles `src/image/guest/enter.rs`, the program that enters the image of a container, as a static program without a
//! libc. `image::oci` embeds it.

use std::env;
use std::path::Path;
use std::process::Command;

const SOURCE: &str = "src/image/guest/enter.rs";

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo::rerun-if-changed={SOURCE}");
    let variable = |name: &str| env::var_os(name).ok_or(format!("{name} is not set by cargo"));
    // For the host of the build: the program needs nothing of the target but its processor.
    let status = Command::new(variable("RUSTC")?)
        .args(["--edition=2024", "--crate-type=bin", "--crate-name=enter"])
        .args(["-Dwarnings", "-Cpanic=abort", "-Copt-level=s"])
        .args(["-Cstrip=symbols", "-Crelocation-model=static"])
        .args(["-Clink-arg=-nostdlib", "-Clink-arg=-nostartfiles"])
        .arg("-Clink-arg=-static")
        .arg("-o")
        .arg(Path::new(&variable("OUT_DIR")?).join("enter"))
        .arg(SOURCE)
        .status()?;
    if status.success() {
        Ok(())
    } else {
        Err(format!("{SOURCE} cannot be compiled on this host: {status}").into())
    }
}
