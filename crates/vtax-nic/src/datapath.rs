//! The choice of the data path: the kernel (vhost-net) or this process moves a port's frames.

use crate::features::Features;
use crate::network::{Kernel, NEEDED, TapEnds};
use crate::vhost_net::{Device, PATH, VhostNet};
use serde::{Deserialize, Serialize};
use std::path::Path;

/// Who is to move a port's frames.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Datapath {
    /// The kernel where it can, else this process.
    #[default]
    Auto,
    /// The kernel, or the program does not start.
    Kernel,
    /// This process.
    User,
}

impl Datapath {
    /// The kernel's data path, if it is to be; else why it is not.
    ///
    /// `tap` is there where the port and a tap are all that the network has; `open` opens the device
    /// once for each of the port's `pairs`. The guest's control frames are answered unless it must be
    /// the kernel.
    ///
    /// # Errors
    /// Why the kernel cannot, where it must.
    pub fn choose(
        self,
        tap: Option<TapEnds>,
        pairs: u8,
        open: impl Fn() -> Result<(Box<dyn Device>, Features), String>,
    ) -> Result<Result<Kernel, String>, String> {
        let attempt = || -> Result<Kernel, String> {
            let tap = tap.ok_or("it is not alone with a tap")?;
            let mut devices = Vec::new();
            for _ in 0..pairs {
                let (device, features) = open()?;
                let missing = NEEDED.without(features);
                if missing != Features::default() {
                    return Err(format!("{PATH} lacks the features {:#x}", missing.0));
                }
                devices.push(device);
            }
            if self == Self::Auto
                && let Err(why) = &tap.control
            {
                return Err(format!(
                    "it could not answer control frames: {why} (CAP_NET_RAW)"
                ));
            }
            Kernel::new(devices, tap).map_err(|cause| cause.to_string())
        };
        match self {
            Self::User => Ok(Err("so configured".into())),
            Self::Auto => Ok(attempt()),
            Self::Kernel => attempt().map(Ok),
        }
    }
}

/// Opens the device and asks what it offers.
///
/// # Errors
/// Why it cannot be had.
pub fn open() -> Result<(Box<dyn Device>, Features), String> {
    let device = VhostNet::open(Path::new(PATH)).map_err(|cause| cause.to_string())?;
    let features = device.features().map_err(|cause| cause.to_string())?;
    Ok((Box::new(device), Features(features)))
}
