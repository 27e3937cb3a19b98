"use strict";
// Two runs by percentile: how far apart their latencies are.

const QUANTILES = Array.from({ length: 99 }, (_, k) => k + 1);

function quantileDifferences(a, b) {
	// Of two sorted lists: rows of [percentile, value in the first, value in the second, difference].
	const at = (values, part) => values[Math.floor((values.length * part) / 100)];
	if (!a.length || !b.length) return [];
	return QUANTILES.map((part) => [part, at(a, part), at(b, part), at(b, part) - at(a, part)]);
}

class QuantileChart {
	constructor(place, name, rows) {
		Object.assign(this, { name, rows, canvas: el("canvas", { class: "plain", role: "img" }) });
		this.line = span("mono");
		place.append(box("", box("legend", el("h3", {}, name), this.line), this.canvas));
		this.canvas.onpointermove = ({ offsetX }) =>
			this.render(Math.round(((offsetX - LEFT) / (this.canvas.clientWidth - LEFT)) * 100));
		this.canvas.onpointerleave = () => this.render();
	}

	render(part = 50) {
		const [pen, width, height] = surface(this.canvas, 112),
			{ rows } = this,
			low = height - 18,
			differences = rows.map((row) => row[3]),
			[least, most] = [Math.min(0, ...differences), Math.max(0, ...differences)],
			step = nice(Math.max(1e-3, (most - least) / 3)),
			x = (at) => LEFT + ((width - LEFT - 4) * at) / 100,
			y = (value) => low - ((low - 18) * (value - least)) / Math.max(1e-3, most - least);
		aligned(pen, COLOURS.muted, "right").fillText("ms", LEFT - 6, 6);
		for (let value = Math.ceil(least / step) * step; value <= most + step / 1e3; value += step) {
			pen.fillStyle = value ? COLOURS.line : COLOURS.muted;
			pen.fillRect(LEFT, Math.round(y(value)), width, 1);
			pen.fillStyle = COLOURS.muted;
			pen.fillText(`${value > 0 ? "+" : ""}${short(value)}`, LEFT - 6, y(value));
		}
		rows.forEach(([at, , , difference]) => {
			pen.fillStyle = difference > 0 ? COLOURS.failed : COLOURS.decode;
			pen.fillRect(
				x(at - 1),
				Math.min(y(0), y(difference)),
				x(1) - x(0) - 0.5,
				Math.abs(y(difference) - y(0)),
			);
		});
		pen.fillStyle = COLOURS.muted;
		pen.textAlign = "center";
		for (const at of [10, 25, 50, 75, 90]) pen.fillText(`p${at}`, x(at), height - 6);
		const [at, one, two, difference] = rows[Math.max(1, Math.min(99, part)) - 1];
		this.line.textContent = `p${at}: ${ms(one)} and ${ms(two)}, ${difference > 0 ? "+" : "−"}${ms(Math.abs(difference))}`;
		this.canvas.setAttribute("aria-label", `${this.name}: ${this.line.textContent}`);
	}
}
