// A file of runs from the visitor's own disk: dropped anywhere on the page, or chosen by the button. It is read here and checked by the server.
import { h } from "./dom.js";

const MOST = 16 * 2 ** 20; // bytes; Python refuses more

// send({ name, text }): text is null where the file is too large to hold a run.
export function openFile(element, send) {
  const read = async (file) => {
    if (file) send({ name: file.name, text: file.size > MOST ? null : await file.text() });
  };
  const input = h("input", { type: "file", accept: ".json,application/json", class: "sr-only", tabindex: "-1", "aria-label": "Run to open" });
  input.addEventListener("change", async () => {
    await read(input.files[0]);
    input.value = "";
  });
  const button = h("button", { type: "button", class: "open-file", title: "Or drop a JSON file on the page", onclick: () => input.click() }, "Open a run…");
  element.querySelector(".mount").replaceChildren(button, input);

  const holdsFile = (event) => event.dataTransfer?.types.includes("Files");
  const over = (on) => document.body.classList.toggle("dropping", on);
  document.addEventListener("dragover", (event) => {
    if (!holdsFile(event)) return;
    event.preventDefault();
    over(true);
  });
  document.addEventListener("dragleave", (event) => { if (!event.relatedTarget) over(false); });
  document.addEventListener("drop", (event) => {
    if (!holdsFile(event)) return;
    event.preventDefault();
    over(false);
    read(event.dataTransfer.files[0]);
  });
}
