"use strict";
// Comfort only: the page holds all it has to say without this.
const all = (within, what) => [...within.querySelectorAll(what)];

// Trees beyond the first ones lie in the page compressed.
async function unpack(pack) {
  const bytes = Uint8Array.from(atob(pack.querySelector("script").textContent), (one) => one.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  const trees = await new Response(stream).text();
  const focused = pack.contains(document.activeElement);
  pack.insertAdjacentHTML("beforebegin", `<div>${trees}</div>`);
  const first = pack.previousElementSibling.querySelector("summary");
  pack.remove();
  if (focused) first.focus();
}
function wire() {
  for (const pack of all(document, ".pack")) {
    pack.hidden = false;
    pack.querySelector("button").onclick = () => unpack(pack);
  }

  for (const tools of all(document, ".tools")) {
    const forest = tools.parentElement;
    const [search, unfold, fold] = all(tools, "input, button");
    const told = tools.querySelector("output");
    const open = (yes) => all(forest, ".box:not([hidden]), .box:not([hidden]) .tree details")
      .forEach((one) => { one.open = yes; });
    tools.hidden = false;
    unfold.onclick = () => open(true);
    fold.onclick = () => open(false);
    search.onchange = async () => {
      const wanted = search.value.trim().toLowerCase();
      if (wanted) {
        told.value = "unpacking";
        await Promise.all(all(forest, ".pack").map(unpack));
      }
      all(forest, ".hit").forEach((one) => one.classList.remove("hit"));
      let hits = 0;
      const found = all(forest, ".box").filter((box) => {
        const here = box.textContent.toLowerCase().includes(wanted);
        box.hidden = !here;
        return wanted && here;
      });
      for (const box of found) {
        // To open hundreds of trees takes a browser longer than anybody would wait.
        if (found.length <= 12) box.open = true;
        for (const item of all(box, ".tree li")) {
          const head = item.querySelector(".said");
          if (!head.textContent.toLowerCase().includes(wanted)) continue;
          hits += 1;
          item.classList.add("hit");
          let up = item.parentElement.closest("details");
          while (up !== box) {
            up.open = true;
            up = up.parentElement.closest("details");
          }
        }
      }
      told.value = wanted ? `${hits} replies in ${found.length} trees` : "";
    };
  }
}
wire();

document.addEventListener("keydown", (event) => {
  const at = document.activeElement;
  if (event.key === "/" && at.tagName !== "INPUT") {
    const search = document.querySelector(".tools input");
    if (search) { event.preventDefault(); search.focus(); }
    return;
  }
  if (at.tagName !== "SUMMARY") return;
  const tree = at.closest(".tree") || at.closest("section");
  const shown = all(tree, "summary").filter((one) => one.offsetParent !== null);
  const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
  if (step) {
    const next = shown[shown.indexOf(at) + step];
    if (next) next.focus();
  } else if (event.key === "ArrowRight") {
    at.parentElement.open = true;
  } else if (event.key === "ArrowLeft") {
    if (at.parentElement.open) at.parentElement.open = false;
    else at.parentElement.parentElement.closest("details")?.querySelector("summary").focus();
  } else return;
  event.preventDefault();
});

// A page that is served while its run goes on asks how far the run is, and takes what is new.
const live = document.documentElement.dataset.live;
if (live !== undefined) {
  let seen = live;
  setInterval(async () => {
    try {
      const now = await (await fetch("events")).text();
      if (now === seen) return;
      const text = await (await fetch(".")).text();
      const fresh = new DOMParser().parseFromString(text, "text/html");
      const opened = all(document, "details[id][open]").map((one) => one.id);
      document.querySelector("main").replaceWith(fresh.querySelector("main"));
      opened.forEach((id) => { const one = document.getElementById(id); if (one) one.open = true; });
      wire();
      seen = now;
    } catch { /* The server has ended; the page stays as it is. */ }
  }, 2000);
}
