// The view of a comparison.
import { get, h, trouble } from "./dom.js";
import { drawComparison } from "./comparison.js";

const encode = encodeURIComponent;

/** Runs against the first of them. */
export function compareView(view, about, encoded) {
  document.title = "Comparison · vtax";
  const dirs = encoded.split("/").map(decodeURIComponent);
  const every = h("input", { type: "checkbox", onchange: () => load() });
  const body = h("div", null, h("p", { role: "status" }, "Reading the trials of these runs. The first time this may take some seconds."));
  const file = h("a", { class: "button", download: "vtax-comparison.html" }, "One file to hand on");
  let number = 0;

  async function load() {
    const own = ++number;
    const query = dirs.map((dir) => `dir=${encode(dir)}`).join("&") + (every.checked ? "&all=true" : "");
    file.href = `/api/compare.html?${query}`;
    try {
      const compared = await get(`/api/compare?${query}`);
      if (own === number) { drawComparison(body, compared, (dir) => h("a", { href: `#/run/${encode(dir)}` }, dir)); }
    } catch (error) {
      if (own === number) { body.replaceChildren(trouble(error.message)); }
    }
  }
  view.append(h("p", { class: "back" }, h("a", { href: "#/results" }, "← All results")), h("h1", null, "Comparison"),
    h("div", { class: "tools" }, h("label", null, every, " every metric"), file), body);
  load();
  return () => { number += 1; };
}
