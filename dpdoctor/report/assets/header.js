// The buttons of the header: the theme, and all numbers of the page as a file.
async function download(button) {
  const text = await unpacked(document.getElementById("run"));
  const link = element("a", {
    href: URL.createObjectURL(new Blob([text, "\n"], { type: "application/json" })),
    download: button.dataset.file,
  });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}

const themeButton = document.querySelector("button.theme");
const nameTheme = () => { themeButton.textContent = `Theme: ${theme.name()}`; };
themeButton.addEventListener("click", () => {
  theme.next();
  nameTheme();
});
nameTheme();

const downloadButton = document.getElementById("download");
downloadButton.addEventListener("click", () => download(downloadButton));

themeButton.hidden = false;
downloadButton.hidden = !canInflate;
