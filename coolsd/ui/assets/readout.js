// The figures of a lane in words, as Python words them for exports. Pure.

// Two digits that matter: 0, 0.09, 2.46, 31, 104.
export function number(value) {
  if (value === 0) return "0";
  if (value < 0.005) return "< 0.01";
  return value >= 20 ? value.toFixed(0) : value >= 10 ? value.toFixed(1) : value.toFixed(2);
}

// lane: { total, bias: { exact: whether the method is lossless, note } }; stats: of trace.statistics.
export function readout(stats, lane) {
  if (!stats.rounds) return { calls: "–", length: "–", seconds: "–", rate: "–", tokens: "–", drafts: "–", bias: "–", biasNote: "" };
  return {
    calls: `${stats.rounds}`,
    length: stats.acceptLength.toFixed(2),
    seconds: `${number(stats.seconds)} s`,
    rate: number(stats.tokensPerSecond),
    tokens: `${stats.tokens} / ${lane.total}`,
    drafts: `${stats.draftCalls}`,
    bias: lane.bias.exact ? "0" : number(stats.biasPerToken),
    biasNote: lane.bias.note,
  };
}
