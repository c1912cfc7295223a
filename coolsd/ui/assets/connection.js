// Says so at once when Generate is pressed and the server does not answer; what is on the page can be explored all the same.

const WORDS = "The server does not answer. What is on the page can still be explored; press Generate again when it is back.";

export function watchConnection() {
  document.addEventListener("click", async (event) => {
    const button = event.target.closest?.("button");
    if (!button || button.textContent.trim() !== "Generate") return;
    try {
      await fetch(new URL("./manifest.json", document.baseURI), { method: "GET", cache: "no-store" });
    } catch {
      const line = document.querySelector("#status [data-text=status]");
      line.textContent = WORDS;
      line.dataset.is = "bad";
    }
  }, true);
}
