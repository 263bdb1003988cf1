// One chart over time, drawn by uPlot: lines, or areas on top of each other. Its legend shows the values
// under the pointer, else the last ones, and switches series off and on.
import { h, say, clock, zone } from "./dom.js";

const HEIGHT = { tall: 220, small: 110 };
/** The room in pixels for the right half of a label such as 12:34:56, whose tick may be at the end of the axis. */
const HALF_A_TIME = 32;

function ink(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

/** Each column on top of the one before it; what is not known adds nothing. */
function stacked(columns) {
  let below = null;
  return columns.map((column) => {
    below = column.map((value, index) => (value || 0) + (below ? below[index] : 0));
    return below;
  });
}

/**
 * title: what it shows. unit: after each value. series: name and color. stack: areas. show: a value in
 * words. unknown: the text where nothing is known. window: the times to show, from and to. zoom: called with times, or null to show the present.
 */
export function chart({ title, unit, series, stack, tall, show, unknown, window: shown, zoom }) {
  const values = series.map(() => h("span", { class: "value" }));
  const moment = h("span", { class: "moment" });
  const off = series.map(() => false);
  const items = series.map((one, index) => {
    const swatch = h("i", { class: "swatch", "aria-hidden": "true" });
    swatch.style.backgroundColor = one.color;
    const button = h("button", {
      type: "button", class: "series", "aria-pressed": "true", title: `Show or hide ${one.name}`, onclick: () => {
        off[index] = !off[index];
        button.setAttribute("aria-pressed", String(!off[index]));
        draw();
      },
    }, swatch, one.name + " ", values[index]);
    return h("li", null, button);
  });
  // A single value is beside the title; several need names.
  const legend = series.length === 1 ? h("p", { class: "unknown", hidden: true }, unknown) : h("ul", { class: "legend" }, items);
  const plot = h("div", { class: "plot", role: "img", "aria-label": `${title}, ${unit}` });
  const save = h("button", { type: "button", class: "quiet", title: "Save this graph as a picture", onclick: () => picture() }, "PNG");
  const place = h("figure", null, h("figcaption", null, h("b", null, title), " ", series.length === 1 ? values[0] : null, " ", h("span", { class: "unit" }, unit), moment, save), plot, legend);

  let data = { at: [], columns: series.map(() => []) };
  const height = tall ? HEIGHT.tall : HEIGHT.small;
  const axis = {
    stroke: () => ink("--soft"), grid: { stroke: () => ink("--rule"), width: 1 }, ticks: { show: false },
    font: "12px system-ui, sans-serif",
  };
  const options = {
    width: 300, height, legend: { show: false }, padding: [8, HALF_A_TIME, 0, 0],
    cursor: {
      y: false, points: { show: !stack }, sync: { key: "vtax" },
      drag: { x: true, y: false, setScale: false },
      bind: { dblclick: () => () => { zoom(null); return null; } },
    },
    scales: {
      x: { time: true, range: () => shown() },
      y: { range: (_, low, high) => [0, high > 0 ? high * 1.08 : 1] },
    },
    axes: [
      { ...axis, space: 70, size: 26, values: (_, splits, __, ___, step) => splits.map((at) => clock(at, step < 60)) },
      { ...axis, size: 52, values: (_, splits) => splits.map((value) => show(value, true)) },
    ],
    series: [{}, ...series.map((one, index) => ({
      stroke: () => (off[index] ? "transparent" : one.color), width: stack ? 1 : 1.5, fill: stack ? () => (off[index] ? "transparent" : one.color) : undefined, points: { show: false }, spanGaps: false,
    }))],
    bands: stack ? series.slice(1).map((_, index) => ({ series: [index + 2, index + 1] })) : [],
    hooks: {
      setCursor: [() => label()],
      setSelect: [(u) => {
        if (u.select.width > 4) {
          zoom([u.posToVal(u.select.left, "x"), u.posToVal(u.select.left + u.select.width, "x")]);
        }
        u.setSelect({ left: 0, width: 0, top: 0, height: 0 }, false);
      }],
    },
  };
  const u = new uPlot(options, [[], ...series.map(() => [])], plot);

  function label() {
    const under = u.cursor.idx;
    const hovered = under !== null && under !== undefined && u.cursor.left >= 0;
    const index = hovered ? under : data.at.length - 1;
    series.forEach((_, number) => say(values[number], index < 0 ? "–" : show(data.columns[number][index])));
    say(moment, hovered && index >= 0 ? ` at ${clock(data.at[index])} ${zone(data.at[index])}` : "");
  }

  function draw() {
    if (unknown) {
      const nothing = data.at.length > 0 && data.columns[0].every((value) => value === null);
      plot.hidden = nothing;
      legend.hidden = !nothing;
    }
    // A stage without any time needs no place in the legend.
    if (stack) { items.forEach((item, index) => { item.hidden = data.columns[index].every((value) => !value); }); }
    const columns = data.columns.map((column, index) => (off[index] ? column.map(() => null) : column));
    u.setData([data.at, ...(stack ? stacked(columns) : columns)], true);
    label();
  }

  function picture() {
    const from = u.ctx.canvas;
    const to = h("canvas", { width: from.width, height: from.height });
    const context = to.getContext("2d");
    context.fillStyle = ink("--paper");
    context.fillRect(0, 0, to.width, to.height);
    context.drawImage(from, 0, 0);
    to.toBlob((blob) => {
      const link = h("a", { href: URL.createObjectURL(blob), download: `vtax-${title.toLowerCase().replace(/[^a-z]+/g, "-")}.png` });
      link.click();
      URL.revokeObjectURL(link.href);
    });
  }

  const redraw = () => u.redraw(false, true);
  document.addEventListener("theme", redraw);
  const sizes = new ResizeObserver(() => {
    if (plot.clientWidth > 0) { u.setSize({ width: plot.clientWidth, height }); }
  });
  sizes.observe(plot);

  return {
    place,
    set(next) { data = next; draw(); },
    end() {
      document.removeEventListener("theme", redraw);
      sizes.disconnect();
      u.destroy();
    },
  };
}
