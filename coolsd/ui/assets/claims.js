// The figures of the Claims tab. The chart library is fetched when the first of them comes into sight, not with the page.
import { isDark } from "./dom.js";

let library = null;

function load(source) {
  library ??= new Promise((resolve, reject) => {
    const script = document.createElement("script");
    Object.assign(script, { src: source, onload: () => resolve(window.Plotly), onerror: reject });
    document.head.append(script);
  });
  return library;
}

function colours() {
  return isDark()
    ? { ink: "#e4e4e7", grid: "rgba(255,255,255,.14)", ground: "#18181b" }
    : { ink: "#27272a", grid: "rgba(0,0,0,.10)", ground: "#ffffff" };
}

// Draws one stored figure in the ink of the current theme, and again when the theme or its room changes.
export function drawClaims(element, props) {
  const plot = element.querySelector(".plot");
  const draw = async () => {
    if (!plot.clientWidth) return; // on a tab that is not in sight
    const plotly = await load(props.library);
    const { ink, grid: gridcolor, ground } = colours();
    const size = window.innerWidth >= 1800 ? 18 : 12;
    const { data, layout } = props.value;
    const themed = {
      ...layout,
      font: { color: ink, size, family: "system-ui, sans-serif" },
      hoverlabel: { bgcolor: ground, font: { color: ink } },
      xaxis: { ...layout.xaxis, gridcolor },
      yaxis: { ...layout.yaxis, gridcolor, automargin: true },
    };
    plotly.react(plot, data.map((trace) => ({ ...trace })), themed, { displayModeBar: false, responsive: true });
  };
  new MutationObserver(draw).observe(document.body, { attributes: true, attributeFilter: ["class"] });
  new ResizeObserver(draw).observe(plot);
}
