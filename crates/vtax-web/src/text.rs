// SPDX-License-Identifier: Apache-2.0
//! The last lines of another program's output, made safe to display.

use vtax_host::untrusted::shown;

/// The last `most` lines that are not empty, without control characters.
pub fn last_lines(bytes: &[u8], most: usize) -> Vec<String> {
    let text = String::from_utf8_lossy(bytes);
    let lines: Vec<&str> = text
        .lines()
        .filter(|line| !line.trim().is_empty())
        .collect();
    let from = lines.len().saturating_sub(most);
    lines.iter().skip(from).map(|line| shown(line)).collect()
}
