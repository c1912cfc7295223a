// The tokens over a lane's picture: how each came, as a tinted frame with a letter, and the drafts of the round that is looked at.
// Colours mean token kinds only, and never stand alone. Draws on a canvas: a whole map in a millisecond, whatever its size.
import { KINDS, OUTCOMES } from "./trace.js";

export const MODES = ["picture", "both", "tokens"];
const NAMES = [...Object.keys(KINDS), "draft"];

// The page's colours of token kinds, as they stand in the style sheet.
export function palette(node) {
  const style = getComputedStyle(node);
  return Object.fromEntries(NAMES.map((name) => [name, style.getPropertyValue(`--${name}`).trim()]));
}

// A canvas as sharp as the screen; gives its context, scaled to CSS pixels.
function prepare(canvas, { width, height }) {
  const ratio = window.devicePixelRatio || 1;
  const [w, h] = [Math.round(width * ratio), Math.round(height * ratio)];
  if (canvas.width !== w || canvas.height !== h) Object.assign(canvas, { width: w, height: h });
  const pen = canvas.getContext("2d");
  pen.setTransform(ratio, 0, 0, ratio, 0, 0);
  pen.clearRect(0, 0, width, height);
  return { pen, width, height };
}

const boxOf = (index, trace, size) => ({ x: (index % trace.columns) * size.w, y: Math.floor(index / trace.columns) * size.h, ...size });

function letter(pen, text, box, { strength = 1, share = 0.62, dark = true, halo = 0.8 } = {}) {
  const size = Math.max(6, Math.min(box.w, box.h) * share);
  pen.font = `700 ${size}px system-ui, sans-serif`;
  pen.textAlign = "center";
  pen.textBaseline = "middle";
  pen.globalAlpha = strength;
  pen.lineWidth = Math.max(1.5, size / 5);
  pen.lineJoin = "round";
  pen.strokeStyle = dark ? `rgba(255,255,255,${halo})` : `rgba(0,0,0,${halo})`;
  if (halo) pen.strokeText(text, box.x + box.w / 2, box.y + box.h / 2 + size * 0.06);
  pen.fillStyle = dark ? "#000" : "#fff";
  pen.fillText(text, box.x + box.w / 2, box.y + box.h / 2 + size * 0.06);
  pen.globalAlpha = 1;
}

function frame(pen, box, inset, width, dash = []) {
  pen.setLineDash(dash);
  pen.lineWidth = width;
  pen.beginPath();
  pen.roundRect(box.x + inset, box.y + inset, box.w - 2 * inset, box.h - 2 * inset, Math.min(3, box.w / 6));
  pen.stroke();
  pen.setLineDash([]);
}

// Stripes that tell "only because relaxed" apart without colour.
function stripes(pen, box) {
  pen.save();
  pen.beginPath();
  pen.rect(box.x, box.y, box.w, box.h);
  pen.clip();
  pen.strokeStyle = "rgba(255,255,255,.55)";
  pen.lineWidth = Math.max(1, box.w / 9);
  pen.beginPath();
  for (let d = -box.h; d < box.w; d += box.w / 3) {
    pen.moveTo(box.x + d, box.y + box.h);
    pen.lineTo(box.x + d + box.h, box.y);
  }
  pen.stroke();
  pen.restore();
}

// Over the picture: a thin frame inside the cell, and its letter in a corner; both fainter for the many that were simply accepted or sampled.
function overPicture(pen, box, kind, colours) {
  const plain = kind === "accepted" || kind === "sampled";
  const width = Math.max(1, box.w / (plain ? 18 : 11));
  pen.fillStyle = colours[kind];
  pen.globalAlpha = plain ? 0.07 : 0.2;
  pen.fillRect(box.x, box.y, box.w, box.h);
  pen.globalAlpha = plain ? 0.75 : 1;
  pen.strokeStyle = colours[kind];
  frame(pen, box, width / 2 + Math.max(0.75, box.w / 30), width);
  pen.globalAlpha = 1;
  if (box.w < 11 && plain) return;
  if (plain) return letter(pen, KINDS[kind].letter, box, { strength: 0.5, share: 0.42, halo: 0.25 });
  tag(pen, box, KINDS[kind].letter, colours[kind]);
}

// A letter on a ground of its kind's colour, in the cell's upper left corner.
function tag(pen, box, words, colour) {
  const side = Math.max(7, box.w * 0.58);
  pen.fillStyle = colour;
  pen.beginPath();
  pen.roundRect(box.x + box.w * 0.05, box.y + box.h * 0.05, side, side, side / 5);
  pen.fill();
  letter(pen, words, { x: box.x + box.w * 0.05, y: box.y + box.h * 0.05, w: side, h: side }, { share: 0.86, halo: 0 });
}

// Without the picture: filled cells.
function asBlock(pen, box, kind, colours) {
  pen.fillStyle = colours[kind];
  pen.fillRect(box.x + 0.5, box.y + 0.5, box.w - 1, box.h - 1);
  if (kind === "relaxed") stripes(pen, { x: box.x + 0.5, y: box.y + 0.5, w: box.w - 1, h: box.h - 1 });
  letter(pen, KINDS[kind].letter, box, { strength: kind === "accepted" ? 0.7 : 1, halo: 0 });
}

// The drafts of one cell: a dashed ghost, its verdict, and the siblings of a tree as small squares along the bottom.
function ghost(pen, box, nodes, phase, colours) {
  const first = nodes.find((node) => node.outcome === "accepted" || node.outcome === "relaxed") ?? nodes.find((node) => node.outcome === "rejected") ?? nodes[0];
  const judged = phase > 0 && first.outcome !== "unexamined";
  const width = Math.max(1.5, box.w / 8);
  pen.strokeStyle = "#000";
  frame(pen, box, width / 2, width + 1, [width * 1.6, width]);
  pen.strokeStyle = colours.draft;
  frame(pen, box, width / 2, width, [width * 1.6, width]);
  if (phase === 0 || first.outcome === "unexamined") {
    pen.fillStyle = colours.draft;
    pen.globalAlpha = 0.25;
    pen.fillRect(box.x, box.y, box.w, box.h);
    pen.globalAlpha = 1;
  }
  if (judged && !(phase > 1 && first.outcome !== "rejected")) letter(pen, OUTCOMES[first.outcome].mark, box, { share: phase > 1 ? 0.5 : 0.72, dark: false });
  if (nodes.length > 1) siblings(pen, box, nodes, phase, colours);
}

function siblings(pen, box, nodes, phase, colours) {
  const few = nodes.slice(0, 5);
  const side = box.w / 6;
  few.forEach((node, i) => {
    const x = box.x + (box.w - few.length * side) / 2 + i * side;
    const passes = phase > 0 && (node.outcome === "accepted" || node.outcome === "relaxed");
    pen.fillStyle = passes ? colours[node.outcome] : phase > 0 && node.outcome === "rejected" ? "#222" : colours.draft;
    pen.fillRect(x + 0.5, box.y + box.h - side - 1, side - 1, side - 1);
    pen.lineWidth = 0.75;
    pen.strokeStyle = "#fff";
    pen.strokeRect(x + 0.5, box.y + box.h - side - 1, side - 1, side - 1);
  });
}

// All cells of a trace, each drawn once on a canvas of its own, from which any prefix is copied: looking at another round costs two copies.
function layerOf(layers, trace, mode, canvas, size, colours) {
  const key = [mode, canvas.width, canvas.height, ...Object.values(colours)].join(" ");
  let layer = layers.get(mode);
  if (layer?.key !== key || layer.trace !== trace) {
    const own = Object.assign(document.createElement("canvas"), { width: canvas.width, height: canvas.height });
    layer = { key, trace, own, count: 0 };
    layers.set(mode, layer);
  }
  const pen = layer.own.getContext("2d");
  pen.setTransform(canvas.width / (size.w * trace.columns), 0, 0, canvas.height / (size.h * trace.rows), 0, 0);
  for (; layer.count < trace.cells.length; layer.count++) {
    const cell = trace.cells[layer.count];
    (mode === "tokens" ? asBlock : overPicture)(pen, boxOf(cell.index, trace, size), cell.kind, colours);
  }
  return layer.own;
}

// The first `tokens` cells of a layer: the whole rows, then the row that is under way.
function copyPrefix(pen, layer, trace, tokens, size) {
  const rows = Math.floor(tokens / trace.columns);
  const [height, rest] = [rows * size.h, (tokens % trace.columns) * size.w];
  const scale = layer.width / (size.w * trace.columns);
  const copy = (x, y, w, h) => { if (w > 0 && h > 0) pen.drawImage(layer, x * scale, y * scale, w * scale, h * scale, x, y, w, h); };
  copy(0, 0, size.w * trace.columns, height);
  copy(0, height, rest, size.h);
}

// Draws one lane.
// view: mode, rounds (shown), round (the one whose drafts are shown; null for none), phase (0 drafted, 1 judged, 2 emitted), selected (cell).
// layers: a Map in which what was drawn before is kept. room: { width, height } of the canvas in CSS pixels, measured beforehand, as asking for
// it between two lanes would lay out the page once a lane.
export function drawMap(canvas, trace, view, colours, layers, room) {
  const { pen, width, height } = prepare(canvas, room);
  if (!width || !trace) return;
  const size = { w: width / trace.columns, h: height / trace.rows };
  const round = view.round === null ? null : trace.rounds[view.round];
  if (view.mode !== "picture") copyPrefix(pen, layerOf(layers, trace, view.mode, canvas, size, colours), trace, shownTokens(trace, view), size);
  if (round) {
    const judged = view.phase > 1 ? round.nodes.filter((node) => node.outcome === "rejected" || node.outcome === "unexamined") : round.nodes;
    for (const [index, nodes] of grouped(judged)) if (index < trace.total) ghost(pen, boxOf(index, trace, size), nodes, view.phase, colours);
    if (view.phase > 1) outline(pen, trace, size, round);
  }
  if (view.selected !== null) select(pen, boxOf(view.selected, trace, size));
}

function grouped(nodes) {
  const map = new Map();
  nodes.forEach((node) => map.set(node.cell, [...(map.get(node.cell) ?? []), node]));
  return map;
}

// Tokens on show: those of the rounds before the one that is looked at, and its own once they are emitted.
export const shownTokens = (trace, view) =>
  trace.states[view.round !== null && view.phase < 2 ? Math.min(view.round, view.rounds) : view.rounds]?.tokens ?? 0;

// The tokens that this round emitted, framed together.
function outline(pen, trace, size, round) {
  for (const [stroke, width] of [["rgba(0,0,0,.8)", 4], ["#fff", 2]]) {
    pen.strokeStyle = stroke;
    pen.lineWidth = width;
    pen.beginPath();
    for (let i = round.start; i < round.start + round.count; i++) {
      const { x, y, w, h } = boxOf(i, trace, size);
      pen.moveTo(x, y); pen.lineTo(x + w, y);
      pen.moveTo(x, y + h); pen.lineTo(x + w, y + h);
      if (i === round.start) { pen.moveTo(x, y); pen.lineTo(x, y + h); }
      if (i === round.start + round.count - 1) { pen.moveTo(x + w, y); pen.lineTo(x + w, y + h); }
    }
    pen.stroke();
  }
}

function select(pen, box) {
  pen.strokeStyle = "#000";
  frame(pen, box, -2, 5);
  pen.strokeStyle = "#ffe14d";
  frame(pen, box, -2, 3);
}

// Which cell a point of the canvas lies in.
export function cellUnder(canvas, trace, { clientX, clientY }) {
  const box = canvas.getBoundingClientRect();
  const column = Math.floor(((clientX - box.left) / box.width) * trace.columns);
  const row = Math.floor(((clientY - box.top) / box.height) * trace.rows);
  const inside = column >= 0 && column < trace.columns && row >= 0 && row < trace.rows;
  return inside ? row * trace.columns + column : null;
}

// The finished picture behind the first `tokens` cells only, as a CSS clip path.
export function mask(trace, tokens) {
  if (tokens >= trace.total) return "none";
  const [rows, rest] = [Math.floor(tokens / trace.columns), tokens % trace.columns];
  const y = (row) => `${(100 * row) / trace.rows}%`;
  const x = `${(100 * rest) / trace.columns}%`;
  return `polygon(0 0, 100% 0, 100% ${y(rows)}, ${x} ${y(rows)}, ${x} ${y(rows + 1)}, 0 ${y(rows + 1)})`;
}
