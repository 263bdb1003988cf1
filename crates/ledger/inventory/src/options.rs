// SPDX-License-Identifier: Apache-2.0
//! Command line options as VMMs write them: `-flag value`, `--flag value`, `--flag=value`, and
//! inside a value QEMU's `first,key=value,…`, in which a doubled comma is a comma.

/// Every value of `flag` (named without dashes), in order.
pub(super) fn values<'a>(
    arguments: &'a [Vec<u8>],
    flag: &'static str,
) -> impl Iterator<Item = &'a [u8]> {
    arguments
        .iter()
        .enumerate()
        .filter_map(move |(index, argument)| {
            let name = argument.strip_prefix(b"-")?;
            let name = name.strip_prefix(b"-").unwrap_or(name);
            let rest = name.strip_prefix(flag.as_bytes())?;
            match rest.first() {
                None => arguments.get(index + 1).map(Vec::as_slice),
                Some(b'=') => rest.get(1..),
                Some(_) => None,
            }
        })
}

/// The last value of `flag`, which overrides the others.
pub(super) fn value<'a>(arguments: &'a [Vec<u8>], flag: &'static str) -> Option<&'a [u8]> {
    values(arguments, flag).last()
}

/// The value of `key` in a QEMU option list. A first part without a key is the value of `key`.
pub(super) fn named(list: &[u8], key: &str) -> Option<Vec<u8>> {
    let mut implied = None;
    for (index, part) in split(list).into_iter().enumerate() {
        let equals = part.iter().position(|byte| *byte == b'=');
        match equals.and_then(|at| part.split_at_checked(at)) {
            Some((name, value)) if name == key.as_bytes() => {
                return value.get(1..).map(<[u8]>::to_vec);
            }
            None if index == 0 && !part.is_empty() => implied = Some(part),
            _ => {}
        }
    }
    implied
}

fn split(list: &[u8]) -> Vec<Vec<u8>> {
    let mut parts = vec![Vec::new()];
    let mut bytes = list.iter().peekable();
    while let Some(byte) = bytes.next() {
        let is_end = *byte == b',' && bytes.next_if(|next| **next == b',').is_none();
        if is_end {
            parts.push(Vec::new());
        } else if let Some(part) = parts.last_mut() {
            part.push(*byte);
        }
    }
    parts
}

/// Whether `value` contains `text`.
pub(super) fn contains(value: &[u8], text: &[u8]) -> bool {
    value
        .windows(text.len().max(1))
        .any(|window| window == text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_last_value_counts_and_prefixes_are_other_flags() {
        let line: Vec<Vec<u8>> = ["x", "-name", "a", "--name=b", "-names", "c"]
            .iter()
            .map(|part| part.as_bytes().to_vec())
            .collect();
        assert_eq!(value(&line, "name"), Some(&b"b"[..]));
        assert_eq!(value(&line, "names"), Some(&b"c"[..]));
        assert_eq!(value(&line, "other"), None);
    }

    proptest! {
        #[test]
        fn no_command_line_panics(line in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..30), 0..10)) {
            for value in values(&line, "name") {
                let _ = named(value, "guest");
            }
        }
    }
}
