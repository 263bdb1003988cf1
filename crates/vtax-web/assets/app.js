// Which view is shown: the part of the address behind the #. A view is a function that fills the page
// and returns one that ends it.
import { get, h, trouble } from "./dom.js";
import { hostView, guestView } from "./host.js";
import { compareView, resultsView, runView } from "./results.js";

const view = document.getElementById("view");
const VIEWS = [
  [/^#\/host$/, "host", hostView],
  [/^#\/guest\/(\d+)$/, "host", guestView],
  [/^#\/results$/, "results", resultsView],
  [/^#\/run\/([^/]+)$/, "results", runView],
  [/^#\/compare\/(.+)$/, "results", compareView],
];

let end = () => {};
let about = null;

async function show() {
  end();
  end = () => {};
  const hash = location.hash || "#/host";
  const found = VIEWS.map(([pattern, name, open]) => ({ match: pattern.exec(hash), name, open })).find((one) => one.match);
  document.querySelectorAll("nav a").forEach((link) => {
    if (found && link.dataset.view === found.name) { link.setAttribute("aria-current", "page"); }
    else { link.removeAttribute("aria-current"); }
  });
  view.replaceChildren();
  if (!found) {
    view.append(h("h1", null, "There is no such view"), h("p", null, h("a", { href: "#/host" }, "To the host")));
    return;
  }
  try {
    about = about || await get("/api/about");
    // Another view may have been asked for meanwhile.
    if (hash === (location.hash || "#/host")) { end = found.open(view, about, ...found.match.slice(1)); }
  } catch (error) {
    view.append(trouble(error.message));
  }
}

document.querySelector(".skip").addEventListener("click", (event) => {
  event.preventDefault();
  view.focus();
});
window.addEventListener("hashchange", () => { show(); view.focus({ preventScroll: true }); window.scrollTo(0, 0); });
show();
