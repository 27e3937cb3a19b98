"use strict";
// The strip of steps: tokens of prompts and of decodes against the budget, and what each step took.

const STRIP = 144,
	LANE = 56,
	STRIP_HEAD = 14;
const STEP_PARTS = [
	["prefill", "prefill", 3, short],
	["decode", "decode", 4, short],
	["duration", "preempted", 2, brief],
]; // name, colour, place in a column, how values are written

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
		const { shared_steps: shared, engines = [] } = model.server,
			{ from, to } = this.axis.range,
			[pen, width, height] = surface(this.canvas, shared ? STRIP : (STRIP * 2) / 3),
			end = width - RIGHT,
			x = (at) => Math.max(this.axis.left, Math.min(end, this.axis.x(at, width)));
		const until = Math.min(to, model.at),
			rows = model.steps.filter(([begin, took]) => begin + took > from && begin < until),
			columns = [0, 1].flatMap((engine) =>
				engine && engines.length < 2
					? []
					: this.columns(
							rows.filter((row) => (row[5] || 0) === engine),
							x,
						),
			);
		this.axis.grid(pen, width, 4, height - 4);
		const parts = shared ? STEP_PARTS : STEP_PARTS.slice(0, 2);
		parts.forEach((part, k) => {
			const tall = height / parts.length;
			this.part(pen, part, columns, tall * k, tall, end);
		});
		this.tell(model, rows);
	}

	part(pen, [name, colour, place, write], columns, top, tall, end) {
		// One figure of all steps, from zero up; the budget is shown where prompts come close to it.
		const { budget } = this.model.server,
			greatest = Math.max(1e-3, ...columns.map((it) => it[place])),
			near = name === "prefill" && budget && greatest > budget / 2,
			most = near ? Math.max(budget, greatest) : greatest,
			low = Math.round(top + tall - 5),
			y = (value) => low - (tall - 16) * (value / most);
		pen.fillStyle = COLOURS[colour];
		for (const column of columns) {
			const high = column[place] && Math.max(1.5, low - y(column[place]));
			pen.fillRect(column[0], low - high, column[1], high);
		}
		pen.fillStyle = COLOURS.line;
		pen.fillRect(this.axis.left, low, end - this.axis.left, 1);
		aligned(pen, COLOURS.muted, "right").fillText(name, this.axis.left - 8, low - tall / 2 + 8);
		pen.textAlign = "left";
		if (columns.length) {
			const tick = niceBelow(greatest);
			pen.fillText(write(tick), end + 6, y(tick));
			pen.fillRect(end, Math.round(y(tick)), 4, 1);
		}
		if (!near) return;
		pen.setLineDash([4, 3]);
		pen.strokeStyle = COLOURS.muted;
		pen.beginPath();
		pen.moveTo(this.axis.left, Math.round(y(budget)) - 0.5);
		pen.lineTo(end, Math.round(y(budget)) - 0.5);
		pen.stroke();
		pen.setLineDash([]);
	}

	columns(rows, x) {
		// Place and width in pixels, time and tokens of the steps; of those within a pixel the greatest.
		const found = [];
		for (const [begin, took, prompts, decodes] of rows) {
			const left = x(begin),
				full = Math.max(1, x(Math.min(begin + took, this.model.at)) - left),
				wide = full > 2.5 ? full - 1 : full,
				last = found[found.length - 1];
			if (!last || left - last[0] >= 1) found.push([left, wide, took, prompts, decodes]);
			else
				[left + wide - last[0], took, prompts, decodes].forEach((value, k) => {
					last[k + 1] = Math.max(last[k + 1], value);
				});
		}
		return found;
	}

	hint(at) {
		// The steps of a moment, one of each engine, and the prompts in them.
		const model = this.model;
		if (!model || model.pods.length) return [];
		const { engines = [] } = model.server;
		return (engines.length ? engines : [""]).flatMap((name, engine) => {
			const step = model.steps.findLast((it) => it[0] <= at && (it[5] || 0) === engine);
			if (!step || at > step[0] + Math.max(step[1], this.axis.length / 200)) return [];
			return this.describe(step, name && `${name.split(":")[0]}: `, engine);
		});
	}

	describe([begin, took, prompts, decodes, sequences], engineName, engine) {
		const { model } = this,
			shares = (bar) =>
				engineOf(bar, model.server) === engine &&
				spansOf(bar, model.at).some(
					([phase, since, until]) => phase === PREFILL && since < begin + took && until > begin,
				),
			own = prompts ? [...model.bars.values()].filter(shares) : [];
		return [
			`${engineName}${model.server.shared_steps ? "A step of" : "In"} ${ms(took)}: ${whole(prompts)} prefill + ${whole(decodes)} decode tokens, ${whole(sequences)} sequences`,
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
			aligned(pen, COLOURS.text, "left").fillText(
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
						[COLOURS.preempted, "duration"],
						["transparent", `dashed: the budget of ${whole(model.server.budget)} tokens`],
					]
				: items,
		);
		this.canvas.setAttribute("aria-label", $("steps-last").textContent);
	}
}
