"use strict";
// One time axis: requests, steps, curves and the overview show the same time, have one cursor, and are zoomed together.

const RIGHT = 52,
	LEAST_MS = 20,
	DRAG_PX = 5,
	LEAST_WORDS_PX = 60,
	MOST_WORDS_PX = 190;

class TimeAxis {
	constructor(draw) {
		this.draw = draw; // draws all anew
		this.zoomed = null; // { from, to } in milliseconds; null for the last seconds, or all
		this.range = { from: 0, to: 1000 };
		this.whole = { from: 0, to: 1000 };
		this.left = 132;
		this.marks = [];
		this.parts = [];
		this.tip = $("tip");
		this.selected = null; // { from, to } of which the sums are shown
		$("unselect").addEventListener("click", () => this.select(null));
		$("unzoom").addEventListener("click", () => this.reset());
	}

	follow(now, first, last) {
		// The time that is shown, from now on: that of the zoom, or what has just been.
		const seconds = Number($("span").value);
		this.whole = { from: first, to: Math.max(last, first + 1000) };
		if (this.zoomed && this.zoomed.to < first) this.zoomed = null;
		this.range =
			this.zoomed || (seconds ? { from: now.at - seconds * 1000, to: now.at } : this.whole);
		this.left = $("charts").clientWidth < 520 ? 74 : 150;
		this.at = now.at;
		this.marks = now.marks;
		$("unzoom").hidden = !this.zoomed;
		$("unzoom").textContent = `${ago(this.length)} shown: reset`;
	}

	select(selected) {
		this.selected = selected;
		this.draw();
	}

	get length() {
		return this.range.to - this.range.from;
	}

	x(at, width) {
		return this.left + ((width - this.left - RIGHT) * (at - this.range.from)) / this.length;
	}

	zoom(from, to) {
		const { from: first, to: last } = this.whole,
			length = Math.max(LEAST_MS, Math.min(to - from, last - first));
		from = Math.max(first, Math.min(from, last - length));
		this.zoomed = length >= last - first ? null : { from, to: from + length };
		if (!this.zoomed) $("span").value = "0";
		this.hide();
		this.draw();
	}

	scale(factor) {
		const middle =
			this.cursor > this.range.from && this.cursor < this.range.to
				? this.cursor
				: (this.range.from + this.range.to) / 2;
		this.zoom(
			middle - (middle - this.range.from) * factor,
			middle + (this.range.to - middle) * factor,
		);
	}

	pan(share) {
		this.zoom(this.range.from + share * this.length, this.range.to + share * this.length);
	}

	reset() {
		if (!this.zoomed) return false;
		this.zoomed = null;
		this.hide();
		this.draw();
		return true;
	}

	ticks(width) {
		// Moments for a line and a label, at most one in 80 pixels.
		const least = (this.length * 80) / Math.max(80, width),
			ten = 10 ** Math.floor(Math.log10(least));
		const step =
			least > 30000
				? [60, 120, 300, 600, 1800, 3600].map((s) => s * 1000).find((s) => s >= least) || 7200000
				: [1, 2, 5, 10].find((k) => k * ten >= least) * ten;
		const from =
			this.zoomed || report
				? Math.ceil((this.range.from - this.zero) / step) * step + this.zero
				: this.range.to - Math.floor(this.length / step) * step;
		const found = [];
		for (let at = from; at <= this.range.to + 1e-6; at += step) found.push(at);
		return found;
	}

	get zero() {
		return report ? this.whole.from : -(((model.began || 0) * 1000) % 3600000);
	}

	label(at) {
		if (report) return `${this.digits((at - this.zero) / 1000)} s`;
		if (!this.zoomed)
			return this.range.to - at < 1
				? moment(shown())
				: `-${this.digits((this.range.to - at) / 1000)} s`;
		const date = new Date((model.began || 0) * 1000 + at),
			two = (value) => String(value).padStart(2, "0");
		return `${two(date.getHours())}:${two(date.getMinutes())}:${two(date.getSeconds())}${
			this.length < 10000
				? `.${String(date.getMilliseconds())
						.padStart(3, "0")
						.slice(0, this.length < 1000 ? 3 : 1)}`
				: ""
		}`;
	}

	digits(seconds) {
		return seconds.toFixed(this.length < 1000 ? 3 : this.length < 10000 ? 1 : 0);
	}

	grid(pen, width, top, height, labels, end = width) {
		// Lines of time, and their words at a height, which do not go beyond an end.
		pen.strokeStyle = COLOURS.line;
		pen.fillStyle = COLOURS.muted;
		pen.lineWidth = 1;
		for (const at of this.ticks(width - this.left - RIGHT)) {
			const x = Math.round(this.x(at, width)) + 0.5;
			pen.beginPath();
			pen.moveTo(x, top);
			pen.lineTo(x, height);
			pen.stroke();
			pen.textAlign = "center";
			if (!labels) continue;
			const text = this.label(at);
			const half = pen.measureText(text).width / 2;
			pen.fillText(text, Math.max(this.left + half + 2, Math.min(x, end - half)), labels);
		}
	}

	attach(
		place,
		{
			edges = () => [
				this.left,
				RIGHT + place.clientWidth - place.querySelector("canvas").clientWidth,
			],
			range = () => this.range,
			tell = () => null,
			labels = false,
		} = {},
	) {
		// A part of the page with this axis: dragging zooms, a double click resets, the cursor is that of all.
		const line = el("i", { class: "cursor" }),
			brush = el("i", { class: "brush" }),
			marks = el("i", { class: "marks" }),
			chosen = el("i", { class: "brush" }),
			part = { place, edges, range, line, marks, labels, chosen };
		let begun = null;
		for (const it of [line, brush, chosen]) it.hidden = true;
		place.append(marks, line, brush, chosen);
		place.classList.add("timed");
		const at = (event) => {
			const box = place.getBoundingClientRect(),
				[left, right] = edges(),
				{ from, to } = range();
			return (
				from +
				Math.max(0, Math.min(1, (event.clientX - box.left - left) / (box.width - left - right))) *
					(to - from)
			);
		};
		place.addEventListener("pointerdown", (event) => {
			if (event.button === 0 && event.target.tagName !== "INPUT")
				begun = { x: event.clientX, at: at(event), id: event.pointerId };
		});
		const point = (event) => {
			const now = at(event);
			this.point(now);
			this.show(event, [...this.near(now, part), ...((brush.hidden && tell(now, event)) || [])]);
		};
		place.addEventListener("pointermove", (event) => {
			const now = at(event);
			if (begun && Math.abs(event.clientX - begun.x) > DRAG_PX && brush.hidden) {
				place.setPointerCapture(begun.id);
				brush.hidden = false;
			}
			if (!brush.hidden) this.lay(brush, part, Math.min(begun.at, now), Math.max(begun.at, now));
			point(event);
			this.again = () => point(event); // what is under a still pointer changes with time
		});
		const end = (event) => {
			if (!brush.hidden && event.type === "pointerup") {
				const now = at(event),
					since = begun.at;
				place.addEventListener("click", (click) => click.stopPropagation(), {
					capture: true,
					once: true,
				});
				const range = [Math.min(since, now), Math.max(since, now)];
				setTimeout(() =>
					event.shiftKey ? this.select({ from: range[0], to: range[1] }) : this.zoom(...range),
				); // after the click
			}
			begun = null;
			brush.hidden = true;
		};
		place.addEventListener("pointerup", end);
		place.addEventListener("pointercancel", end);
		place.addEventListener("pointerleave", () => this.hide());
		place.addEventListener("dblclick", () => this.reset());
		this.parts.push(part);
	}

	attachTip(place, tell) {
		// Words on what is under the pointer, of a part without the axis.
		place.addEventListener("pointermove", (event) => this.show(event, tell(event)));
		place.addEventListener("pointerleave", () => this.hide());
	}

	lay(it, { place, edges, range }, from, to) {
		const [left, right] = edges(),
			{ from: first, to: last } = range(),
			width = place.clientWidth - left - right,
			x = (at) => left + width * Math.max(0, Math.min(1, (at - first) / (last - first)));
		it.style.left = `${x(from)}px`;
		if (to !== from) it.style.width = `${Math.max(1, x(to) - x(from))}px`;
	}

	point(at) {
		this.cursor = at;
		for (const part of this.parts) {
			const { from, to } = part.range();
			part.line.hidden = at < from || at > to;
			if (!part.line.hidden) this.lay(part.line, part, at, at);
		}
		for (const chart of views ? views.curves : []) chart.point(at);
	}

	hide() {
		this.again = null;
		this.cursor = NaN;
		for (const part of this.parts) part.line.hidden = true;
		this.tip.hidden = true;
		for (const chart of views ? views.curves : []) chart.point(NaN);
	}

	near(at, part) {
		const { from, to } = part.range(),
			[left, right] = part.edges(),
			close = ((to - from) * 5) / Math.max(50, part.place.clientWidth - left - right);
		return this.marks
			.filter(([when]) => Math.abs(when - at) < close)
			.slice(-4)
			.map(([, , text]) => text);
	}

	show(event, lines) {
		this.tip.hidden = !lines.length;
		if (!lines.length) return;
		this.tip.replaceChildren(...lines.map((line) => box("", line)));
		const { offsetWidth: width, offsetHeight: height } = this.tip;
		this.tip.style.left = `${Math.max(4, Math.min(innerWidth - width - 8, event.clientX + 14))}px`;
		this.tip.style.top = `${event.clientY + height + 24 > innerHeight ? event.clientY - height - 10 : event.clientY + 16}px`;
	}

	render() {
		// Marks of what began, in all parts; with words where there is room for them before the next one, or before the end of the time.
		if (this.again) this.again();
		for (const part of this.parts) {
			const { from, to } = part.range(),
				[left, right] = part.edges(),
				end = part.place.clientWidth - right,
				its = this.selected;
			part.chosen.hidden = !its || its.to < from || its.from > to;
			if (!part.chosen.hidden) this.lay(part.chosen, part, its.from, its.to);
			let next = end;
			part.marks.replaceChildren(
				...this.marks
					.filter(([at]) => at >= from && at <= to)
					.reverse()
					.map(([at, kind, text]) => {
						const it = el("i", { class: `mark-${kind}` });
						this.lay(it, part, at, at);
						const x = parseFloat(it.style.left);
						if (part.labels && next - x > LEAST_WORDS_PX) {
							it.append(text);
							it.style.maxWidth = `${Math.min(MOST_WORDS_PX, next - x - 4)}px`;
							next = x;
						} else if (part.labels && next === end && x - left > MOST_WORDS_PX) {
							it.append(text);
							it.classList.add("ahead"); // its words are in front of it
							next = x - MOST_WORDS_PX;
						}
						return it;
					}),
			);
		}
	}
}

class Overview {
	// All that is recorded, and the part of it that is shown.
	constructor(axis) {
		this.axis = axis;
		this.place = $("overview");
		this.canvas = this.place.querySelector("canvas");
		this.window = this.place.querySelector(".window");
		axis.attach(this.place, {
			edges: () => [0, 0],
			range: () => axis.whole,
			tell: () => ["Drag to select a time, double-click to reset."],
		});
	}

	render(points) {
		const [pen, width, height] = surface(this.canvas, 22),
			{ from, to } = this.axis.whole,
			x = (at) => ((at - from) / (to - from)) * width;
		const most = Math.max(1, ...points.map((p) => p.figures.running + p.figures.waiting));
		for (const [colour, value] of [
			[COLOURS.preempted, (p) => p.figures.running + p.figures.waiting],
			[COLOURS.decode, (p) => p.figures.running],
		]) {
			pen.beginPath();
			pen.moveTo(x(points[0].at), height);
			for (const p of points) pen.lineTo(x(p.at), height - ((height - 3) * value(p)) / most);
			pen.lineTo(x(points[points.length - 1].at), height);
			pen.globalAlpha = 0.55;
			pen.fillStyle = colour;
			pen.fill();
		}
		pen.globalAlpha = 1;
		this.axis.lay(
			this.window,
			{ place: this.place, edges: () => [0, 0], range: () => this.axis.whole },
			this.axis.range.from,
			this.axis.range.to,
		);
	}
}
