// The graph of modules. Boxes fold without any script; with it the graph is one stop for the Tab
// key, arrow keys go from box to box, and the layer that is shown is marked.
"use strict";

const graph = document.getElementById("graph");
const stops = [...graph.querySelectorAll("summary, li > a")];
const boxOf = (stop) => stop.closest("li");
const foldOf = (stop) => (stop.tagName === "SUMMARY" ? stop.parentElement : null);

// The box around a box; none around the model.
const holderOf = (stop) => boxOf(stop).parentElement.closest("details")?.querySelector("summary") ?? null;

// The outermost closed box around a box; null where none is closed.
function closedBoxOver(stop) {
  let outermost = null;
  for (let up = holderOf(stop); up; up = holderOf(up)) if (!up.parentElement.open) outermost = up;
  return outermost;
}

const isShown = (stop) => !closedBoxOver(stop);

function setGraphStop(stop) {
  for (const other of stops) other.tabIndex = other === stop ? 0 : -1;
}

function goTo(stop) {
  if (!stop) return;
  setGraphStop(stop);
  stop.focus();
}

function move(stop, by) {
  for (let at = stops.indexOf(stop) + by; stops[at]; at += by) if (isShown(stops[at])) return goTo(stops[at]);
}

const GRAPH_KEYS = {
  ArrowDown: (stop) => move(stop, 1),
  ArrowUp: (stop) => move(stop, -1),
  ArrowRight: (stop) => {
    const fold = foldOf(stop);
    if (fold && !fold.open) fold.open = true;
    else move(stop, 1);
  },
  ArrowLeft: (stop) => {
    const fold = foldOf(stop);
    if (fold?.open) fold.open = false;
    else goTo(holderOf(stop));
  },
  Home: () => goTo(stops[0]),
  End: () => goTo(stops.findLast(isShown)),
  Enter: (stop) => { location.hash = `n${boxOf(stop).dataset.node}`; },
};

graph.addEventListener("keydown", (event) => {
  const stop = event.target.closest("summary, li > a");
  if (!stop || event.ctrlKey || event.metaKey || event.altKey || !GRAPH_KEYS[event.key]) return;
  event.preventDefault();
  GRAPH_KEYS[event.key](stop);
});
graph.addEventListener("focusin", (event) => {
  const stop = event.target.closest("summary, li > a");
  if (stop) setGraphStop(stop);
});

// A box that folds over the stop takes its place. Where several fold at once, any of them may be the
// first to report it, so the box is looked for from the stop.
graph.addEventListener("toggle", () => {
  const over = closedBoxOver(stops.find((other) => other.tabIndex === 0));
  if (over) setGraphStop(over);
}, true);

for (const name of ["unfold", "fold"]) {
  const button = document.getElementById(name);
  button.hidden = false;
  button.addEventListener("click", () => {
    // The box of the model itself stays open.
    for (const fold of [...graph.querySelectorAll("details")].slice(name === "fold" ? 1 : 0)) fold.open = name === "unfold";
  });
}

function markInGraph(node) {
  for (const stop of stops) {
    if (boxOf(stop).dataset.node === node) stop.setAttribute("aria-current", "true");
    else if (stop.hasAttribute("aria-current")) stop.removeAttribute("aria-current");
  }
}

for (const link of graph.querySelectorAll("summary a")) link.tabIndex = -1; // Enter follows it
setGraphStop(stops[0]);
