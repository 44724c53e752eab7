// The box in which a pattern is typed, and its keys: / goes to it, Escape empties it.
"use strict";

const filter = document.getElementById("filter");
const found = document.getElementById("found");
let keep = null; // its test of a name, null for none

// Calls apply whenever another pattern is typed.
function onFilter(apply) {
  filter.addEventListener("input", () => {
    const typed = filter.value.trim();
    const test = typed ? compileFilter(typed) : null;
    filter.toggleAttribute("aria-invalid", Boolean(typed) && !test);
    if (typed && !test) {
      found.value = "Unmatched brace.";
      return;
    }
    keep = test;
    apply();
  });
  addEventListener("keydown", (event) => {
    const typing = event.target.closest("input, select, textarea");
    if (event.key === "/" && !typing && !event.ctrlKey && !event.metaKey) {
      event.preventDefault();
      filter.focus();
    }
    if (event.key === "Escape" && event.target === filter) {
      filter.value = "";
      filter.dispatchEvent(new Event("input"));
    }
  });
}
