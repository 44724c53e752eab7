// A chart of curves over steps, with the values at the step that is pointed at.
"use strict";

const MARK = 7; // pixels of the mark of a value that is not finite
const DOTS = 60; // points of a curve up to which each has a dot
const SEE_THROUGH = 0.7; // opacity of curves that may hide each other

class CurveChart {
  // spec is a RunChart of run_page.py.
  constructor(spec, parent) {
    this.spec = spec;
    this.log = spec.log;
    this.lines = [];
    this.at = null; // index of the column of the first line that is pointed at
    this.button = made("button", { type: "button", "aria-pressed": String(this.log), "aria-label": `Logarithmic axis: ${spec.title}` }, "log");
    this.canvas = made("canvas", { tabindex: "0", role: "application", "aria-roledescription": "chart" });
    this.read = made("span", { class: "read" });
    this.legend = made("ul", { class: "legend" });
    this.figure = made("figure", { class: "chart" }, made("header", {}, made("h3", {}, spec.title), this.button), this.canvas, this.read, this.legend);
    parent.append(this.figure);
    this.button.addEventListener("click", () => {
      this.log = !this.log;
      this.button.setAttribute("aria-pressed", String(this.log));
      redraw(this);
    });
    this.canvas.addEventListener("pointermove", (event) => this.pointAt(this.nearest(event.offsetX)));
    this.canvas.addEventListener("pointerleave", () => this.pointAt(null));
    this.canvas.addEventListener("blur", () => this.pointAt(null));
    this.canvas.addEventListener("keydown", (event) => this.walk(event));
    register(this.canvas, this);
  }

  // Each line is {label, columns, color, dash}: numbers of a color and a dash.
  setLines(lines) {
    this.lines = lines.filter((line) => line.columns.has.some(Boolean));
    this.at = null;
    const zero = this.spec.nonzero && this.lines.every((line) => isZero(line.columns));
    this.figure.hidden = !this.lines.length || zero;
    const swatch = ({ color: c, dash }) => {
      const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
      svg.setAttribute("viewBox", "0 0 22 8");
      svg.setAttribute("aria-hidden", "true");
      const line = document.createElementNS("http://www.w3.org/2000/svg", "line");
      for (const [name, value] of Object.entries({ x1: 0, x2: 22, y1: 4, y2: 4, class: `s${c} d${dash}` })) line.setAttribute(name, value);
      svg.append(line);
      return svg;
    };
    this.legend.replaceChildren(...this.lines.map((line) => {
      line.value = made("b");
      return made("li", {}, swatch(line), `${line.label} `, line.value);
    }));
    this.summarize();
    redraw(this);
  }

  // What the chart shows as text: the range, and what cannot be drawn as a point of a curve.
  summarize() {
    let [nan, inf, below] = [0, 0, 0];
    let [least, most] = [Infinity, -Infinity];
    for (const { columns: { low, high, has } } of this.lines) {
      for (let i = 0; i < has.length; i++) {
        if (!has[i]) continue;
        if (Number.isNaN(low[i]) || Number.isNaN(high[i])) nan++;
        if (Math.abs(low[i]) === Infinity || Math.abs(high[i]) === Infinity) inf++;
        if (low[i] <= 0) below++;
        if (Number.isFinite(low[i])) [least, most] = [Math.min(least, low[i]), Math.max(most, low[i])];
        if (Number.isFinite(high[i])) [least, most] = [Math.min(least, high[i]), Math.max(most, high[i])];
      }
    }
    this.range = [least, most];
    const parts = least === most ? [numberText(least)] : least < most ? [`${numberText(least)} to ${numberText(most)}`] : ["no finite value"];
    if (nan) parts.push(`NaN: ${nan} (magenta marks)`);
    if (inf) parts.push(`infinite: ${inf} (cyan marks)`);
    this.below = below;
    this.text = parts.join("; ");
    const last = this.lines.map((line) => `${line.label} ends at ${this.valueText(line, line.columns.has.lastIndexOf(1))}`);
    this.canvas.setAttribute("aria-label", `${this.spec.title}: ${this.text}. ${last.join(", ")}. Arrow keys read single steps.`);
    this.show();
  }

  show() {
    const hidden = this.log && this.below ? `; at or below 0: ${this.below} (at the lower edge)` : "";
    if (this.at === null) this.read.textContent = this.text + hidden;
  }

  valueText({ columns }, i) {
    if (!columns.has[i]) return "not measured";
    const [low, high] = [columns.low[i], columns.high[i]];
    return Object.is(low, high) ? numberText(low) : `${numberText(low)} to ${numberText(high)}`;
  }

  draw() {
    if (this.figure.hidden) return;
    const { context, width, height } = fitted(this.canvas);
    const [least, most] = this.bounds();
    const [top, bottom] = [MARK + 3, height - NARROW - 8];
    const values = valueScale(least, most, bottom, top, this.log);
    const left = 8 + Math.max(...values.ticks.map((tick) => context.measureText(numberText(tick)).width), 10);
    this.x = stepScale(...stepRange(), left, width - 8, state.logSteps);
    this.frame(context, values, { left, right: width - 8, top, bottom });
    context.globalAlpha = this.lines.length > 1 ? SEE_THROUGH : 1;
    for (const line of this.lines) this.curve(context, line, values.at, top, bottom);
    context.globalAlpha = 1;
    if (this.at !== null) this.cross(context, top, bottom);
    this.show();
  }

  // The range of values on the axis.
  bounds() {
    let [least, most] = this.range;
    if (this.log && least <= 0) {
      least = Infinity;
      for (const { columns: { low, high, has } } of this.lines) {
        for (let i = 0; i < has.length; i++) {
          if (!has[i]) continue;
          if (low[i] > 0 && low[i] < least) least = low[i];
          else if (high[i] > 0 && high[i] < least) least = high[i];
        }
      }
    }
    if (!(least <= most) || !Number.isFinite(least) || (this.log && most <= 0)) [least, most] = this.log ? [0.1, 1] : [0, 1];
    const line = this.spec.line;
    if (line !== null) [least, most] = [Math.min(least, line), Math.max(most, line)];
    return [least, most];
  }

  frame(context, values, { left, right, top, bottom }) {
    context.lineWidth = 1;
    context.textBaseline = "middle";
    context.textAlign = "right";
    for (const tick of values.ticks) {
      const y = Math.round(values.at(tick)) + 0.5;
      context.strokeStyle = color("edge");
      context.beginPath();
      context.moveTo(left, y);
      context.lineTo(right, y);
      context.stroke();
      context.fillStyle = color("dim");
      context.fillText(numberText(tick), left - 5, y);
    }
    drawSteps(context, this.x, bottom + 10, right);
    if (this.spec.line !== null) {
      const y = values.at(this.spec.line);
      context.strokeStyle = context.fillStyle = color("loud");
      context.setLineDash([6, 4]);
      context.beginPath();
      context.moveTo(left, y);
      context.lineTo(right, y);
      context.stroke();
      context.setLineDash([]);
      context.textAlign = "right";
      context.fillText(numberText(this.spec.line), right, y - 7);
    }
  }

  // Points in one column of pixels become its first, lowest, highest and last.
  curve(context, line, y, top, bottom) {
    const { starts, ends, low, high, has } = line.columns;
    const dots = has.length <= DOTS;
    const clamp = (v) => (this.log && v <= 0 ? bottom : Math.min(bottom, Math.max(top, y(v))));
    context.strokeStyle = context.fillStyle = color(`c${line.color}`);
    context.lineWidth = 1.5;
    context.setLineDash([[], [5, 3], [2, 2], [7, 2, 2, 2]][line.dash]);
    context.beginPath();
    const bad = [];
    let [pixel, lowest, highest, last] = [null, 0, 0, 0];
    const flush = () => {
      if (pixel !== null && lowest !== highest) {
        context.lineTo(pixel, clamp(lowest));
        context.lineTo(pixel, clamp(highest));
        context.lineTo(pixel, clamp(last));
      }
    };
    let pen = false;
    for (let i = 0; i < has.length; i++) {
      if (!has[i]) continue;
      let [a, b] = [low[i], high[i]];
      const x = Math.round(2 * this.x.at((starts[i] + ends[i]) / 2)) / 2;
      if (!Number.isFinite(a) || !Number.isFinite(b)) {
        bad.push([x, Number.isNaN(a) || Number.isNaN(b) ? "nan" : "inf", (a === -Infinity)]);
        if (!Number.isFinite(a)) a = b;
        if (!Number.isFinite(b)) b = a;
        if (!Number.isFinite(a)) {
          flush();
          [pixel, pen] = [null, false];
          continue;
        }
      }
      if (x === pixel) {
        [lowest, highest, last] = [Math.min(lowest, a), Math.max(highest, b), b];
        continue;
      }
      flush();
      if (pen) context.lineTo(x, clamp(a));
      else context.moveTo(x, clamp(a));
      [pixel, lowest, highest, last, pen] = [x, a, b, b, true];
      if (dots) context.fillRect(x - 1.5, clamp(b) - 1.5, 3, 3);
    }
    flush();
    context.stroke();
    context.setLineDash([]);
    for (const [x, kind, negative] of bad) {
      context.fillStyle = color(kind);
      context.fillRect(x - 1.5, negative ? bottom - MARK : 0, 3, MARK);
    }
  }

  cross(context, top, bottom) {
    const { starts, ends } = this.lines[0].columns;
    const x = this.x.at((starts[this.at] + ends[this.at]) / 2);
    context.strokeStyle = color("dim");
    context.lineWidth = 1;
    context.beginPath();
    context.moveTo(x, top);
    context.lineTo(x, bottom);
    context.stroke();
  }

  // The column of the first line whose middle is nearest to a place on the canvas.
  nearest(place) {
    if (!this.lines.length || !this.x) return null;
    const { starts, ends } = this.lines[0].columns;
    let [from, to] = [0, starts.length - 1];
    const middle = (i) => this.x.at((starts[i] + ends[i]) / 2);
    while (to - from > 1) {
      const half = (from + to) >> 1;
      if (middle(half) <= place) from = half;
      else to = half;
    }
    return Math.abs(middle(from) - place) <= Math.abs(middle(to) - place) ? from : to;
  }

  pointAt(index) {
    if (index === this.at) return;
    this.at = index;
    if (index !== null) {
      const { starts, ends } = this.lines[0].columns;
      const text = span(starts[index], ends[index]);
      this.read.textContent = text[0].toUpperCase() + text.slice(1);
      for (const line of this.lines) line.value.textContent = this.valueText(line, columnAt(line.columns, starts[index]));
    } else {
      for (const line of this.lines) line.value.textContent = "";
      this.show();
    }
    redraw(this);
  }

  walk(event) {
    const count = this.lines[0]?.columns.starts.length ?? 0;
    const at = this.at ?? (event.key === "ArrowLeft" ? count : -1);
    const page = Math.ceil(count / 20);
    const moves = { ArrowRight: at + 1, ArrowLeft: at - 1, PageDown: at + page, PageUp: at - page, Home: 0, End: count - 1 };
    if (!(event.key in moves) || !count || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    this.pointAt(Math.min(count - 1, Math.max(0, moves[event.key])));
    spoken.value = `${this.read.textContent}: ${this.lines.map((line) => `${line.label} ${line.value.textContent}`).join(", ")}`;
  }
}

// The column that has a step, or the last one before it; -1 if all come later.
function columnAt({ starts, ends }, step) {
  let [from, to] = [-1, starts.length - 1];
  while (from < to) {
    const half = (from + to + 1) >> 1;
    if (starts[half] <= step) from = half;
    else to = half - 1;
  }
  return from >= 0 && ends[from] >= step ? from : -1;
}

// The steps below a chart; a number that would touch the one before it is left out.
function drawSteps(context, scale, y, right) {
  context.fillStyle = color("dim");
  context.textBaseline = "middle";
  context.textAlign = "center";
  let free = -Infinity;
  for (const tick of scale.ticks) {
    const half = context.measureText(stepText(tick)).width / 2;
    const x = Math.min(scale.at(tick), right - half + 6);
    if (x - half < free) continue;
    context.fillText(stepText(tick), x, y);
    free = x + half + 10;
  }
}
