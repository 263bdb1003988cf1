//! The kernel's data path of a port: vhost-net moves the frames between the guest's rings and a
//! tap, and this process stands between the event descriptors, or out of the way.

use super::queue::Queue;
use super::statistics::Statistics;
use crate::features::Features;
use crate::hold::{RxBatch, TxRound};
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
    pairs: Vec<Pair>,
    tap: TapEnds,
    /// Where kicks and calls are waited for.
    watch: Watch,
}

type Watch = Option<(Poller, PortId)>;

/// A queue pair.
#[derive(Debug)]
struct Pair {
    number: u8,
    device: Box<dyn Device>,
    owned: bool,
    rx: Side,
    tx: Side,
    /// What the kernel signals in the place of the guest.
    call: OwnedFd,
    /// What signals the kernel in the place of the guest.
    kick: OwnedFd,
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

impl Pair {
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
        })
    }

    fn side(&mut self, half: Half) -> &mut Side {
        match half {
            Half::Rx => &mut self.rx,
            Half::Tx => &mut self.tx,
        }
    }
}

/// Which pair's which ring a queue is.
fn place(number: usize) -> (usize, Half) {
    let half = if number.is_multiple_of(2) {
        Half::Rx
    } else {
        Half::Tx
    };
    (number / 2, half)
}

impl Kernel {
    /// A data path with a device for each pair, to a tap.
    ///
    /// # Errors
    /// When there are no event descriptors left.
    pub fn new(devices: Vec<Box<dyn Device>>, tap: TapEnds) -> Result<Self, VhostError> {
        let pairs = (0..)
            .zip(devices)
            .map(|(number, device)| Pair::new(number, device));
        Ok(Self {
            pairs: pairs.collect::<Result<_, _>>()?,
            tap,
            watch: None,
        })
    }

    /// What is left of what a port offers.
    pub fn offers(offered: Features) -> Features {
        offered.without(OF_RINGS.without(NEEDED))
    }

    /// Why the guest's control frames are not answered, where they are not.
    pub fn is_deaf(&self) -> Option<&str> {
        self.tap.control.as_ref().err().map(String::as_str)
    }

    /// Waits for kicks, calls and control frames from now on.
    pub(super) fn watch(&mut self, poller: &Poller, id: PortId) -> Result<(), rustix::io::Errno> {
        for (pair, number) in self.pairs.iter().zip(0..) {
            poller.watch(&pair.call, Token::Call(id, number))?;
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

    /// Stops a ring, or all, and remembers where it was.
    pub(super) fn pause(&mut self, queues: &mut [Queue], which: Option<usize>) {
        for (number, queue) in queues.iter_mut().enumerate() {
            if which.is_some_and(|which| which != number) {
                continue;
            }
            let (pair, half) = place(number);
            let Some(pair) = self.pairs.get_mut(pair) else {
                continue;
            };
            if pair.side(half).running.take().is_none() {
                continue;
            }
            // The memory under a ring goes next, so that it must stop. These fail for a device that
            // is not ours, which it is as long as a ring runs.
            let _ = pair.device.set_backend(half, None);
            queue.kernel_stopped(pair.device.base(half).ok());
            if let (Half::Tx, Some(kick), Some((poller, _))) =
                (half, queue.kick_file(), &self.watch)
            {
                poller.forget(kick);
            }
        }
    }

    /// Starts every ring that is to run and does not.
    ///
    /// # Errors
    /// When a ring is not in guest memory, or the kernel refuses it.
    pub(super) fn resume(
        &mut self,
        queues: &mut [Queue],
        session: Session<'_>,
    ) -> Result<(), ProtocolError> {
        for (number, pair) in self.pairs.iter_mut().enumerate() {
            let Some(queues) = queues.get_mut(number * 2..number * 2 + 2) else {
                continue;
            };
            if !queues.iter().any(Queue::is_to_run) {
                continue;
            }
            if pair.rx.running.is_none() && pair.tx.running.is_none() {
                pair.prepare(session)?;
            }
            for (queue, half) in queues.iter_mut().zip([Half::Rx, Half::Tx]) {
                // More pairs than the tap has queues only send.
                let queues = &self.tap.queues;
                let tap = match half {
                    Half::Rx => queues.get(number),
                    Half::Tx => queues.get(number % queues.len().max(1)),
                };
                if queue.is_to_run() && pair.side(half).running.is_none() {
                    pair.start(half, queue, session, (tap, &self.watch))?;
                }
            }
        }
        Ok(())
    }

    /// Forgets all that the kernel was told, after [`Kernel::pause`].
    pub(super) fn release(&mut self) {
        for pair in &mut self.pairs {
            if std::mem::take(&mut pair.owned) {
                let _ = pair.device.disown();
            }
        }
    }

    // Notifications.

    /// Puts a ring's own descriptor in place, so that nothing is held, or ours.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub(super) fn set_through(
        &mut self,
        queues: &mut [Queue],
        number: usize,
        through: bool,
    ) -> Result<(), ProtocolError> {
        let (pair, half) = place(number);
        let Some(side) = self.pairs.get_mut(pair).map(|pair| pair.side(half)) else {
            return Ok(());
        };
        if std::mem::replace(&mut side.through, through) == through {
            return Ok(());
        }
        self.replug(queues, number)
    }

    /// Tells the kernel the descriptors of a queue, if it runs.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub(super) fn replug(
        &mut self,
        queues: &mut [Queue],
        number: usize,
    ) -> Result<(), ProtocolError> {
        let (pair, half) = place(number);
        let (Some(pair), Some(queue)) = (self.pairs.get_mut(pair), queues.get_mut(number)) else {
            return Ok(());
        };
        let Side {
            running: Some(running),
            through,
            ..
        } = pair.side(half)
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
        pair.plug(half, queue, &self.watch)?;
        match half {
            Half::Rx if through => {
                // What it signalled to us and was held.
                if let Some(rx) = &mut pair.rx.running
                    && rx.view.wants_signal()
                    && queue.call()
                {
                    rx.view.signalled();
                }
            }
            Half::Tx if !through => pair.kick(),
            _ => {}
        }
        Ok(())
    }

    /// Listens to a pair's calls and kicks only while none of them is held: what is held is looked
    /// for when the hold ends, and nobody need be woken before.
    pub(super) fn mute(&mut self, queues: &[Queue], pair: usize, (call, kick): (bool, bool)) {
        let Some((poller, id)) = &self.watch else {
            return;
        };
        let kick_file = queues.get(pair * 2 + 1).and_then(Queue::kick_file);
        let Some(pair) = self.pairs.get_mut(pair) else {
            return;
        };
        if std::mem::replace(&mut pair.rx.muted, call) != call {
            poller.mute(&pair.call, Token::Call(*id, pair.number), call);
        }
        if std::mem::replace(&mut pair.tx.muted, kick) != kick
            && let Some(file) = kick_file
        {
            poller.mute(file, Token::Kick(*id, pair.number * 2 + 1), kick);
        }
    }

    /// What a pair received since this was last asked. A buffer counts as a frame; long frames have
    /// several.
    pub(super) fn received(&mut self, pair: usize) -> Option<RxBatch> {
        let rx = self.pairs.get_mut(pair)?.rx.running.as_mut()?;
        let used = rx.view.used();
        let packets = used.wrapping_sub(std::mem::replace(&mut rx.counted, used));
        Some(RxBatch {
            packets: packets.into(),
            free: rx.view.offered().wrapping_sub(used),
            ring_size: rx.view.size(),
            wanted: rx.view.wants_signal(),
        })
    }

    /// The receive ring of a pair.
    pub(super) fn rx_view(&mut self, pair: usize) -> Option<&mut RingView> {
        let rx = self.pairs.get_mut(pair)?.rx.running.as_mut();
        rx.map(|running| &mut running.view)
    }

    /// How many frames a pair has offered since the last [`Kernel::drain`]. A kick that comes with
    /// none was for frames that the kernel was told of before.
    pub(super) fn offered(&self, pair: usize) -> u16 {
        let tx = self
            .pairs
            .get(pair)
            .and_then(|pair| pair.tx.running.as_ref());
        tx.map_or(0, |tx| tx.view.offered().wrapping_sub(tx.counted))
    }

    /// Lets the kernel send what a pair offers, if there is anything. Tells how many frames were
    /// offered since the last time.
    pub(super) fn drain(&mut self, pair: usize) -> Option<TxRound> {
        let pair = self.pairs.get_mut(pair)?;
        let tx = pair.tx.running.as_mut()?;
        let offered = tx.view.offered();
        let packets = offered.wrapping_sub(std::mem::replace(&mut tx.counted, offered));
        let ring_size = tx.view.size();
        if packets > 0 {
            pair.kick();
        }
        Some(TxRound {
            packets: packets.into(),
            ring_size,
        })
    }
}

impl Pair {
    /// Signals the kernel in the guest's place.
    fn kick(&self) {
        // Ours alone, and it never blocks: a full counter says all that there is to say.
        let _ = rustix::io::write(&self.kick, &1_u64.to_ne_bytes());
    }

    /// Tells the device all that both rings have in common.
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
                let token = Token::Kick(*id, self.number * 2 + 1);
                poller
                    .watch(kick, token)
                    .map_err(|cause| VhostError::new("wait for kicks", cause.into()))?;
            }
        }
        Ok(())
    }
}
