// On paper everything is open, light and as wide as the paper; charts must be drawn before the browser lays it out.
const folds = [...document.querySelectorAll("details.fold")];
let closed = [];

addEventListener("beforeprint", () => {
  closed = folds.filter((fold) => !fold.open);
  closed.forEach((fold) => { fold.open = true; });
  theme.setPaper(true);
  charts.forEach(draw);
});

addEventListener("afterprint", () => {
  theme.setPaper(false);
  closed.forEach((fold) => { fold.open = false; });
  drawAgain();
});
