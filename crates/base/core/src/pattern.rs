// SPDX-License-Identifier: Apache-2.0
//! Names with parts that vary, such as `cpu.stage.*`.

use std::fmt::Display;

/// A name with `*` for each part that varies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pattern(pub &'static str);

impl Pattern {
    /// Returns the name with `parts` in place of the asterisks.
    pub fn name(self, parts: &[&str]) -> String {
        let mut name = String::new();
        let mut parts = parts.iter();
        for (place, fixed) in self.0.split('*').enumerate() {
            if place > 0 {
                name.push_str(parts.next().copied().unwrap_or_default());
            }
            name.push_str(fixed);
        }
        name
    }

    /// Returns the name with `part` in place of its one asterisk.
    pub fn fill(self, part: impl Display) -> String {
        self.name(&[&part.to_string()])
    }

    /// Returns the part of `name` that varies; `None` where `name` does not match the pattern. For a pattern with
    /// several such parts, the result runs from the first to the last.
    pub fn part(self, name: &str) -> Option<&str> {
        let (begin, rest) = self.0.split_once('*')?;
        let (between, end) = rest.rsplit_once('*').unwrap_or(("", rest));
        let part = name.strip_prefix(begin)?.strip_suffix(end)?;
        (!part.is_empty() && part.contains(between)).then_some(part)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pattern_gives_back_the_part_of_a_name_that_it_was_given() {
        let busy = Pattern("frequency.*_mhz.busy");
        assert_eq!(busy.fill(1867), "frequency.1867_mhz.busy");
        assert_eq!(busy.part("frequency.1867_mhz.busy"), Some("1867"));
        assert_eq!(busy.part("frequency.1867_mhz"), None);
        assert_eq!(busy.part("frequency._mhz.busy"), None);
        let charge = Pattern("charge.*.*");
        let name = charge.name(&["traced", "vcpu"]);
        assert_eq!(name, "charge.traced.vcpu");
        assert_eq!(charge.part(&name), Some("traced.vcpu"));
        assert_eq!(charge.part("charge.work"), None);
        assert_eq!(charge.part("other.traced.vcpu"), None);
    }
}
