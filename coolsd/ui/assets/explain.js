// What is to be said of one token or draft, in words and numbers. Pure: the inspector draws it, screen readers hear it.
import { acceptProb } from "./schedule.js";
import { cellAt, KINDS, OUTCOMES } from "./trace.js";

// Three digits that matter: .0312, .43, 1.28, 12; a share below a millionth as such.
export function short(value) {
  if (value === null || value === undefined) return "–";
  if (value === 0) return "0";
  if (Math.abs(value) >= 100) return value.toFixed(0);
  if (Math.abs(value) < 1e-4) return value.toExponential(1).replace("e-", "e−");
  return Number(value.toPrecision(3)).toString().replace(/^(-?)0\./, "$1.");
}

// What can be looked at in a cell after `rounds` rounds: the token there, and the drafts of its round. chosen: one of them by its key.
export function subjects(trace, index, rounds) {
  const { cell, drafts } = cellAt(trace, index, rounds);
  const round = cell ? cell.round : drafts.length ? rounds - 1 : null;
  const nodes = round === null ? [] : trace.rounds[round].nodes.filter((node) => node.cell === index);
  const drafted = nodes.map((node) => ({ key: `draft ${node.number}`, node, round, cell: null }));
  if (!cell) return drafted;
  const own = drafted.find(({ node }) => cell.node?.number === node.number && cell.node.token === node.token);
  const emitted = { key: "token", node: cell.node, round, cell };
  return [emitted, ...drafted.filter((subject) => subject !== own)];
}

export const markOf = ({ cell, node }) => (cell ? KINDS[cell.kind].letter : OUTCOMES[node.outcome].mark || "·");
export const kindOf = ({ cell, node }) => (cell ? cell.kind : node.outcome);
export const codeOf = ({ cell, node }) => (cell ? cell.token : node.token);

// "token 37, row 3, column 5", counted from 1.
export const where = (trace, index) => `token ${index + 1}, row ${Math.floor(index / trace.columns) + 1}, column ${(index % trace.columns) + 1}`;

// "round 11, draft position 2: accepted only because relaxed".
export function story(subject) {
  const { cell, node, round } = subject;
  const position = cell ? cell.position : node.position;
  const at = position === null ? `round ${round + 1}` : `round ${round + 1}, draft position ${position}`;
  return `${at}: ${cell ? KINDS[cell.kind].name : `draft, ${OUTCOMES[node.outcome].name}`}`;
}

// The numbers of a draft: p, q, p/q, ω, f; of a recovered or sampled token: p, and what it was drawn from.
export function numbers({ cell, node }) {
  if (node && node.p !== null) {
    return [["p", short(node.p), "target's probability"], ["q", short(node.q), "drafter's probability"], ["p/q", node.q ? short(node.p / node.q) : "–", "their ratio"],
      ["ω", short(node.omega), "relaxation at this draft position; 1 is lossless"],
      ["f", short(node.f), node.f === null ? "not looked at: an earlier draft was rejected" : "acceptance probability, min(1, ω p/q)"]];
  }
  if (node) return node.f === null ? [] : [["f", short(node.f), "acceptance probability"], ["ω", short(node.omega), "relaxation at this draft position"]];
  if (!cell?.last) return [];
  const meaning = cell.kind === "recovered" ? "probability in the residual it was drawn from" : "probability in the row it was drawn from";
  return [["p", short(cell.last.p), "target's probability"], ["drawn with", short(cell.last.law), meaning]];
}

// Where the uniform number fell, for the line from 0 to 1; null where none was drawn or stored. plain: where lossless would have cut.
export function cut(node) {
  if (!node || node.u === null || node.u === undefined || node.p === null) return null;
  return { u: node.u, f: node.f, plain: acceptProb(node.p, node.q, 1) };
}

// In words what the line shows.
export function verdict(node) {
  const line = cut(node);
  if (!line) return "";
  const [u, f, plain] = [line.u, line.f, line.plain].map(short);
  if (node.outcome === "rejected") return `u = ${u} lies above f = ${f}: rejected.`;
  if (node.outcome === "relaxed") return `u = ${u} lies below f = ${f}, but above ${plain}, where lossless cuts: accepted only because relaxed.`;
  return `u = ${u} lies below f = ${f}${line.plain < 1 ? ` and below ${plain}, where lossless cuts` : ""}: accepted.`;
}

// The rows' likeliest codes, most first, and the codes that this cell is about: [{ code, p, q }], null where a value is not known.
export function rivals(trace, subject, count = 8) {
  const { cell, node, round } = subject;
  const position = cell ? cell.position ?? 1 : node.position;
  const head = trace.rounds[round].heads?.[position - 1];
  if (!head) return [];
  const [p, q] = [new Map(head.p), new Map(head.q ?? [])];
  const index = cell ? cell.index : node.cell;
  for (const draft of trace.rounds[round].nodes.filter((other) => other.cell === index && other.outcome !== "unexamined" && other.p !== null)) {
    p.set(draft.token, draft.p);
    q.set(draft.token, draft.q);
  }
  if (cell?.last) p.set(cell.token, cell.last.p);
  const about = new Set([codeOf(subject), ...trace.rounds[round].nodes.filter((other) => other.cell === index && other.outcome === "rejected").map((other) => other.token)]);
  const all = [...new Set([...p.keys(), ...q.keys()])].map((code) => {
    const [own, drafted] = [p.get(code) ?? null, q.get(code) ?? null];
    return { code, p: own, q: drafted, weight: Math.max(own ?? 0, drafted ?? 0) };
  });
  all.sort((a, b) => b.weight - a.weight);
  return all.filter((rival, i) => i < count || about.has(rival.code)).slice(0, count + 4);
}

// The row as the laboratory takes it: the `bars - 1` likeliest codes, and the rest of the vocabulary as one; null without heads.
export function laboratoryRow(trace, subject, bars = 6) {
  const top = rivals(trace, subject, bars - 1).slice(0, bars - 1);
  if (!top.length || top.every(({ q }) => q === null)) return null;
  const filled = (name) => {
    const row = top.map((rival) => rival[name] ?? 0);
    const rest = Math.max(0, 1 - row.reduce((sum, value) => sum + value, 0));
    return [...row, rest].map((value) => value / (row.reduce((sum, v) => sum + v, 0) + rest));
  };
  return { p: filled("p"), q: filled("q"), names: [...top.map(({ code }) => `${code}`), "rest"], omega: trace.omega[(subject.cell?.position ?? subject.node?.position ?? 0) - 1] ?? 1 };
}

// One sentence for screen readers.
export function spoken(trace, index, subject) {
  if (!subject) return `${where(trace, index)}: no token yet`;
  const figures = numbers(subject).map(([name, value]) => `${name} ${value}`).join(", ");
  return `${where(trace, index)}; ${story(subject)}. ${figures}`;
}
