"use strict";
// The tabs: load, faults, settings, operation, queue, cache events, clients and scripts, ranks.

const FAULTS = {
	"no fault": "",
	"503 for every 10th request": [{ action: "error", status: 503, every: 10 }],
	"429 with Retry-After for every 5th request": [
		{ action: "error", status: 429, retry_after: 2, every: 5 },
	],
	"a stall of 3 s after 5 tokens, 10 % of requests": [
		{ action: "stall", seconds: 3, after: 5, probability: 0.1 },
	],
	"a slow first token (2 s), 20 % of requests": [
		{ action: "slow-first-token", seconds: 2, probability: 0.2 },
	],
	"a broken connection after 3 chunks, 10 % of requests": [
		{ action: "disconnect", after: 3, probability: 0.1 },
	],
	"invalid JSON in a chunk, 10 % of requests": [
		{ action: "malformed-chunk", chunk: 2, probability: 0.1 },
	],
	"a limit of 60 requests per minute": [{ action: "rate-limit", rate: 60, burst: 5 }],
};

class Panels {
	constructor(ask, model) {
		this.ask = ask;
		this.model = model;
		this.server = model.server;
		this.plan = {
			rate: 10,
			seconds: 30,
			prompt_tokens: 200,
			output_tokens: 100,
			groups: 4,
			shared: 96,
		};
		this.knobs = new Knobs(ask, Object.keys(this.server.ranks || {}).length);
		const waits = ["wait", "Queue", () => this.both(this.queue(), this.adapters())],
			cache = [
				"cache",
				"Cache events",
				async () => this.both(this.events(), ask && (await this.index())),
			];
		this.tabs = [
			["load", "Send load", () => this.loads()],
			["break", "Inject faults", () => this.faults()],
			["tune", "Tune", () => this.knobs.make(this.wanted)],
			["operate", "Operate", () => this.control()],
			waits,
			cache,
			[
				"check",
				"Clients",
				async () => this.both(await this.clients(), this.server.scripts && (await this.scripts())),
			],
			["ranks", "Ranks", () => this.ranks()],
		];
		if (!ask) this.tabs = [waits, cache];
		$("tabs").replaceChildren(
			...this.tabs.map(([id, name], k) =>
				el(
					"button",
					{
						role: "tab",
						id: `tab-${id}`,
						tabIndex: k ? -1 : 0,
						onclick: () => this.open(k),
					},
					name,
				),
			),
		);
		$("tabs").onkeydown = (event) => {
			const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
			if (!step) return;
			event.preventDefault();
			event.stopPropagation();
			this.open((this.now + step + this.tabs.length) % this.tabs.length, true);
		};
		this.open(0);
	}

	async open(place, focus = false) {
		if (place >= this.tabs.length) return;
		this.now = place;
		this.refreshes = [];
		for (const timer of this.timers || []) clearInterval(timer);
		this.timers = [];
		[...$("tabs").children].forEach((tab, k) => {
			tab.setAttribute("aria-selected", k === place);
			tab.tabIndex = k === place ? 0 : -1;
			if (focus && k === place) tab.focus();
		});
		$("tab-body").setAttribute("aria-labelledby", $("tabs").children[place].id);
		const body = await this.tabs[place][2]();
		this.wanted = "";
		if (this.now === place) $("tab-body").replaceChildren(body);
		this.render(this.model);
	}

	both(...parts) {
		return box("parts", ...parts.map((part) => part && el("section", {}, part)));
	}

	tune(name) {
		// The setting of this name, to be changed.
		this.wanted = name;
		this.open(2, true);
		$("tab-body").scrollIntoView({ block: "nearest" });
	}

	changed(knobs) {
		if (this.tabs[this.now][0] === "tune") this.knobs.changed(knobs);
	}

	render(model) {
		this.model = model;
		for (const refresh of this.refreshes) refresh(model);
	}

	act(told, method, path, body) {
		return async () => {
			told.className = "muted";
			told.textContent = "…";
			const answer = await this.ask(method, path, body && body());
			told.className = answer.status < 300 ? "good" : "bad";
			told.textContent = answer.status < 300 ? sentence(answer.body) : answer.error;
		};
	}

	every(look) {
		// Now, and every two seconds as long as the tab is open.
		this.timers.push(setInterval(look, 2000));
		return look();
	}

	button(text, work, sure = false) {
		// What cannot be taken back asks once more.
		const made = el("button", {}, text);
		made.addEventListener("click", () => {
			if (sure && !made.dataset.sure) {
				made.dataset.sure = "yes";
				made.textContent = `${text}: really?`;
				setTimeout(() => {
					delete made.dataset.sure;
					made.textContent = text;
				}, 3000);
				return;
			}
			work();
		});
		return made;
	}

	control() {
		const told = el(
			"p",
			{ role: "status", class: "muted" },
			"These actions apply to this rank only.",
		);
		const mode = select("Running requests", [
				["keep", "continue running requests"],
				["wait", "wait for running requests"],
				["abort", "abort running requests"],
			]),
			level = select("Sleep level", [
				["1", "level 1"],
				["2", "level 2"],
				["0", "level 0"],
			]);
		const button = (text, path, sure) =>
			this.button(text, () => this.act(told, "POST", path())(), sure);
		return box(
			"",
			group(
				"Pause",
				mode,
				button("Pause", () => `pause?mode=${mode.value}`),
				button("Resume", () => "resume"),
			),
			group(
				"Sleep",
				level,
				button("Sleep", () => `sleep?level=${level.value}&mode=${mode.value}`),
				button("Wake up", () => "wake_up"),
			),
			group(
				"Prefix cache",
				button("Reset", () => "reset_prefix_cache"),
			),
			group(
				"Drain",
				button("Stop accepting requests", () => "/admin/drain", true),
			),
			told,
		);
	}

	loads() {
		const fields = [
			["rate", "requests per second", 0.1, 500, 0.1],
			["seconds", "seconds", 1, 600],
			["prompt_tokens", "prompt tokens", 1, 100000],
			["output_tokens", "output tokens", 1, 100000],
			["groups", "groups of prompts", 0, 1000],
			["shared", "shared tokens per group", 0, 100000],
		].map(([name, label, min, max, step = 1]) => {
			const oninput = (event) => {
				this.plan[name] = Number(event.target.value);
			};
			const value = this.plan[name],
				input = el("input", { type: "number", name, value, min, max, step, oninput });
			return el("label", {}, label, input);
		});
		const told = el(
				"p",
				{ role: "status", class: "muted" },
				"The server sends these completions to itself over HTTP.",
			),
			state = para("mono");
		this.refreshes.push((model) => {
			const load = model.load;
			state.textContent = load
				? `${load.active ? "running" : "finished"}: ${whole(load.sent)} sent, ${whole(load.in_flight)} in flight, ${whole(load.answered)} answered, ${whole(load.failed)} failed${load.error ? ` (${load.error})` : ""}`
				: "";
		});
		return box(
			"",
			box("form", ...fields),
			box(
				"row",
				this.button("Send", async () => {
					await this.act(told, "POST", "load", () => this.plan)();
					if (told.className === "good") told.textContent = "";
				}),
				this.button("Stop", this.act(told, "DELETE", "load")),
			),
			state,
			told,
		);
	}

	faults() {
		const told = el("p", { role: "status", class: "muted" }),
			rules = el("textarea", { rows: 5, spellcheck: false, "aria-label": "Fault rules as JSON" }),
			rate = el("input", { type: "number", min: 0, max: 100, value: 0 });
		const chosen = select(
			"Example rules",
			Object.keys(FAULTS).map((name) => [name, name]),
		);
		chosen.addEventListener("input", () => {
			rules.value = FAULTS[chosen.value] ? JSON.stringify(FAULTS[chosen.value], null, 1) : "";
		});
		const set = (name, value) =>
			this.act(told, "POST", "/admin/config", () => ({ [name]: value() }));
		// The answer must not replace what was entered before it arrived.
		let entered = false;
		for (const field of [chosen, rules, rate])
			field.addEventListener("input", () => {
				entered = true;
			});
		this.ask("GET", "/admin/config").then((answer) => {
			if (answer.status !== 200 || entered) return;
			rules.value = answer.body["fault-rules"]
				? JSON.stringify(answer.body["fault-rules"], null, 1)
				: "";
			rate.value = answer.body["failure-injection-rate"];
		});
		const struck = para("muted");
		this.every(async () => {
			const answer = await this.ask("GET", "/admin/verdict"),
				all = {};
			if (answer.status !== 200) return;
			for (const client of Object.values(answer.body.clients))
				for (const [name, count] of Object.entries(client.faults))
					all[name] = (all[name] || 0) + count;
			struck.textContent = Object.keys(all).length
				? `Faults so far: ${counts(all)}.`
				: "No faults were injected.";
		});
		return box(
			"",
			group(
				"Rules",
				chosen,
				this.button(
					"Apply",
					set("fault-rules", () => (rules.value.trim() === "" ? null : rules.value)),
				),
				this.button("Clear", () => {
					rules.value = "";
					set("fault-rules", () => null)();
				}),
			),
			rules,
			group(
				"Random errors",
				el("label", {}, rate, " % of requests"),
				this.button(
					"Apply",
					set("failure-injection-rate", () => Number(rate.value)),
				),
			),
			told,
			struck,
		);
	}

	events() {
		const body = el("tbody"),
			place = table(
				["when", "message", "event", "blocks", "tokens", "first hash", "adapter"],
				body,
			);
		if (!this.server.publishes)
			return para(
				"muted",
				"No KV events are published. Enable them with a KV cache and --zmq-endpoint or --kv-index.",
			);
		let last = null;
		this.refreshes.push((model) => {
			const rows = model.events.slice(-60).reverse();
			if (rows[0] === last && rows.length === body.children.length) return;
			last = rows[0];
			body.replaceChildren(
				...rows.map(([at, kind, number, blocks, tokens, hash, adapter]) =>
					tr(`-${ago(model.at - at)}`, number, kind, blocks, tokens || "", hash, adapter),
				),
			);
		});
		return place;
	}

	async index() {
		if (!this.server.index)
			return para("muted", "There is no index of pods. Enable it with --kv-index.");
		const prompt = el("textarea", {
				rows: 4,
				placeholder: "A prompt",
				"aria-label": "Prompt to score",
			}),
			told = el("div", { role: "status" }),
			pods = box("");
		const score = async () => {
			const answer = await this.ask("POST", "/score_completions", { prompt: prompt.value });
			const scores = answer.status === 200 ? Object.entries(answer.body || {}) : [];
			told.replaceChildren(
				answer.status !== 200
					? para("bad", answer.error)
					: scores.length
						? table(
								["pod", "score"],
								scores.map(([pod, value]) => tr(pod, value)),
							)
						: para(
								"muted",
								answer.body === null
									? "The prompt is shorter than one block."
									: "No pod has the beginning of this prompt.",
							),
			);
		};
		const look = async () => {
			const answer = await this.ask("GET", "/kv/index");
			if (answer.status !== 200) return;
			const { size, pods: known, streams, skipped } = answer.body;
			const sizes = size
				? Object.entries(size)
						.map(
							([name, value]) =>
								`${name.replaceAll("_", " ")} ${typeof value === "number" ? whole(value) : value}`,
						)
						.join(", ")
				: "The backend does not answer.";
			pods.replaceChildren(
				para(
					"muted",
					`${sizes}; skipped: ${sum(skipped.messages)} messages, ${sum(skipped.events)} events`,
				),
				table(
					["pod", "model", "rank", "last message", "behind"],
					streams.map((it) =>
						tr(
							it.pod,
							it.model,
							it.rank,
							it.last_sequence,
							it.lag_seconds === null ? "" : ms(it.lag_seconds * 1000),
						),
					),
				),
				streams.length || !known ? "" : para("", `Pods: ${JSON.stringify(known)}`),
			);
		};
		await this.every(look);
		return box("", pods, prompt, box("row", this.button("Score", score)), told);
	}

	async clients() {
		const place = box(""),
			told = el("p", { role: "status" });
		const look = async () => {
			const verdict = await this.ask("GET", "/admin/verdict");
			if (verdict.status !== 200) {
				place.replaceChildren(para("bad", verdict.error));
				return;
			}
			const clients = Object.entries(verdict.body.clients);
			place.replaceChildren(
				el(
					"p",
					{ class: verdict.body.clean ? "good" : "bad" },
					verdict.body.clean
						? "No client made a mistake."
						: "Some clients handle errors incorrectly.",
				),
				clients.length
					? table(
							["client", "requests", "errors", "faults", "left", "findings"],
							clients.map(([name, it]) =>
								tr(
									name,
									it.requests,
									counts(it.errors),
									counts(it.faults),
									it.disconnects,
									it.findings
										.map((found) => `${found.kind} ${found.count}×: ${found.what}`)
										.join(" "),
								),
							),
						)
					: "",
			);
		};
		await this.every(look);
		return box(
			"",
			place,
			box(
				"row",
				this.button(
					"Clear",
					async () => {
						await this.act(told, "DELETE", "/admin/verdict")();
						told.textContent = "";
						look();
					},
					true,
				),
			),
			told,
		);
	}

	async scripts() {
		const place = box(""),
			told = el("p", { role: "status" });
		const row = ({ rule, name, answered, failed, too_slow: slow }) => {
			const made = tr(rule, name, whole(answered), bad(failed), bad(slow));
			made.className = answered ? "" : "muted";
			return made;
		};
		const file = (it) =>
			el(
				"section",
				{},
				el("h3", {}, it.path, it.model ? ` (for ${it.model})` : ""),
				it.error ? para("bad", `${it.error}; the previous rules stay in force`) : null,
				table(["rule", "name", "answered", "failed", "too slow"], it.rules.slice(0, 500).map(row)),
			);
		const look = async () => {
			const answer = await this.ask("GET", "/admin/script");
			if (answer.status !== 200) place.replaceChildren(para("bad", answer.error));
			else
				place.replaceChildren(
					para(
						"muted",
						`${whole(answer.body.unanswered)} prompts were answered by the mode instead.`,
					),
					...answer.body.files.map(file),
				);
		};
		await this.every(look);
		return box(
			"",
			place,
			box(
				"row",
				this.button("Reset counters", async () => {
					await this.act(told, "DELETE", "/admin/script")();
					told.textContent = "";
					look();
				}),
			),
			told,
		);
	}

	queue() {
		const body = el("tbody"),
			line = para("muted"),
			place = table(["request", "waits", "for", "adapter", "prompt"], body);
		this.refreshes.push((model) => {
			const waiting = [...model.bars.values()].filter(
				(bar) => bar.end === null && (bar.phase === QUEUED || bar.phase === PREEMPTED),
			);
			waiting.sort((a, b) => b.phase - a.phase || a.arrival - b.arrival);
			line.textContent = `${whole(model.figures.running)} of ${whole(model.server.places)} slots are in use, ${whole(waiting.length)} wait${waiting.length > 100 ? "; the first 100 by arrival" : waiting.length ? ", by arrival" : ""}.`;
			place.hidden = !waiting.length;
			body.replaceChildren(
				...waiting
					.slice(0, 100)
					.map((bar) =>
						tr(
							bar.id,
							ago(model.at - bar.parts[bar.parts.length - 1][1]),
							why(model, bar),
							bar.adapter,
							whole(bar.prompt),
						),
					),
			);
		});
		return box("", line, place);
	}

	adapters() {
		if (!this.server.adapter_slots) return null;
		const body = el("tbody"),
			line = para("muted");
		this.refreshes.push((model) => {
			const rows = new Map(
				Object.entries(model.adapters).map(([name, running]) => [
					name,
					{ running, waiting: 0, here: true },
				]),
			);
			for (const bar of model.bars.values()) {
				if (bar.end !== null || !bar.adapter || (bar.phase !== QUEUED && bar.phase !== PREEMPTED))
					continue;
				if (!rows.has(bar.adapter)) rows.set(bar.adapter, { running: 0, waiting: 0, here: false });
				rows.get(bar.adapter).waiting++;
			}
			line.textContent = `${Object.keys(model.adapters).length} of ${model.server.adapter_slots} adapter slots are in use.`;
			body.replaceChildren(
				...[...rows].map(([name, it]) =>
					tr(name, it.here ? "in memory" : "not loaded yet", it.running, it.waiting),
				),
			);
		});
		return box("", line, table(["adapter", "state", "running", "waiting"], body));
	}

	async ranks() {
		const body = el("tbody"),
			told = para("bad");
		const look = async () => {
			const answer = await this.ask("GET", "figures?ranks=all");
			told.textContent = answer.status === 200 ? "" : answer.error;
			if (answer.status !== 200) return;
			body.replaceChildren(
				...Object.entries(answer.body).map(([rank, it]) =>
					tr(
						rank,
						this.server.ranks[rank],
						it.state,
						it.running,
						it.waiting,
						`${(it.cache_usage * 100).toFixed(1)} %`,
						whole(it.generated),
					),
				),
			);
		};
		await this.every(look);
		return box(
			"",
			table(["rank", "port", "state", "running", "waiting", "KV cache", "tokens"], body),
			told,
		);
	}
}

function why(model, bar) {
	// What a request waits for, as far as it can be seen from outside.
	if (model.state === "paused" || model.state === "sleeping") return `the server is ${model.state}`;
	if (bar.phase === PREEMPTED) return "blocks: preempted";
	if (
		bar.adapter &&
		!(bar.adapter in model.adapters) &&
		Object.keys(model.adapters).length >= model.server.adapter_slots
	)
		return "an adapter slot";
	return model.figures.running >= model.server.places ? "a slot" : "blocks or room in a step";
}

function bad(count) {
	return el("td", { class: count ? "bad" : "" }, whole(count));
}
function select(label, options) {
	return el(
		"select",
		{ "aria-label": label },
		...options.map(([value, text]) => el("option", { value }, text)),
	);
}
function group(name, ...parts) {
	return box("group", el("h3", {}, name), box("row", ...parts));
}
function cell(text) {
	return el("td", {}, text === null || text === undefined ? "" : String(text));
}
function tr(...values) {
	return el("tr", {}, ...values.map((it) => (it instanceof Node ? it : cell(it))));
}
function table(names, rows) {
	// Rows, or the body that gets them.
	const heads = el("tr", {}, ...names.map((name) => el("th", {}, name))),
		body = rows instanceof Node ? rows : el("tbody", {}, ...rows);
	return el("div", { class: "table", tabIndex: 0 }, el("table", {}, el("thead", {}, heads), body));
}
function sum(of) {
	return typeof of === "number" ? of : Object.values(of).reduce((total, count) => total + count, 0);
}
function counts(of) {
	return Object.entries(of)
		.map(([name, count]) => `${name}: ${count}`)
		.join(", ");
}
function sentence(body) {
	if (!body || body["max-num-seqs"] !== undefined) return "Done.";
	return (
		Object.entries(body)
			.filter(([, value]) => typeof value !== "object")
			.map(([name, value]) => `${name.replaceAll("_", " ")}: ${value}`)
			.join(", ") || "Done."
	);
}
