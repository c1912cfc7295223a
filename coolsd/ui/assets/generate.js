// The Generate tab: the stage with its lanes, and the curves beside it, which follow the scrubber and the sliders.
import { curves } from "./curves.js";
import { setLastRun } from "./last_run.js";
import { number } from "./readout.js";
import { schedule, shape } from "./schedule.js";
import { stage } from "./stage.js";
import { statistics } from "./trace.js";
import { predict } from "./what_if.js";

let settings = null; // the controls as they stand
let state = null; // lanes and their figures, as the scrubber stands
let drawCurves = () => {};
let redrawStage = () => {};
let shapes = null;

const cache = new Map(); // patches by lane, run, cell and codes

let pulled = null; // ω while a point of the chart is on its way, and until the controls have it

// ω of the method in the second lane, as the sliders stand or as its points are pulled.
const omegaNow = () => pulled ?? (settings && shapes ? schedule(shapes, settings) : []);

// What that ω would have done on the rows of the run on the page; null where its rule or its drafts allow no prediction.
function forecastOf(omega) {
  const method = shapes?.methods[settings?.method];
  if (!method?.token || !shape(shapes, settings).chain) return null;
  for (const { lane } of [...state].sort((a, b) => Number(b.lane.data.relaxed) - Number(a.lane.data.relaxed))) {
    const forecast = lane.data.rows ? predict(lane.trace, omega) : null;
    if (forecast) return { ...forecast, from: lane.title, relaxed: lane.data.relaxed, missing: omega.length > forecast.positions };
  }
  return null;
}

let tell = () => {};

// act(bias): with the relaxed lane's bias in words, whenever the figures on show change.
export function onFigures(act) {
  tell = act;
}

export function setControls(values) {
  settings = values;
  pulled = null;
  drawCurves();
  redrawStage();
}

export function mountStage(element, props, watch, trigger, server) {
  shapes = props.shapes;
  const view = stage({
    definitions: props.definitions, kinds: props.kinds, panel: () => document.querySelector("#why"),
    patches: (lane, index, codes) => patches(server, lane, index, codes),
    openRow: (row) => trigger(row),
    omegaNow: (lane, subject) => (lane.data.relaxed && subject?.node ? omegaNow()[subject.node.position - 1] ?? null : null),
    onState: (lanes) => {
      state = lanes;
      drawCurves();
      const relaxed = lanes.find(({ lane }) => lane.data.relaxed);
      if (relaxed) tell(relaxed.lane.words.bias);
      if (relaxed?.stats.rounds) setLastRun({ title: relaxed.lane.title, target: relaxed.lane.data.target, acceptLength: relaxed.stats.acceptLength, bias: relaxed.stats.biasPerToken });
    },
  });
  redrawStage = view.redraw;
  element.querySelector(".mount").replaceChildren(view.node);
  const show = () => view.update(props.value);
  show();
  watch("value", show);
}

// A row of ω into its control, as a person would type it.
function setByHand(row) {
  const box = document.querySelector("#row-omega :is(input, textarea)");
  if (!box) return;
  box.value = row.map((omega) => Number(omega.toPrecision(3))).join(",");
  box.dispatchEvent(new Event("input", { bubbles: true }));
}

export function mountCurves(element) {
  const charts = curves({ set: setByHand, moved: (row) => { pulled = row; drawCurves(); } });
  element.querySelector(".mount").replaceChildren(charts.node);
  drawCurves = () => {
    if (!state) return;
    const drafting = state.filter(({ lane }) => lane.data.drafts).map(({ lane, stats }) => ({ ...stats, title: lane.title, ink: lane.place }));
    const relaxed = state.find(({ lane }) => lane.data.relaxed);
    const [now, method] = [omegaNow(), shapes?.methods[settings?.method]];
    const forecast = forecastOf(now);
    const whole = forecast?.relaxed ? statistics(relaxed.lane.trace) : null;
    charts.show({
      lanes: drafting, now, run: relaxed?.lane.trace.omega ?? [], title: method?.title ?? "", forecast, byHand: Boolean(method?.by_hand),
      measured: whole ? `${whole.acceptLength.toFixed(2)} tokens/call, ${whole.rounds} calls and bias ${number(whole.biasPerToken)}` : "",
    });
  };
  drawCurves();
}

// What rival codes would paint: stored with the run, known from before, or from one pass of the picture decoder on the server.
async function patches(server, lane, index, codes) {
  const stored = lane.data.patches?.[index];
  if (stored) return stored;
  const { trace, data } = lane;
  if (trace.cells.length < trace.total) return {};
  const key = [data.run, lane.key, index, ...codes].join(" ");
  if (!cache.has(key)) {
    const request = { target: data.target, tokens: trace.cells.map((cell) => cell.token), cell: index, codes };
    cache.set(key, server.patches(request).catch(() => ({})));
  }
  const answer = await cache.get(key);
  if (!Object.keys(answer).length) cache.delete(key);
  return answer;
}
