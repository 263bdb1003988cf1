// SPDX-License-Identifier: Apache-2.0
//! The part of a queue pair that the kernel serves: its vhost-net device, its two rings, and the event descriptors that
//! this process relays where notifications are held.

use super::queue::{Queue, ring_number};
use crate::features::Features;
use crate::hold::{Rest, RxBatch, TxRound};
use crate::memory::dirty_log;
use crate::memory::{DirtyLog, GuestMemory};
use crate::poller::{Poller, PortId, Token};
use crate::protocol::ProtocolError;
use crate::ring::RingView;
use crate::vhost_net::{Device, Event, Half, VhostError};
use rustix::event::{EventfdFlags, eventfd};
use std::os::fd::{AsFd, OwnedFd};

/// The features that the device must have.
pub const NEEDED: Features = Features::VERSION_1
    .with(Features::MRG_RXBUF)
    .with(Features::INDIRECT)
    .with(Features::EVENT_IDX)
    .with(Features::LOG_ALL);

/// The features of rings rather than of the network device. The kernel must know which of them were negotiated, and
/// only [`NEEDED`] are offered. ANY_LAYOUT is not among them: the kernel supports any layout, and takes the bit to
/// mean that the tap has no virtio-net header.
pub(super) const OF_RINGS: Features = NEEDED.with(Features::RING_PACKED).with(Features::IN_ORDER);

/// The memory, log and features of running rings.
#[derive(Debug, Clone, Copy)]
pub(super) struct Session<'a> {
    pub(super) memory: &'a GuestMemory,
    pub(super) log: Option<&'a DirtyLog>,
    pub(super) features: Features,
}

pub(super) type Watch = Option<(Poller, PortId)>;

/// The part of a queue pair that the kernel serves.
#[derive(Debug)]
pub(super) struct KernelPair {
    pub(super) number: u8,
    pub(super) device: Box<dyn Device>,
    pub(super) owned: bool,
    pub(super) rx: Side,
    pub(super) tx: Side,
    /// The event that the kernel signals instead of the guest.
    pub(super) call: OwnedFd,
    /// The event that signals the kernel instead of the guest.
    pub(super) kick: OwnedFd,
    /// The pauses in which its calls and kicks bypass the worker.
    pub(super) rest: Rest,
}

/// One of a pair's rings.
#[derive(Debug)]
pub(super) struct Side {
    pub(super) running: Option<ActiveRing>,
    /// Whether the kernel has the guest's own event descriptor, so that nothing is held: the call descriptor for the
    /// receive ring, the kick descriptor for the transmit ring.
    pub(super) through: bool,
    /// Whether this process ignores its own event descriptor.
    pub(super) muted: bool,
}

impl Default for Side {
    fn default() -> Self {
        Self {
            running: None,
            through: true,
            muted: false,
        }
    }
}

/// A ring that the kernel serves.
#[derive(Debug)]
pub(super) struct ActiveRing {
    pub(super) view: RingView,
    /// The used index of a receive ring, the available one of a transmit ring, at the last count.
    pub(super) counted: u16,
}

impl KernelPair {
    pub(super) fn new(number: u8, device: Box<dyn Device>) -> Result<Self, VhostError> {
        let event = || {
            eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
                .map_err(|cause| VhostError::new("make an event descriptor", cause.into()))
        };
        Ok(Self {
            number,
            device,
            owned: false,
            rx: Side::default(),
            tx: Side::default(),
            call: event()?,
            kick: event()?,
            rest: Rest::default(),
        })
    }

    pub(super) fn side(&mut self, half: Half) -> &mut Side {
        match half {
            Half::Rx => &mut self.rx,
            Half::Tx => &mut self.tx,
        }
    }

    pub(super) fn kick_token(&self, id: PortId) -> Token {
        let number = ring_number(self.number.into(), Half::Tx);
        Token::Kick(id, u8::try_from(number).unwrap_or(u8::MAX))
    }

    /// Removes the device's settings from the kernel, after [`KernelPath::pause`].
    pub(super) fn release(&mut self) {
        if std::mem::take(&mut self.owned) {
            let _ = self.device.disown();
        }
    }

    /// The frames received since the last call. Each buffer counts as a frame; long frames have several.
    pub(super) fn received(&mut self) -> Option<RxBatch> {
        let rx = self.rx.running.as_mut()?;
        let used = rx.view.used();
        let packets = used.wrapping_sub(std::mem::replace(&mut rx.counted, used));
        Some(RxBatch {
            packets: packets.into(),
            free: rx.view.offered().wrapping_sub(used),
            ring_size: rx.view.size(),
            wanted: rx.view.wants_signal(),
        })
    }

    /// The receive ring.
    pub(super) fn rx_view(&mut self) -> Option<&mut RingView> {
        self.rx.running.as_mut().map(|running| &mut running.view)
    }

    /// The number of frames that the guest has offered since the last [`KernelPair::drain`]. A kick without new frames
    /// is for frames that the kernel was signalled for.
    pub(super) fn offered(&self) -> u16 {
        let tx = self.tx.running.as_ref();
        tx.map_or(0, |tx| tx.view.offered().wrapping_sub(tx.counted))
    }

    /// Signals the kernel if the guest has offered frames. Returns their number since the last call.
    pub(super) fn drain(&mut self) -> Option<TxRound> {
        let tx = self.tx.running.as_mut()?;
        let offered = tx.view.offered();
        let packets = offered.wrapping_sub(std::mem::replace(&mut tx.counted, offered));
        let ring_size = tx.view.size();
        if packets > 0 {
            self.kick();
        }
        Some(TxRound {
            packets: packets.into(),
            ring_size,
        })
    }

    /// Signals the kernel.
    pub(super) fn kick(&self) {
        // Only this process has the descriptor, and it never blocks. A full counter is a signal already.
        let _ = rustix::io::write(&self.kick, &1_u64.to_ne_bytes());
    }

    /// Gives the device the settings that both rings share.
    pub(super) fn prepare(&mut self, session: Session<'_>) -> Result<(), VhostError> {
        if !self.owned {
            self.device.own()?;
            self.owned = true;
        }
        self.device.set_memory(&session.memory.mapped())?;
        let features = session.features;
        // A log that is not written to may be unmapped at any time.
        if let Some(log) = dirty_log(session.log, features) {
            self.device.set_log(log.address())?;
        }
        self.device.set_features(features.within(OF_RINGS).0)
    }

    pub(super) fn start(
        &mut self,
        half: Half,
        queue: &mut Queue,
        session: Session<'_>,
        (tap, watch): (Option<&OwnedFd>, &Watch),
    ) -> Result<(), ProtocolError> {
        let (addresses, size) = queue.settings();
        let view = RingView::new(session.memory, &addresses, size, session.features).ok_or(
            ProtocolError::Refused(
                "a ring is started that is not all in guest memory, aligned, with a size",
            ),
        )?;
        // As in `Queue::resolve`: some front ends give the available index.
        let base = view.used();
        let logs = dirty_log(session.log, session.features).is_some();
        let used_log = if logs { addresses.used_log } else { None };
        let addresses = view.addresses(used_log);
        self.device.set_ring(half, size, base, addresses)?;
        self.plug(half, queue, watch)?;
        self.device.set_backend(half, tap.map(AsFd::as_fd))?;
        self.side(half).running = Some(ActiveRing {
            view,
            counted: base,
        });
        queue.kernel_started();
        Ok(())
    }

    /// Gives the kernel a ring's event descriptors: the guest's own, or this process's where notifications may be
    /// held. Calls for sent frames are never held.
    pub(super) fn plug(
        &mut self,
        half: Half,
        queue: &Queue,
        watch: &Watch,
    ) -> Result<(), ProtocolError> {
        let through = self.side(half).through;
        let (call, kick) = match half {
            Half::Rx if !through => (Some(&self.call), queue.kick_file()),
            Half::Tx if !through => (queue.call_file(), Some(&self.kick)),
            _ => (queue.call_file(), queue.kick_file()),
        };
        let files = [
            (Event::Call, call),
            (Event::Kick, kick),
            (Event::Error, queue.error_file()),
        ];
        for (event, file) in files {
            self.device.set_event(half, event, file.map(AsFd::as_fd))?;
        }
        if let (Half::Tx, Some(kick), Some((poller, id))) = (half, queue.kick_file(), watch) {
            poller.forget(kick);
            self.tx.muted = false;
            if !through {
                // An earlier kick is reported at once, so that none is lost.
                let token = self.kick_token(*id);
                poller
                    .watch(kick, token)
                    .map_err(|cause| VhostError::new("wait for kicks", cause.into()))?;
            }
        }
        Ok(())
    }
}
