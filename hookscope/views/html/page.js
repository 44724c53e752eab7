// What tree, graph and table share: one panel at a time and a filter. Without any script everything
// is still shown. page.py puts this after the scripts that it uses.
"use strict";

const panels = [...document.querySelectorAll(".panel")];

// One panel at a time: the one that the address names, else the first layer that has something.

function show(jump) {
  const named = panels.find((panel) => `#${panel.id}` === location.hash);
  const shown = named ?? panels.find((panel) => panel.querySelector(".entry")) ?? panels[0];
  for (const panel of panels) put(panel, panel !== shown);
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
  markInGraph(shown.dataset.node);
  for (const row of rows) row.classList.toggle("chosen", row.dataset.node === shown.dataset.node);
  if (jump && named) named.scrollIntoView({ block: "nearest" });
}

addEventListener("hashchange", () => show(true));

// The filter, for tree, graph and table.

// In a large model few of thousands change, and only those cost anything.
function put(element, hidden) {
  if (element.hidden !== hidden) element.hidden = hidden;
}

function lay() {
  const matched = items.map((item) => !keep || keep(item.dataset.name));
  const needed = [...matched];
  for (let i = items.length - 1; i > 0; i--) if (needed[i]) needed[parents[i]] = true;
  items.forEach((item, i) => {
    const above = parents[i];
    // With a filter the items around a match are open; without one a closed item hides its children.
    const shown = above < 0 || keep || (!items[above].hidden && isOpen(items[above]));
    put(item, !(shown && needed[i]));
    item.classList.toggle("beside", Boolean(keep) && !matched[i]);
  });
  for (const stop of stops) stop.classList.toggle("beside", !matched[Number(boxOf(stop).dataset.node)]);
  let count = 0;
  for (const row of rows) {
    put(row, !matched[Number(row.dataset.node)]);
    count += !row.hidden && !row.matches(".missing");
  }
  found.value = keep ? `${matched.filter(Boolean).length} of ${items.length} layers, ${count} of ${tensors} tensors` : "";
  const stop = items.find(isStop);
  if (!stop || stop.hidden) setStop(visibleItems()[0]);
}

onFilter(lay);
show(false);
document.documentElement.classList.add("live");
