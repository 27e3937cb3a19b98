"use strict";
// At hand: what one does most, and the settings that differ from the defaults.

class Strip {
	constructor(ask, panels) {
		Object.assign(this, { ask, panels });
		this.place = $("strip");
		this.place.hidden = !ask;
		if (!ask) return;
		const field = (name, label, most) =>
			el("input", {
				type: "number",
				"aria-label": label,
				min: 0.1,
				max: most,
				step: 0.1,
				value: panels.plan[name],
				oninput: (event) => {
					panels.plan[name] = Number(event.target.value);
				},
			});
		this.told = el("span", { role: "status", class: "muted" });
		this.load = panels.button("Send load", () =>
			this.model.load && this.model.load.active ? this.act("DELETE", "load") : this.send(),
		);
		this.sent = span("muted");
		this.pause = panels.button("Pause", () =>
			this.act(
				"POST",
				{ serving: "pause?mode=keep", paused: "resume", sleeping: "wake_up" }[this.model.state] ||
					"resume",
			),
		);
		this.fault = select("Fault", [
			...Object.keys(FAULTS).map((name) => [name, name]),
			["own", "custom rules"],
		]);
		this.fault.lastElementChild.hidden = true;
		this.fault.addEventListener("change", () =>
			this.set("fault-rules", FAULTS[this.fault.value] || null),
		);
		this.policy = select("Scheduling policy", [
			["fcfs", "first come, first served"],
			["priority", "by priority"],
		]);
		this.policy.addEventListener("change", () => this.set("scheduling-policy", this.policy.value));
		this.differing = box("chips");
		this.place.replaceChildren(
			box(
				"row",
				span(
					"unit",
					this.load,
					field("rate", "Requests per second", 500),
					span("unit-text", " /s for"),
					field("seconds", "Seconds", 600),
					span("unit-text", " s"),
					this.sent,
				),
				span("unit", this.pause),
				el("label", { class: "unit" }, "Fault ", this.fault),
				el("label", { class: "unit" }, "Policy ", this.policy),
				this.told,
			),
			this.differing,
		);
		this.look();
	}

	async send() {
		// The requests get the focus: the line below them speaks of arrows and Enter, which would stop the load here.
		const answer = await this.act("POST", "load", this.panels.plan);
		if (answer.status < 300 && document.activeElement === this.load)
			$("requests").focus({ preventScroll: true });
	}

	async act(method, path, body) {
		const answer = await this.ask(method, path, body);
		this.told.className = answer.status < 300 ? "muted" : "bad";
		this.told.textContent = answer.status < 300 ? "" : answer.error;
		return answer;
	}

	async set(name, value) {
		const answer = await this.act("POST", "/admin/config", { [name]: value });
		if (answer.status !== 200) this.look();
	}

	async look() {
		// The settings as they are: on this page, on another, or by a file they may have changed.
		const answer = await this.ask("GET", "knobs");
		if (answer.status !== 200) return;
		const knobs = new Map(answer.body.map((knob) => [knob.name, knob])),
			rules = JSON.stringify(knobs.get("fault-rules").value || ""),
			policy = knobs.get("scheduling-policy");
		const own = Object.keys(FAULTS).find((name) => JSON.stringify(FAULTS[name]) === rules);
		this.fault.value = own || "own";
		this.fault.lastElementChild.hidden = Boolean(own);
		this.policy.value = policy.value;
		const differ = answer.body.filter(differs).sort((a, b) => b.live - a.live);
		this.differing.replaceChildren(
			span(
				"muted",
				differ.length
					? `${differ.length} settings differ from the defaults:`
					: "All settings have their defaults.",
			),
			...differ.map((knob) =>
				el(
					"button",
					{
						class: knob.live ? "" : "fixed",
						title: `default: ${worth(knob.default)}${knob.live ? "" : "; needs a restart to change"}`,
						onclick: () => this.panels.tune(knob.name),
					},
					`${knob.name} `,
					el("b", {}, worth(knob.value)),
				),
			),
		);
		this.panels.changed(knobs);
	}

	render(model) {
		this.model = model;
		if (!this.ask) return;
		const active = model.load && model.load.active,
			mark = model.marks.findLast(([, kind]) => kind === "setting" || kind === "fault");
		this.load.textContent = active ? "Stop load" : "Send load";
		this.sent.textContent = model.load
			? `${whole(model.load.sent)} sent${model.load.failed ? `, ${whole(model.load.failed)} failed` : ""}`
			: "";
		this.pause.textContent = { serving: "Pause", sleeping: "Wake up" }[model.state] || "Resume";
		this.pause.disabled = model.state === "draining";
		if (mark && this.seen !== mark[0]) {
			if (this.seen !== undefined) this.look();
			this.seen = mark[0];
		} else if (!mark) this.seen = null;
	}
}

function differs(knob) {
	return JSON.stringify(knob.value) !== JSON.stringify(knob.default);
}

function worth(value) {
	// A setting in short.
	const text =
		value === null || value === ""
			? "none"
			: typeof value === "object"
				? JSON.stringify(value)
				: String(value);
	return text.length > 40 ? `${text.slice(0, 39)}…` : text;
}
