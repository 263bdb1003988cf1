// SPDX-License-Identifier: Apache-2.0
//! The choice of the data path: the kernel (vhost-net) or this process moves a port's frames.

use crate::features::Features;
use crate::network::{DatapathError, Kernel, NEEDED, TapHandles};
use crate::vhost_net::{Device, PATH, VhostError, VhostNet};
use serde::{Deserialize, Serialize};
use std::path::Path;

/// What moves a port's frames.
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
    /// Sets up the kernel's data path.
    ///
    /// `tap` is the port's tap where the network has no other members. `open` opens the device, once for each of
    /// `pairs`.
    ///
    /// # Errors
    /// The reason why the kernel does not move the frames. A port with [`Datapath::Kernel`] must not start then.
    pub fn choose(
        self,
        tap: Option<TapHandles>,
        pairs: u8,
        open: impl Fn() -> Result<(Box<dyn Device>, Features), VhostError>,
    ) -> Result<Kernel, DatapathError> {
        if self == Self::User {
            return Err(DatapathError::Configured);
        }
        let tap = tap.ok_or(DatapathError::NotAlone)?;
        let mut devices = Vec::new();
        for _ in 0..pairs {
            let (device, features) = open()?;
            let missing = NEEDED.without(features);
            if missing != Features::default() {
                return Err(DatapathError::Features(missing));
            }
            devices.push(device);
        }
        match tap.control {
            Err(cause) if self == Self::Auto => Err(DatapathError::Control(cause)),
            _ => Ok(Kernel::new(devices, tap)?),
        }
    }
}

/// Opens the device and reads its features.
///
/// # Errors
/// When the kernel refuses.
pub fn open() -> Result<(Box<dyn Device>, Features), VhostError> {
    let device = VhostNet::open(Path::new(PATH))?;
    let features = device.features()?;
    Ok((Box::new(device), Features(features)))
}
