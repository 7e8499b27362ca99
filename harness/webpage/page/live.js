// The live page: asks once a second what is new since its cursor, and shows it.

import { Chart, clock, el, figure, legend, number } from "./charts.js";
import { build, post } from "./form.js";

const EVERY_MS = 1000, PATIENCE = 3, NEWEST = 30;
const $ = (id) => document.getElementById(id);
const page = { cursor: "", points: [], facts: {}, now: {}, failures: 0, column: {}, tables: "" };
const at = (name) => (point) => point[page.column[name]];

const latency = (key, title) => new Chart({ title, unit: "ms (log scale)", log: true, lines: [
  { name: "p50", color: "--muted", value: at(`${key}_p50_ms`) },
  { name: "p95", color: "--blue", width: 2.2, value: at(`${key}_p95_ms`) },
  { name: "p99", color: "--gold", dash: "3 3", value: at(`${key}_p99_ms`) }] });
const by = (key, title) => new Chart({ title: `${title} by level`, unit: "ms (log scale)", log: true, users: true, lines: [
  { name: `p95 ${title}`, color: "--muted", width: 1, value: (point) => point[1] }] });
const levels = {}, latencies = {}, headlines = []; // charts by latency: rows of METRICS that the first facts name
const KIND = { pass: "good", met: "good", fail: "bad", missed: "bad" };
const charts = {
  users: new Chart({ title: "Users", unit: "concurrent requests", lines: [{ name: "users", color: "--ink", value: at("users") }] }),
  tokens: new Chart({ title: "Throughput", unit: "output tokens/s", lines: [{ name: "tokens/s", color: "--blue", value: at("tokens_per_s") }] }),
};
const searchKeys = legend(
  { name: "level passed", color: "--blue", kind: "good" }, { name: "failed", color: "--red", kind: "bad" },
  { name: "inconclusive", color: "--muted", kind: "open" }, { name: "the knee lies here", color: "--green", band: true });
charts.users.keys.append(...searchKeys);
$("plots").append(...Object.values(charts).map((chart) => chart.node));

function addLatencies(rows) {
  for (const { key, name, headline } of rows) {
    latencies[key] = latency(key, name);
    if (headline) { levels[key] = by(key, name); headlines.push({ key, name }); }
  }
  $("plots").prepend(...Object.values(latencies).map((chart) => chart.node));
  $("by-level").append(...Object.values(levels).map((chart) => chart.node));
}

const STYLES = [{ color: "--blue" }, { color: "--red", dash: "5 3" }, { color: "--gold", dash: "3 3" }, { color: "--green" }];
function addServer(names) {
  const lines = names.map((key, i) => ({ name: key.replaceAll("_", " "), ...STYLES[i % STYLES.length], value: at(key) }));
  charts.server = new Chart({ title: "On the server", unit: "requests", lines });
  $("plots").append(charts.server.node);
}

function text(node, words) { if (node.textContent !== words) node.textContent = words; }

function showState({ badge, tone, simulated = "", sentence, over, answer = [], files = [], can_start, can_stop }) {
  text($("badge"), badge);
  $("badge").className = `badge ${tone}`;
  text($("simulated"), simulated);
  $("simulated").hidden = !simulated;
  text($("sentence"), sentence);
  document.title = `${badge}: vllm-harness live`;
  $("answer").replaceChildren(...answer.map((line) => el("p", {}, line)));
  $("stop").hidden = over || !can_stop;
  $("asking").hidden = !over || !can_start;
  $("files").hidden = !files.length;
  const links = files.map(({ name, what }) => el("a", { href: `harness/files/${name}`, title: what }, name === "report.html" ? "Open the report" : name));
  $("files").replaceChildren("This run's files: ", ...links);
}

function showAbout({ title, searches, decides, target, model, folder, processes, unit }) {
  const parts = ["vllm-harness", title, target, model,
    processes > 1 ? `${processes} load processes` : "", folder && `run folder ${folder}`];
  text($("about"), parts.filter(Boolean).join(" · "));
  text(charts.users.node.querySelector("b"), unit ? "In flight, requests" : "Users, concurrent requests");
  text(charts.users.keys.firstChild.lastChild, charts.users.spec.lines[0].name = unit ? "in flight" : "users");
  searchKeys.forEach((key, i) => { key.hidden = Boolean(unit) || (i < 3 ? !decides : !searches); });
}

function limitsOf(key) {
  return (page.facts.slos || []).filter((slo) => slo.key === key)
    .map((slo) => ({ name: `SLO ${slo.statistic} ${number(slo.limit)} ${slo.unit}`, value: slo.limit_ms }));
}

function drawAll() {
  const steps = page.facts.steps || [], { points } = page, { events = [] } = page.facts, newest = page.facts.over ? "last" : "now";
  for (const key of Object.keys(latencies)) latencies[key].draw({ points, newest, events, limits: limitsOf(key) });
  charts.tokens.draw({ points, newest, events });
  charts.server.draw({ points, newest, events });
  const last = points.length ? points[points.length - 1][0] : 0;
  const bands = steps.filter((s) => s.bracket[0] !== null && s.bracket[1] !== null).map((s) => {
    const next = steps[steps.indexOf(s) + 1];
    return { from: s.to_s, to: next ? next.to_s : last, low: s.bracket[0], high: s.bracket[1] };
  });
  charts.users.draw({ points, newest, events, ...(page.facts.unit ? {} : { bands, marks: steps.map((s) => ({ t: s.to_s, y: s.users, kind: KIND[s.decision] })) }) });
  for (const key of Object.keys(levels)) drawLevels(key, steps.filter((s) => s.decision !== "invalid" && s[`${key}_p95_ms`][0] !== null));
}

// p95 against users: each hold of a level as a point, and the line through the levels' means
function drawLevels(key, steps) {
  const seen = new Map(), value = (s) => s[`${key}_p95_ms`], { holds, knee = [null, null, null] } = page.facts;
  for (const s of steps) seen.set(s.users, [...(seen.get(s.users) || []), value(s)[0]].filter((v) => v !== "inf"));
  const points = [...seen].sort((a, b) => a[0] - b[0]).map(([n, all]) => [n, all.length ? all.reduce((a, b) => a + b) / all.length : "inf"]);
  const marks = steps.filter((s) => value(s)[0] !== "inf").map((s) => ({ t: s.users, y: value(s)[0], low: value(s)[1], high: value(s)[2], kind: KIND[s.decision] }));
  const [estimate, from, to] = knee, at = holds || estimate;
  levels[key].draw({ points, marks, limits: limitsOf(key), knee: estimate === null ? null : { from, to, at, name: holds ? `holds ${holds}` : `estimate ${estimate}` } });
}

function showCards() {
  $("cards").hidden = !page.points.length && !page.facts.tiles;
  const point = page.points[page.points.length - 1];
  const value = (name) => number(point && at(name)(point));
  const server = point && at("running")(point) !== null ? `${value("running")} + ${value("waiting")}` : "–";
  const cards = [[page.facts.unit ? "In flight" : "Users", value("users"), page.now.users === undefined ? "" : `level: ${page.now.users}`],
    ["Output tokens/s", value("tokens_per_s"), ""],
    ...headlines.map(({ key, name }) => [`p95 ${name}`, `${value(`${key}_p95_ms`)} ms`, ["last 10 s", ...limitsOf(key).map((l) => l.name)].join(", ")]),
    ["On the server", server, "running + waiting"]];
  if (page.facts.tiles) cards.splice(0, cards.length, ...page.facts.tiles.map(({ name, value, unit, note, limit }) => {
    const [digits, ends] = Array.isArray(value) ? figure(value, limit) : [value, ""];
    return [name, `${digits} ${unit}`, ends ? `95% CI: ${ends}` : note];
  }));
  $("cards").replaceChildren(...cards.map(([name, what, note]) =>
    el("li", {}, el("small", {}, name), el("b", {}, what), el("small", {}, note))));
}

function showProgress({ step, users, purpose, phase, ended, failed, left_s }) {
  const parts = [];
  if (page.facts.phase && !page.facts.over) parts.push(`Phase: ${page.facts.phase}`);
  if (step && !page.facts.over) parts.push(`Level ${step}: ${users} ${page.facts.unit || (users === 1 ? "user" : "users")} (${purpose}), ${phase}`);
  if (ended !== undefined) parts.push(`${number(ended)} requests ended, ${number(failed)} failed`);
  if (left_s !== undefined && !page.facts.over && page.facts.searches) parts.push(`${clock(left_s)} left at most`);
  if (page.facts.throttled && !page.facts.over) parts.push(`this client is ${page.facts.throttled} by its CPU limit`);
  text($("progress"), parts.join("; ") + (parts.length ? "." : ""));
}

function table(caption, head, rows) {
  const cell = (tag) => ([words, kind]) => el(tag, { ...(kind ? { class: kind } : {}), ...(tag === "th" ? { scope: "col" } : {}) }, words);
  return el("table", { "aria-label": caption }, el("thead", {}, el("tr", {}, ...head.map(cell("th")))),
    el("tbody", {}, ...rows.map((row) => el("tr", {}, ...row.map(cell("td"))))));
}

function interval(told, key) {
  const [digits, ends] = figure(told, (limitsOf(key).find((l) => l.name.startsWith("SLO p95 ")) || { value: null }).value);
  return digits + (ends ? ` (${ends})` : "");
}

function showSteps(steps = []) {
  $("levels").hidden = !steps.length;
  const head = [["Level"], [page.facts.unit ? "Requests/s" : "Users"], ["Purpose", "text"], ["Result", "text"], ...headlines.map(({ name }) => [`p95 ${name}, ms`]), ["Measured"], ["Why", "text"]];
  const rows = steps.map((s, i) => [[`${i + 1}`], [`${s.users}`], [s.purpose, "text"], [s.result, `text ${KIND[s.decision] || s.decision}`],
    ...headlines.map(({ key }) => [interval(s[`${key}_p95_ms`], key)]), [`${clock(s.from_s)} to ${clock(s.to_s)}`], [s.why, "text why"]]);
  $("levels").querySelector(".wide").replaceChildren(table("Levels", head, rows));
}

const SO_FAR = { "within so far": "text good", "over so far": "text bad" };

function showWholeRun({ latencies, slos }) {
  const told = JSON.stringify([latencies, slos]);
  if (told === page.tables) return; // what somebody has selected stays selected
  page.tables = told;
  $("whole").hidden = !slos.length && latencies.every(([, n]) => n === 0);
  const quantiles = page.facts.quantiles.map((name) => [name === "p999" ? "p99.9" : name]);
  const head = [["Latency, ms", "text"], ["Observations"], ...quantiles, ["Max"]];
  const rows = latencies.map(([name, n, ...values]) => [[name, "text"], [number(n)], ...values.map((v) => [number(v)])]);
  $("whole").querySelector(".wide").replaceChildren(table("Latencies of the whole run", head, rows));
  $("slos").hidden = $("slos-note").hidden = !slos.length;
  $("slos").replaceChildren(table("SLOs over the whole run",
    [["SLO", "text"], ["So far", "text"], ["Over the limit"], ["Allowed"], ["Observations"]],
    slos.map((one) => [[one.slo, "text"], [one.so_far, SO_FAR[one.so_far] || "text"], [one.over], [one.allowed], [number(one.n)]])));
}

const TRUTH = { met: ["true", "text good"], missed: ["false", "text bad"], inconclusive: ["not decided", "text"] };

function showDrill({ expectations = [], events = [] }) {
  $("drill").hidden = !expectations.length;
  const [expected, happened] = $("drill").querySelectorAll(".wide");
  expected.replaceChildren(table("What is expected", [["Expected", "text"], ["Came true", "text"], ["At"], ["Seen", "text"]],
    expectations.map((one) => [[one.name, "text"], TRUTH[one.verdict], [one.at_s === null ? "" : clock(one.at_s)], [one.sentence, "text why"]])));
  happened.replaceChildren(table("What has happened", [["At"], ["Event", "text"], ["", "text"]],
    events.map((one) => [[clock(one.t_s)], [one.event, "text"], [one.what, "text"]])));
}

function showFigures() {
  if (!$("figures").open) return;
  const names = Object.keys(page.column), newest = page.points.slice(-NEWEST).reverse();
  const head = names.map((name) => [name.replace("_per_", "/").replace(/_(ms|s)$/, ", $1").replaceAll("_", " ")]);
  $("figures").querySelector(".wide").replaceChildren(table("Latest figures", head,
    newest.map((point) => point.map((v) => [number(v)]))));
}

function take(news) {
  page.cursor = news.cursor;
  page.now = news.now;
  page.points = news.whole ? news.points : page.points.concat(news.points);
  if (news.facts) {
    const before = page.facts;
    page.facts = news.facts;
    if (!charts.server) {
      addLatencies(news.facts.latencies);
      addServer(news.facts.server_lines);
    }
    page.column = Object.fromEntries(news.facts.columns.map((name, place) => [name, place]));
    showState(page.facts);
    showAbout(page.facts);
    showSteps(page.facts.steps);
    showDrill(page.facts);
    const formed = $("form").childElementCount > 0;
    if (page.facts.fields && !formed) build($("form"), page.facts.fields, page.facts.form, () => ask());
    if (before.over !== page.facts.over) $("asking").open = ["idle", "refused"].includes(page.facts.state);
  }
  showProgress(page.now);
  showWholeRun(news.tables);
  $("over-time").hidden = !page.points.length;
  if (news.points.length || news.whole || news.facts) { drawAll(); showCards(); showFigures(); }
}

function lost(error) {
  page.failures += 1;
  if (page.failures < PATIENCE) return;
  const quiet = { over: true, can_start: false, can_stop: false, files: [] };
  const where = page.facts.folder ? ` The run's files are in the folder ${page.facts.folder}.` : "";
  if (page.facts.over) {
    showState({ ...page.facts, ...quiet });
    text($("progress"), `The command that served this page has ended.${where}`);
  } else {
    const sentence = `The harness no longer answers (${error.message}): its command has ended, or the network is down. The last known values are shown.${where}`;
    showState({ ...page.facts, ...quiet, badge: "no connection", tone: "bad", sentence });
  }
}

let timer = 0;
async function ask() {
  clearTimeout(timer);
  try {
    if (!document.hidden) {
      const answer = await fetch(`harness/live.json?since=${page.cursor}`, { cache: "no-store", signal: AbortSignal.timeout(10_000) });
      if (answer.redirected || answer.status === 401) return location.reload(); // to the login
      if (!answer.ok) throw new Error(`${answer.status}`);
      if (page.failures >= PATIENCE) page.cursor = "";
      const news = await answer.json();
      if (page.failures < PATIENCE || news.facts) { page.failures = 0; take(news); }
      else page.failures = PATIENCE - 1;
    }
  } catch (error) {
    lost(error);
  }
  timer = setTimeout(ask, EVERY_MS);
}

$("stop").addEventListener("click", async () => {
  $("stop").disabled = true;
  try { await post("harness/stop"); } catch (error) { lost(error); }
  $("stop").disabled = false;
  ask();
});
$("figures").addEventListener("toggle", showFigures);
document.addEventListener("visibilitychange", () => { if (!document.hidden) ask(); });
ask();
