// NICs with their ports, and populations of micro VMs.
import { get, h, post, rate, say, trouble } from "./dom.js";

const LOOK = 1000;

/** Rates from the counters of two looks. */
function rates(now, before, elapsed) {
  if (!before || !elapsed) { return {}; }
  const names = ["rx_packets", "tx_packets", "rx_calls", "tx_calls", "calls_suppressed", "cpu_ns"];
  return Object.fromEntries(names.map((name) => [name, now[name] >= before[name] ? (now[name] - before[name]) / elapsed : null]));
}

const us = (value) => (value === null || value === undefined ? "–" : `${value} µs`);

/** Ports and populations. */
export function machinesView(view, about) {
  document.title = "NICs and micro VMs · vtax";
  const operator = about.may === "operate";
  const facts = h("p", { class: "facts" }, "Asking them.");
  const commands = (title, ...lines) => [h("dt", null, title), h("dd", null, h("pre", null, lines.join("\n")))];
  const example = h("dl", { hidden: true },
    commands("The ports of a NIC", "vtax nic --socket-path /run/vm1.sock --tap tap0 --api /run/nic.api", "vtax web --nic /run/nic.api"),
    commands("A population of micro VMs", "vtax mvm run --guests 1000 --listen 127.0.0.1:8080", "vtax web --mvm 127.0.0.1:8080"));
  const notice = h("div");
  const nics = h("div");
  const populations = h("div");
  const before = new Map();
  const typed = new Map();
  let busy = false;
  let ended = false;

  async function set(budget) {
    try {
      await post("/api/machines", budget);
      notice.replaceChildren();
      await load();
    } catch (error) {
      notice.replaceChildren(trouble(error.message));
    }
  }
  /** What sets a port's budget. What was typed stays until it is set. */
  function controls(socket, info) {
    const key = `${socket}\n${info.port}`;
    const field = h("input", {
      type: "number", min: 0, max: info.cap_us, value: typed.get(key) ?? info.override_us ?? info.default_us, "data-key": `${key}\nfield`,
      "aria-label": `Budget of ${info.port}, µs, at most ${info.cap_us}`, oninput: () => typed.set(key, field.value),
    });
    const button = (words, title, budget) => h("button", {
      type: "button", title, "data-key": `${key}\n${words}`, onclick: () => { typed.delete(key); set({ socket, port: info.port, ...budget() }); },
    }, words);
    return h("form", { class: "inline", onsubmit: (event) => event.preventDefault() }, h("label", null, "Set, µs ", field),
      button("Default", "Holds while the guest has not asked", () => ({ default_us: Number(field.value) })),
      button("Override", "Holds whatever the guest asks", () => ({ override_us: Number(field.value) })),
      info.override_us === null || info.override_us === undefined ? null : button("Let the guest ask", "Cap, default and guest decide again", () => ({ clear: true })));
  }
  function ports(nic) {
    const rows = nic.ports.map(({ info, stats }) => {
      const key = `${nic.socket}\n${info.port}`;
      const last = before.get(key);
      const seen = stats ? rates(stats, last && last.stats, last && (nic.at_ns - last.at) / 1e9) : {};
      if (stats) { before.set(key, { at: nic.at_ns, stats }); }
      const cell = (words) => h("td", { class: "number" }, words);
      return [h("tr", null, h("th", { scope: "row" }, info.port, h("span", { class: "detail" }, [info.connected ? "connected" : "no guest", info.mode, info.datapath].filter(Boolean).join(" · "))),
        cell(us(info.in_force_us)), cell(stats ? `${(stats.hold_ns.p50 / 1000).toFixed(0)} / ${(stats.hold_ns.p99 / 1000).toFixed(0)} µs` : "–"),
        cell(us(info.cap_us)), cell(info.lease_left_s === undefined ? "–" : `${info.lease_left_s} s`),
        cell(`${rate(seen.rx_packets)} / ${rate(seen.tx_packets)}`), cell(`${rate(seen.rx_calls)} / ${rate(seen.tx_calls)}`), cell(rate(seen.calls_suppressed))),
      operator ? h("tr", { class: "of-above" }, h("td", { colspan: 8 }, controls(nic.socket, info))) : null];
    });
    const heads = ["Port", "Budget in force", "Held, p50 / p99", "Cap", "Lease left", "Packets to / from it, /s", "Notifications, /s", "Merged, /s"];
    return h("div", { class: "scroll" }, h("table", null, h("thead", null, h("tr", null, heads.map((words, index) => h("th", { scope: "col", class: index ? "number" : null }, words)))), h("tbody", null, rows.flat())));
  }
  async function load() {
    const focused = nics.contains(document.activeElement) ? document.activeElement : null;
    // Where somebody types nothing is moved.
    if (document.hidden || busy || (focused && focused.matches("input"))) { return; }
    busy = true;
    try {
      const seen = await get("/api/machines");
      if (ended) { return; }
      const some = seen.nics.length + seen.populations.length > 0;
      say(facts, some ? "Measured by each of them; rates since the last look, a second ago. Held: from the first packet to its notification, since the NIC began."
        : "No NIC and no population of micro VMs is shown. To see one, start it with an address for its counters, and start this page with the same address:");
      example.hidden = some;
      nics.replaceChildren(...seen.nics.map((nic) => h("section", null, h("h2", null, `NIC ${nic.socket}`),
        nic.error ? trouble(nic.error) : nic.ports.length > 0 ? ports(nic) : h("p", { class: "empty" }, "It has no port."))));
      if (focused) { [...nics.querySelectorAll("button")].find((one) => one.dataset.key === focused.dataset.key)?.focus({ preventScroll: true }); }
      populations.replaceChildren(...seen.populations.map((one) => h("section", null, h("h2", null, `Micro VMs at ${one.address}`),
        one.error ? trouble(one.error) : h("dl", { class: "tiles" }, Object.entries(one.status || {}).map(([name, value]) =>
          h("div", null, h("dt", null, name.replaceAll("_", " ")), h("dd", null, typeof value === "number" ? value.toLocaleString("en") : typeof value === "object" ? JSON.stringify(value) : String(value))))))));
    } catch (error) {
      say(facts, error.message);
    } finally {
      busy = false;
    }
  }
  view.append(h("h1", null, "NICs and micro VMs"), facts, example, notice, nics, populations);
  load();
  const timer = setInterval(load, LOOK);
  return () => { ended = true; clearInterval(timer); };
}
