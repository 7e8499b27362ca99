// Small line charts as SVG: time (or users) goes right, one unit goes up, every line has its name in the legend.
// A chart is read by pointing at it, or by focus and arrow keys; the values stand beneath its title.

const NS = "http://www.w3.org/2000/svg";
const WIDTH = 420, HEIGHT = 210, LEFT = 46, RIGHT = 20, TOP = 10, BOTTOM = 34;

export function el(tag, attributes = {}, ...children) {
  const svg = ["svg", "path", "line", "text", "circle", "rect", "g"].includes(tag);
  const made = svg ? document.createElementNS(NS, tag) : document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children);
  return made;
}

export function number(value) {
  if (value === null || value === undefined) return "–";
  if (value === "inf") return "∞";
  const size = Math.abs(value);
  return value.toLocaleString("en", { maximumFractionDigits: size >= 100 ? 0 : size >= 10 ? 1 : 2 });
}

// as the report rounds (harness/metrics/numbers.py): by the interval, and never onto the limit or to its other side
export function figure([value, low, high] = [null, null, null], limit = null) {
  if (!real(value)) return [number(value), real(low) ? `at least ${number(low)}` : ""];
  const size = Math.floor(Math.log10(Math.abs(value) || 1)), half = real(low) && real(high) ? (high - low) / 2 : 0;
  let digits = Math.max(2 - size, 0);
  if (half > 0) {
    const lead = Math.floor(Math.log10(half)) - (half / 10 ** Math.floor(Math.log10(half)) < 2 ? 1 : 0);
    digits = Math.max(Math.min(-lead, Math.max(3 - size, 0)), 1 - size);
  }
  const round = (v, n) => Number(n < 0 ? Math.round(v * 10 ** n) / 10 ** n : v.toFixed(n));
  const say = (v, n) => (real(v) ? round(v, n).toLocaleString("en", { minimumFractionDigits: Math.max(n, 0), maximumFractionDigits: Math.max(n, 0) }) : number(v));
  let own = digits;
  while (limit !== null && own < 3 && Math.sign(value - limit) !== Math.sign(round(value, own) - limit)) own += 1;
  const ends = low === null ? "" : high === null || high === "inf" ? `at least ${say(low, digits)}` : `${say(low, digits)} to ${say(high, digits)}`;
  return [say(value, own), ends];
}

export function clock(seconds) {
  const s = Math.round(seconds);
  return s < 3600 ? `${Math.floor(s / 60)}:${String(s % 60).padStart(2, "0")}`
    : `${Math.floor(s / 3600)} h ${Math.floor(s / 60) % 60} m`;
}

// 1, 2 or 5 times a power of ten
function nice(rough) {
  const unit = 10 ** Math.floor(Math.log10(rough));
  return [1, 2, 5, 10].find((times) => times * unit >= rough - 1e-12) * unit;
}

const SIXTIETHS = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 43200];

function timeTicks(end) {
  const step = SIXTIETHS.find((s) => end / s <= 6) || 86400;
  return Array.from({ length: Math.floor(end / step) + 1 }, (_, i) => i * step);
}

function linear(top) {
  const step = nice(Math.max(top, 1) / 4), end = Math.max(Math.ceil(top / step), 1) * step;
  const ticks = Array.from({ length: Math.round(end / step) + 1 }, (_, i) => i * step);
  return { ticks, at: (v) => Math.min(v / end, 1) };
}

function logarithmic(low, high) {
  const from = Math.floor(Math.log10(low) * 3) / 3, to = Math.max(Math.ceil(Math.log10(high) * 3) / 3, from + 2 / 3);
  const ticks = [];
  for (let power = Math.floor(from); power <= to; power++)
    for (const times of to - from > 2.5 ? [1] : [1, 2, 5]) {
      const tick = times * 10 ** power, place = Math.log10(tick);
      if (place >= from - 1e-9 && place <= to + 1e-9) ticks.push(tick);
    }
  return { ticks, at: (v) => Math.min(Math.max((Math.log10(Math.max(v, 1e-9)) - from) / (to - from), 0), 1) };
}

const real = (v) => typeof v === "number";
export const users = (n) => `${number(n)} ${n === 1 ? "user" : "users"}`;

export class Chart {
  // spec: {title, unit, log, users: points are [users, ...], lines: [{name, color, dash, width, values(point)}]}
  constructor(spec) {
    this.spec = spec;
    this.cursor = -1;
    this.svg = el("svg", { class: "chart", viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", tabindex: "0" });
    this.out = el("output");
    const keys = spec.lines.map((line) => el("span", { class: "key" }, sample(line), line.name));
    this.keys = el("span", {}, ...keys);
    this.node = el("figure", {}, el("figcaption", {}, el("b", {}, `${spec.title}, ${spec.unit}`), this.keys), this.out, this.svg);
    this.svg.addEventListener("pointermove", (event) => this.point(event));
    this.svg.addEventListener("pointerleave", () => this.move(-1));
    this.svg.addEventListener("blur", () => this.move(-1));
    this.svg.addEventListener("keydown", (event) => this.key(event));
  }

  // data: {points: [[t, ...]], newest: "now", limits: [{name, value}], bands: [{from, to, low, high}], marks: [{t, y, kind, low, high}], events: [{t_s, what}], knee: {from, to, at, name}}
  draw(data) {
    this.data = data;
    const { points } = data, { lines, log } = this.spec;
    const values = points.flatMap((p) => lines.map((line) => line.value(p))).filter(real);
    const extra = [...(data.limits || []).map((l) => l.value), ...(data.marks || []).map((m) => m.y)];
    const all = [...values, ...extra];
    this.end = Math.max(points.length ? points[points.length - 1][0] : 0, 10);
    let top = 1, low = Infinity;
    for (const v of all) { if (v > top) top = v; if (v > 0 && v < low) low = v; }
    const scale = log ? logarithmic(low === Infinity ? 1 : low * 0.8, top * 1.15) : linear(top);
    this.y = (v) => TOP + (1 - (v === "inf" ? 1 : scale.at(v))) * (HEIGHT - TOP - BOTTOM);
    const first = points.length ? points[0][0] / 1.25 : 1, last = points.length ? points[points.length - 1][0] * 1.25 : 2;
    const along = (t) => (this.spec.users ? Math.log(t / first) / Math.log(last / first) : t / this.end);
    this.x = (t) => LEFT + Math.min(along(t), 1) * (WIDTH - LEFT - RIGHT);
    this.svg.replaceChildren(...this.axes(scale), ...this.bands(), ...this.knee(), ...lines.flatMap((line) => this.line(line)),
      ...this.limits(), ...this.events(), ...this.marks());
    this.hair = el("line", { class: "hair", y1: TOP, y2: HEIGHT - BOTTOM, visibility: "hidden" });
    this.svg.append(this.hair);
    this.move(Math.min(this.cursor, points.length - 1));
  }

  axes(scale) {
    const bottom = HEIGHT - BOTTOM, made = [];
    for (const tick of scale.ticks) {
      const y = this.y(tick);
      made.push(el("line", { class: "grid", x1: LEFT, x2: WIDTH - RIGHT, y1: y, y2: y }),
        el("text", { class: "tick", x: LEFT - 6, y: y + 4, "text-anchor": "end" }, tick.toLocaleString("en", { notation: tick >= 10000 ? "compact" : "standard" })));
    }
    let free = 0;
    const held = this.data.points.map((p) => p[0]), powers = held.filter((n) => Number.isInteger(Math.log2(n)));
    for (const t of !this.spec.users ? timeTicks(this.end) : held.length > 6 && powers.length > 1 ? powers : held) {
      if (this.spec.users && this.x(t) < free) continue;
      free = this.x(t) + 26;
      made.push(el("text", { class: "tick", x: this.x(t), y: bottom + 15, "text-anchor": "middle" }, this.spec.users ? number(t) : clock(t)));
    }
    made.push(el("text", { class: "tick", x: (LEFT + WIDTH - RIGHT) / 2, y: HEIGHT - 5, "text-anchor": "middle" }, this.spec.users ? "concurrent requests" : "time, min:s"));
    return made;
  }

  line({ value, color, dash = "", width = 1.6 }) {
    let path = "", drawn = false;
    const tops = [];
    for (const point of this.data.points) {
      const v = value(point);
      if (v === "inf") tops.push(this.x(point[0]));
      if (!real(v)) { drawn = false; continue; }
      path += `${drawn ? "L" : "M"}${this.x(point[0]).toFixed(1)} ${this.y(v).toFixed(1)}`;
      drawn = true;
    }
    const stroke = { fill: "none", stroke: `var(${color})`, "stroke-width": width, "stroke-dasharray": dash, "stroke-linejoin": "round" };
    const up = tops.map((x) => `M${x - 4} ${TOP + 7}h8l-4 -7z`).join("");
    return [el("path", { d: path, ...stroke }), el("path", { d: up, fill: `var(${color})` })];
  }

  limits() {
    return (this.data.limits || []).flatMap(({ name, value }) => {
      const y = this.y(value);
      return [el("line", { x1: LEFT, x2: WIDTH - RIGHT, y1: y, y2: y, stroke: "var(--red)", "stroke-dasharray": "6 4", "stroke-width": 1.4 }),
        el("text", { x: LEFT + 4, y: y > TOP + 14 ? y - 4 : y + 13, class: "limit" }, name)];
    });
  }

  events() {
    return (this.data.events || []).map(({ t_s, what }) => el("line", { x1: this.x(t_s), x2: this.x(t_s), y1: TOP, y2: HEIGHT - BOTTOM,
      stroke: "var(--red)", opacity: 0.7, "stroke-dasharray": what === "begins" ? "" : "2 4" }));
  }

  bands() {
    return (this.data.bands || []).map(({ from, to, low, high }) => {
      const y = this.y(high), x = this.x(from);
      return el("rect", { x, y, width: Math.max(this.x(Math.min(to, this.end)) - x, 0), height: Math.max(this.y(low) - y, 1), fill: "var(--green)", opacity: 0.22 });
    });
  }

  // the interval of the knee, and the level that holds
  knee() {
    const { from, to, at, name } = this.data.knee || {};
    if (!at) return [];
    const box = { y: TOP, height: HEIGHT - TOP - BOTTOM, fill: "var(--green)" };
    return [el("rect", { ...box, x: this.x(from), width: Math.max(this.x(to) - this.x(from), 1), opacity: 0.22 }),
      el("rect", { ...box, x: this.x(at) - 0.7, width: 1.4 }),
      el("text", { x: this.x(Math.min(from, at)) - 4, y: TOP + 10, "text-anchor": "end", class: "knee" }, name)];
  }

  // a point whose interval is wide, or has no upper end, is hollow
  marks() {
    return (this.data.marks || []).flatMap(({ t, y, kind, low = null, high = null }) => {
      const bar = low === null ? [] : [el("line", { x1: this.x(t), x2: this.x(t), y1: this.y(low), y2: high === null ? this.y(y) - 12 : this.y(high), stroke: "var(--muted)" })];
      return [...bar, mark(this.x(t), this.y(y), kind, low !== null && !(high !== null && high - low <= y / 2))];
    });
  }

  point(event) {
    const box = this.svg.getBoundingClientRect();
    const x = ((event.clientX - box.left) / box.width) * WIDTH, { points } = this.data || { points: [] };
    let best = -1;
    points.forEach((p, i) => { if (best < 0 || Math.abs(this.x(p[0]) - x) < Math.abs(this.x(points[best][0]) - x)) best = i; });
    this.move(best);
  }

  key(event) {
    const last = this.data ? this.data.points.length - 1 : -1;
    const from = this.cursor < 0 ? last + 1 : this.cursor;
    const to = { ArrowLeft: from - 1, ArrowRight: from + 1, Home: 0, End: last }[event.key];
    if (to === undefined || last < 0) return;
    event.preventDefault();
    this.move(Math.max(0, Math.min(to, last)));
  }

  move(index) {
    this.cursor = index;
    const { points } = this.data || { points: [] };
    const point = points[index < 0 ? points.length - 1 : index];
    const told = point && this.spec.lines.map((line) => `${line.name} ${number(line.value(point))}`).join(", ");
    const here = point && (this.spec.users ? users(point[0]) : clock(point[0]));
    this.out.textContent = point ? `${index < 0 && !this.spec.users ? this.data.newest : `at ${here}`}: ${told}` : "no figures yet";
    this.svg.setAttribute("aria-label", `${this.spec.title} in ${this.spec.unit} against ${this.spec.users ? "users" : "time"}. ${this.out.textContent}`);
    if (!this.hair) return;
    this.hair.setAttribute("visibility", index < 0 ? "hidden" : "visible");
    if (index >= 0) for (const name of ["x1", "x2"]) this.hair.setAttribute(name, this.x(point[0]));
  }
}

// as in the report: a blue circle passed, an orange cross failed, a grey circle is inconclusive; hollow: weak
export function mark(x, y, kind, hollow = false) {
  if (kind === "bad")
    return el("path", { d: `M${x - 4} ${y - 4}l8 8m0 -8l-8 8`, stroke: "var(--red)", "stroke-width": hollow ? 1 : 2 });
  const color = kind === "good" ? "var(--blue)" : "var(--muted)";
  return el("circle", { cx: x, cy: y, r: 4, fill: hollow ? "var(--card)" : color, stroke: color, "stroke-width": 1.5 });
}

function sample({ color, dash = "", width = 1.6, band = false, kind = "" }) {
  const line = el("line", { x1: 0, x2: 22, y1: 6, y2: 6, stroke: `var(${color})`, "stroke-width": band ? 9 : width, "stroke-dasharray": dash, opacity: band ? 0.35 : 1 });
  return el("svg", { width: 22, height: 12, "aria-hidden": "true" }, kind ? mark(11, 6, kind) : line);
}

export function legend(...keys) {
  return keys.map((key) => el("span", { class: "key" }, sample(key), key.name));
}
