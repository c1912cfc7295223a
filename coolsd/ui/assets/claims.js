// Draws one stored figure in the ink of the current theme, and again when the theme or its room changes.
window.coolsdClaims = (element, props) => {
  const plot = element.querySelector(".plot");
  const draw = () => {
    if (!window.Plotly || !plot.clientWidth) return;
    const { ink, grid: gridcolor, ground } = coolsd.colours();
    const size = window.innerWidth >= 1800 ? 18 : 12;
    const { data, layout } = props.value;
    const themed = {
      ...layout,
      font: { color: ink, size, family: "system-ui, sans-serif" },
      hoverlabel: { bgcolor: ground, font: { color: ink } },
      xaxis: { ...layout.xaxis, gridcolor },
      yaxis: { ...layout.yaxis, gridcolor },
    };
    window.Plotly.react(plot, data.map((trace) => ({ ...trace })), themed, { displayModeBar: false, responsive: true });
  };
  draw();
  new MutationObserver(draw).observe(document.body, { attributes: true, attributeFilter: ["class"] });
  new ResizeObserver(draw).observe(plot);
};
