// Runs against the first of them. Also the whole of a comparison that is handed on as a file.
import { badge, h, svg, when } from "./dom.js";
import { drawCurves } from "./curves.js";

const WHISKER = 160;

/** The place of a ratio on the logarithmic scale that all rows share, where 1 is the middle. */
const across = (ratio, reach) => WHISKER / 2 + (Math.log(Math.min(Math.max(ratio, 1 / reach), reach)) / Math.log(reach)) * (WHISKER / 2 - 16);

/** The axis of that scale: its ends and 1. */
function axis(reach) {
  const tick = (ratio) => svg("text", { x: across(ratio, reach), y: 10, "text-anchor": "middle" }, `${Number(ratio.toPrecision(2))}×`);
  return svg("svg", { class: "whisker", width: WHISKER, height: 14, role: "img", "aria-label": `logarithmic scale from ${Number((1 / reach).toPrecision(2))} to ${Number(reach.toPrecision(2))}` },
    [1 / reach, 1, reach].map(tick));
}

/** A ratio and its interval on that scale. */
function whisker(cell, reach) {
  const width = WHISKER;
  const at = (ratio) => across(ratio, reach);
  const drawn = svg("svg", { class: "whisker", width, height: 14, "aria-hidden": "true" });
  drawn.append(svg("line", { class: "one", x1: width / 2, x2: width / 2, y1: 0, y2: 14 }));
  if (cell.interval) { drawn.append(svg("line", { x1: at(cell.interval[0]), x2: at(cell.interval[1]), y1: 7, y2: 7 })); }
  drawn.append(svg("circle", { class: cell.different ? "different" : "", cx: at(cell.ratio), cy: 7, r: 4 }));
  return drawn;
}

/** Draws a comparison. `link` makes of a run's directory what leads there, where anything does. */
export function drawComparison(body, { runs, rows, cautions, panels, notes, only_first: onlyFirst, only_here: onlyHere }, link = (dir) => h("span", null, dir)) {
  const letter = (index) => String.fromCharCode(65 + index);
  const ratios = rows.flatMap((row) => row.cells).filter((cell) => cell && cell.ratio > 0)
    .flatMap((cell) => [cell.ratio, ...(cell.interval || [])]).filter((value) => value > 0);
  const reach = Math.min(16, Math.max(1.1, ...ratios.map((value) => Math.max(value, 1 / value))));
  const cell = (one) => (one
    ? h("td", { class: "ratio" }, one.ratio > 0 ? whisker(one, reach) : null,
      h("span", { class: one.different ? "different" : "", title: one.verdict }, one.different ? "● " : one.words ? "○ " : "", one.words || one.note || "–"), " ", badge(one.source),
      one.repetitions ? h("span", { class: "detail" }, one.repetitions) : null)
    : h("td", { title: "not in both" }, "–"));
  const out = [];
  let heading = null;
  for (const row of rows) {
    if (row.treatment !== heading) {
      heading = row.treatment;
      out.push(h("tr", { class: "group-row" }, h("th", { colspan: row.cells.length + 1, scope: "colgroup" }, heading)));
    }
    out.push(h("tr", null, h("th", { scope: "row" }, row.title, h("span", { class: "detail" }, row.metric)), row.cells.map(cell)));
}
  const missing = runs.slice(1).flatMap((_, index) => [
    [`not in ${letter(index + 1)}`, onlyFirst[index]], [`only in ${letter(index + 1)}`, onlyHere[index]],
  ]).filter(([, list]) => list.length > 0);
  const verdicts = runs.slice(1).map((_, index) => {
    const cells = rows.map((row) => row.cells[index]).filter(Boolean);
    const different = cells.filter((one) => one.different).length;
    return h("p", null, h("b", null, `${letter(index + 1)} against A: `), different === 0 ? `no difference is shown in ${cells.length} comparisons.` : `${different} of ${cells.length} comparisons differ.`);
  });
  body.replaceChildren(
    ...(rows.length > 0 ? verdicts : []),
    h("ul", { class: "key" }, runs.map(({ dir, name, started }, index) => h("li", null, h("b", null, `${letter(index)} `), link(dir), ` ${name}, ${when(started)}`, (notes[index] || []).map((note) => h("span", { class: "detail noted" }, note.trial === undefined ? note.text : `Trial ${note.trial}: ${note.text}`))))),
    rows.length > 0
      ? h("div", { class: "scroll" }, h("table", null, h("thead", null, h("tr", null, h("th", { scope: "col" }, "Metric"), runs.slice(1).map((_, index) => h("th", { scope: "col" }, `${letter(index + 1)} / A`, ratios.length > 0 ? axis(reach) : null)))), h("tbody", null, out)))
      : h("p", { class: "empty" }, "No treatment is in both: these runs have nothing in common to compare."),
    h("p", { class: "facts" }, "● a difference is shown, ○ none is, which is no proof of equality. Ratios are to A; the line is the 95 % interval on the logarithmic axis above the column."),
    ...drawCurves(panels, runs.map(({ name }, index) => `${letter(index)} ${name}`)),
    ...missing.map(([words, list]) => h("p", { class: "facts" }, `${words}: ${list.join(", ")}`)),
    ...cautions.map((caution) => h("p", { class: "facts" }, caution)));
}
