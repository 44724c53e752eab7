// What is shown: run, model, optimizer, selected layers; and the curves of each chart.
"use strict";

const COLORS = 8;
const DASHES = 4;
const state = { run: 0, model: 0, optimizer: "", selected: [], logSteps: false };
const currentModel = () => pageData.models[state.model] ?? { name: "", layers: [] };

// All charts have the same steps, so that what lies above each other happened at the same time.
let steps = null;
function stepRange() {
  steps ??= pageData.runs.flatMap((run) => [0, 1].map((table) => axisOf(run, table)))
    .filter(({ starts }) => starts.length)
    .reduce(([from, to], { starts, ends }) => [Math.min(from, starts[0]), Math.max(to, ends[ends.length - 1])], [Infinity, 0]);
  return steps[0] === Infinity ? [0, 1] : steps;
}

// A name for a series among the others of its chart.
function curveLabel(spec, series, layer, run) {
  const measures = new Set(spec.sources.map(([, measure]) => measure));
  const parts = [series.label];
  if (measures.size > 1) parts.push(series.measure);
  else if (spec.sources.length > 1 && series.group.endsWith(".grad")) parts.push("gradient");
  if (state.selected.length > 1 && layer >= 0) parts.unshift(layerName(currentModel().layers[layer].name));
  if (pageData.runs.length > 1) parts.unshift(run.label);
  return parts.join(" ");
}

// The color is that of the run or of the layer where there are several, else of the series.
function linesOf(spec, layers, owners) {
  const { runs } = pageData;
  const several = runs.length * layers.length > 1;
  const lines = [];
  layers.forEach((layer, l) => {
    runs.forEach((run, r) => {
      const series = spec.sources.flatMap(([group, measure]) => owners(group, run).flatMap((owner) => seriesOf(run, owner, layer, group, measure)));
      series.forEach((one, n) => {
        lines.push({
          label: curveLabel(spec, one, layer, run),
          columns: columnsOf(run, one),
          color: (several ? l * runs.length + r : n) % COLORS,
          dash: (several ? n + Math.floor((l * runs.length + r) / COLORS) : Math.floor(n / COLORS)) % DASHES,
        });
      });
    });
  });
  return lines;
}

// The names under which the series of a group are: of the model, of optimizers, or of the run.
function owners(group, run) {
  if (group === "gradients") return [currentModel().name];
  if (group !== "groups") return [""];
  return state.optimizer ? [state.optimizer] : [...new Set(run.series.filter((s) => s.group === "groups").map((s) => s.model))];
}

const charts = pageData.charts.map((spec) => new CurveChart(spec, document.getElementById("charts")));
const layerCharts = pageData.layer_charts.map((spec) => new CurveChart(spec, document.getElementById("layer-charts")));
const waterfalls = pageData.waterfalls.map((spec) => new Waterfall(spec, document.getElementById("waterfalls")));

function fillCharts() {
  for (const chart of charts) chart.setLines(linesOf(chart.spec, [-1], owners));
}

function fillLayerCharts() {
  const model = currentModel();
  const [first] = state.selected;
  const names = state.selected.map((n) => layerName(model.layers[n].name));
  document.getElementById("selected").textContent = names.length > 1 ? names.join(", ") : first === undefined ? "No layer" : `${names[0]} ${model.layers[first].type}`;
  for (const chart of layerCharts) chart.setLines(linesOf(chart.spec, state.selected, () => [model.name]));
}

function fillWaterfalls() {
  const run = pageData.runs[state.run];
  const { name, layers } = currentModel();
  for (const waterfall of waterfalls) {
    const { group, measure } = waterfall.spec;
    waterfall.setRows(layers.flatMap((layer, n) => (isKept(n) ? seriesOf(run, name, n, group, measure) : []).map((series) => ({
      layer: n,
      label: series.label === "output" ? layerName(layer.name) : `${layerName(layer.name)} ${series.label}`,
      load: () => columnsOf(run, series),
    }))));
  }
}

// Selects a layer of the model, or with add one more, or one less.
function select(layer, add = false) {
  const { selected } = state;
  if (add && selected.includes(layer)) state.selected = selected.filter((n) => n !== layer);
  else state.selected = add ? [...selected, layer].slice(-COLORS) : [layer];
  fillLayerCharts();
  markSelected();
  waterfalls.forEach(redraw);
}

// The layer that a finding is about, else the first one.
function selectFirst() {
  const { layers } = currentModel();
  const levels = ["error", "warning", "note", ""];
  const level = levels.find((one) => layers.some((layer) => layer.level === one));
  state.selected = layers.length ? [layers.findIndex((layer) => layer.level === level)] : [];
}

function showModel() {
  fillList();
  fillCharts();
  fillWaterfalls();
  fillLayerCharts();
  applyFilter();
  markSelected();
}

// An address such as #m0l12 names a layer: findings and the table lead to it.
function followAddress() {
  const match = /^#m(\d+)l(\d+)$/u.exec(location.hash);
  if (!match || !pageData.models[match[1]]?.layers[match[2]]) return false;
  const model = Number(match[1]);
  if (model !== state.model) {
    state.model = model;
    document.getElementById("model").value = match[1];
    state.selected = [Number(match[2])];
    showModel();
  } else {
    select(Number(match[2]));
  }
  document.getElementById("selected").scrollIntoView({ block: "nearest" });
  return true;
}

addEventListener("hashchange", followAddress);
// A second click on a link that is the address already selects its layer again.
document.addEventListener("click", (event) => {
  if (event.target.closest("a")?.hash === location.hash && location.hash) followAddress();
});

// A choice between several; with one there is nothing to choose.
function offer(id, names, choose) {
  const box = document.getElementById(id);
  box.closest("label").hidden = names.length < 2;
  for (const [value, text] of names) box.append(made("option", { value }, text));
  box.addEventListener("change", () => choose(box.value));
}

offer("run", pageData.runs.map((run, n) => [String(n), run.label]), (value) => {
  state.run = Number(value);
  fillWaterfalls();
  applyFilter();
});
offer("model", pageData.models.map((model, n) => [String(n), model.type && model.type !== model.name ? `${model.name} (${model.type})` : model.name]), (value) => {
  state.model = Number(value);
  selectFirst();
  showModel();
});
const optimizers = pageData.optimizers.map((name) => [name, name]);
offer("optimizer", optimizers.length > 1 ? [["", "all"], ...optimizers] : [], (value) => {
  state.optimizer = value;
  fillCharts();
});
document.getElementById("steps").addEventListener("change", (event) => {
  state.logSteps = event.target.value === "log";
  [...charts, ...layerCharts].forEach(redraw);
});
for (const element of document.querySelectorAll(".choices, .keys")) element.hidden = false;

selectFirst();
showModel();
followAddress();
document.documentElement.classList.add("live");
