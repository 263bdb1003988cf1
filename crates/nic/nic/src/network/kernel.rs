// SPDX-License-Identifier: Apache-2.0
//! The kernel's data path of a port: vhost-net moves the frames between the guest's rings and a
//! tap. Where notifications are held, this process relays the event descriptors; else the kernel has the guest's own.

use super::kernel_pair::{KernelPair, NEEDED, OF_RINGS, Session, Side, Watch};
use super::pair::QueuePair;
use super::statistics::Statistics;
use crate::features::Features;
use crate::poller::{Poller, PortId, Token};
use crate::protocol::ProtocolError;
use crate::telemetry::{CountedBy, Totals};
use crate::vhost_net::{Device, Half, PATH, VhostError};
use rustix::net::{RecvFlags, SendFlags, recv, send};
use std::io;
use std::os::fd::OwnedFd;

/// A tap's descriptors for the kernel's data path.
#[derive(Debug)]
pub struct TapHandles {
    /// Its queues.
    pub queues: Vec<OwnedFd>,
    /// The socket for the guest's control frames and their answers, or why there is none.
    pub control: io::Result<OwnedFd>,
    /// The kernel's counters of the tap, if it has any.
    pub statistics: Option<Statistics>,
}

/// Why the kernel does not move a port's frames.
#[derive(Debug, thiserror::Error)]
pub enum DatapathError {
    /// The port's setting is `user`.
    #[error("so configured")]
    Configured,
    /// The network has more members than the port and a tap.
    #[error("it is not alone with a tap")]
    NotAlone,
    /// The device lacks features.
    #[error("{PATH} lacks the features {:#x}", .0.0)]
    Features(Features),
    /// No socket for control frames, which the setting `auto` needs.
    #[error("it could not answer control frames: {0} (CAP_NET_RAW)")]
    Control(io::Error),
    /// The device.
    #[error(transparent)]
    Vhost(#[from] VhostError),
}

/// The kernel's data path of a port.
#[derive(Debug)]
pub struct Kernel {
    /// A device for each queue pair.
    pub(super) pairs: Vec<KernelPair>,
    pub(super) path: KernelPath,
}

/// The part of the kernel's data path that its queue pairs share.
#[derive(Debug)]
pub(super) struct KernelPath {
    tap: TapHandles,
    /// The registration of kicks and calls with the poller.
    watch: Watch,
}

impl Kernel {
    /// A data path with a device for each pair, to a tap.
    ///
    /// # Errors
    /// When there are no event descriptors left.
    pub fn new(devices: Vec<Box<dyn Device>>, tap: TapHandles) -> Result<Self, VhostError> {
        let pairs = (0..)
            .zip(devices)
            .map(|(number, device)| KernelPair::new(number, device));
        Ok(Self {
            pairs: pairs.collect::<Result<_, _>>()?,
            path: KernelPath { tap, watch: None },
        })
    }

    /// The features that a port on the kernel's data path offers.
    pub fn offers(offered: Features) -> Features {
        offered.without(OF_RINGS.without(NEEDED))
    }
}

impl KernelPath {
    /// The reason why the guest's control frames are not answered, if they are not.
    pub(super) fn control_error(&self) -> Option<&io::Error> {
        self.tap.control.as_ref().err()
    }

    /// Registers calls and control frames with `poller`, and later kicks.
    pub(super) fn watch(
        &mut self,
        pairs: &[QueuePair],
        poller: &Poller,
        id: PortId,
    ) -> Result<(), rustix::io::Errno> {
        for pair in pairs.iter().filter_map(|pair| pair.kernel.as_ref()) {
            poller.watch(&pair.call, Token::Call(id, pair.number))?;
        }
        if let Ok(control) = &self.tap.control {
            poller.watch_level(control, Token::ControlFrame(id))?;
        }
        self.watch = Some((poller.clone(), id));
        Ok(())
    }

    // Beside the rings.

    /// The next control frame of the guest, cut to the length of `bytes`.
    pub(super) fn control_frame<'a>(&self, bytes: &'a mut [u8]) -> Option<&'a [u8]> {
        let control = self.tap.control.as_ref().ok()?;
        let (len, _) = recv(control, &mut *bytes, RecvFlags::DONTWAIT).ok()?;
        bytes.get(..len)
    }

    /// Sends the guest an answer, which is lost if the tap is full.
    pub(super) fn answer(&self, frame: &[u8]) {
        if let Ok(control) = &self.tap.control {
            let _ = send(control, frame, SendFlags::DONTWAIT);
        }
    }

    /// Fills in the counters of frames that the kernel moved. Returns their source.
    pub(super) fn count(&mut self, totals: &mut Totals) -> CountedBy {
        match &mut self.tap.statistics {
            Some(statistics) => {
                statistics.fill(totals);
                CountedBy::Tap
            }
            None => CountedBy::Nobody,
        }
    }

    // Rings.

    /// Stops a ring and keeps its position.
    pub(super) fn pause(&self, pair: &mut QueuePair, half: Half) {
        let Some((kernel, queue)) = pair.kernel_half(half) else {
            return;
        };
        if kernel.side(half).running.take().is_none() {
            return;
        }
        // The memory of the ring may be unmapped next, so that it must stop. These calls fail only for a device that
        // this process does not own, which it does while a ring runs.
        let _ = kernel.device.set_backend(half, None);
        queue.kernel_stopped(kernel.device.base(half).ok());
        if let (Half::Tx, Some(kick), Some((poller, _))) = (half, queue.kick_file(), &self.watch) {
            poller.forget(kick);
        }
    }

    /// Starts the rings that should run.
    ///
    /// # Errors
    /// When a ring is not in guest memory, or the kernel refuses it.
    pub(super) fn resume(
        &self,
        pairs: &mut [QueuePair],
        session: Session<'_>,
    ) -> Result<(), ProtocolError> {
        let taps = &self.tap.queues;
        for (number, pair) in pairs.iter_mut().enumerate() {
            let QueuePair {
                kernel: Some(kernel),
                rx,
                tx,
                ..
            } = pair
            else {
                continue;
            };
            if !rx.is_to_run() && !tx.is_to_run() {
                continue;
            }
            if kernel.rx.running.is_none() && kernel.tx.running.is_none() {
                kernel.prepare(session)?;
            }
            // Pairs beyond the number of the tap's queues only send.
            let [to_guest, from_guest] = [taps.get(number), taps.get(number % taps.len().max(1))];
            for (half, queue, tap) in [(Half::Rx, rx, to_guest), (Half::Tx, tx, from_guest)] {
                if queue.is_to_run() && kernel.side(half).running.is_none() {
                    kernel.start(half, queue, session, (tap, &self.watch))?;
                }
            }
        }
        Ok(())
    }

    // Notifications.

    /// Gives the kernel the guest's own event descriptor of a ring, so that nothing is held, or this process's.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub(super) fn set_passthrough(
        &self,
        pair: &mut QueuePair,
        half: Half,
        through: bool,
    ) -> Result<(), ProtocolError> {
        let Some(kernel) = &mut pair.kernel else {
            return Ok(());
        };
        if std::mem::replace(&mut kernel.side(half).through, through) == through {
            return Ok(());
        }
        self.replug(pair, half)
    }

    /// Gives the kernel the descriptors of a queue, if it runs.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub(super) fn replug(&self, pair: &mut QueuePair, half: Half) -> Result<(), ProtocolError> {
        let Some((kernel, queue)) = pair.kernel_half(half) else {
            return Ok(());
        };
        let Side {
            running: Some(running),
            through,
            ..
        } = kernel.side(half)
        else {
            return Ok(());
        };
        let through = *through;
        match half {
            // No signal of the kernel is lost: it is read here or goes to the guest, since the kernel takes the new
            // descriptor only between two rounds of its work.
            Half::Rx if !through => {
                running.counted = running.view.used();
                running.view.leave_to_others();
            }
            Half::Tx => running.counted = running.view.offered(),
            Half::Rx => {}
        }
        kernel.plug(half, queue, &self.watch)?;
        match half {
            Half::Rx if through => {
                // The signal that was held.
                if let Some(rx) = &mut kernel.rx.running
                    && rx.view.wants_signal()
                    && queue.call()
                {
                    rx.view.signalled();
                }
            }
            Half::Tx if !through => kernel.kick(),
            _ => {}
        }
        Ok(())
    }

    /// Ignores a pair's calls and kicks while one of their kind is held: the end of the hold handles all.
    pub(super) fn mute(&self, pair: &mut QueuePair) {
        let (Some((poller, id)), Some(kernel)) = (&self.watch, &mut pair.kernel) else {
            return;
        };
        let (call, kick) = (pair.hold.holds_call(), pair.hold.holds_drain());
        if std::mem::replace(&mut kernel.rx.muted, call) != call {
            poller.mute(&kernel.call, Token::Call(*id, kernel.number), call);
        }
        if std::mem::replace(&mut kernel.tx.muted, kick) != kick
            && let Some(file) = pair.tx.kick_file()
        {
            poller.mute(file, kernel.kick_token(*id), kick);
        }
    }
}
