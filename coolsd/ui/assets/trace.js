// A run as the page draws it: cells, rounds and running sums, so that the state after any round is one look-up. Pure: no document, no server.
// Reads the rounds of a trace as Python writes them; what a trace of schema 1 lacks (drafts, uniforms) is null here.

export const KINDS = {
  accepted: { letter: "A", mark: "✓", name: "accepted" },
  relaxed: { letter: "~", mark: "~", name: "accepted only because relaxed" },
  recovered: { letter: "R", mark: "R", name: "recovered after a rejection" },
  bonus: { letter: "B", mark: "B", name: "bonus: the whole draft was accepted" },
  sampled: { letter: "S", mark: "S", name: "sampled without a draft" },
};

// What became of a drafted token.
export const OUTCOMES = {
  accepted: { mark: "✓", name: "accepted" },
  relaxed: { mark: "~", name: "accepted only because relaxed" },
  rejected: { mark: "✗", name: "rejected" },
  unexamined: { mark: "", name: "not looked at" },
};

const ZERO = { rounds: 0, tokens: 0, draftCalls: 0, seconds: 0, bias: 0, accepted: 0, relaxed: 0, recovered: 0, bonus: 0, sampled: 0 };

// An empty trace of a picture of rows × columns tokens; omega: ω by draft position, empty for plain AR.
export function createTrace([rows, columns], omega = []) {
  const start = { ...ZERO, offered: [], examined: [], probability: [], reached: [] };
  return { rows, columns, omega, total: rows * columns, rounds: [], cells: [], states: [start] };
}

// A whole run at once.
export function traceOf(run) {
  const trace = createTrace(run.grid, run.omega);
  run.rounds.forEach((round) => push(trace, round));
  return trace;
}

// Add one round, as it comes.
export function push(trace, round) {
  const nodes = draftedNodes(round, trace.omega);
  const path = nodes.filter((node) => node.outcome === "accepted" || node.outcome === "relaxed");
  const number = trace.rounds.length;
  round.tokens.forEach((token, i) => {
    const index = round.start + i;
    const kind = round.kinds[i] === "accepted" && round.relaxed[i] ? "relaxed" : round.kinds[i];
    const drafted = kind === "accepted" || kind === "relaxed";
    const node = drafted ? path[i] ?? bareNode(round, trace.omega, i) : null;
    trace.cells[index] = {
      index, token, kind, node, round: number, row: Math.floor(index / trace.columns), column: index % trace.columns,
      position: kind === "sampled" ? null : i + 1, last: drafted ? null : round.last ?? null,
      logP: round.log_p?.[i] ?? null, entropy: round.entropy?.[i] ?? null, head: round.top?.[i] ?? null,
    };
  });
  const seconds = round.draft_seconds + round.target_seconds + round.verify_seconds + round.other_seconds;
  trace.rounds.push({ number, start: round.start, count: round.tokens.length, drafted: round.drafted, nodes, heads: round.top ?? null, seconds });
  trace.states.push(after(trace.states.at(-1), round, seconds));
  return trace;
}

function draftedNodes(round, omega) {
  const drafts = round.drafts;
  if (!drafts) return [];
  const depths = [];
  return drafts.tokens.map((token, i) => {
    const parent = drafts.parents[i];
    const depth = parent < 0 ? 1 : depths[parent] + 1;
    depths.push(depth);
    return {
      number: i, token, parent, position: depth, cell: round.start + depth - 1, omega: omega[depth - 1] ?? 1,
      p: drafts.p[i], q: drafts.q[i], f: drafts.f[i], u: drafts.u[i], outcome: drafts.outcome[i],
    };
  });
}

// Of an accepted token of a schema 1 trace only f is known.
function bareNode(round, omega, i) {
  const { tokens, start, accept_prob: f, relaxed } = round;
  return { number: i, token: tokens[i], parent: i - 1, position: i + 1, cell: start + i, omega: omega[i] ?? 1,
    p: null, q: null, f: f[i] ?? null, u: null, outcome: relaxed[i] ? "relaxed" : "accepted" };
}

// The sums after a round: the same counts as `statistics` in Python.
function after(before, round, seconds) {
  const next = { ...before, rounds: before.rounds + 1, tokens: before.tokens + round.tokens.length };
  next.draftCalls += round.draft_calls;
  next.seconds += seconds;
  next.bias += round.cost.reduce((sum, cost) => sum + cost, 0);
  round.kinds.forEach((kind, i) => { next[kind === "accepted" && round.relaxed[i] ? "relaxed" : kind] += 1; });
  const accepted = round.kinds.filter((kind) => kind === "accepted").length;
  const length = Math.max(before.offered.length, round.drafted);
  const sums = (old, term) => Array.from({ length }, (_, i) => (old[i] ?? 0) + term(i));
  next.offered = sums(before.offered, (i) => Number(round.drafted > i));
  next.examined = sums(before.examined, (i) => Number(round.accept_prob.length > i));
  next.probability = sums(before.probability, (i) => round.accept_prob[i] ?? 0);
  next.reached = sums(before.reached, (i) => Number(accepted > i));
  return next;
}

// Figures after `rounds` rounds; by draft position: mean f over the rounds that looked, and the share of rounds that accepted it.
export function statistics(trace, rounds = trace.rounds.length) {
  const state = trace.states[Math.max(0, Math.min(rounds, trace.rounds.length))];
  const ratio = (a, b) => (b ? a / b : null);
  return {
    ...state,
    acceptLength: ratio(state.tokens, state.rounds) ?? 0,
    tokensPerSecond: ratio(state.tokens, state.seconds) ?? 0,
    biasPerToken: ratio(state.bias, state.tokens) ?? 0,
    acceptProb: state.examined.map((n, i) => ratio(state.probability[i], n)),
    acceptedShare: state.offered.map((n, i) => ratio(state.reached[i], n)),
  };
}

// How many rounds have ended when the lane's own clock shows `seconds`.
export function roundsAt(trace, seconds) {
  let [low, high] = [0, trace.rounds.length];
  while (low < high) {
    const middle = Math.ceil((low + high) / 2);
    if (trace.states[middle].seconds <= seconds + 1e-9) low = middle;
    else high = middle - 1;
  }
  return low;
}

// What lies in a cell after `rounds` rounds: its token, and the drafts that the last of those rounds put there.
export function cellAt(trace, index, rounds) {
  const cell = trace.cells[index];
  const round = trace.rounds[rounds - 1];
  const drafts = round ? round.nodes.filter((node) => node.cell === index) : [];
  return { cell: cell && cell.round < rounds ? cell : null, drafts };
}

// The cell where two runs part for the first time; null where neither does, as far as both have come.
export function firstDifference(a, b) {
  const length = Math.min(a.cells.length, b.cells.length);
  for (let i = 0; i < length; i++) if (a.cells[i]?.token !== b.cells[i]?.token) return i;
  return null;
}

// How many cells differ, of those that both have.
export function differences(a, b) {
  const length = Math.min(a.cells.length, b.cells.length);
  return { different: a.cells.slice(0, length).filter((cell, i) => cell.token !== b.cells[i].token).length, of: length };
}
