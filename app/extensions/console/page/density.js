"use strict";
// Hundreds of requests at once: how many are in which phase, as areas over time.

const MOST_ROWS = 120; // more are shown as a density, unless rows are asked for

class Density {
	count(rows, model, { from, to }, columns) {
		// How many requests are in each phase, on average over each column; one more row for those that failed.
		const counts = PHASES.map(() => new Float64Array(columns + 2)),
			failed = new Float64Array(columns + 2),
			per = columns / (to - from);
		const step = (row, at, by) => {
			const x = Math.max(0, Math.min(columns, (at - from) * per)),
				column = Math.floor(x);
			row[column] += by * (column + 1 - x);
			row[column + 1] += by * (x - column);
		};
		for (const bar of rows) {
			for (const [phase, since, until] of spansOf(bar, model.at)) {
				step(counts[phase], since, 1);
				step(counts[phase], until, -1);
			}
			if (bar.end >= from && bar.end <= to && bar.end !== null && model.failed(bar))
				failed[Math.floor((bar.end - from) * per)]++;
		}
		for (const row of counts) for (let k = 1; k < row.length; k++) row[k] += row[k - 1];
		return { counts, failed };
	}

	draw(pen, rows, model, axis, width, height, top, apart) {
		// All phases on each other, or each on its own: apart.
		const left = axis.left,
			columns = Math.max(10, Math.floor(width - left - RIGHT)),
			{ counts, failed } = (this.counted = this.count(rows, model, axis.range, columns));
		const until = Math.min(
				columns,
				Math.ceil(((model.at - axis.range.from) / axis.length) * columns),
			),
			order = [DECODE, PREFILL, TRANSFER, PREEMPTED, QUEUED];
		let lanes = apart ? order.filter((phase) => counts[phase].some((n) => n > 0.01)) : [];
		lanes = lanes.length ? lanes.reverse().map((phase) => [phase]) : [order];
		const tall = (height - 6 - top) / lanes.length;
		lanes.forEach((phases, lane) => {
			const low = top + tall * (lane + 1),
				high = tall - 18,
				base = new Float64Array(columns);
			let most = 1;
			for (let k = 0; k < until; k++)
				most = Math.max(
					most,
					phases.reduce((total, phase) => total + counts[phase][k], 0),
				);
			for (const phase of phases) {
				pen.fillStyle = phaseColour(phase);
				for (let k = 0; k < until; k++) {
					const part = (counts[phase][k] / most) * high;
					if (part > 0.01) pen.fillRect(left + k, low - base[k] - part, 1, part);
					base[k] += part;
				}
			}
			pen.textAlign = "right";
			const step = Math.max(1, niceBelow(most / (apart ? 1 : 2.5)));
			for (const value of ticksTo(most, step)) {
				const y = Math.round(low - (high * value) / most);
				pen.fillStyle = COLOURS.line;
				pen.fillRect(left, y, width - left - RIGHT, 1);
				pen.fillStyle = COLOURS.muted;
				pen.fillText(whole(value), left - 8, Math.min(y, low - 4));
			}
			pen.fillText(apart ? PHASES[phases[0]] : "requests", left - 8, low - tall + 7);
		});
		pen.fillStyle = COLOURS.failed;
		failed.forEach((count, k) => {
			if (count) pen.fillRect(left + k - 1, height - 6, 2, 5);
		});
	}

	tell(at, axis) {
		// The phases of a moment in words.
		if (!this.counted) return [];
		const columns = this.counted.failed.length - 2,
			column = Math.max(
				0,
				Math.min(columns - 1, Math.floor(((at - axis.range.from) / axis.length) * columns)),
			);
		const parts = PHASES.map((name, phase) => [
			Math.round(this.counted.counts[phase][column]),
			name,
		]).filter(([count]) => count);
		return [
			parts.map(([count, name]) => `${whole(count)} ${name}`).join(", ") || "no requests",
			"A click lists those of this moment.",
		];
	}
}
