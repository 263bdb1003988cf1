// Curves of runs on top of each other: what each level of a ramp or a climb showed. A line has a colour,
// a dash and a sign of its own, so that they are distinct for every kind of vision.
import { badge, h, quantity, svg } from "./dom.js";

const WIDTH = 340;
const HEIGHT = 190;
const INSET = { left: 58, right: 12, top: 10, bottom: 26 };
/** Of each run, in their order: sign and dash. Colours are in the style sheet. */
const MARKS = [
  ["M-4 0a4 4 0 1 0 8 0a4 4 0 1 0 -8 0Z", ""], ["M-4 -4H4V4H-4Z", "7 3"], ["M0 -5L5 4H-5Z", "2 3"], ["M0 -5L5 0L0 5L-5 0Z", "9 3 2 3"],
  ["M0 5L5 -4H-5Z", "4 4"], ["M-5 -1H-1V-5H1V-1H5V1H1V5H-1V1H-5Z", "12 4"], ["M-4 -2H4V2H-4Z", "1 4"], ["M-2 -4H2V4H-2Z", "6 2 1 2"],
];

function ticks(low, high, log) {
  if (log) {
    const powers = [];
    for (let power = Math.ceil(Math.log10(low) - 1e-9); power <= Math.log10(high) + 1e-9; power += 1) { powers.push(10 ** power); }
    return powers.length > 1 ? powers : [low, high];
  }
  const step = 10 ** Math.floor(Math.log10((high - low) / 5));
  const wide = [1, 2, 5, 10].map((one) => one * step).find((one) => (high - low) / one <= 5);
  const all = [];
  for (let at = Math.ceil(low / wide) * wide; at <= high + wide * 1e-6; at += wide) { all.push(at); }
  return all;
}

function panel({ treatment, title, across, unit, lines }, names) {
  const xs = lines.flatMap((line) => line.points.map(([x]) => x));
  const ys = lines.flatMap((line) => line.points.flatMap(([, y, low, high]) => [y, low, high])).filter((y) => typeof y === "number");
  const [left, right] = [Math.min(...xs), Math.max(...xs)];
  const [low, high] = [Math.min(0, ...ys), Math.max(...ys, 0) || 1];
  const log = left > 0 && right / left > 40;
  const warp = log ? Math.log10 : (x) => x;
  const x = (value) => INSET.left + ((warp(value) - warp(left)) / (warp(right) - warp(left) || 1)) * (WIDTH - INSET.left - INSET.right);
  const y = (value) => HEIGHT - INSET.bottom - ((value - low) / (high - low || 1)) * (HEIGHT - INSET.top - INSET.bottom);
  const drawn = svg("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, class: "curves", role: "img", "aria-label": `${treatment}: ${title}, ${unit}, over ${across}; ${lines.map((line) => names[line.run]).join(", ")}` });
  for (const at of ticks(low, high, false)) {
    drawn.append(svg("line", { class: "grid", x1: INSET.left, x2: WIDTH - INSET.right, y1: y(at), y2: y(at) }),
      svg("text", { x: INSET.left - 6, y: y(at) + 4, "text-anchor": "end" }, quantity(at, unit === "%" ? "%" : unit.length < 3 ? unit : "")));
  }
  for (const at of ticks(left, right, log)) { drawn.append(svg("text", { x: x(at), y: HEIGHT - 8, "text-anchor": "middle" }, quantity(at, ""))); }
  for (const { run, points } of lines) {
    const [sign, dash] = MARKS[run % MARKS.length];
    const banded = points.filter(([, , down, up]) => typeof down === "number" && typeof up === "number");
    if (banded.length > 1) {
      const there = banded.map(([at, , , up]) => `${x(at)} ${y(up)}`);
      const back = banded.map(([at, , down]) => `${x(at)} ${y(down)}`).reverse();
      drawn.append(svg("path", { class: `band run${run}`, d: `M${[...there, ...back].join("L")}Z` }));
    }
    drawn.append(svg("path", { class: `line run${run}`, d: `M${points.map(([at, value]) => `${x(at)} ${y(value)}`).join("L")}`, "stroke-dasharray": dash }));
    for (const [at, value] of points) {
      drawn.append(svg("path", { class: `dot run${run}`, d: sign, transform: `translate(${x(at)} ${y(value)})` },
        svg("title", null, `${names[run]}: ${quantity(value, unit)} at ${quantity(at, "")} (${across})`)));
    }
  }
  const flags = [...new Set(lines.map((line) => line.source))].map(badge);
  return h("figure", null, h("figcaption", null, h("b", null, title), " ", h("span", { class: "unit" }, unit), " ", flags, h("span", { class: "detail" }, treatment)), drawn,
    h("p", { class: "unknown" }, across));
}

/** The curves of runs, one below the other for each treatment; nothing where no run has any. `title`: of one run that goes on. */
export function drawCurves(panels, names, title = null) {
  if (panels.length === 0) { return []; }
  const legend = names.length < 2 ? null : h("ul", { class: "legend" }, names.map((name, run) => {
    const key = svg("svg", { viewBox: "-14 -7 28 14", class: "curves key", "aria-hidden": "true" });
    const [sign, dash] = MARKS[run % MARKS.length];
    key.append(svg("path", { class: `line run${run}`, d: "M-14 0H14", "stroke-dasharray": dash }), svg("path", { class: `dot run${run}`, d: sign }));
    return h("li", null, key, name);
  }));
  const parts = [h("h2", null, title || (names.length > 1 ? "Curves on top of each other" : "Curves")), legend,
    h("div", { class: "panels" }, panels.map((one) => panel(one, names))),
    title ? null : h("p", { class: "facts" }, "Bands are 95 % intervals of the mean, where there are enough trials for one. A run that has no line in a panel has no such treatment or metric.")];
  return [h("section", null, parts)];
}
