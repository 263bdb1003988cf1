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

impl<W: Write> DigestWriter<W> {
    /// Writes the number of some bytes, and the bytes.
    fn block(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.write_all(&(bytes.len() as u32).to_le_bytes())?;
        self.write_all(bytes)
    }
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
            let problem = "live guests keep their state in KVM; run them parked";
            return Err(Error::configuration("save a live population", problem));
        };
        self.held.store(true, Ordering::Release);
        let outcome = self.write(path, reset).map_err(Error::file("write", path));
        self.held.store(false, Ordering::Release);
        outcome
    }

    fn write(&self, path: &Path, reset: &Reset) -> io::Result<()> {
        let folder = crate::folder(path);
        let file = tempfile::NamedTempFile::new_in(folder)?;
        let mut out = DigestWriter {
            to: BufWriter::with_capacity(1 << 20, file),
            digest: Sha256::new(),
        };
        out.write_all(MAGIC)?;
        out.write_all(&VERSION.to_le_bytes())?;
        let name: Vec<u8> = self.plan.image.name().bytes().take(255).collect();
        out.block(&name)?;
        out.write_all(self.plan.image.bytes())?;
        out.block(reset.processor_bytes())?;
        out.write_all(&self.plan.first.to_le_bytes())?;
        out.write_all(&self.plan.count.to_le_bytes())?;
        out.write_all(&self.now().to_le_bytes())?;
        for (number, guest) in (self.plan.first..).zip(&self.guests) {
            let (kind, stored) = stored(guest, || lock(&self.ticking).contains_key(&number));
            out.write_all(&[kind])?;
            out.block(&stored)?;
        }
        let digest = out.digest.clone().finalize();
        out.write_all(&digest)?;
        let file = out.to.into_inner();
        let file = file.map_err(io::IntoInnerError::into_error)?;
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
            path,
        };
        let version = reader.u32().map_err(|_| refuse("it is truncated"))?;
        if version != VERSION {
            let problem = format!("it has version {version}; this program reads version {VERSION}");
            return Err(refuse(&problem));
        }
        if Sha256::digest(content).as_slice() != digest {
            let problem = "its checksum does not match: it is truncated or was altered";
            return Err(refuse(problem));
        }
        let name = String::from_utf8_lossy(reader.block()?);
        let image = Image::from_bytes(name, reader.take(SECTOR)?)?;
        let reset = Reset::from_processor_bytes(reader.block()?, &image);
        let reset = reset.map_err(|e| refuse(&e.to_string()))?;
        let (first, count) = (reader.u32()?, reader.u32()?);
        let clock = u64::from_le_bytes(*reader.array()?);
        let mut guests = Vec::new();
        let mut awake = Vec::new();
        let mut dead = 0;
        for number in (u64::from(first)..).take(count as usize) {
            let [kind] = *reader.array()?;
            let stored = reader.block()?;
            guests.push(Mutex::new(match kind {
                IDLE | AWAKE => {
                    check(stored, &reset).map_err(|e| refuse(&format!("guest {number}: {e}")))?;
                    if kind == AWAKE {
                        let number = u32::try_from(number);
                        awake.push(number.map_err(|_| refuse("a guest's number is too large"))?);
                    }
                    Guest::Idle(GuestState::Stored(stored.into()))
                }
                DEAD => {
                    dead += 1;
                    let fault = fault(stored);
                    Guest::Dead(fault.ok_or_else(|| refuse("a guest died of nothing known"))?)
                }
                other => {
                    let problem = format!("guest {number} is of unknown kind {other}");
                    return Err(refuse(&problem));
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
        let (host, storage) = (Host::open()?, Storage::Parked(Box::new(reset)));
        let population = Self::assemble(plan, host, storage, guests, Clock::host(clock), count)?;
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
                let is_awake = ticking() || stored.is_empty();
                return (if is_awake { AWAKE } else { IDLE }, stored.to_vec());
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
    /// The file, for errors.
    path: &'a Path,
}

impl<'a> Reader<'a> {
    fn early_end(&self) -> Error {
        Error::Snapshot {
            path: self.path.to_owned(),
            problem: "it ends early".to_owned(),
        }
    }

    fn take(&mut self, length: usize) -> Result<&'a [u8]> {
        let taken = self.rest.split_at_checked(length);
        let (taken, rest) = taken.ok_or_else(|| self.early_end())?;
        self.rest = rest;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<&'a [u8; N]> {
        let taken = self.rest.split_first_chunk();
        let (taken, rest) = taken.ok_or_else(|| self.early_end())?;
        self.rest = rest;
        Ok(taken)
    }

    fn u32(&mut self) -> Result<u32> {
        self.array().map(|bytes| u32::from_le_bytes(*bytes))
    }

    fn block(&mut self) -> Result<&'a [u8]> {
        let length = self.u32()? as usize;
        self.take(length)
    }
}
