// The live host and one guest of it: graphs of the last minutes, hour or day, and who costs what now.
import { chart } from "./chart.js";
import { clock, counted, fixed, get, h, rate, say, span, trouble, zone } from "./dom.js";

const SPANS = [["5 min", "hour", 300], ["1 hour", "hour", 3600], ["24 hours", "day", 86400]];
/** Points are kept so long at each resolution. */
const KEPT = { hour: 3600, day: 8640 };
/** The shortest time that is shown, in seconds. */
const SHORTEST = 30;
/** The number of stages in a point. */
const STAGES = 6;

/** What changes with the view: where history and updates come from, and what is drawn of them. */
function live({ place, query, history, point, charts, update, lost }) {
  const state = { range: 0, zoom: null, paused: false, tick: 0, at: [], columns: [], source: null, ended: false, timer: 0, loading: 0, last: 0 };
  const resolution = () => SPANS[state.range][1];

  function shown() {
    if (state.zoom) { return state.zoom; }
    const to = state.at.length > 0 ? state.at[state.at.length - 1] : Date.now() / 1000;
    // Time before the first reading has nothing to show.
    const first = state.at.length > 0 ? Math.min(state.at[0], to - SHORTEST) : 0;
    return [Math.max(first, to - SPANS[state.range][2]), to];
  }
  function draw() {
    drawn.forEach(({ drawn: one, columns }) => one.set({ at: state.at, columns: columns.map((name) => state.columns[state.names.indexOf(name)]) }));
  }
  function zoom(range) {
    state.zoom = range;
    now.hidden = !range;
    if (state.names) { draw(); }
  }
  const drawn = charts.map(({ columns, ...options }) => ({ columns, drawn: chart({ ...options, window: shown, zoom }) }));

  async function load() {
    const number = ++state.loading;
    try {
      const past = await get(`/api/history?span=${resolution()}${history}`);
      if (number !== state.loading || state.ended) { return; }
      Object.assign(state, { tick: past.tick, at: past.at, columns: past.columns, names: past.names });
      lost(null, past);
      draw();
    } catch (error) {
      if (number === state.loading && !state.ended) { lost(error.message, null); }
    }
  }

  function take(message) {
    state.last = Date.now();
    if (state.paused) { return; }
    say(status, "");
    update(message);
    if (message.tick === state.tick) { return; }
    // Something was missed, or the server is another one.
    if (message.tick !== state.tick + 1 || !state.names) { state.tick = message.tick; load(); return; }
    state.tick = message.tick;
    const values = resolution() === "hour" ? point(message) : message.coarse && (history ? null : message.coarse);
    if (resolution() === "day" && message.coarse && history) { load(); return; }
    if (!values) { return; }
    state.at.push(message.at);
    state.columns.forEach((column, index) => column.push(values[index]));
    while (state.at.length > KEPT[resolution()]) {
      state.at.shift();
      state.columns.forEach((column) => column.shift());
    }
    draw();
  }

  function open() {
    close();
    if (document.hidden || state.ended) { return; }
    state.source = new EventSource(`/api/live?${query()}`);
    state.source.onmessage = (event) => take(JSON.parse(event.data));
    state.source.onerror = () => {
      say(status, "The connection is lost; trying again. Is vtax web still running?");
      // It was refused, and the history says why.
      if (state.source.readyState === EventSource.CLOSED) { state.timer = setTimeout(open, 2000); load(); }
    };
  }
  function close() {
    clearTimeout(state.timer);
    if (state.source) { state.source.close(); }
    state.source = null;
  }
  // A page that nobody sees holds no connection: browsers have few for each server.
  const seen = () => (document.hidden ? close() : open());
  document.addEventListener("visibilitychange", seen);
  const watchdog = setInterval(() => {
    const silent = (Date.now() - state.last) / 1000;
    if (state.last && silent > 5 && state.source && !state.paused) { say(status, `Nothing new for ${span(silent)}: the server or its host is busy.`); }
  }, 1000);

  const status = h("span", { class: "status", role: "status" });
  const ranges = SPANS.map(([name], index) => h("button", {
    type: "button", "aria-pressed": String(index === 0), onclick: () => {
      ranges.forEach((one, other) => one.setAttribute("aria-pressed", String(other === index)));
      const same = SPANS[index][1] === resolution();
      state.range = index;
      zoom(null);
      if (!same) { state.names = null; load(); }
    },
  }, name));
  const pause = h("button", {
    type: "button", "aria-pressed": "false", title: "Key: p", onclick: () => {
      state.paused = !state.paused;
      pause.setAttribute("aria-pressed", String(state.paused));
      say(pause, state.paused ? "Go on" : "Pause");
      say(status, state.paused ? "Paused; the server goes on recording." : "");
      if (!state.paused) { load(); }
    },
  }, "Pause");
  const now = h("button", { type: "button", hidden: true, onclick: () => zoom(null) }, "Back to now");
  const csv = h("a", { class: "button", download: "", href: "/api/history.csv?span=hour" }, "CSV");
  csv.addEventListener("click", () => {
    const [from, to] = shown();
    csv.href = `/api/history.csv?span=${resolution()}${history}&from=${from.toFixed(3)}&to=${to.toFixed(3)}`;
  });
  const keys = (event) => {
    if (event.key === "p" && !event.ctrlKey && !event.metaKey && !event.altKey && !event.target.closest("input, textarea, select")) { pause.click(); }
  };
  document.addEventListener("keydown", keys);

  place.append(
    h("div", { class: "tools" }, h("div", { class: "group", role: "group", "aria-label": "Time shown" }, ranges), pause, now, csv, status),
    h("div", { class: "charts" }, drawn.map(({ drawn: one }) => one.place)),
  );
  load();
  open();
  return {
    reopen: open,
    end() {
      state.ended = true;
      close();
      clearInterval(watchdog);
      document.removeEventListener("visibilitychange", seen);
      document.removeEventListener("keydown", keys);
      drawn.forEach(({ drawn: one }) => one.end());
    },
  };
}

function charts(about, names) {
  const color = (name) => about.stages.find((stage) => stage.name === name).color;
  const one = (title, name, unit, show, unknown) => ({
    title, unit, columns: [name], series: [{ name, color: color("softirq") }], show, unknown,
  });
  return [
    {
      title: "Processor time by stage", unit: `% of one processor; the host has ${counted(about.processors, "processor")}`, stack: true, tall: true, columns: names,
      series: names.map((name) => ({ name, color: color(name) })), show: (value, axis) => (axis ? rate(value) : fixed(value)),
    },
    one("Soft interrupts", "softirq", "%", (value, axis) => (axis ? rate(value) : fixed(value))),
    one("Power", "watts", "W", (value, axis) => (axis ? rate(value) : fixed(value)), "No energy meter: vtax meter list says why."),
    one("Packets", "packets", "a second, both ways", rate, "No guest, no packets."),
    one("VM exits", "exits", "a second", rate, "Not known: no VM runs on KVM here, or its debugfs is not to be read."),
  ];
}

/** Stages as a bar; `most` is the widest. */
function bar(about, values, most) {
  const parts = values.slice(0, STAGES).map((value, index) => ({ value: value || 0, stage: about.stages[index] })).filter((part) => part.value > 0);
  const words = parts.map((part) => `${part.stage.name} ${fixed(part.value)} %`).join(", ");
  const whole = h("span", { class: "bar", title: words });
  for (const part of parts) {
    const piece = h("i");
    piece.style.width = `${(part.value / most) * 100}%`;
    piece.style.backgroundColor = part.stage.color;
    whole.append(piece);
  }
  return whole;
}

const cpu = (values) => values.slice(0, STAGES).reduce((sum, value) => sum + (value || 0), 0);

const COLUMNS = [
  ["name", "Guest", ""], ["cpu", "CPU", "%"], [null, "by stage", ""], ["hidden", "Hidden", "%"], ["watts", "Power", "W"],
  ["packets", "Packets", "/s"], ["exits", "Exits", "/s"],
];

/** How the numbers were made. */
function sources(message) {
  const energy = message.energy_source ? `power ${message.energy_source} (${message.energy_covers})` : "no energy meter";
  return `soft interrupts ${message.softirq_source} (${message.method}) · ${energy}`;
}

function problems(place, list) {
  place.hidden = list.length === 0;
  place.replaceChildren(h("summary", null, counted(list.length, "remark") + " on these numbers"), h("ul", null, list.map((text) => h("li", null, text))));
}

/** The host. */
export function hostView(view, about) {
  document.title = "Host · vtax";
  const look = { sort: "cpu", reversed: false, find: "" };
  const facts = h("p", { class: "facts" }, "Reading the host: the first figures are here in two seconds.");
  const find = h("input", { type: "search", placeholder: "Find a guest", "aria-label": "Find guests by name", autocomplete: "off", spellcheck: "false" });
  const heads = COLUMNS.map(([key, title, unit]) => {
    const words = [title, unit ? h("span", { class: "unit" }, ` ${unit}`) : null];
    if (!key) { return h("th", { scope: "col", class: "wide" }, words); }
    return h("th", { scope: "col", "data-key": key, class: key === "name" ? null : "number" }, h("button", { type: "button", onclick: () => sort(key) }, words));
  });
  const body = h("tbody");
  const foot = h("tfoot");
  const count = h("span", { class: "status" });
  const table = h("div", { class: "scroll" }, h("table", null, h("thead", null, h("tr", null, heads)), body, foot));
  const empty = h("p", { class: "empty", hidden: true });
  const remarks = h("details", { class: "remarks", hidden: true });
  const graphs = h("section", { "aria-label": "Graphs" });

  function sort(key) {
    look.reversed = look.sort === key && !look.reversed;
    look.sort = key;
    mark();
    connection.reopen();
  }
  function mark() {
    for (const head of heads) {
      const own = head.dataset.key === look.sort;
      const falling = (look.sort !== "name") !== look.reversed;
      if (own) { head.setAttribute("aria-sort", falling ? "descending" : "ascending"); } else { head.removeAttribute("aria-sort"); }
    }
  }
  let typing = 0;
  find.addEventListener("input", () => {
    clearTimeout(typing);
    typing = setTimeout(() => { look.find = find.value.trim(); connection.reopen(); }, 200);
  });

  function cells(values, hidden, most) {
    return [
      h("td", { class: "number" }, fixed(cpu(values))), h("td", { class: "wide" }, bar(about, values, most)),
      h("td", { class: "number" }, fixed(hidden)), h("td", { class: "number" }, fixed(values[6])),
      h("td", { class: "number" }, rate(values[7])), h("td", { class: "number" }, rate(values[8])),
    ];
  }
  function update(message) {
    const [host, nobody] = message.point.slice(STAGES, STAGES + 2);
    const all = cpu(message.point) + host + nobody;
    say(facts, `${clock(message.at)} ${zone(message.at)} · ${counted(message.guests, "guest")} · ${fixed(all)} % of one processor in all, ${fixed(host)} % the host’s own, ${fixed(nobody)} % unattributed · ${sources(message)}`);
    const most = Math.max(1e-9, ...message.rows.map((row) => cpu(row.values)));
    const focused = body.contains(document.activeElement) ? document.activeElement.getAttribute("href") : null;
    body.replaceChildren(...message.rows.map((row) => h("tr", null,
      h("th", { scope: "row" }, h("a", { href: `#/guest/${row.number}` }, row.name), h("span", { class: "detail" }, row.platform)),
      cells(row.values, row.hidden, most))));
    if (focused) { body.querySelector(`a[href="${focused}"]`)?.focus({ preventScroll: true }); }
    foot.replaceChildren(...(message.rest ? [h("tr", null,
      h("th", { scope: "row" }, `${counted(message.matching - message.rows.length, "more guest")}, together`), cells(message.rest, null, Math.max(most, cpu(message.rest))))] : []));
    say(count, look.find ? `${message.matching} of ${message.guests}` : "");
    table.hidden = message.rows.length === 0;
    empty.hidden = message.rows.length > 0;
    say(empty, message.guests === 0
      ? "No guest runs on this host. Start a VM or a container: it is here a second later."
      : "No guest’s name has this in it.");
    problems(remarks, message.problems);
  }

  view.append(h("h1", null, "This host"), facts, graphs, h("div", { class: "tools" }, h("h2", null, "Guests by what they truly cost"), h("label", { class: "find" }, "Find ", find), count), table, empty, remarks);
  mark();
  const names = about.stages.map((stage) => stage.name);
  const connection = live({
    place: graphs, history: "", charts: charts(about, names), update,
    query: () => new URLSearchParams(look).toString(), point: (message) => message.point,
    lost: (why) => { if (why) { say(facts, why); } },
  });
  return () => { clearTimeout(typing); connection.end(); };
}

/** One guest. */
export function guestView(view, about, number) {
  document.title = `Guest ${number} · vtax`;
  const title = h("h1", null, `Guest ${number}`);
  const facts = h("p", { class: "facts" });
  const tiles = h("dl", { class: "tiles" });
  const moved = h("section", { hidden: true });
  const graphs = h("section", { "aria-label": "Graphs" });
  const gone = h("div");
  const remarks = h("details", { class: "remarks", hidden: true });

  function named(name, platform) {
    say(title, name);
    document.title = `${name} · vtax`;
    return platform;
  }
  function update(message) {
    const guest = message.guest;
    problems(remarks, message.problems);
    if (!guest) {
      gone.replaceChildren(h("p", { class: "note" }, "This guest is not on the host any more. What is kept of it is below."));
      moved.hidden = true;
      tiles.replaceChildren();
      return;
    }
    gone.replaceChildren();
    named(guest.name);
    const identity = [guest.platform, guest.manager && `managed by ${guest.manager}`, guest.uuid && `UUID ${guest.uuid}`, sources(message)];
    say(facts, identity.filter(Boolean).join(" · "));
    const values = [
      ["CPU", `${fixed(cpu(guest.values))} %`], ["Hidden from it", guest.hidden === null ? "–" : `${fixed(guest.hidden)} % of that`],
      ["Power", guest.values[6] === null ? "–" : `${fixed(guest.values[6])} W`], ["Packets", `${rate(guest.values[7])}/s`],
      ["VM exits", guest.values[8] === null ? "–" : `${rate(guest.values[8])}/s`],
      ["Since the page’s server began", `${guest.total_cpu_seconds.toFixed(1)} s CPU${guest.total_joules === null ? "" : `, ${guest.total_joules.toFixed(1)} J`}`],
    ];
    tiles.replaceChildren(...values.map(([name, value]) => h("div", null, h("dt", null, name), h("dd", null, value))));
    moved.hidden = false;
    const line = (sign, words, value) => h("tr", null, h("td", { class: "number" }, sign), h("td", { class: "number" }, fixed(value)), h("td", null, words));
    const others = guest.contexts.map((one) => h("tr", null, h("td"), h("td", { class: "number" }, fixed(one.percent)), h("td", null, h("a", { href: `#/guest/${one.number}` }, one.name))));
    const focused = moved.contains(document.activeElement) ? document.activeElement.getAttribute("href") : null;
    moved.replaceChildren(
      h("h2", null, "What was moved"),
      h("p", null, "Soft interrupts run in the time of whatever they interrupt. The ledger takes them off it, and charges them to the guest whose devices they worked for. All in % of one processor, in this second."),
      h("div", { class: "scroll" }, h("table", { class: "sum" }, h("tbody", null,
        line("", "the kernel books on its threads and processes", guest.booked),
        line("−", "soft interrupts, for anybody, that ran in its time", guest.taken_from),
        line("+", "soft interrupts that worked for it, wherever they ran", guest.moved_to)),
      h("tfoot", null, line("=", "its true cost", cpu(guest.values))))),
      h("p", null, others.length > 0
        ? "In whose time soft interrupts ran, for any guest or the host; who worked for whom is not kept:"
        : `No other guest had soft interrupts in its time; ${fixed(guest.elsewhere)} % ran in the time of the host’s own tasks and of idle processors.`),
      others.length > 0 ? h("div", { class: "scroll" }, h("table", { class: "sum" }, h("tbody", null, others,
        h("tr", null, h("td"), h("td", { class: "number" }, fixed(guest.elsewhere)), h("td", null, "the host’s own tasks and idle processors"))))) : null,
    );
    if (focused) { moved.querySelector(`a[href="${focused}"]`)?.focus({ preventScroll: true }); }
  }

  view.append(h("p", { class: "back" }, h("a", { href: "#/host" }, "← All guests")), title, facts, gone, tiles, graphs, moved, remarks);
  const names = about.stages.slice(0, STAGES).map((stage) => stage.name);
  const connection = live({
    place: graphs, history: `&guest=${number}`, charts: charts(about, names), update,
    query: () => `guest=${number}`, point: (message) => message.guest && message.guest.values,
    lost: (why, past) => {
      if (past && past.name) { named(past.name); if (!facts.textContent) { say(facts, past.platform); } }
      if (why) { gone.replaceChildren(trouble(`${why}. It may never have been there, or went too long ago.`)); graphs.hidden = true; }
      else { graphs.hidden = false; }
    },
  });
  return connection.end;
}
