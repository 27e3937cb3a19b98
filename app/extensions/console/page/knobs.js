"use strict";
// A knob for every live setting, made from the server's own table.

const START = "set at startup";

class Knobs {
	constructor(ask, ranks) {
		this.ask = ask;
		this.all = ranks > 1 ? el("input", { type: "checkbox", checked: true }) : null;
	}

	async make(name = "") {
		const answer = await this.ask("GET", "knobs");
		if (answer.status !== 200) return para("bad", answer.error);
		const groups = new Map();
		for (const knob of answer.body) {
			const group = knob.live ? knob.group : START;
			if (!groups.has(group)) groups.set(group, []);
			groups.get(group).push(knob);
		}
		const find = el("input", {
			type: "search",
			placeholder: "Find a setting",
			"aria-label": "Find a setting",
			value: name,
		});
		const parts = [...groups]
			.sort(([a], [b]) => (a === START) - (b === START))
			.map(([group, knobs]) =>
				el("fieldset", {}, el("legend", {}, group), ...knobs.map((knob) => this.knob(knob))),
			);
		const some = el(
			"select",
			{ "aria-label": "Settings to show" },
			el("option", { value: "" }, "all"),
			el("option", { value: "differs" }, "changed"),
		);
		const choose = () => {
			for (const part of parts) {
				for (const row of part.querySelectorAll(".knob"))
					row.hidden =
						!row.dataset.name.includes(find.value.trim().toLowerCase()) ||
						(some.value && !row.classList.contains("differs"));
				part.hidden = !part.querySelector(".knob:not([hidden])");
			}
		};
		for (const it of [find, some]) it.addEventListener("input", choose);
		choose();
		return box(
			"knobs",
			box("row", find, some),
			this.all ? el("label", { class: "check" }, this.all, " on all ranks") : null,
			...parts,
		);
	}

	changed(knobs) {
		// Another page, or a file, may have turned them; who types is not disturbed.
		for (const row of document.querySelectorAll("#tab-body .knob")) {
			const knob = knobs.get(row.dataset.name),
				input = row.querySelector("[id]");
			if (!knob || !knob.live) continue;
			row.classList.toggle("differs", differs(knob));
			if (input === document.activeElement) continue;
			const now = this.input(knob, input.id);
			if (knob.kind === "switch") input.checked = now.checked;
			else input.value = now.value;
		}
	}

	knob(knob) {
		if (!knob.live)
			return el(
				"div",
				{ class: "knob differs", "data-name": knob.name },
				el("span", { class: "mono", title: knob.help }, knob.name),
				span("mono", worth(knob.value)),
				el("small", { class: "muted" }, `default: ${worth(knob.default)}`),
			);
		const id = `knob-${knob.name}`,
			told = el("small", { class: "muted" }),
			input = this.input(knob, id);
		const text = [
			knob.help,
			knob.unit && `Unit: ${knob.unit}.`,
			knob.limits && `It ${knob.limits}.`,
		]
			.filter(Boolean)
			.join(" ");
		input.title = text;
		const apply = async () => {
			const value = this.value(knob, input);
			told.className = "muted";
			told.textContent = "…";
			const answer = await this.ask(
				"POST",
				`/admin/config${this.all && this.all.checked ? "?ranks=all" : ""}`,
				{ [knob.name]: value },
			);
			told.className = answer.status === 200 ? "good" : "bad";
			told.textContent = answer.status === 200 ? "set" : answer.error;
			if (answer.status === 200)
				setTimeout(() => {
					told.textContent = "";
				}, 2500);
		};
		input.addEventListener("change", apply);
		input.setAttribute("aria-describedby", `${id}-help`);
		return el(
			"div",
			{ class: `knob${differs(knob) ? " differs" : ""}`, "data-name": knob.name },
			el("label", { htmlFor: id, title: text }, knob.name),
			input,
			told,
			el("small", { class: "muted help", id: `${id}-help` }, text),
		);
	}

	input(knob, id) {
		if (knob.kind === "switch")
			return el("input", { type: "checkbox", id, checked: knob.value === true });
		if (knob.choices.length) {
			const select = el(
				"select",
				{ id },
				...knob.choices.map((choice) => el("option", { value: choice }, choice || "(empty)")),
			);
			select.value = knob.value || "";
			return select;
		}
		if (knob.kind === "JSON")
			return el("textarea", {
				id,
				rows: 2,
				spellcheck: false,
				value: knob.value === null ? "" : JSON.stringify(knob.value),
			});
		const shown = knob.secret
			? ""
			: Array.isArray(knob.value)
				? knob.value.join(", ")
				: knob.value === null
					? ""
					: String(knob.value);
		const given = {
			type: knob.secret ? "password" : "text",
			id,
			value: shown,
			autocomplete: "off",
			spellcheck: false,
		};
		if (knob.kind.includes("number")) given.inputMode = "decimal";
		return el("input", {
			...given,
			placeholder:
				knob.secret && knob.value && knob.value.length
					? "set; type a new value"
					: knob.optional
						? "none"
						: "",
		});
	}

	value(knob, input) {
		// As YAML would have it: the server reads it by its own rules and says what is wrong.
		if (knob.kind === "switch") return input.checked;
		const text = input.value.trim();
		if (knob.optional && text === "") return null;
		if (knob.kind === "list") return text === "" ? [] : text.split(",").map((part) => part.trim());
		if (knob.kind.includes("number") && text !== "" && !Number.isNaN(Number(text)))
			return Number(text);
		return text;
	}
}
