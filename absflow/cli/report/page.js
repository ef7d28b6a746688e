"use strict";
// The page is whole without this: it keeps the age right, filters, goes by arrow keys, and, where a
// server has it, follows the job.
const $ = (id) => document.getElementById(id);
const two = (n) => String(Math.floor(n)).padStart(2, "0");
const words = (s) => s < 60 ? `${s.toFixed(0)} s` : s < 3600 ? `${Math.floor(s / 60)} min ${two(s % 60)} s`
  : s < 172800 ? `${Math.floor(s / 3600)} h ${two(s % 3600 / 60)} min` : `${Math.floor(s / 86400)} d ${Math.floor(s % 86400 / 3600)} h`;
const say = () => {
  const ended = Date.parse($("age").dataset.ended);
  if (ended) $("age").textContent = `${words(Math.max(0, (Date.now() - ended) / 1000))} old`;
};
const rows = () => [...document.querySelectorAll("#table tbody tr")];
let wanted = "";
const sift = () => {
  const filter = $("filter");
  if (!filter) return;
  filter.closest("p").hidden = false;
  filter.value = wanted;
  for (const row of rows()) row.hidden = !row.textContent.toLowerCase().includes(wanted.toLowerCase());
};
addEventListener("input", (event) => {
  if (event.target.id === "filter") { wanted = event.target.value; sift(); }
});
addEventListener("keydown", (event) => {
  const step = { ArrowLeft: 1, ArrowRight: -1 }[event.key];
  if (!step || event.target.closest?.("input, select, .wide")) return;
  const order = rows().map((row) => row.querySelector("a")).filter(Boolean).map((a) => a.hash.slice(1));
  const chosen = document.querySelector(".detail.chosen");
  const now = order.indexOf(location.hash.slice(1) || (chosen ? chosen.id : ""));
  const next = order[Math.min(order.length - 1, Math.max(0, now + step))];
  if (next) { location.hash = next; event.preventDefault(); }
});
// Where a server is, it compares; a file shows two of its checkpoints side by side.
const compares = () => {
  const form = $("compare");
  if (!form || "live" in document.body.dataset) return;
  form.hidden = false;
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    const ids = ["earlier", "later"].map((name) => form.elements[name].value.trim());
    $("compared").replaceChildren(...ids.map((id) => {
      const found = document.getElementById(`c${id}`), shown = document.createElement("section");
      if (!found) {
        shown.textContent = `This page has no details of checkpoint ${id}.`;
        return shown;
      }
      shown.append(...[...found.children].map((child) => child.cloneNode(true)));
      for (const child of shown.querySelectorAll("[id]")) child.removeAttribute("id");
      return shown;
    }));
  });
};
const follow = async () => {
  let said = "this page follows the job";
  try {
    const answer = await fetch("/", { cache: "no-store" });
    if (!answer.ok) throw new Error(`the server says ${answer.status}`);
    const page = new DOMParser().parseFromString(await answer.text(), "text/html");
    if (!document.activeElement || !document.activeElement.matches("input")) {
      const at = [scrollX, scrollY], tall = document.querySelector(".tall")?.scrollTop;
      for (const part of ["header", "main"]) document.querySelector(part).replaceWith(page.querySelector(part));
      if (location.hash) {  // what is new has to be chosen again
        const hash = location.hash;
        history.replaceState(null, "", "#"), location.replace(hash);
      }
      scrollTo(...at);
      if (tall) document.querySelector(".tall").scrollTop = tall;
      document.title = page.title;
      say(), sift();
    }
  } catch (error) {
    said = `what you see is old: ${error.message}`;
  }
  if ($("live")) $("live").textContent = said;
  setTimeout(follow, 5000);
};
say(), sift(), compares(), setInterval(say, 1000);
if ("live" in document.body.dataset) setTimeout(follow, 5000);
