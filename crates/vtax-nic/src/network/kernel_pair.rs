//! The part of a queue pair that the kernel serves: its vhost-net device, its two rings, and the event descriptors that
//! this process relays where notifications are held.

use super::queue::{Queue, ring_number};
use crate::features::Features;
use crate::hold::{Rest, RxBatch, TxRound};
use crate::memory::{DirtyLog, GuestMemory};
use crate::poller::{Poller, PortId, Token};
use crate::protocol::ProtocolError;
use crate::ring::RingView;
use crate::vhost_net::{Device, Event, Half, VhostError};
use rustix::event::{EventfdFlags, eventfd};
use std::os::fd::{AsFd, OwnedFd};

/// What the device must have.
pub const NEEDED: Features = Features::VERSION_1
    .with(Features::MRG_RXBUF)
    .with(Features::INDIRECT)
    .with(Features::EVENT_IDX)
    .with(Features::LOG_ALL);

/// What of a port is its rings' business and not the network device's: of these the kernel must
/// know which were negotiated, and only those above are offered. ANY_LAYOUT is not among them: the
/// kernel takes any layout, and the bit means to it that the tap has no virtio-net header.
pub(super) const OF_RINGS: Features = NEEDED.with(Features::RING_PACKED).with(Features::IN_ORDER);

/// What the rings run with.
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
    /// What the kernel signals in the place of the guest.
    pub(super) call: OwnedFd,
    /// What signals the kernel in the place of the guest.
    pub(super) kick: OwnedFd,
    /// When its calls and kicks are left alone.
    pub(super) rest: Rest,
}

/// One of a pair's rings.
#[derive(Debug)]
pub(super) struct Side {
    pub(super) running: Option<ActiveRing>,
    /// Whether the guest's own event descriptor is with the kernel, so that nothing is held: its call
    /// for what it receives, its kick for what it sends.
    pub(super) through: bool,
    /// Whether nobody listens to the other one.
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
    /// The used index of a receive ring, the available one of a transmit ring, as last counted.
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

    /// Makes the kernel forget the device's settings, after [`KernelPath::pause`].
    pub(super) fn release(&mut self) {
        if std::mem::take(&mut self.owned) {
            let _ = self.device.disown();
        }
    }

    /// What the pair received since this was last asked. A buffer counts as a frame; long frames have
    /// several.
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

    /// How many frames the guest has offered since the last [`KernelPair::drain`]. A kick that comes with
    /// none was for frames that the kernel was signalled for before.
    pub(super) fn offered(&self) -> u16 {
        let tx = self.tx.running.as_ref();
        tx.map_or(0, |tx| tx.view.offered().wrapping_sub(tx.counted))
    }

    /// Lets the kernel send what the guest offers, if there is anything. Returns how many frames were
    /// offered since the last time.
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

    /// Signals the kernel in the guest's place.
    pub(super) fn kick(&self) {
        // Ours alone, and it never blocks: a full counter is a signal already.
        let _ = rustix::io::write(&self.kick, &1_u64.to_ne_bytes());
    }

    /// Gives the device all that both rings have in common.
    pub(super) fn prepare(&mut self, session: Session<'_>) -> Result<(), VhostError> {
        if !self.owned {
            self.device.own()?;
            self.owned = true;
        }
        self.device.set_memory(&session.memory.mapped())?;
        let features = session.features;
        // A log that is not written to may go at any time.
        if let Some(log) = session.log.filter(|_| features.has(Features::LOG_ALL)) {
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
        let (addresses, size, base) = queue.settings();
        let view = RingView::new(session.memory, &addresses, size, session.features).ok_or(
            ProtocolError::Refused(
                "a ring is started that is not all in guest memory, aligned, with a size",
            ),
        )?;
        let logs = session.log.is_some() && session.features.has(Features::LOG_ALL);
        let addresses = view.addresses(addresses.used_log.filter(|_| logs));
        self.device.set_ring(half, size, base, addresses)?;
        self.plug(half, queue, watch)?;
        self.device.set_backend(half, tap.map(AsFd::as_fd))?;
        let counted = match half {
            Half::Rx => view.used(),
            Half::Tx => base,
        };
        self.side(half).running = Some(ActiveRing { view, counted });
        queue.kernel_started();
        Ok(())
    }

    /// Gives the kernel a ring's descriptors: the guest's own, or ours where holds want to know.
    /// Calls for frames that were sent are never held.
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
                // Reported at once if there was a kick before, so that none is lost.
                let token = self.kick_token(*id);
                poller
                    .watch(kick, token)
                    .map_err(|cause| VhostError::new("wait for kicks", cause.into()))?;
            }
        }
        Ok(())
    }
}
