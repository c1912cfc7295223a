// Handles on the points of the schedule's chart: pulled by the pointer, or moved by keys, each a slider of its own to screen readers.
import { s } from "./dom.js";

export const SMALLEST = 0.05;
export const LARGEST = 100;
const KEYS = { ArrowUp: 1.05, ArrowRight: 1.05, ArrowDown: 1 / 1.05, ArrowLeft: 1 / 1.05, PageUp: 1.3, PageDown: 1 / 1.3 };

// Three digits, within what can be set; near 1 it is 1, so that lossless can be hit.
export function tidy(omega) {
  const value = Math.min(LARGEST, Math.max(SMALLEST, omega));
  return Math.abs(value - 1) < 0.03 ? 1 : Number(value.toPrecision(3));
}

// hooks: moved(row) while a point is on its way, set(row) once it is there.
export function omegaHandles(hooks) {
  const node = s("g", { class: "handles" });
  let [handles, row, place] = [[], [], null];

  function change(i, omega, settled) {
    row = row.map((own, j) => (j === i ? tidy(omega) : own));
    hooks.moved(row);
    if (settled) hooks.set(row);
  }

  function make(i) {
    const handle = s("circle", { class: "handle", tabindex: 0, role: "slider", "aria-label": `ω at draft position ${i + 1}`, "aria-orientation": "vertical", "aria-valuemin": SMALLEST, "aria-valuemax": LARGEST });
    handle.addEventListener("keydown", (event) => {
      const factor = event.key === "Home" ? 1 / row[i] : KEYS[event.key];
      if (!factor || event.ctrlKey || event.metaKey || event.altKey) return;
      event.preventDefault();
      event.stopPropagation();
      change(i, row[i] * factor, true);
    });
    handle.addEventListener("pointerdown", (event) => {
      handle.setPointerCapture(event.pointerId);
      event.preventDefault();
      handle.focus({ preventScroll: true });
    });
    handle.addEventListener("pointermove", (event) => {
      if (handle.hasPointerCapture(event.pointerId)) change(i, place.omega(event.clientY - node.ownerSVGElement.getBoundingClientRect().top), false);
    });
    handle.addEventListener("pointerup", () => hooks.set(row));
    return handle;
  }

  return {
    node,
    // where: { x(i), y(ω), omega(y), r }, or null where the method has no points to pull.
    show(omega, where) {
      [row, place] = [omega, where];
      const count = where ? omega.length : 0;
      while (handles.length < count) {
        handles.push(make(handles.length));
        node.append(handles.at(-1));
      }
      handles.splice(count).forEach((handle) => handle.remove());
      handles.forEach((handle, i) => {
        for (const [name, value] of Object.entries({ cx: where.x(i), cy: where.y(omega[i]), r: where.r, "aria-valuenow": omega[i], "aria-valuetext": omega[i].toPrecision(3) })) handle.setAttribute(name, value);
      });
    },
  };
}
