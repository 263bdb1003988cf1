// SPDX-License-Identifier: Apache-2.0
//! The pages of the documentation: their fenced blocks, and the commands in them.
//!
//! The first word of a fence is the language of its block. The words after it name the reader of a TOML block, or what
//! the commands of a shell block need before they can run.

use crate::workspace::root;
use std::fs;
use std::path::{Path, PathBuf};

/// A fenced block of a page.
#[derive(Debug)]
pub struct Block {
    /// The page and the line of the fence.
    pub place: String,
    /// The first word of the fence.
    pub language: String,
    /// The other words of the fence.
    pub marks: Vec<String>,
    /// The lines between the fences.
    pub text: String,
}

/// `README.md` and every page below `docs`, in order of name.
pub fn all() -> Vec<PathBuf> {
    let mut pages = vec![root().join("README.md")];
    let mut folders = vec![root().join("docs")];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|end| end == "md") {
                pages.push(path);
            }
        }
    }
    pages.sort();
    pages
}

/// The path of a page below the root directory.
pub fn name(page: &Path) -> String {
    page.strip_prefix(root())
        .unwrap_or(page)
        .display()
        .to_string()
}

/// The blocks of a page.
pub fn blocks(page: &Path) -> Vec<Block> {
    let text = fs::read_to_string(page).unwrap();
    let mut found = Vec::new();
    let mut open: Option<Block> = None;
    for (number, line) in text.lines().enumerate() {
        if let Some(mut block) = open.take() {
            if line.trim() == "```" {
                found.push(block);
            } else {
                block.text.push_str(line);
                block.text.push('\n');
                open = Some(block);
            }
        } else if let Some(fence) = line.trim_start().strip_prefix("```") {
            let mut words = fence.split_whitespace().map(str::to_owned);
            open = Some(Block {
                place: format!("{}:{}", name(page), number + 1),
                language: words.next().unwrap_or_default(),
                marks: words.collect(),
                text: String::new(),
            });
        }
    }
    assert!(open.is_none(), "a block of {} does not end", page.display());
    found
}

/// The shell lines of a block: all lines of `sh`, and those after a prompt of `console`. A line that ends in a backslash
/// goes on in the next one.
pub fn shell_lines(block: &Block) -> Vec<String> {
    let mut lines = Vec::new();
    let mut rest = block.text.lines();
    while let Some(line) = rest.next() {
        let first = match block.language.as_str() {
            "sh" => Some(line),
            "console" => line.strip_prefix("$ "),
            _ => None,
        };
        let Some(first) = first else { continue };
        let mut whole = first.to_owned();
        while whole.ends_with('\\') {
            whole.pop();
            whole.push_str(rest.next().unwrap_or_default());
        }
        if !whole.trim().is_empty() {
            lines.push(whole);
        }
    }
    lines
}

/// The commands of a shell line, each as its words. `sudo` and assignments before a command, redirections and comments
/// are left out.
pub fn commands(line: &str) -> Vec<Vec<String>> {
    let mut commands = vec![Vec::new()];
    let mut word: Option<String> = None;
    let mut quote = None;
    let mut letters = line.chars().peekable();
    while let Some(letter) = letters.next() {
        match (quote, letter) {
            (Some(mark), _) if letter == mark => quote = None,
            (Some('"') | None, '\\') => word.get_or_insert_default().extend(letters.next()),
            (Some(_), _) => word.get_or_insert_default().push(letter),
            (None, '\'' | '"') => {
                quote = Some(letter);
                word.get_or_insert_default();
            }
            (None, '#') if word.is_none() => break,
            (None, '|' | ';' | '&') => {
                commands.last_mut().unwrap().extend(word.take());
                commands.push(Vec::new());
            }
            (None, '>' | '<') => {
                // The number of the output belongs to the redirection.
                word = word.filter(|number| number.parse::<u8>().is_err());
                commands.last_mut().unwrap().extend(word.take());
                while letters.next_if(|next| ">& ".contains(*next)).is_some() {}
                while letters.next_if(|next| !next.is_whitespace()).is_some() {}
            }
            (None, ' ' | '\t') => commands.last_mut().unwrap().extend(word.take()),
            (None, _) => word.get_or_insert_default().push(letter),
        }
    }
    commands.last_mut().unwrap().extend(word);
    for command in &mut commands {
        let is_before = |word: &String| {
            word == "sudo"
                || word.split_once('=').is_some_and(|(name, _)| {
                    !name.contains(|c: char| !c.is_uppercase() && c != '_')
                })
        };
        let before = command.iter().take_while(|word| is_before(word)).count();
        command.drain(..before);
    }
    commands.retain(|command| !command.is_empty());
    commands
}

/// The text of a page's code spans, without its fenced blocks.
pub fn spans(page: &Path) -> Vec<String> {
    let text = fs::read_to_string(page).unwrap();
    let mut prose = String::new();
    let mut is_fenced = false;
    for line in text.lines() {
        if line.trim_start().starts_with("```") {
            is_fenced = !is_fenced;
        } else if !is_fenced {
            prose.push_str(line);
            prose.push('\n');
        }
    }
    let spans = prose.split('`').skip(1).step_by(2);
    spans.map(|span| span.replace('\n', " ")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shell_line_is_split_into_commands_and_words_as_a_shell_splits_it() {
        let words = |line: &str| -> Vec<String> {
            let commands = commands(line);
            commands.iter().map(|words| words.join("|")).collect()
        };
        assert_eq!(words("sudo vtax run 'a b' # why"), ["vtax|run|a b"]);
        assert_eq!(
            words("A_B=1 vtax top --json >out 2>&1"),
            ["vtax|top|--json"]
        );
        assert_eq!(
            words("vtax a && vtax \"b 'c'\"; d | e"),
            ["vtax|a", "vtax|b 'c'", "d", "e"]
        );
        assert_eq!(words("vtax a --save ''"), ["vtax|a|--save|"]);
        assert_eq!(words("# nothing"), Vec::<String>::new());
    }

    #[test]
    fn a_line_of_a_transcript_goes_on_after_a_backslash_and_output_is_no_command() {
        let block = Block {
            place: String::new(),
            language: "console".to_owned(),
            marks: Vec::new(),
            text: "$ vtax a \\\n  b\noutput\n$ c\n".to_owned(),
        };
        assert_eq!(shell_lines(&block), ["vtax a   b", "c"]);
    }
}
