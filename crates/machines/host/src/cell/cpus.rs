// SPDX-License-Identifier: Apache-2.0
//! Lists of processors such as `0-3,6`, for pinning.

use crate::HostError;
use std::collections::BTreeSet;
use std::fmt;
use std::fs;
use std::path::Path;

/// An upper bound for processor numbers (`CONFIG_NR_CPUS` goes up to 8192).
const MOST_PROCESSORS: u32 = 8192;

/// A set of processors in the kernel's list format (`Documentation/admin-guide/cputopology.rst`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CpuList(BTreeSet<u32>);

impl CpuList {
    /// Reads `0-3,6`.
    ///
    /// # Errors
    /// When it is empty, malformed, or a range runs backwards; the message quotes the part.
    pub fn parse(text: &str) -> Result<Self, HostError> {
        let wrong = |part: &str, why: &str| {
            HostError::Setting(format!(
                "`{text}` is not a list of processors: {part:?} {why}; write it as in \"0-3,6\""
            ))
        };
        let mut cpus = BTreeSet::new();
        for part in text.trim().split(',') {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            let number = |digits: &str| match digits.trim().parse::<u32>() {
                Ok(number) if number < MOST_PROCESSORS => Ok(number),
                Ok(_) => Err(wrong(part, "is beyond every machine")),
                Err(_) => Err(wrong(part, "is not a number or a range")),
            };
            let (first, last) = (number(first)?, number(last)?);
            if first > last {
                return Err(wrong(part, "runs backwards"));
            }
            cpus.extend(first..=last);
        }
        Ok(Self(cpus))
    }

    /// Reads `text` and checks that every processor in it is online on this host.
    ///
    /// # Errors
    /// As [`CpuList::parse`], or the processors that this host does not have online.
    pub fn parse_online(text: &str) -> Result<Self, HostError> {
        Self::parse_among(text, Path::new("/sys/devices/system/cpu/online"))
    }

    fn parse_among(text: &str, online: &Path) -> Result<Self, HostError> {
        let list = Self::parse(text)?;
        let there = fs::read_to_string(online).map_err(HostError::file("read", online))?;
        let there = Self::parse(&there)?;
        let absent: BTreeSet<u32> = list.0.difference(&there.0).copied().collect();
        if absent.is_empty() {
            return Ok(list);
        }
        Err(HostError::Setting(format!(
            "processors {} of the list `{text}` are not online here: this host has {there}",
            Self(absent)
        )))
    }

    /// The processors, ascending.
    pub fn iter(&self) -> impl Iterator<Item = u32> + '_ {
        self.0.iter().copied()
    }
}

impl fmt::Display for CpuList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut ranges: Vec<(u32, u32)> = Vec::new();
        for cpu in self.iter() {
            match ranges.last_mut() {
                Some((_, last)) if *last + 1 == cpu => *last = cpu,
                _ => ranges.push((cpu, cpu)),
            }
        }
        let ranges: Vec<String> = ranges
            .into_iter()
            .map(|(first, last)| {
                if first == last {
                    first.to_string()
                } else {
                    format!("{first}-{last}")
                }
            })
            .collect();
        f.write_str(&ranges.join(","))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_list_reads_ranges_and_prints_them_merged() {
        assert_eq!(CpuList::parse("6,0-2, 3\n").unwrap().to_string(), "0-3,6");
    }

    #[test]
    fn a_wrong_list_is_refused_with_the_part_that_is_wrong() {
        for (text, part) in [
            ("", "\"\""),
            ("1,", "\"\""),
            ("3-1", "\"3-1\""),
            ("a", "\"a\""),
            ("0-99999999", "\"0-99999999\""),
        ] {
            let message = CpuList::parse(text).unwrap_err().to_string();
            assert!(message.contains(part), "{text:?}: {message}");
        }
    }

    #[test]
    fn processors_that_are_not_online_are_named() {
        let online = tempfile::NamedTempFile::new().unwrap();
        fs::write(online.path(), "0-1\n").unwrap();
        assert!(CpuList::parse_among("0-1", online.path()).is_ok());
        let message = CpuList::parse_among("1-3", online.path())
            .unwrap_err()
            .to_string();
        assert!(message.contains("processors 2-3"), "{message}");
        assert!(message.contains("this host has 0-1"), "{message}");
    }

    proptest! {
        #[test]
        fn any_text_gives_a_list_or_an_error(text in ".{0,40}") {
            if let Ok(list) = CpuList::parse(&text) {
                prop_assert_eq!(CpuList::parse(&list.to_string()).unwrap(), list);
            }
        }
    }
}
