// Tabs by arrow keys, as screen readers announce them: ←/→ to the next tab of the same row, Home/End to the first and last.

export function moveTabsByKey() {
  document.addEventListener("keydown", (event) => {
    const tab = event.target.closest?.("[role=tab]");
    if (!tab || event.altKey || event.ctrlKey || event.metaKey) return;
    const tabs = [...tab.closest("[role=tablist]").querySelectorAll("[role=tab]")].filter((one) => one.offsetParent && !one.disabled);
    const here = tabs.indexOf(tab);
    const to = { ArrowLeft: here - 1, ArrowRight: here + 1, Home: 0, End: tabs.length - 1 }[event.key];
    if (to === undefined) return;
    event.preventDefault();
    event.stopPropagation();
    const next = tabs.at(to % tabs.length);
    next.click();
    next.focus();
  });
}
