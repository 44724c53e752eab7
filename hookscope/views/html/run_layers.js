// The list of layers by click and by keyboard, and the filter of list, waterfalls and table.
"use strict";

const list = document.getElementById("list");
const layerName = (name) => (name === "." ? MODEL : name);
let options = []; // the items of the list, one for each layer of the model

const isKept = (index) => !keep || keep(currentModel().layers[index].name);
const shownOptions = () => options.filter((option) => !option.hidden);

function fillList() {
  options = currentModel().layers.map((layer, n) => {
    const item = made("li", { role: "option", tabindex: "-1", "data-layer": String(n), "data-name": layer.name });
    item.append(layerName(layer.name), " ", made("span", { class: "type" }, layer.type));
    if (layer.level) item.append(" ", made("span", { class: layer.level === "note" ? "dim" : "mark" }, layer.level));
    return item;
  });
  list.replaceChildren(...options);
}

function applyFilter() {
  for (const option of options) option.hidden = !isKept(Number(option.dataset.layer));
  for (const row of rows) {
    const { run, model, layer } = row.dataset;
    row.hidden = Number(run) !== state.run || Number(model) !== state.model || !isKept(Number(layer));
  }
  const count = shownOptions().length;
  found.value = keep ? `${count} of ${options.length} layers` : "";
  setStop(shownOptions().find((option) => option.getAttribute("aria-selected") === "true") ?? shownOptions()[0]);
}

function setStop(option) {
  for (const other of options) if (other.tabIndex === 0 && other !== option) other.tabIndex = -1;
  if (option) option.tabIndex = 0;
}

function markSelected() {
  for (const option of options) {
    option.setAttribute("aria-selected", String(state.selected.includes(Number(option.dataset.layer))));
  }
  for (const row of rows) {
    row.classList.toggle("chosen", Number(row.dataset.model) === state.model && state.selected.includes(Number(row.dataset.layer)));
  }
  const option = options[state.selected.at(-1)];
  if (!option || option.hidden) return;
  setStop(option);
  // Within the list alone: the page itself stays where it is.
  const [top, bottom] = [option.offsetTop - list.offsetTop, option.offsetTop - list.offsetTop + option.offsetHeight];
  if (top < list.scrollTop || bottom > list.scrollTop + list.clientHeight) list.scrollTop = top - list.clientHeight / 2;
}

onFilter(() => {
  applyFilter();
  fillWaterfalls();
});

list.addEventListener("click", (event) => {
  const option = event.target.closest("[role=option]");
  if (option) select(Number(option.dataset.layer), event.ctrlKey || event.metaKey);
});

list.addEventListener("keydown", (event) => {
  const option = event.target.closest("[role=option]");
  if (!option || event.ctrlKey || event.metaKey || event.altKey) return;
  const shown = shownOptions();
  const at = shown.indexOf(option);
  const moves = { ArrowDown: at + 1, ArrowUp: at - 1, Home: 0, End: shown.length - 1 };
  if (event.key in moves) {
    const next = shown[Math.min(shown.length - 1, Math.max(0, moves[event.key]))];
    setStop(next);
    next.focus();
  } else if (event.key === "Enter" || event.key === " ") {
    select(Number(option.dataset.layer), event.key === " ");
  } else {
    return;
  }
  event.preventDefault();
});
