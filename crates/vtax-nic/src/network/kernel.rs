//! The kernel's data path of a port: vhost-net moves the frames between the guest's rings and a
//! tap. Where notifications are held, this process relays the event descriptors; else the kernel has the guest's own.

use super::pair::{QueuePair, ring_number};
use super::queue::Queue;
use super::statistics::Statistics;
use crate::features::Features;
use crate::hold::{Rest, RxBatch, TxRound};
use crate::memory::{DirtyLog, GuestMemory};
use crate::poller::{Poller, PortId, Token};
use crate::protocol::ProtocolError;
use crate::ring::RingView;
use crate::telemetry::{CountedBy, Totals};
use crate::vhost_net::{Device, Event, Half, VhostError};
use rustix::event::{EventfdFlags, eventfd};
use rustix::net::{RecvFlags, SendFlags, recv, send};
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
const OF_RINGS: Features = NEEDED.with(Features::RING_PACKED).with(Features::IN_ORDER);

/// What the rings run with.
#[derive(Debug, Clone, Copy)]
pub(super) struct Session<'a> {
    pub(super) memory: &'a GuestMemory,
    pub(super) log: Option<&'a DirtyLog>,
    pub(super) features: Features,
}

/// A tap as the kernel's data path needs it.
#[derive(Debug)]
pub struct TapEnds {
    /// Its queues.
    pub queues: Vec<OwnedFd>,
    /// What brings the guest's control frames and takes the answers, a frame each; or why not.
    pub control: Result<OwnedFd, String>,
    /// What the kernel counts of it, where it shows that.
    pub statistics: Option<Statistics>,
}

/// The kernel's data path of a port.
#[derive(Debug)]
pub struct Kernel {
    /// A device for each queue pair.
    pub(super) pairs: Vec<KernelPair>,
    pub(super) path: KernelPath,
}

/// What the queue pairs of the kernel's data path have in common.
#[derive(Debug)]
pub(super) struct KernelPath {
    tap: TapEnds,
    /// Where kicks and calls are waited for.
    watch: Watch,
}

type Watch = Option<(Poller, PortId)>;

/// The part of a queue pair that the kernel serves.
#[derive(Debug)]
pub(super) struct KernelPair {
    number: u8,
    device: Box<dyn Device>,
    owned: bool,
    rx: Side,
    tx: Side,
    /// What the kernel signals in the place of the guest.
    call: OwnedFd,
    /// What signals the kernel in the place of the guest.
    kick: OwnedFd,
    /// When its calls and kicks are left alone.
    pub(super) rest: Rest,
}

/// One of a pair's rings.
#[derive(Debug)]
struct Side {
    running: Option<ActiveRing>,
    /// Whether the guest's own event descriptor is with the kernel, so that nothing is held: its call
    /// for what it receives, its kick for what it sends.
    through: bool,
    /// Whether nobody listens to the other one.
    muted: bool,
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
struct ActiveRing {
    view: RingView,
    /// The used index of a receive ring, the available one of a transmit ring, as last counted.
    counted: u16,
}

impl Kernel {
    /// A data path with a device for each pair, to a tap.
    ///
    /// # Errors
    /// When there are no event descriptors left.
    pub fn new(devices: Vec<Box<dyn Device>>, tap: TapEnds) -> Result<Self, VhostError> {
        let pairs = (0..)
            .zip(devices)
            .map(|(number, device)| KernelPair::new(number, device));
        Ok(Self {
            pairs: pairs.collect::<Result<_, _>>()?,
            path: KernelPath { tap, watch: None },
        })
    }

    /// What is left of what a port offers.
    pub fn offers(offered: Features) -> Features {
        offered.without(OF_RINGS.without(NEEDED))
    }
}

impl KernelPath {
    /// Why the guest's control frames are not answered, where they are not.
    pub(super) fn is_deaf(&self) -> Option<&str> {
        self.tap.control.as_ref().err().map(String::as_str)
    }

    /// Waits for kicks, calls and control frames from now on.
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

    /// The next control frame of the guest, as far as `bytes` has room.
    pub(super) fn control_frame<'a>(&self, bytes: &'a mut [u8]) -> Option<&'a [u8]> {
        let control = self.tap.control.as_ref().ok()?;
        let (len, _) = recv(control, &mut *bytes, RecvFlags::DONTWAIT).ok()?;
        bytes.get(..len)
    }

    /// Sends the guest an answer; a tap that is full loses it, as it loses any frame.
    pub(super) fn answer(&self, frame: &[u8]) {
        if let Ok(control) = &self.tap.control {
            let _ = send(control, frame, SendFlags::DONTWAIT);
        }
    }

    /// Fills in the frames that the kernel moved; tells who counted them.
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

    /// Stops a ring and remembers where it was.
    pub(super) fn pause(&self, pair: &mut QueuePair, half: Half) {
        let Some((kernel, queue)) = pair.kernel_half(half) else {
            return;
        };
        if kernel.side(half).running.take().is_none() {
            return;
        }
        // The memory under a ring goes next, so that it must stop. These fail for a device that
        // is not ours, which it is as long as a ring runs.
        let _ = kernel.device.set_backend(half, None);
        queue.kernel_stopped(kernel.device.base(half).ok());
        if let (Half::Tx, Some(kick), Some((poller, _))) = (half, queue.kick_file(), &self.watch) {
            poller.forget(kick);
        }
    }

    /// Starts every ring that is to run and does not.
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
            // More pairs than the tap has queues only send.
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

    /// Puts a ring's own descriptor in place, so that nothing is held, or ours.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub(super) fn set_through(
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
            // What the kernel signals from here on is seen: here, or by the guest, since it takes the new
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
                // What it signalled to us and was held.
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

    /// Listens to a pair's calls and kicks only while none of them is held: what is held is looked
    /// for when the hold ends, and nobody need be woken before.
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

impl KernelPair {
    fn new(number: u8, device: Box<dyn Device>) -> Result<Self, VhostError> {
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

    fn side(&mut self, half: Half) -> &mut Side {
        match half {
            Half::Rx => &mut self.rx,
            Half::Tx => &mut self.tx,
        }
    }

    fn kick_token(&self, id: PortId) -> Token {
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
    fn kick(&self) {
        // Ours alone, and it never blocks: a full counter is a signal already.
        let _ = rustix::io::write(&self.kick, &1_u64.to_ne_bytes());
    }

    /// Gives the device all that both rings have in common.
    fn prepare(&mut self, session: Session<'_>) -> Result<(), VhostError> {
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

    fn start(
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
    fn plug(&mut self, half: Half, queue: &Queue, watch: &Watch) -> Result<(), ProtocolError> {
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
