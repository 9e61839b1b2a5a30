// The buttons of the header: the theme, and all numbers of the page as a file.
function download(button) {
  const text = document.getElementById("run").textContent;
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

themeButton.hidden = downloadButton.hidden = false;
