"use strict";
// What happens to a request at a moment: its phase, and steps so long that its stream stands still.

const STALL_MS = 100,
	SECOND_ENGINE = 1000; // bars of a second engine have this number and higher ones

function engineOf(bar, server) {
	return (server.engines || []).length && bar.number >= SECOND_ENGINE ? 1 : 0;
}

function stallsOf(model, from, to) {
	// The long steps within a span of time, each [begin, end, prompt tokens, engine]; while a step runs, these tokens are null.
	if (!model.server.shared_steps || model.pods.length) return [];
	const { at, steps } = model,
		stall = (begin, end, prompts, engine) => [
			begin,
			Math.min(end, at),
			end > at ? null : prompts,
			engine,
		];
	const stalls = steps
		.filter(([begin, took]) => took >= STALL_MS && begin < to && begin + took > from)
		.map(([begin, took, prompts, , , engine = 0]) => stall(begin, begin + took, prompts, engine));
	for (const engine of [0, 1]) {
		const last = steps.findLast((step) => (step[5] || 0) === engine),
			end = last ? last[0] + last[1] : NaN;
		if (at - end >= STALL_MS) stalls.push([end, at, null, engine]);
	}
	return stalls;
}

function holesOf(bar, since, until, stalls, server) {
	// The steps during which a decode, from a moment to another one, got no token.
	const engine = engineOf(bar, server);
	return stalls.filter((it) => it[3] === engine && it[0] > since && it[0] < until);
}

function phaseAt(bar, at, now) {
	// The phase at a moment in words; after the present moment, the present phase.
	const spans = spansOf(bar, now),
		k = spans.findLastIndex(([, since]) => since <= at);
	if (k < 0 || at > (bar.end ?? Infinity)) return "";
	const [phase, since, until] = spans[k];
	const done = {
		[PREFILL]: `, ${whole(bar.computed)} of ${whole(bar.prompt)} prompt tokens`,
		[DECODE]: `, ${whole(bar.tokens)} of ${whole(bar.most)} tokens`,
	}[phase];
	return `${PHASES[phase]} for ${ms(until - since)}${bar.end === null && k === spans.length - 1 ? ` so far${done || ""}` : ""}`;
}
