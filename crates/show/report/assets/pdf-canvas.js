// SPDX-License-Identifier: Apache-2.0
// A context of a canvas that writes the content of a page of PDF (ISO 32000-1): what Vega's renderer calls, and no more.
// Texts are in Helvetica, which every reader of PDF has, in WinAnsiEncoding.
globalThis.PdfCanvas = function () {
  const n = (value) => String(Math.round(value * 1000) / 1000 || 0);
  const out = [], saved = [];
  let path = "", x = 0, y = 0, dashes = [];
  // The transformation from here to the page. It holds for a point when the point is added, as on a canvas.
  let at = [1, 0, 0, 1, 0, 0];
  const point = (a, b) => [at[0] * a + at[2] * b + at[4], at[1] * a + at[3] * b + at[5]];
  const style = {
    fillStyle: "#000", strokeStyle: "#000", lineWidth: 1, globalAlpha: 1, lineDashOffset: 0,
    lineCap: "butt", lineJoin: "miter", miterLimit: 10,
    font: "11px sans-serif", textAlign: "left", textBaseline: "alphabetic",
  };
  // Adobe's widths of the characters from space to ~, in hundredths of the size.
  const table = {
    F1: [28, 28, 36, 56, 56, 89, 67, 19, 33, 33, 39, 58, 28, 33, 28, 28, 56, 56, 56, 56, 56, 56, 56, 56, 56, 56, 28, 28, 58,
      58, 58, 56, 102, 67, 67, 72, 72, 67, 61, 78, 72, 28, 50, 67, 56, 83, 72, 78, 67, 78, 72, 67, 61, 72, 67, 94, 67, 67,
      61, 28, 28, 28, 47, 56, 33, 56, 56, 50, 56, 56, 28, 56, 56, 22, 22, 50, 22, 83, 56, 56, 56, 56, 33, 50, 28, 56, 50,
      72, 50, 50, 50, 33, 26, 33, 58],
    F2: [28, 33, 47, 56, 56, 89, 72, 24, 33, 33, 39, 58, 28, 33, 28, 28, 56, 56, 56, 56, 56, 56, 56, 56, 56, 56, 33, 33, 58,
      58, 58, 61, 98, 72, 72, 72, 72, 67, 61, 78, 72, 28, 56, 72, 61, 83, 72, 78, 67, 78, 72, 67, 61, 72, 67, 94, 67, 67,
      61, 33, 28, 33, 58, 56, 33, 56, 61, 56, 61, 56, 33, 61, 61, 28, 28, 56, 28, 89, 61, 61, 61, 61, 39, 56, 33, 61, 56,
      78, 56, 56, 50, 39, 28, 39, 58],
  };
  const special = { "−": 0x2d, "–": 0x96, "—": 0x97, "…": 0x85, "‘": 0x91, "’": 0x92, "“": 0x93, "”": 0x94, "€": 0x80, "μ": 0xb5,
    // The encoding has no arrows.
    "←": 0x8b, "→": 0x9b };
  const narrow = { 0xb7: 28, 0x8b: 33, 0x9b: 33 };
  const encoded = (text) => [...text].map((one) => {
    const code = one.codePointAt(0);
    return special[one] || (code >= 32 && code < 127) || (code > 160 && code < 256) ? special[one] || code : 0x3f;
  });
  const font = () => {
    const [, size] = /([0-9.]+)px/.exec(style.font) || [0, 11];
    return { name: /bold|[6-9]00 /.test(style.font) ? "F2" : "F1", size: Number(size) };
  };
  const length = (bytes, { name, size }) =>
    bytes.reduce((sum, byte) => sum + (table[name][byte - 32] || narrow[byte] || 56), 0) * size / 100;
  const color = (text, operator) => {
    const digits = { white: "#fff", black: "#000" }[text] || text;
    const found = /^#([0-9a-f]{3}|[0-9a-f]{6})$/i.exec(digits);
    const parts = found ? (found[1].length === 3 ? found[1].match(/./g).map((one) => one + one) : found[1].match(/../g))
      : ["0", "0", "0"];
    out.push(parts.map((part) => n(parseInt(part, 16) / 255)).join(" ") + " " + operator);
  };
  const alphas = [];
  let size;
  const paint = (shape, operator) => {
    const used = operator === "S" ? style.strokeStyle : style.fillStyle;
    if (!used || used === "none" || used === "transparent") return;
    if (!alphas.includes(style.globalAlpha)) alphas.push(style.globalAlpha);
    out.push(`/G${alphas.indexOf(style.globalAlpha)} gs`);
    if (operator === "S") {
      color(style.strokeStyle, "RG");
      const cap = ["butt", "round", "square"].indexOf(style.lineCap), join = ["miter", "round", "bevel"].indexOf(style.lineJoin);
      out.push(`${n(style.lineWidth)} w ${Math.max(cap, 0)} J ${Math.max(join, 0)} j ${n(style.miterLimit)} M`);
      out.push(`[${dashes.map(n).join(" ")}] ${n(style.lineDashOffset)} d`);
    } else {
      color(style.fillStyle, "rg");
    }
    out.push(shape + operator);
  };
  // Adds points of the page to the path.
  const add = (operator, ...points) => {
    path += `${points.flat().map(n).join(" ")} ${operator}\n`;
    [x, y] = points.at(-1);
  };
  const transform = (a, b, c, d, e, f) => {
    at = [at[0] * a + at[2] * b, at[1] * a + at[3] * b, at[0] * c + at[2] * d, at[1] * c + at[3] * d, ...point(e, f)];
  };
  const methods = {
    save() { out.push("q"); saved.push([{ ...style }, dashes, at]); },
    restore() {
      if (!saved.length) return;
      out.push("Q");
      let before;
      [before, dashes, at] = saved.pop();
      Object.assign(style, before);
    },
    scale(a, b) { transform(a, 0, 0, b, 0, 0); },
    translate(a, b) { transform(1, 0, 0, 1, a, b); },
    rotate(angle) { const [s, c] = [Math.sin(angle), Math.cos(angle)]; transform(c, s, -s, c, 0, 0); },
    transform,
    beginPath() { path = ""; },
    closePath() { path += "h\n"; },
    moveTo(a, b) { add("m", point(a, b)); },
    lineTo(a, b) { add(path ? "l" : "m", point(a, b)); },
    bezierCurveTo(a, b, c, d, e, f) { add("c", point(a, b), point(c, d), point(e, f)); },
    quadraticCurveTo(a, b, c, d) {
      const [pull, end] = [point(a, b), point(c, d)];
      const near = ([from, to]) => [from + (pull[0] - from) * 2 / 3, to + (pull[1] - to) * 2 / 3];
      add("c", near([x, y]), near(end), end);
    },
    rect(a, b, w, h) {
      add("m", point(a, b));
      for (const corner of [[a + w, b], [a + w, b + h], [a, b + h]]) add("l", point(...corner));
      path += "h\n";
    },
    arc(cx, cy, r, from, to, back) {
      let angle = to - from;
      const turn = 2 * Math.PI;
      if (Math.abs(angle) >= turn) angle = back ? -turn : turn;
      else if (back ? angle > 0 : angle < 0) angle += back ? -turn : turn;
      const on = (a, along) => [cx + r * (Math.cos(a) - along * Math.sin(a)), cy + r * (Math.sin(a) + along * Math.cos(a))];
      const count = Math.max(1, Math.ceil(Math.abs(angle) / (turn / 4) - 1e-9)), step = angle / count;
      const pull = 4 / 3 * Math.tan(step / 4);
      methods.lineTo(...on(from, 0));
      for (let part = 0; part < count; part++) {
        const a = from + part * step, b = a + step;
        add("c", point(...on(a, pull)), point(...on(b, -pull)), point(...on(b, 0)));
      }
    },
    fill() { if (path) paint(path, "f"); },
    stroke() { if (path) paint(path, "S"); },
    clip() { if (path) out.push(path + "W n"); path = ""; },
    fillRect(a, b, w, h) {
      // The first rectangle is the background of the whole page.
      size ||= [w, h];
      methods.beginPath();
      methods.rect(a, b, w, h);
      methods.fill();
    },
    setLineDash(of) { dashes = [...of]; },
    measureText(text) { return { width: length(encoded(String(text)), font()) }; },
    fillText(text, a, b) {
      const bytes = encoded(String(text)), of = font(), long = length(bytes, of);
      const left = a - ({ center: long / 2, right: long, end: long }[style.textAlign] || 0);
      const hex = bytes.map((byte) => byte.toString(16).padStart(2, "0")).join("");
      paint(`BT /${of.name} ${n(of.size)} Tf ${[at[0], at[1], -at[2], -at[3], ...point(left, b)].map(n).join(" ")} Tm <${hex}> Tj `, "ET");
    },
  };
  // The drawing: its content, its opacities, which are the states G0, G1, …, and its size in pixels.
  methods.page = () => JSON.stringify({ content: out.join("\n") + "\n", alphas, width: size[0], height: size[1] });
  return Object.defineProperties(methods, Object.fromEntries(Object.keys(style).map((name) => [name, {
    get: () => style[name], set: (value) => { style[name] = value; },
  }])));
};
