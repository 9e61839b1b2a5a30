// Paper is light and has the summary on one page, then the sections that are open; of the others it has their line.
// The browser lays it out at once: a chart that was on the screen is drawn anew, for one that nobody came to stand its
// words.
addEventListener("beforeprint", () => {
  theme.setPaper(true);
  for (const chart of charts) {
    if (specs.has(chart)) drawNow(chart);
    else words(chart).open = chart.hidden = true;
  }
});

addEventListener("afterprint", () => {
  theme.setPaper(false);
  for (const chart of charts.filter((chart) => chart.hidden)) words(chart).open = chart.hidden = false;
  drawAgain();
});
