"use strict";
// Sums of a selected time: what requests did in it, and the steps.

function sumsOf(model, from, to) {
	// Of each phase: [name, requests, milliseconds of all together, the mean]; and of the steps that began.
	const rows = PHASES.map((name) => [name, 0, 0]);
	let requests = 0,
		ended = 0,
		failed = 0;
	for (const bar of model.bars.values()) {
		const end = bar.end ?? model.at;
		if (bar.arrival >= to || end <= from) continue;
		requests++;
		if (bar.end !== null && bar.end < to) {
			ended++;
			failed += model.failed(bar);
		}
		const seen = new Set();
		for (const [phase, since, until] of spansOf(bar, model.at)) {
			const length = Math.min(until, to) - Math.max(since, from);
			if (length <= 0) continue;
			if (!seen.has(phase)) rows[phase][1]++;
			seen.add(phase);
			rows[phase][2] += length;
		}
	}
	const steps = model.steps.filter(([begin]) => begin >= from && begin < to),
		sum = (place) => steps.reduce((total, row) => total + row[place], 0);
	return {
		requests,
		ended,
		failed,
		phases: rows.filter(([, number]) => number).map((row) => [...row, row[2] / row[1]]),
		steps: steps.length,
		busy: sum(1),
		prefill: sum(2),
		decode: sum(3),
	};
}

function showSums(model, axis) {
	const range = axis.selected || axis.zoomed;
	$("sums").hidden = !range;
	if (!range) return;
	const { from, to } = range,
		sums = sumsOf(model, from, to);
	$("sums-title").textContent = `${axis.selected ? "Selected" : "Visible"}: ${ms(to - from)}`;
	$("sums-line").textContent =
		`${count(sums.requests, "request")}, ${whole(sums.ended)} ended, ${whole(sums.failed)} failed; ` +
		`${count(sums.steps, "step")} of ${ms(sums.steps ? sums.busy / sums.steps : null)} on average, ` +
		`${whole(sums.prefill)} prefill and ${whole(sums.decode)} decode tokens`;
	$("sums-rows").replaceChildren(
		...sums.phases.map(([name, number, total, mean]) =>
			tr(name, whole(number), ms(total), ms(mean)),
		),
	);
}
