// Copying: the text of a code block goes to the clipboard or, where the browser refuses, is selected.
const SAID_FOR_MS = 2000;
const said = element("p", { className: "unseen" });
said.setAttribute("role", "status");
document.body.append(said);

// Without the right to use the clipboard, as on a page from a server without TLS, only what is selected can be copied.
function copySelected(block) {
  getSelection().selectAllChildren(block);
  return document.execCommand("copy") ? "Copied" : "Selected";
}

async function copy(button) {
  const block = button.parentElement.querySelector("pre");
  let outcome = "Copied";
  try {
    await navigator.clipboard.writeText(block.textContent);
  } catch {
    outcome = copySelected(block);
  }
  button.textContent = outcome;
  said.textContent = outcome;
  setTimeout(() => {
    button.textContent = "Copy";
    said.textContent = "";
  }, SAID_FOR_MS);
}

for (const button of document.querySelectorAll("button.copy")) {
  button.hidden = false;
  button.addEventListener("click", () => copy(button));
}
