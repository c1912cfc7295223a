// On a phone, the speedup, the bias and δ in one bar at the bottom, so that what δ does can be seen while it is moved.
import { h, setText } from "./dom.js";

// source: the range input that the bar's δ stands for; hidden while the page has none in sight.
export function stickyBar(source) {
  const [speed, bias, delta] = [h("b"), h("b"), h("b")];
  const range = h("input", { type: "range", "aria-label": "δ relaxation" });
  const node = h("div", { class: "sticky", role: "group", "aria-label": "Result and δ" },
    h("span", {}, speed, " calls"), h("span", {}, "bias ", bias), h("label", {}, "δ ", delta), range);
  document.body.append(node);
  const follow = () => {
    const own = source();
    node.hidden = !own?.offsetParent;
    if (!own) return;
    for (const name of ["min", "max", "step"]) range[name] = own[name];
    range.value = own.value;
    setText(delta, own.value);
  };
  range.addEventListener("input", () => {
    const own = source();
    own.value = range.value;
    own.dispatchEvent(new Event("input", { bubbles: true }));
    setText(delta, range.value);
  });
  range.addEventListener("change", () => source().dispatchEvent(new Event("change", { bubbles: true })));
  return {
    follow,
    show: (calls, spent) => {
      setText(bias, spent || "–");
      if (speed.textContent === (calls || "–")) return; // the same result: to ask what is in sight would lay out the page
      setText(speed, calls || "–");
      follow();
    },
  };
}
