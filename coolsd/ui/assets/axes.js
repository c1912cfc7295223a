// Axes of charts. Pure.

// Round numbers from low to high, about `count` of them.
export function axisTicks(low, high, count) {
  const rough = (high - low) / Math.max(1, count);
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = power * [1, 2, 5, 10].find((one) => one * power >= rough - 1e-12);
  const first = Math.ceil(low / step - 1e-9);
  const ticks = [];
  for (let i = first; i * step <= high + 1e-9 * step; i++) ticks.push(+(i * step).toPrecision(12));
  return ticks;
}

// The range of values with a little room; of a single value some around it.
export function extent(values) {
  const [low, high] = [Math.min(...values), Math.max(...values)];
  const room = 0.03 * (high - low || Math.abs(high) || 1);
  return [low - room, high + room];
}
