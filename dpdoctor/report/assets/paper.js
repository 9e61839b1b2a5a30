// On paper everything is open, light and as wide as the paper. The browser lays it out at once: a chart that was on the
// screen is drawn anew, for one that nobody came to stand its words.
const folds = [...document.querySelectorAll("details.fold")];
let closed = [];

addEventListener("beforeprint", () => {
  closed = folds.filter((fold) => !fold.open);
  closed.forEach((fold) => { fold.open = true; });
  theme.setPaper(true);
  for (const chart of charts) {
    if (specs.has(chart)) drawNow(chart);
    else words(chart).open = chart.hidden = true;
  }
});

addEventListener("afterprint", () => {
  theme.setPaper(false);
  closed.forEach((fold) => { fold.open = false; });
  for (const chart of charts.filter((chart) => chart.hidden)) words(chart).open = chart.hidden = false;
  drawAgain();
});
