// What the page does beyond standing there: the tree by keyboard, one panel at a time, a filter
// for tree and table, a table that sorts, dark and light. Without it everything is still shown.
"use strict";

const items = [...document.querySelectorAll(".tree [role=treeitem]")];
const panels = [...document.querySelectorAll(".panel")];
const table = document.getElementById("table");
const rows = [...table.tBodies[0].rows];
const filter = document.getElementById("filter");
const found = document.getElementById("found");
let keep = null; // the test of the filter, null for none

// The tree. Items stand in one list, parents before children, each with its level.

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

function lay() {
  const matched = items.map((item) => !keep || keep(item.dataset.name));
  const needed = [...matched];
  for (let i = items.length - 1; i > 0; i--) if (needed[i]) needed[parents[i]] = true;
  items.forEach((item, i) => {
    const above = parents[i];
    // A filter opens what holds its finds; without one what is closed hides what it holds.
    const shown = above < 0 || keep || (!items[above].hidden && isOpen(items[above]));
    item.hidden = !(shown && needed[i]);
    item.classList.toggle("beside", Boolean(keep) && !matched[i]);
  });
  let count = 0;
  for (const row of rows) {
    row.hidden = !matched[Number(row.dataset.node)];
    count += !row.hidden;
  }
  found.value = keep ? `${matched.filter(Boolean).length} of ${items.length} layers, ${count} of ${rows.length} tensors` : "";
  const stop = items.find((item) => item.tabIndex === 0);
  if (!stop || stop.hidden) setStop(visibleItems()[0]);
}

function setStop(item) {
  for (const other of items) other.tabIndex = -1;
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

// One panel at a time: the one that the address names, else the first layer that has something.

function show(jump) {
  const named = panels.find((panel) => `#${panel.id}` === location.hash);
  const shown = named ?? panels.find((panel) => panel.querySelector(".entry")) ?? panels[0];
  for (const panel of panels) panel.hidden = panel !== shown;
  for (const item of items) {
    const chosen = item.dataset.node === shown.dataset.node;
    item.setAttribute("aria-selected", String(chosen));
    if (!chosen) continue;
    for (let up = parentOf(item); up; up = parentOf(up)) {
      if (up.hasAttribute("aria-expanded")) up.setAttribute("aria-expanded", "true");
    }
    lay();
    setStop(item.hidden ? visibleItems()[0] : item);
  }
  for (const row of rows) row.classList.toggle("chosen", row.dataset.node === shown.dataset.node);
  if (jump && named) named.scrollIntoView({ block: "nearest" });
}

addEventListener("hashchange", () => show(true));

// The filter.

filter.addEventListener("input", () => {
  const typed = filter.value.trim();
  const test = typed ? compileFilter(typed) : null;
  filter.toggleAttribute("aria-invalid", Boolean(typed) && !test);
  if (typed && !test) {
    found.value = "A brace has no partner.";
    return;
  }
  keep = test;
  lay();
});
addEventListener("keydown", (event) => {
  const typing = event.target.closest("input, textarea");
  if (event.key === "/" && !typing && !event.ctrlKey && !event.metaKey) {
    event.preventDefault();
    filter.focus();
  }
  if (event.key === "Escape" && event.target === filter) {
    filter.value = "";
    filter.dispatchEvent(new Event("input"));
  }
});

// The table. Numbers sort as numbers; what is no number comes last both ways.

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
}

heads.forEach((head, i) => {
  head.querySelector("button").addEventListener("click", () => {
    sortBy(i, head.getAttribute("aria-sort") === "ascending");
  });
});

// Dark and light: as the system has it, until somebody says otherwise.

const theme = document.getElementById("theme");
const systemDark = matchMedia("(prefers-color-scheme: dark)");
const isDark = () => (document.documentElement.dataset.theme ?? (systemDark.matches ? "dark" : "light")) === "dark";
const nameTheme = () => { theme.textContent = isDark() ? "Light" : "Dark"; };
theme.hidden = false;
theme.addEventListener("click", () => {
  document.documentElement.dataset.theme = isDark() ? "light" : "dark";
  nameTheme();
});
systemDark.addEventListener("change", nameTheme);
nameTheme();

show(false);
