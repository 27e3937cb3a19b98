"use strict";
// Figures: tiles with their last minute, curves over time (uPlot), distributions against an SLO.

const SPARK_MS = 60000;

const TILES = [
  { name: "Running", value: (p) => `${whole(p.figures.running)}`, of: (m) => `of ${whole(m.server.places)} places`, curve: (p) => p.figures.running, share: (p, m) => p.figures.running / m.server.places },
  { name: "Waiting", value: (p) => whole(p.figures.waiting), of: () => "in the queue", curve: (p) => p.figures.waiting },
  { name: "KV cache", value: (p) => `${(p.figures.cache_usage * 100).toFixed(1)} %`, of: (m) => (m.server.blocks ? `of ${whole(m.server.blocks)} blocks` : "none is played"), curve: (p) => p.figures.cache_usage, share: (p) => p.figures.cache_usage },
  { name: "Output", value: (p, r) => `${short(r.generated)}`, of: () => "tokens a second", curve: (p) => p.rates.generated },
  { name: "Requests", value: (p, r) => `${r.ended.toFixed(r.ended < 100 ? 1 : 0)}/s`, of: (m) => `${short(ended(m.figures))} ended`, curve: (p) => p.rates.ended },
  { name: "First token", value: (p, r, l) => ms(l.ttft.p50), of: (m, l) => `p99 ${ms(l.ttft.p99)}`, curve: (p) => p.rates.ttft },
  { name: "Between tokens", value: (p, r, l) => ms(l.itl.p50), of: (m, l) => `p99 ${ms(l.itl.p99)}`, curve: (p) => p.rates.itl },
  { name: "Prefix hits", value: (p) => (p.figures.queries ? `${(p.figures.hits / p.figures.queries * 100).toFixed(0)} %` : "–"), of: () => "of prompt tokens", curve: (p) => p.figures.hits / Math.max(1, p.figures.queries) },
  { name: "Failed", value: (p) => whole(failures(p.figures)), of: (m) => [...m.failures].sort((a, b) => b[1] - a[1]).map(([reason, count]) => `${reason} × ${short(count)}`).join(", ") || "refused or failed", curve: (p) => p.rates.refused + p.rates.abort + p.rates.error },
  { name: "Preemptions", value: (p) => whole(p.figures.preemptions), of: () => "since the start", curve: (p) => p.rates.preemptions },
];

function failures(figures) { return figures.refused + figures.abort + figures.error; }

function ended(figures) { return figures.stop + figures.length + figures.abort + figures.error + figures.repetition; }

class Tiles {
  constructor() {
    this.parts = TILES.map((tile) => {
      const value = el("strong"), of = el("small"), canvas = el("canvas", { class: "spark" });
      return { tile, value, of, canvas, place: el("div", { class: "tile" }, el("span", {}, tile.name), value, of, canvas) };
    });
    $("tiles").append(...this.parts.map((part) => part.place));
  }

  render(model, points, latency) {
    const point = points[points.length - 1], recent = points.slice(-8), mean = (name) => recent.reduce((sum, p) => sum + p.rates[name], 0) / Math.max(1, recent.length);
    const rates = { generated: mean("generated"), ended: mean("ended") };
    for (const { tile, value, of, canvas } of this.parts) {
      value.textContent = tile.value(point, rates, latency);
      of.textContent = of.title = tile.of(model, latency);
      this.spark(canvas, points.filter((p) => p.at > model.at - SPARK_MS), tile.curve, model.at);
    }
  }

  spark(canvas, points, curve, now) {
    const [pen, width, height] = surface(canvas, 22), values = points.map(curve), most = Math.max(...values, 1e-9);
    const span = points.length ? Math.max(5000, now - points[0].at) : SPARK_MS;
    const x = (at) => width * (1 - (now - at) / span), y = (value) => height - 2 - (height - 5) * (value / most);
    if (!points.length) return;
    pen.beginPath();
    points.forEach((p, k) => pen.lineTo(x(p.at), y(values[k])));
    pen.strokeStyle = COLOURS.accent;
    pen.lineWidth = 1.5;
    pen.stroke();
    pen.lineTo(x(points[points.length - 1].at), height);
    pen.lineTo(x(points[0].at), height);
    pen.globalAlpha = 0.14;
    pen.fillStyle = COLOURS.accent;
    pen.fill();
    pen.globalAlpha = 1;
  }
}

const CURVES = [
  { title: "sequences", series: [["running", "decode", (p) => p.figures.running], ["waiting", "preempted", (p) => p.figures.waiting]] },
  { title: "tokens a second", series: [["output", "decode", (p) => p.rates.generated], ["prompts", "prefill", (p) => p.rates.prompt, "right"]] },
  { title: "failed requests a second", series: [["refused", "failed", (p) => p.rates.refused], ["left", "preempted", (p) => p.rates.abort], ["errors", "accent", (p) => p.rates.error]] },
  { title: "% of the KV cache", series: [["used", "transfer", (p) => p.figures.cache_usage * 100]] },
];

function axis() { return { stroke: () => COLOURS.muted, grid: { stroke: () => COLOURS.line, width: 1 }, ticks: { show: false }, font: "11px system-ui, sans-serif" }; }

class Curves {
  constructor() { this.plots = null; }

  make() {
    const width = this.width(), range = (u, low, high) => [0, Math.max(1, high * 1.1)], values = (u, ticks) => ticks.map(short);
    this.plots = CURVES.map(({ title, series }) => {
      const place = el("div", { class: "chart" }, el("h3", {}, title));
      $("charts").append(place);
      return new uPlot({
        width, height: 120, cursor: { sync: { key: "time" }, drag: { x: false, y: false }, points: { size: 5 } }, legend: { live: true },
        scales: { x: { time: false }, y: { range }, right: { range } },
        axes: [{ ...axis(), size: 22, values: (u, ticks) => ticks.map((tick) => `${tick} s`) }, { ...axis(), size: 46, values },
          ...series.filter(([, , , scale]) => scale).map(([, colour, , scale]) => ({ ...axis(), scale, side: 1, size: 46, values, grid: { show: false }, stroke: () => COLOURS[colour] }))],
        series: [{ label: "s", value: (u, v) => (v === null ? "" : v.toFixed(1)) }, ...series.map(([label, colour, , scale = "y"]) => ({ label, scale, stroke: () => COLOURS[colour], width: 1.5, points: { show: false }, value: (u, v, k) => short(v === null || v === undefined ? u.data[k][u.data[k].length - 1] || 0 : v) }))],
      }, [[], ...series.map(() => [])], place);
    });
  }

  width() { return Math.max(200, $("charts").clientWidth); }

  render(model, points) {
    if (!this.plots) this.make();
    const times = points.map((p) => Math.round((p.at - model.at) / 100) / 10);
    this.plots.forEach((plot, k) => {
      if (plot.width !== this.width()) plot.setSize({ width: this.width(), height: 120 });
      plot.setData([times, ...CURVES[k].series.map(([, , value]) => points.map(value))]);
    });
  }

  recolour() { if (this.plots) this.plots.forEach((plot) => plot.redraw(false, true)); }
}

class Spreads {
  constructor() {
    this.tallies = { ttft: new Tally("ttft"), itl: new Tally("itl") };
    for (const id of ["slo-ttft", "slo-itl"]) {
      $(id).value = sessionStorage.getItem(id) || $(id).value;
      $(id).addEventListener("input", () => sessionStorage.setItem(id, $(id).value));
    }
  }

  latency(model, samples) {
    // Figures of the chosen time. Who still waits for a first token counts with the time until now.
    const seconds = Number($("window").value) || Infinity, waits = model.waits(), told = {};
    for (const [name, more] of [["ttft", waits], ["itl", []]]) {
      this.tallies[name].move(samples, model.at - seconds * 1000, model.at);
      const spread = new Spread(this.tallies[name].counts, more, model.server.requests_per_bar), limit = Number($(`slo-${name}`).value) || 1;
      const bounds = model.bounds[name].map((bound) => bound * 1000);
      told[name] = {
        counts: spread.buckets(bounds), bounds, limit, total: spread.total, within: spread.within(limit), waiting: more.length,
        p50: spread.quantile(0.5), p90: spread.quantile(0.9), p99: spread.quantile(0.99),
      };
    }
    return told;
  }

  render(latency) {
    for (const name of ["ttft", "itl"]) this.spread(name, latency[name]);
  }

  spread(name, { counts, bounds, limit, total, within, waiting, p50, p90, p99 }) {
    const canvas = $(name), [pen, width, height] = surface(canvas, 86), low = height - 16, most = Math.max(...counts, 1);
    let first = counts.findIndex((count) => count), last = counts.length - 1;
    while (last > 0 && !counts[last]) last--;
    first = Math.max(0, Math.min(first < 0 ? 0 : first, bounds.findIndex((bound) => bound >= limit)) - 1);
    last = Math.min(counts.length - 1, Math.max(last, first + 7, bounds.findIndex((bound) => bound >= limit) + 1));
    const wide = width / (last - first + 1);
    pen.textAlign = "center";
    for (let k = first; k <= last; k++) {
      const left = (k - first) * wide, bound = k < bounds.length ? bounds[k] : Infinity, high = counts[k] ? Math.max(2, (low - 14) * counts[k] / most) : 0;
      pen.fillStyle = bound <= limit ? COLOURS.decode : (k ? bounds[k - 1] : 0) >= limit ? COLOURS.failed : COLOURS.preempted;
      pen.fillRect(left + 1.5, low - high, wide - 3, high);
      pen.fillStyle = COLOURS.muted;
      if (counts[k] && wide > 34) pen.fillText(short(counts[k]), left + wide / 2, low - high - 7);
      if (wide > 36 || (k - first) % 2 === 0) pen.fillText(bound === Infinity ? "∞" : bound >= 1000 ? `${bound / 1000}s` : `${bound}`, Math.min(width - 12, left + wide - 2), low + 9);
    }
    pen.strokeStyle = COLOURS.line;
    pen.beginPath();
    pen.moveTo(0, low + 0.5);
    pen.lineTo(width, low + 0.5);
    pen.stroke();
    const line = total ? `p50 ${ms(p50)}, p90 ${ms(p90)}, p99 ${ms(p99)}; ${(within * 100).toFixed(within > 0.995 && within < 1 ? 2 : 1)} % of ${whole(total)} within ${limit} ms${waiting ? `; ${whole(waiting)} still without one` : ""}` : "nothing in this time";
    $(`${name}-line`).textContent = line;
    $(`${name}-line`).classList.toggle("bad", total > 0 && within < 0.99);
    canvas.setAttribute("aria-label", line);
  }
}
