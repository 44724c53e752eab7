// The curves of the runs, decoded block by block when they are first needed. run_curves.py says
// how they are stored.
"use strict";

const pageData = JSON.parse(document.getElementById("data").textContent);
const MISSING_WORD = 0xffffffff;
const blocks = new Map(); // the decoded ones, by number

function blockBuffer(number) {
  if (!blocks.has(number)) {
    const text = document.getElementById(`block${number}`).textContent;
    const raw = atob(text);
    const bytes = new Uint8Array(raw.length);
    for (let i = 0; i < raw.length; i++) bytes[i] = raw.charCodeAt(i);
    blocks.set(number, bytes.buffer);
  }
  return blocks.get(number);
}

const view = (Kind, [block, offset, length]) => new Kind(blockBuffer(block), 4 * offset, length);

// The first and the last step of each column of a table.
function axisOf(run, table) {
  const axis = run.axes[table];
  axis.columns ??= { starts: view(Int32Array, axis.starts), ends: view(Int32Array, axis.ends) };
  return { ...axis.columns, thinned: axis.thinned };
}

// A series as columns: {starts, ends, thinned, low, high, has}; has[i] is 0 where nothing was
// measured. low and high are the same array unless the table is thinned.
function columnsOf(run, series) {
  if (series.columns) return series.columns;
  const axis = axisOf(run, series.table);
  const count = axis.starts.length;
  const values = view(Float32Array, series.values);
  const words = view(Uint32Array, series.values);
  let [low, high] = [values, values];
  const has = new Uint8Array(count).fill(1);
  if (values.length === 1) {
    low = high = new Float32Array(count).fill(values[0]);
  } else if (axis.thinned) {
    [low, high] = [new Float32Array(count), new Float32Array(count)];
    for (let i = 0; i < count; i++) {
      low[i] = values[2 * i];
      high[i] = values[2 * i + 1];
      has[i] = words[2 * i] === MISSING_WORD ? 0 : 1;
    }
  } else {
    for (let i = 0; i < count; i++) has[i] = words[i] === MISSING_WORD ? 0 : 1;
  }
  series.columns = { ...axis, low, high, has };
  return series.columns;
}

// The series of a run by model, layer, group and measure.

const seriesKey = (model, layer, group, measure) => [model, layer, group, measure].join("\n");
for (const run of pageData.runs) {
  run.index = Map.groupBy
    ? Map.groupBy(run.series, (s) => seriesKey(s.model, s.layer, s.group, s.measure))
    : run.series.reduce((map, s) => {
      const key = seriesKey(s.model, s.layer, s.group, s.measure);
      return map.set(key, [...(map.get(key) ?? []), s]);
    }, new Map());
}

function seriesOf(run, model, layer, group, measure) {
  return run.index.get(seriesKey(model, layer, group, measure)) ?? [];
}

// Only what is zero in every row: a thinned column says so by its lowest and highest value.
function isZero({ low, high, has }) {
  return low.every((value, i) => !has[i] || (value === 0 && high[i] === 0));
}
