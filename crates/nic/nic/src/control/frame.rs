// SPDX-License-Identifier: Apache-2.0
//! The control frame: how a guest asks its own port, in band, to hold its notifications.
//!
//! After the Ethernet header, 24 bytes in network order, then padding with zeros up to 60 bytes:
//!
//! | offset | bytes | field |
//! |---|---|---|
//! | 0 | 4 | magic `VTXH` |
//! | 4 | 1 | version, 1 |
//! | 5 | 1 | operation: 1 ask, 2 release, 3 query; an answer has bit 7 set as well |
//! | 6 | 1 | enable: 1 hold, 0 do not hold |
//! | 7 | 1 | status, 0 in a request: see [`Status`] |
//! | 8 | 4 | T_buf in µs; in an answer: the T_buf in force |
//! | 12 | 4 | lease in seconds; in an answer: the remaining time |
//! | 16 | 8 | nonce, returned in the answer |

/// EtherType 0x88B5, IEEE Std 802 local experimental 1.
pub const ETHER_TYPE: u16 = 0x88b5;

/// 01-80-C2-00-00-0E, the nearest-bridge group address: no compliant bridge relays it.
pub const DESTINATION: [u8; 6] = [0x01, 0x80, 0xc2, 0x00, 0x00, 0x0e];

/// The length of a frame as it is sent, without FCS.
pub const FRAME_LEN: usize = 60;

const MAGIC: [u8; 4] = *b"VTXH";
const VERSION: u8 = 1;
const HEADER_LEN: usize = 14;
const BODY_LEN: usize = 24;
const SHORTEST_FRAME: usize = HEADER_LEN + BODY_LEN;
const ANSWER_BIT: u8 = 0x80;

/// A MAC address.
pub type Mac = [u8; 6];

/// Whether a frame belongs to the control protocol, well-formed or not. Such a frame is never forwarded.
pub fn is_control(frame: &[u8]) -> bool {
    frame.get(12..14) == Some(&ETHER_TYPE.to_be_bytes())
}

/// The operation of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Operation {
    /// Hold for up to T_buf (or not at all, where not enabled) until the lease ends.
    Ask = 1,
    /// Give the lease back.
    Release = 2,
    /// Report the hold in force.
    Query = 3,
}

impl Operation {
    fn from_code(code: u8) -> Option<Self> {
        let all = [Self::Ask, Self::Release, Self::Query];
        all.into_iter().find(|operation| *operation as u8 == code)
    }
}

/// The status of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Status {
    /// In force as asked.
    Granted = 0,
    /// In force, but shorter than asked, in T_buf or lease: the operator's cap.
    Clamped = 1,
    /// Not in force: the operator has fixed the hold of this port.
    Overridden = 2,
}

impl Status {
    fn from_code(code: u8) -> Option<Self> {
        let all = [Self::Granted, Self::Clamped, Self::Overridden];
        all.into_iter().find(|status| *status as u8 == code)
    }
}

/// A request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// The guest's address.
    pub source: Mac,
    /// The operation.
    pub operation: Operation,
    /// Whether to hold at all.
    pub enable: bool,
    /// T_buf, the longest hold that it tolerates, in µs.
    pub hold_us: u32,
    /// The duration of the lease, in seconds.
    pub lease_s: u32,
    /// Any number. The answer has the same.
    pub nonce: u64,
}

/// An answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reply {
    /// The operation that it answers.
    pub operation: Operation,
    /// The status.
    pub status: Status,
    /// Whether anything is held now.
    pub enable: bool,
    /// The hold in force, in µs.
    pub hold_us: u32,
    /// The remaining time of the guest's lease, in seconds; 0 without one.
    pub lease_s: u32,
    /// The request's nonce.
    pub nonce: u64,
}

/// Why a frame is no valid control frame of this version.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// Too short.
    #[error("a control frame has at least {SHORTEST_FRAME} bytes, this one has {0}")]
    Short(usize),
    /// Another EtherType, destination or magic.
    #[error("not a control frame: its {0} is another")]
    Foreign(&'static str),
    /// A field has an undefined value.
    #[error("a control frame with {field} {value}, which means nothing in version {VERSION}")]
    Field {
        /// The field.
        field: &'static str,
        /// Its value.
        value: u8,
    },
}

/// The fields that requests and answers share, in wire order.
struct Body {
    operation: u8,
    enable: bool,
    status: u8,
    hold_us: u32,
    lease_s: u32,
    nonce: u64,
}

impl Body {
    fn write(&self, destination: Mac, source: Mac) -> [u8; FRAME_LEN] {
        let mut frame = [0; FRAME_LEN];
        let mut at = 0;
        let mut put = |bytes: &[u8]| {
            frame[at..at + bytes.len()].copy_from_slice(bytes);
            at += bytes.len();
        };
        put(&destination);
        put(&source);
        put(&ETHER_TYPE.to_be_bytes());
        put(&MAGIC);
        let enable = u8::from(self.enable);
        put(&[VERSION, self.operation, enable, self.status]);
        put(&self.hold_us.to_be_bytes());
        put(&self.lease_s.to_be_bytes());
        put(&self.nonce.to_be_bytes());
        frame
    }

    fn read(frame: &[u8]) -> Result<Self, FrameError> {
        let body = frame.get(HEADER_LEN..SHORTEST_FRAME).unwrap_or_default();
        let (words, _) = body.as_chunks();
        let [magic, codes, hold_us, lease_s, nonce @ ..] = words else {
            return Err(FrameError::Short(frame.len()));
        };
        if !is_control(frame) {
            return Err(FrameError::Foreign("EtherType"));
        }
        if *magic != MAGIC {
            return Err(FrameError::Foreign("magic"));
        }
        let [version, operation, enable, status] = *codes;
        if version != VERSION {
            return Err(undefined("version", version));
        }
        if enable > 1 {
            return Err(undefined("enable", enable));
        }
        let nonce = nonce.as_flattened().first_chunk().copied();
        Ok(Self {
            operation,
            enable: enable == 1,
            status,
            hold_us: u32::from_be_bytes(*hold_us),
            lease_s: u32::from_be_bytes(*lease_s),
            nonce: u64::from_be_bytes(nonce.unwrap_or_default()),
        })
    }
}

fn undefined(field: &'static str, value: u8) -> FrameError {
    FrameError::Field { field, value }
}

impl Request {
    /// The frame to send.
    pub fn to_frame(&self) -> [u8; FRAME_LEN] {
        Body {
            operation: self.operation as u8,
            enable: self.enable,
            status: 0,
            hold_us: self.hold_us,
            lease_s: self.lease_s,
            nonce: self.nonce,
        }
        .write(DESTINATION, self.source)
    }

    /// Reads a frame that a guest sent.
    ///
    /// # Errors
    /// The frame is not a request of this version.
    pub fn from_frame(frame: &[u8]) -> Result<Self, FrameError> {
        let body = Body::read(frame)?;
        if frame.get(..6) != Some(&DESTINATION) {
            return Err(FrameError::Foreign("destination"));
        }
        let source = frame.get(6..).and_then(|rest| rest.first_chunk());
        let source = *source.ok_or(FrameError::Short(frame.len()))?;
        let operation = Operation::from_code(body.operation);
        let operation = operation.ok_or(undefined("operation", body.operation))?;
        if body.status != 0 {
            return Err(undefined("status", body.status));
        }
        Ok(Self {
            source,
            operation,
            enable: body.enable,
            hold_us: body.hold_us,
            lease_s: body.lease_s,
            nonce: body.nonce,
        })
    }
}

impl Reply {
    /// The frame for the guest's RX ring. Its source is the group address with the group bit cleared, which no station
    /// has.
    pub fn to_frame(&self, guest: Mac) -> [u8; FRAME_LEN] {
        let mut source = DESTINATION;
        source[0] &= !1;
        Body {
            operation: self.operation as u8 | ANSWER_BIT,
            enable: self.enable,
            status: self.status as u8,
            hold_us: self.hold_us,
            lease_s: self.lease_s,
            nonce: self.nonce,
        }
        .write(guest, source)
    }

    /// Reads a frame that a port sent.
    ///
    /// # Errors
    /// The frame is not an answer of this version.
    pub fn from_frame(frame: &[u8]) -> Result<Self, FrameError> {
        let body = Body::read(frame)?;
        // A request has no answer bit, so that its code with the bit flipped is none.
        let operation = Operation::from_code(body.operation ^ ANSWER_BIT);
        let status = Status::from_code(body.status);
        Ok(Self {
            operation: operation.ok_or(undefined("operation", body.operation))?,
            status: status.ok_or(undefined("status", body.status))?,
            enable: body.enable,
            hold_us: body.hold_us,
            lease_s: body.lease_s,
            nonce: body.nonce,
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn operation() -> impl Strategy<Value = Operation> {
        prop_oneof![
            Just(Operation::Ask),
            Just(Operation::Release),
            Just(Operation::Query)
        ]
    }

    fn status() -> impl Strategy<Value = Status> {
        prop_oneof![
            Just(Status::Granted),
            Just(Status::Clamped),
            Just(Status::Overridden)
        ]
    }

    proptest! {
        #[test]
        fn a_request_is_read_as_it_was_written(
            source: Mac, operation in operation(), enable: bool, hold_us: u32, lease_s: u32, nonce: u64
        ) {
            let request = Request { source, operation, enable, hold_us, lease_s, nonce };
            let frame = request.to_frame();
            prop_assert!(is_control(&frame));
            prop_assert_eq!(Request::from_frame(&frame), Ok(request));
            prop_assert!(Reply::from_frame(&frame).is_err());
        }

        #[test]
        fn an_answer_is_read_as_it_was_written(
            guest: Mac, operation in operation(), status in status(), enable: bool,
            hold_us: u32, lease_s: u32, nonce: u64
        ) {
            let reply = Reply { operation, status, enable, hold_us, lease_s, nonce };
            let frame = reply.to_frame(guest);
            prop_assert_eq!(Reply::from_frame(&frame), Ok(reply));
            prop_assert!(Request::from_frame(&frame).is_err());
        }

        #[test]
        fn a_mangled_frame_is_refused_or_says_the_same_again(
            at in 0..FRAME_LEN, byte: u8, length in 0..=FRAME_LEN
        ) {
            let request = Request {
                source: [2; 6], operation: Operation::Ask, enable: true, hold_us: 100, lease_s: 9, nonce: 7,
            };
            let mut frame = request.to_frame();
            frame[at] = byte;
            if let Ok(read) = Request::from_frame(&frame[..length]) {
                prop_assert_eq!(&read.to_frame()[..SHORTEST_FRAME], &frame[..SHORTEST_FRAME]);
            }
        }

        #[test]
        fn any_bytes_are_survived(bytes in proptest::collection::vec(any::<u8>(), 0..128)) {
            let _ = (Request::from_frame(&bytes), Reply::from_frame(&bytes), is_control(&bytes));
        }
    }

    #[test]
    fn the_layout_is_as_documented() {
        let frame = Request {
            source: [2, 0, 0, 0, 0, 9],
            operation: Operation::Ask,
            enable: true,
            hold_us: 1_000,
            lease_s: 30,
            nonce: 0x0102_0304_0506_0708,
        }
        .to_frame();
        let expected = [
            0x01, 0x80, 0xc2, 0, 0, 0x0e, 2, 0, 0, 0, 0, 9, 0x88, 0xb5, b'V', b'T', b'X', b'H', 1,
            1, 1, 0, 0, 0, 0x03, 0xe8, 0, 0, 0, 30, 1, 2, 3, 4, 5, 6, 7, 8,
        ];
        assert_eq!(frame[..38], expected);
        assert!(frame[38..].iter().all(|byte| *byte == 0));
    }
}
