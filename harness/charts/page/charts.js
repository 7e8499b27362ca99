// What draws a chart of definition.py with ECharts: in a page (`mount`), or to text without one (`still`).
// A point is [x, y, low, high, n, note, hollow]; colours are variables of the page's style sheet.
"use strict";

var harnessCharts = (() => {
  const FONT = "system-ui, 'DejaVu Sans', sans-serif";
  const LEFT = 58, RIGHT = 18, TITLE = 24, LEGEND = 22, PANEL_TITLE = 20, UPRIGHT = 18, TICKS = 22, AXIS_TITLE = 20, GAP = 10;
  const CROSS = "path://M0 2L2 0L5 3L8 0L10 2L7 5L10 8L8 10L5 7L2 10L0 8L3 5Z";
  const FAR_ABOVE = 3; // times the highest point: a limit above that would flatten the rest
  const DIGIT = 6.6; // px of a letter beside an axis
  const PARTS_OF_MINUTES = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 43200, 86400];

  const color = (name) => `var(--${name})`;
  const real = (value) => typeof value === "number";
  const grouped = (text) => text.replace(/^(-?\d+)/, (whole) => whole.replace(/\B(?=(\d{3})+$)/g, ","));

  function number(value) {
    if (value === null || value === undefined) return "–";
    if (!real(value)) return "∞";
    const size = Math.abs(value);
    return grouped(String(Number(value.toFixed(size >= 100 ? 0 : size >= 10 ? 1 : size >= 1 ? 2 : 3))));
  }

  function tickText(value) {
    return Math.abs(value) >= 10000 ? `${Number((value / 1000).toPrecision(4))}k` : grouped(String(Number(value.toPrecision(6))));
  }

  function clock(seconds) {
    const whole = Math.round(seconds), minutes = Math.floor(whole / 60);
    return whole < 3600 ? `${minutes}:${String(whole % 60).padStart(2, "0")}` : `${Math.floor(minutes / 60)}:${String(minutes % 60).padStart(2, "0")} h`;
  }

  // 1, 2 or 5 times a power of ten, so that about `count` of them fit
  function niceStep(span, count) {
    const rough = span / count, unit = 10 ** Math.floor(Math.log10(rough));
    return [1, 2, 5, 10].find((times) => times * unit >= rough - 1e-12) * unit;
  }

  function multiples(step, low, high) {
    const ticks = [];
    for (let i = Math.ceil(low / step - 1e-9); i * step <= high + step * 1e-9; i++) ticks.push(Number((i * step).toPrecision(12)));
    return ticks;
  }

  function logTicks(low, high, room) {
    if (high < low * 8) return multiples(niceStep(high - low, Math.min(Math.max(room / 40, 3), 7)), low, high).filter((tick) => tick > 0);
    const ticks = [];
    for (let power = Math.floor(Math.log10(low)); power <= Math.log10(high); power++)
      for (const times of high < low * 3000 ? [1, 2, 5] : [1]) {
        const tick = Number((times * 10 ** power).toPrecision(12));
        if (tick >= low && tick <= high) ticks.push(tick);
      }
    return ticks;
  }

  function ticksOf(axis, low, high, room, across) {
    if (axis.scale === "names") return axis.names.map((_, place) => place);
    if (axis.ticks.length) return apart(axis, axis.ticks.filter((tick) => tick >= low && tick <= high), low, high, room);
    if (axis.scale === "log") {
      const ticks = logTicks(low, high, room);
      return across ? apart(axis, ticks, low, high, room) : ticks;
    }
    if (axis.scale === "time") {
      const step = PARTS_OF_MINUTES.find((seconds) => (high - low) / seconds <= Math.max(room / 90, 2)) || 86400;
      return multiples(step, low, high);
    }
    return multiples(niceStep(high - low, Math.min(Math.max(room / (across ? 70 : 35), 3), across ? 12 : 6)), low, high);
  }

  // without those whose labels would overlap the one before
  function apart(axis, ticks, low, high, room) {
    const along = (value) => (axis.scale === "log" ? Math.log(value / low) / Math.log(high / low) : (value - low) / (high - low));
    const kept = [];
    let free = -Infinity;
    for (const tick of ticks) {
      const half = (tickText(tick).length * DIGIT) / 2 + 3, at = along(tick) * room;
      if (at - half < free) continue;
      kept.push(tick);
      free = at + half;
    }
    return kept;
  }

  const labelOf = (axis) => (value) =>
    axis.scale === "names" ? axis.names[Math.round(value)] ?? "" : axis.scale === "time" ? clock(value) : tickText(value);

  const shownSeries = (panel, look) => panel.series.filter((series) => !look.hidden.has(series.name));

  function rangeOfX(chart, look) {
    if (look.range) return look.range;
    const { x } = chart;
    if (x.scale === "names") return [-0.6, Math.max(x.names.length, 1) - 0.4];
    const xs = chart.panels.flatMap((panel) => panel.series.flatMap((series) => series.points.map((point) => point[0]))).filter(real);
    const low = Math.min(...xs), high = Math.max(...xs);
    if (!xs.length) return [real(x.low) ? x.low : 0, real(x.high) ? x.high : 10];
    const margin = x.scale === "time" ? 0 : x.scale === "log" ? 1.25 : Math.max((high - low) * 0.06, high === low ? 0.6 : 0);
    const ends = x.scale === "log" ? [low / margin, high * margin] : [low - margin, high + margin];
    return [real(x.low) ? x.low : ends[0], real(x.high) ? x.high : Math.max(ends[1], ends[0] + 1e-6)];
  }

  // of what lies within `xs`, with its intervals and the limits that are not far above
  function rangeOfY(panel, xs, look) {
    const { y } = panel, log = y.scale === "log", values = [];
    for (const series of shownSeries(panel, look))
      for (const [x, value, low, high] of series.points)
        if (x >= xs[0] && x <= xs[1]) values.push(...[value, low, high].filter((one) => real(one) && (!log || one > 0)));
    const top = Math.max(...values);
    const limits = panel.limits.filter((limit) => !limit.upright && real(limit.at) && !(limit.at > FAR_ABOVE * top)).map((limit) => limit.at);
    const all = [...values, ...limits];
    if (!all.length) return [log ? 1 : 0, real(y.high) ? y.high : log ? 10 : 1];
    const least = Math.min(...all), most = Math.max(...all);
    if (log) return [real(y.low) ? y.low : least / 1.35, real(y.high) ? y.high : most * 1.35];
    const low = real(y.low) ? y.low : Math.min(least, 0);
    const step = niceStep(most - low || 1, 4);
    const lowest = low < 0 && !real(y.low) ? Math.max(Math.floor(low / step) * step, low - 0.04 * (most - low)) : low;
    return [lowest, real(y.high) ? y.high : Math.max(Math.ceil((most * 1.04) / step) * step, low + step)];
  }

  const axisText = (name) => ({ color: color(name), fontFamily: FONT, fontSize: 11 });

  function axisOption(axis, [min, max], room, across, more) {
    const ticks = ticksOf(axis, min, max, room, across);
    return {
      type: axis.scale === "log" ? "log" : "value", min, max,
      axisLabel: { ...axisText("ink"), customValues: ticks, formatter: labelOf(axis), showMinLabel: true, showMaxLabel: true, hideOverlap: false, margin: 6 },
      axisTick: { show: false, customValues: ticks }, axisLine: { show: true, onZero: false, lineStyle: { color: color("muted"), width: 1 } },
      splitLine: { show: true, lineStyle: { color: color("rule"), width: 1 } },
      ...more,
    };
  }

  // in pixels, from the top: each panel's title, plot and ticks
  function layout(chart, look) {
    let top = look.titled ? TITLE : 4;
    if (look.legend) top += LEGEND * look.legendRows;
    const places = chart.panels.map((panel) => {
      const head = (panel.title ? PANEL_TITLE : 0) + (panel.limits.some((limit) => limit.upright && limit.name) ? UPRIGHT : 4);
      const place = { title: top, top: top + head, height: panel.height };
      top += head + panel.height + (look.one ? 0 : GAP);
      return place;
    });
    const left = chart.sideways ? Math.min(12 + DIGIT * Math.max(...chart.x.names.map((name) => name.length), 3), look.width * 0.45) : LEFT;
    const title = chart.sideways ? chart.panels[0].y.title : chart.x.title;
    return { places, left, height: top + TICKS + (title ? AXIS_TITLE : 0) };
  }

  const named = (chart) => [...new Map(chart.panels.flatMap((panel) => panel.series).filter((series) => series.name).map((series) => [series.name, series])).values()];

  function drawnSeries(chart, panel, place, xs, ys, look) {
    const at = { xAxisIndex: place, yAxisIndex: place };
    const turn = ([x, y]) => (chart.sideways ? [y, x] : [x, y]);
    const common = { ...at, silent: true, animation: false, clip: true, emphasis: { disabled: true }, tooltip: { show: false } };
    const height = (value) => (value === "inf" ? ys[1] : real(value) && (panel.y.scale !== "log" || value > 0) ? value : null);
    const made = panel.limits.length || panel.bands.length ? [marks(chart, panel, xs, ys, common, look)] : [];
    for (const series of panel.series) {
      const own = { ...common, name: series.name, itemStyle: { color: color(series.color), opacity: 1 } };
      const stroke = { color: color(series.color), width: series.width, type: series.dash };
      const points = series.points;
      if (series.shape === "spans") {
        const data = points.flatMap(([x, , low, high]) => [[x, low], [x, high], [x, null]].map(turn));
        made.push({ ...own, type: "line", data, showSymbol: false, lineStyle: { ...stroke, type: "solid", cap: "butt" } });
        continue;
      }
      if (series.shape === "points") {
        const ends = points.filter((point) => real(point[2]));
        const bars = ends.flatMap(([x, y, low, high]) => [[x, low], [x, real(high) ? high : beyond(panel, y, ys)], [x, null]].map(turn));
        if (bars.length) made.push({ ...own, type: "line", data: bars, showSymbol: false, lineStyle: { ...stroke, type: "solid", width: 1, opacity: 0.75 } });
        const open = ends.filter((point) => !real(point[3]) && real(point[1])).map(([x, y]) => turn([x, beyond(panel, y, ys)]));
        if (open.length) made.push({ ...own, type: "scatter", data: open, symbol: "triangle", symbolSize: 7, symbolRotate: chart.sideways ? -90 : 0 });
        const data = points.map((point) => marker(series, point, turn([point[0], height(point[1])])));
        made.push({ ...own, type: "scatter", data: data.filter((one) => one.value[0] !== null && one.value[1] !== null), symbolSize: series.symbol === "cross" ? 10 : 9 });
        continue;
      }
      const data = points.map(([x, y]) => turn([x, y === "inf" ? null : height(y)]));
      made.push({ ...own, type: "line", data, step: series.shape === "steps" ? "end" : false, showSymbol: series.dots, symbol: "circle", symbolSize: 5, lineStyle: stroke });
      const failed = points.filter((point) => point[1] === "inf").map(([x]) => turn([x, ys[1]]));
      if (failed.length) made.push({ ...own, type: "scatter", data: failed, symbol: "triangle", symbolSize: 7, clip: false });
    }
    return made;
  }

  // where the arrow of an interval without an upper end stops
  const beyond = (panel, y, ys) => (panel.y.scale === "log" ? Math.min(y * (ys[1] / ys[0]) ** 0.08, ys[1]) : Math.min(y + (ys[1] - ys[0]) * 0.08, ys[1]));

  function marker(series, [, y, , , , , hollow], value) {
    const failed = y === "inf";
    return {
      value,
      symbol: failed ? "triangle" : series.symbol === "cross" ? CROSS : "circle",
      itemStyle: { opacity: 1, color: color(hollow && !failed ? "card" : series.color), borderColor: color(series.color), borderWidth: hollow && !failed ? 1.5 : 0 },
    };
  }

  // whether a name has its room to the left of its line
  function stands({ at, name, before }, [low, high], axis, look) {
    const share = axis.scale === "log" ? Math.log(at / low) / Math.log(high / low) : (at - low) / (high - low);
    const room = look.width - look.layout.left - RIGHT, wide = name.length * DIGIT;
    return before ? share * room + look.layout.left - 4 > wide : (1 - share) * room + RIGHT < wide;
  }

  function marks(chart, panel, xs, ys, common, look) {
    const lines = [];
    for (const limit of panel.limits) {
      const across = chart.sideways !== limit.upright;
      const [low, high] = limit.upright ? xs : ys;
      let { at, name } = limit;
      if (!limit.upright && at > high) [at, name] = [high, `${name}: far above`];
      if (at < low || at > high) continue;
      const far = at !== limit.at;
      const label = { show: name !== "", formatter: name, color: color(limit.color), fontFamily: FONT, fontSize: 11, fontWeight: limit.upright ? 600 : 400,
        position: limit.upright ? "end" : far || at > low + (high - low) * 0.85 && panel.y.scale !== "log" ? "insideStartBottom" : "insideStartTop", distance: limit.upright ? 3 : 2 };
      if (limit.upright) {
        const before = stands(limit, xs, chart.x, look);
        Object.assign(label, { align: before ? "right" : "left", offset: [before ? 3 : -3, 0] });
      }
      lines.push({ [across ? "xAxis" : "yAxis"]: at, label, lineStyle: { color: color(limit.color), width: far ? 0 : 1.3, type: limit.dash } });
    }
    const bands = panel.bands.filter(([low, high]) => high >= xs[0] && low <= xs[1]);
    const areas = bands.map(([low, high, shade]) => [
      { [chart.sideways ? "yAxis" : "xAxis"]: Math.max(low, xs[0]), itemStyle: { color: color(shade), opacity: shade === "rule" ? 0.4 : 0.22 } },
      { [chart.sideways ? "yAxis" : "xAxis"]: Math.min(high, xs[1]) },
    ]);
    return { ...common, type: "line", name: "", data: [], z: 1, markLine: { silent: true, symbol: "none", animation: false, data: lines }, markArea: { silent: true, animation: false, data: areas } };
  }

  // look: {width, titled, legend, hidden, range}
  function option(chart, look) {
    const xs = rangeOfX(chart, look), places = look.layout.places, last = chart.panels.length - 1;
    const room = look.width - look.layout.left - RIGHT;
    const grids = [], across = [], up = [], series = [];
    const titles = look.titled ? [{ text: chart.title, left: 8, top: 4, padding: 0, textStyle: { ...axisText("ink"), fontSize: 13, fontWeight: 600 } }] : [];
    chart.panels.forEach((panel, place) => {
      const ys = rangeOfY(panel, xs, look), { title, top, height } = places[place];
      const name = { nameLocation: "middle", nameTextStyle: axisText("muted"), gridIndex: place };
      const below = place === last;
      const [right, rise] = chart.sideways ? [panel.y, chart.x] : [chart.x, panel.y];
      const [rights, rises] = chart.sideways ? [ys, xs] : [xs, ys];
      grids.push({ left: look.layout.left, right: RIGHT, top, height, containLabel: false, outerBoundsMode: "none" });
      const flat = axisOption(right, rights, room, true, { ...name, name: below ? right.title : "", nameGap: TICKS });
      if (!below) flat.axisLabel.show = false;
      across.push(flat);
      const tall = axisOption(rise, rises, height, false, { ...name, name: "" });
      (chart.sideways ? tall : flat).splitLine.show = false;
      if (chart.sideways) Object.assign(tall, { inverse: true, axisLabel: { ...tall.axisLabel, width: look.layout.left - 12, overflow: "truncate" } });
      up.push(tall);
      if (panel.title) titles.push({ text: panel.title, left: 8, top: title + 3, padding: 0, textStyle: { ...axisText("ink"), fontWeight: 600, fontSize: 12 } });
      series.push(...drawnSeries(chart, panel, place, xs, ys, look));
    });
    const names = named(chart);
    const selected = Object.fromEntries([...look.hidden].map((name) => [name, false]));
    const swatch = (one) => ({ name: one.name, icon: one.shape === "points" ? (one.symbol === "cross" ? CROSS : "circle") : "roundRect", itemStyle: { color: color(one.color) } });
    return {
      animation: false, backgroundColor: "transparent", textStyle: { fontFamily: FONT },
      title: titles, grid: grids, xAxis: across, yAxis: up, series,
      legend: { show: look.legend, selected, data: names.map(swatch), left: 4, top: look.titled ? TITLE : 2, padding: [0, 4], itemWidth: 12, itemHeight: 8, itemGap: 12, textStyle: axisText("ink"), selectedMode: false, lineStyle: { width: 0 } },
    };
  }

  const legendRows = (chart, width) => Math.ceil(named(chart).reduce((px, one) => px + 30 + one.name.length * DIGIT, 0) / (width - 20));

  function lookFor(chart, width, more) {
    const look = { width, titled: false, legend: false, legendRows: 1, hidden: new Set(), range: chart.zoom, one: chart.panels.length === 1, ...more };
    look.legendRows = legendRows(chart, width);
    look.layout = layout(chart, look);
    return look;
  }

  // an SVG as text, for print, Markdown, and pages without JavaScript
  function still(chart, width, titled) {
    const look = lookFor(chart, width, { titled, legend: named(chart).length > 1 });
    const made = echarts.init(null, null, { renderer: "svg", ssr: true, width, height: look.layout.height });
    made.setOption(option(chart, look));
    const svg = made.renderToSVGString();
    made.dispose();
    return svg;
  }

  // what stands at `x`: the nearest point of each line, and the nearest one of all levels
  function told(chart, x, hidden) {
    const found = [];
    for (const panel of chart.panels)
      for (const series of shownSeries(panel, { hidden })) {
        const point = nearest(series, x, chart.x.scale);
        if (point && series.name) found.push({ panel, series, point, distance: Math.abs(point[0] - x) });
      }
    const least = Math.min(...found.map((one) => one.distance));
    const rows = found.filter((one) => one.series.shape === "line" || one.series.shape === "steps" || one.distance <= least + 1e-9);
    return { x: rows.length ? rows.find((one) => one.distance === least)?.point[0] ?? x : x, rows: rows.map((one) => row({ ...one, shared: rows.some((other) => other !== one && other.series.name === one.series.name && other.panel !== one.panel) })) };
  }

  function nearest(series, x, scale) {
    if (series.shape === "steps") return series.points.filter((point) => point[0] <= x).pop() || null;
    let best = null;
    for (const point of series.points) if (point[1] !== null && (!best || Math.abs(point[0] - x) < Math.abs(best[0] - x))) best = point;
    return best;
  }

  function row({ panel, series, point: [, y, low, high, n, note], shared }) {
    const unit = panel.y.unit ? ` ${panel.y.unit}` : "";
    let text = `${number(y)}${y === "inf" ? "" : unit}`;
    if (series.shape === "points" && real(low)) text += real(high) ? ` (95%: ${number(low)} to ${number(high)})` : ` (at least ${number(low)})`;
    if (n) text += `, n = ${number(n)}`;
    if (note) text += `, ${note}`;
    const name = shared ? `${panel.title.split(" ")[0]} ${series.name}` : series.name;
    return { name, color: series.color, text };
  }

  function placeText(chart, x) {
    const axis = chart.x;
    if (axis.scale === "names") return axis.names[Math.round(x)] ?? "";
    if (axis.scale === "time") return clock(x);
    const value = number(axis.one ? Math.round(x) : x);
    return axis.one ? `${value} ${value === "1" ? axis.one : axis.title}` : `${value}${axis.unit ? ` ${axis.unit}` : ""}`;
  }

  function sentence(chart, x, hidden) {
    const seen = told(chart, x, hidden);
    return seen.rows.length ? `${placeText(chart, seen.x)}: ${seen.rows.map((one) => `${one.name} ${one.text}`).join("; ")}` : "no figures yet";
  }

  function element(tag, attributes = {}, ...children) {
    const made = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
    made.append(...children);
    return made;
  }

  // A figure that answers: pointer and arrow keys read values, the legend hides series, + and - zoom.
  class Live {
    constructor(figure, chart) {
      this.chart = chart;
      this.hidden = new Set();
      this.range = chart.zoom;
      this.place = null;
      this.title = element("b", {}, chart.title);
      this.legend = element("span", { class: "legend" });
      this.zooms = element("span", { class: "zooms" });
      this.out = element("output", {});
      this.stage = element("div", { class: "stage", tabindex: "0", role: "img" });
      figure.append(element("figcaption", {}, this.title, this.legend, this.zooms), this.stage, this.out);
      figure.classList.add("drawn");
      this.plot = echarts.init(this.stage, null, { renderer: "svg", width: 300, height: 200 });
      this.controls();
      this.listen();
      new ResizeObserver(() => this.draw()).observe(this.stage);
    }

    update(chart) {
      const names = (one) => named(one).map((series) => series.name).join("\n");
      const same = names(chart) === names(this.chart) && String(chart.zoom) === String(this.chart.zoom);
      if (String(chart.zoom) !== String(this.chart.zoom)) this.range = chart.zoom;
      this.chart = chart;
      if (!same) this.controls();
      this.draw();
    }

    controls() {
      const series = named(this.chart);
      this.title.textContent = this.chart.title;
      this.legend.replaceChildren(...(series.length < 2 ? [] : series.map((one) => this.key(one))));
      const whole = element("button", { type: "button" }, "All");
      const near = element("button", { type: "button" }, this.chart.zoom_name);
      whole.addEventListener("click", () => this.zoom(null));
      near.addEventListener("click", () => this.zoom(this.chart.zoom));
      this.zooms.replaceChildren(...(this.chart.zoom ? [near, whole] : []));
      this.showZoom = () => {
        near.setAttribute("aria-pressed", String(String(this.range) === String(this.chart.zoom)));
        whole.setAttribute("aria-pressed", String(!this.range));
      };
    }

    key(series) {
      const button = element("button", { type: "button", "aria-pressed": String(!this.hidden.has(series.name)), title: "Show or hide" });
      const kind = series.shape === "points" ? series.symbol : series.shape === "spans" ? "span" : series.dash;
      button.append(element("i", { class: `${kind} ${series.color}` }), series.name);
      button.addEventListener("click", () => {
        const hide = !this.hidden.delete(series.name);
        if (hide) this.hidden.add(series.name);
        button.setAttribute("aria-pressed", String(!hide));
        this.draw();
      });
      return button;
    }

    zoom(range) {
      this.range = range;
      this.draw();
    }

    // by a factor around the place that is read, else the middle
    scale(factor) {
      const log = this.chart.x.scale === "log", into = log ? Math.log : Number, back = log ? Math.exp : Number;
      const whole = rangeOfX(this.chart, { range: null }).map(into), now = (this.range || rangeOfX(this.chart, { range: null })).map(into);
      const middle = this.place === null ? (now[0] + now[1]) / 2 : into(this.place);
      const ends = [Math.max(middle + (now[0] - middle) * factor, whole[0]), Math.min(middle + (now[1] - middle) * factor, whole[1])];
      this.zoom(ends[0] <= whole[0] && ends[1] >= whole[1] ? null : ends.map(back));
    }

    draw() {
      const width = this.stage.clientWidth;
      if (!width) return;
      this.look = lookFor(this.chart, width, { hidden: this.hidden, range: this.range });
      this.plot.resize({ width, height: this.look.layout.height });
      this.plot.setOption(option(this.chart, this.look), true);
      this.showZoom();
      this.read(this.place);
    }

    xs() {
      const [low, high] = rangeOfX(this.chart, { range: this.range });
      const all = this.chart.panels.flatMap((panel) => shownSeries(panel, this).flatMap((series) => series.points.map((point) => point[0])));
      return [...new Set(all)].filter((x) => x >= low && x <= high).sort((a, b) => a - b);
    }

    // place: a value of x; null: none
    read(place) {
      this.place = place;
      const words = place === null ? "" : sentence(this.chart, place, this.hidden);
      this.out.textContent = words;
      this.stage.setAttribute("aria-label", `${this.chart.title}. ${words || this.chart.note}`);
      this.point(place);
    }

    point(place) {
      this.tip ??= this.stage.appendChild(element("div", { class: "tip", hidden: "" }));
      this.hair ??= this.stage.appendChild(element("div", { class: "hair", hidden: "" }));
      this.tip.hidden = this.hair.hidden = place === null;
      if (place === null) return;
      const seen = told(this.chart, place, this.hidden), { places, left, height } = this.look.layout;
      const axis = this.chart.sideways ? { yAxisIndex: 0 } : { xAxisIndex: 0 };
      const px = this.plot.convertToPixel(axis, seen.x), end = places[places.length - 1];
      this.tip.replaceChildren(element("b", {}, placeText(this.chart, seen.x)),
        ...seen.rows.map((one) => element("span", {}, element("i", { class: `circle ${one.color}` }), `${one.name} `, element("strong", {}, one.text))));
      const side = this.chart.sideways ? { left, top: px, width: this.look.width - left - RIGHT, height: 0 } : { left: px, top: places[0].top, width: 0, height: end.top + end.height - places[0].top };
      for (const [name, value] of Object.entries(side)) this.hair.style[name] = `${value}px`;
      const wide = this.tip.offsetWidth, at = this.chart.sideways ? this.look.width - wide - RIGHT : px + 14 + wide > this.look.width ? px - 14 - wide : px + 14;
      this.tip.style.left = `${Math.max(at, 0)}px`;
      this.tip.style.top = `${this.chart.sideways ? Math.min(px + 10, height - this.tip.offsetHeight) : places[0].top + 4}px`;
    }

    listen() {
      const pointed = (event) => {
        const box = this.stage.getBoundingClientRect();
        const axis = this.chart.sideways ? { yAxisIndex: 0 } : { xAxisIndex: 0 };
        const x = this.plot.convertFromPixel(axis, this.chart.sideways ? event.clientY - box.top : event.clientX - box.left);
        const all = this.xs();
        if (!real(x) || !all.length) return;
        this.read(all.reduce((best, one) => (Math.abs(one - x) < Math.abs(best - x) ? one : best)));
      };
      this.stage.addEventListener("pointermove", pointed);
      this.stage.addEventListener("pointerdown", pointed); // a finger
      this.stage.addEventListener("pointerleave", () => this.read(null));
      this.stage.addEventListener("blur", () => this.read(null));
      this.stage.addEventListener("keydown", (event) => this.press(event));
      this.stage.addEventListener("wheel", (event) => {
        if (!event.ctrlKey) return; // else the page scrolls
        event.preventDefault();
        this.scale(event.deltaY > 0 ? 1.25 : 0.8);
      }, { passive: false });
    }

    press(event) {
      const all = this.xs(), here = this.place === null ? all.length : all.findIndex((x) => x >= this.place - 1e-9);
      const to = { ArrowLeft: here - 1, ArrowUp: here - 1, ArrowRight: here + 1, ArrowDown: here + 1, Home: 0, End: all.length - 1 }[event.key];
      const zooms = { "+": () => this.scale(0.7), "=": () => this.scale(0.7), "-": () => this.scale(1.4), 0: () => this.zoom(this.chart.zoom), Escape: () => this.zoom(null) };
      if (event.ctrlKey || event.metaKey || event.altKey) return;
      if (to !== undefined && all.length) this.read(all[Math.max(0, Math.min(to, all.length - 1))]);
      else if (zooms[event.key]) zooms[event.key]();
      else return;
      event.preventDefault();
    }
  }

  // the live page's history -> the points of every series with a column; against levels, of the level held now alone
  function filled(chart, columns, points, level) {
    const at = Object.fromEntries(columns.map((name, place) => [name, place]));
    const inTime = chart.x.scale === "time", last = points[points.length - 1];
    const of = (series) => {
      const place = at[series.column];
      if (inTime) return points.map((point) => [point[at.t_s], point[place]]);
      return last && level !== undefined && last[place] !== null ? [[level, last[place]]] : [];
    };
    const fill = (series) => {
      if (series.column) return { ...series, points: of(series) };
      const end = series.points[series.points.length - 1];
      if (series.shape !== "steps" || !end || !last) return series;
      return { ...series, points: [...series.points, [Math.max(last[at.t_s], end[0]), end[1]]] }; // it lasts
    };
    const known = (panel) => !panel.series.every((series) => series.column && series.points.every((point) => point[1] === null));
    const panels = chart.panels.map((panel) => ({ ...panel, series: panel.series.map(fill) }));
    return { ...chart, panels: inTime ? panels.filter(known) : panels };
  }

  const mount = (figure, chart) => new Live(figure, chart);

  // the figures of a report: each has its chart beside its still picture
  function mountAll() {
    for (const figure of document.querySelectorAll("figure.chart")) {
      const data = figure.querySelector("script");
      if (data) mount(figure, JSON.parse(data.textContent));
    }
  }

  return { still, mount, mountAll, filled, sentence, number, clock };
})();
