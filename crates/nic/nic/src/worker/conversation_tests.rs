// SPDX-License-Identifier: Apache-2.0
//! The conversations of front ends that are not specific to NICs, each in the order of its source, up to a frame that
//! passes.

use super::*;
use crate::control::api::{Change, Link, mailbox};
use crate::features::{Features, ProtocolFeatures};
use crate::hold::Mode;
use crate::testing::{CONTROL, MEMORY, Peer, RX, Ring, SIZE, TX, USER, event, linux, port};
use rustix::net::{
    AddressFamily, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketFlags,
    SocketType, recv, sendmsg, socketpair,
};
use std::io::IoSlice;
use std::os::fd::{AsFd, OwnedFd};

const MAC: [u8; 6] = [0x52, 0x54, 0, 0, 0, 7];
const ID: PortId = PortId {
    network: 0,
    port: 0,
};

fn sockets() -> (OwnedFd, OwnedFd) {
    let flags = SocketFlags::CLOEXEC;
    socketpair(AddressFamily::UNIX, SocketType::STREAM, flags, None).unwrap()
}

fn words(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_ne_bytes()).collect()
}

/// A front end, its guest, and a worker that serves them and another guest on a link.
struct Conversation {
    worker: Worker,
    socket: OwnedFd,
    guest: Peer,
    neighbour: Peer,
    /// Whether the front end asks for an acknowledgement of each message that has no reply.
    asks: bool,
}

impl Conversation {
    fn new() -> Self {
        let (socket, back) = sockets();
        let (_postbox, mailbox) = mailbox().unwrap();
        let poller = Poller::new().unwrap();
        let generic = port(0, Mode::Off).with_config_space(Some(MAC), Some(1_450));
        let mut other = port(1, Mode::Off);
        let neighbour = Peer::start(&mut other, &poller, linux());
        let ports = [generic, other].map(|guest| Port::Guest(Box::new(guest)));
        let front_ends = vec![(ID, FrontEnd::given(ID, "generic", back))];
        let mut worker =
            Worker::new(vec![Network::new(ports.into())], front_ends, mailbox).unwrap();
        worker.networks[0].port_changed(1);
        Self {
            worker,
            socket,
            guest: Peer::new(),
            neighbour,
            asks: false,
        }
    }

    /// Sends a message and returns the payload of the answer, if there is one.
    fn exchange(
        &mut self,
        code: u32,
        flags: u32,
        payload: &[u8],
        files: &[&OwnedFd],
    ) -> Option<Vec<u8>> {
        let size = u32::try_from(payload.len()).unwrap();
        let bytes = [&words(&[code, flags, size]), payload].concat();
        let files: Vec<_> = files.iter().map(AsFd::as_fd).collect();
        let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !files.is_empty() {
            assert!(control.push(SendAncillaryMessage::ScmRights(&files)));
        }
        let parts = [IoSlice::new(&bytes)];
        sendmsg(&self.socket, &parts, &mut control, SendFlags::NOSIGNAL).unwrap();
        self.worker.handle_event(Token::FrontEnd(ID), now());
        let mut answer = [0; 512];
        let (len, _) = recv(&self.socket, &mut answer, RecvFlags::DONTWAIT).ok()?;
        let size = u32::try_from(len.checked_sub(12)?).unwrap();
        assert_eq!(answer[..12], words(&[code, 5, size]), "the answer's header");
        Some(answer[12..len].to_vec())
    }

    /// Sends a message that has a reply.
    fn ask(&mut self, code: u32, payload: &[u8]) -> Vec<u8> {
        let answer = self.exchange(code, 1, payload, &[]);
        answer.unwrap_or_else(|| panic!("no reply to message {code}"))
    }

    fn number(&mut self, code: u32) -> u64 {
        u64::from_ne_bytes(self.ask(code, &[]).try_into().unwrap())
    }

    /// Sends a message that has no reply.
    fn tell(&mut self, code: u32, payload: &[u8], files: &[&OwnedFd]) {
        let flags = if self.asks { 9 } else { 1 };
        let answer = self.exchange(code, flags, payload, files);
        let expected = self.asks.then(|| vec![0; 8]);
        assert_eq!(answer, expected, "message {code}");
    }

    /// GET_FEATURES, the intersection with what the front end can do, and the same for the protocol.
    fn negotiate(
        &mut self,
        features: Features,
        protocol: ProtocolFeatures,
    ) -> (Features, ProtocolFeatures) {
        let offered = Features(self.number(1));
        let offers = self.number(15);
        let accepted = ProtocolFeatures(offers & protocol.0);
        self.tell(16, &accepted.0.to_ne_bytes(), &[]);
        (offered.within(features.with(Features::PROTOCOL)), accepted)
    }

    fn config(&mut self, offset: u32, size: u32, flags: u32) -> Vec<u8> {
        let header = words(&[offset, size, flags]);
        let request = [header.clone(), vec![0; size as usize]].concat();
        let reply = self.ask(24, &request);
        assert_eq!(reply[..12], header);
        reply[12..].to_vec()
    }

    fn set_features(&mut self, features: Features) {
        self.tell(2, &features.0.to_ne_bytes(), &[]);
    }

    fn memory(&mut self) {
        let region = [0, MEMORY, USER, 0].map(u64::to_ne_bytes).concat();
        let file = self.guest.driver.file.try_clone().unwrap();
        self.tell(5, &[words(&[1, 0]), region].concat(), &[&file]);
    }

    fn address(&mut self, queue: u32, ring: Ring) {
        let at = ring.addresses();
        let fields = [at.descriptors, at.used, at.available, 0].map(u64::to_ne_bytes);
        self.tell(9, &[words(&[queue, 0]), fields.concat()].concat(), &[]);
    }

    /// SET_VRING_NUM, BASE or ENABLE.
    fn state(&mut self, code: u32, queue: u32, value: u32) {
        self.tell(code, &words(&[queue, value]), &[]);
    }

    /// SET_VRING_KICK or CALL.
    fn file(&mut self, code: u32, queue: u32, file: &OwnedFd) {
        self.tell(code, &words(&[queue, 0]), &[file]);
    }

    /// The queues of the first pair and the control queue, with their events.
    fn queues(&self, control: u32) -> Vec<(u32, Ring, OwnedFd, OwnedFd)> {
        let copy = |file: &OwnedFd| file.try_clone().unwrap();
        let [rx_kick, tx_kick] = &self.guest.kicks;
        let [rx_call, tx_call] = &self.guest.calls;
        vec![
            (0, RX, copy(rx_kick), copy(rx_call)),
            (1, TX, copy(tx_kick), copy(tx_call)),
            (control, CONTROL, event(), event()),
        ]
    }

    /// Sets up and enables the queues of the first pair.
    fn start_pair(&mut self) {
        for (queue, ring, kick, call) in &self.queues(4)[..2] {
            self.state(8, *queue, SIZE.into());
            self.address(*queue, *ring);
            self.file(12, *queue, kick);
            self.file(13, *queue, call);
            self.state(18, *queue, 1);
        }
    }

    fn kick(&mut self, queue: u8) {
        let time = now();
        self.worker.handle_event(Token::Kick(ID, queue), time);
        while self.worker.networks[0].poll(time, &mut self.worker.batch) {}
    }

    /// Frames pass in both directions, and the control queue answers.
    fn frames_pass(&mut self, control: u32) {
        let mut frame = [7; 60];
        frame[12..14].copy_from_slice(&[8, 0]);
        self.neighbour.offer_buffers(4, 0x800);
        self.guest.send([0; 12], &frame);
        self.kick(1);
        assert_eq!(self.neighbour.received().len(), 1, "from the guest");
        self.guest.offer_buffers(4, 0x800);
        self.neighbour.send([0; 12], &frame);
        let time = now();
        let neighbour = PortId { port: 1, ..ID };
        self.worker.handle_event(Token::Kick(neighbour, 1), time);
        while self.worker.networks[0].poll(time, &mut self.worker.batch) {}
        assert_eq!(self.guest.received().len(), 1, "to the guest");
        self.guest.command(0, &[0, 0, 1], 1);
        self.kick(u8::try_from(control).unwrap());
        assert_eq!(CONTROL.used_index(&self.guest.driver), 1, "a command");
    }

    fn guest_port(&mut self) -> &mut crate::network::Guest {
        self.worker.networks[0].guest_mut(0).unwrap()
    }
}

/// QEMU's vhost-user-test-device (10.1; before: vhost-user-device) with virtio-id=1, num_vqs=5, config_size=64
/// (hw/virtio/vhost-user-base.c, vhost-user.c, vhost.c).
#[test]
fn qemus_generic_device_exchanges_frames() {
    let mut with = Conversation::new();
    let known = ProtocolFeatures(u64::MAX);
    let (features, protocol) = with.negotiate(Features::OFFERED.with(Features::MAC), known);
    for feature in [ProtocolFeatures::CONFIG, ProtocolFeatures::STATUS] {
        assert!(protocol.has(feature));
    }
    assert_eq!(with.number(17), 5, "queues");
    assert_eq!(with.number(36), 32, "memory slots");
    with.asks = true;
    let (channel, theirs) = sockets();
    with.tell(21, &[], &[&theirs]);
    with.tell(3, &[], &[]);
    let queues = with.queues(4);
    for (queue, _, _, call) in &queues {
        with.file(13, *queue, call);
    }
    let config = with.config(0, 64, 0);
    assert_eq!(config[..12], [0x52, 0x54, 0, 0, 0, 7, 1, 0, 2, 0, 0xaa, 5]);
    assert_eq!(config[12..], [0; 52]);
    with.set_features(features);
    // Features are accepted, then the driver is ready.
    for status in [8, 15] {
        let before = with.number(40);
        with.tell(39, &(before | status).to_ne_bytes(), &[]);
        assert_eq!(with.number(40), status);
    }
    let region = [0, 0, MEMORY, USER, 0].map(u64::to_ne_bytes).concat();
    let file = with.guest.driver.file.try_clone().unwrap();
    with.tell(37, &region, &[&file]);
    for (queue, ring, kick, call) in &queues {
        with.state(8, *queue, SIZE.into());
        with.state(10, *queue, 0);
        with.address(*queue, *ring);
        with.file(12, *queue, kick);
        with.file(13, *queue, call);
    }
    for (queue, ..) in &queues {
        with.state(18, *queue, 1);
    }
    with.frames_pass(4);
    // QEMU writes all of the configuration, although its guest has written one byte.
    with.tell(25, &[words(&[0, 64, 0]), config].concat(), &[]);
    drop(channel);
    // A reset of the device.
    with.tell(39, &[0; 8], &[]);
    assert_eq!(with.number(40), 0);
    assert_eq!(with.guest_port().running_pairs(), 0);
}

/// crosvm's `--vhost-user net` (devices/src/virtio/vhost_user_frontend/mod.rs).
#[test]
fn crosvm_exchanges_frames() {
    let mut with = Conversation::new();
    with.tell(3, &[], &[]);
    let known = ProtocolFeatures::CONFIG
        .with(ProtocolFeatures::MQ)
        .with(ProtocolFeatures::BACKEND_REQ)
        .with(ProtocolFeatures::REPLY_ACK);
    let types = Features(((1 << 24) - 1) | (((1 << 14) - 1) << 50));
    let others = Features::VERSION_1.with(Features::EVENT_IDX);
    let (features, protocol) = with.negotiate(types.with(others), known);
    assert_eq!(protocol, known);
    assert!(features.has(Features::NOTF_COAL.with(Features::CTRL_VQ)));
    let (channel, theirs) = sockets();
    with.tell(21, &[], &[&theirs]);
    assert_eq!(with.number(17), 5, "queues, the control queue included");
    // The flag says that the fields are writable, which concerns writes.
    assert_eq!(with.config(0, 6, 1), MAC);
    assert_eq!(with.config(8, 2, 1), [2, 0], "pairs");
    with.set_features(features);
    with.memory();
    for (queue, ring, kick, call) in &with.queues(4) {
        with.state(8, *queue, SIZE.into());
        with.address(*queue, *ring);
        with.state(10, *queue, 0);
        with.file(13, *queue, call);
        with.file(12, *queue, kick);
        with.state(18, *queue, 1);
    }
    with.frames_pass(4);
    drop(channel);
}

/// Cloud Hypervisor's `--net vhost_user=true`, which takes address and MTU of the back end, and its
/// `--generic-vhost-user`, which accepts no feature of NICs (virtio-devices/src/vhost_user).
#[test]
fn cloud_hypervisor_exchanges_frames() {
    let default = Features::INDIRECT
        .with(Features::EVENT_IDX)
        .with(Features::VERSION_1)
        .with(Features::IN_ORDER)
        .with(Features::LOG_ALL);
    let of_nics = Features::MRG_RXBUF
        .with(Features::CTRL_VQ)
        .with(Features::MAC)
        .with(Features::MTU)
        .with(Features::MQ);
    for is_net in [true, false] {
        let mut with = Conversation::new();
        with.tell(3, &[], &[]);
        let known = ProtocolFeatures::CONFIG
            .with(ProtocolFeatures::MQ)
            .with(ProtocolFeatures::CONFIGURE_MEM_SLOTS)
            .with(ProtocolFeatures::REPLY_ACK)
            .with(ProtocolFeatures::LOG_SHMFD)
            .with(ProtocolFeatures::BACKEND_REQ);
        let wanted = if is_net {
            default.with(of_nics)
        } else {
            default
        };
        let (features, protocol) = with.negotiate(wanted, known);
        assert_eq!(protocol, known);
        with.asks = true;
        assert_eq!(with.number(17), 5);
        let config = with.config(0, 24, 1);
        assert_eq!((&config[..6], &config[10..12]), (&MAC[..], &[0xaa, 5][..]));
        with.set_features(features);
        with.memory();
        // It answers the control queue of a NIC itself.
        let queues = with.queues(4);
        let queues = &queues[..2];
        for (queue, ..) in queues {
            with.state(8, *queue, SIZE.into());
        }
        for (queue, ring, kick, call) in queues {
            with.address(*queue, *ring);
            with.state(10, *queue, 0);
            with.file(13, *queue, call);
            with.file(12, *queue, kick);
        }
        for (queue, ..) in queues {
            with.state(18, *queue, 1);
        }
        let (_channel, theirs) = sockets();
        with.tell(21, &[], &[&theirs]);
        assert_eq!(with.guest_port().running_pairs(), 1);
        let mut frame = [7; 60];
        frame[12..14].copy_from_slice(&[8, 0]);
        with.neighbour.offer_buffers(4, 0x800);
        with.guest.send([0; 12], &frame);
        with.kick(1);
        assert_eq!(with.neighbour.received().len(), 1);
    }
}

/// libkrun's vhost-user device, which has one call descriptor for all queues (src/devices/src/virtio/vhost_user).
#[test]
fn libkrun_exchanges_frames() {
    let mut with = Conversation::new();
    let known = ProtocolFeatures::CONFIG.with(ProtocolFeatures::MQ);
    let (features, protocol) = with.negotiate(Features(u64::MAX), known);
    assert_eq!(protocol, known);
    assert!(
        !features.has(Features::RING_PACKED),
        "which libkrun would pass on, and set up with a wrong wrap counter"
    );
    assert_eq!(with.number(17), 5);
    assert_eq!(with.config(6, 2, 0), [1, 0], "the link is up");
    with.tell(3, &[], &[]);
    with.memory();
    with.set_features(features.without(Features::LOG_ALL));
    let call = event();
    for (queue, ring, kick, _) in &with.queues(4) {
        with.state(8, *queue, SIZE.into());
        with.state(10, *queue, 0);
        with.address(*queue, *ring);
        with.file(12, *queue, kick);
        with.file(13, *queue, &call);
        with.state(18, *queue, 1);
    }
    with.frames_pass(4);
}

/// A conversation up to the negotiation of CONFIG, acknowledgements and a channel.
fn negotiated() -> (Conversation, OwnedFd, OwnedFd) {
    let mut with = Conversation::new();
    with.negotiate(linux(), ProtocolFeatures(u64::MAX));
    with.asks = true;
    let (channel, theirs) = sockets();
    with.tell(21, &[], &[&theirs]);
    (with, channel, theirs)
}

fn set_link(with: &mut Conversation, link: Link, time: Nanos) {
    let change = Change {
        link: Some(link),
        ..Change::default()
    };
    with.worker.networks[0].change_policy(0, &change, time);
}

#[test]
fn a_front_end_is_notified_when_the_operator_changes_the_link() {
    const NOTIFICATION: [u32; 3] = [2, 1, 0];
    let (mut with, channel, theirs) = negotiated();
    let notified = || {
        let mut bytes = [0; 24];
        let len = recv(&channel, &mut bytes, RecvFlags::DONTWAIT).map_or(0, |(len, _)| len);
        bytes[..len].to_vec()
    };
    set_link(&mut with, Link::Up, now());
    assert!(notified().is_empty(), "no change");
    set_link(&mut with, Link::Down, now());
    assert_eq!(notified(), words(&NOTIFICATION));
    assert_eq!(with.config(6, 2, 0), [0, 0]);
    set_link(&mut with, Link::Up, now());
    assert_eq!(notified(), words(&NOTIFICATION));
    // A channel that is full takes the notification later.
    while rustix::net::send(&theirs, &[0; 64], SendFlags::DONTWAIT).is_ok() {}
    set_link(&mut with, Link::Down, Nanos(1));
    let mut bytes = vec![0; 1 << 20];
    while recv(&channel, &mut bytes, RecvFlags::DONTWAIT).is_ok() {}
    let due = with.worker.networks[0].deadline().unwrap();
    assert!(due <= Nanos(1) + Nanos::from_micros(10_000));
    with.worker.networks[0].poll(due, &mut with.worker.batch);
    assert_eq!(notified(), words(&NOTIFICATION));
    assert_eq!(with.worker.networks[0].deadline(), None, "notified once");
}

#[test]
fn a_link_that_is_down_passes_no_frame_in_either_direction() {
    let mut with = Conversation::new();
    let (features, _) = with.negotiate(linux(), ProtocolFeatures::CONFIG);
    with.set_features(features);
    with.memory();
    with.start_pair();
    let mut frame = [7; 60];
    frame[12..14].copy_from_slice(&[8, 0]);
    with.neighbour.offer_buffers(8, 0x800);
    with.guest.offer_buffers(8, 0x800);
    let neighbour = PortId { port: 1, ..ID };
    for (link, passed) in [(Link::Up, 1), (Link::Down, 0), (Link::Up, 1)] {
        set_link(&mut with, link, now());
        with.guest.send([0; 12], &frame);
        with.kick(1);
        assert_eq!(with.neighbour.received().len(), passed, "{link:?}");
        with.neighbour.send([0; 12], &frame);
        with.worker.handle_event(Token::Kick(neighbour, 1), now());
        while with.worker.networks[0].poll(now(), &mut with.worker.batch) {}
        assert_eq!(with.guest.received().len(), passed, "{link:?}");
    }
    assert_eq!(TX.used_index(&with.guest.driver), 3, "all are returned");
}

#[test]
fn bad_requests_about_the_configuration_are_refused_and_the_session_continues() {
    let (mut with, ..) = negotiated();
    let before = with.config(0, 24, 0);
    // The range of a read ends after the space.
    for (offset, size) in [(4_095, 2), (u32::MAX, 4), (u32::MAX, 0)] {
        let request = [words(&[offset, size, 0]), vec![0; size as usize]].concat();
        assert!(with.ask(24, &request).is_empty(), "{offset}");
    }
    let refused = |with: &mut Conversation, payload: Vec<u8>| {
        let answer = with.exchange(25, 9, &payload, &[]).unwrap();
        assert_eq!(answer, 1_u64.to_ne_bytes(), "{payload:?}");
    };
    // The configuration of a block device: its capacity, its segments and its block size.
    refused(
        &mut with,
        [words(&[0, 24, 0, 2048, 0, 0, 126]), vec![0; 8]].concat(),
    );
    // Read-only fields: the link's status, the number of pairs, the MTU. So is the address, with a modern driver.
    with.set_features(linux());
    for offset in [0, 6, 8, 10] {
        refused(&mut with, [words(&[offset, 2, 0]), vec![0xee; 2]].concat());
    }
    // Behind the fields, and in migration.
    refused(&mut with, [words(&[200, 1, 0]), vec![1]].concat());
    refused(&mut with, [words(&[10, 2, 1]), vec![0x28, 0x23]].concat());
    assert_eq!(with.config(0, 24, 0), before);
    assert!(with.worker.front_ends[0].1.connection.is_some());
    assert_eq!(with.guest_port().counters.totals.faults, 10);
    // A size that is not the payload's is no message.
    assert!(with.exchange(24, 1, &words(&[0, 24, 0, 0]), &[]).is_none());
    assert!(with.worker.front_ends.is_empty(), "disconnected");
}

#[test]
fn a_configuration_that_was_not_negotiated_is_refused() {
    for code in [24, 25] {
        let mut with = Conversation::new();
        with.negotiate(linux(), ProtocolFeatures::MQ);
        let request = [words(&[0, 4, 0]), vec![0; 4]].concat();
        assert!(with.exchange(code, 1, &request, &[]).is_none());
        assert!(with.worker.front_ends.is_empty(), "disconnected");
    }
}

#[test]
fn a_device_whose_queue_is_invalid_needs_a_reset_by_its_status() {
    let mut with = Conversation::new();
    let (features, _) = with.negotiate(linux(), ProtocolFeatures::STATUS);
    with.set_features(features);
    with.memory();
    with.start_pair();
    with.tell(39, &15_u64.to_ne_bytes(), &[]);
    assert_eq!(with.number(40), 15);
    TX.set_available(&with.guest.driver, 9_999);
    with.kick(1);
    assert_eq!(with.number(40), 15 | 64);
    with.tell(39, &0_u64.to_ne_bytes(), &[]);
    assert_eq!(with.number(40), 0);
    assert!(
        with.exchange(39, 1, &(1_u64 << 8).to_ne_bytes(), &[])
            .is_none()
    );
    assert!(with.worker.front_ends.is_empty(), "a status of 9 bits");
}
