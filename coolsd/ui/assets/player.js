// Where on the common clock the page looks: a position, a clock, a speed. Pure; the bar draws it and the keys move it.
// On the clock "calls" every lane shows its state after so many target calls; on "seconds" its state when its own decoding clock shows so much.
import { roundsAt } from "./trace.js";

export const SPEEDS = [0.1, 0.25, 0.5, 1, 2, 4];
export const CALLS_A_SECOND = 6; // at speed 1 on the clock "calls"; on "seconds" speed 1 is as it was

// position null: at the end, and with it while a run grows.
export const START = { clock: "calls", position: null, playing: false, speed: 1 };

const seconds = (trace, rounds = trace.rounds.length) => trace.states[rounds].seconds;

// The end of the clock: that of the longest lane.
export const end = (player, traces) =>
  Math.max(0, ...traces.map((trace) => (player.clock === "calls" ? trace.rounds.length : seconds(trace))));

export const at = (player, traces) => Math.min(player.position ?? Infinity, end(player, traces));

export const isAtEnd = (player, traces) => at(player, traces) >= end(player, traces) - 1e-9;

// Rounds that a lane shows.
export function rounds(player, trace) {
  if (player.position === null) return trace.rounds.length;
  return player.clock === "calls" ? Math.min(Math.floor(player.position + 1e-9), trace.rounds.length) : roundsAt(trace, player.position);
}

// Look at a position; beyond the end it follows the end.
export function seek(player, traces, position) {
  const last = end(player, traces);
  return { ...player, position: position >= last - 1e-9 ? null : Math.max(0, position) };
}

// One round on or back: on "seconds" to the next moment at which a round of any lane ends.
export function step(player, traces, direction) {
  const here = at(player, traces);
  if (player.clock === "calls") return { ...seek(player, traces, Math.floor(here + 1e-9) + direction), playing: false };
  const moments = traces.flatMap((trace) => trace.states.map((state) => state.seconds)).sort((a, b) => a - b);
  const next = direction > 0 ? moments.find((t) => t > here + 1e-6) : moments.findLast((t) => t < here - 1e-6);
  return { ...seek(player, traces, next ?? (direction > 0 ? end(player, traces) : 0)), playing: false };
}

// `elapsed` seconds of the wall later; stops at the end.
export function tick(player, traces, elapsed) {
  const pace = player.speed * (player.clock === "calls" ? CALLS_A_SECOND : 1);
  const moved = seek(player, traces, at(player, traces) + elapsed * pace);
  return moved.position === null ? { ...moved, playing: false } : moved;
}

// Play from here, or from the beginning where all has been played.
export function play(player, traces) {
  const from = isAtEnd(player, traces) ? { ...player, position: 0 } : player;
  return { ...from, playing: true };
}

// The other clock, at the moment at which the first lane shows as many rounds as before.
export function setClock(player, traces, clock) {
  if (clock === player.clock || player.position === null || !traces.length) return { ...player, clock };
  const lane = traces.find((trace) => rounds(player, trace) < trace.rounds.length) ?? traces[0];
  const count = rounds(player, lane);
  return { ...player, clock, position: clock === "calls" ? count : seconds(lane, count) };
}
