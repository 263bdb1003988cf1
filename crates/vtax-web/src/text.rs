//! Text of others, made fit to show.

/// Lines that are shown are no longer.
const LONGEST: usize = 300;

/// The last lines of what may be text, without empty ones and without what steers a terminal.
pub fn last_lines(bytes: &[u8], most: usize) -> Vec<String> {
    let text = String::from_utf8_lossy(bytes);
    let lines: Vec<&str> = text
        .lines()
        .filter(|line| !line.trim().is_empty())
        .collect();
    let from = lines.len().saturating_sub(most);
    lines.iter().skip(from).map(|line| shown(line)).collect()
}

/// One line without what steers a terminal.
pub fn shown(line: &str) -> String {
    let line = line.chars().take(LONGEST);
    line.map(|c| if c.is_control() { ' ' } else { c }).collect()
}
