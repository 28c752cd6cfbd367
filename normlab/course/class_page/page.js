"use strict";
// Opens the student that a link leads to, and shows only the students with a name that contains what is looked for.

const students = [...document.querySelectorAll("details.student")];
const named = [...document.querySelectorAll("[data-name]")];
const find = document.getElementById("find"), found = document.getElementById("found"), all = document.getElementById("all");

function open() {
  const target = document.getElementById(location.hash.slice(1));
  if (!target || !target.matches("details")) return;
  target.hidden = false;
  target.open = true;
  target.scrollIntoView();
  target.querySelector("summary").focus({ preventScroll: true });
}

find.addEventListener("input", () => {
  const wanted = find.value.trim().toLocaleLowerCase();
  for (const one of named) one.hidden = !one.dataset.name.toLocaleLowerCase().includes(wanted);
  const count = students.filter(one => !one.hidden).length;
  found.textContent = wanted ? `${count} of ${students.length}` : "";
});

function setAll(wide) {
  for (const one of students) one.open = wide;
  all.textContent = wide ? "Close all" : "Open all";
}
all.addEventListener("click", () => setAll(all.textContent === "Open all"));
addEventListener("beforeprint", () => setAll(true));
addEventListener("hashchange", open);
document.addEventListener("click", event => {
  const link = event.target.closest('a[href^="#student-"]');
  if (link && link.hash === location.hash) open();  // the same link again changes no hash
});
open();
