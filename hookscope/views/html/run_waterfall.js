// Layers by steps: a row is a series of a layer, a column a sampled step, its color a logarithm.
"use strict";

const ONE_HUE = ["440154", "472d7b", "3b528b", "2c728e", "21918c", "28ae80", "5ec962", "addc30", "fde725"];
const TWO_HUES = ["2166ac", "4393c3", "92c5de", "d1e5f0", "f7f7f7", "fddbc7", "f4a582", "d6604d", "b2182b"];
const SHADES = 251; // numbers of colors of finite values; those below follow
const [ZERO, NAN, INF, ABSENT] = [251, 252, 253, 254];
const SPECIAL = { [ZERO]: "zero", [NAN]: "cell-nan", [INF]: "cell-inf", [ABSENT]: "absent" };
const AROUND = 3; // decades on each side of the centre of a scale of two hues
const HEAD = 20; // pixels above the rows, for the steps

const rgb = (hex) => [0, 2, 4].map((i) => parseInt(hex.replace("#", "").slice(i, i + 2), 16));

// All colors by their numbers, as words of an image of little-endian bytes.
function palette(stops) {
  const colors = new Uint32Array(256);
  const put = (n, [r, g, b]) => { colors[n] = (255 << 24 | Math.round(b) << 16 | Math.round(g) << 8 | Math.round(r)) >>> 0; };
  const parts = stops.map(rgb);
  for (let n = 0; n < SHADES; n++) {
    const at = (n / (SHADES - 1)) * (parts.length - 1);
    const i = Math.min(Math.floor(at), parts.length - 2);
    put(n, parts[i].map((c, k) => c + (parts[i + 1][k] - c) * (at - i)));
  }
  for (const [n, name] of Object.entries(SPECIAL)) put(n, rgb(color(name)));
  return colors;
}

class Waterfall {
  // spec is a RunWaterfall of run_page.py.
  constructor(spec, parent) {
    this.spec = spec;
    this.stops = spec.centre === null ? ONE_HUE : TWO_HUES;
    this.rows = [];
    this.cursor = null; // [row, column] of the keyboard
    this.canvas = made("canvas", { tabindex: "0", role: "application", "aria-roledescription": "picture of layers by steps" });
    this.bar = made("canvas");
    this.scale = made("ul", { class: "scale" });
    this.view = made("div", { class: "view" }, this.canvas);
    const title = `log10 of ${spec.title[0].toLowerCase()}${spec.title.slice(1)}`;
    this.figure = made("figure", { class: "waterfall" }, made("header", {}, made("h3", {}, title)), this.view, this.scale);
    parent.append(this.figure);
    this.canvas.addEventListener("pointermove", (event) => this.point(event));
    this.canvas.addEventListener("pointerleave", () => { hint.hidden = true; });
    this.canvas.addEventListener("click", (event) => {
      const cell = this.cellAt(event);
      if (cell) select(this.rows[cell[0]].layer, event.ctrlKey || event.metaKey);
    });
    this.canvas.addEventListener("keydown", (event) => this.walk(event));
    this.canvas.addEventListener("blur", () => {
      this.cursor = null;
      redraw(this);
    });
    register(this.canvas, this);
  }

  // Each row is {layer, label, load}: load() gives its columns when the picture is drawn.
  setRows(rows) {
    this.rows = rows;
    this.cursor = null;
    this.limits = null;
    this.figure.hidden = !rows.length;
    this.canvas.setAttribute("aria-label", `${this.spec.title} of ${rows.length} rows by step. Arrow keys read single cells, Enter selects the layer. The table below has the last values.`);
    const count = rows.length;
    this.rowHeight = count > 2000 ? 1 : count > 600 ? 2 : Math.min(18, Math.max(3, Math.floor(420 / Math.max(count, 1))));
    this.canvas.style.height = `${HEAD + count * this.rowHeight}px`;
    redraw(this);
  }

  draw() {
    if (!this.rows.length) return;
    for (const row of this.rows) row.columns ??= row.load();
    const { context, width, density } = fitted(this.canvas);
    this.left = this.gutter(context, width);
    this.width = width - this.left - 4;
    const { image, counts } = this.image(Math.max(1, Math.floor(this.width * density)));
    context.imageSmoothingEnabled = false;
    context.drawImage(image, this.left, HEAD, this.width, this.rows.length * this.rowHeight);
    this.steps(context);
    this.names(context);
    if (this.cursor) {
      const [row, column] = this.cursor;
      const cell = this.width / this.count;
      context.strokeStyle = color("ink");
      context.lineWidth = 2;
      context.strokeRect(this.left + column * cell - 1, HEAD + row * this.rowHeight - 1, Math.max(cell, 2) + 2, this.rowHeight + 2);
    }
    this.legend(counts);
  }

  get count() {
    return this.rows[0].columns.starts.length;
  }

  // The worst of a cell: NaN, then infinity, then the highest.
  static valueOf({ low, high, has }, i) {
    if (!has[i]) return null;
    return Number.isNaN(low[i]) ? NaN : low[i] === -Infinity ? -Infinity : high[i];
  }

  // The logarithms at the ends of the scale: nearly all values lie between them.
  findLimits() {
    const { centre } = this.spec;
    if (centre !== null) return [Math.log10(centre) - AROUND, Math.log10(centre) + AROUND];
    const sample = [];
    const every = Math.max(1, Math.floor((this.rows.length * this.count) / 40000));
    for (let n = 0; n < this.rows.length * this.count; n += every) {
      const value = Waterfall.valueOf(this.rows[Math.floor(n / this.count)].columns, n % this.count);
      if (value > 0 && value < Infinity) sample.push(Math.log10(value));
    }
    if (!sample.length) return [-1, 1];
    const sorted = Float64Array.from(sample).sort();
    const [low, high] = [0.005, 0.995].map((share) => sorted[Math.round(share * (sorted.length - 1))]);
    return high - low < 0.1 ? [low - 0.5, high + 0.5] : [low, high];
  }

  image(pixels) {
    this.limits ??= this.findLimits();
    const [low, high] = this.limits;
    const width = Math.min(this.count, pixels);
    const colors = palette(this.stops);
    const image = made("canvas", { width: String(width), height: String(this.rows.length) });
    const context = image.getContext("2d");
    const data = context.createImageData(width, this.rows.length);
    const words = new Uint32Array(data.data.buffer);
    const counts = { [ZERO]: 0, [NAN]: 0, [INF]: 0, [ABSENT]: 0 };
    this.rows.forEach(({ columns }, row) => {
      for (let x = 0; x < width; x++) {
        const [from, to] = [Math.floor((x * this.count) / width), Math.floor(((x + 1) * this.count) / width)];
        let code = -1;
        for (let i = from; i < to; i++) {
          const value = Waterfall.valueOf(columns, i);
          const one = this.code(value, low, high);
          if (one >= SHADES) counts[one]++;
          // NaN before infinity, before the highest value, before zero, before nothing.
          code = code < 0 || rank(one) > rank(code) ? one : code;
        }
        words[row * width + x] = colors[code];
      }
    });
    context.putImageData(data, 0, 0);
    return { image, counts };
  }

  code(value, low, high) {
    if (value === null) return ABSENT;
    if (Number.isNaN(value)) return NAN;
    if (Math.abs(value) === Infinity) return INF;
    if (value <= 0) return ZERO;
    const share = (Math.log10(value) - low) / (high - low);
    return Math.round(Math.min(1, Math.max(0, share)) * (SHADES - 1));
  }

  gutter(context, width) {
    const longest = Math.max(...this.rows.map((row) => row.label.length));
    return Math.min(0.34 * width, 12 + context.measureText("n").width * Math.min(longest, 34));
  }

  steps(context) {
    const { starts } = this.rows[0].columns;
    context.fillStyle = color("dim");
    context.textAlign = "center";
    context.textBaseline = "middle";
    const cell = this.width / this.count;
    let free = -Infinity;
    const every = Math.max(1, Math.floor(80 / cell));
    for (let i = 0; i < this.count; i += every) {
      const half = context.measureText(stepText(starts[i])).width / 2;
      const x = Math.max(this.left + half, this.left + (i + 0.5) * cell);
      if (x - half < free || x + half > this.left + this.width + 4) continue;
      context.fillText(stepText(starts[i]), x, 9);
      free = x + half + 14;
    }
  }

  // As many names as have room, and those of the selected layers.
  names(context) {
    context.textAlign = "right";
    context.textBaseline = "middle";
    const middle = (n) => HEAD + (n + 0.5) * this.rowHeight;
    const written = []; // the heights of names
    const write = (row, n, ink) => {
      const y = middle(n);
      if (written.some((other) => Math.abs(other - y) < 12)) return;
      written.push(y);
      context.fillStyle = color(ink);
      context.fillText(cut(context, row.label, this.left - 8), this.left - 6, y);
    };
    context.strokeStyle = color("link");
    context.lineWidth = this.rowHeight > 5 ? 2 : 1;
    this.rows.forEach((row, n) => {
      if (!state.selected.includes(row.layer)) return;
      write(row, n, "link");
      context.strokeRect(this.left - 0.5, HEAD + n * this.rowHeight - 0.5, this.width + 1, this.rowHeight + 1);
    });
    const every = Math.max(1, Math.ceil(13 / this.rowHeight));
    for (let n = 0; n < this.rows.length; n += every) write(this.rows[n], n, "dim");
  }

  legend(counts) {
    const [low, high] = this.limits.map((log) => numberText(Number((10 ** log).toPrecision(3))));
    const middle = this.spec.centre === null ? "" : `, white is ${numberText(this.spec.centre)}`;
    const labels = { [ZERO]: "zero", [NAN]: "NaN", [INF]: "infinite", [ABSENT]: "not measured" };
    const special = Object.entries(counts).filter(([, count]) => count)
      .map(([n, count]) => made("li", {}, made("i", { class: `swatch-${SPECIAL[n]}` }), `${labels[n]}: ${stepText(count)}`));
    const thinned = this.rows[0].columns.thinned ? [made("li", { class: "dim" }, "the highest of the steps in a column")] : [];
    this.scale.replaceChildren(made("li", {}, `≤ ${low}`, this.bar, `≥ ${high}${middle}`), ...special, ...thinned);
    [this.bar.width, this.bar.height] = [SHADES, 1];
    const context = this.bar.getContext("2d");
    const data = context.createImageData(SHADES, 1);
    new Uint32Array(data.data.buffer).set(palette(this.stops).subarray(0, SHADES));
    context.putImageData(data, 0, 0);
  }

  cellAt({ offsetX, offsetY }) {
    if (!this.rows.length || this.left === undefined) return null;
    const row = Math.floor((offsetY - HEAD) / this.rowHeight);
    const column = Math.floor(((offsetX - this.left) / this.width) * this.count);
    if (!this.rows[row] || column >= this.count) return null;
    return [row, Math.max(column, 0)];
  }

  cellText([row, column]) {
    const { label, columns } = this.rows[row];
    const [low, high] = [columns.low[column], columns.high[column]];
    const value = Object.is(low, high) ? numberText(low) : `${numberText(low)} to ${numberText(high)}`;
    return `${label}, ${span(columns.starts[column], columns.ends[column])}: ${columns.has[column] ? value : "not measured"}`;
  }

  point(event) {
    const cell = this.cellAt(event);
    hint.hidden = !cell;
    if (!cell) return;
    hint.textContent = this.cellText(cell);
    const { width, height } = hint.getBoundingClientRect();
    hint.style.left = `${Math.max(4, Math.min(event.clientX + 14, innerWidth - width - 6))}px`;
    hint.style.top = `${event.clientY + 18 + height > innerHeight ? event.clientY - height - 10 : event.clientY + 18}px`;
  }

  walk(event) {
    if (!this.rows.length || event.altKey) return;
    const [row, column] = this.cursor ?? [0, 0];
    const moves = {
      ArrowDown: [row + 1, column], ArrowUp: [row - 1, column], ArrowRight: [row, column + 1],
      ArrowLeft: [row, column - 1], Home: [row, 0], End: [row, this.count - 1],
      PageDown: [row + 10, column], PageUp: [row - 10, column], Enter: [row, column],
    };
    if (!(event.key in moves)) return;
    event.preventDefault();
    const [r, c] = this.cursor || event.key === "End" ? moves[event.key] : [0, 0];
    this.cursor = [Math.min(this.rows.length - 1, Math.max(0, r)), Math.min(this.count - 1, Math.max(0, c))];
    spoken.value = this.cellText(this.cursor);
    if (event.key === "Enter") select(this.rows[this.cursor[0]].layer, event.ctrlKey || event.metaKey);
    const y = HEAD + this.cursor[0] * this.rowHeight;
    const { scrollTop, clientHeight } = this.view;
    if (y < scrollTop + HEAD || y > scrollTop + clientHeight - HEAD) this.view.scrollTop = y - clientHeight / 2;
    const box = this.canvas.getBoundingClientRect();
    this.point({
      offsetX: this.left + ((this.cursor[1] + 0.5) * this.width) / this.count, offsetY: HEAD + (this.cursor[0] + 0.5) * this.rowHeight,
      clientX: box.left + this.left + ((this.cursor[1] + 0.5) * this.width) / this.count, clientY: box.top + HEAD + this.cursor[0] * this.rowHeight,
    });
    redraw(this);
  }
}

const hint = document.getElementById("hint");
const rank = (code) => (code === NAN ? 1000 : code === INF ? 999 : code === ABSENT ? -2 : code === ZERO ? -1 : code);

// A name that fits, without its beginning: layers of one block differ at the end.
function cut(context, name, room) {
  if (context.measureText(name).width <= room) return name;
  let from = 1;
  while (from < name.length && context.measureText(`…${name.slice(from)}`).width > room) from++;
  return `…${name.slice(from)}`;
}
