"use strict";
// Heat maps over time: how many of the requests that ended had which length.

const HEAT_PX = 9;

const HEATS = [
	["Prompt lengths", "tokens", (end) => end.prompt],
	["Output lengths", "tokens", (end) => end.tokens],
	["End-to-end latency", "ms", (end) => end.took],
];

function heatOf(ends, value, from, to, step) {
	// Counts by column of time, from column 0 at `from`, and row: row k has values from 2 ** k up to 2 ** (k + 1).
	const columns = Array.from({ length: Math.ceil((to - from) / step) }, () => new Map());
	let low = Infinity,
		high = -Infinity,
		most = 0;
	for (let k = after(ends, from); k < ends.length && ends[k].at < to; k++) {
		const row = Math.floor(Math.log2(Math.max(1, value(ends[k])))),
			column = columns[Math.floor((ends[k].at - from) / step)],
			count = (column.get(row) || 0) + ends[k].weight;
		column.set(row, count);
		low = Math.min(low, row);
		high = Math.max(high, row);
		most = Math.max(most, count);
	}
	return { columns, low, high, most };
}

class Heat {
	constructor(axis, [title, unit, value]) {
		Object.assign(this, { axis, title, unit, value });
		this.canvas = el("canvas", { class: "plain", role: "img" });
		const time = box("", this.canvas);
		$("charts").append(box("chart", box("legend", el("h3", {}, title)), time));
		axis.attach(time, { tell: (at, event) => this.hint(at, event) });
	}

	render(ends, now) {
		const { axis } = this,
			[pen, width, height] = surface(this.canvas, 96),
			low = height - 16,
			{ from, to } = axis.range,
			step = nice((axis.length * HEAT_PX) / Math.max(50, width - axis.left - RIGHT)),
			begin = Math.floor(from / step) * step,
			heat = heatOf(ends, this.value, begin, Math.min(to, now + 1), step),
			bottom = Math.max(0, heat.low - 1),
			rows = heat.high - bottom + 2,
			high = (low - 16) / rows;
		this.shown = { columns: heat.columns, bottom, begin, step, low, high };
		axis.grid(pen, width, 16, low, low + 9);
		aligned(pen, COLOURS.muted, "right").fillText(this.unit, axis.left - 8, 6);
		this.canvas.setAttribute(
			"aria-label",
			`${this.title}: ${heat.most ? `up to ${whole(heat.most)} requests at a time` : "no requests in this time"}`,
		);
		if (!heat.most) return;
		const every = Math.ceil(14 / high);
		for (let k = 0; k < rows; k += every)
			pen.fillText(
				axis.left < 100
					? `≥ ${short(2 ** (bottom + k))}`
					: `${short(2 ** (bottom + k))}–${short(2 ** (bottom + k + 1) - 1)}`,
				axis.left - 8,
				low - high * (k + 0.5),
			);
		pen.save();
		pen.beginPath();
		pen.rect(axis.left, 0, width - axis.left - RIGHT, low);
		pen.clip();
		pen.fillStyle = COLOURS.accent;
		heat.columns.forEach((column, k) => {
			const left = axis.x(begin + k * step, width),
				right = axis.x(begin + (k + 1) * step, width);
			for (const [row, count] of column) {
				pen.globalAlpha = 0.15 + 0.85 * Math.sqrt(count / heat.most);
				pen.fillRect(left, low - high * (row - bottom + 1), right - left - 1, high - 1);
			}
		});
		pen.restore();
	}

	hint(at, event) {
		const { columns, bottom, begin, step, low, high } = this.shown,
			row = bottom + Math.floor((low - event.offsetY) / high),
			column = columns[Math.floor((at - begin) / step)],
			number = column && column.get(row);
		return number
			? [
					`${count(number, "request")} of ${short(2 ** row)} to ${short(2 ** (row + 1))} ${this.unit}`,
				]
			: [];
	}
}
