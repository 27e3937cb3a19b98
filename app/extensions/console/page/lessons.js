"use strict";
// Six exercises, each with an address. The server plays one and sends its recording, which runs here in its own time.

const LESSON_FRAME_MS = 50,
	LESSON_ROWS = 18,
	DENSITY_HEIGHT = 200;
const PLAY_WORDS = {
	ready: ["Play", "Press Play. The charts show the whole lesson."],
	playing: ["Pause", "Playing."],
	paused: ["Continue", "Paused."],
	finished: ["Play again", "Finished: these are the figures of the whole lesson."],
};

class Lessons {
	constructor() {
		this.place = $("lessons");
		this.state = "ready";
		addEventListener("hashchange", () => this.route());
	}

	async route() {
		// "#lessons" is the page of all, "#lesson-NAME" one of them; from any other address on, the page is live.
		const name = location.hash.slice(1);
		if (name !== "lessons" && !name.startsWith("lesson-")) {
			if (!this.place.hidden) location.reload();
			return;
		}
		this.halt();
		this.all = this.all || (await this.get("lessons"));
		if (!this.all) return;
		this.place.hidden = false;
		this.lesson = null;
		document.body.classList.toggle("choosing", name === "lessons");
		const number = this.all.findIndex((it) => name === `lesson-${it.name}`);
		if (number < 0) this.list();
		else await this.open(number);
	}

	async get(path) {
		// What the server tells; null, with a warning, if it does not.
		for (;;) {
			const answer = await ask("GET", path);
			if (answer.status === 200) return answer.body;
			if (answer.status !== 401) return warn(answer.error) || null;
			await askKey();
		}
	}

	list() {
		const card = ({ name, title, text }, k) =>
			el(
				"article",
				{ class: "panel" },
				el("h2", {}, el("a", { href: `#lesson-${name}` }, `${k + 1}. ${title}`)),
				para("", text),
				this.button("Play", () => this.go(name), `Play: ${title}`),
			);
		this.place.replaceChildren(
			box(
				"bar",
				el("h2", {}, "Lessons"),
				span("muted", "Six loads on small engines: play one, and look into it."),
				span("grow"),
				el("a", { href: "#" }, "Back to live"),
			),
			box("cards", ...this.all.map(card)),
		);
	}

	go(name) {
		this.wanted = true;
		location.hash = `lesson-${name}`;
	}

	async open(number) {
		const lesson = this.all[number],
			{ name, title } = lesson,
			frames = await this.get(`lessons/${name}`);
		if (!frames || location.hash !== `#lesson-${name}`) return;
		this.lesson = lesson;
		this.state = "ready";
		document.body.classList.add("lesson");
		this.show(number);
		openReport(frames.map((frame) => JSON.stringify(frame)).join("\n"), title);
		this.arrange(lesson);
		if (this.wanted) this.play();
		this.wanted = false;
	}

	show(number) {
		const { title, text, terms, flags } = this.lesson,
			[before, next] = [this.all[number - 1], this.all[number + 1]],
			link = (to, words) => (to ? el("a", { href: `#lesson-${to.name}` }, words) : null);
		this.player = this.button("", () => this.toggle());
		this.told = el("span", { class: "muted", role: "status" });
		this.figures = el("dl", { class: "lesson-figures" });
		this.place.replaceChildren(
			box(
				"panel",
				box(
					"bar",
					this.player,
					el("h2", {}, title),
					span("muted", `lesson ${number + 1} of ${this.all.length}`),
					this.told,
					span("grow"),
					link(before, "Previous"),
					link(next, "Next"),
					el("a", { href: "#lessons" }, "All lessons"),
					el("a", { href: "#" }, "Back to live"),
				),
				para("", text),
				this.figures,
				para(
					"terms muted",
					...Object.entries(terms).flatMap(([term, meaning]) => [
						el("b", {}, term),
						`: ${meaning}. `,
					]),
				),
				el(
					"details",
					{ class: "muted" },
					el("summary", {}, "The same engine as a server"),
					el("code", {}, flags),
				),
			),
		);
	}

	arrange({ panels, curves, rows }) {
		// The charts that the text explains come first, and all rows are seen.
		for (const title of [...curves].reverse())
			$("charts").prepend(views.curves.find((chart) => chart.title === title).place);
		for (const name of [...panels].reverse()) {
			const panel = document.querySelector(`[aria-labelledby="${name}-title"]`);
			panel.parentElement.prepend(panel);
		}
		$("as").value = rows;
		$("order").value = "new";
		views.bars.order = null;
		const engines = model.server.engines.length,
			shown = Math.min(LESSON_ROWS, model.bars.size + engines);
		$("requests").style.height = `${rows === "rows" ? HEAD + ROW * shown + 8 : DENSITY_HEIGHT}px`;
		render();
	}

	toggle() {
		if (this.timer) {
			this.halt();
			this.render();
		} else this.play();
	}

	play() {
		// As fast as it was, from the displayed moment or from the beginning, until the moment is moved by hand.
		const from = stopped === null || stopped >= recorder.last ? recorder.first : stopped,
			begun = performance.now() - from;
		this.halt();
		stop(from);
		let at = stopped;
		this.timer = setInterval(() => {
			const over = at >= recorder.last;
			if (over || stopped !== at) this.halt();
			else stop(performance.now() - begun);
			at = stopped;
			if (!this.timer) soon();
		}, LESSON_FRAME_MS);
		document
			.querySelector(`[aria-labelledby="${this.lesson.panels[0]}-title"]`)
			.scrollIntoView({ block: "nearest" });
	}

	halt() {
		clearInterval(this.timer);
		this.timer = 0;
	}

	render() {
		// What the button does at a moment, and at the end the figures that the text explains.
		if (!this.lesson) return;
		if (this.timer) this.state = "playing";
		else if (stopped === null) this.state = "ready";
		else this.state = stopped >= recorder.last ? "finished" : "paused";
		const [words, told] = PLAY_WORDS[this.state];
		if (this.player.textContent !== words) {
			this.player.textContent = words;
			this.player.setAttribute("aria-label", `${words}: ${this.lesson.title}`);
			this.told.textContent = told;
		}
		const over = this.state === "ready" || this.state === "finished";
		this.figures.replaceChildren(
			...(model.server.figures || []).map(([label, value]) =>
				box("", el("dt", {}, label), el("dd", {}, over ? value : "…")),
			),
		);
	}

	button(text, onclick, label = text) {
		return el("button", { "aria-label": label, onclick }, text);
	}
}
