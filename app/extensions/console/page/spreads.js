"use strict";
// Distributions of latencies against an SLO: exact values in bins of equal width.

const SPREADS = {
	ttft: ["Time to first token", "requests", 500],
	itl: ["Between tokens", "tokens", 50],
	e2e: ["End to end", "requests", 5000],
};

class Spreads {
	constructor() {
		this.tallies = {};
		for (const [name, [title, , limit]] of Object.entries(SPREADS)) {
			this.tallies[name] = new Tally(name);
			const field = (id, value, label, more) =>
				el("input", {
					id,
					type: "number",
					min: 1,
					...more,
					value: sessionStorage.getItem(id) || value,
					"aria-label": `${title}: ${label}`,
					oninput: (event) => sessionStorage.setItem(id, event.target.value),
				});
			$("spreads").append(
				box(
					"spread",
					box(
						"spread-head",
						el("h3", {}, title),
						span("", "SLO "),
						field(`want-${name}`, 99, "wanted share in percent", { max: 100, step: 0.1 }),
						span("", "% within"),
						field(`slo-${name}`, limit, "limit in milliseconds"),
						span("", "ms"),
					),
					el("canvas", { id: name, class: "plain", role: "img" }),
					el("p", { id: `${name}-line`, class: "line" }),
				),
			);
		}
	}

	latency(model, samples) {
		// Figures of the chosen time. Who still waits for a first token counts with the time until now.
		const seconds = Number($("window").value) || Infinity,
			told = {};
		for (const name of Object.keys(SPREADS)) {
			const waits = name === "ttft" ? model.waits() : [];
			this.tallies[name].move(samples, model.at - seconds * 1000, model.at);
			const spread = new Spread(this.tallies[name].counts, waits, model.server.requests_per_bar),
				limit = Number($(`slo-${name}`).value) || 1;
			const [p50, p90, p99] = [0.5, 0.9, 0.99].map((share) => spread.quantile(share));
			told[name] = {
				...binsOf(spread.rows, Math.max(limit * 1.2, (p99 || 0) * 1.1)),
				limit,
				wanted: Number($(`want-${name}`).value) / 100,
				max: spread.rows.length ? spread.rows[spread.rows.length - 1][0] : null,
				total: spread.total,
				within: spread.within(limit),
				waiting: waits.length,
				p50,
				p90,
				p99,
			};
		}
		return told;
	}

	render(latency) {
		for (const name of Object.keys(SPREADS)) this.spread(name, latency[name]);
	}

	spread(name, { counts, width, limit, wanted, total, within, waiting, p50, p90, p99, max }) {
		const canvas = $(name),
			[pen, wide, height] = surface(canvas, 96),
			low = height - 17,
			left = 46,
			most = Math.max(...counts, 1),
			bins = counts.length,
			x = (value) => left + ((wide - left - 4) * value) / (width * bins),
			y = (count) => low - ((low - 18) * count) / most;
		aligned(pen, COLOURS.muted, "left").fillText(
			`${SPREADS[name][1]} per ${short(width)} ms`,
			0,
			6,
		);
		pen.textAlign = "right";
		for (const count of ticksTo(most, Math.max(1, niceBelow(most)))) {
			pen.fillStyle = COLOURS.line;
			pen.fillRect(left, Math.round(y(count)), wide - left, 1);
			pen.fillStyle = COLOURS.muted;
			pen.fillText(short(count), left - 6, y(count));
		}
		counts.forEach((count, k) => {
			const [from, to] = [width * k, k === bins - 1 ? Infinity : width * (k + 1)],
				high = count ? Math.max(2, low - y(count)) : 0;
			pen.fillStyle =
				to <= limit ? COLOURS.decode : from >= limit ? COLOURS.failed : COLOURS.preempted;
			pen.fillRect(x(from) + 1, low - high, x(width) - left - 1.5, high);
		});
		pen.fillStyle = COLOURS.text;
		pen.fillRect(x(limit), 14, 1, low - 14);
		pen.fillStyle = COLOURS.muted;
		pen.textAlign = "center";
		const last = width * (bins - 1),
			ticks = ticksTo(last, nice(last / Math.max(2, Math.floor(wide / 80))));
		for (const value of ticks)
			if (x(value) < wide - 90) pen.fillText(short(value), x(value), low + 9);
		const over = counts[bins - 1];
		pen.textAlign = "right";
		pen.fillText(`> ${short(last)} ms`, wide, low + 9);
		if (over) {
			pen.fillStyle = COLOURS.failed;
			pen.fillText(`${short(over)} longer than ${short(last)} ms, up to ${ms(max)}`, wide, 6);
		}
		const line = total
			? `p50 ${ms(p50)}, p90 ${ms(p90)}, p99 ${ms(p99)}, max ${ms(max)}; ${(within * 100).toFixed(within > 0.995 && within < 1 ? 2 : 1)} % of ${whole(total)} within ${limit} ms (${Number((wanted * 100).toFixed(2))} % wanted)${waiting ? `; ${whole(waiting)} still waiting` : ""}`
			: "no requests in this time";
		$(`${name}-line`).textContent = line;
		$(`${name}-line`).classList.toggle("bad", total > 0 && within < wanted);
		canvas.setAttribute("aria-label", line);
	}
}
