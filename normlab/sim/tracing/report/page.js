"use strict";
// Draws the maps that the report's data describe when they are first seen, and makes lines, tabs and keys work.

const data = JSON.parse(document.getElementById("data").textContent);
const LANES = 32, BANKS = 32, SECTOR = 32;

function element(tag, attributes = {}, ...children) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children);
  return made;
}
const rect = (x, y, width, height, kind, more) => element("rect", { x, y, width, height, class: kind, ...more });
const line = (x1, y1, x2, y2, kind) => element("line", { x1, y1, x2, y2, class: kind });
const text = (x, y, words, anchor = "middle", more = {}) => element("text", { x, y, "text-anchor": anchor, ...more }, words);
const tip = (shape, words) => { shape.append(element("title", {}, words)); return shape; };
const every = (count, most) => [1, 2, 4, 8, 16, 32, 64, 128, 256, 512].find(step => count <= most * step);

function picture(width, height, subject, numbers, legend, shapes, meaning = "") {
  const words = document.createElement("p");
  const first = document.createElement("b");
  first.textContent = subject;
  words.append(first, numbers);
  const image = element("svg", { viewBox: `0 0 ${width} ${height}`, preserveAspectRatio: "xMinYMin", role: "img", "aria-label": `${subject}: ${numbers}` }, ...shapes);
  const key = document.createElement("div");
  key.className = "legend";
  key.append(meaning);
  for (const [shape, meaning] of legend) {
    const entry = document.createElement("span");
    entry.append(element("svg", { viewBox: "0 0 16 12", "aria-hidden": "true" }, shape), meaning);
    key.append(entry);
  }
  return [words, image, key];
}

function sectorMap(seen) {
  const left = 40, top = 4, width = 590, row = 9, columns = seen.sectors.length, column = width / columns;
  const bottom = top + row * LANES, all = bottom + 6, end = all + 14;
  const active = new Set(seen.lanes);
  const shapes = [];
  for (let lane = 0; lane < LANES; lane++) {
    if (!active.has(lane)) shapes.push(tip(rect(left, top + row * lane, width, row, "absent"), `lane ${lane} is not active`));
    if (lane % 4 === 0) shapes.push(text(left - 6, top + row * lane + 8, lane, "end"));
  }
  const touched = new Set(seen.pieces.map(([lane, place]) => LANES * place + lane));
  for (const cell of touched) shapes.push(rect(left + column * Math.floor(cell / LANES), top + row * (cell % LANES), column, row - 0.6, "moved"));
  for (const [lane, place, start, size] of seen.pieces) {
    const bar = rect(left + column * (place + start / SECTOR), top + row * lane, column * size / SECTOR, row - 0.6, "used");
    shapes.push(tip(bar, `lane ${lane}: bytes ${start} to ${start + size - 1} of sector ${seen.sectors[place]}`));
  }
  shapes.push(rect(left, all, width, 14, "moved"), text(left - 6, all + 11, "all", "end"));
  for (const [place, start, size] of seen.used) shapes.push(rect(left + column * (place + start / SECTOR), all, column * size / SECTOR, 14, "used"));
  const step = every(columns, 16);
  const gapBefore = place => place > 0 && seen.sectors[place] !== seen.sectors[place - 1] + 1;
  seen.sectors.forEach((sector, place) => {
    const gap = gapBefore(place);
    if (place) shapes.push(line(left + column * place, top, left + column * place, end, gap ? "gap" : "rule"));
    if (place % step === 0) shapes.push(text(left + column * (place + 0.5), end + 13, sector));
  });
  shapes.push(element("path", { d: `M${left} ${top}h${width}V${end}H${left}z`, class: "rule" }));
  shapes.push(text(left + width / 2, end + 30, `32-byte sector of '${seen.array}', counted from the array's first${seen.sectors.some((_, place) => gapBefore(place)) ? " (dotted: a gap)" : ""}`));
  shapes.push(text(10, top + 150, "lane", "middle", { transform: `rotate(-90 10 ${top + 150})` }));
  const legend = [[rect(0, 1, 16, 10, "used"), "bytes used"], [rect(0, 1, 16, 10, "moved"), "moved along"]];
  if (active.size < LANES) legend.push([rect(0, 1, 16, 10, "absent"), "lane not active"]);
  return picture(left + width + 4, end + 36, seen.subject, seen.numbers, legend, shapes);
}

function bankMap(seen) {
  const left = 40, top = 4, cell = 17, size = cell * BANKS, bottom = top + size;
  const x = bank => left + cell * (bank + 0.5), y = lane => top + cell * (lane + 0.5);
  const active = new Set(seen.lanes);
  const shapes = [];
  for (let n = 0; n < LANES; n++) {
    if (!active.has(n)) shapes.push(tip(rect(left, y(n) - cell / 2, size, cell, "absent"), `lane ${n} is not active`));
    shapes.push(line(left, y(n), left + size, y(n), "rule"), line(x(n), top, x(n), bottom, "rule"));
    if (n % 4 === 0) shapes.push(text(left - 6, y(n) + 4, n, "end"), text(x(n), bottom + 14, n));
  }
  for (const [phase, passes] of Object.entries(seen.passes)) {
    const from = top + cell * phase * seen.lanes_per_phase, middle = from + cell * seen.lanes_per_phase / 2;
    if (+phase) shapes.push(line(left, from, left + size + 22, from, "phase"));
    const name = seen.lanes_per_phase < LANES ? `phase ${+phase + 1}: ` : "";
    shapes.push(text(left + size + 14, middle, `${name}${passes} wavefront${passes === 1 ? "" : "s"}`, "middle",
                     { transform: `rotate(90 ${left + size + 14} ${middle})` }));
  }
  const kinds = new Set();
  for (const [lane, bank, , turn, lanes, contested] of seen.punches) {
    const kind = contested ? "contested" : lanes > 1 ? "several" : "own";
    kinds.add(kind);
    const mark = contested ? rect(x(bank) - 7, y(lane) - 7, 14, 14, kind) : element("circle", { cx: x(bank), cy: y(lane), r: 5, class: kind });
    const remark = contested ? `, wavefront ${turn + 1}` : lanes > 1 ? `, a word for ${lanes} lanes` : "";
    shapes.push(tip(mark, `lane ${lane}, bank ${bank}${remark}`));
    if (contested) shapes.push(text(x(bank), y(lane) + 3.2, turn + 1, "middle", { class: "turn", "pointer-events": "none" }));
  }
  shapes.push(text(left + size / 2, bottom + 32, "bank (4 bytes wide)"));
  shapes.push(text(10, top + size / 2, "lane", "middle", { transform: `rotate(-90 10 ${top + size / 2})` }));
  const dot = kind => element("circle", { cx: 8, cy: 6, r: 4.5, class: kind });
  const legend = [
    ["own", dot("own"), "a word of its own"], ["several", dot("several"), "a word for several lanes"],
    ["contested", rect(3, 1, 10, 10, "contested"), "conflict: number of the wavefront"],
  ].filter(([kind]) => kinds.has(kind)).map(([, shape, meaning]) => [shape, meaning]);
  if (active.size < LANES) legend.push([rect(0, 1, 16, 10, "absent"), "lane not active"]);
  return picture(left + size + 26, bottom + 38, seen.subject, seen.numbers, legend, shapes);
}

function heatMap(seen) {
  const left = 52, top = 4, width = 560, rows = seen.cells.length, columns = seen.cells[0].length;
  const cell = width / columns, tall = Math.max(4, Math.min(12, Math.max(cell, 300 / rows)));
  const most = Math.max(1, ...seen.cells.flat()), bottom = top + tall * rows;
  const shapes = [rect(left, top, width, tall * rows, "absent")];
  const gap = cell > 5 ? 0.6 : 0;
  seen.cells.forEach((line, row) => line.forEach((value, column) => {
    if (value === null) shapes.push(rect(left + cell * column, top + tall * row, cell, tall, "", { fill: "var(--paper)" }));
    if (!value) return;
    const shape = rect(left + cell * column, top + tall * row, cell - gap, tall - gap, "hot", { "fill-opacity": (0.18 + 0.82 * value / most).toFixed(2) });
    shapes.push(tip(shape, `row ${row * seen.tall}, column ${column * seen.wide}: ${value}`));
  }));
  shapes.push(element("path", { d: `M${left} ${top}h${width}V${bottom}H${left}z`, class: "rule" }));
  for (let row = 0; row < rows; row += every(rows, Math.max(1, tall * rows / 18))) shapes.push(text(left - 5, top + tall * (row + 0.5) + 4, row * seen.tall, "end"));
  for (let column = 0; column < columns; column += every(columns, 16)) shapes.push(text(left + cell * (column + 0.5), bottom + 14, column * seen.wide));
  shapes.push(text(left + width / 2, bottom + 32, `${seen.axes[0]} (across), ${seen.axes[1]} (down)`));
  const shade = share => rect(0, 1, 16, 10, "hot", { "fill-opacity": share });
  const legend = [[shade(0.18 + 0.82 / most), "1"], [shade(1), `${most}`], [rect(0, 1, 16, 10, "absent"), "none"]];
  if (most === 1) legend.shift();
  return picture(left + width + 4, bottom + 38, seen.subject, seen.numbers, legend, shapes, `${seen.binning}:`);
}

function tree(seen) {
  const [begin, end] = seen.steps, threads = seen.threads, width = 580, left = 40, top = 24;
  const step = Math.max(22, Math.min(44, 700 / (end - begin)));
  const x = thread => left + width * (thread + 0.5) / threads, y = time => top + step * (time - begin + 0.5);
  const bottom = top + step * (end - begin), shapes = [];
  for (let warp = 0; 32 * warp < threads; warp++) {
    const border = x(32 * warp - 0.5), label = every(threads / 32, 10);
    if (warp) shapes.push(line(border, top - 6, border, bottom, "warp"));
    if (warp % label === 0) shapes.push(text((border + x(Math.min(threads, 32 * (warp + 1)) - 0.5)) / 2, top - 10, `warp ${warp}`));
  }
  for (const [shuffle, kind] of [[true, "shuffle"], [false, "memory"]]) {
    const arrows = seen.arrows.filter(arrow => (arrow[4] === "shuffle") === shuffle);
    const size = threads > 64 ? 1.6 : 3;
    const path = arrows.map(([from, to, start, stop]) => `M${x(from).toFixed(1)} ${y(start)}L${x(to).toFixed(1)} ${y(stop)}`).join("");
    const ends = new Set(arrows.map(([, to, , stop]) => `M${(x(to) - size).toFixed(1)} ${y(stop) - size}h${2 * size}l${-size} ${2 * size}z`));
    shapes.push(element("path", { d: path, class: kind, "stroke-width": threads > 64 ? 0.6 : 1, "data-arrows": arrows.length }));
    shapes.push(element("path", { d: [...ends].join(""), class: `${kind}-end` }));
  }
  for (const time of seen.barriers) shapes.push(tip(line(left, y(time - 0.5), left + width, y(time - 0.5), "barrier"), "barrier"));
  for (let time = begin; time < end; time += every(end - begin, 24)) shapes.push(text(left - 6, y(time) + 4, time, "end"));
  for (let thread = 0; thread < threads; thread += every(threads, 16)) shapes.push(text(x(thread), bottom + 14, thread));
  shapes.push(text(left + width / 2, bottom + 32, `thread of the block${threads > 32 ? " (dotted: borders of warps)" : ""}`));
  shapes.push(text(10, top + 60, "step", "middle", { transform: `rotate(-90 10 ${top + 60})` }));
  const kinds = new Set(seen.arrows.map(arrow => (arrow[4] === "shuffle" ? "shuffle" : "memory")));
  if (seen.barriers.length) kinds.add("barrier");
  const meanings = { shuffle: "shuffle", memory: "through shared memory", barrier: "barrier of the block" };
  const legend = [...kinds].map(kind => [line(0, 6, 16, 6, kind), meanings[kind]]);
  return picture(left + width + 4, bottom + 38, seen.subject, seen.numbers, legend, shapes);
}

function draw(map) {
  const { request, heat } = map.dataset;
  const seen = request ? data.requests[request] : heat ? data.heats[heat] : data.tree;
  const drawn = request ? (seen.sectors ? sectorMap(seen) : bankMap(seen)) : heat ? heatMap(seen) : tree(seen);
  map.replaceChildren(...drawn);
}
const drawAll = (within, again = true) => {
  for (const map of within.querySelectorAll(".map")) if (again || !map.firstChild) draw(map);
};

// --- lines and tabs --------------------------------------------------------------------------------------------------

const lines = [...document.querySelectorAll("button.line")];
const tabs = [...document.querySelectorAll("[role=tab]")];
let chosen = -1;

function showTab(tab, focus) {
  for (const other of tabs) {
    other.setAttribute("aria-selected", other === tab);
    other.tabIndex = other === tab ? 0 : -1;
    document.getElementById(other.getAttribute("aria-controls")).hidden = other !== tab;
  }
  if (tab.id !== "tab-line") drawAll(document.getElementById(tab.getAttribute("aria-controls")), false);
  if (focus) tab.focus();
}

function choose(number, focus = true) {
  const panel = index => document.getElementById(lines[index].dataset.panel);
  if (chosen >= 0) {
    lines[chosen].removeAttribute("aria-current");
    lines[chosen].tabIndex = -1;
    panel(chosen).hidden = true;
  }
  chosen = Math.max(0, Math.min(lines.length - 1, number));
  lines[chosen].setAttribute("aria-current", "true");
  lines[chosen].tabIndex = 0;
  panel(chosen).hidden = false;
  drawAll(panel(chosen), false);
  showTab(tabs[0]);
  if (focus) {
    lines[chosen].focus({ preventScroll: true });
    lines[chosen].scrollIntoView({ block: "nearest", inline: "start" });
  }
}

lines.forEach((button, number) => button.addEventListener("click", () => choose(number)));
tabs.forEach(tab => tab.addEventListener("click", () => showTab(tab)));
for (const select of document.querySelectorAll("figure select"))
  select.addEventListener("change", () => {
    const map = select.closest("figure").querySelector(".map");
    map.dataset.request = select.value;
    draw(map);
  });

const help = document.getElementById("help");
document.getElementById("ask").addEventListener("click", () => help.showModal());

document.addEventListener("keydown", event => {
  if (event.ctrlKey || event.metaKey || event.altKey || help.open || event.target.matches("select")) return;
  const tab = tabs.indexOf(event.target), within = event.target.closest("[role=tabpanel]");
  const steps = { ArrowDown: 1, ArrowUp: -1, j: 1, k: -1, Home: -Infinity, End: Infinity };
  const letter = event.key === "j" || event.key === "k";
  if (event.key === "?") help.showModal();
  else if (tabs[event.key - 1]) showTab(tabs[event.key - 1], true);
  else if (tab >= 0 && (event.key === "ArrowRight" || event.key === "ArrowLeft"))
    showTab(tabs[(tab + (event.key === "ArrowRight" ? 1 : tabs.length - 1)) % tabs.length], true);
  else if (event.key in steps && lines.length && (letter || !within)) choose(chosen + steps[event.key]);
  else return;
  event.preventDefault();
});

addEventListener("beforeprint", () => drawAll(document, false));
if (lines.length) {
  const cost = button => Number(button.dataset.cost);
  choose(lines.reduce((best, button, number) => (cost(button) > cost(lines[best]) ? number : best), 0), false);
  lines[chosen].scrollIntoView({ block: "center" });
} else showTab(tabs[1]);
