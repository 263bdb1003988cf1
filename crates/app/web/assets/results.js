// Results: the list.
import { badge, counted, get, h, pageLink, reportLink, say, when } from "./dom.js";

const encode = encodeURIComponent;
const NEW_RESULTS = 5000;
/** What can be searched; `platform:qemu` looks in one of these, a word alone in all. */
const FIELDS = {
  plan: (run) => [run.name, run.description, run.dir], platform: (run) => run.platforms, workload: (run) => run.workloads,
  host: (run) => [run.host, run.place], verdict: (run) => [run.verdict, run.source || ""], found: (run) => run.found,
  state: (run) => [run.state, run.profile, run.started], note: (run) => run.notes,
};

/** Whether every word is in a run. */
function has(run, words) {
  const within = (fields, word) => fields.some((field) => field(run).some((text) => text.toLowerCase().includes(word)));
  return words.every((word) => {
    const [, name, rest] = /^([a-z]+):(.+)$/.exec(word) || [];
    return Object.hasOwn(FIELDS, name || "") ? within([FIELDS[name]], rest) : within(Object.values(FIELDS), word);
  });
}

/** The list. */
export function resultsView(view) {
  document.title = "Results · vtax";
  const chosen = new Set();
  const facts = h("p", { class: "facts" }, "Looking for results.");
  const find = h("input", { type: "search", placeholder: "Plan, platform, host, verdict, note", title: `A word, or one of a field: ${Object.keys(FIELDS).map((name) => `${name}:`).join(" ")}`, "aria-label": "Search results", autocomplete: "off", spellcheck: "false" });
  const compare = h("button", { type: "button", disabled: true, onclick: () => { location.hash = `#/compare/${[...chosen].map(encode).join("/")}`; } }, "Compare");
  const count = h("span", { class: "status", role: "status" });
  const list = h("ul", { class: "runs" });
  const remarks = h("div");
  let runs = [];
  /** How many runs each plan has. */
  const ofPlan = new Map();
  let seen = "";

  function choose(dir, on) {
    if (on) { chosen.add(dir); } else { chosen.delete(dir); }
    compare.disabled = chosen.size < 2 || chosen.size > 8;
    say(compare, chosen.size > 1 ? `Compare ${chosen.size} runs` : "Compare");
    compare.title = "Choose two to eight runs; the others are compared with the first chosen";
  }
  function item(run) {
    const box = h("input", { type: "checkbox", "aria-label": `Compare ${run.name}, ${run.dir}`, onchange: () => choose(run.dir, box.checked) });
    box.checked = chosen.has(run.dir);
    const state = run.state === "complete" ? counted(run.planned, "trial") : `${run.state}: ${run.done} of ${counted(run.planned, "trial")}`;
    return h("li", null, box, h("div", null,
      h("p", { class: "title" }, h("a", { href: `#/run/${encode(run.dir)}` }, run.dir), run.name === run.dir ? null : h("span", { class: "plan-name" }, ` of ${run.name}`), " ", badge(run.source),
        run.density ? h("span", { class: "badge plain" }, "density") : null,
        run.verdict ? h("span", { class: run.verdict === "different" ? "verdict different" : "verdict" }, run.verdict) : null),
      h("p", { class: "detail" }, [when(run.started), run.place, run.profile, state, run.platforms.join(", "), run.host].filter(Boolean).join(" · ")),
      run.found.map((text) => h("p", { class: "found" }, text)),
      run.notes.map((text) => h("p", { class: "found noted" }, text)),
      h("p", { class: "detail" }, run.report ? reportLink(run.dir, "Report") : "No report yet.", run.outdated ? " It is older than the last trial: vtax report makes it anew." : null,
        !run.density && ofPlan.get(run.name) > 1 ? [" · ", pageLink(`/api/plan-history.html?plan=${encode(run.name)}`, `History of ${counted(ofPlan.get(run.name), "run")}`)] : null)));
  }
  function show() {
    const words = find.value.toLowerCase().split(/\s+/).filter(Boolean);
    const found = runs.filter((run) => has(run, words));
    const focused = list.contains(document.activeElement) ? document.activeElement.getAttribute("aria-label") || document.activeElement.getAttribute("href") : null;
    list.replaceChildren(...found.map(item));
    if (focused) {
      [...list.querySelectorAll("a, input")].find((one) => one.getAttribute("aria-label") === focused || one.getAttribute("href") === focused)?.focus({ preventScroll: true });
    }
    say(count, words.length > 0 ? `${found.length} of ${runs.length}` : "");
  }
  async function load() {
    if (document.hidden) { return; }
    try {
      const listing = await get("/api/results");
      const text = JSON.stringify(listing);
      if (text === seen) { return; }
      seen = text;
      runs = listing.runs;
      ofPlan.clear();
      for (const { name, density } of runs) { if (!density) { ofPlan.set(name, (ofPlan.get(name) || 0) + 1); } }
      // What is gone cannot be compared.
      for (const dir of chosen) { if (!runs.some((run) => run.dir === dir)) { choose(dir, false); } }
      say(facts, runs.length > 0
        ? `${counted(runs.length, "run")} below ${listing.root}, the last first.`
        : `No results below ${listing.root} yet. Start a run under Runs, or in a terminal: vtax run plans/network-tax.toml. Others are shown by vtax web --results DIR.`);
      tools.hidden = runs.length === 0;
      remarks.replaceChildren(...listing.problems.map((problem) => h("p", { class: "detail" }, problem)));
      show();
    } catch (error) {
      seen = "";
      say(facts, error.message);
    }
  }
  find.addEventListener("input", show);
  const tools = h("div", { class: "tools", hidden: true }, h("label", { class: "find" }, "Search ", find), compare, count);
  const atlas = h("p", { class: "detail" }, h("a", { href: "/api/atlas.html", target: "_blank", rel: "noopener" }, "The papers’ figures beside ours"));
  view.append(h("h1", null, "Results"), facts, tools, list, atlas, remarks);
  load();
  const timer = setInterval(load, NEW_RESULTS);
  return () => clearInterval(timer);
}

