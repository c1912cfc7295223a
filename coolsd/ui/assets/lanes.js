// One lane: its ink and title, the picture with the token map over it, how its tokens came as a bar, and its figures.
import { INKS, swatch } from "./curves.js";
import { h, roomOf, setAttribute, setImage, setText, term } from "./dom.js";
import { readout } from "./readout.js";
import { createTrace, KINDS, push, statistics } from "./trace.js";
import { cellUnder, drawMap, mask, palette, shownTokens } from "./token_map.js";

export const FIGURES = ["calls", "length", "seconds", "tokens", "drafts", "bias"];

// The trace of a lane, grown by the rounds that are new; each round comes as JSON text, so that what is known is told by a look.
export function grow(before, data) {
  const same = before && before.run === data.run && before.texts.length <= data.rounds.length && before.texts.at(-1) === data.rounds[before.texts.length - 1];
  const next = same ? before : { run: data.run, texts: [], trace: createTrace(data.grid, data.omega) };
  for (const text of data.rounds.slice(next.texts.length)) {
    push(next.trace, JSON.parse(text));
    next.texts.push(text);
  }
  return next;
}

function figure(name, definitions, side) {
  const value = h("span", { class: "value" });
  const note = name === "bias" ? h("small") : null;
  return { value, note, node: h("div", { class: name }, h("dt", {}, term(...definitions[name], side)), h("dd", {}, value, note)) };
}

// How the tokens came, as one bar; each part says its letter and its number.
function kindBar() {
  const parts = Object.fromEntries(Object.keys(KINDS).map((kind) => [kind, h("i", { class: `kind ${kind}` })]));
  const node = h("div", { class: "kinds", role: "img" }, Object.values(parts));
  function show(stats) {
    const counts = Object.keys(KINDS).map((kind) => [kind, stats[kind]]).filter(([, count]) => count);
    let start = 0;
    Object.entries(parts).forEach(([kind, part]) => {
      const share = stats[kind] / Math.max(1, stats.tokens);
      part.style.width = `${100 * share}%`;
      part.style.transform = `translateX(${share ? (100 * start) / share : 0}%)`; // moved so, the page's layout stays as it is
      start += share;
      part.hidden = !stats[kind];
      setText(part, share < 0.075 ? KINDS[kind].letter : `${KINDS[kind].letter} ${stats[kind]}`);
    });
    const spoken = counts.length ? counts.map(([kind, count]) => `${count} ${KINDS[kind].name}`).join(", ") : "no tokens yet";
    setAttribute(node, "aria-label", spoken);
  }
  return { node, show };
}

// hooks: { select(key, cell, by), move(key, event), resized() }; definitions: of the figures, [label, meaning].
export function lane(place, definitions, hooks) {
  let [data, grown, colours, latest] = [null, null, null, {}];
  const layers = new Map(); // what the token map has drawn
  const heading = term("", "");
  const save = h("a", { hidden: true }, "PNG");
  const image = h("img", { alt: "", hidden: true });
  const canvas = h("canvas", { "aria-hidden": "true" });
  const [badge, hint] = [h("span", { class: "badge" }), h("div", { class: "hint" }, "Press Generate")];
  const masked = h("span", { class: "masked" }, "finished picture, masked");
  const map = h("div", { class: "map", tabindex: 0, role: "group", "aria-roledescription": "token map" }, canvas);
  const picture = h("div", { class: "picture" }, image, hint, map, badge, masked);
  const room = roomOf(canvas, () => hooks.resized());
  const bar = kindBar();
  const figures = Object.fromEntries(FIGURES.map((name, i) => [name, figure(name, definitions, i % 3 === 2 ? "left" : "")]));
  const node = h("section", { class: "lane" }, h("header", {}, swatch(INKS[place]), h("h2", {}, heading), save), picture, bar.node,
    h("dl", { class: "numbers" }, Object.values(figures).map((one) => one.node)));

  map.addEventListener("click", (event) => {
    const cell = grown ? cellUnder(canvas, grown.trace, event) : null;
    if (cell !== null) hooks.select(data.key, cell, "pointer");
  });
  map.addEventListener("keydown", (event) => hooks.move(data.key, event));

  function update(next) {
    data = next;
    grown = grow(grown, data);
    node.dataset.key = data.key;
    node.dataset.is = data.state;
    node.classList.toggle("thin", Boolean(data.thin));
    node.setAttribute("aria-label", `Lane ${data.title}`);
    setText(heading, data.title);
    heading.dataset.tip = data.about;
    heading.setAttribute("aria-label", `${data.title}: ${data.about}`);
    setText(badge, data.badge);
    save.hidden = !data.file;
    if (data.file) Object.assign(save, { download: data.file, href: data.picture });
    setImage(image, data.picture, data.alt);
    picture.style.setProperty("--rows", data.grid[0]);
    picture.style.setProperty("--columns", data.grid[1]);
    map.setAttribute("aria-label", `Tokens of ${data.title}. Arrow keys choose one.`);
  }

  // view: mode, rounds, round, phase, selected. Before `draw`, of all lanes: letters on a canvas ask for the page's style.
  function paint(view) {
    colours ??= palette(node);
    drawMap(canvas, grown.trace, view, colours, layers, room());
  }

  function draw(view) {
    const { trace } = grown;
    const tokens = shownTokens(trace, view);
    const live = tokens >= trace.cells.length;
    image.style.clipPath = live ? "none" : mask(trace, tokens);
    picture.classList.toggle("without", view.mode === "tokens");
    masked.hidden = live || view.mode === "tokens" || !data.picture || data.thin;
    badge.hidden = !masked.hidden;
    node.dataset.rounds = view.rounds;
    node.dataset.tokens = tokens;
    const stats = statistics(trace, view.rounds);
    bar.show(stats);
    const words = readout(stats, { total: trace.total, bias: data.bias });
    FIGURES.forEach((name) => setText(figures[name].value, words[name]));
    setText(figures.bias.note, words.biasNote);
    latest = words;
    return stats;
  }

  return {
    node, update, paint, draw,
    forgetColours: () => { colours = null; },
    focusMap: () => map.focus({ preventScroll: true }),
    get data() { return data; },
    get trace() { return grown?.trace ?? null; },
    get title() { return data.title; },
    get key() { return data.key; },
    get words() { return latest; },
  };
}
