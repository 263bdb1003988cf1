// Runs: those that were started here and the one that goes on, and a plan to start another with. The plan
// is checked as one types, by what checks it in a terminal.
import { counted, get, h, post, say, span, trouble, when } from "./dom.js";
import { RUN_STATES } from "./run.js";

const encode = encodeURIComponent;
const TYPING = 250;
/** The host is checked when the plan has not changed for so long. */
const HOST = 1000;
const LOOK = 2000;

/** The runs that were started here. */
function startedHere(place) {
  const list = h("ul", { class: "runs" });
  const facts = h("p", { class: "facts" });
  let seen = "";
  async function load() {
    if (document.hidden) { return; }
    try {
      const { runs, elsewhere } = await get("/api/runs");
      const text = JSON.stringify([runs, elsewhere]);
      if (text === seen) { return; }
      seen = text;
      say(facts, runs.length === 0 ? `No run was started from this page${elsewhere.length === 0 ? ", and none is in progress" : ""}. Runs of terminals are under Results.` : "");
      list.replaceChildren(...runs.map((run) => h("li", null, h("div", null,
        h("p", { class: "title" }, h("a", { href: `#/run/${encode(run.dir)}` }, run.name), h("span", { class: "verdict state" }, RUN_STATES[run.state])),
        h("p", { class: "detail" }, [run.dir, when(run.started), run.place, run.profile, `${run.done} of ${counted(run.planned, "trial")}`,
          run.suspect ? `${run.suspect} suspect` : null, run.failed ? `${run.failed} failed` : null, run.running,
          run.remaining_seconds !== null && run.state !== "complete" ? `about ${span(run.remaining_seconds)} left` : null].filter(Boolean).join(" · "))))),
      ...elsewhere.map((path) => h("li", null, h("p", { class: "detail" }, `A run is in progress: it writes to ${path}, which is not below the results shown here.`))));
    } catch (error) {
      seen = "";
      say(facts, error.message);
    }
  }
  place.append(facts, list);
  load();
  const timer = setInterval(load, LOOK);
  return () => clearInterval(timer);
}

/** A field below its label. */
const field = (words, element) => h("label", { class: "field" }, words, element);

/** A name that no run has yet: the plan's and the time. */
function freeName(plan) {
  const now = new Date().toISOString().replace(/[-:]/g, "").replace("T", "-").slice(0, 15);
  return `${plan.replace(/[^A-Za-z0-9._-]+/g, "-").replace(/^[.-]+/, "")}-${now}`;
}

/** A plan to choose, to paste, to change, and to start. */
function starter(place) {
  const choice = h("select", { "aria-label": "Plan" }, h("option", { value: "" }, "A plan to paste"));
  const text = h("textarea", { class: "plan", rows: 16, spellcheck: "false", autocomplete: "off", autocapitalize: "off", "aria-label": "The plan, TOML", placeholder: "Choose a plan above, or paste one here: TOML, as docs/reference/plans.md says." });
  const quick = h("input", { type: "checkbox", onchange: () => check() });
  const at = h("input", { type: "text", value: "local", size: 14, "aria-label": "Place", list: "places", autocomplete: "off", spellcheck: "false", oninput: () => later() });
  const places = h("datalist", { id: "places" }, ["local", "testbed:kvm", "testbed:xen", "ssh:HOST"].map((value) => h("option", { value })));
  const jobs = h("input", { type: "number", min: 1, step: 1, class: "jobs", placeholder: "as many as fit", "aria-label": "Emulated hosts at the same time", oninput: () => later() });
  const beds = h("select", { "aria-label": "Settings of a testbed" }, h("option", { value: "" }, "Settings to paste"));
  const settings = h("textarea", { class: "plan", rows: 3, spellcheck: "false", autocomplete: "off", autocapitalize: "off", "aria-label": "Settings of the testbed, TOML", placeholder: "Settings of the testbed, TOML, as docs/why/testbed.md says; empty: the defaults.", oninput: () => later() });
  const testbed = h("fieldset", { hidden: true }, h("legend", null, "The testbed"),
    h("div", { class: "tools" }, field("Settings file", beds), field("Hosts at once", jobs)), field("Settings of the testbed, TOML", settings));
  const name = h("input", { type: "text", size: 34, "aria-label": "Name of the results directory", autocomplete: "off", spellcheck: "false" });
  const start = h("button", { type: "button", class: "primary", disabled: true, onclick: () => begin() }, "Start");
  const facts = h("p", { class: "facts" });
  const found = h("div", { role: "status", class: "found-of-plan" });
  const host = h("div", { role: "status", class: "found-of-host" });
  const notice = h("div");
  let number = 0;
  let timer = 0;
  let named = "";

  /** What is posted of the place. */
  function where() {
    const chosen = { at: at.value.trim(), quick: quick.checked };
    return testbed.hidden ? chosen : { ...chosen, settings: settings.value, jobs: jobs.value === "" ? null : Number(jobs.value) };
  }
  function later() {
    testbed.hidden = !at.value.trim().startsWith("testbed:");
    start.disabled = true;
    clearTimeout(timer);
    timer = setTimeout(check, TYPING);
  }
  /** Puts the cursor where a mistake is. */
  function go({ line, column }) {
    const lines = text.value.split("\n");
    const before = lines.slice(0, line - 1).reduce((sum, one) => sum + one.length + 1, 0);
    const offset = [...(lines[line - 1] || "")].slice(0, column - 1).join("").length;
    text.focus();
    text.setSelectionRange(before + offset, before + (lines[line - 1] || "").length);
    text.scrollTop = Math.max(0, (line - 4)) * parseFloat(getComputedStyle(text).lineHeight);
  }
  function mistakes(list) {
    return [h("p", null, h("b", null, counted(list.length, "mistake"))), h("ul", { class: "reasons mistakes" }, list.map((one) => h("li", null,
      h("button", { type: "button", class: "place", title: "Go there", onclick: () => go(one) }, `${one.line}:${one.column}`), ` ${one.message}`,
      one.help ? h("span", { class: "detail" }, one.help) : null)))];
  }
  function summary(plan, trials) {
    const least = plan.at_least ? "at least " : plan.may_stop_earlier ? "at most " : "";
    const blocks = new Map();
    plan.schedule.forEach(({ block, treatment }) => blocks.set(block, [...(blocks.get(block) || []), plan.treatments[treatment]]));
    const shown = [...blocks].slice(0, 50);
    return [
      h("p", null, h("b", null, plan.name), plan.description ? `: ${plan.description}` : ""),
      h("p", { class: "expected" }, `${counted(plan.treatments.length, "treatment")}, ${plan.may_stop_earlier ? "at most " : ""}${counted(trials, plan.at_least ? "climb" : "trial")}, ${least}about ${span(plan.expected_seconds)}${plan.at_least ? " and the time that guests take to be made" : ""}`),
      ...(plan.commands.length === 0 ? [] : [h("p", null, "It runs these commands as the user of this server:"),
        h("ul", { class: "commands" }, plan.commands.map((one) => h("li", null, h("code", null, one))))]),
      ...(plan.gates.length === 0 ? [] : [h("p", null, "It has these gates:"),
        h("ul", { class: "commands" }, plan.gates.map((one) => h("li", null, h("code", null, one))))]),
      h("details", { class: "remarks" }, h("summary", null, "The schedule, block by block"),
        h("ol", { class: "schedule" }, shown.map(([, trials]) => h("li", null, trials.join(" → ")))),
        blocks.size > shown.length || trials > plan.schedule.length ? h("p", { class: "detail" }, "and so on") : null),
    ];
  }
  /** Whether this host can run the plan, by the checks that a run makes before its first trial. */
  async function ask(own) {
    const where = at.value.trim();
    if (where !== "local") { host.replaceChildren(); return; }
    host.replaceChildren(h("p", { class: "facts" }, "Checking this host for the plan."));
    try {
      const { missing, notes } = await post("/api/plan/host", { text: text.value, quick: quick.checked });
      if (own !== number) { return; }
      const verdict = !missing ? [] : missing.length === 0 ? [h("p", null, "This host can run the plan.")]
        : [h("p", null, h("b", null, "This host cannot run the plan:")), h("ul", { class: "reasons" }, missing.map((one) => h("li", null, one)))];
      host.replaceChildren(...verdict,
      ...notes.map((one) => h("p", { class: "facts" }, one)));
    } catch (error) {
      if (own === number) { host.replaceChildren(trouble(error.message)); }
    }
  }
  async function check() {
    clearTimeout(timer);
    const own = ++number;
    host.replaceChildren();
    if (!text.value.trim()) {
      found.replaceChildren();
      start.disabled = true;
      return;
    }
    try {
      const checked = await post("/api/plan", { text: text.value, ...where() });
      if (own !== number) { return; }
      found.replaceChildren(...(checked.plan ? summary(checked.plan, checked.trials) : mistakes(checked.mistakes)), ...(checked.place ? [trouble(checked.place)] : []));
      start.disabled = !checked.plan || Boolean(checked.place);
      if (checked.plan && !checked.place) { timer = setTimeout(() => ask(own), HOST); }
      // A name that somebody gave stays.
      if (checked.plan && (!name.value || name.value === named)) { named = freeName(checked.plan.name); name.value = named; }
    } catch (error) {
      if (own === number) { found.replaceChildren(trouble(error.message)); }
    }
  }
  async function begin() {
    start.disabled = true;
    try {
      const dir = name.value.trim();
      await post("/api/runs", { text: text.value, dir, ...where() });
      location.hash = `#/run/${encode(dir)}`;
    } catch (error) {
      notice.replaceChildren(trouble(error.message));
      start.disabled = false;
    }
  }
  choice.addEventListener("change", async () => {
    if (!choice.value) { return; }
    try {
      text.value = (await get(`/api/plan?path=${encode(choice.value)}`)).text;
      notice.replaceChildren();
      check();
    } catch (error) {
      notice.replaceChildren(trouble(error.message));
    }
  });
  beds.addEventListener("change", async () => {
    if (!beds.value) { return; }
    try {
      settings.value = (await get(`/api/plan?path=${encode(beds.value)}`)).text;
      notice.replaceChildren();
      check();
    } catch (error) {
      notice.replaceChildren(trouble(error.message));
    }
  });
  text.addEventListener("input", later);
  place.append(h("h2", null, "Start a run"), facts,
    h("div", { class: "tools" }, field("Plan", choice), field("Place", at), h("label", null, quick, " quick: a first look"), places),
    field("The plan, TOML", text), testbed, found, host, h("div", { class: "tools" }, field("Name of the results directory", name), start), notice);
  get("/api/plans").then(({ root, plans, testbeds }) => {
    beds.append(...testbeds.map((path) => h("option", { value: path }, path)));
    choice.append(...plans.map((plan) => h("option", { value: plan.path }, plan.mistakes ? `${plan.path}: ${counted(plan.mistakes, "mistake")}` : `${plan.path}: ${plan.description || plan.name}`)));
    say(facts, plans.length > 0 ? "" : `No plans below ${root}. Paste one, or start vtax web where plans are, or with --plans DIR.`);
  }, (error) => say(facts, error.message));
  return () => { number += 1; clearTimeout(timer); };
}

/** Runs: what goes on, and another to start. */
export function runsView(view, about) {
  document.title = "Runs · vtax";
  const here = h("section");
  const another = h("section");
  view.append(h("h1", null, "Runs"), here, another);
  const ends = [startedHere(here)];
  if (about.may === "operate" && about.starts) { ends.push(starter(another)); }
  else {
    another.append(h("h2", null, "Start a run"), h("p", { class: "empty" }, about.starts
      ? "You can look. To start runs, enter the operator’s token, which vtax web printed when it started. " : "This server only shows: it was started with --watch-only. Start runs in a terminal: vtax run PLAN."),
    ...(about.starts ? [h("p", null, h("a", { href: "#/enter" }, "Enter the token"))] : []));
  }
  return () => ends.forEach((end) => end());
}
