// Light or dark: as the system has it, until the person chooses; the choice is remembered in the browser.
const KEY = "coolsd-theme";

const set = (dark) => document.body.classList.toggle("dark", dark);

function remembered() {
  try {
    return window.localStorage.getItem(KEY);
  } catch {
    return null; // storage is switched off: then nothing is remembered
  }
}

export function toggleTheme() {
  const dark = !document.body.classList.contains("dark");
  set(dark);
  try {
    window.localStorage.setItem(KEY, dark ? "dark" : "light");
  } catch {
    // as above
  }
}

// Gradio sets the system's theme when it mounts: what was chosen wins, now and then.
export function restoreTheme() {
  const chosen = remembered();
  if (chosen === null) return;
  const apply = () => { if (document.body.classList.contains("dark") !== (chosen === "dark")) set(chosen === "dark"); };
  apply();
  const watching = new MutationObserver(apply);
  watching.observe(document.body, { attributes: true, attributeFilter: ["class"] });
  window.setTimeout(() => watching.disconnect(), 4000);
  document.addEventListener("click", () => watching.disconnect(), { once: true, capture: true });
}
