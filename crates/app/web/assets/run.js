// One run, also while it goes on: followed from its directory and from its messages, and paused,
// to go on and to end.
import { badge, counted, get, h, post, quantity, reportLink, say, span, trouble, when } from "./dom.js";
import { drawCurves } from "./curves.js";
import { metersView } from "./meters.js";

const encode = encodeURIComponent;
/** A trial's state, the sign that stands for it, and words. */
const STATES = {
  counts: ["●", "counts"], suspect: ["▲", "suspect"], failed: ["✕", "failed"], damaged: ["✕", "damaged"],
  running: ["◐", "running"], waiting: ["·", "not run yet"],
};
/** A run's state in words. */
export const RUN_STATES = {
  complete: "Complete", running: "Running", pausing: "Pausing after this trial", stopping: "Ending: it puts the host back",
  paused: "Paused", cancelled: "Cancelled", unfinished: "Unfinished",
};
const GOES_ON = ["running", "pausing", "stopping"];

/** What a trial saw at each level so far: a climb's populations, a ramp's loads. */
function levels({ treatment, points }) {
  const names = [...new Set(points.flatMap((point) => Object.keys(point.readings)))];
  const panels = names.map((name) => {
    const there = points.filter((point) => point.readings[name]);
    return { treatment, title: name, across: points[0].across, unit: there[0].readings[name].unit,
      lines: [{ run: 0, points: there.map((point) => [point.level, point.readings[name].value]) }] };
  });
  return drawCurves(panels, ["this trial"], `Level by level: ${points[0].across}; ${quantity(points[points.length - 1].level, "")} of ${quantity(points[0].of, "")} so far`);
}

/** What a trial is judged by, and how that went so far. */
function objective({ objective: text, points }) {
  const at = (kept) => points.filter((point) => point.kept === kept).map((point) => quantity(point.level, "")).join(", ");
  const words = [at(true) && `held at ${at(true)}`, at(false) && `did not hold at ${at(false)}`].filter(Boolean);
  return h("p", { class: "objective" }, h("b", null, "Objective "), text, `: ${words.length > 0 ? words.join("; ") : "not judged yet"}.`);
}

/** What people noted of a run, and a field to note more. */
function notesOf(dir, about) {
  const list = h("ul", { class: "reasons notes" });
  const notice = h("div");
  const field = h("textarea", { rows: 2, maxlength: 4000 });
  const trial = h("input", { type: "number", min: 0, step: 1, class: "trial", placeholder: "all", "aria-label": "The trial that the note is on; empty: the whole run" });
  async function load() {
    try {
      const notes = await get(`/api/notes?dir=${encode(dir)}`);
      list.replaceChildren(...notes.map((note) => h("li", null, h("span", { class: "detail" }, `${when(note.at)} `), note.trial === undefined ? note.text : `Trial ${note.trial}: ${note.text}`)));
      form.hidden = about.may !== "operate";
      section.hidden = notes.length === 0 && form.hidden;
    } catch {
      // There is no directory yet that notes could be in.
      section.hidden = true;
    }
  }
  const form = h("form", {
    onsubmit: async (event) => {
      event.preventDefault();
      try {
        await post("/api/notes", { dir, text: field.value, trial: trial.value === "" ? null : Number(trial.value) });
        field.value = "";
        trial.value = "";
        notice.replaceChildren();
        load();
      } catch (error) {
        notice.replaceChildren(trouble(error.message));
      }
    },
  }, h("label", { class: "field" }, "A note on this run or one of its trials, which stays with the results", field), h("div", { class: "tools" }, h("label", null, "on trial ", trial), h("button", { type: "submit" }, "Note")));
  const section = h("section", { hidden: true }, h("h2", null, "Notes"), list, form, notice);
  load();
  return section;
}

/** Verdicts, then a table for each workload: the numbers of its treatments, each with its tax. */
function drawFindings({ verdicts, workloads }) {
  const cell = (one) => (one === null ? h("td", null, "–") : h("td", { class: "number" }, one.value, " ", badge(one.source),
    one.tax ? h("span", { class: one.different ? "detail different" : "detail" }, `${one.different ? "●" : "○"} ${one.tax}`) : null));
  return [
    ...(verdicts.length > 0 ? [h("h2", null, "Verdicts"), ...verdicts.map((one) => h("p", { class: one.different ? "verdict different" : "verdict" }, h("b", null, one.title), `, ${one.text}`))] : []),
    ...workloads.map(({ name, treatments, rows }) => h("section", null, h("h2", null, name), h("div", { class: "scroll" }, h("table", null,
      h("thead", null, h("tr", null, h("th", { scope: "col" }, "Metric"), treatments.map((words) => h("th", { scope: "col", class: "number" }, words)))),
      h("tbody", null, rows.map((row) => h("tr", null, h("th", { scope: "row" }, row.title), row.cells.map(cell)))))))),
    ...(workloads.length > 0 ? [h("p", { class: "facts" }, "Beside a number is its tax, the ratio to the baseline: ● a difference is shown, ○ none is.")] : []),
  ];
}

/** One run, as it goes on. */
export function runView(view, about, encoded) {
  const dir = decodeURIComponent(encoded);
  document.title = `${dir} · vtax`;
  const title = h("h1", null, dir);
  const facts = h("p", { class: "facts" });
  const progress = h("p", { class: "progress", role: "status" }, "Reading this run.");
  const whole = h("progress", { max: 1, value: 0, "aria-label": "Trials that are done" });
  const links = h("p", { hidden: true }, reportLink(dir, "Report"));
  const controls = h("div", { class: "tools", role: "group", "aria-label": "This run" });
  const ended = h("section", { hidden: true });
  const heard = h("details", { class: "remarks", hidden: true });
  const drawn = h("div");
  const found = h("div");
  let shownCurves = "";
  let shownFindings = "";
  const now = h("section", { hidden: true });
  const sampled = h("section", { hidden: true, "aria-label": "What is sampled of this trial" });
  const meters = metersView(sampled);
  const rising = h("div");
  const matrix = h("section");
  const trust = h("section");
  const numbers = h("details", { class: "remarks", hidden: true });
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
    words.unshift(RUN_STATES[run.state]);
    if (run.state !== "complete" && run.remaining_seconds !== null) { words.push(`about ${span(run.remaining_seconds)} of trials left`); }
    if (run.last !== null && !GOES_ON.includes(run.state) && run.state !== "complete") { words.push(`the last trial ended ${span(Date.now() / 1000 - run.last)} ago`); }
    say(progress, words.join(" · "));
    whole.max = run.trials.length;
    whole.value = done;
    if (run.running) { say(now.querySelector(".since"), span(Date.now() / 1000 - run.running.since)); }
  }
  async function ask(what, button) {
    button.disabled = true;
    try {
      await post("/api/run", { dir, ask: what });
      notice.replaceChildren();
      // A run that starts again is seen at once.
      if (what === "resume") { open(); }
    } catch (error) {
      notice.replaceChildren(trouble(error.message));
      button.disabled = false;
    }
  }
  function control() {
    const button = (words, what, title) => {
      const made = h("button", { type: "button", title, "data-ask": what, onclick: () => ask(what, made) }, words);
      return made;
    };
    const all = [];
    if (about.may === "operate" && run.controlled) {
      if (run.state === "running") { all.push(button("Pause after this trial", "pause", "It ends in order when the trial of now is over; the host is put back meanwhile")); }
      if (run.state === "pausing") { all.push(button("Do not pause", "proceed", "It goes on after this trial")); }
      if (run.state === "running" || run.state === "pausing") { all.push(button("Cancel", "cancel", "It ends now, in order: the trial of now is lost, the others stay")); }
    }
    if (about.may === "operate" && about.starts && run.resumable) { all.push(button("Resume", "resume", "The same plan goes on with the trials that are missing")); }
    const same = controls.dataset.of === JSON.stringify([run.state, run.controlled, run.resumable]);
    controls.dataset.of = JSON.stringify([run.state, run.controlled, run.resumable]);
    if (!same) { controls.replaceChildren(...all); }
    controls.hidden = all.length === 0;
  }
  /** The verdict on each platform and the headline numbers of a finished run. */
  async function findings() {
    const key = run.trials.filter((trial) => trial.seconds !== undefined).length;
    if (shownFindings === key || key === 0) { return; }
    shownFindings = key;
    try {
      found.replaceChildren(...drawFindings(await get(`/api/findings?dir=${encode(dir)}`)));
    } catch {
      // A run that is not written here yet has none.
      found.replaceChildren();
    }
  }
  async function curves() {
    const key = run.trials.filter((trial) => trial.seconds !== undefined).length;
    if (shownCurves === key || key === 0) { return; }
    shownCurves = key;
    try {
      const panels = await get(`/api/curves?dir=${encode(dir)}`);
      drawn.replaceChildren(...drawCurves(panels, [run.name]));
    } catch {
      // A run that is not written here yet has none.
      drawn.replaceChildren();
    }
  }
  function show(next) {
    run = next;
    control();
    ended.hidden = run.messages.length === 0;
    ended.replaceChildren(h("h2", null, "Its last messages"), h("pre", null, run.messages.join("\n")));
    heard.hidden = run.notes.length === 0;
    heard.replaceChildren(h("summary", null, counted(run.notes.length, "remark") + " of the run"), h("ul", null, run.notes.map((text) => h("li", null, text))));
    if (run.state === "complete" || run.density) { curves(); }
    if (run.state === "complete" && !run.density) { findings(); }
    say(title, run.name);
    document.title = `${run.name} · vtax`;
    say(facts, [run.description, dir, when(run.started), run.place, run.profile].filter(Boolean).join(" · "));
    links.hidden = !run.report;
    now.hidden = !run.running;
    const beside = run.trials.filter((trial) => trial.state === "running").length - 1;
    now.replaceChildren(...(run.running ? [h("h2", null, "Now"),
      h("p", null, h("b", null, run.running.treatment), `, trial ${run.running.index}, for `, h("span", { class: "since" }), run.running.phase ? `: ${run.running.phase}` : ""),
      beside > 0 ? h("p", { class: "facts" }, `${counted(beside, "more trial")} under way beside it: ◐ below.`) : null,
      run.place === "local" ? h("p", { class: "facts" }, "What it costs this host meanwhile is under ", h("a", { href: "#/host" }, "Host"), ".") : null,
      run.running.objective ? objective(run.running) : null,
      run.running.log.length > 0 ? h("pre", null, run.running.log.join("\n")) : null].filter(Boolean) : []));
    meters.show(run);
    rising.replaceChildren(...(run.running && run.running.points.length > 0 ? levels(run.running) : []));
    const blocks = Math.max(0, ...run.trials.map((trial) => trial.block)) + 1;
    const cell = (treatment, block) => {
      const own = run.trials.map((trial, index) => ({ ...trial, index })).filter((trial) => trial.treatment === treatment && trial.block === block);
      return h("td", null, own.map((trial) => {
        const [sign, words] = STATES[trial.state];
        const why = [`trial ${trial.index}: ${words}`, ...(trial.reasons || []), ...(trial.disturbed || []).map((one) => `disturbed: ${one}`)].join("; ");
        return h("span", { class: `sign ${trial.state}`, role: "img", "aria-label": why, title: why }, sign);
      }));
    };
    matrix.replaceChildren(h("h2", null, "Trials by treatment and block"),
      h("p", { class: "legend" }, Object.entries(STATES).filter(([name]) => run.trials.some((trial) => trial.state === name))
        .map(([name, [sign, words]]) => h("span", null, h("span", { class: `sign ${name}`, "aria-hidden": "true" }, sign), ` ${words}`))),
      h("div", { class: "scroll" }, h("table", { class: "matrix" }, h("tbody", null, run.treatments.map((name, treatment) =>
        h("tr", null, h("th", { scope: "row" }, name), Array.from({ length: blocks }, (_, block) => cell(treatment, block))))))));
    const doubted = run.trials.map((trial, index) => ({ ...trial, index })).filter((trial) => (trial.reasons || []).length > 0);
    const disturbed = run.trials.map((trial, index) => ({ ...trial, index })).filter((trial) => (trial.disturbed || []).length > 0);
    trust.replaceChildren(...(doubted.length > 0 ? [h("h2", null, "Not to be trusted"),
      h("ul", { class: "reasons" }, doubted.reverse().map((trial) => h("li", null, h("b", null, `${label(trial)}, trial ${trial.index}: `), `${trial.state}. ${trial.reasons.join("; ")}`)))] : []),
      ...(disturbed.length > 0 ? [h("h2", null, "Disturbed, and counted"),
        h("ul", { class: "reasons" }, disturbed.reverse().map((trial) => h("li", null, h("b", null, `${label(trial)}, trial ${trial.index}: `), trial.disturbed.join("; "))))] : []));
    const over = run.trials.map((trial, index) => ({ ...trial, index })).filter((trial) => (trial.numbers && trial.numbers.length > 0) || trial.headline).reverse();
    numbers.hidden = over.length === 0;
    const open = numbers.open;
    numbers.replaceChildren(h("summary", null, `The numbers of ${counted(over.length, "trial")}, the last first`),
      h("div", { class: "scroll" }, h("table", null, h("tbody", null, over.map((trial) => h("tr", null, h("th", { scope: "row" }, label(trial)),
        h("td", { class: "number" }, `trial ${trial.index}`), h("td", { class: "number" }, span(trial.seconds)),
        h("td", null, (trial.numbers || []).map(([name, value, flag]) => h("div", null, `${name}: ${value} `, badge(flag))), trial.headline || null)))))));
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
      // An event source does not report why it was refused.
      const response = await fetch(`/api/run?dir=${encode(dir)}`).catch(() => null);
      if (response && response.status === 401) { document.dispatchEvent(new Event("stranger")); }
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
  view.append(h("p", { class: "back" }, h("a", { href: "#/results" }, "← All results")), title, facts, notice, progress, whole, controls, links, found, now, sampled, rising, ended, trust, matrix, drawn, numbers, heard, notesOf(dir, about));
  open();
  return () => { close(); meters.end(); clearInterval(ticking); document.removeEventListener("visibilitychange", seen); };
}
