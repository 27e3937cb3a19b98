"use strict";
// Requests as bars over time. Only the rows that can be seen are drawn, however many there are; hundreds are a density.

const ROW = 17,
	HEAD = 20;
const MEANINGS = {
	queued: "Waits for a slot, for KV blocks, or for room in a step",
	prefill: "The prompt is computed; notches are chunks",
	transfer: "The KV cache is copied from another engine",
	decode: "Tokens are sent, one per step",
	preempted: "Stopped, because other requests need its KV blocks",
};

const thinLine = (colour) => `linear-gradient(transparent 40%, ${colour} 40% 60%, transparent 60%)`;

class BarsView {
	constructor(axis, show) {
		this.axis = axis;
		this.place = $("requests");
		this.canvas = this.place.querySelector("canvas");
		this.spacer = this.place.querySelector(".spacer");
		this.show = show; // called with the number of a bar
		this.chosen = null;
		this.moment = null; // of which rows were asked for
		this.rows = [];
		this.density = new Density();
		this.order = null; // a column and a direction; else those that run come first, or the newest
		this.table = new RequestTable(this);
		axis.attach($("requests-time"), { labels: true, tell: (at, event) => this.hint(at, event) });
		this.place.addEventListener("scroll", () => this.draw());
		this.place.addEventListener("click", (event) => this.click(event));
		this.place.addEventListener("keydown", (event) => this.key(event));
		$("all-rows").addEventListener("click", () => this.list(null));
		const columns = COLUMNS.filter((it) => it.text !== String);
		$("order").append(...columns.map(({ key, heading }) => el("option", { value: key }, heading)));
		for (const id of ["filter", "show", "order", "as"])
			$(id).addEventListener("input", () => {
				const key = $("order").value;
				if (id === "order")
					this.order = columns.some((it) => it.key === key) ? { key, down: true } : null;
				if (this.model) this.render(this.model);
				soon();
			});
		legend($("requests-legend"), []);
	}

	rank(bar) {
		if (bar.end !== null) return 2;
		return bar.phase === QUEUED || bar.phase === PREEMPTED ? 1 : 0;
	}

	render(model) {
		this.model = model;
		const text = $("filter").value.trim(),
			fits = filterOf(text),
			show = $("show").value,
			{ from, to } = this.axis.range;
		const rows = [];
		let live = 0;
		for (const bar of model.bars.values()) {
			const over = bar.end !== null,
				broken = over && model.failed(bar);
			live += !over;
			if ((over && show === "live") || (show === "failed" && !broken)) continue;
			if (((over && bar.end < from) || bar.arrival > to) && !text) continue;
			if (this.moment !== null && (bar.arrival > this.moment || (over && bar.end < this.moment)))
				continue;
			if (!fits(bar, model.at)) continue;
			rows.push(bar);
		}
		const as = $("as").value,
			tabular = as === "table";
		this.apart = as === "phases";
		this.dense =
			this.moment === null &&
			(this.apart || as === "density" || (as === "auto" && rows.length > MOST_ROWS));
		this.rows = this.order
			? sorted(rows, this.order, model.at)
			: $("order").value === "new"
				? rows.reverse()
				: rows.sort((a, b) => this.rank(a) - this.rank(b) || b.number - a.number);
		if (!tabular && !this.dense) this.rows = this.withEngines(this.rows, model.server);
		$("request-table").hidden = !tabular;
		$("requests-time").hidden = tabular;
		this.spacer.style.height = `${this.dense ? 0 : Math.max(0, rows.length * ROW + HEAD + 6 - this.place.clientHeight)}px`;
		$("requests-count").textContent = `${whole(live)} in progress, ${whole(rows.length)} shown`;
		$("all-rows").hidden = this.moment === null;
		if (this.moment !== null)
			$("all-rows").textContent = `at ${this.axis.label(this.moment)}: show all`;
		legend($("requests-legend"), [
			...PHASES.map((name) => [COLOURS[name], name, MEANINGS[name]]),
			[thinLine(COLOURS.decode), "no token", `No token for ${STALL_MS} ms or more: a long step`],
			[COLOURS.failed, "failed"],
		]);
		this.stalls = stallsOf(model, from, to);
		if (tabular) this.table.render(this.rows, model.at);
		else this.draw();
	}

	withEngines(rows, { engines = [] }) {
		// With a row that names each engine, if there is more than one.
		if (engines.length < 2) return rows;
		const engine = (bar) => engineOf(bar, this.model.server);
		return engines
			.map((heading, k) => [{ heading }, ...rows.filter((bar) => engine(bar) === k)])
			.reverse()
			.flat();
	}

	list(moment) {
		// Rows of the requests that were there at a moment; null for all.
		this.moment = moment;
		this.place.scrollTop = 0;
		this.render(this.model);
	}

	draw() {
		const model = this.model,
			axis = this.axis;
		if (!model) return;
		const [pen, width, height] = surface(this.canvas, this.place.clientHeight),
			gutter = axis.left;
		axis.grid(pen, width, HEAD - 4, height, 8, width - 4 - pen.measureText("took ").width);
		if (this.dense) {
			this.density.draw(pen, this.rows, model, axis, width, height, HEAD, this.apart);
			return;
		}
		const top = this.place.scrollTop,
			first = Math.floor(top / ROW),
			last = Math.min(this.rows.length, first + Math.ceil((height - HEAD) / ROW) + 1);
		pen.save();
		pen.beginPath();
		pen.rect(0, HEAD, width, height - HEAD);
		pen.clip();
		for (let k = first; k < last; k++)
			this.row(pen, this.rows[k], HEAD + k * ROW - top, (at) => axis.x(at, width), gutter, width);
		pen.restore();
		aligned(pen, COLOURS.muted, "right").fillText("took", width - 4, 8);
		if (gutter > 100) pen.fillText("prompt + output", gutter - 8, 8);
		pen.textAlign = "left";
		pen.fillText(gutter > 100 ? "id" : "request", 8, 8);
		if (!this.rows.length) {
			pen.textAlign = "center";
			pen.fillText("No requests in this time.", width / 2, height / 2 - 8);
			pen.fillText("The button Send load sends some.", width / 2, height / 2 + 8);
		}
	}

	row(pen, bar, y, x, gutter, width) {
		if (bar.heading) {
			aligned(pen, COLOURS.text, "left").fillText(bar.heading, 8, y + ROW / 2);
			return;
		}
		const chosen = bar.number === this.chosen,
			end = bar.end === null ? this.model.at : bar.end,
			failed = bar.end !== null && this.model.failed(bar);
		if (chosen) {
			pen.fillStyle = COLOURS.line;
			pen.fillRect(0, y, width, ROW);
		}
		for (const [phase, since, until] of spansOf(bar, this.model.at)) {
			const left = Math.max(gutter, x(since)),
				right = Math.min(width - RIGHT, x(until));
			if (right < left) continue;
			pen.globalAlpha = bar.end === null ? 1 : 0.62;
			pen.fillStyle = phaseColour(phase);
			const thin = phase === QUEUED || phase === PREEMPTED;
			pen.fillRect(left, y + (thin ? 6 : 3), Math.max(1, right - left), thin ? ROW - 12 : ROW - 6);
			if (phase === DECODE)
				for (const [begin, stop] of holesOf(bar, since, until, this.stalls, this.model.server))
					this.hole(pen, Math.max(left, x(begin)), Math.min(right, x(stop)), y, stop - begin);
		}
		pen.globalAlpha = 1;
		pen.fillStyle = COLOURS.panel;
		for (const at of bar.chunks)
			if (x(at) > gutter && x(at) < width - RIGHT) pen.fillRect(x(at), y + 3, 1, ROW - 6); // where a chunk of a prompt ended
		if (failed && x(end) > gutter && x(end) < width - RIGHT) {
			pen.fillStyle = COLOURS.failed;
			pen.fillRect(x(end) - 2, y + 2, 4, ROW - 4);
		}
		pen.fillStyle = COLOURS.panel;
		if (chosen) pen.fillStyle = COLOURS.line;
		pen.fillRect(0, y, gutter - 4, ROW);
		pen.textAlign = "left";
		pen.fillStyle = bar.end === null ? COLOURS.text : COLOURS.muted;
		pen.fillText(
			`${bar.id.length < 9 ? bar.id : bar.id.slice(-6)}${bar.of > 1 ? `.${bar.choice}` : ""}`,
			8,
			y + ROW / 2,
		);
		pen.textAlign = "right";
		pen.fillStyle = failed ? COLOURS.failed : COLOURS.muted;
		if (gutter > 100)
			pen.fillText(
				failed
					? cause(bar)
					: bar.phase === PREFILL && bar.end === null
						? `${short(bar.computed)}/${short(bar.prompt)}`
						: `${short(bar.prompt)}+${short(bar.tokens)}`,
				gutter - 8,
				y + ROW / 2,
			);
		pen.fillStyle = bar.end === null ? COLOURS.text : COLOURS.muted;
		pen.fillText(brief(end - bar.arrival), width - 4, y + ROW / 2);
	}

	hole(pen, left, right, y, took) {
		// A part of a decode without tokens: a thin line, with words where there is room.
		pen.globalAlpha = 1;
		const text = `no token ${brief(took)}`;
		if (right <= left) return;
		pen.fillStyle = COLOURS.panel;
		pen.fillRect(left, y, right - left, ROW);
		pen.fillStyle = COLOURS.decode;
		pen.fillRect(left, y + ROW / 2 - 1, right - left, 2);
		if (pen.measureText(text).width + 12 > right - left) return;
		const middle = (left + right) / 2,
			half = pen.measureText(text).width / 2 + 4;
		pen.fillStyle = COLOURS.panel;
		pen.fillRect(middle - half, y, 2 * half, ROW);
		aligned(pen, COLOURS.text, "center").fillText(text, middle, y + ROW / 2);
	}

	under(event) {
		const y = event.clientY - this.place.getBoundingClientRect().top - HEAD + this.place.scrollTop;
		const row = y < 0 || this.dense ? null : this.rows[Math.floor(y / ROW)];
		return row && !row.heading ? row : null;
	}

	hint(at, event) {
		// What is under the pointer: a request and its phase then, or how many are in which phase.
		if (this.dense) return this.density.tell(at, this.axis);
		const bar = this.under(event);
		if (!bar) return [];
		this.tell(bar);
		const { model } = this,
			hole =
				bar.first !== null &&
				holesOf(bar, bar.first, bar.end ?? model.at, this.stalls, model.server).find(
					([begin, stop]) => begin <= at && at <= stop,
				);
		return [
			`${bar.id}${bar.of > 1 ? `, choice ${bar.choice + 1}` : ""}${bar.adapter ? `, ${bar.adapter}` : ""}`,
			phaseAt(bar, at, model.at),
			hole
				? `no token for ${ms(hole[1] - hole[0])}${hole[2] === null ? " so far" : `: a step with ${whole(hole[2])} prompt tokens`}`
				: "",
			bar.end === null ? "" : `${bar.reason} after ${ms(bar.end - bar.arrival)}`,
		].filter(Boolean);
	}

	click(event) {
		const bar = this.under(event);
		if (this.dense && this.axis.cursor) this.list(this.axis.cursor);
		if (!bar) return;
		this.choose(bar);
		this.show(bar.number);
	}

	choose(bar) {
		this.chosen = bar.number;
		this.tell(bar);
		this.draw();
	}

	key(event) {
		if (this.dense && (event.key === "Enter" || event.key === "ArrowDown")) {
			$("as").value = "rows";
			this.render(this.model);
		}
		const steps = { ArrowDown: 1, ArrowUp: -1, PageDown: 15, PageUp: -15, Home: -1e9, End: 1e9 }[
			event.key
		];
		if (event.key === "Enter" && this.chosen !== null) {
			event.preventDefault(); // else it would press the button that gets the focus
			this.show(this.chosen);
		}
		if (steps === undefined || !this.rows.length) return;
		event.preventDefault();
		const now = this.rows.findIndex((bar) => bar.number === this.chosen);
		let next = Math.min(this.rows.length - 1, Math.max(0, now < 0 ? 0 : now + steps));
		if (this.rows[next].heading) next = steps < 0 && next > 0 ? next - 1 : next + 1;
		const y = next * ROW,
			room = this.place.clientHeight - HEAD - ROW;
		if (y < this.place.scrollTop) this.place.scrollTop = y;
		if (y > this.place.scrollTop + room) this.place.scrollTop = y - room;
		this.choose(this.rows[next]);
	}

	tell(bar) {
		const ttft =
			bar.first === null ? "no token yet" : `first token after ${ms(bar.first - bar.arrival)}`;
		const state = bar.end === null ? PHASES[bar.phase] : bar.reason;
		const lost = bar.preempted ? `, preempted ${bar.preempted}×` : "";
		$("chosen").textContent =
			`${bar.id}: ${state}, ${whole(bar.prompt)} prompt tokens${bar.cached ? ` (${whole(bar.cached)} cached)` : ""}, ${whole(bar.tokens)} of ${whole(bar.most)} tokens, ${ttft}${lost}`;
	}
}
