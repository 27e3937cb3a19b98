"use strict";
// Why a request took as long as it did: its phases in milliseconds on a scale, each with its cause, and the steps it shared.

const WAITED = {
	places: "for a slot",
	budget: "for room in a step",
	blocks: "for KV blocks",
	adapter: "for an adapter slot",
	priority: "behind higher priority",
	paused: "while the engine was paused",
	step: "for the running step",
};
const PHASE_COLOURS = { line: "free", queue: "queued" },
	SHOWN_STEPS = 10;

function whyOf(bar, model, told) {
	// The server's explanation; else what the page knows itself, phases and steps, but no causes.
	if (told) return told;
	const end = bar.end === null ? model.at : bar.end,
		refused = bar.end !== null && bar.reason.startsWith("status");
	const phases = refused
		? []
		: spansOf(bar, model.at).map(([phase, since, until]) => ({
				phase: phase === QUEUED ? "queue" : PHASES[phase],
				from_ms: since - bar.arrival,
				to_ms: until - bar.arrival,
				chunks: phase === PREFILL ? bar.chunks.map((at) => [0, at - bar.arrival, 0]) : [],
			}));
	const longest = phases.reduce(
		(most, it) => (it.to_ms - it.from_ms > most.to_ms - most.from_ms ? it : most),
		phases[0],
	);
	const began = bar.parts.length > 1 ? bar.parts[1][1] : end;
	const steps =
		refused || model.pods.length || !model.server.shared_steps
			? []
			: model.steps.filter(
					([begin, , , , , engine = 0]) =>
						begin >= began - 0.1 && begin < end && engine === engineOf(bar, model.server),
				);
	return {
		sentence: refused
			? `Rejected with ${bar.reason}`
			: `${ms(longest.to_ms - longest.from_ms)} of ${ms(end - bar.arrival)} in ${longest.phase}.${report ? " Recordings contain no causes." : ""}`,
		total_ms: end - bar.arrival,
		phases,
		steps: steps.length,
		longest_steps: steps
			.sort((a, b) => b[1] - a[1])
			.slice(0, SHOWN_STEPS)
			.map(([begin, took, prompts, decodes]) => ({
				from_ms: begin - bar.arrival,
				to_ms: begin + took - bar.arrival,
				prompt_tokens: prompts,
				decodes,
				prompts: [],
			})),
	};
}

function whyView(bar, model, told) {
	const why = whyOf(bar, model, told),
		total = Math.max(0.1, why.total_ms),
		share = (at) => `${Math.max(0, Math.min(100, (at / total) * 100))}%`;
	const row = (it) => {
		const track = span("track"),
			part = el("i"),
			cause = [WAITED[it.cause], it.detail].filter(Boolean).join(": ");
		part.style.left = share(it.from_ms);
		part.style.width = share(it.to_ms - it.from_ms);
		part.style.background = COLOURS[PHASE_COLOURS[it.phase] || it.phase];
		track.append(
			part,
			...(it.chunks || []).slice(0, -1).map(([, end]) => {
				const notch = el("b");
				notch.style.left = share(end);
				return notch;
			}),
		);
		const parts =
			(it.chunks || []).length > 1
				? ` in ${it.chunks.length} chunks${it.chunks[0][2] ? ` of ${it.chunks.map(([, , tokens]) => whole(tokens)).join(", ")} tokens` : ""}`
				: "";
		return [
			span("", it.phase),
			track,
			span("number", ms(it.to_ms - it.from_ms)),
			cause || parts ? el("small", { class: "muted" }, cause || parts.trim()) : null,
		];
	};
	const scale = span(
		"track scale",
		...["0", ms(total / 2), ms(total)].map((text) => el("em", {}, text)),
	);
	return el(
		"section",
		{ class: "why" },
		para("sentence", why.sentence),
		why.phases.length ? box("phases", ...why.phases.flatMap(row), span(""), scale) : null,
		why.longest_steps.length ? stepsTable(bar, why, told) : null,
	);
}

function stepsTable(bar, why, told) {
	// The longest steps that it shared, and what else was in them.
	const longest = [...why.longest_steps]
		.sort((a, b) => b.to_ms - b.from_ms - a.to_ms + a.from_ms)
		.slice(0, SHOWN_STEPS);
	const others = (it) => {
		const own = it.prompts.filter(([id]) => calm(id) === bar.id),
			rest = it.prompts.filter(([id]) => calm(id) !== bar.id).sort((a, b) => b[1] - a[1]);
		return [
			...own.map(([, tokens]) => `own ${whole(tokens)}`),
			...rest.slice(0, 2).map(([id, tokens]) => `${calm(id)} ${whole(tokens)}`),
			rest.length > 2 ? `${rest.length - 2} more` : "",
		]
			.filter(Boolean)
			.join(", ");
	};
	return box(
		"",
		el("h3", {}, `${count(why.steps, "step")} in total; the longest`),
		table(
			["after", "took", "prefill", "decode", told ? "prompts" : ""].filter(Boolean),
			longest.map((it) =>
				tr(
					ms(it.from_ms),
					ms(it.to_ms - it.from_ms),
					whole(it.prompt_tokens),
					whole(it.decodes),
					...(told ? [others(it)] : []),
				),
			),
		),
	);
}
