// SPDX-License-Identifier: Apache-2.0
//! The messages of the protocol as types.

use super::{ProtocolError, refuse};
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
struct Fields<'a> {
    code: u32,
    payload: &'a [u8],
    rest: &'a [u8],
}

impl Fields<'_> {
    /// The error of a payload that is too short or too long.
    fn wrong(&self) -> ProtocolError {
        ProtocolError::Size {
            code: self.code,
            size: self.payload.len(),
        }
    }

    fn take<const N: usize>(&mut self) -> Result<[u8; N], ProtocolError> {
        let taken = self.rest.split_first_chunk::<N>();
        let (field, rest) = taken.ok_or_else(|| self.wrong())?;
        self.rest = rest;
        Ok(*field)
    }

    fn u32(&mut self) -> Result<u32, ProtocolError> {
        self.take().map(u32::from_ne_bytes)
    }

    fn u64(&mut self) -> Result<u64, ProtocolError> {
        self.take().map(u64::from_ne_bytes)
    }

    /// A number that fits into fewer bits; others are refused with the reason.
    fn narrow<T: TryFrom<u64>>(&mut self, why: &'static str) -> Result<T, ProtocolError> {
        T::try_from(self.u64()?).map_err(|_| ProtocolError::Refused(why))
    }

    /// A range of the configuration space, whose bytes are the rest of the payload: its start, its flags and its bytes.
    fn config(&mut self) -> Result<(u32, u32, Vec<u8>), ProtocolError> {
        let (offset, size, flags) = (self.u32()?, self.u32()?, self.u32()?);
        if usize::try_from(size) != Ok(self.rest.len()) {
            return Err(self.wrong());
        }
        Ok((offset, flags, std::mem::take(&mut self.rest).to_vec()))
    }

    fn region(&mut self) -> Result<RegionDescription, ProtocolError> {
        Ok(RegionDescription {
            guest: self.u64()?,
            size: self.u64()?,
            user: self.u64()?,
            offset: self.u64()?,
        })
    }

    /// A region after a padding.
    fn padded_region(&mut self) -> Result<RegionDescription, ProtocolError> {
        self.u64()?;
        self.region()
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
        let mut fields = Fields {
            code,
            payload: &payload,
            rest: &payload,
        };
        let request = Self::parse(&mut fields, &mut files)?;
        if !fields.rest.is_empty() {
            return Err(fields.wrong());
        }
        files.must_be(0)?;
        Ok(request)
    }

    fn parse(fields: &mut Fields, files: &mut Files) -> Result<Self, ProtocolError> {
        Ok(match fields.code {
            1 => Self::GetFeatures,
            2 => Self::SetFeatures(Features(fields.u64()?)),
            3 => Self::SetOwner,
            4 => Self::ResetOwner,
            5 => Self::SetMemTable(mem_table(fields, files)?),
            6 => Self::SetLogBase {
                size: fields.u64()?,
                offset: fields.u64()?,
                file: files.one()?,
            },
            7 => {
                // Some front ends send a meaningless number with it.
                let _ = fields.u64();
                Self::SetLogFd(files.descriptors.pop())
            }
            8 => Self::SetVringNum {
                queue: fields.u32()?,
                size: fields.u32()?,
            },
            9 => Self::SetVringAddr(vring_addr(fields)?),
            10 => Self::SetVringBase {
                queue: fields.u32()?,
                base: fields.u32()?,
            },
            11 => {
                let (queue, _) = (fields.u32()?, fields.u32()?);
                Self::GetVringBase { queue }
            }
            12 => {
                let (queue, file) = files.vring(fields)?;
                Self::SetVringKick { queue, file }
            }
            13 => {
                let (queue, file) = files.vring(fields)?;
                Self::SetVringCall { queue, file }
            }
            14 => {
                let (queue, file) = files.vring(fields)?;
                Self::SetVringErr { queue, file }
            }
            15 => Self::GetProtocolFeatures,
            16 => Self::SetProtocolFeatures(ProtocolFeatures(fields.u64()?)),
            17 => Self::GetQueueNum,
            18 => match (fields.u32()?, fields.u32()?) {
                (queue, value @ 0..=1) => Self::SetVringEnable {
                    queue,
                    enable: value == 1,
                },
                _ => return refuse("a ring is enabled with 0 or 1"),
            },
            19 => {
                let [mac @ .., _, _] = fields.take::<8>()?;
                Self::SendRarp(mac)
            }
            20 => Self::NetSetMtu(fields.narrow("an MTU is below 65,536")?),
            21 => Self::SetBackendReqFd(files.one()?),
            24 => {
                let (offset, flags, bytes) = fields.config()?;
                Self::GetConfig {
                    offset,
                    // A payload has less than 1 KiB.
                    size: u32::try_from(bytes.len()).unwrap_or(u32::MAX),
                    flags,
                }
            }
            25 => {
                let (offset, _, bytes) = fields.config()?;
                Self::SetConfig { offset, bytes }
            }
            28..=30 => return Err(ProtocolError::Postcopy),
            34 => Self::ResetDevice,
            35 => {
                let (queue, _) = (fields.u32()?, fields.u32()?);
                Self::VringKick { queue }
            }
            36 => Self::GetMaxMemSlots,
            37 => Self::AddMemReg(fields.padded_region()?, files.one()?),
            38 => {
                let region = fields.padded_region()?;
                // Front ends differ in whether they send the region's descriptor again.
                files.descriptors.pop();
                Self::RemMemReg(region)
            }
            39 => Self::SetStatus(fields.narrow("a device's status has 8 bits")?),
            40 => Self::GetStatus,
            code => return Err(ProtocolError::Unsupported(code)),
        })
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
    /// # Errors
    /// When there are more or fewer than `want`.
    fn must_be(&self, want: usize) -> Result<(), ProtocolError> {
        let (code, have) = (self.code, self.descriptors.len());
        if have == want {
            return Ok(());
        }
        Err(ProtocolError::Descriptors { code, have, want })
    }

    fn one(&mut self) -> Result<OwnedFd, ProtocolError> {
        let (code, have) = (self.code, self.descriptors.len());
        match self.descriptors.pop() {
            Some(file) if have == 1 => Ok(file),
            _ => Err(ProtocolError::Descriptors {
                code,
                have,
                want: 1,
            }),
        }
    }

    /// The payload of SET_VRING_KICK, CALL and ERR: a ring and, mostly, a descriptor.
    fn vring(&mut self, fields: &mut Fields) -> Result<(u32, Option<OwnedFd>), ProtocolError> {
        let number = fields.u64()?;
        #[expect(clippy::cast_possible_truncation, reason = "the low byte is the ring")]
        let queue = u32::from(number as u8);
        if number & NO_DESCRIPTOR != 0 {
            return Ok((queue, None));
        }
        Ok((queue, Some(self.one()?)))
    }
}

fn mem_table(
    fields: &mut Fields,
    files: &mut Files,
) -> Result<Vec<(RegionDescription, OwnedFd)>, ProtocolError> {
    let (count, _padding) = (fields.u32()?, fields.u32()?);
    if count > TABLE_REGIONS {
        return refuse("a memory table has at most 8 regions");
    }
    files.must_be(count as usize)?;
    let regions = (0..count).map(|_| fields.region());
    let regions = regions.collect::<Result<Vec<_>, _>>()?;
    // Linux's own front end (User-mode Linux) sends a table of two, of which it may use one.
    for _ in count..TABLE_REGIONS {
        if !fields.rest.is_empty() {
            let _unused = fields.region()?;
        }
    }
    Ok(regions
        .into_iter()
        .zip(files.descriptors.drain(..))
        .collect())
}

fn vring_addr(fields: &mut Fields) -> Result<VringAddress, ProtocolError> {
    let (queue, flags) = (fields.u32()?, fields.u32()?);
    let (descriptors, used, available) = (fields.u64()?, fields.u64()?, fields.u64()?);
    let log = fields.u64()?;
    Ok(VringAddress {
        queue,
        addresses: RingAddresses {
            descriptors,
            available,
            used,
            used_log: (flags & LOG_USED != 0).then_some(log),
        },
    })
}
