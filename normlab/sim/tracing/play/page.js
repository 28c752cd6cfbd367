"use strict";
// Plays the steps that play/page.py has written: keeps the block's state, and draws it after every step.

const data = JSON.parse(document.getElementById("data").textContent);
const LANES = 32, BEAT = 350;  // milliseconds of a step that plays
const at = id => document.getElementById(id);
const bits = mask => [...Array(LANES).keys()].filter(lane => mask >>> lane & 1);
const narrow = () => at("requests").clientWidth < 480;
const count = (number, word) => `${number} ${word}${number === 1 ? "" : "s"}`;
const [slider, follow] = [at("slider"), at("follow")];
let state, lane = 0, timer = null;

function made(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}
function drawn(tag, attributes = {}, ...children) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}
const rect = (x, y, width, height, kind, words) => drawn("rect", { x, y, width, height, class: kind }, ...(words ? [drawn("title", {}, words)] : []));
const text = (x, y, words, anchor = "middle") => drawn("text", { x, y, "text-anchor": anchor }, words);

function listed(short, length) {  // the forms of page.py's `short`
  if (!Array.isArray(short)) return Array(length).fill(short);
  return short.length === 2 && length > 2 ? [...Array(length).keys()].map(n => short[0] + n * short[1]) : short;
}

// --- the state -----------------------------------------------------------------------------------------------------

function begin() {
  state = {
    step: -1, arrived: new Map(), changed: new Set(),
    warps: data.lanes.map(() => ({ row: -1, active: 0, returned: 0, waits: new Map(), values: data.variables.map(() => Array(LANES).fill(null)) })),
  };
}

function advance() {
  const [number, row, active, returned, meetings, changes] = data.steps[++state.step], warp = state.warps[number];
  Object.assign(warp, { row, active, returned });
  state.changed = new Set(changes.map(([name]) => name));
  for (const [name, mask, short] of changes) {
    const lanes = bits(mask), values = listed(short, lanes.length);
    lanes.forEach((lane, n) => { warp.values[name][lane] = values[n]; });
  }
  for (const [meeting, lanes] of meetings) {
    const there = (state.arrived.get(meeting) ?? 0) + bits(lanes).length;
    state.arrived.set(meeting, there);
    warp.waits.set(meeting, ((warp.waits.get(meeting) ?? 0) | lanes) >>> 0);
    if (there === data.meetings[meeting][1]) for (const one of state.warps) one.waits.delete(meeting);
  }
}

function show(step) {
  step = Math.max(0, Math.min(data.steps.length - 1, step));
  if (!state || step < state.step) begin();
  while (state.step < step) advance();
  draw();
}

function move(by) {  // steps of the followed warp, or of all
  const warp = +follow.value, way = Math.sign(by);
  let step = state.step;
  for (let left = Math.abs(by), next = step + way; left && data.steps[next]; next += way) {
    if (warp < 0 || data.steps[next][0] === warp) { step = next; left--; }
  }
  if (step === state.step) play(false);
  show(step);
}

// --- what is seen ---------------------------------------------------------------------------------------------------

function words(warp) {
  const all = bits(warp.returned).length, waiting = [...warp.waits.keys()];
  if (waiting.length) return "waits at " + waiting.map(meeting => data.meetings[meeting][0]).join(", ");
  if (warp.row < 0) return "not begun";
  return all && all === data.lanes[state.warps.indexOf(warp)] ? "returned" : `line ${data.lines[warp.row]}`;
}

function draw() {
  const [number, row, active, , meetings, , requests] = data.steps[state.step];
  const code = at(`row-${row}`), source = code.querySelector("code").textContent.trim();
  const says = `Step ${state.step + 1} of ${data.steps.length}: warp ${number}, line ${data.lines[row]}, ${count(bits(active).length, "lane")}: ${source}`;
  slider.value = state.step;
  slider.setAttribute("aria-valuetext", says);
  at("now").textContent = says;
  drawSource(row, code);
  state.warps.forEach((warp, n) => {
    const line = at(`warp-${n}`), waiting = [...warp.waits.values()].reduce((all, mask) => all | mask, 0);
    line.classList.toggle("current", n === number);
    line.querySelector(".words").textContent = line.title = words(warp);
    [...line.querySelectorAll(".lane")].forEach((cell, lane) => {
      const is = mask => mask >>> lane & 1;
      const kind = lane >= data.lanes[n] ? "none" : is(waiting) ? "waiting" : is(warp.returned) && n !== number ? "returned" : is(warp.active) ? "active" : is(warp.returned) ? "returned" : "";
      cell.className = `lane ${kind}`;
    });
    line.querySelector(".lanes").setAttribute("aria-label", `${count(bits(warp.active).length, "lane")} ran, ${bits(waiting).length} wait, ${bits(warp.returned).length} returned`);
  });
  at("meetings").replaceChildren(...drawMeetings(meetings));
  at("requests").replaceChildren(...requests.flatMap(drawRequest));
  drawValues(+follow.value < 0 ? number : +follow.value);
}

function drawSource(row, code) {
  for (const line of document.querySelectorAll(".line.current")) line.classList.remove("current");
  for (const mark of document.querySelectorAll(".at")) mark.textContent = "";
  const here = new Map();
  state.warps.forEach((warp, n) => { if (warp.row >= 0) here.set(warp.row, [...(here.get(warp.row) ?? []), n]); });
  for (const [place, warps] of here) {
    const several = warps.length > 3 ? `${warps.length} warps` : `w${warps.join(",")}`;
    at(`row-${place}`).querySelector(".at").textContent = several;
  }
  code.classList.add("current");
  const box = at("source"), top = code.getBoundingClientRect().top - box.getBoundingClientRect().top;
  if (top < 30 || top > box.clientHeight - 40) box.scrollTop += top - box.clientHeight / 2;  // not scrollIntoView: the page stays
}

function drawMeetings(meetings) {
  const open = new Set(state.warps.flatMap(warp => [...warp.waits.keys()]));
  for (const [meeting] of meetings) open.add(meeting);
  return [...open].flatMap(one => {
    const [operation, threads] = data.meetings[one], there = state.arrived.get(one);
    const says = there === threads ? `all ${threads} threads have arrived, and go on` : `${there} of ${threads} threads have arrived`;
    const cells = state.warps.map((warp, n) => {
      const share = there === threads ? 1 : bits(warp.waits.get(one) ?? 0).length / data.lanes[n];
      return made("span", { style: `--share: ${share}`, title: `warp ${n}` });
    });
    const whole = threads > LANES ? [made("div", { class: "there", role: "img", "aria-label": `${operation}, a cell for each warp: ${says}` }, ...cells)] : [];
    return [made("p", {}, made("b", {}, operation), `: ${says}.`), ...whole];
  });
}

function drawRequest([kind, mask, cost, short]) {
  const [shared, subject, size] = data.kinds[kind], lanes = bits(mask), offsets = listed(short, lanes.length);
  const users = new Map();  // 4-byte word → the lanes that want it
  offsets.forEach((offset, n) => {
    for (let word = offset >> 2; word <= (offset + size - 1) >> 2; word++) users.set(word, [...(users.get(word) ?? []), lanes[n]]);
  });
  const says = `${count(lanes.length, "lane")} of ${count(size, "byte")}: ${count(cost, shared ? "wavefront" : "sector")}`;
  const image = shared ? drawBanks(users) : drawSectors(users);
  image.setAttribute("aria-label", `${subject}: ${says}`);
  return [made("p", {}, made("b", {}, subject), `, ${says}`), image];
}

function drawSectors(users) {
  const sectors = [...new Set([...users.keys()].map(word => word >> 3))].sort((one, other) => one - other);
  const across = narrow() ? 4 : 8, wide = 75, shapes = sectors.flatMap((sector, n) => {
    const x = n % across * wide, y = Math.floor(n / across) * 26, words = [...Array(8).keys()];
    return [
      rect(x, y, 8 * 8.6, 11, "moved"), text(x + 34, y + 21, sector),
      ...words.filter(word => users.has(8 * sector + word)).map(word => rect(x + 8.6 * word, y, 8, 11, "used", `lanes ${users.get(8 * sector + word).join(", ")}`)),
    ];
  });
  return drawn("svg", { role: "img", viewBox: `0 0 ${across * wide} ${26 * Math.ceil(sectors.length / across)}` }, ...shapes);
}

function drawBanks(users) {
  const deep = Array(LANES).fill(0), wide = narrow() ? 10 : 18, shapes = [];
  for (const [word, lanes] of [...users].sort(([one], [other]) => one - other)) {
    const bank = word % LANES, y = 12 * deep[bank]++;
    shapes.push(rect(wide * bank, y, wide - 2, 10, y ? "clash" : "used", `bank ${bank}: lanes ${lanes.join(", ")}`));
  }
  const bottom = 12 * Math.max(...deep);
  for (let bank = 0; bank < LANES; bank += 4) shapes.push(text(wide * bank + 8, bottom + 9, bank));
  return drawn("svg", { role: "img", viewBox: `0 0 ${wide * LANES + 40} ${bottom + 12}` }, ...shapes, text(wide * LANES + 2, bottom + 9, "bank", "start"));
}

function drawValues(number) {
  const warp = state.warps[number], running = data.steps[state.step][0] === number;
  at("whose").textContent = `of warp ${number}, after the step`;
  at("which").textContent = `lane ${lane}`;
  at("variables").tBodies[0].replaceChildren(...data.variables.flatMap((name, place) => {
    const values = warp.values[place].slice(0, data.lanes[number]), known = values.filter(value => value !== null);
    if (!known.length) return [];
    const numbers = known.filter(value => typeof value === "number"), [low, high] = [Math.min(...numbers), Math.max(...numbers)];
    const cells = values.map((value, n) => {
      const share = typeof value !== "number" ? value === true ? 0.9 : 0.1 : high > low ? 0.1 + 0.8 * (value - low) / (high - low) : 0.5;
      const cell = made("i", { style: `--share: ${share}`, title: `lane ${n}: ${value}`, class: `${value === null ? "without" : ""} ${n === lane ? "chosen" : ""}` });
      cell.addEventListener("click", () => { lane = n; draw(); });
      return cell;
    });
    const every = known.every(value => value === known[0]), range = every ? `${known[0]}` : numbers.length ? `${low} … ${high}` : "";
    const row = made("tr", {}, made("td", {}, name), made("td", {}, made("div", { class: "strip", role: "img", "aria-label": `${name}: ${range}` }, ...cells)), made("td", { title: range }, range), made("td", {}, `${values[lane] ?? "–"}`));
    row.classList.toggle("changed", running && state.changed.has(place));
    return [row];
  }));
}

function drawSchedule() {
  const { instructions, kinds, names, schedules } = data.latency, { cycles, busy, starts } = schedules[at("many").value - 1];
  const ends = starts.map(all => { const [, slots, wait] = instructions.at(-1); return all.at(-1) + slots - 1 + wait; });
  const end = Math.max(...ends), left = 50, width = at("schedule").clientWidth - left - 16, row = 14, x = cycle => left + width * cycle / end;
  const shapes = starts.flatMap((all, warp) => [text(left - 6, row * warp + 10, `warp ${warp}`, "end"), ...all.flatMap((start, n) => {
    const [line, slots, wait, kind] = instructions[n], then = kinds[kind] === "barrier" ? all[n + 1] ?? start + slots - 1 + wait : start + slots - 1 + wait;
    const bar = (from, to, kind, words) => rect(x(from).toFixed(1), row * warp + 1, Math.max(0.7, x(to) - x(from)).toFixed(1), row - 3, kind, words);
    return [bar(start, start + slots, "issues", `line ${line}`), ...(then > start + slots ? [bar(start + slots, then, kinds[kind], `line ${line} waits for ${names[kind]}`)] : [])];
  })]);
  const tall = row * starts.length, step = [10, 50, 100, 200, 500, 1000, 2000, 5000, 10000].find(one => end / one <= width / 50) ?? end;
  for (let cycle = 0; cycle <= end; cycle += step) shapes.push(text(x(cycle), tall + 12, cycle));
  const says = `${count(starts.length, "warp")}: ${cycles} cycles, the scheduler issues in ${Math.round(100 * busy)}% of them`;
  at("many").setAttribute("aria-valuetext", says);
  at("busy").textContent = says;
  const used = ["issues", ...kinds.filter((_, kind) => instructions.some(one => one[3] === kind))];
  const legend = used.map(kind => made("span", {}, made("i", { class: kind }), kind === "issues" ? " issues" : ` waits for ${names[kinds.indexOf(kind)]}`));
  at("schedule").replaceChildren(
    drawn("svg", { role: "img", viewBox: `0 0 ${left + width + 16} ${tall + 16}`, "aria-label": `Warps over cycles. ${says}` }, ...shapes),
    made("p", { class: "legend" }, ...legend, made("span", {}, `the first ${count(instructions.length, "statement")}; across: cycles; empty: ready, and another warp issues`)));
}

// --- what moves it -------------------------------------------------------------------------------------------------

function play(on) {
  clearInterval(timer);
  timer = on ? setInterval(() => move(1), BEAT) : null;
  at("run").setAttribute("aria-pressed", on);
  at("run").setAttribute("aria-label", on ? "Pause" : "Play");
  at("run").textContent = on ? "❚❚" : "▶";
}

function press(event) {
  if (event.ctrlKey || event.metaKey || event.altKey || event.target === at("many") || event.target === follow) return;
  const ten = event.shiftKey ? 10 : 1, last = data.steps.length - 1, warps = data.lanes.length + 1;
  const choose = by => { follow.selectedIndex = (follow.selectedIndex + by + warps) % warps; draw(); };
  const keys = {
    ArrowRight: () => move(ten), ArrowLeft: () => move(-ten), Home: () => show(0), End: () => show(last),
    ArrowUp: () => choose(-1), ArrowDown: () => choose(1), " ": () => play(timer === null),
    ",": () => { lane = (lane + LANES - 1) % LANES; draw(); }, ".": () => { lane = (lane + 1) % LANES; draw(); },
  };
  if (!keys[event.key] || (event.key === " " && event.target.tagName === "BUTTON")) return;
  event.preventDefault();
  keys[event.key]();
}

at("warps").append(...data.lanes.map((_, n) => made("div", { class: "warp", id: `warp-${n}` }, made("span", {}, `warp ${n}`),
  made("div", { class: "lanes", role: "img" }, ...[...Array(LANES)].map(() => made("i", { class: "lane" }))), made("span", { class: "words" }))));
document.addEventListener("keydown", press);
slider.addEventListener("input", () => show(+slider.value));
follow.addEventListener("change", draw);
at("back").addEventListener("click", () => move(-1));
at("on").addEventListener("click", () => move(1));
at("run").addEventListener("click", () => play(timer === null));
at("many").addEventListener("input", drawSchedule);
addEventListener("resize", drawSchedule);
show(0);
drawSchedule();
