// SPDX-License-Identifier: Apache-2.0
//! Extracts the tags and the text of an HTML page, for tests that text never becomes markup.

use std::fmt::Write;

/// Text fragments that are markup where they are not escaped, or that have a special meaning in prose formats.
pub const FRAGMENTS: [&str; 14] = [
    "</script>",
    "<script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    "<!--",
    "-->",
    "]]>",
    "\" onload=\"x",
    "' x='",
    "&lt;",
    "&#60;",
    "`",
    "</pre></td></table></div></section>",
    "\u{2028}",
    "\u{1b}[31m\u{0}",
];

/// A tag, with the text before it.
struct Part<'a> {
    text: &'a str,
    name: String,
    attributes: Vec<&'a str>,
}

/// The parts of a page in order.
fn parts(page: &str) -> Vec<Part<'_>> {
    let mut parts = Vec::new();
    let mut rest = page;
    while let Some((text, behind)) = rest.split_once('<') {
        let (name, attributes, after) = tag(behind);
        // Within these elements only the end tag is markup.
        rest = match name.as_str() {
            "script" | "style" => after
                .find(&format!("</{name}"))
                .map_or("", |at| &after[at..]),
            _ => after,
        };
        parts.push(Part {
            text,
            name,
            attributes,
        });
    }
    parts
}

/// The tags of a page in order, each with the names of its attributes. Pages that differ only in text have the same
/// skeleton. `b` and `code` without attributes are left out, since these depend on the words of a sentence.
pub fn skeleton(page: &str) -> String {
    let mut found = String::new();
    for part in parts(page) {
        let is_emphasis = ["b", "/b", "code", "/code"].contains(&part.name.as_str());
        if !is_emphasis || !part.attributes.is_empty() {
            let _ = writeln!(found, "{} {}", part.name, part.attributes.join(" "));
        }
    }
    found
}

/// The visible text of a page.
pub fn text_of(page: &str) -> String {
    let text: String = parts(page).iter().map(|part| part.text).collect();
    let escapes = [
        ("&lt;", "<"),
        ("&gt;", ">"),
        ("&quot;", "\""),
        ("&amp;", "&"),
    ];
    escapes
        .iter()
        .fold(text, |text, (escape, c)| text.replace(escape, c))
}

/// Parses a tag: its name, the names of its attributes, and the text after it. `text` begins after `<`.
fn tag(text: &str) -> (String, Vec<&str>, &str) {
    let end = text
        .find(|c: char| c.is_whitespace() || c == '>')
        .unwrap_or(text.len());
    let (name, mut rest) = text.split_at(end);
    let mut attributes = Vec::new();
    loop {
        rest = rest.trim_start();
        if rest.is_empty() {
            break;
        }
        if let Some(after) = rest.strip_prefix('>') {
            rest = after;
            break;
        }
        let end = rest
            .find(|c: char| c.is_whitespace() || matches!(c, '=' | '>'))
            .unwrap_or(rest.len());
        let (attribute, after) = rest.split_at(end);
        attributes.push(attribute);
        rest = match after.strip_prefix("=\"") {
            Some(value) => value.split_once('"').map_or("", |(_, after)| after),
            None => after.strip_prefix('=').unwrap_or(after),
        };
    }
    (name.to_ascii_lowercase(), attributes, rest)
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: &str =
        "<!doctype html><p class=\"a\" title=\"NAME\">NAME <b>x</b></p><script>NAME</script>";

    #[test]
    fn text_leaves_the_skeleton_as_it_is() {
        let with = |name: &str| skeleton(&PAGE.replace("NAME", name));
        assert_eq!(
            with("plain"),
            "!doctype html\np class title\n/p \nscript \n/script \n"
        );
        for harmless in ["&lt;i&gt;", "a > b", "' =", ""] {
            assert_eq!(with(harmless), with("plain"), "{harmless}");
        }
    }

    #[test]
    fn a_reader_sees_text_as_it_was() {
        let page = PAGE.replace("NAME", "&lt;i&gt; &amp;lt;");
        assert_eq!(text_of(&page), "<i> &lt; x");
    }

    #[test]
    fn text_that_became_markup_changes_the_skeleton() {
        for (place, hostile) in [
            ("title=\"NAME\"", "\" onload=\"x"),
            ("NAME <b>", "<i>"),
            ("NAME <b>", "<b id=\"x\">"),
            ("<script>NAME", "</script>"),
        ] {
            let page = PAGE.replace(place, &place.replace("NAME", hostile));
            assert_ne!(skeleton(&page), skeleton(PAGE), "{page}");
        }
    }
}
