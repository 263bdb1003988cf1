// Which view is shown: the part of the address behind the #. A view is a function that fills the page
// and returns one that ends it.
import { get, h, trouble } from "./dom.js";
import { enterFromAddress, enterView } from "./enter.js";
import { hostView, guestView } from "./host.js";
import { compareView } from "./compare.js";
import { machinesView } from "./machines.js";
import { resultsView } from "./results.js";
import { runView } from "./run.js";
import { runsView } from "./start.js";

const view = document.getElementById("view");
const VIEWS = [
  [/^#\/host$/, "host", hostView],
  [/^#\/guest\/(\d+)$/, "host", guestView],
  [/^#\/runs$/, "runs", runsView],
  [/^#\/results$/, "results", resultsView],
  [/^#\/run\/([^/]+)$/, "results", runView],
  [/^#\/compare\/(.+)$/, "results", compareView],
  [/^#\/machines$/, "machines", machinesView],
];
/** Keys that lead to views. */
const KEYS = { h: "#/host", r: "#/runs", e: "#/results", n: "#/machines" };

let end = () => {};
let about = null;
/** Where to go once a token was entered. */
let wanted = "#/host";
let number = 0;

function entered() {
  about = null;
  if (location.hash === wanted) { show(); } else { location.hash = wanted; }
}

async function show() {
  const own = ++number;
  end();
  end = () => {};
  const refused = await enterFromAddress();
  if (refused) { about = null; }
  const hash = location.hash || "#/host";
  view.replaceChildren();
  try {
    about = about || await get("/api/about");
    // Another view may have been asked for meanwhile.
    if (own !== number) { return; }
    const who = document.getElementById("enter");
    who.hidden = about.may === "operate" || !about.starts;
    const asks = about.may === "nothing" || hash === "#/enter";
    if (!asks) { wanted = hash; }
    const found = VIEWS.map(([pattern, name, open]) => ({ match: pattern.exec(hash), name, open })).find((one) => one.match);
    document.querySelectorAll("nav a").forEach((link) => {
      if (found && !asks && link.dataset.view === found.name) { link.setAttribute("aria-current", "page"); }
      else { link.removeAttribute("aria-current"); }
    });
    if (asks) { end = enterView(view, about, entered); }
    else if (found) { end = found.open(view, about, ...found.match.slice(1)); }
    else { view.append(h("h1", null, "There is no such view"), h("p", null, h("a", { href: "#/host" }, "To the host"))); }
    if (refused) { view.prepend(trouble(refused)); }
  } catch (error) {
    if (own === number) { view.replaceChildren(trouble(error.message)); }
  }
}

document.querySelector(".skip").addEventListener("click", (event) => {
  event.preventDefault();
  view.focus();
});
document.addEventListener("keydown", (event) => {
  const typing = event.target.closest("input, textarea, select");
  if (typing || event.ctrlKey || event.metaKey || event.altKey) { return; }
  if (KEYS[event.key]) { location.hash = KEYS[event.key]; }
  if (event.key === "/") {
    const find = view.querySelector("input[type=search]");
    if (find) { event.preventDefault(); find.focus(); }
  }
});
// The token was taken back, or the server is another one.
document.addEventListener("stranger", () => { if (about && about.may !== "nothing") { about = null; show(); } });
window.addEventListener("hashchange", () => { show(); view.focus({ preventScroll: true }); window.scrollTo(0, 0); });
show();
