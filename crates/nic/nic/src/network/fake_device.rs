// SPDX-License-Identifier: Apache-2.0
//! A fake of `/dev/vhost-net` that records its settings and refuses the requests that the kernel refuses.

use crate::memory::MappedRegion;
use crate::ring::RingAddresses;
use crate::testing;
use crate::vhost_net::{Device, Event, Half, VhostError};
use std::collections::BTreeMap;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard};

/// The settings that the device received, and its behaviour.
#[derive(Debug, Default)]
pub struct DeviceState {
    pub owned: bool,
    pub features: u64,
    pub regions: Vec<MappedRegion>,
    pub log: Option<u64>,
    pub rings: BTreeMap<u32, (u16, u16, RingAddresses)>,
    pub events: BTreeMap<(u32, u8), OwnedFd>,
    pub running: [bool; 2],
    /// The number of times that a ring was stopped.
    pub stops: u32,
    /// The number of times that a ring got an event descriptor.
    pub plugs: u32,
    /// Whether every request is refused.
    pub refuses: bool,
}

/// A fake of `/dev/vhost-net`.
#[derive(Debug, Clone, Default)]
pub struct FakeDevice(Arc<Mutex<DeviceState>>);

impl FakeDevice {
    /// Locks the state.
    pub fn state(&self) -> MutexGuard<'_, DeviceState> {
        self.0.lock().unwrap()
    }

    /// The check that most requests share: the device refuses them unless this process owns it.
    fn owned(&self) -> Result<MutexGuard<'_, DeviceState>, VhostError> {
        let state = self.state();
        if !state.owned || state.refuses {
            return Err(refused());
        }
        Ok(state)
    }

    /// Signals an event as the kernel does for a call, and the guest for a kick.
    pub fn signal(&self, half: Half, event: Event) {
        let state = self.state();
        let file = &state.events[&(half.index(), event as u8)];
        rustix::io::write(file, &1_u64.to_ne_bytes()).unwrap();
    }

    /// The number of signals since the last call.
    pub fn kicks(&self) -> u64 {
        let state = self.state();
        testing::drain(&state.events[&(Half::Tx.index(), Event::Kick as u8)])
    }
}

fn refused() -> VhostError {
    VhostError::new("handle a request", rustix::io::Errno::PERM.into())
}

impl Device for FakeDevice {
    fn own(&self) -> Result<(), VhostError> {
        let mut state = self.state();
        if state.owned || state.refuses {
            return Err(refused());
        }
        state.owned = true;
        Ok(())
    }

    fn disown(&self) -> Result<(), VhostError> {
        *self.owned()? = DeviceState::default();
        Ok(())
    }

    fn set_features(&self, features: u64) -> Result<(), VhostError> {
        self.owned()?.features = features;
        Ok(())
    }

    fn set_memory(&self, regions: &[MappedRegion]) -> Result<(), VhostError> {
        self.owned()?.regions = regions.to_vec();
        Ok(())
    }

    fn set_log(&self, log: u64) -> Result<(), VhostError> {
        self.owned()?.log = Some(log);
        Ok(())
    }

    fn set_ring(
        &self,
        half: Half,
        size: u16,
        base: u16,
        addresses: RingAddresses,
    ) -> Result<(), VhostError> {
        let mut state = self.owned()?;
        if state.running[half.index() as usize] {
            return Err(VhostError::new(
                "change a ring",
                rustix::io::Errno::BUSY.into(),
            ));
        }
        state.rings.insert(half.index(), (size, base, addresses));
        Ok(())
    }

    fn set_event(
        &self,
        half: Half,
        event: Event,
        file: Option<BorrowedFd<'_>>,
    ) -> Result<(), VhostError> {
        let mut state = self.owned()?;
        let key = (half.index(), event as u8);
        state.plugs += 1;
        match file {
            Some(file) => state.events.insert(key, file.try_clone_to_owned().unwrap()),
            None => state.events.remove(&key),
        };
        Ok(())
    }

    fn set_backend(&self, half: Half, tap: Option<BorrowedFd<'_>>) -> Result<(), VhostError> {
        let mut state = self.owned()?;
        let ring = half.index() as usize;
        let (_, _, addresses) = state.rings[&half.index()];
        let inside = state
            .regions
            .iter()
            .any(|region| (region.host..region.host + region.size).contains(&addresses.used));
        if tap.is_some() && !inside {
            return Err(VhostError::new(
                "start a ring",
                rustix::io::Errno::FAULT.into(),
            ));
        }
        state.stops += u32::from(state.running[ring] && tap.is_none());
        state.running[ring] = tap.is_some();
        Ok(())
    }

    fn base(&self, half: Half) -> Result<u16, VhostError> {
        Ok(self.owned()?.rings[&half.index()].1)
    }
}
