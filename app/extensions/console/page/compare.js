"use strict";
// Two runs on one time axis: a sentence, figures, requests as densities, curves over each other, where they part.

const BINS = 300,
	LEFT = 46,
	APART_MS = 5,
	APART = 0.1,
	LATE_MS = 100;
const OVERLAID = [
	["requests waiting", (p) => p.figures.waiting],
	["first token, ms (median of 3 s)", (p) => p.rates.ttft],
	["output tokens per second", (p) => p.rates.generated],
	["% of the KV cache", cacheUse],
	[
		"% of prompt tokens cached, so far",
		(p) => (p.figures.queries ? (p.figures.hits / p.figures.queries) * 100 : null),
	],
];
const FINITE = ([, value]) => Number.isFinite(value) && value >= 0;

let compared = null; // the comparison that was made or opened last

class Run {
	// A recording with a row for each of its requests, in order of arrival.
	constructor(name, text, live = false) {
		const recorder = new Recorder(),
			rows = new Map();
		Object.assign(this, {
			name,
			text,
			live,
			model: recorder.read(text),
			points: recorder.points,
			last: recorder.last,
		});
		for (const line of text.split("\n")) if (line.trim()) this.take(rows, JSON.parse(line));
		this.rows = [...rows.values()].sort((a, b) => a.arrival - b.arrival);
		this.zero = this.rows.length ? this.rows[0].arrival : 0;
		this.per = this.model.server.requests_per_bar || 1;
	}

	take(rows, line) {
		const frame = line.frame || line;
		for (const [number, , , prompt, , arrival] of frame.new || [])
			rows.set(number, {
				prompt,
				arrival,
				running: null,
				first: null,
				end: null,
				last: null,
				tokens: 0,
				reason: "",
			});
		for (const [number, phase, since] of frame.phases || []) {
			const row = rows.get(number) || {};
			if (phase === DECODE) row.first ??= since;
			if (phase !== QUEUED) row.running ??= since;
		}
		for (const [number, reason, end, tokens, , running, first, last] of frame.ended || [])
			Object.assign(rows.get(number) || {}, { reason, end, tokens, running, first, last });
	}

	figures() {
		// By the names of app/extensions/console/compare.py, which tells the better run. Who still waits counts with the time until the end.
		const { rows, per, zero, points } = this,
			failed = (row) => row.end !== null && this.model.failed(row),
			sum = (values) => values.reduce((a, b) => a + b, 0);
		const done = rows.filter((row) => row.end !== null && !failed(row)),
			ran = rows.filter((row) => row.running !== null),
			began = ran.filter((row) => row.first !== null),
			from = points[0].figures,
			to = points[points.length - 1].figures;
		const times = {
			TTFT: rows
				.filter((row) => row.first !== null || !failed(row) || row.reason === "abort")
				.map((row) => (row.first ?? row.end ?? this.last) - row.arrival),
			TPOT: done
				.filter((row) => row.tokens > 1)
				.map((row) => (row.last - row.first) / (row.tokens - 1)),
			E2E: done.map((row) => row.end - row.arrival),
		};
		this.times = times;
		const figures = {
			"output tokens/s":
				(sum(done.map((row) => row.tokens)) * per * 1000) /
				(Math.max(...done.map((row) => row.end)) - zero),
			failed: rows.filter(failed).length / rows.length,
			"prompt tokens cached": (to.hits - from.hits) / (to.queries - from.queries),
			"mean wait in the queue": sum(ran.map((row) => row.running - row.arrival)) / ran.length,
			"mean prefill": sum(began.map((row) => row.first - row.running)) / began.length,
			requests: rows.length * per,
			"prompt tokens": sum(rows.map((row) => row.prompt)) * per,
		};
		for (const [name, values] of Object.entries(times)) {
			values.sort((a, b) => a - b);
			for (const part of [50, 90, 99])
				figures[`${name} p${part}`] = values[Math.floor((values.length * part) / 100)];
		}
		return { name: this.name, figures: Object.fromEntries(Object.entries(figures).filter(FINITE)) };
	}

	density(from, step) {
		// At each moment of the grid: requests that wait, prefill or decode; the last two; the last.
		const counts = [0, 0, 0].map(() => Array(BINS + 1).fill(0)),
			slot = (at) => Math.min(BINS, Math.max(0, Math.ceil((at - this.zero - from) / step)));
		for (const { arrival, running, first, end } of this.rows) {
			const over = slot(end ?? Infinity);
			[arrival, running ?? end, first ?? end].forEach((at, k) => {
				counts[k][slot(at ?? Infinity)] += this.per;
				counts[k][over] -= this.per;
			});
		}
		for (const row of counts) for (let k = 1; k < row.length; k++) row[k] += row[k - 1];
		return counts.map((row) => row.slice(0, BINS));
	}

	curve(from, step, value) {
		return Array.from({ length: BINS }, (_, place) => {
			const at = this.zero + from + place * step;
			return at > this.last + step
				? null
				: value(this.points[Math.max(0, after(this.points, at) - 1)]);
		});
	}
}

function parting(a, b) {
	// The first moment at which a request, by its place in the order of arrival, is another one or has another fate.
	let found = null;
	const part = (at, k, what, one, two) => {
		if (!found || at < found.at)
			found = {
				at,
				text: `request ${whole(k + 1)} ${what} ${one} in ${a.name}, ${two} in ${b.name}`,
			};
	};
	for (let k = 0; k < Math.min(a.rows.length, b.rows.length); k++) {
		const one = a.rows[k],
			two = b.rows[k],
			came = [one.arrival - a.zero, two.arrival - b.zero],
			at = Math.min(...came);
		if (found && at > found.at) break;
		if (one.prompt !== two.prompt)
			part(at, k, "has", `${whole(one.prompt)} prompt tokens`, whole(two.prompt));
		else if (Math.abs(came[0] - came[1]) > LATE_MS) part(at, k, "arrives after", ...came.map(ms));
		for (const [name, what] of [
			["first", "has its first token after"],
			["end", "ends after"],
		]) {
			const took = [(one[name] ?? a.last) - one.arrival, (two[name] ?? b.last) - two.arrival],
				low = Math.min(...took);
			if (Math.abs(took[0] - took[1]) > Math.max(APART_MS, low * APART))
				part(at + low, k, what, ...took.map(ms));
		}
	}
	const more = a.rows.length > b.rows.length ? a : b,
		k = Math.min(a.rows.length, b.rows.length),
		next = more.rows[k];
	if (next && (!found || next.arrival - more.zero < found.at))
		found = { at: next.arrival - more.zero, text: `only ${more.name} has request ${whole(k + 1)}` };
	return found;
}

class CompareView {
	constructor(verdict, runs) {
		Object.assign(this, {
			verdict,
			runs,
			charts: [],
			shown: false,
			cursor: null,
			part: parting(...runs),
		});
		for (const run of runs) run.figures();
		this.length = Math.max(...runs.map((run) => run.last - run.zero), 1);
	}

	text() {
		const texts = this.runs.map((run) => run.text.trimEnd());
		return [
			JSON.stringify({
				version: VERSION,
				comparison: this.verdict,
				runs: this.runs.map((run, k) => [run.name, texts[k].split("\n").length]),
			}),
			...texts,
		].join("\n");
	}

	tell() {
		$("state").textContent = "comparison";
		$("state").className = "pill still";
	}

	show() {
		this.draw();
		this.shown = true;
		if (views) views.detail.hide();
		document.body.classList.add("comparing");
		this.plot();
		this.tell();
		$("model").textContent = $("facts").textContent = "";
		$("compare").textContent = "Compare";
		$("compare").hidden = !!recorded;
	}

	alone(run) {
		// One of the runs; without one, what was shown before.
		this.shown = false;
		document.body.classList.remove("comparing");
		$("comparison").replaceChildren();
		$("compare").textContent = "Both runs";
		$("compare").hidden = false;
		if (run && !run.live) openReport(run.text, run.name);
		else begin();
		soon();
	}

	draw() {
		const { verdict, runs } = this,
			marks = { better: "good", worse: "bad" };
		const rows = verdict.rows.map(([label, one, two, change, mark]) =>
			tr(label, one, two, el("td", { class: marks[mark] || "" }, String(change))),
		);
		this.places = ["Requests", "Differences by percentile", "Both over time"].map((title, k) =>
			el(
				"section",
				{ class: "panel", "aria-label": title },
				el("h2", {}, title),
				el("div", { class: ["", "thirds", "overlaid"][k] }),
			),
		);
		$("comparison").replaceChildren(
			el(
				"section",
				{ class: "panel verdict", "aria-label": "Result" },
				para("sentence", String(verdict.sentence)),
				para(
					"line muted",
					this.part
						? `First difference after ${ago(this.part.at)}: ${this.part.text}.`
						: `No difference: no request differs by ${APART * 100} % and ${APART_MS} ms.`,
				),
				...runs.map((run, k) =>
					box(
						"row",
						span(`spot run-${k}`),
						el("strong", {}, run.name),
						el(
							"button",
							{ onclick: () => this.alone(run) },
							run.live ? "Back to live" : "Show alone",
						),
						span(
							"muted",
							`${run.model.server.model}, ${run.model.server.told || run.model.server.profile || "recorded"}`,
						),
					),
				),
			),
			box(
				"columns",
				box("column", ...this.places),
				el(
					"section",
					{ class: "panel", "aria-label": "Figures" },
					table(["figure", ...runs.map((run) => run.name), "difference"], rows),
				),
			),
		);
	}

	plot(from = 0, to = this.length) {
		// All parts show the same time, with one cursor; dragging zooms all, a double click resets.
		const step = (to - from) / (BINS - 1),
			densities = this.runs.map((run) => run.density(from, step)),
			most = Math.max(1, ...densities.flatMap((rows) => rows[0]));
		this.range = { from, to, step };
		this.charts = this.runs.map((run, k) => ({
			title: run.name,
			high: 150,
			most,
			place: 0,
			series: ["queued", "prefill", "decode"].map((label, row) => ({
				label,
				colour: label,
				fill: true,
				values: densities[k][row],
				less: densities[k][row + 1],
			})),
		}));
		for (const [title, value] of OVERLAID) {
			const series = this.runs.map((run, k) => ({
				label: run.name,
				colour: ["accent", "preempted"][k],
				values: run.curve(from, step, value),
			}));
			if (this.charts.length > 6 || from || series.some(({ values }) => values.some(Boolean)))
				this.charts.push({
					title,
					high: 112,
					place: 2,
					series,
					most: Math.max(1, ...series.flatMap(({ values }) => values)),
				});
		}
		for (const place of this.places) place.lastChild.replaceChildren();
		for (const chart of this.charts) this.add(chart);
		this.quantiles = Object.keys(this.runs[0].times)
			.map((name) => [name, quantileDifferences(...this.runs.map((run) => run.times[name]))])
			.filter(([, rows]) => rows.length)
			.map(([name, rows]) => new QuantileChart(this.places[1].lastChild, name, rows));
		this.redraw();
	}

	add(chart) {
		const canvas = (chart.canvas = el("canvas", { class: "plain" }));
		chart.values = chart.series.map(() => span("mono"));
		this.places[chart.place].lastChild.append(
			box(
				"",
				box(
					"legend",
					el("h3", {}, chart.title),
					...chart.series.map(({ label, colour }, k) => {
						const spot = span("spot");
						spot.style.background = `var(--${colour})`;
						return span("item", spot, label, chart.values[k]);
					}),
				),
				canvas,
			),
		);
		const at = ({ offsetX }) =>
			this.range.from +
			Math.max(0, Math.min(1, (offsetX - LEFT) / (canvas.clientWidth - LEFT))) *
				(this.range.to - this.range.from);
		canvas.onpointerdown = (event) => {
			this.begun = at(event);
			canvas.setPointerCapture(event.pointerId);
		};
		canvas.onpointermove = (event) => {
			this.cursor = at(event);
			this.redraw();
		};
		canvas.onpointerleave = () => {
			this.cursor = null;
			this.redraw();
		};
		canvas.onpointerup = (event) => {
			const ends = [this.begun, at(event)].sort((one, two) => one - two);
			this.begun = null;
			if (ends[1] - ends[0] > Math.max(1, (this.range.to - this.range.from) / 50))
				this.plot(...ends);
			else this.redraw();
		};
		canvas.ondblclick = () => this.plot();
	}

	redraw() {
		if (!this.shown) return;
		for (const chart of this.charts) this.render(chart);
		for (const chart of this.quantiles) chart.render();
	}

	render({ canvas, high, most, series, values }) {
		const { from, to, step } = this.range,
			[pen, width, height] = surface(canvas, high),
			low = height - 18,
			x = (at) => LEFT + ((width - LEFT) * (at - from)) / (to - from),
			y = (value) => low - ((low - 8) * value) / most;
		const line = (at, colour, wide) => {
				pen.fillStyle = COLOURS[colour];
				pen.fillRect(x(at) - wide / 2, 4, wide, low - 4);
			},
			tick = nice(((to - from) * 90) / width);
		pen.textAlign = "right";
		for (let value = 0; value <= most; value += nice(most / 3)) {
			pen.fillStyle = COLOURS.line;
			pen.fillRect(LEFT, Math.round(y(value)), width, 1);
			pen.fillStyle = COLOURS.muted;
			pen.fillText(short(value), LEFT - 6, y(value));
		}
		for (let at = Math.ceil(from / tick) * tick; at <= to; at += tick) {
			line(at, "line", 1);
			pen.fillStyle = COLOURS.muted;
			pen.textAlign = x(at) > width - 24 ? "right" : "center";
			pen.fillText(`${Number((at / 1000).toFixed(3))} s`, x(at), height - 6);
		}
		for (const { values: its, colour, fill } of series) {
			pen.beginPath();
			if (fill) pen.moveTo(LEFT, low);
			its.forEach((value, k) => {
				if (value !== null) pen.lineTo(x(from + k * step), y(value));
			});
			if (fill) pen.lineTo(width, low);
			pen.fillStyle = pen.strokeStyle = COLOURS[colour];
			pen.lineWidth = 1.5;
			if (fill) pen.fill();
			else pen.stroke();
		}
		if (this.part && this.part.at >= from && this.part.at <= to)
			for (let top = 4; top < low; top += 10) {
				pen.fillStyle = COLOURS.failed;
				pen.fillRect(x(this.part.at) - 1, top, 2, 6);
			}
		if (this.begun && this.cursor !== null) {
			pen.globalAlpha = 0.2;
			pen.fillStyle = COLOURS.accent;
			pen.fillRect(x(this.begun), 4, x(this.cursor) - x(this.begun), low - 4);
			pen.globalAlpha = 1;
		}
		if (this.cursor) line(this.cursor, "text", 1);
		const place = this.cursor && Math.min(BINS - 1, Math.round((this.cursor - from) / step));
		series.forEach(({ values: its, less }, k) => {
			values[k].textContent =
				this.cursor && its[place] !== null ? short(its[place] - (less ? less[place] : 0)) : "";
		});
	}
}

function openComparison({ comparison, runs }, text) {
	const lines = text.split("\n"),
		rows = comparison.rows.map((row) => row.map((each) => calm(String(each))));
	let from = 1;
	const next = new CompareView(
		{ better: comparison.better, sentence: calm(String(comparison.sentence)), rows },
		runs
			.slice(0, 2)
			.map(
				([name, count]) =>
					new Run(calm(String(name)), lines.slice(from, (from += count)).join("\n")),
			),
	);
	next.show();
	compared = next;
}

async function compareFiles(files) {
	// Two recordings, or one with what the page shows.
	let name = "Compare";
	try {
		if (files.length > 2) throw "Select two recordings, or one to compare with this run.";
		const runs = [];
		for (const file of files) {
			name = calm(file.name.replace(/\.[^.]*$/, ""));
			runs.push(
				new Run(
					runs.length && runs[0].name === name ? `${name} (2)` : name,
					recordingOf(await file.text()),
				),
			);
		}
		if (runs.length < 2) runs.push(new Run((name = report || "live"), recorder.text(), !report));
		const answer = await ask(
			"POST",
			"compare",
			runs.map((run) => run.figures()),
		);
		if (answer.status !== 200) return warn(answer.error);
		const next = new CompareView(answer.body, runs);
		next.show();
		compared = next;
	} catch (error) {
		warn(
			`${name}: ${typeof error === "string" ? error : "This file is not a recording of a single run of the console."}`,
		);
	}
}
