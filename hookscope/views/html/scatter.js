// What the mouse points at: its name, its image, and rings around its nearest rows.
"use strict";

const points = new Map([...document.querySelectorAll(".scatter [data-near]")].map((p) => [p.dataset.row, p]));
const shown = document.getElementById("pointed");

function show(point) {
  for (const other of points.values()) other.classList.remove("near", "pointed");
  point.classList.add("pointed");
  for (const row of point.dataset.near.split(" ")) points.get(row)?.classList.add("near");
  const image = document.querySelector(`.scatter img[data-row="${point.dataset.row}"]`);
  shown.replaceChildren(...(image ? [image.cloneNode()] : []), point.querySelector("title").textContent);
}

for (const point of points.values()) point.addEventListener("pointerenter", () => show(point));
