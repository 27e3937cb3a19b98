"use strict";
// The last five minutes: frames as they came, copies of the model to begin from, points for the charts.

const RECORD_MS = 300000,
	MOST_BYTES = 48 << 20,
	COPY_EVERY_MS = 20000,
	MEAN_MS = 5000;
const FINISHES = ["stop", "length", "abort", "error", "repetition"];

class Recorder {
	constructor() {
		this.reset();
		this.endless = false;
	}

	reset() {
		this.frames = []; // {at, text}
		this.copies = []; // {at, model}: the state after the frame of that moment
		this.points = []; // {at, figures, rates, pods}
		this.samples = []; // {at, ttft, itl, e2e}: latencies in tenths of a millisecond and their counts, flat
		this.ends = []; // of each choice that ended: when, its path, what it took
		this.bytes = 0;
		this.summary = undefined; // of a simulation
	}

	begin(model) {
		this.reset();
		this.goOn(model);
	}

	goOn(model, text) {
		// From a whole picture, which is kept for what came since the last frame; its bars know the first tokens.
		const last = this.points.length ? this.points[this.points.length - 1].at : -Infinity;
		const bars = [...model.bars.values()],
			missed = bars
				.filter((bar) => bar.first > last && bar.first !== null)
				.map((bar) => ({ at: bar.first, ttft: [tenths(bar.first - bar.arrival), 1] }));
		for (const end of this.take(
			bars.filter((bar) => bar.end > last && bar.end !== null),
			model,
		))
			missed.push({ at: end.at, e2e: e2eOf(end) });
		this.samples.push(...missed.sort((a, b) => a.at - b.at));
		this.remember(model, last);
		this.shown = null;
		if (text) this.frames.push({ at: model.at, text });
		this.bytes += text ? text.length : 0;
		this.copies.push({ at: model.at, model: model.clone() });
		this.point(model);
	}

	remember(model, last) {
		// Fills the curves, and the steps of a server that has none, with what the picture knows of the time before.
		const past = pastOf(model);
		for (const point of past) if (point.at > last) this.point(point);
		if (!model.server.shared_steps && !model.steps.length) model.steps = stepsOf([...past, model]);
	}

	add(frame, text, model) {
		this.frames.push({ at: model.at, text });
		const ended = (frame.ended || []).map(([number]) => model.bars.get(number)).filter(Boolean),
			e2e = this.take(ended, model).flatMap(e2eOf);
		if (frame.ttft || frame.itl || e2e.length)
			this.samples.push({ at: frame.at, ttft: frame.ttft, itl: frame.itl, e2e });
		this.bytes += text.length;
		if (model.at - this.copies[this.copies.length - 1].at >= this.spacing)
			this.copies.push({ at: model.at, model: model.clone() });
		this.point(model);
		if (!this.endless) this.forget(model.at);
	}

	take(bars, model) {
		// Notes the bars that have ended, in the order of their ends; returns what was noted.
		const ends = bars.map((bar) => ({
			at: bar.end,
			path: bar.path,
			took: bar.end - bar.arrival,
			prompt: bar.prompt,
			tokens: bar.tokens,
			failed: model.failed(bar),
			weight: model.server.requests_per_bar || 1,
		}));
		ends.sort((a, b) => a.at - b.at);
		this.ends.push(...ends);
		return ends;
	}

	get spacing() {
		return this.endless ? Math.max(COPY_EVERY_MS, this.length / 12) : COPY_EVERY_MS;
	}

	point(model) {
		const figures = { ...model.figures },
			last = this.points[this.points.length - 1];
		const since = (point, names) =>
			point ? rateSince(figures, point.figures, names, (model.at - point.at) / 1000) : 0;
		const rates = { ended: since(last, FINISHES) };
		for (const name of ["generated", "prompt", "preemptions", "refused", ...FINISHES])
			rates[name] = since(last, [name]);
		const before = this.points[Math.max(0, after(this.points, model.at - MEAN_MS) - 1)],
			mean = { generated: since(before, ["generated"]), ended: since(before, FINISHES) };
		for (const name of ["refused", ...FINISHES]) mean[name] = since(before, [name]);
		for (const name of ["ttft", "itl"])
			rates[name] = this.middle(name, model) ?? (last ? last.rates[name] : 0);
		rates.longest = this.longest(model);
		if (model.past) rates.itl = null; // not kept
		this.points.push({ at: model.at, figures, rates, mean, pods: model.pods });
	}

	longest(model) {
		// The longest gap between tokens of a frame; null without tokens.
		const sample = this.samples[this.samples.length - 1];
		let most = null;
		if (sample && sample.at === model.at)
			pairs(sample.itl, (value) => {
				most = Math.max(most ?? 0, value / 10);
			});
		return most;
	}

	middle(name, model) {
		// The median of the last three seconds; null when nothing came.
		const tally = new Tally(name);
		tally.move(this.samples, model.at - 3000, model.at);
		return new Spread(tally.counts).quantile(0.5);
	}

	forget(now) {
		const first = now - RECORD_MS;
		while (
			this.frames.length &&
			this.copies.length > 1 &&
			(this.copies[1].at <= first || this.bytes > MOST_BYTES)
		) {
			this.copies.shift();
			const from = this.copies[0].at;
			let gone = 0;
			while (gone < this.frames.length && this.frames[gone].at <= from)
				this.bytes -= this.frames[gone++].text.length;
			this.frames.splice(0, gone);
		}
		let old = 0;
		while (old < this.points.length && this.points[old].at < first) old++;
		if (old > 40) this.points.splice(0, old);
		old = after(this.samples, first);
		if (old > 40) this.samples.splice(0, old);
		old = after(this.ends, first);
		if (old > 40) this.ends.splice(0, old);
	}

	get known() {
		return this.points.length ? Math.min(this.first, this.points[0].at) : this.first;
	} // the first moment of the curves
	get first() {
		return this.copies.length ? this.copies[0].at : 0;
	}
	get last() {
		return this.frames.length ? this.frames[this.frames.length - 1].at : this.first;
	}

	at(moment) {
		// The model at a moment. What was shown just before goes on from there.
		const shown = this.shown;
		let copy = this.copies[0];
		for (const each of this.copies) if (each.at <= moment) copy = each;
		const model = shown && shown.at <= moment && shown.at >= copy.at ? shown : copy.model.clone();
		const from = after(this.frames, model.at);
		for (let k = from; k < this.frames.length && this.frames[k].at <= moment; k++)
			model.apply(JSON.parse(this.frames[k].text));
		this.shown = model;
		return model;
	}

	text() {
		// A file of lines: a picture, then the frames behind it, and pictures where frames were lost.
		const first = this.copies[0];
		const later = this.frames.filter((frame) => frame.at > first.at).map((frame) => frame.text);
		const past = this.points
			.filter((point) => point.at < first.at)
			.map(({ at, figures }) => [at, ...first.model.names.map((name) => figures[name])]);
		return [JSON.stringify({ ...first.model.picture(), past }), ...later].join("\n");
	}

	read(text) {
		const lines = text.split("\n").filter((line) => line.trim());
		const picture = JSON.parse(lines[0]);
		if (picture.version && picture.version !== VERSION)
			throw `This file has a different version (${Number(picture.version)}; this page reads version ${VERSION}).`;
		if (!picture.version || !picture.frame) throw new Error("not a recording of a single run");
		let model = new Model(picture);
		this.begin(model);
		this.endless = true;
		const last = JSON.parse(lines[lines.length - 1]);
		this.length = (last.frame || last).at - model.at;
		for (const line of lines.slice(1)) {
			const frame = JSON.parse(line);
			if (frame.frame) this.goOn((model = new Model(frame)), line);
			else {
				model.apply(frame);
				this.add(frame, line, model);
			}
		}
		if (model.began === null) this.summary = summaryOf(this.points, this.samples);
		return model;
	}
}

function after(list, moment) {
	// The place of the first one after a moment.
	let low = 0,
		high = list.length;
	while (low < high) {
		const middle = (low + high) >> 1;
		if (list[middle].at <= moment) low = middle + 1;
		else high = middle;
	}
	return low;
}

class Tally {
	// Counts of latencies in a span of time, which goes on with time: what is new is added, what is old taken away.
	constructor(name) {
		this.name = name;
	}

	move(samples, from, to) {
		if (!this.counts || samples[0] !== this.head || from < this.from || to < this.to)
			Object.assign(this, { counts: new Map(), head: samples[0], from, to: from });
		this.count(samples, this.to, to, 1);
		this.count(samples, this.from, Math.min(from, to), -1);
		this.from = from;
		this.to = to;
	}

	count(samples, from, to, sign) {
		for (let k = after(samples, from); k < samples.length && samples[k].at <= to; k++) {
			pairs(samples[k][this.name], (value, count) => {
				const now = (this.counts.get(value) || 0) + sign * count;
				if (now) this.counts.set(value, now);
				else this.counts.delete(value);
			});
		}
	}
}

class Spread {
	// Latencies in milliseconds: those of a tally, and those of requests that still wait.
	constructor(counts, waits = [], weight = 1) {
		const rows = [...counts].map(([value, count]) => [value / 10, count]);
		for (const wait of waits) rows.push([wait, weight]);
		this.take(rows);
	}

	take(rows) {
		this.rows = rows.sort((a, b) => a[0] - b[0]);
		this.total = rows.reduce((sum, row) => sum + row[1], 0);
	}

	get mean() {
		return this.total
			? this.rows.reduce((sum, row) => sum + row[0] * row[1], 0) / this.total
			: null;
	}

	quantile(share) {
		// The value that is above this share of all values.
		let rank = Math.floor(this.total * share);
		for (const [value, count] of this.rows) if ((rank -= count) < 0) return value;
		return null;
	}

	within(limit) {
		return (
			this.rows.reduce((sum, [value, count]) => sum + (value <= limit ? count : 0), 0) / this.total
		);
	}
}

function tenths(value) {
	return Math.round(value * 10);
}

function e2eOf(end) {
	// A latency and its count, flat; none of what has failed.
	return end.failed ? [] : [tenths(end.took), end.weight];
}
