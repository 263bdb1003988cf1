// SPDX-License-Identifier: Apache-2.0
//! Figures as files of SVG or PDF that need nothing else: Vega, the renderer of the report's page, in an interpreter of
//! JavaScript without access to files or the network.

use crate::figures::Figure;
use crate::html::frame::{VEGA, VEGA_LITE};
use crate::pdf;
use rquickjs::context::EvalOptions;
use rquickjs::{CatchResultExt, Context, Ctx, Runtime};
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use vtax_files::FileError;

/// The width of a figure, in pixels: two columns of a paper at 96 pixels an inch.
const WIDTH: u32 = 672;
/// The most time for one figure, and the most memory of the interpreter.
const DRAWING_TIMEOUT: Duration = Duration::from_secs(60);
const MOST_MEMORY: usize = 1 << 30;
/// The interpreter's stack. Threads of Rust's tests have 2 MiB.
const STACK: usize = 1 << 20;

/// The functions of browsers that Vega expects.
const BROWSER: &str = "globalThis.self = globalThis;
globalThis.setTimeout = function (f) { Promise.resolve().then(f); return 0; };
globalThis.clearTimeout = function () {};
globalThis.console = { log() {}, warn() {}, error() {}, debug() {}, info() {} };
if (!globalThis.structuredClone) { globalThis.structuredClone = (x) => JSON.parse(JSON.stringify(x)); }";

/// Draws the specification in `text`, and leaves the SVG or the page of PDF in `drawn`, or the error in `problem`.
const DRAW: &str = "globalThis.drawn = ''; globalThis.problem = '';
(function () {
  const compiled = vegaLite.compile(JSON.parse(text)).spec;
  const view = new vega.View(vega.parse(compiled), { renderer: 'none' });
  const canvas = isPdf && PdfCanvas();
  const done = isPdf ? view.toCanvas(1, { externalContext: canvas }).then(() => canvas.page()) : view.toSVG();
  done.then((file) => { drawn = file; }, (error) => { problem = String(error); });
})();";

/// A format of figures.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FigureFormat {
    /// SVG.
    Svg,
    /// PDF of one page.
    Pdf,
}

impl FigureFormat {
    fn extension(self) -> &'static str {
        match self {
            Self::Svg => "svg",
            Self::Pdf => "pdf",
        }
    }
}

/// The reason why a figure cannot be written.
#[derive(Debug, thiserror::Error)]
pub enum SvgError {
    /// The interpreter cannot start, or does not accept Vega.
    #[error("cannot start the interpreter that draws figures: {0}")]
    Interpreter(ScriptError),
    /// Vega cannot draw a figure.
    #[error("cannot draw the figure {figure}: {cause}")]
    Drawing {
        /// The figure's file name.
        figure: String,
        /// The reason.
        cause: ScriptError,
    },
    /// A file cannot be written, or the directory cannot be created.
    #[error(transparent)]
    File(#[from] FileError),
}

/// A script that did not run to its end.
#[derive(Debug, thiserror::Error)]
pub enum ScriptError {
    /// The interpreter's error, or Vega's.
    #[error("{0}")]
    Thrown(String),
    /// It exceeded a limit.
    #[error("the drawing took too long or too much memory")]
    Limit,
    /// Its drawing is no page.
    #[error("the drawing is no page of PDF: {0}")]
    Page(serde_json::Error),
    /// It ended without a drawing.
    #[error("Vega drew nothing")]
    Nothing,
}

impl From<rquickjs::Error> for ScriptError {
    fn from(cause: rquickjs::Error) -> Self {
        Self::Thrown(cause.to_string())
    }
}

/// Writes each figure as `NAME.svg` or `NAME.pdf` into a directory, which is created. A name has the workload, the metric and the kind
/// of the figure, and depends neither on the figures before it nor on their number. Returns the paths.
///
/// # Errors
/// When a figure cannot be drawn or written.
pub fn write(
    figures: &[Figure],
    formats: &[FigureFormat],
    directory: &Path,
) -> Result<Vec<PathBuf>, SvgError> {
    fs::create_dir_all(directory).map_err(FileError::of("create", directory))?;
    let renderer = Renderer::start()?;
    let mut paths = Vec::new();
    let mut taken = BTreeSet::new();
    for figure in figures {
        let name = free(stable(&figure.id), &mut taken);
        for format in formats {
            let drawn = renderer.draw(figure, *format);
            let drawn = drawn.map_err(|cause| SvgError::Drawing {
                figure: name.clone(),
                cause,
            })?;
            let path = directory.join(format!("{name}.{}", format.extension()));
            vtax_files::write(&path, drawn.as_bytes())?;
            paths.push(path);
        }
    }
    Ok(paths)
}

/// A figure's name without its position in the report.
fn stable(id: &str) -> &str {
    match id.split_once('-') {
        Some((number, name)) if number.bytes().all(|byte| byte.is_ascii_digit()) => name,
        _ => id,
    }
}

/// A name that no earlier figure has.
fn free(name: &str, taken: &mut BTreeSet<String>) -> String {
    let numbered = (2..).map(|number: u32| format!("{name}-{number}"));
    let mut names = std::iter::once(name.to_owned()).chain(numbered);
    let free = names.find(|name| taken.insert(name.clone()));
    free.unwrap_or_else(|| name.to_owned())
}

/// Vega in an interpreter.
struct Renderer {
    runtime: Runtime,
    context: Context,
}

impl Renderer {
    fn start() -> Result<Self, SvgError> {
        let wrong = |cause: rquickjs::Error| SvgError::Interpreter(cause.into());
        let runtime = Runtime::new().map_err(wrong)?;
        runtime.set_memory_limit(MOST_MEMORY);
        runtime.set_max_stack_size(STACK);
        let context = Context::full(&runtime).map_err(wrong)?;
        for code in [BROWSER, VEGA, VEGA_LITE, pdf::CANVAS] {
            context
                .with(|scope| run(&scope, code))
                .map_err(SvgError::Interpreter)?;
        }
        Ok(Self { runtime, context })
    }

    /// Draws a figure, or returns Vega's error.
    fn draw(&self, figure: &Figure, format: FigureFormat) -> Result<String, ScriptError> {
        let deadline = Instant::now() + DRAWING_TIMEOUT;
        self.runtime
            .set_interrupt_handler(Some(Box::new(move || Instant::now() > deadline)));
        let mut spec = figure.spec.clone();
        for (key, value) in [("width", WIDTH.into()), ("background", "white".into())] {
            if let Some(slot) = spec.get_mut(key) {
                *slot = value;
            }
        }
        self.context.with(|scope| {
            let globals = scope.globals();
            globals.set("text", spec.to_string())?;
            globals.set("isPdf", format == FigureFormat::Pdf)?;
            run(&scope, DRAW)
        })?;
        // Vega draws in promises.
        while self.runtime.is_job_pending() {
            let ran = self.runtime.execute_pending_job();
            ran.map_err(|_| ScriptError::Limit)?;
        }
        let drawn = self.context.with(|scope| {
            let global = |name: &str| scope.globals().get::<_, String>(name);
            let (drawn, problem) = (global("drawn")?, global("problem")?);
            match drawn.is_empty() {
                false => Ok(drawn),
                true if problem.is_empty() => Err(ScriptError::Nothing),
                true => Err(ScriptError::Thrown(problem)),
            }
        })?;
        match format {
            FigureFormat::Svg => Ok(drawn),
            FigureFormat::Pdf => {
                let page: pdf::Page = serde_json::from_str(&drawn).map_err(ScriptError::Page)?;
                Ok(page.file())
            }
        }
    }
}

/// Runs code as a script, which unlike a module may define global names.
fn run(scope: &Ctx<'_>, code: &str) -> Result<(), ScriptError> {
    let mut options = EvalOptions::default();
    options.strict = false;
    let ended = scope.eval_with_options::<(), _>(code, options);
    let ended = ended.catch(scope);
    ended.map_err(|cause| ScriptError::Thrown(cause.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn figure(id: &str, label: &str) -> Figure {
        Figure::new(
            id,
            "A & B <title>",
            "",
            json!(120),
            json!({
                "data": {"values": [{"a": label, "b": 28.0}, {"a": "other", "b": 55.0}]},
                "mark": "bar",
                "encoding": {
                    "x": {"field": "a", "type": "nominal"},
                    "y": {"field": "b", "type": "quantitative"}
                }
            }),
        )
    }

    #[test]
    fn figures_are_files_of_svg_under_names_without_positions() {
        let folder = tempfile::tempdir().unwrap();
        let hostile = "</text><script>alert(1)</script>";
        let figures = [
            figure("01-tax", "first"),
            figure("02-redis-cpu-per-work", hostile),
            figure("03-redis-cpu-per-work", "third"),
        ];
        let paths = write(
            &figures,
            &[FigureFormat::Svg],
            &folder.path().join("new/folder"),
        )
        .unwrap();
        let names: Vec<_> = paths.iter().map(|path| path.file_name().unwrap()).collect();
        assert_eq!(
            names,
            [
                "tax.svg",
                "redis-cpu-per-work.svg",
                "redis-cpu-per-work-2.svg"
            ]
        );
        for path in paths {
            let svg = fs::read_to_string(path).unwrap();
            assert!(
                svg.starts_with("<svg xmlns=\"http://www.w3.org/2000/svg\""),
                "{svg}"
            );
            assert!(
                svg.contains("A &amp; B &lt;title") && svg.contains("sans-serif"),
                "{svg}"
            );
            for outside in [
                "<script",
                "<image",
                "<foreignObject",
                "class=\"vega-embed",
                "var(--",
                "url(http",
            ] {
                assert!(!svg.contains(outside), "{outside}: {svg}");
            }
        }
    }

    #[test]
    fn a_figure_as_pdf_has_the_shapes_and_texts_of_its_svg() {
        let folder = tempfile::tempdir().unwrap();
        let figures = [figure("01-tax", "3.2× µs → (a)")];
        let formats = [FigureFormat::Svg, FigureFormat::Pdf];
        let paths = write(&figures, &formats, folder.path()).unwrap();
        let names: Vec<_> = paths.iter().map(|path| path.file_name().unwrap()).collect();
        assert_eq!(names, ["tax.svg", "tax.pdf"]);
        let [svg, pdf] = [0, 1].map(|place| fs::read_to_string(&paths[place]).unwrap());
        assert!(
            pdf.starts_with("%PDF-1.4\n") && pdf.ends_with("%%EOF\n"),
            "{pdf}"
        );
        let texts = svg.matches("</text>").count();
        assert!(texts > 5, "{svg}");
        assert_eq!(pdf.matches(" Tj ET").count(), texts, "{pdf}");
        let bytes = |text: &[u8]| {
            text.iter()
                .map(|byte| format!("{byte:02x}"))
                .collect::<String>()
        };
        for text in [&b"A & B <title>"[..], b"3.2\xd7 \xb5s \x9b (a)"] {
            assert!(pdf.contains(&format!("<{}>", bytes(text))), "{pdf}");
        }
        let saved = pdf.lines().filter(|line| *line == "q").count();
        assert_eq!(
            pdf.lines().filter(|line| *line == "Q").count(),
            saved,
            "{pdf}"
        );
        // Two bars, of the first colour of Vega.
        assert_eq!(pdf.matches("0.298 0.471 0.659 rg").count(), 2, "{pdf}");
        let width = svg
            .split_once("width=\"")
            .unwrap()
            .1
            .split_once('"')
            .unwrap()
            .0;
        let width: f64 = width.parse().unwrap();
        assert!(
            pdf.contains(&format!("/MediaBox[0 0 {:.2} ", width * 0.75)),
            "{pdf}"
        );
    }

    #[test]
    fn symbols_of_a_pdf_are_in_the_plot_and_its_background_is_white() {
        let folder = tempfile::tempdir().unwrap();
        let mut points = figure("01-points", "one");
        points.spec["mark"] = json!({"type": "point", "filled": true, "color": "#123456"});
        points.spec["config"] = json!({"view": {"fill": "transparent"}});
        let paths = write(&[points], &[FigureFormat::Pdf], folder.path()).unwrap();
        let pdf = fs::read_to_string(&paths[0]).unwrap();
        let shapes: Vec<&str> = pdf.split("0.071 0.204 0.337 rg\n").skip(1).collect();
        assert_eq!(shapes.len(), 2, "{pdf}");
        for shape in shapes {
            let x: f64 = shape.split(' ').next().unwrap().parse().unwrap();
            assert!(x > 100.0, "a symbol is at {x}: {pdf}");
        }
        assert!(
            !pdf.contains("0 0 0 rg\n0 0 m") && pdf.contains("1 1 1 rg"),
            "{pdf}"
        );
    }

    #[test]
    fn what_vega_cannot_draw_is_an_error_that_names_the_figure() {
        let folder = tempfile::tempdir().unwrap();
        let mut broken = figure("01-broken", "first");
        broken.spec["mark"] = json!("no such mark");
        let error = write(&[broken], &[FigureFormat::Pdf], folder.path())
            .unwrap_err()
            .to_string();
        assert!(error.contains("the figure broken"), "{error}");
    }
}
