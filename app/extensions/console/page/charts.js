"use strict";
// Figures: tiles with their last minute, curves over time, distributions against an SLO.

const SPARK_MS = 60000;

// Of each tile: its value, a line below it, a curve of its last minute; sum writes the mean and the peak of a whole simulation.
const TILES = [
	{
		name: "Running",
		value: (p) => `${whole(p.figures.running)}`,
		of: (m) => `of ${whole(m.server.places)} slots`,
		curve: (p) => p.figures.running,
		share: (p, m) => p.figures.running / m.server.places,
		sum: short,
	},
	{
		name: "Waiting",
		value: (p) => whole(p.figures.waiting),
		of: () => "in the queue",
		curve: (p) => p.figures.waiting,
		sum: short,
	},
	{
		name: "KV cache",
		value: (p) => `${(p.figures.cache_usage * 100).toFixed(1)} %`,
		of: (m) => (m.server.blocks ? `of ${whole(m.server.blocks)} blocks` : "not simulated"),
		curve: (p) => p.figures.cache_usage,
		share: (p) => p.figures.cache_usage,
		sum: (value) => `${(value * 100).toFixed(0)} %`,
	},
	{
		name: "Output",
		value: (p, r) => `${short(r.generated)}`,
		of: () => "tokens per second",
		curve: (p) => p.rates.generated,
		sum: short,
	},
	{
		name: "Requests",
		value: (p, r) => `${r.ended.toFixed(r.ended < 100 ? 1 : 0)}/s`,
		of: (m) => `${short(ended(m.figures))} ended`,
		curve: (p) => p.rates.ended,
		sum: (value) => value.toFixed(value < 100 ? 1 : 0),
	},
	{
		name: "First token",
		value: (p, r, l) => ms(l.ttft.p50),
		of: (m, l) => `p99 ${ms(l.ttft.p99)}`,
		curve: (p) => p.rates.ttft,
		latency: "ttft",
		sum: ms,
	},
	{
		name: "Between tokens",
		value: (p, r, l) => ms(l.itl.p50),
		of: (m, l) => `p99 ${ms(l.itl.p99)}`,
		curve: (p) => p.rates.itl,
		latency: "itl",
		sum: ms,
	},
	{
		name: "Prefix hits",
		value: (p) =>
			p.figures.queries ? `${((p.figures.hits / p.figures.queries) * 100).toFixed(0)} %` : "–",
		of: () => "of prompt tokens",
		curve: (p) => p.figures.hits / Math.max(1, p.figures.queries),
	},
	{
		name: "Failed",
		value: (p) => whole(failures(p.figures)),
		of: (m) =>
			[...m.failures]
				.sort((a, b) => b[1] - a[1])
				.map(([reason, count]) => `${reason} × ${short(count)}`)
				.join(", ") || "rejected or failed",
		curve: (p) => p.rates.refused + p.rates.abort + p.rates.error,
	},
	{
		name: "Preemptions",
		value: (p) => whole(p.figures.preemptions),
		of: () => "since the start",
		curve: (p) => p.rates.preemptions,
	},
];

function failures(figures) {
	return figures.refused + figures.abort + figures.error;
}

function ended(figures) {
	return figures.stop + figures.length + figures.abort + figures.error + figures.repetition;
}

class Tiles {
	constructor() {
		this.parts = TILES.map((tile) => {
			const value = el("strong"),
				of = el("small"),
				canvas = el("canvas", { class: "spark" });
			return {
				tile,
				value,
				of,
				canvas,
				place: el("div", { class: "tile" }, el("span", {}, tile.name), value, of, canvas),
			};
		});
		$("tiles").append(...this.parts.map((part) => part.place));
	}

	render(model, points, latency, summary = {}) {
		const point = points[points.length - 1],
			recent = points.slice(-8),
			mean = (name) =>
				recent.reduce((sum, p) => sum + p.rates[name], 0) / Math.max(1, recent.length);
		const rates = { generated: mean("generated"), ended: mean("ended") };
		for (const { tile, value, of, canvas } of this.parts) {
			value.textContent = tile.value(point, rates, latency);
			const line = tile.of(model, latency),
				run = summary[tile.name];
			of.textContent = run ? run.join("\n") : line;
			of.title = run ? `${line}; whole run: ${run.join(", ")}` : line;
			this.spark(
				canvas,
				points.filter((p) => p.at > model.at - SPARK_MS),
				tile.curve,
				model.at,
			);
		}
	}

	spark(canvas, points, curve, now) {
		points = points.filter((p) => curve(p) !== null);
		const [pen, width, height] = surface(canvas, 22),
			values = points.map(curve),
			most = Math.max(...values, 1e-9);
		const span = points.length ? Math.max(5000, now - points[0].at) : SPARK_MS;
		const x = (at) => width * (1 - (now - at) / span),
			y = (value) => height - 2 - (height - 5) * (value / most);
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

function cacheUse(point) {
	return point.figures.cache_usage === null ? null : point.figures.cache_usage * 100;
}

// Of each curve: name, colour, value of a point; a third place: a scale of its own, at the right.
const CURVES = [
	{
		title: "sequences",
		series: [
			["running", "decode", (p) => p.figures.running],
			["waiting", "preempted", (p) => p.figures.waiting],
		],
	},
	{
		title: "tokens per second",
		series: [
			["output", "decode", (p) => p.rates.generated],
			["prompts", "prefill", (p) => p.rates.prompt, "right"],
		],
	},
	{
		title: "failed requests per second",
		series: [
			["refused", "failed", (p) => p.rates.refused],
			["left", "preempted", (p) => p.rates.abort],
			["errors", "accent", (p) => p.rates.error],
		],
	},
	{ title: "% of the KV cache", series: [["used", "transfer", cacheUse]] },
];

class Chart {
	// Curves over the time of an axis. A point has its moment, `at`, in milliseconds.
	constructor(axis, { title, series }) {
		Object.assign(this, { axis, series, points: [] });
		this.canvas = el("canvas", { class: "plain" });
		this.values = series.map(() => el("b"));
		this.spots = series.map(() => el("span", { class: "spot" }));
		const time = el("div", {}, this.canvas);
		this.place = el(
			"div",
			{ class: "chart" },
			el(
				"div",
				{ class: "legend" },
				el("h3", {}, title),
				...series.map(([label], k) =>
					el("span", { class: "item" }, this.spots[k], label, this.values[k]),
				),
			),
			time,
		);
		$("charts").append(this.place);
		axis.attach(time);
	}

	render(points) {
		const { axis, series } = this,
			[pen, width, height] = surface(this.canvas, 92),
			low = height - 16,
			{ from, to } = axis.range;
		this.points = points.slice(Math.max(0, after(points, from) - 1), after(points, to) + 1);
		axis.grid(pen, width, 4, low, low + 9);
		for (const side of [undefined, "right"])
			this.side(
				pen,
				series.filter((it) => it[3] === side),
				side,
				width,
				low,
			);
		this.point(axis.cursor);
	}

	side(pen, series, side, width, low) {
		if (!series.length) return;
		const { axis } = this,
			most = Math.max(1, ...series.flatMap(([, , value]) => this.points.map(value))) * 1.08,
			y = (value) => low - ((low - 6) * value) / most;
		const ten = 10 ** Math.floor(Math.log10(most / 2)),
			step = [5, 2, 1].find((k) => k * ten <= most / 2) * ten;
		pen.textAlign = side ? "left" : "right";
		for (let value = 0; value <= most; value += step) {
			pen.fillStyle = side ? COLOURS[series[0][1]] : COLOURS.muted;
			pen.fillText(short(value), side ? width - RIGHT + 6 : axis.left - 8, y(value));
			if (!side) {
				pen.fillStyle = COLOURS.line;
				pen.fillRect(axis.left, Math.round(y(value)), width - axis.left - RIGHT, 1);
			}
		}
		pen.save();
		pen.beginPath();
		pen.rect(axis.left, 0, width - axis.left - RIGHT, low + 2);
		pen.clip();
		pen.lineWidth = 1.5;
		for (const [, colour, value] of series) {
			pen.beginPath();
			for (const p of this.points)
				if (value(p) !== null) pen.lineTo(axis.x(p.at, width), y(value(p)));
			pen.strokeStyle = COLOURS[colour];
			pen.stroke();
		}
		pen.restore();
	}

	point(at) {
		// The values at the cursor, or the last ones, in the legend.
		const { points } = this,
			p =
				points[
					at === at && at !== undefined
						? Math.min(points.length - 1, Math.max(0, after(points, at) - 1))
						: points.length - 1
				];
		this.series.forEach(([, colour, value], k) => {
			this.spots[k].style.background = COLOURS[colour];
			this.values[k].textContent = p && value(p) !== null ? short(value(p)) : "";
		});
	}
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
		const seconds = Number($("window").value) || Infinity,
			waits = model.waits(),
			told = {};
		for (const [name, more] of [
			["ttft", waits],
			["itl", []],
		]) {
			this.tallies[name].move(samples, model.at - seconds * 1000, model.at);
			const spread = new Spread(this.tallies[name].counts, more, model.server.requests_per_bar),
				limit = Number($(`slo-${name}`).value) || 1;
			const bounds = model.bounds[name].map((bound) => bound * 1000);
			told[name] = {
				counts: spread.buckets(bounds),
				bounds,
				limit,
				total: spread.total,
				within: spread.within(limit),
				waiting: more.length,
				p50: spread.quantile(0.5),
				p90: spread.quantile(0.9),
				p99: spread.quantile(0.99),
			};
		}
		return told;
	}

	render(latency) {
		for (const name of ["ttft", "itl"]) this.spread(name, latency[name]);
	}

	spread(name, { counts, bounds, limit, total, within, waiting, p50, p90, p99 }) {
		const canvas = $(name),
			[pen, width, height] = surface(canvas, 86),
			low = height - 16,
			most = Math.max(...counts, 1);
		let first = counts.findIndex((count) => count),
			last = counts.length - 1;
		while (last > 0 && !counts[last]) last--;
		first = Math.max(
			0,
			Math.min(
				first < 0 ? 0 : first,
				bounds.findIndex((bound) => bound >= limit),
			) - 1,
		);
		last = Math.min(
			counts.length - 1,
			Math.max(last, first + 7, bounds.findIndex((bound) => bound >= limit) + 1),
		);
		const wide = width / (last - first + 1);
		pen.textAlign = "center";
		for (let k = first; k <= last; k++) {
			const left = (k - first) * wide,
				bound = k < bounds.length ? bounds[k] : Infinity,
				high = counts[k] ? Math.max(2, ((low - 14) * counts[k]) / most) : 0;
			pen.fillStyle =
				bound <= limit
					? COLOURS.decode
					: (k ? bounds[k - 1] : 0) >= limit
						? COLOURS.failed
						: COLOURS.preempted;
			pen.fillRect(left + 1.5, low - high, wide - 3, high);
			pen.fillStyle = COLOURS.muted;
			if (counts[k] && wide > 34) pen.fillText(short(counts[k]), left + wide / 2, low - high - 7);
			if (wide > 36 || (k - first) % 2 === 0)
				pen.fillText(
					bound === Infinity ? "∞" : bound >= 1000 ? `${bound / 1000}s` : `${bound}`,
					Math.min(width - 12, left + wide - 2),
					low + 9,
				);
		}
		pen.strokeStyle = COLOURS.line;
		pen.beginPath();
		pen.moveTo(0, low + 0.5);
		pen.lineTo(width, low + 0.5);
		pen.stroke();
		const line = total
			? `p50 ${ms(p50)}, p90 ${ms(p90)}, p99 ${ms(p99)}; ${(within * 100).toFixed(within > 0.995 && within < 1 ? 2 : 1)} % of ${whole(total)} within ${limit} ms${waiting ? `; ${whole(waiting)} still waiting` : ""}`
			: "no requests in this time";
		$(`${name}-line`).textContent = line;
		$(`${name}-line`).classList.toggle("bad", total > 0 && within < 0.99);
		canvas.setAttribute("aria-label", line);
	}
}
