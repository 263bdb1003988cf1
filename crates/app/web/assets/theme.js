// The theme, before anything is drawn: what was chosen last, else what the system prefers.
(function () {
  "use strict";
  const root = document.documentElement;
  const dark = window.matchMedia("(prefers-color-scheme: dark)");
  const current = () => root.dataset.theme || (dark.matches ? "dark" : "light");
  const stored = localStorage.getItem("vtax-theme");
  if (stored === "dark" || stored === "light") { root.dataset.theme = stored; }

  document.addEventListener("DOMContentLoaded", () => {
    const button = document.getElementById("theme");
    const show = () => {
      button.textContent = current() === "dark" ? "Light" : "Dark";
      document.dispatchEvent(new Event("theme"));
    };
    button.addEventListener("click", () => {
      root.dataset.theme = current() === "dark" ? "light" : "dark";
      localStorage.setItem("vtax-theme", root.dataset.theme);
      show();
    });
    dark.addEventListener("change", show);
    show();
  });
})();
