"use strict";
// The strip of steps: tokens of prompts and of decodes against the budget, and what each step took.

const STRIP = 120,
	LANE = 56,
	STRIP_HEAD = 14;

class StepsView {
	constructor(axis) {
		this.axis = axis;
		this.canvas = $("steps");
		axis.attach($("steps-time"), { tell: (at) => this.hint(at) });
	}

	render(model, points) {
		this.model = model;
		if (model.pods.length) {
			this.lanes(model, points);
			return;
		}
		const shared = model.server.shared_steps,
			{ from, to } = this.axis.range,
			[pen, width, height] = surface(this.canvas, STRIP);
		const rows = model.steps.filter(([begin, took]) => begin + took > from && begin < to);
		const most = Math.max(model.server.budget, ...rows.map((row) => row[2] + row[3]), 1);
		const low = height - 4,
			high = low - STRIP_HEAD - 4,
			end = width - RIGHT;
		const y = (tokens) => low - high * Math.sqrt(tokens / most),
			x = (at) => Math.max(this.axis.left, Math.min(end, this.axis.x(at, width)));
		this.axis.grid(pen, width, 4, low);
		this.lines(pen, most, y, end);
		const columns = this.columns(rows, x);
		for (const [left, wide, , prompts, decodes] of columns) {
			pen.fillStyle = COLOURS.decode;
			pen.fillRect(left, y(decodes), wide, low - y(decodes));
			if (!prompts) continue;
			pen.fillStyle = COLOURS.prefill;
			pen.fillRect(left, y(prompts + decodes), wide, y(decodes) - y(prompts + decodes));
		}
		if (shared) this.costs(pen, columns, low, high, width);
		this.tell(model, rows);
	}

	columns(rows, x) {
		// Place and width in pixels, time and tokens of the steps; of those within a pixel the greatest.
		const found = [];
		for (const [begin, took, prompts, decodes] of rows) {
			const left = x(begin),
				wide = Math.max(1, x(begin + took) - left),
				last = found[found.length - 1];
			if (!last || left - last[0] >= 1)
				found.push([left, wide > 4 ? wide - 1 : wide, took, prompts, decodes]);
			else
				[took, prompts, decodes].forEach((value, k) => {
					last[k + 2] = Math.max(last[k + 2], value);
				});
		}
		return found;
	}

	hint(at) {
		const model = this.model,
			k = model ? model.steps.findLastIndex(([begin]) => begin <= at) : -1;
		if (k < 0 || model.pods.length) return [];
		const [begin, took, prompts, decodes, sequences] = model.steps[k];
		if (at > begin + Math.max(took, this.axis.length / 200)) return [];
		const own = prompts
			? [...model.bars.values()].filter((bar) =>
					bar.parts.some(
						([phase, since], p) =>
							phase === PREFILL &&
							since < begin + took &&
							(p + 1 < bar.parts.length ? bar.parts[p + 1][1] : (bar.end ?? model.at)) > begin,
					),
				)
			: [];
		return [
			`${model.server.shared_steps ? "A step of" : "In"} ${ms(took)}: ${whole(prompts)} prefill + ${whole(decodes)} decode tokens, ${whole(sequences)} sequences`,
			own.length
				? `with prompts of ${own
						.slice(0, 3)
						.map((bar) => bar.id)
						.join(", ")}${own.length > 3 ? ` and ${own.length - 3} more` : ""}`
				: "",
		].filter(Boolean);
	}

	lanes(model, all) {
		const { from, to } = this.axis.range,
			points = all.filter((point) => point.at > from && point.at < to);
		const [pen, width] = surface(this.canvas, model.pods.length * LANE),
			x = (at) => Math.max(this.axis.left, Math.min(width - RIGHT, this.axis.x(at, width)));
		if (!points.length) return;
		const most = Math.max(
			1,
			...points.map((point) => Math.max(...point.pods.map((row) => row[0] + row[1]))),
		);
		model.pods.forEach(([running, waiting, used, cached, state], pod) => {
			const low = (pod + 1) * LANE - 12,
				curve = (value) => {
					pen.beginPath();
					for (const point of points)
						pen.lineTo(x(point.at), low - (LANE - STRIP_HEAD - 14) * value(point.pods[pod]));
				};
			for (const [colour, value] of [
				[COLOURS.preempted, (row) => (row[0] + row[1]) / most],
				[COLOURS.decode, (row) => row[0] / most],
			]) {
				curve(value);
				for (const end of [points[points.length - 1], points[0]]) pen.lineTo(x(end.at), low);
				pen.fillStyle = colour;
				pen.fill();
			}
			pen.fillStyle = COLOURS.prefill;
			for (const [begin, took, prompts, , , of] of model.steps) {
				if (of !== pod || !prompts || begin + took < from || begin > to) continue;
				pen.globalAlpha = 0.2 + 0.8 * Math.min(1, prompts / model.server.budget);
				pen.fillRect(x(begin), low + 2, Math.max(1, x(begin + took) - x(begin)), 6);
			}
			pen.globalAlpha = 1;
			curve((row) => row[2]);
			pen.strokeStyle = COLOURS.transfer;
			pen.stroke();
			pen.fillStyle = COLOURS.text;
			pen.textAlign = "left";
			pen.fillText(
				`pod ${pod}${state}: ${running} running, ${waiting} waiting, KV cache ${whole(used * 100)} %, prompts cached ${whole(cached * 100)} %`,
				4,
				pod * LANE + 8,
			);
		});
		$("steps-title").textContent = "Pods";
		$("steps-last").textContent = `up to ${most} requests`;
		this.canvas.setAttribute("aria-label", "Pods");
		legend($("steps-legend"), [
			[COLOURS.decode, "running"],
			[COLOURS.preempted, "waiting"],
			[COLOURS.prefill, "prefill, darker for more of the budget"],
			[COLOURS.transfer, "KV cache"],
		]);
	}

	lines(pen, most, y, width) {
		// Round numbers of tokens, and the budget.
		const { budget } = this.model.server;
		pen.textAlign = "right";
		for (const tokens of [...rootTicks(most), budget].filter(Boolean)) {
			const at = Math.round(y(tokens)) + 0.5,
				is = tokens === budget;
			pen.setLineDash(is ? [4, 3] : []);
			pen.strokeStyle = is ? COLOURS.muted : COLOURS.line;
			pen.beginPath();
			pen.moveTo(this.axis.left, at);
			pen.lineTo(width, at);
			pen.stroke();
			pen.fillStyle = COLOURS.muted;
			if (!is) pen.fillText(whole(tokens), this.axis.left - 8, at);
		}
		pen.setLineDash([]);
		pen.fillText("tokens", this.axis.left - 8, 6);
	}

	costs(pen, columns, low, high, width) {
		const most = Math.max(...columns.map((it) => it[2]), 0.001) * 1.15;
		pen.strokeStyle = COLOURS.preempted;
		pen.lineWidth = 1.5;
		pen.beginPath();
		for (const [left, wide, took] of columns) {
			pen.moveTo(left, low - high * (took / most));
			pen.lineTo(left + wide, low - high * (took / most));
		}
		pen.stroke();
		pen.lineWidth = 1;
		pen.fillStyle = COLOURS.muted;
		pen.textAlign = "right";
		pen.fillText("duration", width - 2, 6);
		pen.textAlign = "left";
		if (columns.length)
			for (const took of ticksTo(most, niceBelow(most / 2)))
				pen.fillText(brief(took), width - RIGHT + 6, low - high * (took / most));
	}

	tell(model, rows) {
		const shared = model.server.shared_steps,
			last = rows[rows.length - 1];
		$("steps-title").textContent = shared ? "Steps" : "Tokens computed";
		$("steps-last").textContent = !last
			? "no steps in this time"
			: shared
				? `${whole(last[2])} prefill + ${whole(last[3])} decode of ${whole(model.server.budget)} tokens, ${whole(last[4])} sequences, ${ms(last[1])}`
				: "no shared steps; tokens per quarter of a second";
		const items = [
			[COLOURS.prefill, "prefill tokens"],
			[COLOURS.decode, "decode tokens"],
		];
		legend(
			$("steps-legend"),
			shared
				? [
						...items,
						[COLOURS.preempted, "duration (right axis)"],
						[
							"transparent",
							`dashed: the budget of ${whole(model.server.budget)} (square-root scale)`,
						],
					]
				: items,
		);
		this.canvas.setAttribute("aria-label", $("steps-last").textContent);
	}
}
