"use strict";
// Requests as bars over time. Only the rows that can be seen are drawn, however many there are; hundreds are a density.

const ROW = 17,
	HEAD = 20;

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
		let live = 0,
			failed = 0;
		for (const bar of model.bars.values()) {
			const over = bar.end !== null,
				broken = over && model.failed(bar);
			live += !over;
			failed += broken;
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
		$("request-table").hidden = !tabular;
		$("requests-time").hidden = tabular;
		this.spacer.style.height = `${this.dense ? 0 : Math.max(0, rows.length * ROW + HEAD + 6 - this.place.clientHeight)}px`;
		$("requests-count").textContent =
			`${whole(live)} in progress, ${whole(rows.length)} shown${failed ? `, ${whole(failed)} failed` : ""}`;
		$("all-rows").hidden = this.moment === null;
		if (this.moment !== null)
			$("all-rows").textContent = `at ${this.axis.label(this.moment)}: show all`;
		legend($("requests-legend"), [
			...PHASES.map((name) => [COLOURS[name], name]),
			[COLOURS.failed, "failed"],
		]);
		if (tabular) this.table.render(this.rows, model.at);
		else this.draw();
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
		pen.fillStyle = COLOURS.muted;
		pen.textAlign = "right";
		pen.fillText("took", width - 4, 8);
		if (gutter > 100) pen.fillText("prompt + output", gutter - 8, 8);
		pen.textAlign = "left";
		pen.fillText(gutter > 100 ? "id" : "request", 8, 8);
		if (!this.rows.length) {
			pen.textAlign = "center";
			pen.fillText(
				"No requests in this time. The button Send load sends some.",
				width / 2,
				height / 2,
			);
		}
	}

	row(pen, bar, y, x, gutter, width) {
		const chosen = bar.number === this.chosen,
			end = bar.end === null ? this.model.at : bar.end,
			failed = bar.end !== null && this.model.failed(bar);
		if (chosen) {
			pen.fillStyle = COLOURS.line;
			pen.fillRect(0, y, width, ROW);
		}
		bar.parts.forEach(([phase, since], k) => {
			const until = k + 1 < bar.parts.length ? bar.parts[k + 1][1] : end;
			const left = Math.max(gutter, x(since)),
				right = Math.min(width - RIGHT, x(until));
			if (right < left) return;
			pen.globalAlpha = bar.end === null ? 1 : 0.62;
			pen.fillStyle = phaseColour(phase);
			const thin = phase === QUEUED || phase === PREEMPTED;
			pen.fillRect(left, y + (thin ? 6 : 3), Math.max(1, right - left), thin ? ROW - 12 : ROW - 6);
		});
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

	under(event) {
		const y = event.clientY - this.place.getBoundingClientRect().top - HEAD + this.place.scrollTop;
		return y < 0 || this.dense ? null : this.rows[Math.floor(y / ROW)] || null;
	}

	hint(at, event) {
		// What is under the pointer: a request and its phase then, or how many are in which phase.
		if (this.dense) return this.density.tell(at, this.axis);
		const bar = this.under(event);
		if (!bar) return [];
		this.tell(bar);
		const end = bar.end === null ? this.model.at : bar.end,
			k = bar.parts.findLastIndex(([, since]) => since <= at),
			part = bar.parts[k];
		const phase =
			part && at <= end
				? `${PHASES[part[0]]} for ${ms((k + 1 < bar.parts.length ? bar.parts[k + 1][1] : end) - part[1])}`
				: "";
		return [
			`${bar.id}${bar.of > 1 ? `, choice ${bar.choice + 1}` : ""}${bar.adapter ? `, ${bar.adapter}` : ""}`,
			phase,
			bar.end === null ? "" : `${bar.reason} after ${ms(end - bar.arrival)}`,
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
		const next = Math.min(this.rows.length - 1, Math.max(0, now < 0 ? 0 : now + steps));
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
