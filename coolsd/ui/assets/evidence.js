// The chart of the Evidence tab: what relaxing buys to the right, what it costs upwards, every schedule a curve, told apart by ink and symbol.
// A point shows its settings and three pictures; Enter or a click loads it into Generate. The last run on the page is a ghost among them.
import { axisTicks, extent } from "./axes.js";
import { symbol } from "./curves.js";
import { fillTable, h, roomOf, s, setText } from "./dom.js";
import { lastRun, onLastRun } from "./last_run.js";

const SYMBOLS = ["disc", "square", "triangle", "diamond", "cross", "star", "down"];
const DASHES = [null, "9 5", "2 5", "12 4 2 4"];
const EM = 1.45; // letters' size to the distance of ticks

// As `symbol` draws them, and more kinds; diamonds are full here.
function mark(kind, x, y, r) {
  const path = (d, filled = true) => s("path", { class: filled ? "dot" : "dot stroke", d });
  if (kind === "down") return path(`M${x} ${y + 1.2 * r} l${1.15 * r} ${-2 * r} h${-2.3 * r} z`);
  if (kind === "diamond") return path(`M${x} ${y - 1.35 * r} l${1.2 * r} ${1.35 * r} l${-1.2 * r} ${1.35 * r} l${-1.2 * r} ${-1.35 * r} z`);
  if (kind === "cross") return path(`M${x - r} ${y - r} l${2 * r} ${2 * r} m0 ${-2 * r} l${-2 * r} ${2 * r}`, false);
  if (kind === "star") return path(`M${x - r} ${y} h${2 * r} M${x} ${y - r} v${2 * r} M${x - 0.7 * r} ${y - 0.7 * r} l${1.4 * r} ${1.4 * r} m0 ${-1.4 * r} l${-1.4 * r} ${1.4 * r}`, false);
  return symbol(kind, x, y, r);
}

// Rows of one label, in the order of what they buy. Curves with pictures are drawn boldly; where there are none, all are.
export function curvesOf(rows, gain) {
  const curves = new Map();
  rows.forEach((row, i) => {
    if (!row.columns[gain]) return;
    if (!curves.has(row.label)) curves.set(row.label, { label: row.label, points: [] });
    curves.get(row.label).points.push({ ...row, number: i });
  });
  const all = [...curves.values()];
  const pictured = all.some((curve) => curve.points.some((point) => point.thumbnails?.length));
  let bold = 0;
  return all.map((curve) => {
    curve.points.sort((a, b) => a.columns[gain].mean - b.columns[gain].mean);
    const drawn = !pictured || curve.points.some((point) => point.thumbnails?.length);
    const n = drawn ? bold++ : 0;
    return { ...curve, drawn, symbol: drawn ? SYMBOLS[n % SYMBOLS.length] : null, dash: drawn ? DASHES[n % DASHES.length] : null };
  });
}

const digits = (value) => (value === 0 ? "0" : Math.abs(value) >= 100 ? value.toFixed(0) : Math.abs(value) >= 1 ? value.toFixed(2) : value.toFixed(3).replace(/^(-?)0\./, "$1."));
export const interval = ({ mean, low, high }) => (low === high ? digits(mean) : `${digits(mean)} [${digits(low)}, ${digits(high)}]`);

// The settings of a point that tell it from its neighbours, in words.
export function settingsInWords(row) {
  const names = { delta: "δ", nu: "ν", bias: "budget", omega: "ω", cap: "λ", neighbours: "k", weight: "weight", tree: "tree", siblings: "siblings" };
  return Object.entries(row.settings ?? {}).filter(([name]) => name in names || name === "clamp")
    .map(([name, value]) => (name === "clamp" ? (value ? "clamped" : "") : `${names[name]} ${value}`)).filter(Boolean).join(", ");
}

export function evidenceChart(value, load) {
  const ofAxis = (axis) => Object.entries(value.columns).filter(([, column]) => column.axis === axis).map(([name]) => name);
  const [gains, costs] = [ofAxis("gain"), ofAxis("cost")];
  let [gain, cost] = [gains[0], costs[0]];
  let curves = [];
  let at = { curve: 0, point: 0 }; // what the card is about
  let lit = null; // label of the curve that the pointer or the focus is on

  const svg = s("svg", { class: "pareto", tabindex: 0, role: "application", "aria-roledescription": "chart" });
  const room = roomOf(svg, () => draw());
  const legend = h("ul", { class: "pareto-legend", "aria-label": "Curves" });
  const [name, figures, loader] = [h("h3"), h("dl", { class: "figures" }), h("button", { type: "button", class: "load-point", onclick: () => load(chosen()) }, "Load into Generate")];
  const pictures = h("div", { class: "point-pictures" });
  const card = h("aside", { class: "point-card", "aria-label": "The point" }, name, figures, pictures, loader);
  const live = h("p", { class: "sr-only", role: "status", "aria-live": "polite" });
  const table = h("table");
  const details = h("details", { ontoggle: () => { if (details.open) fillTable(table, tableOf()); } }, h("summary", {}, "The chart as a table"), h("div", { class: "evidence-table" }, table));
  const switches = [switchOf(gains, "to the right", (next) => { gain = next; }), switchOf(costs, "upwards", (next) => { cost = next; })];
  const node = h("div", { class: "pareto-box" }, h("div", { class: "pareto-bar" }, switches), h("div", { class: "pareto-row" }, svg, h("div", { class: "pareto-side" }, legend, card)), live, details);

  function switchOf(names, words, set) {
    if (names.length < 2) return null;
    const buttons = names.map((one, i) => h("button", { type: "button", class: "segment", "aria-pressed": String(i === 0), onclick: () => {
      set(one);
      buttons.forEach((button, j) => button.setAttribute("aria-pressed", String(i === j)));
      rebuild();
    } }, value.columns[one].label));
    return h("div", { class: "segments", role: "group", "aria-label": `What is drawn ${words}` }, buttons);
  }

  const chosen = () => curves[at.curve]?.points[at.point] ?? null;

  function rebuild() {
    const usable = value.rows.filter((row) => row.columns[cost]);
    curves = curvesOf(usable, gain);
    const start = Math.max(0, curves.findIndex((curve) => curve.drawn));
    if (!chosen()) at = { curve: start, point: 0 };
    legend.replaceChildren(...curves.map((curve, i) => h("li", {}, h("button", { type: "button", "data-drawn": String(curve.drawn), onclick: () => choose(i, Math.min(at.point, curve.points.length - 1), true),
      onpointerenter: () => light(curve.label), onpointerleave: () => light(null), onfocus: () => light(curve.label), onblur: () => light(null) }, swatchOf(curve), curve.label))));
    draw();
    show();
  }

  function swatchOf(curve) {
    return s("svg", { class: "swatch", viewBox: "0 0 34 12", "aria-hidden": "true" }, s("line", { class: curve.drawn ? "line" : "line faint", x1: 1, x2: 33, y1: 6, y2: 6, "stroke-dasharray": curve.dash }),
      curve.drawn ? mark(curve.symbol, 17, 6, 4.2) : null);
  }

  function light(label) {
    if (lit === label) return;
    lit = label;
    draw();
  }

  function frame() {
    const { width, height, em } = room();
    const all = curves.flatMap((curve) => curve.points);
    const ghost = ghostHere();
    const [x0, x1] = extent([...all.flatMap(({ columns }) => columns[gain].mean), ...(ghost ? [ghost.gain] : [])]);
    const [y0, y1] = extent([...all.flatMap(({ columns }) => columns[cost].mean), ...(ghost ? [ghost.cost] : [])]);
    const [left, right, top, bottom] = [4.2 * em, width - 1.2 * em, 0.8 * em, height - 3.4 * em];
    return { width, height, em, left, right, top, bottom, x0, x1, y0, y1,
      x: (v) => left + ((v - x0) / (x1 - x0)) * (right - left), y: (v) => bottom - ((v - y0) / (y1 - y0)) * (bottom - top) };
  }

  // The last run on the page, where this chart can hold it: same target, bias and accept length.
  function ghostHere() {
    const run = lastRun();
    return run && gain === "accept_length" && cost === "bias" && run.target === value.target ? { gain: run.acceptLength, cost: run.bias, title: run.title } : null;
  }

  function draw() {
    if (!room().width) return; // on a hidden tab
    const place = frame();
    const words = (x, y, text, anchor = "middle", css = "") => s("text", { x, y, "text-anchor": anchor, class: css }, text);
    const parts = [];
    for (const v of axisTicks(place.y0, place.y1, (place.bottom - place.top) / (3 * EM * place.em))) {
      parts.push(s("line", { class: "grid", x1: place.left, x2: place.right, y1: place.y(v), y2: place.y(v) }), words(place.left - 0.5 * place.em, place.y(v) + 0.35 * place.em, digits(v), "end"));
    }
    for (const v of axisTicks(place.x0, place.x1, (place.right - place.left) / (5 * place.em))) {
      parts.push(s("line", { class: "grid", x1: place.x(v), x2: place.x(v), y1: place.top, y2: place.bottom }), words(place.x(v), place.bottom + 1.3 * place.em, digits(v)));
    }
    const way = (column) => (column.better === "more" ? "more is better" : "less is better");
    parts.push(words((place.left + place.right) / 2, place.height - 0.5 * place.em, `${value.columns[gain].label} → (${way(value.columns[gain])})`, "middle", "name"));
    parts.push(s("text", { class: "name", "text-anchor": "middle", transform: `translate(${1.1 * place.em} ${(place.top + place.bottom) / 2}) rotate(-90)` }, `${value.columns[cost].label} → (${way(value.columns[cost])})`));
    const order = curves.map((_, i) => i).sort((a, b) => rank(a) - rank(b));
    order.forEach((i) => parts.push(curveOf(i, place)));
    const ghost = ghostHere();
    if (ghost) parts.push(s("g", { class: "ghost" }, s("circle", { cx: place.x(ghost.gain), cy: place.y(ghost.cost), r: 0.6 * place.em }), words(place.x(ghost.gain) + place.em, place.y(ghost.cost) - 0.6 * place.em, `your run: ${ghost.title}`, place.x(ghost.gain) > (place.left + place.right) / 2 ? "end" : "start", "name")));
    svg.replaceChildren(...parts);
    svg.setAttribute("aria-label", `${value.columns[cost].label} against ${value.columns[gain].label}. Arrow keys choose a point, Enter loads it.`);
  }

  const rank = (i) => (curves[i].label === lit ? 3 : i === at.curve ? 2 : curves[i].drawn ? 1 : 0);

  function curveOf(i, place) {
    const curve = curves[i];
    const strong = curve.label === lit || i === at.curve;
    const css = strong ? "strong" : curve.drawn && !lit ? "" : "faint";
    const where = curve.points.map((point) => [place.x(point.columns[gain].mean), place.y(point.columns[cost].mean)]);
    const line = s("path", { class: `line ${css}`, d: where.map(([x, y], k) => `${k ? "L" : "M"}${x.toFixed(1)} ${y.toFixed(1)}`).join(""), "stroke-dasharray": curve.dash });
    const bars = strong ? curve.points.map((point) => barsOf(point, place)) : [];
    const dots = curve.points.map((_, k) => {
      const [x, y] = where[k];
      const dot = curve.drawn || strong ? mark(curve.symbol ?? "disc", x, y, 0.36 * place.em) : s("circle", { class: "dot faint", cx: x, cy: y, r: 0.16 * place.em });
      const around = i === at.curve && k === at.point ? s("circle", { class: "around", cx: x, cy: y, r: 0.75 * place.em }) : null;
      return s("g", { class: "point", onpointerenter: () => choose(i, k), onclick: () => { choose(i, k); load(chosen()); } }, s("circle", { class: "touch", cx: x, cy: y, r: 0.75 * place.em }), dot, around);
    });
    return s("g", { class: `curve-group ${css}` }, line, bars, dots);
  }

  function barsOf({ columns }, place) {
    const [g, c] = [columns[gain], columns[cost]];
    return s("path", { class: "interval", d: `M${place.x(g.low)} ${place.y(c.mean)} H${place.x(g.high)} M${place.x(g.mean)} ${place.y(c.low)} V${place.y(c.high)}` });
  }

  function choose(curve, point, speak = false) {
    if (at.curve === curve && at.point === point && !speak) return;
    at = { curve, point };
    draw();
    show();
    if (speak) setText(live, spoken());
  }

  function spoken() {
    const point = chosen();
    return `${point.label}, ${settingsInWords(point)}: ${[gain, cost].map((column) => `${value.columns[column].label} ${interval(point.columns[column])}`).join(", ")}`;
  }

  function show() {
    const point = chosen();
    if (!point) return;
    setText(name, [point.label, settingsInWords(point)].filter(Boolean).join(": "));
    figures.replaceChildren(...Object.entries(value.columns).filter(([column]) => point.columns[column]).map(([column, { label }]) => h("div", {}, h("dt", {}, label), h("dd", {}, interval(point.columns[column])))));
    const drawn = (point.thumbnails ?? []).map((source) => h("img", { src: source, alt: "", width: 96, height: 96 }));
    pictures.replaceChildren(...(drawn.length ? drawn : [h("p", {}, "No pictures are stored with this point.")]));
  }

  function tableOf() {
    const names = Object.keys(value.columns);
    return [["curve", "settings", ...names.map((one) => value.columns[one].label)],
      ...curves.flatMap((curve) => curve.points.map((point) => [curve.label, settingsInWords(point), ...names.map((one) => (point.columns[one] ? interval(point.columns[one]) : "–"))]))];
  }

  svg.addEventListener("keydown", (event) => {
    const step = { ArrowRight: [0, 1], ArrowLeft: [0, -1], ArrowDown: [1, 0], ArrowUp: [-1, 0] }[event.key];
    if (event.key === "Enter") load(chosen());
    if (!step) return;
    event.preventDefault();
    event.stopPropagation();
    const curve = (at.curve + step[0] + curves.length) % curves.length;
    choose(curve, Math.max(0, Math.min(curves[curve].points.length - 1, at.point + step[1])), true);
  });
  onLastRun(draw);
  rebuild();
  return node;
}

// The component: rows are fetched when the tab is first in sight.
export function mountEvidence(element, load, server) {
  const mount = element.querySelector(".mount");
  const watching = new IntersectionObserver(async (entries) => {
    if (!entries.some((entry) => entry.isIntersecting)) return;
    watching.disconnect();
    try {
      mount.replaceChildren(evidenceChart(await server.rows(), load));
    } catch {
      mount.textContent = "The server does not answer; open this tab again when it is back.";
      watching.observe(mount);
    }
  });
  watching.observe(mount);
}
