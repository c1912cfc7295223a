// Fills fixed templates with the values Python sends, under the names given in data- attributes; as text and attributes only, never as markup.
import { setImage, setText } from "./dom.js";

function blobLink(node, name, content, type) {
  if (node.href.startsWith("blob:")) URL.revokeObjectURL(node.href);
  node.hidden = !name;
  if (!name) return;
  node.download = name;
  node.href = URL.createObjectURL(new Blob([content], { type }));
}

export function fill(element, values) {
  const each = (name, act) => element.querySelectorAll(`[data-${name}]`).forEach((node) => act(node, values[node.dataset[name]]));
  each("text", (node, v) => setText(node, String(v ?? "")));
  each("state", (node, v) => { node.dataset.is = v ?? ""; });
  each("image", (node, v) => setImage(node, v ?? "", values[node.dataset.alt]));
  each("json", (node, v) => blobLink(node, v, values[node.dataset.source], "application/json"));
  each("csv", (node, v) => blobLink(node, v, values[node.dataset.source], "text/csv"));
}

// With `keep` the values that are not sent stay as they are. act: what else follows from the values on show.
export function bind(element, props, watch, act = () => {}) {
  let values = {};
  const show = () => {
    const next = props.value ?? {};
    values = next.keep ? { ...values, ...next } : next;
    fill(element, values);
    act(values);
  };
  show();
  watch("value", show);
}
