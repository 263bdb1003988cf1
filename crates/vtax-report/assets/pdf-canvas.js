// SPDX-License-Identifier: Apache-2.0
// A context of a canvas that writes the content of a page of PDF (ISO 32000-1): what Vega's renderer calls, and no more.
// Texts are in Helvetica, which every reader of PDF has, in WinAnsiEncoding.
globalThis.PdfCanvas = function () {
  const n = (value) => String(Math.round(value * 1000) / 1000 || 0);
  const out = [], saved = [];
  let path = "", x = 0, y = 0, dashes = [];
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
  const special = { "−": 0x2d, "–": 0x96, "—": 0x97, "…": 0x85, "‘": 0x91, "’": 0x92, "“": 0x93, "”": 0x94, "€": 0x80, "μ": 0xb5 };
  const encoded = (text) => [...text].map((one) => {
    const code = one.codePointAt(0);
    return special[one] || (code >= 32 && code < 127) || (code > 160 && code < 256) ? special[one] || code : 0x3f;
  });
  const font = () => {
    const [, size] = /([0-9.]+)px/.exec(style.font) || [0, 11];
    return { name: /bold|[6-9]00 /.test(style.font) ? "F2" : "F1", size: Number(size) };
  };
  const length = (bytes, { name, size }) =>
    bytes.reduce((sum, byte) => sum + (table[name][byte - 32] || (byte === 0xb7 ? 28 : 56)), 0) * size / 100;
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
  const add = (operator, ...points) => { path += `${points.map(n).join(" ")} ${operator}\n`; [x, y] = points.slice(-2); };
  const matrix = (...values) => out.push(values.map(n).join(" ") + " cm");
  const methods = {
    save() { out.push("q"); saved.push([{ ...style }, dashes]); },
    restore() {
      if (!saved.length) return;
      out.push("Q");
      const [before, lines] = saved.pop();
      Object.assign(style, before);
      dashes = lines;
    },
    scale(a, b) { matrix(a, 0, 0, b, 0, 0); },
    translate(a, b) { matrix(1, 0, 0, 1, a, b); },
    rotate(angle) { const [s, c] = [Math.sin(angle), Math.cos(angle)]; matrix(c, s, -s, c, 0, 0); },
    transform: matrix,
    beginPath() { path = ""; },
    closePath() { path += "h\n"; },
    moveTo(a, b) { add("m", a, b); },
    lineTo(a, b) { add(path ? "l" : "m", a, b); },
    bezierCurveTo(...points) { add("c", ...points); },
    quadraticCurveTo(a, b, c, d) {
      add("c", x + (a - x) * 2 / 3, y + (b - y) * 2 / 3, c + (a - c) * 2 / 3, d + (b - d) * 2 / 3, c, d);
    },
    rect(a, b, w, h) { path += `${[a, b, w, h].map(n).join(" ")} re\n`; [x, y] = [a, b]; },
    arc(cx, cy, r, from, to, back) {
      let angle = to - from;
      const turn = 2 * Math.PI;
      if (Math.abs(angle) >= turn) angle = back ? -turn : turn;
      else if (back ? angle > 0 : angle < 0) angle += back ? -turn : turn;
      const at = (a, along) => [cx + r * (Math.cos(a) - along * Math.sin(a)), cy + r * (Math.sin(a) + along * Math.cos(a))];
      const count = Math.max(1, Math.ceil(Math.abs(angle) / (turn / 4) - 1e-9)), step = angle / count;
      const pull = 4 / 3 * Math.tan(step / 4);
      methods.lineTo(...at(from, 0));
      for (let part = 0; part < count; part++) {
        const a = from + part * step, b = a + step;
        add("c", ...at(a, pull), ...at(b, -pull), ...at(b, 0));
      }
    },
    fill() { if (path) paint(path, "f"); },
    stroke() { if (path) paint(path, "S"); },
    clip() { if (path) out.push(path + "W n"); path = ""; },
    // The first rectangle is the background of the whole page.
    fillRect(...of) { size ||= of.slice(2); paint(`${of.map(n).join(" ")} re\n`, "f"); },
    setLineDash(of) { dashes = [...of]; },
    measureText(text) { return { width: length(encoded(String(text)), font()) }; },
    fillText(text, a, b) {
      const bytes = encoded(String(text)), of = font(), long = length(bytes, of);
      const left = a - ({ center: long / 2, right: long, end: long }[style.textAlign] || 0);
      const hex = bytes.map((byte) => byte.toString(16).padStart(2, "0")).join("");
      paint(`BT /${of.name} ${n(of.size)} Tf 1 0 0 -1 ${n(left)} ${n(b)} Tm <${hex}> Tj `, "ET");
    },
  };
  // The drawing: its content, its opacities, which are the states G0, G1, …, and its size in pixels.
  methods.page = () => JSON.stringify({ content: out.join("\n") + "\n", alphas, width: size[0], height: size[1] });
  return Object.defineProperties(methods, Object.fromEntries(Object.keys(style).map((name) => [name, {
    get: () => style[name], set: (value) => { style[name] = value; },
  }])));
};
