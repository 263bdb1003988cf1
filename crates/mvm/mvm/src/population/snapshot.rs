// SPDX-License-Identifier: Apache-2.0
//! The snapshot of a parked population in a file.
//!
//! Layout, all numbers little-endian: magic, version, length and bytes of the image's name, the
//! image, length and bytes of the processor at reset, first number, count, clock in ns; then for
//! each guest its kind, and its stored state's length and bytes; then SHA-256 of all before.

use super::{Guest, GuestState, Holding, Plan, Population, Storage, lock};
use crate::error::{Error, Result};
use crate::image::{Image, SECTOR};
use crate::machine::kvm::Host;
use crate::machine::pack::check;
use crate::machine::state::Reset;
use crate::machine::{Clock, Fault};
use sha2::{Digest, Sha256};
use std::fs;
use std::io::{self, BufWriter, Write};
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::Ordering;
use std::time::Duration;

const MAGIC: &[u8; 8] = b"vtax-mvm";
const VERSION: u32 = 1;
const DIGEST: usize = 32;

const IDLE: u8 = 0;
/// The guest has work: a timer, an unfinished slice, or input.
const AWAKE: u8 = 1;
const DEAD: u8 = 2;

/// A writer that also computes the digest.
struct DigestWriter<W> {
    to: W,
    digest: Sha256,
}

impl<W: Write> Write for DigestWriter<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.to.write(bytes)?;
        self.digest.update(bytes.get(..written).unwrap_or_default());
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.to.flush()
    }
}

impl Population {
    /// Saves every guest while all pause. The file is replaced as a whole.
    ///
    /// # Errors
    /// [`Error::File`] when it cannot be written; [`Error::Configuration`] when guests are live.
    pub fn save(&self, path: &Path) -> Result<()> {
        let Storage::Parked(reset) = &self.storage else {
            return Err(Error::Configuration {
                asked: "save a live population".to_owned(),
                problem: "live guests keep their state in KVM; run them parked".to_owned(),
            });
        };
        self.held.store(true, Ordering::Release);
        let outcome = self.write(path, reset).map_err(Error::file("write", path));
        self.held.store(false, Ordering::Release);
        outcome
    }

    fn write(&self, path: &Path, reset: &Reset) -> io::Result<()> {
        let folder = path
            .parent()
            .filter(|p| !p.as_os_str().is_empty())
            .unwrap_or_else(|| Path::new("."));
        let file = tempfile::NamedTempFile::new_in(folder)?;
        let mut out = DigestWriter {
            to: BufWriter::with_capacity(1 << 20, file),
            digest: Sha256::new(),
        };
        out.write_all(MAGIC)?;
        out.write_all(&VERSION.to_le_bytes())?;
        let name: Vec<u8> = self.plan.image.name().bytes().take(255).collect();
        out.write_all(&(name.len() as u32).to_le_bytes())?;
        out.write_all(&name)?;
        out.write_all(self.plan.image.bytes())?;
        let processor = reset.processor_bytes();
        out.write_all(&(processor.len() as u32).to_le_bytes())?;
        out.write_all(processor)?;
        out.write_all(&self.plan.first.to_le_bytes())?;
        out.write_all(&self.plan.count.to_le_bytes())?;
        out.write_all(&self.now().to_le_bytes())?;
        for (number, guest) in (self.plan.first..).zip(&self.guests) {
            let (kind, stored) = stored(guest, || lock(&self.ticking).contains_key(&number));
            out.write_all(&[kind])?;
            out.write_all(&(stored.len() as u32).to_le_bytes())?;
            out.write_all(&stored)?;
        }
        let digest = out.digest.clone().finalize();
        out.write_all(&digest)?;
        let file = out
            .to
            .into_inner()
            .map_err(io::IntoInnerError::into_error)?;
        file.as_file().sync_all()?;
        file.persist(path).map_err(|e| e.error)?;
        fs::File::open(folder)?.sync_all()
    }

    /// Loads a population that was saved.
    ///
    /// # Errors
    /// [`Error::Snapshot`] when the file is truncated, altered or of another version; then nothing
    /// was loaded. [`Error::Kvm`] when the host has no usable KVM.
    pub fn load(path: &Path) -> Result<Self> {
        let bytes = fs::read(path).map_err(Error::file("read", path))?;
        let refuse = |problem: &str| Error::Snapshot {
            path: path.to_owned(),
            problem: problem.to_owned(),
        };
        if bytes.get(..MAGIC.len()) != Some(MAGIC) {
            return Err(refuse("it does not begin like a population snapshot"));
        }
        let (content, digest) = bytes
            .len()
            .checked_sub(DIGEST)
            .and_then(|at| bytes.split_at_checked(at))
            .ok_or_else(|| refuse("it is truncated"))?;
        let mut reader = Reader {
            rest: content.get(MAGIC.len()..).unwrap_or_default(),
        };
        let version = reader.u32().ok_or_else(|| refuse("it is truncated"))?;
        if version != VERSION {
            return Err(refuse(&format!(
                "it has version {version}; this program reads version {VERSION}"
            )));
        }
        if Sha256::digest(content).as_slice() != digest {
            return Err(refuse(
                "its checksum does not match: it is truncated or was altered",
            ));
        }
        let short = || refuse("it ends early");
        let name = reader.block().ok_or_else(short)?;
        let image = reader.take(SECTOR).ok_or_else(short)?;
        let image = Image::from_bytes(String::from_utf8_lossy(name), image)?;
        let processor = reader.block().ok_or_else(short)?;
        let reset =
            Reset::from_processor_bytes(processor, &image).map_err(|e| refuse(&e.to_string()))?;
        let first = reader.u32().ok_or_else(short)?;
        let count = reader.u32().ok_or_else(short)?;
        let clock = u64::from_le_bytes(
            reader
                .take(8)
                .and_then(|b| b.try_into().ok())
                .ok_or_else(short)?,
        );
        let mut guests = Vec::new();
        let mut awake = Vec::new();
        let mut dead = 0;
        for number in (u64::from(first)..).take(count as usize) {
            let kind = reader
                .take(1)
                .and_then(<[u8]>::first)
                .copied()
                .ok_or_else(short)?;
            let stored = reader.block().ok_or_else(short)?;
            guests.push(Mutex::new(match kind {
                IDLE | AWAKE => {
                    check(stored, &reset).map_err(|e| refuse(&format!("guest {number}: {e}")))?;
                    if kind == AWAKE {
                        awake.push(
                            u32::try_from(number)
                                .map_err(|_| refuse("a guest's number is too large"))?,
                        );
                    }
                    Guest::Idle(GuestState::Stored(stored.into()))
                }
                DEAD => {
                    dead += 1;
                    Guest::Dead(
                        fault(stored).ok_or_else(|| refuse("a guest died of nothing known"))?,
                    )
                }
                other => {
                    return Err(refuse(&format!(
                        "guest {number} is of unknown kind {other}"
                    )));
                }
            }));
        }
        if !reader.rest.is_empty() {
            return Err(refuse("it goes on behind its last guest"));
        }
        let plan = Plan {
            image,
            first,
            count,
            holding: Holding::Parked,
        };
        let population = Self::assemble(
            plan,
            Host::open()?,
            Storage::Parked(Box::new(reset)),
            guests,
            Clock::host(clock),
            count,
        )?;
        population.dead.store(dead, Ordering::Relaxed);
        for number in awake {
            // A timer or an unfinished slice continues as soon as a worker runs.
            let _ = population.send(number, &[]);
        }
        Ok(population)
    }
}

/// A guest's kind and state. Waits at most a slice for a worker that runs it.
fn stored(guest: &Mutex<Guest>, ticking: impl Fn() -> bool) -> (u8, Vec<u8>) {
    loop {
        match &*lock(guest) {
            Guest::Idle(GuestState::Stored(stored)) => {
                // A guest that was never booted is awake, because its boot sector has not run.
                return (
                    if ticking() || stored.is_empty() {
                        AWAKE
                    } else {
                        IDLE
                    },
                    stored.to_vec(),
                );
            }
            Guest::Dead(fault) => return (DEAD, fault_bytes(*fault)),
            Guest::Active(active) => {
                if let Some(GuestState::Stored(stored)) = &active.body {
                    let mut stored = stored.to_vec();
                    if stored.is_empty() && !active.inbox.is_empty() {
                        stored.extend([0, 0]);
                    }
                    stored.extend(&active.inbox);
                    return (AWAKE, stored);
                }
            }
            // A live population is refused before this call.
            Guest::Idle(GuestState::LiveGuest(_)) => return (AWAKE, Vec::new()),
        }
        std::thread::sleep(Duration::from_micros(200));
    }
}

fn fault_bytes(fault: Fault) -> Vec<u8> {
    match fault {
        Fault::TripleFault => vec![0],
        Fault::Reset => vec![1],
        Fault::Paging => vec![2],
        Fault::Unsupported(exit) => [&[3][..], &exit.to_le_bytes()].concat(),
    }
}

fn fault(bytes: &[u8]) -> Option<Fault> {
    match bytes {
        [0] => Some(Fault::TripleFault),
        [1] => Some(Fault::Reset),
        [2] => Some(Fault::Paging),
        [3, exit @ ..] => Some(Fault::Unsupported(u32::from_le_bytes(
            exit.try_into().ok()?,
        ))),
        _ => None,
    }
}

struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    fn take(&mut self, length: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.rest.split_at_checked(length)?;
        self.rest = rest;
        Some(taken)
    }

    fn u32(&mut self) -> Option<u32> {
        Some(u32::from_le_bytes(self.take(4)?.try_into().ok()?))
    }

    fn block(&mut self) -> Option<&'a [u8]> {
        let length = self.u32()? as usize;
        self.take(length)
    }
}
