// The browser's half of the page: fills fixed templates with the values Python sends, draws the live curve, and spells the link.
// Values reach the document as text and as attributes only, never as markup.
window.coolsd = (() => {
  const INK = { light: "#27272a", dark: "#e4e4e7" };
  const GRID = { light: "rgba(0,0,0,0.10)", dark: "rgba(255,255,255,0.14)" };
  const isDark = () => document.body.classList.contains("dark") || document.documentElement.classList.contains("dark");
  const theme = () => (isDark() ? "dark" : "light");
  const colours = () => ({ ink: INK[theme()], grid: GRID[theme()], ground: isDark() ? "#18181b" : "#ffffff" });

  function setText(node, text) {
    if (node.textContent !== text) node.textContent = text;
  }

  // A new picture is swapped in only once it is decoded, so that nothing flashes.
  function setImage(node, source, alt) {
    node.alt = alt ?? "";
    if (node.dataset.shown === source) return;
    node.dataset.shown = source;
    if (!source) {
      node.hidden = true;
      node.removeAttribute("src");
      return;
    }
    const next = node.cloneNode();
    next.hidden = false;
    next.src = source;
    next.decode().then(() => { if (node.dataset.shown === source && node.isConnected) node.replaceWith(next); }, () => {});
  }

  function blobLink(node, name, content) {
    if (node.href.startsWith("blob:")) URL.revokeObjectURL(node.href);
    node.hidden = !name;
    if (!name) return;
    node.download = name;
    node.href = URL.createObjectURL(new Blob([content], { type: "application/json" }));
  }

  function fill(element, values) {
    const each = (name, act) => element.querySelectorAll(`[data-${name}]`).forEach((node) => act(node, values[node.dataset[name]]));
    each("text", (node, v) => setText(node, String(v ?? "")));
    each("state", (node, v) => { node.dataset.is = v ?? ""; });
    each("image", (node, v) => setImage(node, v ?? "", values[node.dataset.alt]));
    each("grow", (node, v) => { node.style.flexGrow = v ?? 0; node.hidden = !v; setText(node, String(v ?? "")); });
    each("png", (node, v) => { node.hidden = !v; if (v) { node.download = v; node.href = values[node.dataset.source]; } });
    each("json", (node, v) => blobLink(node, v, values[node.dataset.source]));
    if (values.rows) {
      element.style.setProperty("--rows", values.rows);
      element.style.setProperty("--columns", values.columns);
    }
  }

  // With `keep` the values that are not sent stay as they are.
  function bind(element, props, watch) {
    let shown = {};
    const show = () => {
      const next = props.value ?? {};
      shown = next.keep ? { ...shown, ...next } : next;
      fill(element, shown);
      if (shown.asked) { asked = shown.asked; markStale(); }
    };
    show();
    watch("value", show);
  }

  // --- ω, drawn from the sliders without a server ---------------------------------------------------------------------------

  let settings = null; // the controls as they stand
  let asked = null; // those that the result on the page was asked with

  function markStale() {
    const same = (name) => String(asked[name] || "") === String(settings[name] || "");
    const stale = Boolean(settings && asked) && !Object.keys(asked).every(same);
    document.querySelectorAll("[data-stale]").forEach((node) => { node.hidden = !stale; });
  }

  let redraw = () => {};

  // The draft's shape by name, by its nodes, or a chain; { depth: 0 } while the nodes cannot be read.
  function shape(shapes, s) {
    const method = shapes.methods[s.method];
    const tree = method.chooses && s.tree !== "auto" ? s.tree : method.tree;
    if (tree === "chain") return { depth: s.draft_length, chain: true };
    if (shapes.trees[tree]) return shapes.trees[tree];
    try {
      const nodes = JSON.parse(tree);
      const depth = Math.max(0, ...nodes.map((node) => node.length));
      return { depth, chain: depth === nodes.length };
    } catch {
      return { depth: 0, chain: true };
    }
  }

  // ω within a bias budget: between the two fitted schedules beside it; positions behind those that were fitted are lossless.
  function fitted(frontiers, depth, bias) {
    const points = frontiers[Math.min(depth, Math.max(...Object.keys(frontiers).map(Number)))];
    if (!points) return [];
    const above = points.findIndex(([value], i) => i > 0 && value >= bias);
    const right = above < 0 ? points.length - 1 : above;
    const [[from, low], [to, high]] = [points[right - 1], points[right]];
    const share = Math.min(1, Math.max(0, (bias - from) / (to - from)));
    return Array.from({ length: depth }, (_, i) => (i < low.length ? low[i] + share * (high[i] - low[i]) : 1));
  }

  // ω by draft position; empty for a method without one.
  function schedule(shapes, s) {
    const kind = shapes.methods[s.method]?.omega ?? "none";
    if (kind === "none") return [];
    const { depth, chain } = shape(shapes, s);
    const index = Array.from({ length: depth || 0 }, (_, i) => i + 1);
    if (kind === "lossless") return index.map(() => 1);
    if (kind === "fitted") return fitted(shapes.frontiers, depth || 0, s.bias);
    const raw = index.map((i) => (kind === "uniform" ? 1 : Math.exp(-s.nu * i)));
    const mean = kind === "uniform" || s.mu_auto ? raw.reduce((a, b) => a + b, 0) / raw.length : Math.exp(s.mu);
    const salvaged = s.siblings === "salvage" && !chain;
    const least = salvaged || (kind === "annealed" && s.clamp) ? 1 : 0;
    return raw.map((w) => Math.max(least, (s.delta * w) / mean));
  }

  const digits = (w) => (w >= 100 ? w.toFixed(0) : w >= 10 ? w.toFixed(1) : w.toFixed(2));

  function inWords(omega, title) {
    if (!omega.length) return `${title} has no ω.`;
    const mean = omega.reduce((a, b) => a + b, 0) / omega.length;
    const places = (test) => {
      const at = omega.map((w, i) => (test(w) ? i + 1 : 0)).filter(Boolean);
      return at.length > 1 ? `${at[0]}–${at.at(-1)}` : `${at[0] ?? ""}`;
    };
    const looser = places((w) => w > 1.0005);
    const stricter = places((w) => w < 0.9995);
    if (!looser && !stricter) return "ω = 1 everywhere: lossless.";
    const parts = [];
    if (looser) parts.push(`looser than lossless (ω = 1) at position ${looser}`);
    if (stricter) parts.push(`stricter ${looser ? "" : "than lossless (ω = 1) "}at ${stricter}`);
    return `Mean ${digits(mean)}: ${parts.join(", ")}.`;
  }

  function controls(names, values) {
    settings = Object.fromEntries(names.map((name, i) => [name, values[i]]));
    markStale();
    redraw();
  }

  // --- the live curve: one Plotly node for the life of the page ---------------------------------------------------------------

  function spread(labels, gap) {
    labels.sort((a, b) => b.y - a.y);
    for (let i = 1; i < labels.length; i++) labels[i].y = Math.min(labels[i].y, labels[i - 1].y - gap);
    const under = Math.min(0, ...labels.map((l) => l.y)) - 0.02;
    if (under < -0.02) labels.forEach((l) => { l.y -= under; });
    return labels;
  }

  function figure(value, shapes, width, height) {
    const { ink, grid, ground } = colours();
    const data = value.data.map((t) => ({ ...t }));
    const layout = { ...value.layout, xaxis: { ...value.layout.xaxis }, yaxis: { ...value.layout.yaxis, gridcolor: grid } };
    const size = window.innerWidth >= 1800 ? 18 : window.innerWidth < 600 ? 12 : 13;
    layout.font = { color: ink, size, family: "system-ui, sans-serif" };
    layout.xaxis.title = { ...layout.xaxis.title, font: { size } };
    layout.margin = { ...layout.margin, l: 2.4 * size, r: 2.8 * size, b: 2.7 * size };
    data.filter((t) => t.line).forEach((t) => { t.line = { ...t.line, width: size >= 18 ? 5 : 3 }; });
    layout.hoverlabel = { bgcolor: ground, font: { color: ink } };
    const end = (t) => t.y.filter((v) => v !== null).at(-1); // a lane just begun has not come to the last positions
    const lines = data.filter((t) => t.type === "scatter" && end(t) !== undefined);
    const labels = lines.map((t) => ({ text: t.meta, y: end(t), color: t.line.color }));
    const s = settings;
    const omega = s ? schedule(shapes, s) : [];
    if (omega.length) {
      const decades = Math.max(1, Math.ceil(Math.max(...omega.map((w) => Math.abs(Math.log10(Math.max(w, 1e-4))))) - 0.02));
      const length = Math.max(omega.length, value.length);
      layout.xaxis.tickvals = Array.from({ length }, (_, i) => i + 1);
      const ticks = Array.from({ length: 2 * decades + 1 }, (_, i) => 10 ** (i - decades));
      layout.yaxis2 = {
        type: "log", overlaying: "y", side: "right", range: [-decades, decades * 1.08], showgrid: false, zeroline: false, ticks: "",
        tickvals: ticks, ticktext: ticks.map((t) => (t === 1 ? "ω 1" : `${+t.toPrecision(1)}`)),
      };
      layout.shapes = [{ type: "line", xref: "paper", x0: 0, x1: 1, yref: "y2", y0: 1, y1: 1, line: { color: ink, width: size >= 18 ? 3 : 1, dash: "dot" } }];
      data.push({
        type: "scatter", mode: "lines+markers", name: "ω (right axis)", yaxis: "y2", x: omega.map((_, i) => i + 1), y: omega.map((w) => Math.max(w, 1e-4)),
        line: { color: ink, width: size >= 18 ? 3 : 2, dash: "dash" }, marker: { color: ink, size: 8, symbol: "diamond-open" }, hovertemplate: "%{y:.2f}",
      });
      labels.push({ text: "ω", y: (Math.log10(Math.max(omega.at(-1), 1e-4)) + decades) / (2.08 * decades) * 1.04, color: ink });
    }
    // Room on the right for the labels, in positions: a letter is about 0.6 em wide.
    const last = layout.xaxis.tickvals.length;
    const room = 14 + 0.6 * size * Math.max(4, ...labels.map((l) => l.text.length));
    const inner = Math.max(room + 80, width - layout.margin.l - layout.margin.r);
    layout.xaxis.range = [0.5, last + 0.4 + ((last - 0.1) * room) / (inner - room)];
    layout.annotations = spread(labels, (1.25 * size) / Math.max(60, height - 3.2 * size)).map((l) => ({
      x: last + 0.42, y: l.y, text: l.text, showarrow: false, xanchor: "left", font: { color: l.color, size },
    }));
    return { data, layout };
  }

  function fillTable(node, rows) {
    const make = (cells, tag) => {
      const row = document.createElement("tr");
      cells.forEach((cell) => row.appendChild(Object.assign(document.createElement(tag), { textContent: cell })));
      return row;
    };
    node.replaceChildren(...rows.map((cells, i) => make(cells, i ? "td" : "th")));
  }

  function chart(element, props, watch) {
    const plot = element.querySelector(".plot");
    const draw = () => {
      const value = props.value;
      if (!value || !window.Plotly || !plot.clientWidth) return; // on a hidden tab Plotly would take a width of its own
      const { data, layout } = figure(value, props.shapes, plot.clientWidth, plot.clientHeight);
      Plotly.react(plot, data, layout, { displayModeBar: false, responsive: true });
      fillTable(element.querySelector("table"), value.table ?? []);
    };
    redraw = () => {
      const omega = schedule(props.shapes, settings);
      setText(element.querySelector(".omega-row"), omega.map(digits).join("  ") || "–");
      setText(element.querySelector(".omega-words"), inWords(omega, props.shapes.methods[settings.method]?.title));
      draw();
    };
    if (settings) redraw();
    draw();
    watch("value", draw);
    new MutationObserver(draw).observe(document.body, { attributes: true, attributeFilter: ["class"] });
    new ResizeObserver(draw).observe(plot);
  }

  // --- the link: all settings in the query string -------------------------------------------------------------------------------

  function link(names, values) {
    const url = new URL(window.location.href);
    names.forEach((name, i) => url.searchParams.set(name, values[i]));
    window.history.replaceState(null, "", url);
    return url.toString();
  }

  async function copyLink(names, values) {
    const url = link(names, values);
    try {
      await navigator.clipboard.writeText(url);
      return { status: "Link copied. It holds every setting.", tone: "good" };
    } catch {
      return { status: "The link is in the address bar; copy it from there.", tone: "good" };
    }
  }

  const toggleTheme = () => document.body.classList.toggle("dark");

  return { bind, chart, colours, controls, link, copyLink, schedule, toggleTheme };
})();
