// The panel that explains one cell: its story, its numbers, the uniform number on a line, and the rival codes with the patches they would paint.
import { h, s, setText } from "./dom.js";
import { codeOf, cut, kindOf, laboratoryRow, markOf, numbers, rivals, short, spoken, story, subjects, verdict, where } from "./explain.js";
import { acceptProb } from "./schedule.js";

const text = (x, y, words, anchor = "middle", name = "") => s("text", { x, y, "text-anchor": anchor, class: name }, words);

// 0 to 1: what lossless accepts, what is accepted on top, and where the number fell.
function cutLine(node) {
  const line = cut(node);
  if (!line) return null;
  const [left, width, top, height] = [8, 384, 22, 16];
  const x = (v) => left + width * v;
  const common = Math.min(line.plain, line.f);
  const end = (v) => (v < 0.12 ? "start" : v > 0.88 ? "end" : "middle");
  return s("svg", { class: "cut", viewBox: "0 -6 400 68", role: "img", "aria-label": verdict(node) },
    s("rect", { class: "rejected", x: x(0), y: top, width, height }),
    s("rect", { class: "kept", x: x(0), y: top, width: width * common, height }),
    line.f > common ? s("rect", { class: "extra", x: x(common), y: top, width: width * (line.f - common), height, fill: "url(#relaxed-stripes)" }) : null,
    line.plain < 0.995 ? s("line", { class: "lossless", x1: x(line.plain), x2: x(line.plain), y1: top - 4, y2: top + height + 4 }) : null,
    line.plain < 0.995 ? text(x(line.plain), top + height + 17, `lossless ${short(line.plain)}`, end(line.plain), "small") : null,
    Math.abs(line.f - line.plain) > 0.2 || line.plain >= 0.995 ? text(x(line.f), top + height + 17, `f ${short(line.f)}`, end(line.f), "small") : null,
    s("path", { class: "fell", d: `M${x(line.u)} ${top + height} V${top - 2} m-6 -9 h12 l-6 9 z` }),
    text(x(line.u), 9, `u ${short(line.u)}`, end(line.u), "small bold"));
}

// Two-sided bars; the overlap of p and q is shaded in both.
function rivalRow(rival, top, chosen, mark) {
  const bar = (value, other, side) => {
    const share = (v) => `${((100 * (v ?? 0)) / top).toFixed(1)}%`;
    return h("div", { class: `rival-bar ${side}`, title: `${side} = ${value === null ? "not among the likeliest" : short(value)}` },
      h("i", { style: `width:${share(value)}` }), h("b", { style: `width:${share(Math.min(value ?? 0, other ?? 0))}` }),
      h("span", {}, value === null ? "" : short(value)));
  };
  return h("li", { class: chosen ? "rival chosen" : "rival", "data-code": rival.code },
    bar(rival.p, rival.q, "p"), h("img", { class: "patch", alt: "", hidden: true }),
    h("span", { class: "code" }, `${rival.code}${mark ? ` ${mark}` : ""}`), bar(rival.q, rival.p, "q"));
}

// hooks: { patches(lane, index, codes) → Promise of { code: data URI }, openRow(row), close(), omegaNow(lane, position) }
export function inspector(hooks) {
  const title = h("h3", { class: "inspector-title", tabindex: -1 });
  const tale = h("p", { class: "tale" });
  const choice = h("div", { class: "segments", role: "group", "aria-label": "Token or draft" });
  const figures = h("dl", { class: "figures" });
  const line = h("div", { class: "line-box" });
  const words = h("p", { class: "note" });
  const list = h("ul", { class: "rivals", "aria-label": "Likeliest codes of target and drafter" });
  const caption = h("p", { class: "note" });
  const open = h("button", { type: "button", class: "open-row", onclick: () => hooks.openRow(row) }, "Open this row in the laboratory");
  const closer = h("button", { type: "button", class: "close", "aria-label": "Close the inspector (Esc)", onclick: () => hooks.close() }, "✕");
  const node = h("aside", { class: "inspector", "aria-label": "Inspector", hidden: true },
    h("header", {}, title, closer), tale, choice, figures, line, words,
    h("div", { class: "rival-head", "aria-hidden": "true" }, h("span", {}, "target p"), h("span", {}, "would paint, code"), h("span", {}, "q draft")),
    list, caption, open);
  let row = null;
  let chosen = "token";
  let cellKey = "";
  let contentKey = "";
  let place = null;

  // lane: { trace, title, key }; index: the cell; rounds: as many as are shown.
  function show(lane, index, rounds) {
    const all = subjects(lane.trace, index, rounds);
    const here = `${lane.key} ${index}`;
    if (here !== cellKey) chosen = "token";
    cellKey = here;
    place = { lane, index, rounds };
    const subject = all.find(({ key }) => key === chosen) ?? all[0] ?? null;
    node.hidden = false;
    setText(title, `${lane.title}: ${where(lane.trace, index)}`);
    const now = `${here} ${subject?.key} ${subject?.round} ${all.length} ${hooks.omegaNow(lane, subject)}`;
    if (now === contentKey) return spoken(lane.trace, index, subject);
    contentKey = now;
    draw(lane, index, all, subject);
    return spoken(lane.trace, index, subject);
  }

  function draw(lane, index, all, subject) {
    const { trace } = lane;
    setText(tale, subject ? story(subject) : "No token has come here yet.");
    tale.dataset.kind = subject ? kindOf(subject) : "";
    choice.hidden = all.length < 2;
    choice.replaceChildren(...all.map((one) => h("button", {
      type: "button", class: "segment", "aria-pressed": String(one === subject),
      onclick: () => { chosen = one.key; show(place.lane, place.index, place.rounds); },
    }, `${one.cell ? "token" : "draft"} ${codeOf(one)} ${markOf(one)}`)));
    const judged = subject?.node ?? all.find(({ node: draft }) => draft?.outcome === "rejected")?.node ?? null;
    const own = subject ? numbers(subject) : [];
    figures.replaceChildren(...own.map(([name, value, meaning]) => h("div", { title: meaning }, h("dt", {}, name), h("dd", {}, value))));
    const picture = cutLine(judged);
    line.replaceChildren(...(picture ? [picture] : []));
    setText(words, lines(lane, subject, judged));
    drawRivals(lane, index, subject);
    row = subject ? laboratoryRow(trace, subject) : null;
    if (row) row.source = `${lane.title}, ${where(trace, index)}: its likeliest codes, and the rest of the vocabulary as one`;
    open.hidden = !row;
  }

  function lines(lane, subject, judged) {
    if (!subject) return "";
    if (subject.node && subject.node.p === null) return "This run was recorded without its probabilities. Press Generate for one that has them.";
    const parts = [verdict(judged)];
    if (subject.cell?.kind === "recovered" && judged) parts.push(`Draft ${judged.token} fell, so this token was drawn from what p has left.`);
    const omega = hooks.omegaNow(lane, subject);
    if (subject.node && omega !== null && Math.abs(omega - subject.node.omega) > 1e-3 * omega) {
      parts.push(`With the sliders as they stand: ω = ${short(omega)}, f = ${short(acceptProb(subject.node.p, subject.node.q, omega))}.`);
    }
    return parts.filter(Boolean).join(" ");
  }

  function drawRivals(lane, index, subject) {
    const candidates = subject ? rivals(lane.trace, subject) : [];
    const top = Math.max(1e-9, ...candidates.map(({ weight }) => weight));
    const code = subject ? codeOf(subject) : null;
    list.replaceChildren(...candidates.map((rival) => rivalRow(rival, top, rival.code === code, rival.code === code ? markOf(subject) : "")));
    list.previousSibling.hidden = !candidates.length;
    setText(caption, candidates.length ? "Shaded: where p and q overlap. Patches: this cell and its neighbours in the finished picture, with that code in the middle." : "");
    if (!candidates.length) return;
    const wanted = contentKey;
    hooks.patches(lane, index, candidates.map((rival) => rival.code)).then((patches) => {
      if (contentKey !== wanted) return;
      list.querySelectorAll(".rival").forEach((item) => {
        const source = patches[item.dataset.code];
        const image = item.querySelector("img");
        image.hidden = !source;
        if (source) Object.assign(image, { src: source, alt: `patch with code ${item.dataset.code}` });
      });
      if (!Object.keys(patches).length) setText(caption, "Shaded: where p and q overlap. The patches need the server, and no run going on.");
    });
  }

  function hide() {
    node.hidden = true;
    contentKey = cellKey = "";
  }

  return { node, show, hide, focus: () => title.focus({ preventScroll: true }) };
}
