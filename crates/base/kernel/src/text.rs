// SPDX-License-Identifier: Apache-2.0
//! Parsing of the kernel's text files as bytes: device and thread names need not be UTF-8.

/// The lines of a text.
pub fn lines(text: &[u8]) -> impl Iterator<Item = &[u8]> {
    text.split(|byte| *byte == b'\n')
}

/// The fields of a line, separated by any white space.
pub fn fields(line: &[u8]) -> impl Iterator<Item = &[u8]> {
    line.split(u8::is_ascii_whitespace)
        .filter(|field| !field.is_empty())
}

/// Splits `label: rest` at the first colon; the label is trimmed.
pub fn labelled(line: &[u8]) -> Option<(&[u8], &[u8])> {
    let colon = line.iter().position(|byte| *byte == b':')?;
    let (label, rest) = line.split_at_checked(colon)?;
    Some((label.trim_ascii(), rest.get(1..)?))
}

/// Parses a field that is a decimal number and nothing else.
pub fn number(field: &[u8]) -> Option<u64> {
    if field.is_empty() {
        return None;
    }
    field.iter().try_fold(0u64, |value, byte| match byte {
        b'0'..=b'9' => value.checked_mul(10)?.checked_add(u64::from(byte - b'0')),
        _ => None,
    })
}

/// The number of a process, processor or device: a decimal number of 32 bits.
pub fn small(field: &[u8]) -> Option<u32> {
    u32::try_from(number(field)?).ok()
}

/// The number in the first line `key number`.
pub fn keyed(text: &[u8], key: &str) -> Option<u64> {
    lines(text).find_map(|line| {
        let mut fields = fields(line);
        if fields.next()? == key.as_bytes() {
            number(fields.next()?)
        } else {
            None
        }
    })
}

/// Parses the kernel's list format for CPUs, such as `0-3,8`; `None` for anything else.
pub fn cpu_list(text: &[u8]) -> Option<Vec<u32>> {
    const MOST: u64 = 1 << 16;
    let mut cpus = Vec::new();
    for range in text.trim_ascii().split(|byte| *byte == b',') {
        let mut ends = range.splitn(2, |byte| *byte == b'-');
        let first = number(ends.next()?)?;
        let last = match ends.next() {
            Some(last) => number(last)?,
            None => first,
        };
        if last < first || last >= MOST {
            return None;
        }
        for cpu in first..=last {
            cpus.push(u32::try_from(cpu).ok()?);
        }
    }
    Some(cpus)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn numbers_are_decimal_and_fit_64_bits() {
        assert_eq!(number(b"18446744073709551615"), Some(u64::MAX));
        assert_eq!(number(b"18446744073709551616"), None);
        assert_eq!(number(b"-1"), None);
        assert_eq!(number(b""), None);
    }

    #[test]
    fn cpu_lists_are_read_as_the_kernel_writes_them() {
        assert_eq!(cpu_list(b"0-2,5\n"), Some(vec![0, 1, 2, 5]));
        assert_eq!(cpu_list(b"7"), Some(vec![7]));
        assert_eq!(cpu_list(b""), None);
        assert_eq!(cpu_list(b"3-1"), None);
        assert_eq!(cpu_list(b"0-99999999999"), None);
    }

    proptest! {
        #[test]
        fn any_text_is_read_without_a_panic(text in prop::collection::vec(any::<u8>(), 0..200)) {
            for line in lines(&text) {
                fields(line).for_each(|field| assert!(small(field).is_none() || number(field).is_some()));
            }
            let _ = (cpu_list(&text), keyed(&text, "key"));
        }

        #[test]
        fn every_number_is_read_back(value: u64) {
            prop_assert_eq!(number(value.to_string().as_bytes()), Some(value));
        }
    }
}
