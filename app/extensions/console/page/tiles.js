"use strict";
// Tiles: a figure each, with its last minute. Rates are means of five seconds.

const SPARK_MS = 60000;

// Of each tile: its value, a line below it, a curve of its last minute; sum writes the mean and the peak of a whole simulation.
const TILES = [
	{
		name: "Running",
		value: (p) => whole(p.figures.running),
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
		value: (p) => short(p.mean.generated),
		of: () => "tokens/s",
		curve: (p) => p.rates.generated,
		spark: (p) => p.mean.generated,
		sum: short,
	},
	{
		name: "Requests",
		value: (p) => `${p.mean.ended.toFixed(p.mean.ended < 100 ? 1 : 0)}/s`,
		of: (m) => `${short(ended(m.figures))} ended`,
		curve: (p) => p.rates.ended,
		spark: (p) => p.mean.ended,
		sum: (value) => value.toFixed(value < 100 ? 1 : 0),
	},
	{
		name: "First token",
		value: (p, l) => ms(l.ttft.p50),
		of: (m, l) => `p99 ${ms(l.ttft.p99)}`,
		curve: (p) => p.rates.ttft,
		latency: "ttft",
		sum: ms,
	},
	{
		name: "Between tokens",
		value: (p, l) => ms(l.itl.p50),
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
	return FINISHES.reduce((sum, name) => sum + figures[name], 0);
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
				place: box("tile", span("", tile.name), value, of, canvas),
			};
		});
		$("tiles").append(...this.parts.map((part) => part.place));
	}

	render(model, points, latency, summary = {}) {
		const point = points[points.length - 1],
			recent = points.filter((p) => p.at > model.at - SPARK_MS);
		for (const { tile, value, of, canvas } of this.parts) {
			value.textContent = tile.value(point, latency);
			const line = tile.of(model, latency),
				run = summary[tile.name];
			of.textContent = run ? run.join("\n") : line;
			of.title = run ? `${line}; whole run: ${run.join(", ")}` : line;
			this.spark(canvas, recent, tile.spark || tile.curve, model.at);
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
