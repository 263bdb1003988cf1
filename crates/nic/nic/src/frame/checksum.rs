// SPDX-License-Identifier: Apache-2.0
//! The Internet checksum (RFC 1071).

/// The one's complement sum of `bytes` taken as big-endian 16-bit words, not yet complemented,
/// added to `initial`.
pub fn sum(bytes: &[u8], initial: u16) -> u16 {
    // The sum does not depend on byte order or word size (RFC 1071, section 2): eight bytes at a time in the machine's
    // own order, swapped at the end.
    let mut total = u128::from(initial.to_be());
    let mut words = bytes.chunks_exact(8);
    for word in &mut words {
        let mut buffer = [0; 8];
        buffer.copy_from_slice(word);
        total += u128::from(u64::from_ne_bytes(buffer));
    }
    let mut buffer = [0; 8];
    buffer[..words.remainder().len()].copy_from_slice(words.remainder());
    total += u128::from(u64::from_ne_bytes(buffer));
    while total > 0xffff {
        total = (total & 0xffff) + (total >> 16);
    }
    #[expect(clippy::cast_possible_truncation, reason = "folded to 16 bits")]
    u16::from_be(total as u16)
}

/// Finishes a partial checksum: the field at `start + offset` holds the pseudo-header's sum, and
/// becomes the checksum of everything from `start` on. Returns whether the field is in the frame.
#[must_use]
pub fn complete(frame: &mut [u8], start: usize, offset: usize) -> bool {
    let field = start.saturating_add(offset);
    if field.saturating_add(2) > frame.len() {
        return false;
    }
    let value = match !sum(&frame[start..], 0) {
        // Zero would mean "no checksum" to UDP, and is the same number.
        0 => 0xffff,
        value => value,
    };
    frame[field..field + 2].copy_from_slice(&value.to_be_bytes());
    true
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// RFC 1071, section 3: the example.
    #[test]
    fn the_sum_of_the_rfcs_example() {
        assert_eq!(
            sum(&[0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7], 0),
            0xddf2
        );
    }

    proptest! {
        #[test]
        fn the_sum_equals_the_definition(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let mut total = 0_u32;
            for pair in bytes.chunks(2) {
                total += u32::from(pair[0]) << 8 | u32::from(pair.get(1).copied().unwrap_or(0));
            }
            while total > 0xffff {
                total = (total & 0xffff) + (total >> 16);
            }
            prop_assert_eq!(u32::from(sum(&bytes, 0)), total);
        }

        #[test]
        fn a_completed_checksum_verifies(
            mut bytes in proptest::collection::vec(any::<u8>(), 20..200),
            start in 0_usize..10,
            offset in 0_usize..8,
        ) {
            // An even distance, as in every protocol that has one.
            let offset = offset & !1;
            bytes[start + offset..start + offset + 2].fill(0);
            prop_assert!(complete(&mut bytes, start, offset));
            prop_assert_eq!(sum(&bytes[start..], 0), 0xffff);
        }
    }

    #[test]
    fn a_field_past_the_end_is_refused() {
        let mut frame = [0; 64];
        assert!(!complete(&mut frame, 60, 3));
        assert!(!complete(&mut frame, usize::MAX, 3));
        assert!(complete(&mut frame, 60, 2));
    }
}
