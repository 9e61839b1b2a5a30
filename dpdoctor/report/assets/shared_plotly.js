"use strict";
// plotly.js lies in a file beside the report. Until it is loaded calls wait; without it they fail, and the page says so.
(() => {
  const { link, integrity } = document.currentScript.dataset;
  const script = document.createElement("script");
  script.src = link;
  // Browsers check the integrity only of what a server sent.
  if (location.protocol !== "file:") script.integrity = integrity;
  const waiting = new Proxy({}, { get: (_, name) => (...args) => loaded.then(() => window.Plotly[name](...args)) });
  const loaded = new Promise((resolve, reject) => {
    const fail = () => reject(new Error(`${link} could not be loaded`));
    script.addEventListener("load", () => (window.Plotly === waiting ? fail() : resolve()));
    script.addEventListener("error", fail);
  });
  loaded.catch(() => { document.getElementById("no-plotly").hidden = false; });
  window.Plotly = waiting;
  document.head.append(script);
})();
