// Results: the list, one run (also while it goes on), and runs side by side.
import { clock, counted, get, h, say, span, trouble } from "./dom.js";

const encode = encodeURIComponent;
const NEW_RESULTS = 5000;
/** A trial's state, the sign that stands for it, and words. */
const STATES = {
  counts: ["●", "counts"], suspect: ["▲", "suspect"], failed: ["✕", "failed"], damaged: ["✕", "damaged"],
  running: ["◐", "running"], waiting: ["·", "not run yet"],
};

/** A report opens as a page of its own, in the theme of this one. */
function reportLink(dir, words) {
  const dark = document.documentElement.dataset.theme
    || (window.matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");
  return h("a", { href: `/report?dir=${encode(dir)}#${dark}`, target: "_blank", rel: "noopener" }, words);
}

function when(rfc3339) {
  const time = new Date(rfc3339);
  return Number.isNaN(time.getTime()) ? rfc3339 : `${time.toISOString().slice(0, 10)} ${clock(time.getTime() / 1000, false)}`;
}

function badge(source) {
  return source && source !== "measured" ? h("span", { class: "badge" }, source) : null;
}

/** The list. */
export function resultsView(view) {
  document.title = "Results · vtax";
  const chosen = new Set();
  const facts = h("p", { class: "facts" }, "Looking for results.");
  const find = h("input", { type: "search", placeholder: "Plan, platform, host, verdict", "aria-label": "Search results", autocomplete: "off", spellcheck: "false" });
  const compare = h("button", { type: "button", disabled: true, onclick: () => { location.hash = `#/compare/${[...chosen].map(encode).join("/")}`; } }, "Compare");
  const count = h("span", { class: "status", role: "status" });
  const list = h("ul", { class: "runs" });
  const remarks = h("div");
  let runs = [];
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
      h("p", { class: "title" }, h("a", { href: `#/run/${encode(run.dir)}` }, run.name), " ", badge(run.source),
        run.verdict ? h("span", { class: run.verdict === "different" ? "verdict different" : "verdict" }, run.verdict) : null),
      h("p", { class: "detail" }, [run.dir, when(run.started), run.place, run.profile, state, run.platforms.join(", "), run.host].filter(Boolean).join(" · ")),
      run.found.map((text) => h("p", { class: "found" }, text)),
      h("p", { class: "detail" }, run.report ? reportLink(run.dir, "Report") : "No report yet.", run.outdated ? " It is older than the last trial: vtax report makes it anew." : null)));
  }
  function show() {
    const words = find.value.toLowerCase().split(/\s+/).filter(Boolean);
    const text = (run) => JSON.stringify(Object.values(run)).toLowerCase();
    const found = runs.filter((run) => { const all = text(run); return words.every((word) => all.includes(word)); });
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
      // What is gone cannot be compared.
      for (const dir of chosen) { if (!runs.some((run) => run.dir === dir)) { choose(dir, false); } }
      say(facts, runs.length > 0
        ? `${counted(runs.length, "run")} below ${listing.root}, the last first.`
        : `No results below ${listing.root} yet. A run makes some: vtax run plans/network-tax.toml. Others are shown by vtax web --results DIR.`);
      tools.hidden = runs.length === 0;
      remarks.replaceChildren(...listing.problems.map((problem) => h("p", { class: "detail" }, problem)));
      show();
    } catch (error) {
      seen = "";
      say(facts, error.message);
    }
  }
  find.addEventListener("input", show);
  const tools = h("div", { class: "tools", hidden: true }, find, compare, count);
  view.append(h("h1", null, "Results"), facts, tools, list, remarks);
  load();
  const timer = setInterval(load, NEW_RESULTS);
  return () => clearInterval(timer);
}

/** One run, as it goes on. */
export function runView(view, about, encoded) {
  const dir = decodeURIComponent(encoded);
  document.title = `${dir} · vtax`;
  const title = h("h1", null, dir);
  const facts = h("p", { class: "facts" });
  const progress = h("p", { class: "progress" });
  const whole = h("progress", { max: 1, value: 0, "aria-label": "Trials that are done" });
  const links = h("p", { hidden: true }, reportLink(dir, "Report"));
  const now = h("section", { hidden: true });
  const matrix = h("section");
  const trust = h("section");
  const numbers = h("details", { class: "remarks" });
  let run = null;
  let source = null;
  let timer = 0;

  function label(trial) { return run.treatments[trial.treatment] ?? "unknown"; }
  function status() {
    if (!run) { return; }
    const of = (state) => run.trials.filter((trial) => trial.state === state).length;
    const done = run.trials.length - of("waiting") - of("running");
    const words = [`${done} of ${counted(run.trials.length, "trial")}`];
    for (const state of ["suspect", "failed", "damaged"]) { if (of(state) > 0) { words.push(`${of(state)} ${state}`); } }
    if (run.again > 0) { words.push(`${run.again} run again`); }
    if (run.state === "complete") { words.unshift("Complete"); }
    if (run.state === "running") { words.unshift("Running"); }
    if (run.state === "unfinished") { words.unshift("Unfinished"); }
    if (run.state !== "complete" && run.remaining_seconds !== null) { words.push(`about ${span(run.remaining_seconds)} of trials left`); }
    if (run.last !== null && run.state === "unfinished") { words.push(`the last trial ended ${span(Date.now() / 1000 - run.last)} ago`); }
    say(progress, words.join(" · "));
    whole.max = run.trials.length;
    whole.value = done;
    if (run.running) { say(now.querySelector(".since"), span(Date.now() / 1000 - run.running.since)); }
  }
  function show(next) {
    run = next;
    say(title, run.name);
    document.title = `${run.name} · vtax`;
    say(facts, [run.description, dir, when(run.started), run.place, run.profile].filter(Boolean).join(" · "));
    links.hidden = !run.report;
    now.hidden = !run.running;
    now.replaceChildren(...(run.running ? [h("h2", null, "Now"),
      h("p", null, h("b", null, run.running.treatment), `, trial ${run.running.index}, for `, h("span", { class: "since" })),
      run.running.log.length > 0 ? h("pre", null, run.running.log.join("\n")) : null].filter(Boolean) : []));
    const blocks = Math.max(0, ...run.trials.map((trial) => trial.block)) + 1;
    const cell = (treatment, block) => {
      const own = run.trials.map((trial, index) => ({ ...trial, index })).filter((trial) => trial.treatment === treatment && trial.block === block);
      return h("td", null, own.map((trial) => {
        const [sign, words] = STATES[trial.state];
        const why = [`trial ${trial.index}: ${words}`, ...(trial.reasons || [])].join("; ");
        return h("span", { class: `sign ${trial.state}`, role: "img", "aria-label": why, title: why }, sign);
      }));
    };
    matrix.replaceChildren(h("h2", null, "Trials by treatment and block"),
      h("p", { class: "legend" }, Object.entries(STATES).filter(([name]) => run.trials.some((trial) => trial.state === name))
        .map(([name, [sign, words]]) => h("span", null, h("span", { class: `sign ${name}`, "aria-hidden": "true" }, sign), ` ${words}`))),
      h("div", { class: "scroll" }, h("table", { class: "matrix" }, h("tbody", null, run.treatments.map((name, treatment) =>
        h("tr", null, h("th", { scope: "row" }, name), Array.from({ length: blocks }, (_, block) => cell(treatment, block))))))));
    const doubted = run.trials.map((trial, index) => ({ ...trial, index })).filter((trial) => (trial.reasons || []).length > 0);
    trust.replaceChildren(...(doubted.length > 0 ? [h("h2", null, "Not to be trusted"),
      h("ul", { class: "reasons" }, doubted.reverse().map((trial) => h("li", null, h("b", null, `${label(trial)}, trial ${trial.index}: `), `${trial.state}. ${trial.reasons.join("; ")}`)))] : []));
    const over = run.trials.map((trial, index) => ({ ...trial, index })).filter((trial) => trial.numbers && trial.numbers.length > 0).reverse();
    numbers.hidden = over.length === 0;
    const open = numbers.open;
    numbers.replaceChildren(h("summary", null, `The numbers of ${counted(over.length, "trial")}, the last first`),
      h("div", { class: "scroll" }, h("table", null, h("tbody", null, over.map((trial) => h("tr", null, h("th", { scope: "row" }, label(trial)),
        h("td", { class: "number" }, `trial ${trial.index}`), h("td", { class: "number" }, span(trial.seconds)),
        h("td", null, trial.numbers.map(([name, value, flag]) => h("div", null, `${name}: ${value} `, badge(flag))))))))));
    numbers.open = open;
    status();
  }
  async function open() {
    close();
    if (document.hidden) { return; }
    source = new EventSource(`/api/run?dir=${encode(dir)}`);
    source.onmessage = (event) => { notice.replaceChildren(); show(JSON.parse(event.data)); };
    source.onerror = async () => {
      if (source.readyState !== EventSource.CLOSED) { say(progress, "The connection is lost; trying again. Is vtax web still running?"); return; }
      timer = setTimeout(open, 5000);
      // An event source does not tell why it was refused.
      const response = await fetch(`/api/run?dir=${encode(dir)}`).catch(() => null);
      if (response && !response.ok) { notice.replaceChildren(trouble((await response.json()).error)); }
      else if (response) { await response.body.cancel(); }
    };
  }
  function close() {
    clearTimeout(timer);
    if (source) { source.close(); }
  }
  const notice = h("div");
  const seen = () => (document.hidden ? close() : open());
  document.addEventListener("visibilitychange", seen);
  const ticking = setInterval(status, 1000);
  view.append(h("p", { class: "back" }, h("a", { href: "#/results" }, "← All results")), title, facts, notice, progress, whole, links, now, trust, matrix, numbers);
  open();
  return () => { close(); clearInterval(ticking); document.removeEventListener("visibilitychange", seen); };
}

/** A ratio and its interval on a scale that all share, where 1 is the middle. */
function whisker(cell, reach) {
  const width = 96;
  const at = (ratio) => width / 2 + (Math.log(Math.min(Math.max(ratio, 1 / reach), reach)) / Math.log(reach)) * (width / 2 - 5);
  const make = (tag, attributes) => {
    const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
    for (const [name, value] of Object.entries(attributes)) { element.setAttribute(name, value); }
    return element;
  };
  const svg = make("svg", { class: "whisker", width, height: 14, "aria-hidden": "true" });
  svg.append(make("line", { class: "one", x1: width / 2, x2: width / 2, y1: 0, y2: 14 }));
  if (cell.interval) { svg.append(make("line", { x1: at(cell.interval[0]), x2: at(cell.interval[1]), y1: 7, y2: 7 })); }
  svg.append(make("circle", { class: cell.different ? "different" : "", cx: at(cell.ratio), cy: 7, r: 4 }));
  return svg;
}

/** Runs against the first of them. */
export function compareView(view, about, encoded) {
  document.title = "Comparison · vtax";
  const dirs = encoded.split("/").map(decodeURIComponent);
  const every = h("input", { type: "checkbox", onchange: () => load() });
  const body = h("div", null, h("p", { role: "status" }, "Reading the trials of these runs. The first time this may take some seconds."));
  let number = 0;

  async function load() {
    const own = ++number;
    try {
      const query = dirs.map((dir) => `dir=${encode(dir)}`).join("&");
      const compared = await get(`/api/compare?${query}${every.checked ? "&all=true" : ""}`);
      if (own === number) { show(compared); }
    } catch (error) {
      if (own === number) { body.replaceChildren(trouble(error.message)); }
    }
  }
  function show({ runs, rows, cautions, only_first: onlyFirst, only_here: onlyHere }) {
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
    body.replaceChildren(
      h("ul", { class: "key" }, runs.map(({ dir, name, started }, index) => h("li", null, h("b", null, `${letter(index)} `), h("a", { href: `#/run/${encode(dir)}` }, dir), ` ${name}, ${when(started)}`))),
      rows.length > 0
        ? h("div", { class: "scroll" }, h("table", null, h("thead", null, h("tr", null, h("th", { scope: "col" }, "Metric"), runs.slice(1).map((_, index) => h("th", { scope: "col" }, `${letter(index + 1)} / A`)))), h("tbody", null, out)))
        : h("p", { class: "empty" }, "No treatment is in both: these runs have nothing in common to compare."),
      h("p", { class: "facts" }, "● a difference is shown, ○ none is, which is no proof of equality. Ratios are to A; the line is the 95 % interval, and its middle mark is 1."),
      ...missing.map(([words, list]) => h("p", { class: "facts" }, `${words}: ${list.join(", ")}`)),
      ...cautions.map((caution) => h("p", { class: "facts" }, caution)));
  }
  view.append(h("p", { class: "back" }, h("a", { href: "#/results" }, "← All results")), h("h1", null, "Comparison"),
    h("div", { class: "tools" }, h("label", null, every, " every metric")), body);
  load();
  return () => { number += 1; };
}
