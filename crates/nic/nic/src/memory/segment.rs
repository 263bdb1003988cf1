// SPDX-License-Identifier: Apache-2.0
//! Segments of memory that a guest may write at any time, and copies of them.

/// Bytes of a cache line.
#[cfg(target_arch = "x86_64")]
const CACHE_LINE: usize = 64;

/// Copies up to this many bytes are inlined, which is faster than a call.
const MOST_INLINED: usize = 256;

/// A piece of guest memory that is contiguous in this process, or of this process's own memory.
#[derive(Debug, Clone, Copy)]
pub struct Segment {
    /// Host address. Valid for reads and writes of `len` bytes while the memory it came from lives.
    pub host: *mut u8,
    /// Length in bytes.
    pub len: u32,
    /// Guest-physical address, for the dirty log; 0 for this process's own memory.
    pub guest: u64,
    /// Whether the device writes it. Valid only in a chain that was taken.
    pub writable: bool,
}

// SAFETY: an address and a length. The code that accesses the memory argues that it is mapped.
unsafe impl Send for Segment {}

impl Segment {
    /// An empty segment.
    pub const EMPTY: Self = Self {
        host: std::ptr::null_mut(),
        len: 0,
        guest: 0,
        writable: false,
    };

    /// Copies bytes off its start, as many as it has and `bytes` has room for, and returns their number.
    #[inline]
    pub fn take(&mut self, bytes: &mut [u8]) -> usize {
        let count = bytes.len().min(self.len as usize);
        // SAFETY: a segment is `len` bytes of memory that lives; `bytes` is ours alone.
        unsafe {
            std::ptr::copy_nonoverlapping(self.host.cast_const(), bytes.as_mut_ptr(), count);
        }
        #[expect(
            clippy::cast_possible_truncation,
            reason = "at most the segment's length"
        )]
        let step = count as u32;
        self.skip(step);
        count
    }

    /// Copies the bytes at `offset` into `bytes`, if it has them all.
    #[inline]
    pub fn peek_at<const N: usize>(&self, offset: u32, bytes: &mut [u8; N]) {
        if self.len as usize >= offset as usize + N {
            // SAFETY: a segment is `len` bytes of memory that lives; `bytes` is ours alone.
            unsafe {
                let from = self.host.cast_const().wrapping_add(offset as usize);
                std::ptr::copy_nonoverlapping(from, bytes.as_mut_ptr(), N);
            }
        }
    }

    #[inline]
    fn skip(&mut self, bytes: u32) {
        self.host = self.host.wrapping_add(bytes as usize);
        self.guest = self.guest.wrapping_add(u64::from(bytes));
        self.len -= bytes;
    }

    /// Prefetches its start: header and frame, which mostly meet at the end of a cache line.
    #[inline]
    pub fn prefetch(&self) {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: a prefetch touches nothing and never faults.
        unsafe {
            use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
            let start = self.host.cast_const();
            _mm_prefetch::<_MM_HINT_T0>(start.cast());
            _mm_prefetch::<_MM_HINT_T0>(start.wrapping_add(CACHE_LINE).cast());
        }
    }

    /// Prefetches its start for writing.
    #[inline]
    pub fn prefetch_to_write(&self) {
        #[cfg(target_arch = "x86_64")]
        for line in [0, CACHE_LINE] {
            let at = self.host.cast_const().wrapping_add(line);
            // SAFETY: a prefetch touches nothing and never faults; processors without this one do nothing.
            unsafe {
                std::arch::asm!("prefetchw [{}]", in(reg) at, options(nostack, preserves_flags, readonly));
            }
        }
    }
}

/// A segment of this process's own memory to copy from.
#[inline]
pub fn own(bytes: &[u8]) -> Segment {
    Segment {
        // Only read.
        host: bytes.as_ptr().cast_mut(),
        len: u32::try_from(bytes.len()).unwrap_or(u32::MAX),
        guest: 0,
        writable: false,
    }
}

/// Copies up to `buffer.len()` bytes from the start of `segments`; returns how many.
#[inline]
pub fn peek(segments: &[Segment], buffer: &mut [u8]) -> usize {
    peek_from(segments, 0, buffer)
}

/// As [`peek`], without the first `skipped` bytes.
#[inline]
pub fn peek_from(segments: &[Segment], skipped: u32, buffer: &mut [u8]) -> usize {
    let (mut done, mut skipped) = (0, skipped);
    for segment in segments {
        let mut segment = *segment;
        let skips = skipped.min(segment.len);
        segment.skip(skips);
        skipped -= skips;
        done += segment.take(&mut buffer[done..]);
        if done == buffer.len() {
            break;
        }
    }
    done
}

/// Copies `header` and then all of `from` into the start of `to`, as far as that has room.
#[inline]
pub fn copy(header: &[u8], from: &[Segment], to: &[Segment]) {
    // The common case of small frames: one segment each.
    if let ([source], [target]) = (from, to)
        && (target.len as usize).saturating_sub(header.len()) >= source.len as usize
        && target.len as usize >= header.len()
    {
        // SAFETY: both segments are memory that lives, and the target has room for both parts, as
        // just compared.
        unsafe {
            std::ptr::copy_nonoverlapping(header.as_ptr(), target.host, header.len());
            let rest = target.host.wrapping_add(header.len());
            copy_bytes(source.host.cast_const(), rest, source.len as usize);
        }
        return;
    }
    scatter(std::iter::once(own(header)).chain(from.iter().copied()), to);
}

/// Copies `len` bytes. Where the two overlap, which only a malicious front end brings about, the result is any
/// mixture.
///
/// # Safety
/// `from` must be valid for reads and `to` for writes of `len` bytes.
#[inline]
unsafe fn copy_bytes(from: *const u8, to: *mut u8, len: usize) {
    const STEP: usize = size_of::<Block>();
    type Block = [u64; 4];
    if !(STEP..=MOST_INLINED).contains(&len) {
        // SAFETY: the caller's promise. Guests' buffers may overlap, hence not `copy_nonoverlapping`.
        return unsafe { std::ptr::copy(from, to, len) };
    }
    let last = len - STEP;
    let mut at = 0;
    loop {
        let (source, target) = (from.wrapping_add(at), to.wrapping_add(at));
        // SAFETY: `at` is at most `len - STEP`, so a block from there on is within what the caller
        // promises. Neither needs to be aligned.
        unsafe {
            let block = source.cast::<Block>().read_unaligned();
            target.cast::<Block>().write_unaligned(block);
        }
        if at == last {
            return;
        }
        // The last block overlaps the one before it, where the length is no multiple.
        at = (at + STEP).min(last);
    }
}

fn scatter(from: impl Iterator<Item = Segment>, to: &[Segment]) {
    let mut targets = to.iter();
    let mut target = Segment::EMPTY;
    for mut source in from {
        while source.len > 0 {
            if target.len == 0 {
                match targets.next() {
                    Some(next) => target = *next,
                    None => return,
                }
                continue;
            }
            let bytes = source.len.min(target.len);
            // SAFETY: both segments have at least `bytes` bytes of memory that lives.
            unsafe { copy_bytes(source.host.cast_const(), target.host, bytes as usize) };
            source.skip(bytes);
            target.skip(bytes);
        }
    }
}
