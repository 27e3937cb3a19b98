"use strict";
// The time before the page was opened, as far as the server has kept it: counts of each half second, from the bars of a picture.

const PAST_STEP_MS = 500;

function pastOf(model, from) {
	// Moments before that of a model, in order, each with figures. How full the KV cache was is not kept: null.
	const moments = [];
	for (let at = model.at - PAST_STEP_MS; at >= from; at -= PAST_STEP_MS) moments.unshift(at);
	if (!moments.length) return [];
	const slot = (at) =>
		Math.max(0, Math.min(moments.length, Math.ceil((at - moments[0]) / PAST_STEP_MS)));
	const row = () => new Float64Array(moments.length + 1);
	const running = row(),
		waiting = row();
	const later = { generated: row(), prompt: row(), cached: row(), queries: row(), hits: row() };
	for (const name of [...FINISHES, "refused"]) later[name] = row();
	const between = (counts, begin, end) => {
		counts[slot(begin)] += 1;
		counts[slot(end)] -= 1;
	};
	const before = (counts, at, value) => {
		for (let k = slot(at) - 1; k >= 0; k--) counts[k] += value;
	};
	for (const bar of model.bars.values()) {
		const end = bar.end === null ? Infinity : bar.end,
			refused = bar.reason.startsWith("status");
		if (refused) before(later.refused, end, 1);
		else if (later[bar.reason] && bar.end !== null) before(later[bar.reason], end, 1);
		if (refused) continue;
		const begun = bar.parts.length > 1 ? bar.parts[1][1] : end;
		between(waiting, bar.arrival, begun);
		between(running, begun, end);
		if (bar.first === null) continue;
		for (const name of ["prompt", "queries"]) before(later[name], bar.first, bar.prompt);
		for (const name of ["cached", "hits"]) before(later[name], bar.first, bar.cached);
		writtenLater(bar, model.at, moments, slot, later.generated);
	}
	for (const counts of [running, waiting])
		for (let k = 1; k < counts.length; k++) counts[k] += counts[k - 1];
	return moments.map((at, k) => {
		const figures = {
			...model.figures,
			running: running[k],
			waiting: waiting[k],
			cache_usage: null,
		};
		for (const [name, counts] of Object.entries(later))
			if (name in figures) figures[name] = Math.max(0, figures[name] - counts[k]);
		return { at, figures, pods: [], past: true };
	});
}

function writtenLater(bar, now, moments, slot, counts) {
	// Adds the tokens that a bar had not written yet at each moment. Between the first and the last they came evenly.
	const last = bar.end === null ? now : bar.first + (bar.itl || 0) * (bar.tokens - 1),
		every = (last - bar.first) / Math.max(1, bar.tokens - 1);
	for (let k = slot(last) - 1; k >= 0; k--) {
		const written =
			moments[k] < bar.first ? 0 : 1 + Math.floor((moments[k] - bar.first) / Math.max(every, 1e-3));
		counts[k] += Math.max(0, bar.tokens - written);
	}
}

function stepsOf(past) {
	// Rows for a server without shared steps: what was computed in each half second up to the last point.
	const rows = [];
	for (let k = 1; k < past.length; k++) {
		const { figures } = past[k],
			before = past[k - 1].figures;
		const prompts = figures.prompt - before.prompt - (figures.cached - before.cached),
			decodes = figures.generated - before.generated;
		if (prompts > 0 || decodes > 0)
			rows.push([
				past[k - 1].at,
				PAST_STEP_MS,
				Math.max(0, prompts),
				Math.max(0, decodes),
				figures.running,
			]);
	}
	return rows;
}
