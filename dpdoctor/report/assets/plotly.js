// plotly.js: packed in the page or in a file beside the report. It is run when the first chart is near, not before.
// The page's policy knows it by its hash, so that no other text runs in its place and nothing needs eval.
const plotlyHere = document.getElementById("plotly");
let plotlyRuns;

function runPlotly() {
  plotlyRuns ??= started().catch((error) => {
    document.getElementById("no-plotly").hidden = false;
    throw error;
  });
  return plotlyRuns;
}

async function started() {
  const { link, integrity } = plotlyHere.dataset;
  if (!link && !canInflate) throw new Error("this browser cannot inflate what is compressed");
  const script = document.createElement("script");
  if (link) {
    script.src = link;
    // Browsers check the integrity only of what a server sent.
    if (location.protocol !== "file:") script.integrity = integrity;
  } else {
    script.textContent = await unpacked(plotlyHere);
  }
  const loaded = new Promise((resolve, reject) => {
    script.addEventListener("load", resolve);
    script.addEventListener("error", () => reject(new Error(`${link} could not be loaded`)));
  });
  document.head.append(script);
  if (link) await loaded;
  if (!window.Plotly) throw new Error("it is not plotly.js");
}
