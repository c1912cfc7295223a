// The stage: the lanes, the bar over their rounds, the key to the token kinds, and the inspector. Everything it shows comes from the traces of
// the runs in its value, so that it works with the server gone, and for recorded runs as for live ones.
import { h, setText, term } from "./dom.js";
import { inspector } from "./inspector.js";
import { lane } from "./lanes.js";
import * as player from "./player.js";
import { roundsBar } from "./rounds.js";
import { MODES } from "./token_map.js";
import { differences, firstDifference, KINDS } from "./trace.js";

const MODE_WORDS = { picture: "picture", both: "both", tokens: "tokens" };
const MOVES = { ArrowLeft: -1, ArrowRight: 1 };

// options: { definitions, kinds: { name: [label, meaning] }, panel: gives the node that the inspector goes into, patches, openRow, onState(lanes with stats, all at the end) }
export function stage(options) {
  let lanes = [];
  let mode = "both";
  let chosen = null; // { key, cell }
  let frame = 0;
  let run = null;
  let announced = "";

  const later = () => { frame ||= requestAnimationFrame(draw); };
  const bar = roundsBar(later);
  const row = h("div", { class: "lanes" });
  const toggles = MODES.map((name) => h("button", { type: "button", class: "segment", "aria-pressed": "false", title: "Key: m", onclick: () => setMode(name) }, MODE_WORDS[name]));
  const kinds = Object.entries(options.kinds).map(([kind, [label, meaning]]) => h("span", { class: "key-kind" }, h("i", { class: `kind ${kind}` }, KINDS[kind].letter), term(label, meaning)));
  const key = h("div", { class: "key" }, h("div", { class: "segments", role: "group", "aria-label": "Look at the picture, its tokens, or both" }, toggles), kinds);
  const apart = h("p", { class: "apart" });
  const live = h("p", { class: "sr-only", role: "status", "aria-live": "polite" });
  const node = h("div", { class: "stage" }, row, bar.node, key, apart, live);
  const panel = inspector({
    close, openRow: options.openRow, patches: (place, index, codes) => options.patches(place, index, codes),
    omegaNow: (place, subject) => options.omegaNow?.(place, subject) ?? null,
  });

  const traces = () => lanes.map((one) => one.trace);

  function update(value) {
    if (lanes.length !== value.lanes.length) build(value.lanes.length);
    lanes.forEach((one, i) => one.update(value.lanes[i]));
    const now = value.lanes.map((one) => one.run).join(" ");
    if (now !== run) {
      run = now;
      close();
      bar.reset();
    }
    bar.setTraces(traces());
    sayApart();
  }

  function build(count) {
    lanes = Array.from({ length: count }, (_, i) => lane(i, options.definitions, { select, move, resized: later }));
    row.replaceChildren(...lanes.map((one) => one.node));
    row.dataset.count = count;
  }

  function viewOf(one, state) {
    const rounds = player.rounds(state.player, one.trace);
    const { position, clock } = state.player;
    const past = clock === "calls" ? position >= one.trace.rounds.length + 1 : position > one.trace.states.at(-1).seconds + 1e-9;
    const looked = position !== null && rounds > 0 && !past ? rounds - 1 : null;
    return { mode, rounds, round: looked, phase: looked === null ? 2 : state.phase, selected: chosen?.key === one.key ? chosen.cell : null };
  }

  function draw() {
    frame = 0;
    if (!lanes.length || !lanes[0].trace) return;
    const { state } = bar;
    const looks = lanes.map((one) => viewOf(one, state));
    lanes.forEach((one, i) => one.paint(looks[i]));
    const views = lanes.map((one, i) => ({ lane: one, stats: one.draw(looks[i]) }));
    const place = chosen && lanes.find((one) => one.key === chosen.key);
    if (place && !panel.node.isConnected) options.panel().append(panel.node);
    if (place) setText(live, panel.show(place, chosen.cell, viewOf(place, state).rounds));
    announce(views);
    options.onState?.(views, state.player.position === null);
  }

  // The result of a run, once, for who cannot see it.
  function announce(views) {
    const over = views.every(({ lane: one }) => one.data.state === "done");
    if (!over || announced === run || bar.state.player.position !== null) return;
    announced = run;
    const words = views.map(({ lane: one }) => `${one.title}: ${one.words.calls} target calls, ${one.words.seconds}, bias ${one.words.bias}`);
    setText(live, `Done. ${words.join("; ")}.`);
  }

  function setMode(name) {
    mode = name;
    toggles.forEach((button) => button.setAttribute("aria-pressed", String(button.textContent === MODE_WORDS[name])));
    later();
  }

  function select(key, cell, by) {
    chosen = { key, cell };
    later();
    if (by === "pointer") lanes.find((one) => one.key === key).focusMap();
  }

  function close() {
    chosen = null;
    panel.hide();
    setText(live, "");
    later();
  }

  // Arrow keys within a map: from cell to cell.
  function move(key, event) {
    const { trace } = lanes.find((one) => one.key === key);
    const by = event.key in MOVES ? MOVES[event.key] : { ArrowUp: -trace.columns, ArrowDown: trace.columns }[event.key];
    if (event.key === "Enter" && chosen) panel.focus();
    if (by === undefined || event.altKey || event.ctrlKey || event.metaKey) return;
    event.preventDefault();
    event.stopPropagation();
    const from = chosen?.key === key ? chosen.cell : by > 0 ? -by : trace.total - 1 - by;
    const cell = from + by;
    if (cell >= 0 && cell < trace.total) select(key, cell, "key");
  }

  // Two runs of one seed are two samples: where they part, and how much of them differs.
  function sayApart() {
    const [a, b] = lanes.map((one) => one.trace);
    const first = a && b ? firstDifference(a, b) : null;
    const begun = Boolean(b?.cells.length && a.cells.length);
    apart.toggleAttribute("data-empty", !begun);
    if (!begun) return;
    apart.replaceChildren();
    if (first === null) return apart.append("Both lanes have drawn the same tokens so far.");
    const { different, of } = differences(a, b);
    const [r, c] = [Math.floor(first / a.columns) + 1, (first % a.columns) + 1];
    apart.append("The two pictures part at ", h("button", { type: "button", class: "linkish", onclick: () => select(lanes[1].key, first, "pointer") },
      `token ${first + 1} (row ${r}, column ${c})`), `; ${different} of ${of} tokens differ. From there on they are two samples, not two versions of one picture.`);
  }

  // ←/→ round, space play, Home/End, m, Esc: unless something that needs the key itself has the focus.
  function onKey(event) {
    if (!node.offsetParent || event.altKey || event.ctrlKey || event.metaKey || event.defaultPrevented) return;
    if (event.key === "Escape" && chosen) return close();
    const target = event.target;
    if (target.closest("input:not(.scrubber), textarea, select, [role=tab], [role=listbox], [contenteditable], .lab-bar")) return;
    if (event.key === "m") return setMode(MODES[(MODES.indexOf(mode) + 1) % MODES.length]);
    const acts = { ArrowLeft: () => bar.step(-1), ArrowRight: () => bar.step(1), Home: () => bar.go(0), End: () => bar.go(Infinity), " ": () => bar.toggle() };
    if (!(event.key in acts) || (event.key === " " && target.closest("button, a, summary"))) return;
    event.preventDefault();
    acts[event.key]();
  }
  document.addEventListener("keydown", onKey);
  new MutationObserver(() => { lanes.forEach((one) => one.forgetColours()); later(); }).observe(document.body, { attributes: true, attributeFilter: ["class"] });
  setMode(mode);

  return { node, update, redraw: later, bar, select };
}
