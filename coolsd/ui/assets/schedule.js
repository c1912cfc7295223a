// ω by draft position and the acceptance probability, by the same formulas as in Python. Pure.

// The draft's shape by name, by its nodes, or a chain; { depth: 0 } while the nodes cannot be read.
export function shape(shapes, s) {
  const method = shapes.methods[s.method];
  if (method.jacobi) return { depth: s.window - 1, chain: true };
  const tree = method.chooses && s.tree !== "auto" ? s.tree : method.tree;
  if (tree === "chain") return { depth: s.draft_length, chain: true };
  if (shapes.trees[tree]) return shapes.trees[tree];
  try {
    const nodes = JSON.parse(tree);
    const depth = Math.max(0, ...nodes.map((node) => node.length));
    return { depth, chain: depth === nodes.length };
  } catch {
    return { depth: 0, chain: true };
  }
}

// ω within a bias budget: between the two fitted schedules beside it; positions behind those that were fitted are lossless.
function fitted(frontiers, depth, bias) {
  const points = frontiers[Math.min(depth, Math.max(...Object.keys(frontiers).map(Number)))];
  if (!points) return [];
  const above = points.findIndex(([value], i) => i > 0 && value >= bias);
  const right = above < 0 ? points.length - 1 : above;
  const [[from, low], [to, high]] = [points[right - 1], points[right]];
  const share = Math.min(1, Math.max(0, (bias - from) / (to - from)));
  return Array.from({ length: depth }, (_, i) => (i < low.length ? low[i] + share * (high[i] - low[i]) : 1));
}

// The row of an ω by hand, as Python reads it; empty where it is auto or cannot be read.
export function byHand(text) {
  if (!text || text.trim() === "auto") return [];
  const row = text.replace(/^[\s[(]+|[\s\])]+$/g, "").split(/[\s,;]+/).map(Number);
  return row.every((w) => Number.isFinite(w) && w >= 0) ? row : [];
}

// ω of a method with these settings; empty for a method without one.
export function schedule(shapes, s) {
  const kind = shapes.methods[s.method]?.omega ?? "none";
  if (kind === "none") return [];
  const { depth, chain } = shape(shapes, s);
  const index = Array.from({ length: depth || 0 }, (_, i) => i + 1);
  if (kind === "fitted") return fitted(shapes.frontiers, depth || 0, s.bias);
  if (kind === "lossless") return index.map(() => 1);
  if (kind === "window") {
    const front = annealed(index.slice(0, s.draft_length), s, 1);
    return index.map((i) => front[i - 1] ?? 1);
  }
  const own = kind === "annealed" ? byHand(s.omega) : [];
  const least = (s.siblings === "salvage" && !chain) || (kind === "annealed" && s.clamp && !own.length) ? 1 : 0;
  if (own.length) return index.map((i) => Math.max(least, own[i - 1] ?? 1));
  return kind === "uniform" ? index.map(() => Math.max(least, s.delta)) : annealed(index, s, least);
}

// δ exp(-ν i - μ) at draft positions i = 1, 2, …, at least `least`.
function annealed(index, s, least) {
  const raw = index.map((i) => Math.exp(-s.nu * i));
  const mean = s.mu_auto ? raw.reduce((a, b) => a + b, 0) / raw.length : Math.exp(s.mu);
  return raw.map((w) => Math.max(least, (s.delta * w) / mean));
}

// f = min(1, ω p/q); 0 for a token that q cannot have drawn.
export const acceptProb = (p, q, omega) => (q > 0 ? Math.min(1, (omega * p) / q) : 0);

// What one step spends: Σ_x [min(q, ω p) - p]₊ over rows given as equally long lists.
export const stepCost = (p, q, omega) => p.reduce((sum, value, x) => sum + Math.max(0, Math.min(q[x], omega * value) - value), 0);

// Three digits that matter, short enough for a chart.
export const digits = (w) => (w >= 100 ? w.toFixed(0) : w >= 10 ? w.toFixed(1) : w.toFixed(2));

// The row in numbers; of a long one's tail of equal values the first, and an ellipsis.
export function inNumbers(omega) {
  const tail = omega.findIndex((w, i) => omega.slice(i).every((other) => other === w));
  const shown = omega.length > 10 ? omega.slice(0, tail + 1) : omega;
  return shown.map(digits).join("  ") + (shown.length < omega.length ? "  …" : "");
}

// What a schedule does, in a sentence.
export function inWords(omega, title) {
  if (!omega.length) return `${title} has no ω.`;
  const mean = omega.reduce((a, b) => a + b, 0) / omega.length;
  const positions = (test) => {
    const at = omega.map((w, i) => (test(w) ? i + 1 : 0)).filter(Boolean);
    return at.length > 1 ? `${at[0]}–${at.at(-1)}` : `${at[0] ?? ""}`;
  };
  const looser = positions((w) => w > 1.0005);
  const stricter = positions((w) => w < 0.9995);
  if (!looser && !stricter) return "ω = 1 everywhere: lossless.";
  const parts = [];
  if (looser) parts.push(`looser than lossless (ω = 1) at position ${looser}`);
  if (stricter) parts.push(`stricter ${looser ? "" : "than lossless (ω = 1) "}at ${stricter}`);
  return `Mean ${digits(mean)}: ${parts.join(", ")}.`;
}
