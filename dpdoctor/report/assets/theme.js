"use strict";
// Light or dark: as the system prefers, or as the reader chose. It runs before anything is painted.
const theme = (() => {
  const KEPT_AS = "dpdoctor-theme";
  const PREFERRED = "(prefers-color-scheme: dark)";
  // When the dark colours hold; "auto" asks the system.
  const HOLDS = { auto: PREFERRED, light: "not all", dark: "all" };
  const ORDER = Object.keys(HOLDS);
  const darkColors = document.getElementById("dark");
  const root = document.documentElement;
  let chosen = recalled();
  let isOnPaper = false;

  // A browser may refuse to keep anything for a page that was opened from a file.
  function recalled() {
    try {
      const kept = localStorage.getItem(KEPT_AS);
      return ORDER.includes(kept) ? kept : "auto";
    } catch {
      return "auto";
    }
  }

  function keep() {
    try {
      localStorage.setItem(KEPT_AS, chosen);
    } catch {
      // The choice then lasts as long as the page.
    }
  }

  function apply() {
    const now = isOnPaper ? "light" : chosen;
    darkColors.media = HOLDS[now];
    root.style.colorScheme = now === "auto" ? "" : now;
    root.classList.toggle("paper", isOnPaper);
  }

  const announce = () => document.dispatchEvent(new Event("theme"));

  function next() {
    chosen = ORDER[(ORDER.indexOf(chosen) + 1) % ORDER.length];
    keep();
    apply();
    announce();
  }

  function setPaper(value) {
    isOnPaper = value;
    apply();
  }

  matchMedia(PREFERRED).addEventListener("change", announce);
  apply();
  return { next, setPaper, name: () => chosen, isDark: () => matchMedia(darkColors.media).matches };
})();
