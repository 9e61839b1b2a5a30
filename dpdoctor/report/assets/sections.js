// Sections that open and close, the mode that all of them show, and where the reader is.
const sections = [...document.querySelectorAll("main > section")];
const closable = sections.flatMap((section) => [...section.querySelectorAll(":scope > details")]);
const ofMode = [...document.querySelectorAll(".of-mode")];
const views = [...document.querySelectorAll(".view")];
const stacks = [...document.querySelectorAll(".stack")];
const modes = document.querySelector(".modes");
const tabs = new Map([...document.querySelectorAll(".tabs a")].map((tab) => [tab.hash.slice(1), tab]));
let reading = sections[0];

// An empty mode is all of them, side by side under their names.
function choose(mode) {
  for (const block of ofMode) block.hidden = mode !== "" && block.dataset.mode !== mode;
  document.documentElement.classList.toggle("all-modes", mode === "");
  for (const view of views) view.hidden = [...view.children].every((child) => child.hidden || child.matches(".view-title, .note"));
  for (const stack of stacks) stack.hidden = [...stack.children].every((view) => view.hidden);
  for (const section of sections) {
    const nothing = section.querySelector(":scope .nothing");
    if (nothing) nothing.hidden = [...section.querySelectorAll(".view")].some((view) => !view.hidden);
  }
  dispatchEvent(new Event("resize")); // a chart beside which there is room now, or no more, is as wide as that
  const radio = document.getElementById(mode === "" ? "mode-all" : `mode-${mode}`);
  if (radio) radio.checked = true;
}

function isKnown(mode) {
  return ofMode.some((block) => block.dataset.mode === mode);
}

// A link leads into what is closed, and to the mode that it is about.
function follow() {
  let target = null;
  try {
    target = document.getElementById(decodeURIComponent(location.hash.slice(1)));
  } catch {
    // No address of ours.
  }
  if (target === null) return;
  if (target.name === "mode") return choose(target.value);
  const about = target.closest(".of-mode");
  if (about && modes) choose(about.dataset.mode);
  for (let fold = target.closest("details"); fold; fold = fold.parentElement.closest("details")) fold.open = true;
  for (const fold of target.querySelectorAll(":scope > details:not(.note, .words)")) fold.open = true;
  target.scrollIntoView();
}

// The address follows the choice, so that it can be passed on: the mode in the section that is read, if that has it.
function remember(mode) {
  const here = mode && ofMode.find((block) => block.dataset.mode === mode && reading.contains(block) && reading !== sections[0]);
  history.replaceState(null, "", `#${here ? here.id : `mode-${mode || "all"}`}`);
}

function spy() {
  const line = innerHeight / 3;
  reading = sections.findLast((section) => section.getBoundingClientRect().top <= line) ?? sections[0];
  if (scrollY + innerHeight >= document.documentElement.scrollHeight - 2 && scrollY > 0) reading = sections.at(-1);
  for (const [name, tab] of tabs) {
    if (name === reading.id) tab.setAttribute("aria-current", "true");
    else tab.removeAttribute("aria-current");
  }
}

const unfold = document.getElementById("unfold");
const nameUnfold = () => { unfold.textContent = closable.every((one) => one.open) ? "Close all" : "Open all"; };
unfold.addEventListener("click", () => {
  const open = !closable.every((one) => one.open);
  closable.forEach((one) => { one.open = open; });
});
closable.forEach((one) => one.addEventListener("toggle", nameUnfold));
nameUnfold();
unfold.hidden = closable.length === 0;

if (modes) {
  modes.hidden = false;
  modes.addEventListener("change", ({ target }) => {
    choose(target.value);
    remember(target.value);
  });
  choose(isKnown(modes.dataset.focus) ? modes.dataset.focus : "");
}
document.documentElement.classList.add("scripted");
addEventListener("hashchange", follow);
addEventListener("scroll", spy, { passive: true });
// A link that was followed already leads there again, though its section was closed meanwhile.
document.addEventListener("click", ({ target }) => {
  const link = target.closest?.('a[href^="#"]');
  if (link && link.hash === location.hash) follow();
});
follow();
spy();
