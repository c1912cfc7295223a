// The Generate tab: the stage with its lanes, and the curves beside it, which follow the scrubber and the sliders.
import { curves } from "./curves.js";
import { schedule } from "./schedule.js";
import { stage } from "./stage.js";

let settings = null; // the controls as they stand
let state = null; // lanes and their figures, as the scrubber stands
let drawCurves = () => {};
let redrawStage = () => {};
let shapes = null;

const cache = new Map(); // patches by lane, run, cell and codes

// ω of the method in the second lane, as the sliders stand.
const omegaNow = () => (settings && shapes ? schedule(shapes, settings) : []);

let tell = () => {};

// act(bias): with the relaxed lane's bias in words, whenever the figures on show change.
export function onFigures(act) {
  tell = act;
}

export function setControls(values) {
  settings = values;
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
    },
  });
  redrawStage = view.redraw;
  element.querySelector(".mount").replaceChildren(view.node);
  const show = () => view.update(props.value);
  show();
  watch("value", show);
}

export function mountCurves(element) {
  const charts = curves();
  element.querySelector(".mount").replaceChildren(charts.node);
  drawCurves = () => {
    if (!state) return;
    const drafting = state.filter(({ lane }) => lane.data.drafts).map(({ lane, stats }) => ({ ...stats, title: lane.title, ink: lane.place }));
    const relaxed = state.find(({ lane }) => lane.data.relaxed);
    charts.show({ lanes: drafting, now: omegaNow(), run: relaxed?.lane.trace.omega ?? [], title: shapes?.methods[settings?.method]?.title ?? "" });
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
