"use strict";
// A click on a heading sorts its table by that column, another one the other way round. What is missing comes last.

function compare(a, b) {
  const [x, y] = [Number(a), Number(b)];
  return Number.isNaN(x) || Number.isNaN(y) ? a.localeCompare(b, "en", { numeric: true }) : x - y;
}

function sort(table, column, heading) {
  const descending = heading.getAttribute("aria-sort") === "ascending";
  for (const other of table.querySelectorAll("th")) other.removeAttribute("aria-sort");
  heading.setAttribute("aria-sort", descending ? "descending" : "ascending");
  const key = (row) => row.cells[column].dataset.key;
  const [known, missing] = [[], []];
  for (const row of table.tBodies[0].rows) (key(row) === "" ? missing : known).push(row);
  known.sort((a, b) => compare(key(a), key(b)) * (descending ? -1 : 1));
  table.tBodies[0].append(...known, ...missing);
}

for (const table of document.querySelectorAll("table")) {
  if (table.tBodies[0].rows.length < 2) continue;
  [...table.tHead.rows[0].cells].forEach((heading, column) => {
    const button = document.createElement("button");
    button.type = "button";
    button.append(...heading.childNodes);
    button.addEventListener("click", () => sort(table, column, heading));
    heading.append(button);
  });
}
