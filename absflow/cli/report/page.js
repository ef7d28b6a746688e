"use strict";
// The page is whole without this: it only keeps the age right, filters, and goes by arrow keys.
const age = document.getElementById("age");
const ended = Date.parse(age.dataset.ended);
const say = () => {
  const s = Math.max(0, (Date.now() - ended) / 1000), two = (n) => String(Math.floor(n)).padStart(2, "0");
  age.textContent = (s < 60 ? `${s.toFixed(0)} s` : s < 3600 ? `${Math.floor(s / 60)} min ${two(s % 60)} s`
    : s < 172800 ? `${Math.floor(s / 3600)} h ${two(s % 3600 / 60)} min` : `${Math.floor(s / 86400)} d ${Math.floor(s % 86400 / 3600)} h`) + " old";
};
if (ended) { say(); setInterval(say, 1000); }
const rows = [...document.querySelectorAll("#table tbody tr")], filter = document.getElementById("filter");
if (filter) {
  filter.closest("p").hidden = false;
  filter.addEventListener("input", () => {
    const wanted = filter.value.toLowerCase();
    for (const row of rows) row.hidden = !row.textContent.toLowerCase().includes(wanted);
  });
}
const order = rows.map((row) => row.querySelector("a")).filter(Boolean).map((a) => a.hash.slice(1));
addEventListener("keydown", (event) => {
  const step = { ArrowLeft: 1, ArrowRight: -1 }[event.key];
  if (!step || event.target.closest("input, .wide")) return;
  const chosen = document.querySelector(".detail.chosen");
  const now = order.indexOf(location.hash.slice(1) || (chosen ? chosen.id : ""));
  const next = order[Math.min(order.length - 1, Math.max(0, now + step))];
  if (next) { location.hash = next; event.preventDefault(); }
});
