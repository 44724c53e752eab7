// Dark and light: the system's choice, until the button is used. A page that draws on canvases
// listens for the event "recolour".
"use strict";

const theme = document.getElementById("theme");
const systemDark = matchMedia("(prefers-color-scheme: dark)");
const isDark = () => (document.documentElement.dataset.theme ?? (systemDark.matches ? "dark" : "light")) === "dark";
const nameTheme = () => {
  theme.textContent = isDark() ? "Light" : "Dark";
  dispatchEvent(new Event("recolour"));
};
theme.hidden = false;
theme.addEventListener("click", () => {
  document.documentElement.dataset.theme = isDark() ? "light" : "dark";
  nameTheme();
});
systemDark.addEventListener("change", nameTheme);
nameTheme();
