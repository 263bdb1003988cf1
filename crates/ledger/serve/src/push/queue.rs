// SPDX-License-Identifier: Apache-2.0
//! The queue of samples to push, on disk. It survives outages, `kill -9` and restarts.
//!
//! The queue is a directory of segments. A segment is a [`vtax_files::log`] of records:
//!
//! ```text
//! 8 time, ms | 4 samples | payload
//! ```
//!
//! Numbers are little endian. A delivered record is of the kind [`SENT`], and marks all records before it as delivered
//! too: a delivery writes one byte, and no separate cursor exists.

use rustix::fs::FlockOperation;
use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::path::Path;
use vtax_files::Dir;
use vtax_files::log::{Frames, HEAD, Log, LogError};

/// The first bytes of a segment.
const MAGIC: &[u8] = b"vtax-queue 1";
/// The kind of a record that was not delivered.
const WAITING: u8 = 1;
/// The kind of a record that was delivered.
const SENT: u8 = 2;
/// Segments of a full queue, including the segment being written. Dropping the oldest records drops one segment.
const SEGMENTS: u64 = 16;

/// A record that was not delivered yet.
#[derive(Debug, Clone, Copy)]
struct Entry {
    /// Size of its frame, in bytes.
    bytes: u64,
    samples: u32,
    time: i64,
}

#[derive(Debug)]
struct Segment {
    number: u64,
    name: String,
    /// All records, delivered or not.
    log: Log,
    /// Offset of the first undelivered record.
    next: u64,
    waiting: VecDeque<Entry>,
}

/// The queue of one push destination.
#[derive(Debug)]
pub(super) struct Queue {
    directory: Dir,
    /// Limit on the size of all segments, in bytes.
    limit: u64,
    segments: VecDeque<Segment>,
    /// Number of the next segment.
    number: u64,
    /// Lock held for the lifetime of the queue, so that two exporters cannot share it.
    _lock: File,
}

/// The oldest records, which stay in the queue until they are delivered.
#[derive(Debug)]
pub(super) struct Batch {
    segment: u64,
    /// Payloads, oldest first.
    pub(super) records: Vec<Vec<u8>>,
    /// Samples in all records.
    pub(super) samples: u64,
}

impl Queue {
    /// Opens the queue in `directory`, which is created where it is missing. The second value describes each damage in
    /// one sentence.
    ///
    /// # Errors
    /// When the directory cannot be used, or another exporter uses it.
    pub(super) fn open(directory: &Path, limit: u64) -> io::Result<(Self, Vec<String>)> {
        // The names and the use of guests are private.
        let directory = Dir::private(directory)?;
        let lock = directory.edit("lock")?;
        rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive).map_err(|_| {
            io::Error::other("another exporter has it: stop that one, or give another --queue")
        })?;
        let mut found: Vec<(u64, String)> = Vec::new();
        for entry in directory.list()? {
            let name = entry.name.into_string().ok();
            found.extend(
                name.and_then(|name| Some((name.strip_suffix(".queue")?.parse().ok()?, name))),
            );
        }
        found.sort_unstable();
        let mut queue = Self {
            directory,
            limit,
            segments: VecDeque::new(),
            number: found
                .last()
                .map_or(1, |(number, _)| number.saturating_add(1)),
            _lock: lock,
        };
        let mut notes = Vec::new();
        for (number, name) in found {
            let (segment, note) = Segment::read(number, name, &queue.directory)?;
            notes.extend(note);
            if segment.waiting.is_empty() {
                queue.directory.remove_file(&segment.name)?;
            } else {
                queue.segments.push_back(segment);
            }
        }
        Ok((queue, notes))
    }

    /// Appends a record of `samples` samples at `time`, in ms since 1970. Returns the number of samples that were
    /// dropped to make room.
    ///
    /// # Errors
    /// When the record cannot be written. The queue is unchanged, except for dropped segments.
    pub(super) fn append(&mut self, time: i64, samples: u32, payload: &[u8]) -> io::Result<u64> {
        let mut record = time.to_le_bytes().to_vec();
        record.extend(samples.to_le_bytes());
        record.extend(payload);
        let bytes = (HEAD + record.len()) as u64;
        // It may begin a segment.
        let most = bytes + MAGIC.len() as u64;
        let mut dropped = 0;
        while self.bytes() + most > self.limit
            && let Some(oldest) = self.segments.pop_front()
        {
            dropped += oldest.samples();
            self.directory.remove_file(&oldest.name)?;
        }
        if most > self.limit {
            return Ok(dropped + u64::from(samples));
        }
        let is_full = |segment: &Segment| {
            let end = segment.log.end();
            end > 0 && end + bytes > self.limit / SEGMENTS
        };
        if self.segments.back().is_none_or(is_full) {
            self.begin_segment()?;
        }
        let Some(segment) = self.segments.back_mut() else {
            return Err(io::Error::other("the queue has no segment"));
        };
        segment.log.append(WAITING, &record)?;
        segment.waiting.push_back(Entry {
            bytes,
            samples,
            time,
        });
        Ok(dropped)
    }

    fn begin_segment(&mut self) -> io::Result<()> {
        let name = format!("{:020}.queue", self.number);
        let file = self.directory.new_file(&name)?;
        let segment = Segment {
            number: self.number,
            name,
            log: Log::new(file, MAGIC, 0),
            next: MAGIC.len() as u64,
            waiting: VecDeque::new(),
        };
        self.number += 1;
        self.segments.push_back(segment);
        Ok(())
    }

    /// Returns the oldest records: at least one, at most `most`, and at most `bytes` together if there are several.
    ///
    /// # Errors
    /// When they cannot be read. See [`Queue::drop_oldest`].
    pub(super) fn oldest(&self, most: usize, bytes: usize) -> io::Result<Option<Batch>> {
        let Some(segment) = self
            .segments
            .iter()
            .find(|segment| !segment.waiting.is_empty())
        else {
            return Ok(None);
        };
        let mut batch = Batch {
            segment: segment.number,
            records: Vec::new(),
            samples: 0,
        };
        let (mut at, mut read) = (segment.next, 0);
        for entry in segment.waiting.iter().take(most.max(1)) {
            let length = usize::try_from(entry.bytes).map_err(io::Error::other)?;
            if read > 0 && read + length > bytes {
                break;
            }
            let record = segment.log.read(at, length)?;
            let payload = record.as_deref().and_then(|record| Some(split(record)?.2));
            let Some(payload) = payload else {
                return Err(io::Error::other(format!(
                    "{} was changed by another program",
                    self.directory.path().join(&segment.name).display()
                )));
            };
            batch.records.push(payload.to_vec());
            batch.samples += u64::from(entry.samples);
            at += entry.bytes;
            read += length;
        }
        Ok(Some(batch))
    }

    /// Removes a delivered batch. A batch that was dropped to make room is no longer in the queue.
    ///
    /// # Errors
    /// When the delivery cannot be recorded: after a restart the batch would be pushed again.
    pub(super) fn done(&mut self, batch: &Batch) -> io::Result<()> {
        let is_last = self.segments.len() == 1;
        let Some(segment) = self.segments.front_mut() else {
            return Ok(());
        };
        if segment.number != batch.segment {
            return Ok(());
        }
        let mut last = segment.next;
        for _ in &batch.records {
            if let Some(entry) = segment.waiting.pop_front() {
                last = segment.next;
                segment.next += entry.bytes;
            }
        }
        if !segment.waiting.is_empty() {
            return segment.log.set_kind(last, SENT);
        }
        if is_last {
            segment.next = MAGIC.len() as u64;
            return segment.log.cut(0);
        }
        let name = segment.name.clone();
        self.segments.pop_front();
        Ok(self.directory.remove_file(name)?)
    }

    /// Drops the oldest segment, which cannot be read. Returns the number of its undelivered samples.
    pub(super) fn drop_oldest(&mut self) -> u64 {
        self.segments.pop_front().map_or(0, |segment| {
            let _ = self.directory.remove_file(&segment.name);
            segment.samples()
        })
    }

    /// Returns the size of all segments on disk, in bytes.
    pub(super) fn bytes(&self) -> u64 {
        self.segments.iter().map(|segment| segment.log.end()).sum()
    }

    /// Returns the time of the oldest undelivered record, in ms since 1970.
    pub(super) fn oldest_time(&self) -> Option<i64> {
        let mut waiting = self.segments.iter().flat_map(|segment| &segment.waiting);
        waiting.next().map(|entry| entry.time)
    }

    /// Returns the time of the newest undelivered record, in ms since 1970.
    pub(super) fn newest_time(&self) -> Option<i64> {
        let waiting = self.segments.iter().flat_map(|segment| &segment.waiting);
        waiting.map(|entry| entry.time).max()
    }

    /// Returns the number of undelivered samples.
    pub(super) fn samples(&self) -> u64 {
        self.segments.iter().map(Segment::samples).sum()
    }
}

impl Segment {
    /// Reads a segment of an earlier exporter and cuts off an incomplete tail. Allocates no memory for bytes that the
    /// file only claims to hold.
    fn read(number: u64, name: String, directory: &Dir) -> io::Result<(Self, Option<String>)> {
        let file = directory.edit(&name)?;
        let length = file.metadata()?.len();
        let path = directory.path().join(&name);
        let (mut next, mut end, mut waiting) = (MAGIC.len() as u64, 0, VecDeque::new());
        match Frames::open(&file, MAGIC) {
            Ok(frames) => {
                let mut frames = frames.until_damage();
                end = frames.end();
                while let Some((kind, record)) = frames.next_frame()? {
                    let Some((time, samples, _)) = split(&record) else {
                        break;
                    };
                    end = frames.end();
                    if kind == SENT {
                        waiting.clear();
                        next = end;
                    } else {
                        let bytes = (HEAD + record.len()) as u64;
                        waiting.push_back(Entry {
                            bytes,
                            samples,
                            time,
                        });
                    }
                }
            }
            Err(LogError::Io(cause)) => return Err(cause),
            Err(error @ LogError::Version { .. }) => {
                return Err(io::Error::other(format!("{}: {error}", path.display())));
            }
            Err(LogError::Other) => {}
        }
        let mut log = Log::new(file, MAGIC, end);
        let note = (end < length).then(|| {
            let cut = length - end;
            format!(
                "the last {cut} bytes of {} are no whole record: they are cut off",
                path.display()
            )
        });
        if note.is_some() {
            log.cut(end)?;
        }
        let segment = Self {
            number,
            name,
            log,
            next,
            waiting,
        };
        Ok((segment, note))
    }

    fn samples(&self) -> u64 {
        let samples = self.waiting.iter().map(|entry| u64::from(entry.samples));
        samples.sum()
    }
}

/// The time, the number of samples and the payload of a record.
fn split(record: &[u8]) -> Option<(i64, u32, &[u8])> {
    let (time, rest) = record.split_first_chunk()?;
    let (samples, payload) = rest.split_first_chunk()?;
    Some((
        i64::from_le_bytes(*time),
        u32::from_le_bytes(*samples),
        payload,
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::fs;
    use std::os::unix::fs::{FileExt, MetadataExt, symlink};

    const LIMIT: u64 = 1 << 20;
    /// Bytes of a record beside its payload.
    const FRAME: u64 = HEAD as u64 + 12;

    fn open(directory: &Path) -> (Queue, Vec<String>) {
        Queue::open(directory, LIMIT).unwrap()
    }

    fn all(queue: &mut Queue) -> Vec<Vec<u8>> {
        let mut all = Vec::new();
        while let Some(batch) = queue.oldest(7, 1 << 16).unwrap() {
            queue.done(&batch).unwrap();
            all.extend(batch.records);
        }
        all
    }

    #[test]
    fn what_was_not_delivered_is_there_after_a_restart_in_its_order_and_nothing_else() {
        let directory = tempfile::tempdir().unwrap();
        let records: Vec<Vec<u8>> = (0..100u8).map(|n| vec![n; 3000]).collect();
        let (mut queue, _) = open(directory.path());
        for (time, record) in records.iter().enumerate() {
            let time = i64::try_from(time).unwrap();
            assert_eq!(queue.append(time, 5, record).unwrap(), 0);
        }
        let batch = queue.oldest(3, usize::MAX).unwrap().unwrap();
        assert_eq!((batch.records.len(), batch.samples), (3, 15));
        queue.done(&batch).unwrap();
        drop(queue);
        let (mut queue, notes) = open(directory.path());
        assert!(notes.is_empty(), "{notes:?}");
        assert_eq!((queue.oldest_time(), queue.samples()), (Some(3), 485));
        assert_eq!(all(&mut queue), records[3..]);
        assert_eq!((queue.bytes(), queue.oldest_time()), (0, None));
        queue.append(7, 1, b"later").unwrap();
        drop(queue);
        assert_eq!(all(&mut open(directory.path()).0), [b"later".to_vec()]);
    }

    #[test]
    fn the_oldest_make_room_and_are_counted() {
        let directory = tempfile::tempdir().unwrap();
        let (mut queue, _) = open(directory.path());
        let mut dropped = 0;
        for time in 0..3000 {
            dropped += queue.append(time, 2, &[1; 1000]).unwrap();
            assert!(queue.bytes() <= LIMIT);
        }
        assert!(queue.bytes() > LIMIT * 9 / 10);
        assert_eq!(dropped + queue.samples(), 6000);
        assert_eq!(
            queue.oldest_time(),
            Some(i64::try_from(dropped / 2).unwrap())
        );
        assert_eq!(
            queue.append(0, 9, &vec![0; 1 << 20]).unwrap(),
            6009 - dropped
        );
    }

    #[test]
    fn a_batch_that_made_room_meanwhile_takes_no_other_along() {
        let directory = tempfile::tempdir().unwrap();
        let (mut queue, _) = open(directory.path());
        queue.append(0, 1, &[0; 60_000]).unwrap();
        let batch = queue.oldest(1, 1).unwrap().unwrap();
        for time in 1..30 {
            queue.append(time, 1, &[0; 60_000]).unwrap();
        }
        let before = queue.samples();
        queue.done(&batch).unwrap();
        assert_eq!(queue.samples(), before);
    }

    #[test]
    fn a_queue_has_one_exporter() {
        let directory = tempfile::tempdir().unwrap();
        let _first = open(directory.path());
        let second = Queue::open(directory.path(), LIMIT).unwrap_err();
        assert!(second.to_string().contains("another exporter"), "{second}");
    }

    #[test]
    fn a_segment_that_is_a_link_or_a_fifo_is_refused_by_name_and_left_as_it_is() {
        let folder = tempfile::tempdir().unwrap();
        let victim = folder.path().join("victim");
        fs::write(&victim, "no record at all, but of some bytes").unwrap();
        let directory = folder.path().join("queue");
        let refused = || {
            let refused = Queue::open(&directory, LIMIT).unwrap_err().to_string();
            assert!(refused.contains("00000000000000000007.queue"), "{refused}");
        };
        fs::create_dir(&directory).unwrap();
        let segment = directory.join("00000000000000000007.queue");
        symlink(&victim, &segment).unwrap();
        refused();
        fs::remove_file(&segment).unwrap();
        fs::hard_link(&victim, &segment).unwrap();
        refused();
        fs::remove_file(&segment).unwrap();
        let mode = rustix::fs::Mode::from_raw_mode(0o600);
        rustix::fs::mknodat(
            rustix::fs::CWD,
            &segment,
            rustix::fs::FileType::Fifo,
            mode,
            0,
        )
        .unwrap();
        refused();
        assert_eq!(fs::metadata(&victim).unwrap().len(), 35);
    }

    #[test]
    fn a_segment_of_nothing_but_claimed_bytes_is_cut_without_taking_memory_for_them() {
        let directory = tempfile::tempdir().unwrap();
        let (mut queue, _) = open(directory.path());
        queue.append(0, 1, b"kept").unwrap();
        drop(queue);
        let path = directory.path().join("00000000000000000001.queue");
        let file = File::options().write(true).open(&path).unwrap();
        // Larger than the memory of any machine, also where it claims a record of 4 GiB.
        file.set_len(1 << 42).unwrap();
        let claimed = MAGIC.len() as u64 + FRAME + 4;
        file.write_all_at(&[0xF6, b'v', b't', b'x'], claimed)
            .unwrap();
        file.write_all_at(&u32::MAX.to_le_bytes(), claimed + 4)
            .unwrap();
        let (mut queue, notes) = open(directory.path());
        assert_eq!(notes.len(), 1, "{notes:?}");
        assert_eq!(all(&mut queue), [b"kept".to_vec()]);
        assert_eq!(fs::metadata(&path).unwrap().len(), 0);
    }

    #[test]
    fn only_its_user_reads_a_queue_even_where_it_was_wider() {
        let folder = tempfile::tempdir().unwrap();
        let directory = folder.path().join("queue");
        fs::create_dir(&directory).unwrap();
        let wide = std::os::unix::fs::PermissionsExt::from_mode(0o777);
        fs::set_permissions(&directory, wide).unwrap();
        let (mut queue, _) = open(&directory);
        queue.append(0, 1, b"kept").unwrap();
        let mode = |path: &Path| fs::metadata(path).unwrap().mode() & 0o777;
        assert_eq!(mode(&directory), 0o700);
        for entry in fs::read_dir(&directory).unwrap() {
            assert_eq!(mode(&entry.unwrap().path()), 0o600);
        }
    }

    proptest! {
        /// Records before a truncated or changed byte remain readable.
        #[test]
        fn a_torn_or_damaged_tail_is_cut_and_reported(at in 0usize..3250, flip in proptest::bool::ANY) {
            let directory = tempfile::tempdir().unwrap();
            let (mut queue, _) = open(directory.path());
            let records: Vec<Vec<u8>> = (0..10u8).map(|n| vec![n; 300]).collect();
            for record in &records {
                queue.append(0, 1, record).unwrap();
            }
            drop(queue);
            let path = directory.path().join("00000000000000000001.queue");
            let mut content = fs::read(&path).unwrap();
            prop_assert_eq!(content.len(), MAGIC.len() + 3250);
            // The kind of a record has no checksum.
            prop_assume!(!(flip && at % 325 == 12));
            let place = MAGIC.len() + at;
            if flip { content[place] ^= 0x55 } else { content.truncate(place) }
            fs::write(&path, content).unwrap();
            let (mut queue, notes) = open(directory.path());
            prop_assert_eq!(notes.len(), usize::from(flip || at % 325 != 0));
            prop_assert_eq!(all(&mut queue), &records[..at / 325]);
        }
    }
}
