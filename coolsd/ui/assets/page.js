// The browser's half of the page. What Python's templates and events may call is exported here; each part is a module.
import { bind } from "./bind.js";
import { watchConnection } from "./connection.js";
import { mountEvidence } from "./evidence.js";
import { mountCurves, mountStage, onFigures, setControls } from "./generate.js";
import { editor, reading } from "./laboratory.js";
import { moveTabsByKey } from "./keys.js";
import { openFile } from "./open_file.js";
import { copyLink, link } from "./link.js";
import { stickyBar } from "./sticky.js";
import { restoreTheme, toggleTheme } from "./theme.js";

let settings = null; // the controls as they stand
let conditions = null; // settings that the result on the page was made with

function markStale() {
  const same = (name) => String(conditions[name] || "") === String(settings[name] || "");
  const stale = Boolean(settings && conditions) && !Object.keys(conditions).every(same);
  document.querySelectorAll("[data-stale]").forEach((node) => { node.hidden = !stale; });
}

const sticky = stickyBar(() => document.querySelector("#schedule input[type=range]"));
let [calls, spent] = ["", ""]; // of the result on the page
onFigures((bias) => {
  spent = bias;
  sticky.show(calls, spent);
});

export function controls(names, values) {
  settings = Object.fromEntries(names.map((name, i) => [name, values[i]]));
  sticky.follow();
  markStale();
  setControls(settings);
}

export function answer(element, props, watch) {
  bind(element, props, watch, (values) => {
    if (values.conditions) conditions = values.conditions;
    calls = values.calls;
    sticky.show(calls, spent);
    markStale();
  });
}

restoreTheme();
moveTabsByKey();
watchConnection();
export { bind, copyLink, editor, link, mountCurves, mountEvidence, mountStage, openFile, reading, toggleTheme };
