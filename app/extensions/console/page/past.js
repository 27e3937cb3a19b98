"use strict";
// The time before the page was opened, as far as the server has kept it: the figures of each half second.

const PAST_STEP_MS = 500;

function pastOf(model) {
	// Points before that of a model, each with figures. How full the KV cache was is not kept: null.
	return model.before.map(([at, ...values]) => ({
		at,
		figures: Object.fromEntries(model.names.map((name, k) => [name, values[k]])),
		pods: [],
		past: true,
	}));
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
