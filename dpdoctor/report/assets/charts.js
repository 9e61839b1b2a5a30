// Charts: drawn when they come near the screen, in the colours of the theme.
const CONFIG = {
  responsive: true,
  displaylogo: false,
  displayModeBar: matchMedia("(hover: hover)").matches ? "hover" : false,
  // Named one by one, so that a button which talks to a server can never join them.
  modeBarButtons: [["toImage", "zoom2d", "pan2d", "resetScale2d"]],
};
// Thin lines of the two blues are hard to see on a dark page.
const LIT = { "#0072B2": "#3D9BE0", "#56B4E9": "#A6DAF7" };
const coarse = matchMedia("(pointer: coarse)");
const charts = [...document.querySelectorAll(".chart")];

// By chart, what it is drawn from; as text, since drawing changes what it is given.
const specs = new WeakMap();

async function inflate(chart) {
  if (!specs.has(chart)) specs.set(chart, await unpacked(chart.nextElementSibling));
}

// Fonts, grid and error bars follow the style sheet, so the charts look like the page in both themes.
function themed(chart) {
  const style = getComputedStyle(document.documentElement);
  const color = (name) => style.getPropertyValue(name).trim();
  const spec = JSON.parse(specs.get(chart));
  const axis = { gridcolor: color("--line"), linecolor: color("--line"), zerolinecolor: color("--line") };
  const isBare = spec.layout.showlegend === false && !spec.layout.annotations;
  const layout = {
    ...spec.layout,
    paper_bgcolor: "rgba(0,0,0,0)",
    plot_bgcolor: "rgba(0,0,0,0)",
    font: { family: getComputedStyle(document.body).fontFamily, size: 13, color: color("--soft") },
    hoverlabel: { bgcolor: color("--raised"), bordercolor: color("--line"), font: { color: color("--ink") } },
    modebar: { bgcolor: "rgba(0,0,0,0)", color: color("--soft"), activecolor: color("--ink") },
    margin: { l: 8, r: 12, t: isBare ? 12 : 36, b: 8, ...spec.layout.margin },
    legend: { orientation: "h", x: 0, y: 1.02, yanchor: "bottom", xanchor: "left", traceorder: "normal", ...spec.layout.legend },
    minreducedheight: 20,
    dragmode: coarse.matches ? false : "zoom",
  };
  for (const name of Object.keys(layout).filter((key) => /^[xy]axis/.test(key))) {
    const title = { ...layout[name].title, font: { size: 13 } };
    layout[name] = { ...axis, ...layout[name], title };
  }
  for (const note of theme.isDark() ? layout.annotations ?? [] : []) {
    note.text = note.text.replace(/#[0-9A-F]{6}/g, (found) => LIT[found] ?? found);
  }
  for (const trace of spec.data) {
    if (theme.isDark() && trace.line) trace.line.color = LIT[trace.line.color] ?? trace.line.color;
    if (trace.error_x) trace.error_x.color = color("--ink");
  }
  return { data: spec.data, layout };
}

async function draw(chart) {
  try {
    await runPlotly();
    await inflate(chart);
    await drawNow(chart);
    chart.removeAllListeners("plotly_click");
    chart.on("plotly_click", ({ points: [point] }) => show(point.customdata));
    chart.dataset.drawn = "yes";
  } catch (error) {
    console.error(error);
    chart.textContent = `This chart could not be drawn (${error}). What it shows stands below, in words.`;
    chart.style.height = "auto";
    words(chart).open = true;
  }
}

// Draws at once what was inflated before.
function drawNow(chart) {
  if (!chart.layout) chart.replaceChildren();
  const { data, layout } = themed(chart);
  return Plotly.newPlot(chart, data, layout, CONFIG);
}

const words = (chart) => chart.parentElement.querySelector(".words");

// A mark that stands for a row of a table leads to it, also where the reader's filter hides it.
function show(id) {
  const row = typeof id === "string" && document.getElementById(id)?.closest("tr");
  if (!row) return;
  document.querySelector("tr.shown")?.classList.remove("shown");
  row.classList.add("shown");
  row.hidden = false;
  for (let fold = row.closest("details"); fold; fold = fold.parentElement.closest("details")) fold.open = true;
  row.scrollIntoView({ block: "center" });
}

// A chart inside a closed fold is not near; it is once the fold opens.
const near = new IntersectionObserver(drawNear, { rootMargin: "600px 0px" });

function drawNear(entries) {
  for (const { target, isIntersecting } of entries) {
    if (!isIntersecting) continue;
    near.unobserve(target);
    draw(target);
  }
}

// What was drawn is out of date; it is drawn again as it comes near.
function drawAgain() {
  for (const chart of charts) {
    delete chart.dataset.drawn;
    near.observe(chart);
  }
}

document.addEventListener("theme", drawAgain);
charts.forEach((chart) => near.observe(chart));
