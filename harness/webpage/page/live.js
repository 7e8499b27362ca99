// The live page: asks once a second what is new since its cursor, and shows it.

import { clock, el, figure, number } from "./elements.js";
import { build, post } from "./form.js";

const EVERY_MS = 1000, PATIENCE = 3, NEWEST = 30;
const $ = (id) => document.getElementById(id);
const page = { cursor: "", points: [], facts: {}, now: {}, failures: 0, column: {}, tables: "" };
const at = (name) => (point) => point[page.column[name]];

const KIND = { pass: "good", met: "good", fail: "bad", missed: "bad" };
const drawn = {}; // charts by name
let headlines = []; // the latencies that the first facts name as such

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

function showAbout({ title, target, model, folder, processes }) {
  const parts = ["vllm-harness", title, target, model,
    processes > 1 ? `${processes} load processes` : "", folder && `run folder ${folder}`];
  text($("about"), parts.filter(Boolean).join(" · "));
}

function limitsOf(key) {
  return (page.facts.slos || []).filter((slo) => slo.key === key)
    .map((slo) => ({ name: `SLO ${slo.statistic} ${number(slo.limit)} ${slo.unit}`, value: slo.limit_ms }));
}

function drawAll() {
  const { charts, columns } = page.facts;
  drawInto($("plots"), charts.time, columns);
  drawInto($("by-level"), charts.levels, columns);
}

// a chart that comes is appended, and one that is gone is removed
function drawInto(node, charts, columns) {
  const names = charts.map((chart) => chart.name);
  for (const figure of [...node.children]) if (!names.includes(figure.dataset.name)) { delete drawn[figure.dataset.name]; figure.remove(); }
  for (const chart of charts) {
    const filled = harnessCharts.filled(chart, columns, page.points, page.now.users);
    if (drawn[chart.name]) drawn[chart.name].update(filled);
    else {
      const figure = el("figure", { class: chart.wide ? "chart broad" : "chart", "data-name": chart.name });
      node.append(figure);
      drawn[chart.name] = harnessCharts.mount(figure, filled);
    }
  }
}

function showCards() {
  $("cards").hidden = !page.points.length && !page.facts.tiles;
  const point = page.points[page.points.length - 1];
  const value = (name) => number(point && at(name)(point));
  const server = point && at("running")(point) !== null ? `${value("running")} + ${value("waiting")}` : "–";
  const cards = [[page.facts.unit ? "In flight" : "Users", value("users"), page.now.users === undefined ? "" : `level: ${page.now.users}`],
    ["Output tokens/s", value("tokens_per_s"), ""],
    ...headlines.map(({ key, name }) => [`p95 ${name}`, `${value(`${key}_p95_ms`)} ms`, ["last 10 s", ...limitsOf(key).map((l) => l.name)].join(", ")]),
    ["On the server", server, page.now.engines || "running + waiting"]];
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
    headlines = news.facts.latencies.filter((row) => row.headline);
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
