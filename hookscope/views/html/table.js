// The table. Numbers sort as numbers; what is no number comes last both ways. A page that shows
// some rows only listens for the event "sorted".
"use strict";

const table = document.getElementById("table");
const rows = [...table.tBodies[0].rows];
const tensors = rows.filter((row) => !row.matches(".missing")).length;
const heads = [...table.tHead.rows[0].cells];

function sortBy(column, down) {
  const number = heads[column].classList.contains("number");
  const key = (row) => {
    const cell = row.cells[column];
    if (!number) return cell.textContent;
    const text = cell.dataset.sort;
    return text === "" ? null : text === "inf" ? Infinity : text === "-inf" ? -Infinity : Number(text);
  };
  const order = new Intl.Collator("en", { numeric: true });
  const keyed = rows.map((row) => [key(row), row]);
  keyed.sort(([a], [b]) => {
    if (a === null || b === null) return (a === null) - (b === null);
    const less = number ? (a > b) - (a < b) : order.compare(a, b);
    return down ? -less : less;
  });
  table.tBodies[0].append(...keyed.map(([, row]) => row));
  heads.forEach((head, i) => {
    if (i === column) head.setAttribute("aria-sort", down ? "descending" : "ascending");
    else head.removeAttribute("aria-sort");
  });
  table.dispatchEvent(new Event("sorted"));
}

heads.forEach((head, i) => {
  head.querySelector("button")?.addEventListener("click", () => {
    sortBy(i, head.getAttribute("aria-sort") === "ascending");
  });
});
