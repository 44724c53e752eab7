// Scales, ticks and numbers of all charts, and which charts are drawn: those in sight.
"use strict";

const NARROW = 11; // pixels of the letters of axes
const FONT = `${NARROW}px system-ui, sans-serif`;
const stepText = (step) => step.toLocaleString("en");
const span = (from, to) => (from === to ? `step ${stepText(from)}` : `steps ${stepText(from)} to ${stepText(to)}`);

function numberText(value) {
  if (Number.isNaN(value)) return "NaN";
  if (!Number.isFinite(value)) return value > 0 ? "Inf" : "-Inf";
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (size >= 1e-3 && size < 1e6) return String(Number(value.toPrecision(4)));
  return value.toExponential(3).replace(/\.?0+e/u, "e").replace("e+", "e");
}

// Round numbers between two bounds, about as many as are wanted.
function linearTicks(from, to, wanted) {
  const rough = (to - from) / Math.max(wanted, 1);
  const power = 10 ** Math.floor(Math.log10(rough));
  const unit = [1, 2, 5, 10].find((n) => n * power >= rough) * power;
  const ticks = [];
  for (let n = Math.ceil(from / unit); n * unit <= to * (1 + 1e-12); n++) ticks.push(Number((n * unit).toPrecision(12)));
  return ticks;
}

function decadeTicks(from, to, wanted) {
  const [first, last] = [Math.ceil(Math.log10(from) - 1e-9), Math.floor(Math.log10(to) + 1e-9)];
  if (last - first < 1) return linearTicks(from, to, wanted);
  const every = Math.max(1, Math.ceil((last - first) / wanted));
  const ticks = [];
  for (let n = first; n <= last; n += every) ticks.push(10 ** n);
  return ticks;
}

// A scale from values to pixels. Steps begin at 0, so that a logarithmic one is of step + 1.
function stepScale(from, to, left, right, log) {
  const map = log ? (s) => Math.log1p(s - from) : (s) => s - from;
  const width = map(to) || 1;
  const at = (s) => left + (map(s) / width) * (right - left);
  const inner = (to - from) || 1;
  const decades = [0, 1, 10, 100, 1e3, 1e4, 1e5, 1e6, 1e7].filter((n) => n <= inner);
  const room = Math.floor((right - left) / 70);
  const ticks = log ? decades.map((n) => n + from).slice(-Math.max(room, 2) - 2) : linearTicks(from, from + inner, room);
  return { at, ticks: ticks.filter((n) => n <= to && Number.isInteger(n)) };
}

function valueScale(low, high, bottom, top, log) {
  let [from, to] = [low, high];
  if (log) {
    if (to / from < 1.2) [from, to] = [from / 1.5, to * 1.5];
    const margin = (to / from) ** 0.04;
    [from, to] = [from / margin, to * margin];
    const width = Math.log(to / from);
    return { at: (v) => bottom - (Math.log(v / from) / width) * (bottom - top), ticks: decadeTicks(from, to, 4) };
  }
  if (from === to) [from, to] = [from - (Math.abs(from) || 1) * 0.1, to + (Math.abs(to) || 1) * 0.1];
  const margin = 0.04 * (to - from);
  [from, to] = [from - margin, to + margin];
  return { at: (v) => bottom - ((v - from) / (to - from)) * (bottom - top), ticks: linearTicks(from, to, 4) };
}

// A canvas as large as it is shown, in pixels of the screen; coordinates are those of CSS.
function fitted(canvas) {
  const density = devicePixelRatio || 1;
  const { width, height } = canvas.getBoundingClientRect();
  canvas.width = Math.round(width * density);
  canvas.height = Math.round(height * density);
  const context = canvas.getContext("2d");
  context.setTransform(density, 0, 0, density, 0, 0);
  context.font = FONT;
  return { context, width, height, density };
}

function color(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
}

// What is drawn: an element with a method draw(), when it comes into sight, and again when changed.

const drawings = new Map(); // from the element to what draws it
const inSight = new IntersectionObserver((entries) => {
  for (const { target, isIntersecting } of entries) {
    const drawing = drawings.get(target);
    drawing.visible = isIntersecting;
    if (isIntersecting && drawing.stale) redraw(drawing);
  }
}, { rootMargin: "200px" });

function register(element, drawing) {
  drawing.stale = true;
  drawings.set(element, drawing);
  inSight.observe(element);
}

// At most once a frame, however often it is asked for.
function redraw(drawing) {
  drawing.stale = true;
  if (!drawing.visible || drawing.queued) return;
  drawing.queued = true;
  requestAnimationFrame(() => {
    drawing.queued = false;
    drawing.stale = false;
    drawing.draw();
  });
}

const redrawAll = () => drawings.forEach(redraw);
let shownWidth = innerWidth;
addEventListener("resize", () => {
  if (innerWidth !== shownWidth) redrawAll();
  shownWidth = innerWidth;
});
addEventListener("recolour", redrawAll);

// What is read aloud of a chart that is walked by keyboard.
const spoken = document.getElementById("spoken");

function made(name, attributes = {}, ...children) {
  const element = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  element.append(...children);
  return element;
}
