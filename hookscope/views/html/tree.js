// The tree by keyboard and by click. Items stand in one list, parents before children, each with
// its level. lay() in page.js decides which of them are shown.
"use strict";

const items = [...document.querySelectorAll(".tree [role=treeitem]")];
const level = (item) => Number(item.getAttribute("aria-level"));
const parents = [];
items.forEach((item, i) => {
  let at = i - 1;
  while (at >= 0 && level(items[at]) >= level(item)) at = level(items[at]) === level(item) ? parents[at] : at - 1;
  parents.push(at);
});
const parentOf = (item) => items[parents[items.indexOf(item)]];
const isOpen = (item) => item.getAttribute("aria-expanded") !== "false";
const visibleItems = () => items.filter((item) => !item.hidden);

// The item that Tab stops at. The attribute is read: the property of an item out of sight would
// make the browser lay it out.
const isStop = (item) => item.getAttribute("tabindex") === "0";

function setStop(item) {
  for (const other of items) if (isStop(other) && other !== item) other.tabIndex = -1;
  if (item) item.tabIndex = 0;
}

function focusItem(item) {
  if (!item) return;
  setStop(item);
  item.focus();
}

function toggle(item, open) {
  if (!item.hasAttribute("aria-expanded")) return;
  item.setAttribute("aria-expanded", String(open));
  lay();
}

const KEYS = {
  ArrowDown: (item, shown, at) => focusItem(shown[at + 1]),
  ArrowUp: (item, shown, at) => focusItem(shown[at - 1]),
  Home: (item, shown) => focusItem(shown[0]),
  End: (item, shown) => focusItem(shown[shown.length - 1]),
  ArrowRight: (item, shown, at) => {
    if (!item.hasAttribute("aria-expanded")) return;
    if (!isOpen(item)) toggle(item, true);
    else if (level(shown[at + 1] ?? item) > level(item)) focusItem(shown[at + 1]);
  },
  ArrowLeft: (item) => {
    if (item.hasAttribute("aria-expanded") && isOpen(item) && !keep) toggle(item, false);
    else focusItem(parentOf(item));
  },
  Enter: (item) => choose(item),
  " ": (item) => choose(item),
  "*": (item) => {
    for (const other of items) {
      if (parentOf(other) === parentOf(item)) toggle(other, true);
    }
  },
};

function choose(item) {
  location.hash = `n${item.dataset.node}`;
}

document.querySelector(".tree").addEventListener("keydown", (event) => {
  const item = event.target.closest("[role=treeitem]");
  if (!item || event.ctrlKey || event.metaKey || event.altKey || !KEYS[event.key]) return;
  event.preventDefault();
  const shown = visibleItems();
  KEYS[event.key](item, shown, shown.indexOf(item));
});

document.querySelector(".tree").addEventListener("click", (event) => {
  const item = event.target.closest("[role=treeitem]");
  if (!item) return;
  setStop(item);
  if (event.target.matches("b")) toggle(item, !isOpen(item));
  else if (!event.target.closest("a")) choose(item);
});
