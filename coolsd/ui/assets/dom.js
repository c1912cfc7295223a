// The few ways in which the page makes and fills nodes. Values reach the document as text and as attributes only, never as markup.

const SVG = "http://www.w3.org/2000/svg";

function fit(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return node;
}

// An element: h("p", { class: "note" }, "words", another).
export const h = (tag, attributes, ...children) => fit(document.createElement(tag), attributes, children);

// The same for a drawing.
export const s = (tag, attributes, ...children) => fit(document.createElementNS(SVG, tag), attributes, children);

export function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

// The same for an attribute: what stays as it is costs no new layout.
export function setAttribute(node, name, value) {
  if (node.getAttribute(name) !== String(value)) node.setAttribute(name, value);
}

// A new picture is swapped in only once it is decoded, so that nothing flashes.
export function setImage(node, source, alt) {
  if (node.alt !== (alt ?? "")) node.alt = alt ?? "";
  if (node.dataset.wanted === source) return;
  node.dataset.wanted = source;
  if (!source) {
    node.hidden = true;
    node.removeAttribute("src");
    return;
  }
  const next = new Image();
  next.src = source;
  next.decode().then(() => {
    if (node.dataset.wanted !== source) return;
    node.src = source;
    node.hidden = false;
  }, () => {});
}

// The size of a node in CSS pixels and of its letters, measured once and again whenever it changes: to ask in the middle of drawing would lay out
// the page each time. act: what follows from a change.
export function roomOf(node, act) {
  let room = null;
  new ResizeObserver(() => {
    room = null;
    act();
  }).observe(node);
  return () => (room ??= { width: node.clientWidth, height: node.clientHeight, em: parseFloat(getComputedStyle(node).fontSize) });
}

// Words explained on hover and on focus.
export function term(label, meaning, side = "") {
  return h("button", { type: "button", class: `term ${side}`, "data-tip": meaning, "aria-label": `${label}: ${meaning}` }, label);
}

// A table: a head, then rows of cells.
export function fillTable(node, rows) {
  const line = (cells, tag) => h("tr", {}, cells.map((cell) => h(tag, tag === "th" ? { scope: "col" } : {}, cell)));
  node.replaceChildren(...rows.map((cells, i) => line(cells, i ? "td" : "th")));
}

export const isDark = () => document.body.classList.contains("dark") || document.documentElement.classList.contains("dark");

export const isStill = () => matchMedia("(prefers-reduced-motion: reduce)").matches;
