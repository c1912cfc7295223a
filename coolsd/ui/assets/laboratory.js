// The laboratory's editable bars. The browser moves the bar that is pulled, so that it follows the finger; every mass, probability and
// distance drawn inside comes from Python.
import { bind } from "./bind.js";

let rows = null; // {p, q}, as the bars stand
let parts = null; // what Python made of them last
let root = null;
let scale = 1; // top of the axis; held while a bar is pulled, or the bar would run away from the finger
let pulled = null;

const bars = () => root.querySelectorAll(".lab-bar");

function stack(bar, heights) {
  let bottom = 0;
  bar.querySelectorAll("i").forEach((node, i) => {
    node.style.bottom = `${(100 * bottom) / scale}%`;
    node.style.height = `${(100 * heights[i]) / scale}%`;
    bottom += heights[i];
  });
  return bottom;
}

function draw() {
  if (!root || !rows || !parts) return;
  const { tokens } = parts;
  if (!pulled) scale = parts.scale;
  bars().forEach((bar) => {
    const { row, token } = bar.dataset;
    const value = rows[row][token];
    const handle = bar.querySelector("b");
    handle.style.height = `${Math.min(100, (100 * value) / scale)}%`;
    handle.setAttribute("aria-valuenow", Math.round(100 * value));
    handle.setAttribute("aria-valuetext", `${Math.round(100 * value)} %`);
    const label = bar.querySelector("em");
    label.textContent = Math.round(100 * value);
    const top = stack(bar, tokens[token][row]);
    label.style.bottom = `${Math.min(100, (100 * Math.max(value, row === "p" ? top : 0)) / scale)}%`;
    bar.querySelector("u").style.bottom = `${(100 * tokens[token].overlap) / scale}%`;
  });
  root.querySelectorAll(".lab-f").forEach((node, i) => { node.textContent = tokens[i].f; });
}

// One probability is set; the others share the rest in the proportions that they had when the bar was taken in hand, so that the row stays a row
// and a bar that was pulled up to 100 % gives all of them back on its way down.
export function withValue(row, token, value, before = row) {
  const others = (of) => of.reduce((sum, other, i) => (i === token ? sum : sum + other), 0);
  const base = others(before) > 0 ? before : row;
  const rest = others(base);
  return row.map((_, i) => (i === token ? value : rest > 0 ? (base[i] * (1 - value)) / rest : (1 - value) / (row.length - 1)));
}

// The codes that the bars stand for, where they are a model's own, and where the rows come from.
function sayNames() {
  root.querySelectorAll(".lab-slot strong").forEach((node, i) => {
    node.dataset.plain ??= node.textContent;
    node.textContent = rows.names?.[i] ?? node.dataset.plain;
  });
  const source = root.querySelector(".lab-source");
  source.hidden = !rows.source;
  source.textContent = rows.source ?? "";
}

export function editor(element, props, trigger, watch) {
  let active = ""; // the bar in hand
  let before = {}; // each row as it was when a bar of it was taken in hand; not as one bar with all of the mass
  root = element;
  rows = props.value;
  sayNames();
  draw();
  watch("value", () => {
    rows = props.value;
    [active, before] = ["", {}];
    sayNames();
    draw();
    trigger();
  });

  let waiting = false;
  function set(bar, value) {
    const { row, token } = bar.dataset;
    const level = Math.min(1, Math.max(0, value));
    const key = `${row} ${token}`;
    if (active !== key && (!before[row] || Math.max(...rows[row]) < 0.999)) before = { ...before, [row]: rows[row] };
    active = key;
    rows = { ...rows, [row]: withValue(rows[row], Number(token), level, before[row]) };
    draw();
    if (waiting) return;
    waiting = true;
    requestAnimationFrame(() => { waiting = false; props.value = rows; trigger(); });
  }

  const height = (bar, event) => {
    const box = bar.getBoundingClientRect();
    return ((box.bottom - event.clientY) / box.height) * scale;
  };
  element.addEventListener("pointerdown", (event) => {
    const bar = event.target.closest(".lab-bar");
    if (!bar || !parts || event.button) return;
    pulled = bar;
    element.setPointerCapture(event.pointerId);
    bar.querySelector("b").focus({ preventScroll: true });
    event.preventDefault();
    set(bar, height(bar, event));
  });
  element.addEventListener("pointermove", (event) => { if (pulled) set(pulled, height(pulled, event)); });
  ["pointerup", "pointercancel"].forEach((name) => element.addEventListener(name, () => { pulled = null; draw(); }));

  const steps = { ArrowUp: 0.01, ArrowRight: 0.01, ArrowDown: -0.01, ArrowLeft: -0.01, PageUp: 0.1, PageDown: -0.1, Home: -1, End: 1 };
  element.addEventListener("keydown", (event) => {
    const bar = event.target.closest(".lab-bar");
    if (!bar || !(event.key in steps)) return;
    event.preventDefault();
    set(bar, rows[bar.dataset.row][bar.dataset.token] + steps[event.key]);
  });
}

export function reading(element, props, watch) {
  bind(element, props, watch);
  const take = () => { parts = props.value.parts; draw(); };
  take();
  watch("value", take);
}
