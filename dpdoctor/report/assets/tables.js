// Tables: sorted by a click on a title, filtered by words.
const LEAST_TO_SORT = 4;
const LEAST_TO_FILTER = 12;
const byText = new Intl.Collator("en", { numeric: true });

// The number that a cell shows; null where it shows none.
function numberIn(row, column) {
  const value = row.cells[column].querySelector("data")?.value;
  return value === undefined ? null : Number(value);
}

// Numbers go by value and what is unknown comes last; a column without any number goes by its text.
function sorted(rows, column, sign) {
  const numbers = new Map(rows.map((row) => [row, numberIn(row, column)]));
  const known = rows.filter((row) => numbers.get(row) !== null);
  if (known.length === 0) {
    const text = (row) => row.cells[column].textContent.trim();
    return [...rows].sort((a, b) => sign * byText.compare(text(a), text(b)));
  }
  const unknown = rows.filter((row) => numbers.get(row) === null);
  return [...known.sort((a, b) => sign * (numbers.get(a) - numbers.get(b))), ...unknown];
}

function makeSortable(table, rows) {
  const titles = [...table.tHead.rows[0].cells];
  for (const [column, title] of titles.entries()) {
    const button = element("button", { type: "button", className: "sort", textContent: title.textContent });
    title.replaceChildren(button);
    button.addEventListener("click", () => {
      const isDescending = title.getAttribute("aria-sort") === "ascending";
      titles.forEach((other) => other.removeAttribute("aria-sort"));
      title.setAttribute("aria-sort", isDescending ? "descending" : "ascending");
      table.tBodies[0].append(...sorted(rows, column, isDescending ? -1 : 1));
    });
  }
}

function makeFilterable(table, rows) {
  const input = element("input", { type: "search", className: "filter", autocomplete: "off" });
  const shown = element("output");
  const label = element("label", { className: "filtering" });
  label.append("Filter rows ", input);
  const bar = element("div", { className: "filter-bar" });
  bar.append(label, shown);
  const apply = () => {
    const words = input.value.toLowerCase().split(/\s+/);
    for (const row of rows) row.hidden = !words.every((word) => row.textContent.toLowerCase().includes(word));
    shown.textContent = `${rows.filter((row) => !row.hidden).length} of ${rows.length} rows`;
  };
  input.addEventListener("input", apply);
  table.closest(".scroll").before(bar);
  apply();
}

for (const table of document.querySelectorAll("table:not(.bars)")) {
  const rows = [...table.tBodies[0].rows];
  if (rows.length >= LEAST_TO_SORT) makeSortable(table, rows);
  if (rows.length >= LEAST_TO_FILTER) makeFilterable(table, rows);
}
