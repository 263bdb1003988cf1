// SPDX-License-Identifier: Apache-2.0
//! The messages of the protocol as types.

use super::ProtocolError;
use crate::features::{Features, ProtocolFeatures};
use crate::frame::Mac;
use crate::memory::RegionDescription;
use crate::ring::RingAddresses;
use std::os::fd::OwnedFd;

/// SET_MEM_TABLE has room for this many regions.
const TABLE_REGIONS: u32 = 8;

/// The bit in the payload of SET_VRING_KICK, CALL and ERR for a message without a descriptor.
const NO_DESCRIPTOR: u64 = 1 << 8;

/// The flag of SET_VRING_ADDR that asks for a log of writes to the used ring.
const LOG_USED: u32 = 1;

/// The addresses of one ring, as SET_VRING_ADDR gives them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct VringAddress {
    /// The ring's number.
    pub queue: u32,
    /// The addresses of its parts.
    pub addresses: RingAddresses,
}

/// An unparsed message: a code, a payload and descriptors.
#[derive(Debug)]
pub struct Message {
    /// The request's number.
    pub code: u32,
    /// Whether the front end waits for an acknowledgement.
    pub needs_ack: bool,
    /// The payload.
    pub payload: Vec<u8>,
    /// The descriptors.
    pub descriptors: Vec<OwnedFd>,
}

/// A request of a front end.
#[derive(Debug)]
#[expect(missing_docs, reason = "they are the specification's own names")]
pub enum Request {
    GetFeatures,
    SetFeatures(Features),
    SetOwner,
    ResetOwner,
    SetMemTable(Vec<(RegionDescription, OwnedFd)>),
    SetLogBase {
        size: u64,
        offset: u64,
        file: OwnedFd,
    },
    SetLogFd(Option<OwnedFd>),
    SetVringNum {
        queue: u32,
        size: u32,
    },
    SetVringAddr(VringAddress),
    SetVringBase {
        queue: u32,
        base: u32,
    },
    GetVringBase {
        queue: u32,
    },
    SetVringKick {
        queue: u32,
        file: Option<OwnedFd>,
    },
    SetVringCall {
        queue: u32,
        file: Option<OwnedFd>,
    },
    SetVringErr {
        queue: u32,
        file: Option<OwnedFd>,
    },
    GetProtocolFeatures,
    SetProtocolFeatures(ProtocolFeatures),
    GetQueueNum,
    SetVringEnable {
        queue: u32,
        enable: bool,
    },
    SendRarp(Mac),
    SetBackendReqFd(OwnedFd),
    GetConfig {
        offset: u32,
        size: u32,
        flags: u32,
    },
    SetConfig {
        offset: u32,
        bytes: Vec<u8>,
    },
    NetSetMtu(u16),
    ResetDevice,
    VringKick {
        queue: u32,
    },
    SetStatus(u8),
    GetStatus,
    GetMaxMemSlots,
    AddMemReg(RegionDescription, OwnedFd),
    RemMemReg(RegionDescription),
}

/// The reply to a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reply {
    /// Nothing, unless it asked for an acknowledgement.
    None,
    /// A number.
    Number(u64),
    /// The state of a ring.
    VringState {
        /// The ring's number.
        queue: u32,
        /// The available index from which to continue.
        base: u32,
    },
    /// A part of the device's configuration space.
    Config {
        /// Its first byte.
        offset: u32,
        /// The flags of the request.
        flags: u32,
        /// The bytes.
        bytes: Vec<u8>,
    },
    /// The requested part is not in the configuration space.
    NoConfig,
}

/// Takes little-endian numbers off the front of a payload. (The protocol is in the host's order;
/// vhost-user peers share a host.)
struct Fields<'a>(&'a [u8]);

impl Fields<'_> {
    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (field, rest) = self.0.split_first_chunk::<N>()?;
        self.0 = rest;
        Some(*field)
    }

    fn u32(&mut self) -> Option<u32> {
        self.take().map(u32::from_ne_bytes)
    }

    fn u64(&mut self) -> Option<u64> {
        self.take().map(u64::from_ne_bytes)
    }

    /// A range of the configuration space, whose bytes are the rest of the payload: its start, its flags and its bytes.
    fn config(&mut self) -> Option<(u32, u32, Vec<u8>)> {
        let (offset, size, flags) = (self.u32()?, self.u32()?, self.u32()?);
        let bytes = std::mem::take(&mut self.0);
        (usize::try_from(size) == Ok(bytes.len())).then(|| (offset, flags, bytes.to_vec()))
    }

    fn region(&mut self) -> Option<RegionDescription> {
        Some(RegionDescription {
            guest: self.u64()?,
            size: self.u64()?,
            user: self.u64()?,
            offset: self.u64()?,
        })
    }
}

impl Request {
    /// Reads a message. Unexpected descriptors are closed.
    ///
    /// # Errors
    /// When it is unknown, or its payload or descriptors do not fit the request.
    pub fn read(message: Message) -> Result<Self, ProtocolError> {
        let Message {
            code,
            payload,
            descriptors,
            ..
        } = message;
        let mut files = Files { code, descriptors };
        let mut fields = Fields(&payload);
        let request = Self::parse(code, &mut fields, &mut files)?;
        let size = payload.len();
        match request {
            Some(request) if fields.0.is_empty() => {
                files.none()?;
                Ok(request)
            }
            _ => Err(ProtocolError::Size { code, size }),
        }
    }

    /// `None` when the payload is too short.
    fn parse(
        code: u32,
        fields: &mut Fields,
        files: &mut Files,
    ) -> Result<Option<Self>, ProtocolError> {
        let request = match code {
            1 => Some(Self::GetFeatures),
            2 => fields.u64().map(|bits| Self::SetFeatures(Features(bits))),
            3 => Some(Self::SetOwner),
            4 => Some(Self::ResetOwner),
            5 => Self::mem_table(fields, files)?,
            6 => match (fields.u64(), fields.u64()) {
                (Some(size), Some(offset)) => Some(Self::SetLogBase {
                    size,
                    offset,
                    file: files.one()?,
                }),
                _ => None,
            },
            7 => {
                // Some front ends send a meaningless number with it.
                let _ = fields.u64();
                Some(Self::SetLogFd(files.descriptors.pop()))
            }
            8 => fields
                .u32()
                .zip(fields.u32())
                .map(|(queue, size)| Self::SetVringNum { queue, size }),
            9 => Self::vring_addr(fields),
            10 => fields
                .u32()
                .zip(fields.u32())
                .map(|(queue, base)| Self::SetVringBase { queue, base }),
            11 => fields
                .u32()
                .zip(fields.u32())
                .map(|(queue, _)| Self::GetVringBase { queue }),
            12 => files
                .vring(fields)?
                .map(|(queue, file)| Self::SetVringKick { queue, file }),
            13 => files
                .vring(fields)?
                .map(|(queue, file)| Self::SetVringCall { queue, file }),
            14 => files
                .vring(fields)?
                .map(|(queue, file)| Self::SetVringErr { queue, file }),
            15 => Some(Self::GetProtocolFeatures),
            16 => fields
                .u64()
                .map(|bits| Self::SetProtocolFeatures(ProtocolFeatures(bits))),
            17 => Some(Self::GetQueueNum),
            18 => match fields.u32().zip(fields.u32()) {
                Some((queue, value @ 0..=1)) => Some(Self::SetVringEnable {
                    queue,
                    enable: value == 1,
                }),
                Some(_) => return Err(ProtocolError::Refused("a ring is enabled with 0 or 1")),
                None => None,
            },
            19 => fields.take::<8>().map(|bytes| {
                let [a, b, c, d, e, f, ..] = bytes;
                Self::SendRarp([a, b, c, d, e, f])
            }),
            20 => match fields.u64().map(u16::try_from) {
                Some(Ok(mtu)) => Some(Self::NetSetMtu(mtu)),
                Some(Err(_)) => return Err(ProtocolError::Refused("an MTU is below 65,536")),
                None => None,
            },
            21 => Some(Self::SetBackendReqFd(files.one()?)),
            24 => fields
                .config()
                .map(|(offset, flags, bytes)| Self::GetConfig {
                    offset,
                    // A payload has less than 1 KiB.
                    size: u32::try_from(bytes.len()).unwrap_or(u32::MAX),
                    flags,
                }),
            25 => fields
                .config()
                .map(|(offset, _, bytes)| Self::SetConfig { offset, bytes }),
            28..=30 => return Err(ProtocolError::Postcopy),
            34 => Some(Self::ResetDevice),
            35 => fields
                .u32()
                .zip(fields.u32())
                .map(|(queue, _)| Self::VringKick { queue }),
            36 => Some(Self::GetMaxMemSlots),
            // A padding comes before the region.
            37 => {
                let region = fields.u64().and_then(|_| fields.region());
                match region {
                    Some(region) => Some(Self::AddMemReg(region, files.one()?)),
                    None => None,
                }
            }
            38 => {
                let region = fields.u64().and_then(|_| fields.region());
                // Front ends differ in whether they send the region's descriptor again.
                files.descriptors.pop();
                region.map(Self::RemMemReg)
            }
            39 => match fields.u64().map(u8::try_from) {
                Some(Ok(status)) => Some(Self::SetStatus(status)),
                Some(Err(_)) => {
                    return Err(ProtocolError::Refused("a device's status has 8 bits"));
                }
                None => None,
            },
            40 => Some(Self::GetStatus),
            _ => return Err(ProtocolError::Unsupported(code)),
        };
        Ok(request)
    }

    fn mem_table(fields: &mut Fields, files: &mut Files) -> Result<Option<Self>, ProtocolError> {
        let Some((count, _padding)) = fields.u32().zip(fields.u32()) else {
            return Ok(None);
        };
        if count > TABLE_REGIONS {
            return Err(ProtocolError::Refused(
                "a memory table has at most 8 regions",
            ));
        }
        let want = count as usize;
        let have = files.descriptors.len();
        if have != want {
            let code = files.code;
            return Err(ProtocolError::Descriptors { code, have, want });
        }
        let regions: Option<Vec<_>> = (0..count).map(|_| fields.region()).collect();
        // Linux's own front end (User-mode Linux) sends a table of two, of which it may use one.
        for _ in count..TABLE_REGIONS {
            if fields.0.is_empty() {
                break;
            }
            let Some(_unused) = fields.region() else {
                return Ok(None);
            };
        }
        Ok(regions.map(|regions| {
            Self::SetMemTable(
                regions
                    .into_iter()
                    .zip(files.descriptors.drain(..))
                    .collect(),
            )
        }))
    }

    fn vring_addr(fields: &mut Fields) -> Option<Self> {
        let queue = fields.u32()?;
        let flags = fields.u32()?;
        let descriptors = fields.u64()?;
        let used = fields.u64()?;
        let available = fields.u64()?;
        let log = fields.u64()?;
        Some(Self::SetVringAddr(VringAddress {
            queue,
            addresses: RingAddresses {
                descriptors,
                available,
                used,
                used_log: (flags & LOG_USED != 0).then_some(log),
            },
        }))
    }

    /// Whether it starts, stops or changes rings.
    pub fn changes_rings(&self) -> bool {
        matches!(
            self,
            Self::SetFeatures(_)
                | Self::ResetOwner
                | Self::ResetDevice
                | Self::SetStatus(0)
                | Self::SetMemTable(_)
                | Self::SetVringAddr(_)
                | Self::GetVringBase { .. }
                | Self::SetVringKick { .. }
                | Self::SetVringEnable { .. }
                | Self::AddMemReg(..)
                | Self::RemMemReg(_)
        )
    }

    /// Whether it maps or unmaps memory, which takes longer than other requests.
    pub fn changes_memory(&self) -> bool {
        matches!(
            self,
            Self::SetMemTable(_)
                | Self::AddMemReg(..)
                | Self::RemMemReg(_)
                | Self::SetLogBase { .. }
        )
    }

    /// The ring that the request is about, if it is about one.
    pub fn ring(&self) -> Option<u32> {
        match self {
            Self::SetVringAddr(VringAddress { queue, .. })
            | Self::SetVringNum { queue, .. }
            | Self::SetVringBase { queue, .. }
            | Self::GetVringBase { queue }
            | Self::SetVringKick { queue, .. }
            | Self::SetVringCall { queue, .. }
            | Self::SetVringErr { queue, .. }
            | Self::SetVringEnable { queue, .. } => Some(*queue),
            _ => None,
        }
    }

    /// Whether the request has a reply of its own, so that it gets no acknowledgement.
    pub fn has_reply(&self) -> bool {
        matches!(
            self,
            Self::GetFeatures
                | Self::SetLogBase { .. }
                | Self::GetProtocolFeatures
                | Self::GetQueueNum
                | Self::GetVringBase { .. }
                | Self::GetConfig { .. }
                | Self::GetStatus
                | Self::GetMaxMemSlots
        )
    }
}

/// The descriptors of a message that were not used yet.
struct Files {
    code: u32,
    descriptors: Vec<OwnedFd>,
}

impl Files {
    fn wrong(&self, want: usize) -> ProtocolError {
        ProtocolError::Descriptors {
            code: self.code,
            have: self.descriptors.len(),
            want,
        }
    }

    fn one(&mut self) -> Result<OwnedFd, ProtocolError> {
        if self.descriptors.len() != 1 {
            return Err(self.wrong(1));
        }
        self.descriptors.pop().ok_or_else(|| self.wrong(1))
    }

    fn none(&self) -> Result<(), ProtocolError> {
        if self.descriptors.is_empty() {
            Ok(())
        } else {
            Err(self.wrong(0))
        }
    }

    /// The payload of SET_VRING_KICK, CALL and ERR: a ring and, mostly, a descriptor.
    fn vring(
        &mut self,
        fields: &mut Fields,
    ) -> Result<Option<(u32, Option<OwnedFd>)>, ProtocolError> {
        let Some(number) = fields.u64() else {
            return Ok(None);
        };
        #[expect(clippy::cast_possible_truncation, reason = "the low byte is the ring")]
        let queue = u32::from(number as u8);
        if number & NO_DESCRIPTOR != 0 {
            return Ok(Some((queue, None)));
        }
        Ok(Some((queue, Some(self.one()?))))
    }
}
