// SPDX-License-Identifier: Apache-2.0
//! The files of the page, compiled into the program.

use axum::http::header;
use axum::response::{IntoResponse, Response};

/// The path, media type and text of each file.
const FILES: [(&str, &str, &str); 20] = [
    ("/", HTML, include_str!("../assets/index.html")),
    ("/palette.css", CSS, vtax_report::html::PALETTE),
    ("/app.css", CSS, include_str!("../assets/app.css")),
    ("/app.js", SCRIPT, include_str!("../assets/app.js")),
    ("/chart.js", SCRIPT, include_str!("../assets/chart.js")),
    (
        "/comparison.js",
        SCRIPT,
        include_str!("../assets/comparison.js"),
    ),
    ("/compare.js", SCRIPT, include_str!("../assets/compare.js")),
    ("/curves.js", SCRIPT, include_str!("../assets/curves.js")),
    ("/dom.js", SCRIPT, include_str!("../assets/dom.js")),
    ("/enter.js", SCRIPT, include_str!("../assets/enter.js")),
    ("/host.js", SCRIPT, include_str!("../assets/host.js")),
    (
        "/machines.js",
        SCRIPT,
        include_str!("../assets/machines.js"),
    ),
    ("/meters.js", SCRIPT, include_str!("../assets/meters.js")),
    ("/results.js", SCRIPT, include_str!("../assets/results.js")),
    ("/run.js", SCRIPT, include_str!("../assets/run.js")),
    ("/start.js", SCRIPT, include_str!("../assets/start.js")),
    ("/theme.js", SCRIPT, include_str!("../assets/theme.js")),
    (
        "/icon.svg",
        "image/svg+xml",
        include_str!("../assets/icon.svg"),
    ),
    // uPlot 1.6.32, MIT, as published (assets/LICENSE.uplot).
    (
        "/uplot.js",
        SCRIPT,
        include_str!("../assets/uPlot.iife.min.js"),
    ),
    ("/uplot.css", CSS, include_str!("../assets/uPlot.min.css")),
];

const HTML: &str = "text/html; charset=utf-8";
const CSS: &str = "text/css; charset=utf-8";
const SCRIPT: &str = "text/javascript; charset=utf-8";

/// The paths of the files.
pub fn paths() -> impl Iterator<Item = &'static str> {
    FILES.into_iter().map(|(path, ..)| path)
}

/// The file at a path, if there is one.
pub fn file(path: &str) -> Option<Response> {
    let (_, kind, text) = FILES.into_iter().find(|(own, ..)| *own == path)?;
    Some(([(header::CONTENT_TYPE, kind)], text).into_response())
}

/// The text of the file at a path.
pub fn text(path: &str) -> Option<&'static str> {
    let (.., text) = FILES.into_iter().find(|(own, ..)| *own == path)?;
    Some(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_loads_only_files_that_are_there_and_has_nothing_inline() {
        let page = include_str!("../assets/index.html");
        for part in page.split(['"', '\'']).filter(|part| part.starts_with('/')) {
            assert!(file(part).is_some(), "{part}");
        }
        for (path, _, text) in FILES {
            assert!(
                !text.contains("innerHTML") || path == "/uplot.js",
                "{path}: names are text"
            );
            if path.ends_with(".js") && path != "/uplot.js" {
                for module in text
                    .lines()
                    .filter_map(|line| line.split(" from \".").nth(1))
                {
                    let module = module.trim_end_matches("\";");
                    assert!(file(module).is_some(), "{path} imports {module}");
                }
            }
        }
        for inline in ["<style", "style=", " onclick", "javascript:"] {
            assert!(!page.contains(inline), "{inline}");
        }
        assert!(!page.contains("<script>"));
    }

    #[test]
    fn the_page_without_figures_is_small() {
        let weight: usize = FILES.iter().map(|(_, _, text)| text.len()).sum();
        assert!(weight < 200 * 1024, "{weight} bytes");
    }
}
