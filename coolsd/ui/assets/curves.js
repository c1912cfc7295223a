// Two charts over the same draft positions: how often drafts pass (f and accepted share), and the schedule ω. Lanes are told apart by ink and
// symbol: solid with discs, dashed with squares, dotted with triangles. A small drawing of our own: the page needs no chart library for it.
import { fillTable, h, roomOf, s, setText, term } from "./dom.js";
import { omegaHandles } from "./omega_handles.js";
import { number } from "./readout.js";
import { digits, inNumbers, inWords } from "./schedule.js";

export const INKS = [
  { dash: null, swatch: null, symbol: "disc", fill: 0.34 },
  { dash: "9 6", swatch: "5 3.5", symbol: "square", fill: 0.16 },
  { dash: "2 6", swatch: "1 4.4", symbol: "triangle", fill: 0.1 },
];

export function symbol(kind, x, y, r) {
  if (kind === "disc") return s("circle", { class: "dot", cx: x, cy: y, r });
  if (kind === "square") return s("rect", { class: "dot", x: x - r, y: y - r, width: 2 * r, height: 2 * r });
  if (kind === "triangle") return s("path", { class: "dot", d: `M${x} ${y - 1.2 * r} l${1.15 * r} ${2 * r} h${-2.3 * r} z` });
  return s("path", { class: "dot hollow", d: `M${x} ${y - 1.3 * r} l${1.3 * r} ${1.3 * r} l${-1.3 * r} ${1.3 * r} l${-1.3 * r} ${-1.3 * r} z` });
}

// A swatch that says which ink a lane is drawn in.
export function swatch(ink) {
  return s("svg", { class: "swatch", viewBox: "0 0 34 12", "aria-hidden": "true" },
    s("line", { class: "line", x1: 1, x2: 33, y1: 6, y2: 6, "stroke-dasharray": ink.swatch }), symbol(ink.symbol, 17, 6, 4.4));
}

const PREDICTED = "predicted";
const LABELS = { acceptance: "Acceptance probability and accepted share by draft position", schedule: "Schedule ω by draft position" };

const path = (points) => points.map(([x, y], i) => `${i ? "L" : "M"}${x.toFixed(1)} ${y.toFixed(1)}`).join("");

// Where things lie: left and right margins in the letters' size, the positions evenly between.
function frameOf({ width, height, em }, length, labels) {
  const right = Math.min(width * 0.34, em * (1 + 0.64 * Math.max(3, ...labels.map((label) => label.length))));
  const [left, top, bottom] = [2.3 * em, 0.7 * em, height - 1.5 * em];
  const slot = (width - left - right) / Math.max(1, length);
  return { width, height, em, left, right: width - right, top, bottom, slot, x: (i) => left + slot * (i + 0.5) };
}

const text = (x, y, words, anchor = "middle", name = "") => s("text", { x, y, "text-anchor": anchor, class: name }, words);

// Labels beside the ends of their lines, none over another.
function spread(labels, gap, low) {
  const sorted = [...labels].sort((a, b) => a.y - b.y);
  for (let i = 1; i < sorted.length; i++) sorted[i].y = Math.max(sorted[i].y, sorted[i - 1].y + gap);
  const over = Math.max(0, (sorted.at(-1)?.y ?? 0) - low);
  sorted.forEach((label) => { label.y -= over; });
  return sorted;
}

function axis(place, y, ticks, length) {
  const lines = ticks.map(([value, words]) => [
    s("line", { class: "grid", x1: place.left, x2: place.right, y1: y(value), y2: y(value) }),
    text(place.left - 0.4 * place.em, y(value) + 0.35 * place.em, words, "end"),
  ]);
  const positions = Array.from({ length }, (_, i) => text(place.x(i), place.height - 0.3 * place.em, `${i + 1}`));
  return [...lines.flat(), ...positions];
}

// f as lines and accepted share as bars; lanes: [{ title, acceptProb, acceptedShare }], in the order of INKS. forecast: f by position, or null.
function drawAcceptance(svg, room, lanes, length, forecast) {
  const place = frameOf(room, length, [...lanes.map((lane) => lane.title), forecast ? PREDICTED : ""]);
  const y = (v) => place.bottom - v * (place.bottom - place.top);
  const parts = axis(place, y, [[0, "0"], [0.5, ".5"], [1, "1"]], length);
  const width = (place.slot * 0.56) / lanes.length;
  const labels = [];
  lanes.forEach((lane, n) => {
    const ink = INKS[n];
    lane.acceptedShare.forEach((v, i) => {
      if (v === null) return;
      const x = place.x(i) + (n - lanes.length / 2) * width;
      parts.push(s("rect", { class: "bar", x, y: y(v), width: width - 1.5, height: Math.max(0, place.bottom - y(v)), "fill-opacity": ink.fill }));
    });
  });
  lanes.forEach((lane, n) => {
    const points = lane.acceptProb.flatMap((v, i) => (v === null ? [] : [[place.x(i), y(v)]]));
    if (!points.length) return;
    parts.push(s("path", { class: "line", d: path(points), "stroke-dasharray": INKS[n].dash }));
    points.forEach(([px, py]) => parts.push(symbol(INKS[n].symbol, px, py, 0.36 * place.em)));
    labels.push({ y: points.at(-1)[1], words: lane.title });
  });
  const points = (forecast ?? []).flatMap((v, i) => (v === null ? [] : [[place.x(i), y(v)]]));
  if (points.length) {
    parts.push(s("path", { class: "line predicted", d: path(points) }), ...points.map(([px, py]) => symbol("diamond", px, py, 0.3 * place.em)));
    labels.push({ y: points.at(-1)[1], words: PREDICTED });
  }
  spread(labels, 1.15 * place.em, place.bottom).forEach((label) => parts.push(text(place.right + 0.3 * place.em, label.y + 0.35 * place.em, label.words, "start", "name")));
  svg.replaceChildren(...parts);
}

const sameRow = (a, b) => a.length === b.length && a.every((w, i) => Math.abs(w - b[i]) <= 1e-3 * b[i]);

// ω on a log axis, 1 in the middle: above is looser than lossless, below stricter. now: as the sliders stand; run: as the run on the page had it.
// Gives the place of its points, for the handles on them.
function drawOmega(drawing, room, { now, run }, length) {
  const differs = run.length > 0 && !sameRow(now, run);
  const place = frameOf(room, length, ["stricter"]);
  const least = (w) => Math.max(w, 1e-4);
  const decades = Math.max(1, ...[...now, ...run].map((w) => Math.ceil(Math.abs(Math.log10(least(w))) - 0.02)));
  const middle = (place.top + place.bottom) / 2;
  const y = (w) => middle - (Math.log10(least(w)) / decades) * (place.bottom - place.top) / 2;
  const parts = axis(place, y, [[10 ** decades, `${10 ** decades}`], [1, "1"], [10 ** -decades, `${+(10 ** -decades).toPrecision(1)}`]], length);
  parts.push(s("line", { class: "unit", x1: place.left, x2: place.right, y1: middle, y2: middle }));
  parts.push(text(place.right + 0.3 * place.em, middle + 0.35 * place.em, "lossless", "start", "faint"));
  parts.push(text(place.right + 0.3 * place.em, place.top + 0.8 * place.em, "looser", "start", "faint"));
  parts.push(text(place.right + 0.3 * place.em, place.bottom, "stricter", "start", "faint"));
  if (differs) parts.push(s("path", { class: "line before", d: path(run.map((w, i) => [place.x(i), y(w)])) }));
  if (now.length) parts.push(s("path", { class: "line thin", d: path(now.map((w, i) => [place.x(i), y(w)])) }));
  now.forEach((w, i) => parts.push(symbol("diamond", place.x(i), y(w), 0.34 * place.em)));
  drawing.replaceChildren(...parts);
  const omega = (py) => 10 ** (Math.max(-1, Math.min(1, (middle - py) / ((place.bottom - place.top) / 2))) * decades);
  return { x: place.x, y, omega, r: Math.max(9, 0.75 * place.em) };
}

// A prediction in one line.
export function predictionInWords(forecast) {
  if (!forecast) return "";
  const figures = [`${forecast.acceptLength.toFixed(2)} tokens/call`, `${Math.round(forecast.targetCalls)} calls`, `bias ${number(forecast.biasPerToken)}`, `KL ≈ ${number(forecast.klPerToken)}`];
  return figures.join(" · ");
}

// Where a prediction comes from.
export function sourceInWords(forecast, measured) {
  const short = forecast.missing ? ` It drafted positions 1–${forecast.positions} only.` : "";
  const beside = measured ? ` Its own run measured ${measured}.` : "";
  return `From p and q of the tokens that ${forecast.from} drafted on this page; no model is run.${short}${beside} KL is an estimate, about a tenth low.`;
}

const two = (v) => (v === null || v === undefined ? "–" : v.toFixed(2));

// The curves in words: a head and one row a draft position.
export function tableOf(lanes, omega, length) {
  const head = ["position", ...lanes.flatMap(({ title }) => [`${title}: f`, `${title}: accepted share`]), "ω as set"];
  const rows = Array.from({ length }, (_, i) => [
    `${i + 1}`, ...lanes.flatMap((lane) => [two(lane.acceptProb[i]), two(lane.acceptedShare[i])]), omega[i] === undefined ? "–" : digits(omega[i]),
  ]);
  return [head, ...rows];
}

// The component. show({ lanes, now, run, title, forecast, measured, byHand }): lanes as above, ω as set now and as the run had it, the title of
// the method that has it, what is predicted for it (see what_if.js), what was measured, in words, and whether its points can be pulled.
// hooks: of the handles, see omega_handles.js.
export function curves(hooks) {
  const [f, omega] = ["acceptance", "schedule"].map((name) => s("svg", { class: `chart ${name}`, role: "img", "aria-label": `${LABELS[name]}; the same figures stand in the table below` }));
  omega.setAttribute("role", "group"); // it holds sliders
  const drawing = s("g", {});
  const handles = omegaHandles(hooks);
  omega.append(drawing, handles.node);
  const figures = h("span");
  const source = term("predicted", "");
  const prediction = h("p", { class: "prediction" }, source, " ", figures);
  const [numbers, words, table] = [h("span", { class: "omega-row" }), h("span", { class: "omega-words" }), h("table")];
  let last = null;
  const [roomOfF, roomOfOmega] = [f, omega].map((chart) => roomOf(chart, () => { if (last) show(last); }));
  let [omegaKey, place] = ["", null]; // what the chart of ω shows, and where its points lie
  const details = h("details", { ontoggle: () => show(last) }, h("summary", {}, "The curves as a table"), table);
  const node = h("div", { class: "curve" },
    h("h3", {}, "Acceptance by draft position ", h("small", {}, "lines: probability f; bars: accepted share")), f,
    h("h3", {}, "Schedule ω ", numbers), omega, h("p", { class: "omega" }, words), prediction,
    details);

  function show(state) {
    last = state;
    const length = Math.max(1, state.now.length, ...state.lanes.map((lane) => lane.acceptProb.length));
    setText(numbers, inNumbers(state.now) || "–");
    setText(words, inWords(state.now, state.title));
    setText(figures, predictionInWords(state.forecast));
    source.dataset.tip = state.forecast ? sourceInWords(state.forecast, state.measured) : "";
    source.setAttribute("aria-label", `predicted: ${source.dataset.tip}`);
    prediction.toggleAttribute("data-empty", !state.forecast);
    const [above, below] = [roomOfF(), roomOfOmega()];
    if (!above.width) return; // on a hidden tab
    const differs = state.forecast && !sameRow(state.now, state.run);
    drawAcceptance(f, above, state.lanes, length, differs ? state.forecast.acceptProb : null);
    const wanted = [...Object.values(below), length, ...state.now, "run", ...state.run].join(" ");
    if (wanted !== omegaKey) place = drawOmega(drawing, below, state, length);
    omegaKey = wanted;
    handles.show(state.now, state.byHand ? place : null);
    if (details.open) fillTable(table, tableOf(state.lanes, state.now, length));
  }

  return { node, show };
}
