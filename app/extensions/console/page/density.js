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
			const end = bar.end === null ? model.at : bar.end;
			bar.parts.forEach(([phase, since], k) => {
				step(counts[phase], since, 1);
				step(counts[phase], k + 1 < bar.parts.length ? bar.parts[k + 1][1] : end, -1);
			});
			if (bar.end >= from && bar.end <= to && bar.end !== null && model.failed(bar))
				failed[Math.floor((bar.end - from) * per)]++;
		}
		for (const row of counts) for (let k = 1; k < row.length; k++) row[k] += row[k - 1];
		return { counts, failed };
	}

	draw(pen, rows, model, axis, width, height, top) {
		const left = axis.left,
			columns = Math.max(10, Math.floor(width - left - RIGHT)),
			{ counts, failed } = (this.counted = this.count(rows, model, axis.range, columns));
		const until = Math.min(
				columns,
				Math.ceil(((model.at - axis.range.from) / axis.length) * columns),
			),
			order = [DECODE, PREFILL, TRANSFER, PREEMPTED, QUEUED];
		let most = 1;
		for (let k = 0; k < until; k++)
			most = Math.max(
				most,
				counts.reduce((total, row) => total + row[k], 0),
			);
		const low = height - 6,
			high = low - top - 14,
			base = new Float64Array(columns);
		for (const phase of order) {
			pen.fillStyle = phaseColour(phase);
			for (let k = 0; k < until; k++) {
				const tall = (counts[phase][k] / most) * high;
				if (tall > 0.01) pen.fillRect(left + k, low - base[k] - tall, 1, tall);
				base[k] += tall;
			}
		}
		pen.fillStyle = COLOURS.failed;
		failed.forEach((count, k) => {
			if (count) pen.fillRect(left + k - 1, low, 2, 5);
		});
		pen.fillStyle = COLOURS.muted;
		pen.strokeStyle = COLOURS.line;
		pen.textAlign = "right";
		for (const share of [1, 0.5]) {
			const y = Math.round(low - high * share) + 0.5;
			pen.fillText(whole(most * share), left - 8, y);
			pen.beginPath();
			pen.moveTo(left, y);
			pen.lineTo(width - RIGHT, y);
			pen.stroke();
		}
		pen.fillText("requests", left - 8, low - high * 0.75);
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
