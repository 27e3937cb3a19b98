"use strict";
// All that is known of one request. What clients have sent is put in as text, never as markup.

class Detail {
	constructor() {
		this.ask = null;
		this.place = $("detail");
		this.number = null;
	}

	async show(number, model) {
		if (this.number !== number) this.begin();
		this.number = number;
		this.from = this.place.hidden ? document.activeElement : this.from;
		const bar = model.bars.get(number);
		if (!bar) return;
		this.place.hidden = false;
		this.fill(bar, null, model);
		this.place.querySelector("button").focus();
		if (this.ask) await this.look(bar, model);
	}

	render(model) {
		// What was told may be a second old.
		const bar = this.number === null ? null : model.bars.get(this.number);
		if (!bar || !this.ask || this.over || performance.now() - this.asked < 1000) return;
		this.look(bar, model);
	}

	async look(bar, model) {
		const number = bar.number;
		this.asked = performance.now();
		const answer = await this.ask("GET", `requests/${number}`);
		if (this.number !== number || this.place.hidden) return;
		this.over = bar.end !== null || answer.status !== 200;
		this.fill(bar, answer, model);
	}

	begin() {
		this.over = false;
		this.title = el("h2", { class: "mono" });
		this.why = box("");
		this.facts = box("");
		this.texts = new Map();
		this.place.replaceChildren(
			box(
				"bar",
				this.title,
				span("grow"),
				el("button", { onclick: () => this.hide() }, "Close"),
				el(
					"button",
					{ title: "Zoom to the time of this request", onclick: () => this.zoom() },
					"Zoom",
				),
			),
			this.why,
			this.facts,
		);
	}

	text(name, value) {
		// A section that stays where it is, so that it can be scrolled, and what is in it chosen.
		if (!this.texts.has(name)) {
			if (!value) return;
			const pre = el("pre", { tabIndex: 0 }),
				head = el("h3");
			this.texts.set(name, { pre, head });
			this.place.append(el("section", {}, head, pre));
		}
		const { pre, head } = this.texts.get(name);
		head.textContent = name === "Blocks" ? `Blocks (${value.length})` : name;
		const text = name === "Blocks" ? ranges(value) : value;
		if (pre.textContent !== text) pre.textContent = text;
	}

	zoom() {
		const bar = shown().bars.get(this.number),
			end = bar && (bar.end === null ? shown().at : bar.end);
		if (bar) axis.zoom(bar.arrival - (end - bar.arrival) * 0.05, end + (end - bar.arrival) * 0.05);
	}

	hide() {
		// Returns whether it was shown.
		if (this.place.hidden) return false;
		this.place.hidden = true;
		this.number = null;
		if (this.from) this.from.focus();
		return true;
	}

	fill(bar, answer, model) {
		const known = answer && answer.status === 200 ? answer.body : null;
		const row = (name, value) =>
			value === null || value === undefined || value === ""
				? null
				: box("fact", el("dt", {}, name), el("dd", {}, String(value)));
		this.title.textContent = bar.id;
		if (answer && !known)
			this.why.replaceChildren(
				para("muted", answer.error || "No more details are available."),
				whyView(bar, model, null),
			);
		else this.why.replaceChildren(whyView(bar, model, known && known.why));
		this.facts.replaceChildren(
			...[
				el(
					"dl",
					{ class: "facts-list" },
					row("state", bar.end === null ? PHASES[bar.phase] : bar.reason),
					row("choice", bar.of > 1 ? `${bar.choice + 1} of ${bar.of}` : ""),
					row("path", bar.path),
					row("client", known && known.client),
					row("trace id", known && known.trace_id),
					row("adapter", bar.adapter),
					row(
						"prompt",
						bar.prompt
							? `${count(bar.prompt, "token")}${bar.cached ? `, ${whole(bar.cached)} cached` : ""}${known && known.why && known.why.fetched_tokens ? `, ${whole(known.why.fetched_tokens)} fetched` : ""}`
							: "",
					),
					row(
						"reply",
						bar.most ? `${whole(bar.tokens)} of at most ${count(bar.most, "token")}` : "",
					),
					row("waited", this.waited(bar)),
					row("first token", bar.first === null ? "" : `after ${ms(bar.first - bar.arrival)}`),
					row("between tokens", bar.itl ? ms(bar.itl) : ""),
					row("took", bar.end === null ? "" : ms(bar.end - bar.arrival)),
					row("preempted", bar.preempted ? count(bar.preempted, "time") : ""),
					row(
						"arrived",
						model.began === null
							? `after ${ago(bar.arrival)}`
							: new Date((model.began + bar.arrival / 1000) * 1000).toLocaleTimeString(),
					),
				),
				known && Object.keys(known.settings).length
					? el(
							"section",
							{},
							el("h3", {}, "Settings"),
							el(
								"dl",
								{ class: "facts-list" },
								...Object.entries(known.settings).map(([name, value]) =>
									row(name, typeof value === "object" ? JSON.stringify(value) : value),
								),
							),
						)
					: null,
			].filter(Boolean),
		);
		if (!known) return;
		this.text("Prompt", known.prompt);
		this.text("Reply", known.reply);
		if (known.blocks.length) this.text("Blocks", known.blocks);
	}

	waited(bar) {
		const next = bar.parts.find(([phase]) => phase !== QUEUED);
		return next ? ms(next[1] - bar.arrival) : "";
	}
}

function ranges(numbers) {
	// 1, 2, 3, 7 as "1–3, 7".
	const parts = [];
	for (let k = 0; k < numbers.length;) {
		let end = k;
		while (end + 1 < numbers.length && numbers[end + 1] === numbers[end] + 1) end++;
		parts.push(end > k ? `${numbers[k]}–${numbers[end]}` : `${numbers[k]}`);
		k = end + 1;
	}
	return parts.join(", ");
}
