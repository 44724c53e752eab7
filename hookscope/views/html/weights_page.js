// What tree and table share: one module at a time, one tensor, and a filter. Without any script
// everything is still shown. weights_page.py puts this after the scripts that it uses.
"use strict";

const detail = document.getElementById("detail");
const titles = heads.map((head) => head.textContent);
const NAME = titles.indexOf("tensor");
const HISTOGRAM = titles.indexOf("histogram");

// The names that select a tensor: its own, and those of the modules that contain it.
const selectors = rows.map((row) => {
  const name = row.cells[NAME].textContent;
  const parts = name.split(/[./]/u);
  return parts.map((_, n) => name.slice(0, parts.slice(0, n + 1).join(".").length)).reverse();
});

// Rows that are laid out at first, and at each end of scrolling: thousands would take seconds.
const BATCH = 400;
const box = table.closest(".scroll");

let limit = BATCH;
let module = 0; // the index of the module whose tensors are shown
let tensor = null; // the row whose values are shown

// In a large file few of thousands change, and only those cost anything.
function put(element, hidden) {
  if (element.hidden !== hidden) element.hidden = hidden;
}

// Whether a module is the chosen one or inside it: those follow it in the list.
function afterLast(at) {
  let end = at + 1;
  while (end < items.length && level(items[end]) > level(items[at])) end++;
  return end;
}

function lay() {
  const matched = selectors.map((names) => !keep || keep(...names));
  const needed = items.map((item) => !keep || keep(item.dataset.name));
  const beside = needed.map((is) => !is);
  rows.forEach((row, n) => {
    if (matched[n]) needed[row.dataset.node] = true;
  });
  for (let i = items.length - 1; i > 0; i--) if (needed[i]) needed[parents[i]] = true;
  items.forEach((item, i) => {
    const above = parents[i];
    // With a filter the modules around a match are open; a closed one hides what is inside.
    const shown = above < 0 || keep || (!items[above].hidden && isOpen(items[above]));
    put(item, !(shown && needed[i]));
    item.classList.toggle("beside", Boolean(keep) && beside[i]);
  });
  const end = afterLast(module);
  let count = 0;
  for (const row of table.tBodies[0].rows) { // as they are sorted
    const node = Number(row.dataset.node);
    const shown = matched[Number(row.id.slice(1))] && node >= module && node < end;
    count += shown;
    put(row, !(shown && count <= limit) && row !== tensor);
  }
  found.value = keep || module ? `${count} of ${tensors} tensors` : "";
  const stop = items.find(isStop);
  if (!stop || stop.hidden) setStop(visibleItems()[0]);
}

// The first rows of another selection or order.
function start() {
  limit = BATCH;
  box.scrollTop = 0;
  lay();
}

// The module or the tensor that the address names.
function show(jump) {
  const [, kind, digits] = /^#([nt])(\d+)$/u.exec(location.hash) ?? [];
  const named = kind === "t" ? document.getElementById(`t${digits}`) : null;
  if (named) {
    const node = Number(named.dataset.node);
    if (node < module || node >= afterLast(module)) module = 0;
  } else {
    module = kind === "n" && items[digits] ? Number(digits) : 0;
  }
  tensor?.classList.remove("chosen");
  tensor = named;
  tensor?.classList.add("chosen");
  items.forEach((item, i) => item.setAttribute("aria-selected", String(i === module)));
  for (let up = parents[module]; up >= 0; up = parents[up]) {
    if (items[up].hasAttribute("aria-expanded")) items[up].setAttribute("aria-expanded", "true");
  }
  const name = items[module].dataset.name;
  document.getElementById("selected").textContent = module ? name : "Tensors";
  if (named) lay();
  else start();
  if (!items[module].hidden) setStop(items[module]);
  showDetail();
  if (jump && tensor) {
    tensor.scrollIntoView({ block: "nearest" });
    detail.scrollIntoView({ block: "nearest" });
  }
}

function made(tag, text, name = "") {
  const element = document.createElement(tag);
  element.textContent = text;
  if (name) element.className = name;
  return element;
}

// The chosen tensor with a large histogram, and all its numbers, whatever the width of the table.
function showDetail() {
  put(detail, !tensor);
  if (!tensor) return;
  const facts = made("dl", "", "facts");
  titles.forEach((title, n) => {
    const text = tensor.cells[n].textContent;
    if (n !== NAME && n !== HISTOGRAM && text) facts.append(made("dt", title), made("dd", text));
  });
  const parts = [made("h3", tensor.cells[NAME].textContent), facts];
  const drawing = tensor.cells[HISTOGRAM].querySelector("svg");
  if (drawing) {
    const figure = document.createElement("figure");
    const about = drawing.getAttribute("aria-label");
    figure.append(drawing.cloneNode(true), made("figcaption", `${about}; logarithmic heights.`));
    parts.push(figure);
  }
  detail.replaceChildren(...parts);
}

addEventListener("hashchange", () => show(true));
// A second click on a link that is the address already leads there again.
document.addEventListener("click", (event) => {
  if (event.target.closest("a")?.hash === location.hash && location.hash) show(true);
});

onFilter(start);
table.addEventListener("sorted", start);
box.addEventListener("scroll", () => {
  if (limit >= rows.length || box.scrollTop + 2 * box.clientHeight < box.scrollHeight) return;
  limit += BATCH;
  lay();
});
addEventListener("beforeprint", () => {
  limit = rows.length;
  lay();
});

show(false);
document.documentElement.classList.add("live");
