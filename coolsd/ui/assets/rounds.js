// The bar under the pictures: first, back, play, on, last; a scrubber over the clock with each lane's end marked; calls or seconds; speed.
import { h, isStill, s, setAttribute, setText } from "./dom.js";
import { INKS, symbol } from "./curves.js";
import * as player from "./player.js";

const FINE = 1000; // steps of the scrubber on the clock "seconds"
const PHASES = [0, 1, 2]; // drafted, judged, emitted
const PHASE_MS = 320;

const HINTS = { first: "To the beginning (Home)", back: "One round back (←)", play: "Play or pause (space)", on: "One round on (→)", last: "To the end (End)" };
const SIGNS = { // drawn, as not every system has the signs
  first: "M3 2h2v10H3zM12 2v10L5.5 7z", back: "M10.5 2v10L4 7z", play: "M4 2l8 5-8 5z", pause: "M3.5 2h2.6v10H3.5zM7.9 2h2.6v10H7.9z", on: "M3.5 2v10L10 7z",
  last: "M9 2h2v10H9zM2 2v10l6.5-5z",
};
const sign = (name) => s("svg", { viewBox: "0 0 14 14", "aria-hidden": "true" }, s("path", { d: SIGNS[name] }));

// onChange(state): { player, phase }, whenever what is to be shown changes.
export function roundsBar(onChange) {
  let state = { player: player.START, phase: 2 };
  let traces = [];
  let ticking = 0;
  let stepping = 0;

  const button = (name, act) => h("button", { type: "button", class: "round-button", title: HINTS[name], "aria-label": HINTS[name], onclick: act }, sign(name));
  const playButton = button("play", () => toggle());
  const scrubber = h("input", { type: "range", min: 0, max: 1, value: 1, step: 1, class: "scrubber", "aria-label": "Round", oninput: () => scrub() });
  const ends = h("div", { class: "ends", "aria-hidden": "true" });
  const readout = h("output", { class: "where" });
  const clock = ["calls", "seconds"].map((name) =>
    h("button", { type: "button", class: "segment", "aria-pressed": "false", title: `One clock for all lanes: ${name}`, onclick: () => setClock(name) }, name));
  const speed = h("select", { class: "speed", "aria-label": "Speed", onchange: () => change({ speed: Number(speed.value) }) },
    player.SPEEDS.map((v) => h("option", { value: v, ...(v === 1 ? { selected: true } : {}) }, `${v}×`)));
  const node = h("div", { class: "rounds", role: "group", "aria-label": "Round by round" },
    h("div", { class: "round-buttons" }, button("first", () => go(0)), button("back", () => step(-1)), playButton, button("on", () => step(1)), button("last", () => go(Infinity))),
    h("div", { class: "track" }, scrubber, ends),
    readout, h("div", { class: "segments", role: "group", "aria-label": "Clock" }, clock), speed);

  function change(changes, phase = 2) {
    state = { player: { ...state.player, ...changes }, phase };
    draw();
    onChange(state);
  }

  function go(position) {
    cancel();
    change({ ...player.seek(state.player, traces, position), playing: false });
  }

  function scrub() {
    cancel();
    const share = Number(scrubber.value) / Number(scrubber.max);
    const position = state.player.clock === "calls" ? Number(scrubber.value) : share * player.end(state.player, traces);
    change({ ...player.seek(state.player, traces, position), playing: false });
  }

  // One round on is shown as it happens: drafted, judged, emitted.
  function step(direction) {
    cancel();
    const moved = player.step(state.player, traces, direction);
    if (direction < 0 || isStill() || player.isAtEnd(state.player, traces)) return change(moved);
    const next = (phase) => {
      change(moved, PHASES[phase]);
      stepping = phase < 2 ? setTimeout(() => next(phase + 1), PHASE_MS) : 0;
    };
    next(0);
  }

  function toggle() {
    cancel();
    if (state.player.playing) return change({ playing: false });
    change(player.play(state.player, traces));
    let before = performance.now();
    const frame = (now) => {
      const moved = player.tick(state.player, traces, (now - before) / 1000);
      before = now;
      change(moved, phaseOf(moved));
      ticking = moved.playing ? requestAnimationFrame(frame) : 0;
    };
    ticking = requestAnimationFrame(frame);
  }

  // Played slowly on the clock "calls", the part of a round that has passed says how far it has come.
  function phaseOf(moved) {
    if (moved.clock !== "calls" || moved.speed > 0.25 || moved.position === null) return 2;
    return Math.min(2, Math.floor((moved.position % 1) * 3));
  }

  function cancel() {
    cancelAnimationFrame(ticking);
    clearTimeout(stepping);
    ticking = stepping = 0;
  }

  function setClock(name) {
    cancel();
    change({ ...player.setClock(state.player, traces, name), playing: false });
    drawEnds();
  }

  function draw() {
    const { clock: name, playing } = state.player;
    const last = player.end(state.player, traces);
    const here = player.at(state.player, traces);
    const max = name === "calls" ? Math.max(1, last) : FINE;
    setAttribute(scrubber, "max", max);
    scrubber.value = name === "calls" ? Math.round(here) : last ? (FINE * here) / last : FINE;
    const words = name === "calls" ? `call ${Math.floor(here + 1e-9)} of ${last}` : `${here.toFixed(2)} of ${last.toFixed(2)} s`;
    setText(readout, words);
    setAttribute(scrubber, "aria-valuetext", words);
    if (playButton.dataset.playing !== String(playing)) playButton.replaceChildren(sign(playing ? "pause" : "play"));
    playButton.dataset.playing = playing;
    clock.forEach((segment) => setAttribute(segment, "aria-pressed", segment.textContent === name));
    node.classList.toggle("empty", !last);
  }

  // Where each lane's own run ends on the common clock.
  function drawEnds() {
    const last = player.end(state.player, traces);
    ends.replaceChildren(...(last ? traces.map((trace, i) => {
      const own = state.player.clock === "calls" ? trace.rounds.length : trace.states.at(-1).seconds;
      return h("span", { style: `left:${(100 * own) / last}%` }, s("svg", { viewBox: "0 0 12 12" }, symbol(INKS[i].symbol, 6, 6, 3.6)));
    }) : []));
  }

  return {
    node,
    // New traces, or more of them: at the end it stays at the end.
    setTraces(next) {
      traces = next;
      drawEnds();
      change({});
    },
    reset() {
      cancel();
      change({ ...state.player, position: null, playing: false });
    },
    step, toggle, go,
    get state() { return state; },
  };
}
