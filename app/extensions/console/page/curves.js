"use strict";
// Curves over time.

function cacheUse(point) {
	return point.figures.cache_usage === null ? null : point.figures.cache_usage * 100;
}

// Of each series: name, colour, value of a point; a fourth place: the second axis, at the right.
const CURVES = [
	{
		title: "Sequences",
		unit: "sequences",
		series: [
			["running", "decode", (p) => p.figures.running],
			["waiting", "preempted", (p) => p.figures.waiting],
		],
	},
	{
		title: "Throughput",
		unit: "tokens/s",
		right: "prompt tokens/s",
		series: [
			["output tokens", "decode", (p) => p.rates.generated],
			["prompt tokens", "prefill", (p) => p.rates.prompt, true],
		],
	},
	{
		title: "Finish reasons, mean of 5 s",
		unit: "per s",
		series: [
			["stop", "decode", (p) => p.mean.stop],
			["length", "prefill", (p) => p.mean.length],
			["repetition", "transfer", (p) => p.mean.repetition],
			["left", "preempted", (p) => p.mean.abort],
			["error", "accent", (p) => p.mean.error],
			["rejected", "failed", (p) => p.mean.refused],
		],
	},
	{
		title: "Between tokens",
		unit: "ms",
		series: [
			["longest", "preempted", (p) => p.rates.longest],
			["median of 3 s", "decode", (p) => p.rates.itl],
		],
	},
	{ title: "KV cache", unit: "% used", series: [["used", "transfer", cacheUse]] },
];

class Chart {
	// Curves over the time of an axis. A point has its moment, `at`, in milliseconds.
	constructor(axis, { title, unit, right, series }) {
		Object.assign(this, { axis, title, unit, right, series, points: [] });
		this.canvas = el("canvas", { class: "plain" });
		this.values = series.map(() => el("b"));
		this.spots = series.map(() => span("spot"));
		const time = box("", this.canvas);
		this.items = series.map(([label], k) => span("item", this.spots[k], label, this.values[k]));
		this.gap = span("item", "dashed: no values");
		const head = box("legend", el("h3", {}, title), this.gap, ...this.items);
		this.place = box("chart", head, time);
		$("charts").append(this.place);
		axis.attach(time);
	}

	render(points) {
		const { axis, series } = this,
			[pen, width, height] = surface(this.canvas, 104),
			low = height - 16,
			{ from, to } = axis.range;
		this.points = points.slice(Math.max(0, after(points, from) - 1), after(points, to) + 1);
		axis.grid(pen, width, 16, low, low + 9);
		this.gap.hidden = true;
		for (const side of [false, true])
			this.side(
				pen,
				series.filter((it) => !!it[3] === side),
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
			y = (value) => low - ((low - 18) * value) / most;
		const place = side ? width - RIGHT + 6 : axis.left - 8,
			ink = side ? COLOURS[series[0][1]] : COLOURS.muted;
		pen.textAlign = "right";
		pen.fillStyle = ink;
		pen.fillText(side ? this.right : this.unit, side ? width - 2 : place, 6);
		if (side) pen.textAlign = "left";
		for (const value of ticksTo(most, niceBelow(most / 2))) {
			pen.fillStyle = ink;
			pen.fillText(short(value), place, y(value));
			if (side) continue;
			pen.fillStyle = COLOURS.line;
			pen.fillRect(axis.left, Math.round(y(value)), width - axis.left - RIGHT, 1);
		}
		pen.save();
		pen.beginPath();
		pen.rect(axis.left, 0, width - axis.left - RIGHT, low + 2);
		pen.clip();
		pen.lineWidth = 1.5;
		for (const [, colour, value] of series) {
			const known = this.points.filter((p) => value(p) !== null);
			pen.strokeStyle = COLOURS[colour];
			this.begin(pen, known, low, width);
			pen.beginPath();
			for (const p of known) pen.lineTo(axis.x(p.at, width), y(value(p)));
			pen.stroke();
		}
		pen.restore();
	}

	begin(pen, known, low, width) {
		// All curves begin at the same moment: the time before the first value of a curve is dashed.
		const { axis, points } = this,
			last = known[0] || points[points.length - 1];
		if (!points.length || last === points[0]) return;
		this.gap.hidden = false;
		pen.setLineDash([2, 4]);
		pen.beginPath();
		pen.moveTo(axis.x(points[0].at, width), low);
		pen.lineTo(axis.x(last.at, width), low);
		pen.stroke();
		pen.setLineDash([]);
	}

	point(at) {
		// The values at the cursor, or the last ones, in the legend; of many series those that there are.
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
			this.items[k].hidden = this.series.length > 3 && !points.some((each) => value(each));
		});
	}
}
