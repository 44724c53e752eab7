// Layer patterns as hookscope/specs/patterns.py has them: Python's fnmatch, and {a,b} for either.
"use strict";

const MAX_ALTERNATIVES = 4096;
const MODEL = "(model)"; // the name of the model itself in tables; in patterns it is "." too

// The patterns that a pattern with braces stands for; null where a brace has no partner.
function expandBraces(pattern) {
  const done = [];
  const waiting = [pattern];
  while (waiting.length) {
    const current = waiting.pop();
    const opening = current.indexOf("{");
    if (opening < 0) {
      if (current.includes("}")) return null;
      done.push(current);
      continue;
    }
    const found = choicesAt(current, opening);
    if (!found) return null;
    const rest = current.slice(found.closing + 1);
    for (const choice of found.choices.reverse()) {
      waiting.push(current.slice(0, opening) + choice + rest);
    }
    if (waiting.length + done.length > MAX_ALTERNATIVES) return null;
  }
  return done;
}

function choicesAt(text, opening) {
  const choices = [];
  let depth = 0;
  let start = opening + 1;
  for (let at = opening; at < text.length; at++) {
    if (text[at] === "{") {
      depth++;
    } else if (text[at] === "}") {
      depth--;
      if (depth === 0) return { choices: [...choices, text.slice(start, at)], closing: at };
    } else if (text[at] === "," && depth === 1) {
      choices.push(text.slice(start, at));
      start = at + 1;
    }
  }
  return null;
}

// One pattern without braces as a regular expression, step by step as fnmatch.translate makes it.
function globToRegExp(pattern) {
  const text = Array.from(pattern);
  let source = "";
  let i = 0;
  while (i < text.length) {
    const c = text[i++];
    if (c === "*") {
      source += ".*";
    } else if (c === "?") {
      source += ".";
    } else if (c === "[") {
      let j = i;
      if (text[j] === "!") j++;
      if (text[j] === "]") j++;
      while (j < text.length && text[j] !== "]") j++;
      if (j >= text.length) {
        source += "\\[";
      } else {
        source += setToRegExp(text, i, j);
        i = j + 1;
      }
    } else {
      source += c.replace(/[\\^$.*+?()[\]{}|/]/u, "\\$&");
    }
  }
  return new RegExp(`^(?:${source})$`, "su");
}

function setToRegExp(text, start, end) {
  const chunks = [];
  let i = start;
  let k = text[i] === "!" ? i + 2 : i + 1;
  for (;;) {
    k = text.indexOf("-", k);
    if (k < 0 || k >= end) break;
    chunks.push(text.slice(i, k));
    i = k + 1;
    k += 3;
  }
  const last = text.slice(i, end);
  if (last.length || !chunks.length) chunks.push(last);
  else chunks[chunks.length - 1] = [...chunks[chunks.length - 1], "-"];
  for (k = chunks.length - 1; k > 0; k--) {
    const before = chunks[k - 1];
    // A range from a later letter to an earlier one holds nothing.
    if (before[before.length - 1].codePointAt(0) > chunks[k][0].codePointAt(0)) {
      chunks[k - 1] = [...before.slice(0, -1), ...chunks[k].slice(1)];
      chunks.splice(k, 1);
    }
  }
  const negated = chunks[0][0] === "!";
  if (negated) chunks[0] = chunks[0].slice(1);
  const escaped = chunks.map((chunk) => chunk.map((c) => c.replace(/[\\\]\-^[]/u, "\\$&")).join(""));
  const body = escaped.join("-");
  if (!body) return negated ? "." : "(?!)";
  return `[${negated ? "^" : ""}${body}]`;
}

// A test of a name for one positive pattern; null where a brace has no partner.
function compilePattern(pattern) {
  const expressions = expandBraces(pattern)?.map((one) => globToRegExp(one === MODEL ? "." : one));
  return expressions ? (name) => expressions.some((e) => e.test(name)) : null;
}

// What is typed into the filter as a test of a name, or of several names of one thing; null where it
// cannot be read. Several words are a union, and those with a leading ! exclude, as with several
// --layer.
function compileFilter(typed) {
  const words = typed.split(/\s+/u).filter((word) => word && word !== "!");
  const tests = words.map((word) => {
    const bare = word.replace(/^!/u, "");
    const glob = word !== bare || /[*?[\]{}]/u.test(bare) || bare === "." || bare === MODEL;
    const text = bare.toLowerCase();
    const test = glob ? compilePattern(bare) : (name) => name.toLowerCase().includes(text);
    return { takes: word !== bare, test };
  });
  if (tests.some(({ test }) => !test)) return null;
  const adding = tests.filter(({ takes }) => !takes);
  const taking = tests.filter(({ takes }) => takes);
  return (...names) =>
    (!adding.length || adding.some(({ test }) => names.some((name) => test(name)))) &&
    !taking.some(({ test }) => names.some((name) => test(name)));
}
