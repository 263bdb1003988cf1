// SPDX-License-Identifier: Apache-2.0
//! The files of the page, compiled into the program.

use axum::http::header;
use axum::response::{IntoResponse, Response};

/// A file of the directory `assets`: its path, media type and text.
macro_rules! asset {
    ($name:literal, $kind:expr) => {
        asset!(concat!("/", $name), $name, $kind)
    };
    ($path:expr, $name:literal, $kind:expr) => {
        ($path, $kind, include_str!(concat!("../assets/", $name)))
    };
}

/// The path, media type and text of each file.
const FILES: [(&str, &str, &str); 20] = [
    asset!("/", "index.html", HTML),
    ("/palette.css", CSS, vtax_report::html::PALETTE),
    asset!("app.css", CSS),
    asset!("app.js", SCRIPT),
    asset!("chart.js", SCRIPT),
    asset!("comparison.js", SCRIPT),
    asset!("compare.js", SCRIPT),
    asset!("curves.js", SCRIPT),
    asset!("dom.js", SCRIPT),
    asset!("enter.js", SCRIPT),
    asset!("host.js", SCRIPT),
    asset!("machines.js", SCRIPT),
    asset!("meters.js", SCRIPT),
    asset!("results.js", SCRIPT),
    asset!("run.js", SCRIPT),
    asset!("start.js", SCRIPT),
    asset!("theme.js", SCRIPT),
    asset!("icon.svg", "image/svg+xml"),
    // uPlot 1.6.32, MIT, as published (assets/LICENSE.uplot).
    asset!("/uplot.js", "uPlot.iife.min.js", SCRIPT),
    asset!("/uplot.css", "uPlot.min.css", CSS),
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
