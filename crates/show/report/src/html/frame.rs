// SPDX-License-Identifier: Apache-2.0
//! The frame of every page, and the building blocks of pages. `maud` escapes all text.

use crate::figures::Figure;
use maud::{Markup, PreEscaped, Render, html};
use serde_json::{Map, Value};
use vtax_core::counted;
use vtax_results::numbers::when;

/// The colours and type of every page, light and dark, as properties of CSS.
pub const PALETTE: &str = include_str!("../../assets/palette.css");
const STYLE: &str = include_str!("../../assets/report.css");
const SCRIPT: &str = include_str!("../../assets/report.js");
/// Vega, which draws figures.
pub(crate) const VEGA: &str = include_str!("../../assets/vega.min.js");
/// Vega-Lite, which turns its specifications into those of Vega.
pub(crate) const VEGA_LITE: &str = include_str!("../../assets/vega-lite.min.js");
const EMBED: &str = include_str!("../../assets/vega-embed.min.js");
const VERSION: &str = env!("CARGO_PKG_VERSION");

/// Placeholder for a value that does not exist.
pub const DASH: &str = "–";

/// A page: one file that works offline, on a phone and on paper.
pub struct Page<'a> {
    /// Kind of the page, such as `vtax report`, above the name.
    pub kind: &'a str,
    /// Name of the page.
    pub name: &'a str,
    /// Subject of the page, in one sentence.
    pub lede: &'a str,
    /// Facts and banners below that.
    pub head: Markup,
    /// Links to the parts.
    pub contents: Markup,
    /// The parts.
    pub body: Markup,
    /// CSS rules in addition to those of every page.
    pub style: &'a str,
    /// The figures to draw in the places that [`drawn`] created; `None` for a page without scripts.
    pub figures: Option<&'a [Figure]>,
}

impl Page<'_> {
    /// Renders the page as HTML.
    pub fn render(&self) -> String {
        let content = html! {
            header.masthead {
                p.eyebrow { (self.kind) }
                @if self.figures.is_some() { button #theme type="button" hidden { "Dark" } }
                h1 { (self.name) }
                p.lede { (self.lede) }
                (self.head)
            }
            nav aria-label="Contents" { (self.contents) }
            (self.body)
            footer {
                "Made by vtax " (VERSION) "."
                @if self.figures.is_some() {
                    " Drawn with Vega, Vega-Lite and Vega-Embed (BSD 3-Clause, University of Washington Interactive Data Lab)."
                }
            }
        };
        let page = html! {
            (PreEscaped("<!doctype html>\n"))
            html lang="en" {
                head {
                    meta charset="utf-8";
                    meta name="viewport" content="width=device-width, initial-scale=1";
                    meta name="generator" content={ "vtax " (VERSION) };
                    title { (printable(self.name)) " · " (self.kind) }
                    link rel="icon" href="data:,";
                    style { (PreEscaped(PALETTE)) (PreEscaped(STYLE)) (PreEscaped(self.style)) }
                }
                (PreEscaped("\n"))
                body {
                    main.page { (PreEscaped(in_lines(&content.into_string()))) }
                    @if let Some(figures) = self.figures { (scripts(figures)) }
                }
            }
            (PreEscaped("\n"))
        };
        page.into_string()
    }
}

/// The scripts, and the figures as JSON data.
fn scripts(figures: &[Figure]) -> Markup {
    let specs = figures.iter().map(|figure| {
        // The page shows the title as text, which wraps and is searchable.
        let mut spec = figure.spec.clone();
        spec.as_object_mut().map(|spec| spec.remove("title"));
        (format!("plot-{}", figure.id), spec)
    });
    let specs = Value::Object(specs.collect::<Map<_, _>>());
    html! {
        script type="application/json" id="figures-data" { (PreEscaped(json_for_script(&specs))) }
        @for code in [VEGA, VEGA_LITE, EMBED] { script { (PreEscaped(without_source_map(code))) } }
        script { (PreEscaped(SCRIPT)) }
    }
}

/// Serialises JSON without a sequence that ends the surrounding script element, in which HTML has no escapes.
pub fn json_for_script(value: &Value) -> String {
    value
        .to_string()
        .replace('<', "\\u003c")
        .replace('\u{2028}', "\\u2028")
        .replace('\u{2029}', "\\u2029")
}

/// The code without its last comment, which would make developer tools request a source map.
fn without_source_map(code: &str) -> &str {
    let (code, _) = code
        .split_once("\n//# sourceMappingURL")
        .unwrap_or((code, ""));
    code.trim_end()
}

/// Text without control characters except line feed and tab: HTML cannot represent the others.
fn printable(text: &str) -> String {
    text.replace(
        |c: char| c.is_control() && !matches!(c, '\n' | '\t'),
        "\u{fffd}",
    )
}

/// Markup with a line for each block and row, so that two pages have a readable diff. Text never resembles the end of
/// an element, because it is escaped.
fn in_lines(markup: &str) -> String {
    const ELEMENTS: &str =
        "article dd div dl figure h1 h2 h3 h4 header li ol p section summary tr ul";
    ELEMENTS
        .split(' ')
        .fold(printable(markup), |text, element| {
            text.replace(&format!("</{element}>"), &format!("</{element}>\n"))
        })
}

/// A part of a report: its anchor and its heading.
pub type Part = (&'static str, &'static str);

/// The findings of a report.
pub const SUMMARY: Part = ("summary", "What was found");
/// The figures of a report.
pub const FIGURES: Part = ("figures", "Figures");
/// The tables of a report.
pub const TABLES: Part = ("tables", "Tables");
/// The provenance of a report.
pub const PROVENANCE: Part = ("provenance", "Where the numbers come from");

/// Links to the parts of a report.
pub fn contents() -> Markup {
    links(&[SUMMARY, FIGURES, TABLES, PROVENANCE])
}

/// Links to parts.
pub fn links(parts: &[Part]) -> Markup {
    html! {
        ul.facts {
            @for (id, heading) in parts {
                li { a href={ "#" (id) } { (heading) } }
            }
        }
    }
}

/// One part of a report.
pub fn section((id, heading): Part, content: &Markup) -> Markup {
    html! { section id=(id) { h2 { (heading) } (content) } }
}

/// Place, start, profile and seed of a run, with its number of `counted` trials.
pub fn run_facts(place: &str, started: &str, profile: &str, seed: u64, counted: &Markup) -> Markup {
    html! {
        ul.facts {
            li { "place " b { (place) } }
            li { "started " b { (when(started)) } }
            li { "profile " b { (profile) } }
            li { (counted) }
            li { "order " b { "random, interleaved, seed " (seed) } }
        }
    }
}

/// A banner for a warning above the content.
pub fn banner(head: &str, text: impl Render) -> Markup {
    html! { p.banner { b { (head) } " " (text) } }
}

/// A flag behind a number: `modelled`, `emulated`, `simulated`.
pub fn badge(flag: impl std::fmt::Display) -> Markup {
    html! { span.badge { (flag.to_string()) } }
}

/// Text whose words between backticks are code.
pub fn prose(text: &str) -> Markup {
    prose_with(text, |part| html! { (part) })
}

/// Text whose words between backticks are code, the rest as `plain` writes it.
pub(super) fn prose_with(text: &str, plain: impl Fn(&str) -> Markup) -> Markup {
    let paired = text.matches('`').count() / 2 * 2;
    html! {
        @for (place, part) in text.splitn(paired + 1, '`').enumerate() {
            @if place % 2 == 1 { code { (part) } } @else { (plain(part)) }
        }
    }
}

/// A table that scrolls where it is wider than the page.
pub fn table<C: Render>(columns: impl IntoIterator<Item = C>, rows: &Markup) -> Markup {
    captioned("", columns, rows)
}

/// A table with a caption.
pub fn captioned<C: Render>(
    caption: &str,
    columns: impl IntoIterator<Item = C>,
    rows: &Markup,
) -> Markup {
    html! {
        div.scroll {
            table {
                @if !caption.is_empty() { caption { (caption) } }
                thead { tr { @for column in columns { th scope="col" { (column) } } } }
                tbody { (rows) }
            }
        }
    }
}

/// Content below a summary, which the reader folds and unfolds.
pub fn fold(summary: &str, open: bool, content: &Markup) -> Markup {
    html! { details.more open[open] { summary { (summary) } (content) } }
}

/// The text of a file, folded.
pub fn file(summary: &str, text: &str) -> Markup {
    fold(summary, false, &html! { pre { (text) } })
}

/// A section with the figures.
pub fn drawn(figures: &[Figure]) -> Markup {
    section(
        FIGURES,
        &html! {
            (NO_SCRIPTS)
            @if figures.is_empty() { p { "There is nothing to draw yet." } }
            (places(1, figures))
        },
    )
}

/// A section with the figures after the first one, folded.
pub(super) fn more_drawn(figures: &[Figure]) -> Markup {
    let all = fold(
        &counted(figures.len(), "more figure"),
        false,
        &places(2, figures),
    );
    section(
        FIGURES,
        &html! {
            (NO_SCRIPTS)
            @if figures.is_empty() { p { "There are no more figures." } } @else { (all) }
        },
    )
}

/// The notice for a reader without scripts.
const NO_SCRIPTS: PreEscaped<&str> = PreEscaped(
    "<noscript><p>The figures need JavaScript; every number is in the tables below.</p></noscript>",
);

/// The places of figures, numbered from `first`.
fn places(first: usize, figures: &[Figure]) -> Markup {
    html! {
        div.figures {
            @for (number, figure) in (first..).zip(figures) { (figure_place(number, figure)) }
        }
    }
}

/// The container that the scripts draw a figure in, with its title and its caption.
pub(super) fn figure_place(number: usize, figure: &Figure) -> Markup {
    html! {
        figure {
            h3 { (figure.title) }
            div.plot id={ "plot-" (figure.id) } role="img" aria-label=(figure.title) {}
            figcaption { b { "Figure " (number) "." } " " (figure.caption) }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_between_backticks_are_code_and_a_lone_backtick_is_text() {
        for (text, markup) in [
            ("run `a <b>` & go", "run <code>a &lt;b&gt;</code> &amp; go"),
            ("`a` or `b`", "<code>a</code> or <code>b</code>"),
            ("`a` or `b", "<code>a</code> or `b"),
            ("", ""),
        ] {
            assert_eq!(prose(text).into_string(), markup);
        }
    }

    /// The relative luminance of a colour `#rgb` or `#rrggbb`.
    fn luminance(color: &str) -> f64 {
        let digits: Vec<u32> = color.chars().filter_map(|c| c.to_digit(16)).collect();
        let parts: Vec<u32> = match digits.len() {
            3 => digits.iter().map(|digit| digit * 17).collect(),
            _ => digits
                .chunks(2)
                .map(|pair| pair[0] * 16 + pair[1])
                .collect(),
        };
        let linear = |part: u32| match f64::from(part) / 255.0 {
            part if part <= 0.04045 => part / 12.92,
            part => ((part + 0.055) / 1.055).powf(2.4),
        };
        0.2126 * linear(parts[0]) + 0.7152 * linear(parts[1]) + 0.0722 * linear(parts[2])
    }

    #[test]
    fn text_has_a_contrast_of_at_least_4_5_in_every_theme_and_on_paper() {
        let sheets = format!("{PALETTE}{STYLE}");
        let themes: Vec<&str> = sheets.split("--paper:").skip(1).collect();
        assert_eq!(themes.len(), 4, "light, dark twice, and print");
        for theme in themes {
            let theme = format!("--paper:{}", theme.split('}').next().unwrap());
            let color = |name: &str| {
                let (_, value) = theme.split_once(&format!("--{name}: ")).unwrap();
                luminance(value.split(';').next().unwrap())
            };
            for (text, behind) in [
                ("ink", "paper"),
                ("soft", "paper"),
                ("link", "paper"),
                ("warn", "paper"),
                ("ink", "wash"),
                ("soft", "wash"),
                ("link", "wash"),
                ("warn", "warn-wash"),
            ] {
                let (a, b) = (color(text), color(behind));
                let contrast = (a.max(b) + 0.05) / (a.min(b) + 0.05);
                assert!(
                    contrast >= 4.5,
                    "{text} on {behind}: {contrast:.2} in {theme}"
                );
            }
        }
    }

    #[test]
    fn a_page_has_a_line_for_each_row_and_no_control_characters() {
        let rows = html! { tr { td { "a\u{1b}[1m</tr>" } } tr { td { "b\tc" } } };
        assert_eq!(
            in_lines(&rows.into_string()),
            "<tr><td>a\u{fffd}[1m&lt;/tr&gt;</td></tr>\n<tr><td>b\tc</td></tr>\n"
        );
    }
}
