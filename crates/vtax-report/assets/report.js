// Draws the figures, switches the theme, and opens what is folded before printing.
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

  window.addEventListener("beforeprint", function () {
    document.querySelectorAll("details.more").forEach(function (part) { part.open = true; });
  });

  var figures = JSON.parse(document.getElementById("figures-data").textContent);
  Object.keys(figures).forEach(function (id) {
    var place = document.getElementById(id);
    if (!place) { return; }
    vegaEmbed(place, figures[id], {
      renderer: "svg",
      actions: { export: true, source: true, compiled: false, editor: false },
      downloadFileName: id.replace(/^plot-/, ""),
      tooltip: { theme: "custom" }
    }).catch(function (error) { place.textContent = "This figure could not be drawn: " + error.message; });
  });
})();
