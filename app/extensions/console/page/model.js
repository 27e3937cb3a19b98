"use strict";
// What the page knows of one moment: a picture to begin with, then frames of what has changed.

const VERSION = 2; // of pictures and frames
const PHASES = ["queued", "prefill", "transfer", "decode", "preempted"];
const QUEUED = 0,
	PREFILL = 1,
	TRANSFER = 2,
	DECODE = 3,
	PREEMPTED = 4;
const MOST_OVER = 2500,
	MOST_STEPS = 27000,
	MOST_EVENTS = 200,
	MOST_MARKS = 200,
	FLASH_MS = 1000,
	MOST_BLOCKS = 65536;
const FREE = 0,
	CACHED = 1,
	HELD = 2,
	SHARED = 3;

class Model {
	constructor(picture) {
		this.began = picture.began;
		this.server = picture.server;
		this.names = picture.names;
		this.bounds = { ttft: picture.ttft_bounds, itl: picture.itl_bounds };
		this.at = 0;
		this.state = "serving";
		this.figures = {};
		this.bars = new Map(); // by number, which is the order of arrival
		this.over = [];
		this.steps = [];
		this.events = [];
		this.failures = new Map(); // reason -> requests
		this.adapters = {};
		this.load = null;
		this.before = picture.past || []; // figures of the time before
		this.marks = []; // [moment, kind, text]: what began
		this.since = picture.since || -Infinity; // what was before is not all known any more
		const blocks = this.server.numbered ? Math.min(this.server.blocks + 1, MOST_BLOCKS) : 0;
		this.blocks = new Uint8Array(blocks);
		this.owners = new Uint32Array(blocks);
		this.flashes = new Map(); // evicted block -> when
		this.apply(picture.frame);
	}

	apply(frame) {
		this.at = frame.at;
		this.state = frame.state || "serving";
		this.names.forEach((name, k) => {
			this.figures[name] = frame.figures[k];
		});
		for (const row of frame.new || []) this.begin(row);
		for (const [number, phase, since, preempted] of frame.phases || [])
			this.turn(number, phase, since, preempted);
		pairs(frame.computed, (number, value) => {
			const bar = this.bars.get(number);
			if (bar) bar.computed = value;
		});
		pairs(frame.chunks, (number, at) => {
			const bar = this.bars.get(number);
			if (bar) bar.chunks.push(at);
		});
		pairs(frame.tokens, (number, value) => {
			const bar = this.bars.get(number);
			if (bar) bar.tokens = value;
		});
		pairs(frame.held, (number, value) => {
			const bar = this.bars.get(number);
			if (bar) bar.held = value;
		});
		pairs(frame.firsts, (number, value) => {
			const bar = this.bars.get(number);
			if (bar) bar.first_block = value;
		});
		for (const row of frame.ended || []) this.finish(row);
		this.paint(frame);
		this.pods = frame.pods || []; // of a simulated fleet
		const forgotten = keep(this.steps, frame.steps, MOST_STEPS * Math.max(1, this.pods.length));
		if (forgotten) this.since = Math.max(this.since, forgotten[0]);
		keep(
			this.marks,
			(frame.marks || [])
				.filter(([at, , text]) => !this.marks.some((own) => own[0] === at && own[2] === text))
				.map(([at, kind, text]) => [at, kind, calm(text)]),
			MOST_MARKS,
		);
		keep(
			this.events,
			(frame.events || []).map((row) => [frame.at, ...row]),
			MOST_EVENTS,
		);
		this.adapters = frame.adapters || {};
		this.load = frame.load || null;
	}

	begin([number, id, choice, prompt, most, arrival, adapter, path, of]) {
		if (this.bars.has(number)) return;
		[id, adapter, path] = [calm(id), calm(adapter), calm(path)];
		this.bars.set(number, {
			number,
			id,
			choice,
			prompt,
			most,
			arrival,
			adapter,
			path,
			of,
			phase: QUEUED,
			tokens: 0,
			computed: 0,
			held: 0,
			preempted: 0,
			parts: [[QUEUED, arrival]],
			chunks: [],
			first_block: 0,
			end: null,
			reason: "",
			first: null,
			cached: 0,
		});
	}

	turn(number, phase, since, preempted) {
		const bar = this.bars.get(number);
		if (!bar) return;
		if (phase === DECODE && bar.first === null) bar.first = since;
		if (phase !== bar.phase) bar.parts.push([phase, since]);
		bar.phase = phase;
		bar.preempted = preempted;
	}

	finish([number, reason, end, tokens, cached, running, first, last]) {
		const bar = this.bars.get(number);
		if (!bar || bar.end !== null) return;
		Object.assign(bar, { reason: calm(reason), end, tokens, cached, first });
		if (this.failed(bar)) this.failures.set(cause(bar), (this.failures.get(cause(bar)) || 0) + 1);
		if (!bar.preempted && this.began !== null) {
			// With shared steps a transfer comes before the first step; without, it takes the place of the prefill.
			const transfer = bar.parts.find(([phase]) => phase === TRANSFER),
				before = transfer && (running === null || transfer[1] < running);
			bar.parts = [[QUEUED, bar.arrival]];
			if (before) bar.parts.push(transfer);
			if (running !== null) bar.parts.push([transfer && !before ? TRANSFER : PREFILL, running]);
			if (first !== null) bar.parts.push([DECODE, first]);
		}
		if (last !== null && first !== null && tokens > 1) bar.itl = (last - first) / (tokens - 1);
		this.over.push(number);
		if (this.over.length > MOST_OVER)
			for (const old of this.over.splice(0, this.over.length - MOST_OVER)) {
				this.since = Math.max(this.since, this.bars.get(old).end);
				this.bars.delete(old);
			}
	}

	paint(frame) {
		const rows = frame.blocks || [];
		for (let k = 0; k < rows.length; k += 3) {
			if (rows[k] >= this.blocks.length) continue;
			this.blocks[rows[k]] = rows[k + 1];
			this.owners[rows[k]] = rows[k + 2];
		}
		for (const [block, at] of this.flashes)
			if (frame.at - at > FLASH_MS) this.flashes.delete(block);
		for (const block of frame.evicted || []) this.flashes.set(block, frame.at);
	}

	waits() {
		// Milliseconds that requests without a first token have waited.
		const waits = [];
		for (const bar of this.bars.values())
			if (bar.end === null && bar.first === null) waits.push(this.at - bar.arrival);
		return waits;
	}

	failed(bar) {
		return bar.reason === "error" || bar.reason === "abort" || bar.reason.startsWith("status");
	}

	picture() {
		// As the server would tell this moment: what a saved recording begins with.
		const frame = {
			at: this.at,
			state: this.state,
			figures: this.names.map((name) => this.figures[name]),
			new: [],
			phases: [],
			tokens: [],
			computed: [],
			chunks: [],
			held: [],
			firsts: [],
			ended: [],
			steps: this.steps,
			pods: this.pods,
			blocks: [],
			adapters: this.adapters,
			marks: this.marks,
		};
		for (const bar of this.bars.values()) {
			const n = bar.number;
			frame.new.push([
				n,
				bar.id,
				bar.choice,
				bar.prompt,
				bar.most,
				bar.arrival,
				bar.adapter,
				bar.path,
				bar.of,
			]);
			for (const [phase, since] of bar.parts.slice(1))
				frame.phases.push([n, phase, since, bar.preempted]);
			frame.tokens.push(n, bar.tokens);
			frame.computed.push(n, bar.computed);
			for (const at of bar.chunks) frame.chunks.push(n, at);
			frame.held.push(n, bar.held);
			if (bar.first_block) frame.firsts.push(n, bar.first_block);
			if (bar.end === null) continue;
			const running = bar.parts[1] ? bar.parts[1][1] : null,
				last = bar.first === null ? null : bar.first + (bar.itl || 0) * (bar.tokens - 1);
			frame.ended.push([n, bar.reason, bar.end, bar.tokens, bar.cached, running, bar.first, last]);
		}
		this.blocks.forEach((state, block) => {
			if (state || this.owners[block]) frame.blocks.push(block, state, this.owners[block]);
		});
		return {
			version: VERSION,
			began: this.began,
			server: this.server,
			names: this.names,
			ttft_bounds: this.bounds.ttft,
			itl_bounds: this.bounds.itl,
			since: Math.max(0, this.since),
			frame,
		};
	}

	clone() {
		const copy = Object.create(Model.prototype);
		Object.assign(copy, this);
		copy.figures = { ...this.figures };
		copy.bars = new Map(
			[...this.bars].map(([number, bar]) => [
				number,
				{ ...bar, parts: bar.parts.slice(), chunks: bar.chunks.slice() },
			]),
		);
		copy.failures = new Map(this.failures);
		copy.over = this.over.slice();
		copy.steps = this.steps.slice();
		copy.events = this.events.slice();
		copy.marks = this.marks.slice();
		copy.blocks = this.blocks.slice();
		copy.owners = this.owners.slice();
		copy.flashes = new Map(this.flashes);
		return copy;
	}
}

function spansOf(bar, now) {
	// The phases of a request, each [phase, since, until].
	return bar.parts.map(([phase, since], k) => [
		phase,
		since,
		k + 1 < bar.parts.length ? bar.parts[k + 1][1] : (bar.end ?? now),
	]);
}

function cause(bar) {
	// In short, of a request that has failed: "429", "left", "error".
	return bar.reason === "abort" ? "left" : bar.reason.replace("status ", "").split(":")[0];
}

function pairs(row, take) {
	if (row) for (let k = 0; k < row.length; k += 2) take(row[k], row[k + 1]);
}

function keep(list, more, most) {
	if (more && more.length) list.push(...more);
	return list.length > most ? list.splice(0, list.length - most).pop() : null; // the last one that is forgotten
}

function calm(text) {
	// Without what would turn the writing of the line around it, or end it.
	return (
		text &&
		text.replace(/[\u0000-\u001f\u007f-\u009f\u200b-\u200f\u2028-\u202e\u2066-\u2069]/g, "\ufffd")
	);
}
