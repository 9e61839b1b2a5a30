// A trace in Perfetto: only at a click does its page open, in a tab of its own, and gets the trace from this one.
// The protocol is Perfetto's: PING until it says PONG, then the trace (perfetto.dev/docs/visualization/deep-linking-to-perfetto-ui).
const PERFETTO = "https://ui.perfetto.dev";
const PING_MS = 100, PATIENCE_MS = 60_000;

function hand(title, trace, said) {
  const tab = open(PERFETTO);
  if (!tab) {
    said.textContent = `The browser did not open a tab. Open ${PERFETTO} and load the file there.`;
    return;
  }
  said.textContent = "Waiting for Perfetto";
  const pings = setInterval(() => tab.postMessage("PING", PERFETTO), PING_MS);
  const stop = () => {
    clearInterval(pings);
    clearTimeout(late);
    removeEventListener("message", answered);
  };
  const late = setTimeout(() => {
    stop();
    said.textContent = `Perfetto did not answer. Open ${PERFETTO} and load the file there.`;
  }, PATIENCE_MS);
  async function answered({ source, origin, data }) {
    if (source !== tab || origin !== PERFETTO || data !== "PONG") return;
    stop();
    tab.postMessage({ perfetto: { buffer: await trace, title } }, PERFETTO);
    said.textContent = "Handed to Perfetto. It stays in this browser.";
  }
  addEventListener("message", answered);
}

for (const place of document.querySelectorAll(".perfetto")) {
  const carried = place.querySelector("script");
  const [all, pick] = [place.querySelector(".all"), place.querySelector(".pick")];
  const [file, said] = [place.querySelector("input"), place.querySelector("output")];
  all?.addEventListener("click", () => {
    hand(place.dataset.title, unpacked(carried).then((text) => new TextEncoder().encode(text).buffer), said);
  });
  pick.addEventListener("click", () => file.click());
  file.addEventListener("change", () => {
    const [chosen] = file.files;
    if (chosen) hand(chosen.name, chosen.arrayBuffer(), said);
    file.value = "";
  });
  if (all) all.hidden = !canInflate;
  pick.hidden = false;
}
