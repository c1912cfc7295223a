// What another schedule would have done on the rounds of a run: predicted from the drafted tokens alone. Pure.

const sum = (values) => values.reduce((a, b) => a + b, 0);

// Σ over the steps of one position of the chance to be there times KL(emitted, p); exact 0 where ω is at most 1, else an estimate.
function divergence(steps, omega) {
  if (omega <= 1) return 0;
  const rest = sum(steps.map(({ reach, accept }) => reach * (1 - accept)));
  const spent = sum(steps.map(({ reach, accept, ratio }) => reach * Math.max(0, accept - ratio)));
  const taken = rest + spent ? spent / (rest + spent) : 0;
  return sum(steps.map(({ reach, accept, ratio }) => {
    if (ratio <= 0) return 0;
    if (ratio <= 1) return reach * (accept * Math.log(accept / ratio) - (accept - ratio));
    const x = taken * (1 - 1 / ratio);
    return reach * ratio * (x < 1 ? (1 - x) * Math.log(1 - x) + x : 1);
  }));
}

const isChain = (nodes) => nodes.every((node, i) => node.parent === i - 1 && node.p !== null);

// trace: of trace.js. Null where nothing can be said: nothing was drafted, a draft is a tree, or its tokens are not stored.
// { acceptProb by draft position, acceptLength, targetCalls for as many tokens, biasPerToken, klPerToken, positions that the run drafted }
export function predict(trace, omega) {
  const offered = trace.rounds.filter((round) => round.drafted);
  if (!offered.length || !omega.length || offered.some((round) => !round.nodes.length || !isChain(round.nodes))) return null;
  const steps = omega.map(() => []);
  for (const { nodes } of offered) {
    let reach = 1;
    for (let i = 0; i < Math.min(nodes.length, omega.length); i++) {
      const ratio = nodes[i].q > 0 ? nodes[i].p / nodes[i].q : 0;
      const accept = Math.min(1, omega[i] * ratio);
      steps[i].push({ reach, accept, ratio });
      reach *= accept;
    }
  }
  const reached = steps.map((of) => sum(of.map(({ reach }) => reach)));
  const accepted = steps.map((of) => sum(of.map(({ reach, accept }) => reach * accept)));
  const calls = trace.rounds.length;
  const emitted = calls + sum(accepted);
  const bias = sum(steps.flat().map(({ reach, accept, ratio }) => reach * Math.max(0, accept - ratio)));
  return {
    acceptProb: accepted.map((a, i) => (reached[i] ? a / reached[i] : null)),
    acceptLength: emitted / calls, targetCalls: (trace.cells.length * calls) / emitted, biasPerToken: bias / emitted,
    klPerToken: sum(steps.map((of, i) => divergence(of, omega[i]))) / emitted, positions: Math.max(...offered.map((round) => round.nodes.length)),
  };
}
