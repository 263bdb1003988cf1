// Draws the figures that are not folded, switches the theme, and unfolds the page for a link and for paper.
(function () {
  "use strict";
  var root = document.documentElement;
  var button = document.getElementById("theme");
  var dark = window.matchMedia("(prefers-color-scheme: dark)");

  function store(value) { try { localStorage.setItem("vtax-theme", value); } catch (error) { /* a file: page may have no storage */ } }
  function stored() { try { return localStorage.getItem("vtax-theme"); } catch (error) { return null; } }
  function current() { return root.dataset.theme || (dark.matches ? "dark" : "light"); }
  function label() { button.textContent = current() === "dark" ? "Light" : "Dark"; }

  var asked = /^#(dark|light)$/.exec(location.hash);
  var theme = asked ? asked[1] : stored();
  if (theme === "dark" || theme === "light") { root.dataset.theme = theme; }
  button.hidden = false;
  label();
  button.addEventListener("click", function () {
    root.dataset.theme = current() === "dark" ? "light" : "dark";
    store(root.dataset.theme);
    label();
  });
  dark.addEventListener("change", label);

  var figures = JSON.parse(document.getElementById("figures-data").textContent);
  var drawn = {};

  /** The places of figures in `part` that are not drawn yet and not folded: what is folded has no width. */
  function places(part) {
    return Array.prototype.filter.call(part.querySelectorAll(".plot"), function (place) {
      return figures[place.id] && !drawn[place.id] && !place.closest("details:not([open])");
    });
  }
  function draw(part) {
    places(part).forEach(function (place) {
      drawn[place.id] = true;
      vegaEmbed(place, figures[place.id], {
        renderer: "svg",
        actions: { export: true, source: true, compiled: false, editor: false },
        downloadFileName: place.id.replace(/^plot-/, ""),
        tooltip: { theme: "custom" }
      }).catch(function (error) { place.textContent = "This figure could not be drawn: " + error.message; });
    });
  }
  draw(document);
  document.addEventListener("toggle", function (event) { if (event.target.open) { draw(event.target); } }, true);

  // Paper shows what is folded. It does not wait, so the figures are drawn at once, without a menu.
  var folded = [];
  window.addEventListener("beforeprint", function () {
    folded = Array.prototype.slice.call(document.querySelectorAll("details.more:not([open])"));
    folded.forEach(function (part) { part.open = true; });
    places(document).forEach(function (place) {
      drawn[place.id] = true;
      new vega.View(vega.parse(vegaLite.compile(figures[place.id]).spec), { renderer: "svg" }).initialize(place).run();
    });
  });
  window.addEventListener("afterprint", function () { folded.forEach(function (part) { part.open = false; }); });

  // A link to what is folded unfolds it.
  function reveal() {
    var part = document.getElementById(location.hash.slice(1));
    if (!part) { return; }
    for (var outer = part; outer; outer = outer.parentElement) { if (outer.localName === "details") { outer.open = true; } }
    if (part.querySelectorAll("details").length === 1) { part.querySelector("details").open = true; }
    part.scrollIntoView();
  }
  window.addEventListener("hashchange", reveal);
  reveal();
})();
