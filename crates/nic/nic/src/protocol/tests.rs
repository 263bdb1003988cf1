// SPDX-License-Identifier: Apache-2.0
//! Messages over a socket: whole, in parts and invalid.

use super::*;
use proptest::prelude::*;
use rustix::net::{
    AddressFamily, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketFlags, SocketType,
    sendmsg, socketpair,
};
use std::io::IoSlice;
use std::os::fd::{AsFd, OwnedFd};

fn pair() -> (OwnedFd, Connection) {
    let (ours, theirs) = socketpair(
        AddressFamily::UNIX,
        SocketType::STREAM,
        SocketFlags::CLOEXEC,
        None,
    )
    .unwrap();
    (ours, Connection::new(theirs))
}

fn bytes(code: u32, flags: u32, payload: &[u8]) -> Vec<u8> {
    let size = u32::try_from(payload.len()).unwrap();
    let header = [code, flags, size].map(u32::to_ne_bytes).concat();
    [&header, payload].concat()
}

fn send(socket: &OwnedFd, bytes: &[u8], files: usize) {
    let file = crate::testing::memory_file();
    let files = vec![file.as_fd(); files];
    let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(20))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !files.is_empty() {
        assert!(control.push(SendAncillaryMessage::ScmRights(&files)));
    }
    sendmsg(
        socket,
        &[IoSlice::new(bytes)],
        &mut control,
        SendFlags::empty(),
    )
    .unwrap();
}

fn request(message: &[u8], files: usize) -> Result<Request, ProtocolError> {
    let (socket, mut connection) = pair();
    send(&socket, message, files);
    Request::read(connection.receive()?.unwrap())
}

fn words(words: &[u64]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_ne_bytes()).collect()
}

#[test]
fn messages_come_whole_however_they_are_sent() {
    let (socket, mut connection) = pair();
    let both = [bytes(1, 1, &[]), bytes(2, 9, &words(&[7]))].concat();
    for byte in &both[..both.len() - 1] {
        send(&socket, &[*byte], 0);
        if let Some(message) = connection.receive().unwrap() {
            assert_eq!((message.code, message.needs_ack), (1, false));
        }
    }
    send(&socket, &both[both.len() - 1..], 0);
    let message = connection.receive().unwrap().unwrap();
    assert!(message.needs_ack);
    assert!(
        matches!(Request::read(message), Ok(Request::SetFeatures(features)) if features.0 == 7)
    );
    drop(socket);
    assert!(matches!(connection.receive(), Err(ProtocolError::Closed)));
}

#[test]
fn a_message_that_ends_early_is_an_error() {
    let (socket, mut connection) = pair();
    send(&socket, &bytes(2, 1, &words(&[7]))[..15], 0);
    assert!(connection.receive().unwrap().is_none());
    drop(socket);
    let error = connection.receive().unwrap_err();
    assert!(matches!(
        error,
        ProtocolError::Truncated { have: 15, want: 20 }
    ));
}

#[test]
fn headers_that_cannot_be_are_refused() {
    for (message, reason) in [
        (bytes(1, 0, &[]), "flags"),
        (bytes(1, 2, &[]), "flags"),
        (bytes(1, 5, &[]), "flags"),
        ([1_u32, 1, 4096].map(u32::to_ne_bytes).concat(), "announces"),
        (
            [1_u32, 1, u32::MAX].map(u32::to_ne_bytes).concat(),
            "announces",
        ),
    ] {
        let error = request(&message, 0).unwrap_err().to_string();
        assert!(error.contains(reason), "{error}");
    }
}

#[test]
fn every_request_gets_its_payload_and_descriptors_or_is_refused() {
    let region = words(&[0, 0x1000, 0x7000, 0]);
    let table = [words(&[1]), region.clone()].concat();
    let slot = [words(&[0]), region].concat();
    // Each request's code, payload and number of descriptors.
    let requests = [
        (1, vec![], 0),
        (2, words(&[1]), 0),
        (5, table, 1),
        (6, words(&[64, 0]), 1),
        (8, words(&[16 << 32]), 0),
        (9, words(&[0, 0, 0, 0, 0]), 0),
        (11, words(&[0]), 0),
        (12, words(&[0]), 1),
        (13, words(&[1 << 8]), 0),
        (17, vec![], 0),
        (18, words(&[1 << 32]), 0),
        (19, words(&[2]), 0),
        (20, words(&[1500]), 0),
        (21, vec![], 1),
        (24, words(&[2 << 32, 0])[..14].to_vec(), 0),
        (25, words(&[2 << 32, 0])[..14].to_vec(), 0),
        (34, vec![], 0),
        (35, words(&[1]), 0),
        (37, slot, 1),
        (39, words(&[15]), 0),
        (40, vec![], 0),
    ];
    for (code, payload, files) in requests {
        request(&bytes(code, 1, &payload), files).unwrap();
        for other in [files + 1, files + 8, files + 12] {
            let error = request(&bytes(code, 1, &payload), other);
            assert!(error.is_err(), "{code} with {other} descriptors");
        }
        if files > 0 {
            assert!(
                request(&bytes(code, 1, &payload), 0).is_err(),
                "{code} without"
            );
        }
        let longer = [&payload[..], &[0]].concat();
        assert!(
            request(&bytes(code, 1, &longer), files).is_err(),
            "{code} too long"
        );
        if !payload.is_empty() {
            let shorter = &payload[..payload.len() - 1];
            assert!(
                request(&bytes(code, 1, shorter), files).is_err(),
                "{code} too short"
            );
        }
    }
    for code in 28..=30 {
        let error = request(&bytes(code, 1, &[]), 0).unwrap_err();
        assert!(error.to_string().contains("postcopy"), "{error}");
    }
    for code in [0, 22, 31, 33, 43, 99, u32::MAX] {
        let error = request(&bytes(code, 1, &[]), 0).unwrap_err();
        assert!(matches!(error, ProtocolError::Unsupported(_)), "{code}");
    }
}

#[test]
fn descriptors_of_refused_messages_are_closed() {
    let count = || std::fs::read_dir("/proc/self/fd").unwrap().count();
    let try_some = || {
        for _ in 0..100 {
            assert!(request(&bytes(1, 1, &[]), 8).is_err());
        }
    };
    try_some();
    let before = count();
    try_some();
    // Other tests open and close a few descriptors at the same time.
    assert!(count() < before + 100);
}

#[test]
fn a_front_end_that_does_not_read_is_an_error_and_no_wait() {
    let (_socket, mut connection) = pair();
    let result = (0..1_000_000).try_for_each(|_| connection.reply(1, Reply::Number(1)));
    assert!(matches!(result, Err(ProtocolError::Socket { .. })));
}

proptest! {
    #[test]
    fn any_message_is_read_or_refused(
        code in 0..50_u32,
        payload in proptest::collection::vec(any::<u8>(), 0..300),
        files in 0..10_usize,
    ) {
        let _ = request(&bytes(code, 1, &payload), files);
    }

    #[test]
    fn any_bytes_are_survived(stream in proptest::collection::vec(any::<u8>(), 0..200)) {
        let (socket, mut connection) = pair();
        if !stream.is_empty() {
            send(&socket, &stream, 0);
        }
        drop(socket);
        while let Ok(Some(message)) = connection.receive() {
            let _ = Request::read(message);
        }
    }
}
