// What is sampled of the trial of now: who spends processor time at which stage, and what its target's
// devices carry, second by second.
import { chart } from "./chart.js";
import { badge, fixed, h, quantity, rate } from "./dom.js";

const COLORS = ["#0072b2", "#d55e00", "#009e73", "#cc79a7"];
/** As far back as the server keeps readings, in seconds. */
const LONGEST = 300;

/** Why there is nothing to see yet, or at all. */
function why(run) {
  if (run.place.startsWith("testbed:")) {
    return "In a testbed nothing is read out while a trial runs: its clock counts instructions, those of reading out too. Throughput and processor time are here when the trial is over.";
  }
  if (run.density) { return null; }
  return "Throughput and processor time are read once a second while the load runs: from its warm-up on.";
}

/** What devices carried, a chart for each unit; what carried nothing at all is left out. */
function carriedBy(carried) {
  const moved = carried.filter((one) => one.values.some((value) => value > 0));
  return [...new Set(moved.map((one) => one.unit))].map((unit) => ({ unit, series: moved.filter((one) => one.unit === unit) }));
}

/** Fills a place with the readings of the trial of now, as they come. */
export function metersView(place) {
  let charts = [];
  let shape = "";
  let at = [];
  const body = h("tbody");
  const words = h("p", { class: "facts" });
  const flag = h("p", { class: "facts" });
  const drawn = h("div", { class: "charts" });
  const who = h("details", { class: "remarks" }, h("summary", null, "By actor and stage, in the last second"),
    h("div", { class: "scroll" }, h("table", { class: "sum" }, body)));
  place.append(flag, words, drawn, who);

  function clear() {
    charts.forEach(({ chart: one }) => one.end());
    charts = [];
    shape = "";
    drawn.replaceChildren();
  }
  const shown = () => {
    const last = at[at.length - 1];
    return [Math.max(at[0], last - LONGEST), Math.max(last, at[0] + 30)];
  };
  function build(meters) {
    clear();
    const zoom = () => {};
    charts.push({
      of: (next) => next.stages.map((stage) => stage.values),
      chart: chart({
        title: "Processors kept busy by stage", unit: "of this trial’s host", stack: true, tall: true, window: shown, zoom,
        series: meters.stages.map(({ name, color }) => ({ name, color })), show: (value) => fixed(value),
      }),
    });
    for (const { unit, series } of carriedBy(meters.carried)) {
      charts.push({
        of: (next) => series.map(({ name }) => (next.carried.find((one) => one.name === name) || { values: at.map(() => null) }).values),
        chart: chart({
          title: series.length > 1 ? "Carried by the target’s devices" : `Target: ${series[0].name}`, unit, window: shown, zoom,
          series: series.map(({ name }, index) => ({ name, color: COLORS[index % COLORS.length] })),
          show: (value, axis) => (axis ? rate(value) : quantity(value, unit)),
        }),
      });
    }
    drawn.append(...charts.map(({ chart: one }) => one.place));
  }

  return {
    show(run) {
      const meters = run.running && run.running.meters;
      place.hidden = !run.running;
      who.hidden = !meters;
      flag.replaceChildren(...[meters && badge(meters.source)].filter(Boolean));
      words.hidden = Boolean(meters) && carriedBy(meters.carried).length > 0;
      if (!meters) {
        clear();
        words.textContent = (run.running && why(run)) || "";
        words.hidden = !words.textContent;
        return;
      }
      words.textContent = "The target’s devices carried nothing. What its workload did it says when it ends.";
      at = meters.at.map((seconds) => run.running.since + seconds);
      const next = JSON.stringify([run.running.index, meters.stages.map(({ name }) => name), carriedBy(meters.carried).map(({ unit, series }) => [unit, series.map(({ name }) => name)])]);
      if (next !== shape) { build(meters); shape = next; }
      charts.forEach(({ of, chart: one }) => one.set({ at, columns: of(meters) }));
      body.replaceChildren(...meters.actors.map(([actor, stage, cores]) => h("tr", null,
        h("th", { scope: "row" }, actor), h("td", null, stage), h("td", { class: "number" }, `${fixed(cores)} cores`))));
    },
    end: clear,
  };
}
