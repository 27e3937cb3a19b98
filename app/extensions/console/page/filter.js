"use strict";
// The columns of requests, by which they are sorted, and the words that filter them.

// Of each column: its key in a filter, its heading, its value, how that is written.
const COLUMNS = [
	["id", "request", (bar) => bar.id],
	["path", "path", (bar) => bar.path],
	["state", "state", (bar) => (bar.end === null ? PHASES[bar.phase] : bar.reason)],
	["adapter", "adapter", (bar) => bar.adapter || ""],
	["prompt", "prompt", (bar) => bar.prompt, whole],
	["cached", "cached", (bar) => bar.cached, whole],
	["output", "output", (bar) => bar.tokens, whole],
	["waited", "waited", waitOf, ms],
	["ttft", "first token", (bar) => (bar.first === null ? null : bar.first - bar.arrival), ms],
	["gap", "gap", (bar) => bar.itl ?? null, ms],
	["took", "took", (bar, now) => (bar.end ?? now) - bar.arrival, ms],
].map(([key, heading, value, text = String]) => ({ key, heading, value, text }));

function waitOf(bar) {
	const next = bar.parts.find(([phase]) => phase !== QUEUED);
	return next ? next[1] - bar.arrival : null;
}

function filterOf(text) {
	// A test of a bar: each word is in its texts, or compares a column: "path:chat", "took>2s", "output<10".
	const tests = text
		.toLowerCase()
		.split(/\s+/)
		.filter(Boolean)
		.map((word) => {
			const [, key, sign, value] = word.match(/^([a-z]+)([<>:])(.+)$/) || [],
				column = COLUMNS.find((it) => it.key === key);
			if (!column)
				return (bar) =>
					`${bar.id} ${bar.path} ${bar.adapter || ""} ${bar.reason}`.toLowerCase().includes(word);
			if (sign === ":")
				return (bar, now) => `${column.value(bar, now)}`.toLowerCase().includes(value);
			const limit = parseFloat(value) * (/\ds$/.test(value) ? 1000 : 1);
			return (bar, now) => {
				const its = column.value(bar, now);
				return its !== null && (sign === ">" ? its > limit : its < limit);
			};
		});
	return (bar, now) => tests.every((test) => test(bar, now));
}

function sorted(rows, { key, down }, now) {
	// By a column; what has no value yet comes last.
	const { value } = COLUMNS.find((it) => it.key === key),
		sign = down ? -1 : 1;
	return rows
		.map((bar) => [value(bar, now), bar])
		.sort(([a], [b]) => (a === null) - (b === null) || (a < b ? -sign : a > b ? sign : 0))
		.map(([, bar]) => bar);
}
