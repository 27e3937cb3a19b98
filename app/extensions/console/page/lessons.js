"use strict";
// Six exercises, each with an address. The server plays one and sends its recording, which runs here in its own time.

const LESSON_FRAME_MS = 50;

class Lessons {
	constructor() {
		this.place = $("lessons");
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
		const card = ({ name, title, text }) =>
			el(
				"article",
				{ class: "panel" },
				el("h2", {}, el("a", { href: `#lesson-${name}` }, title)),
				el("p", {}, text),
				this.button("Play", () => this.go(name), `Play: ${title}`),
			);
		this.place.replaceChildren(
			el(
				"div",
				{ class: "bar" },
				el("h2", {}, "Lessons"),
				el("span", { class: "muted" }, "Six loads on small engines: play one, and look into it."),
				el("span", { class: "grow" }),
				el("a", { href: "#" }, "Back to live"),
			),
			el("div", { class: "cards" }, ...this.all.map(card)),
		);
	}

	go(name) {
		this.wanted = true;
		location.hash = `lesson-${name}`;
	}

	async open(number) {
		const { name, title, text, flags } = this.all[number],
			[before, next] = [this.all[number - 1], this.all[number + 1]],
			link = (to, words) => (to ? el("a", { href: `#lesson-${to.name}` }, words) : null),
			frames = await this.get(`lessons/${name}`);
		if (!frames || location.hash !== `#lesson-${name}`) return;
		openReport(frames.map((frame) => JSON.stringify(frame)).join("\n"), title);
		this.place.replaceChildren(
			el(
				"div",
				{ class: "panel" },
				el(
					"div",
					{ class: "bar" },
					this.button("Play", () => this.play(), `Play: ${title}`),
					el("h2", {}, title),
					el("span", { class: "muted" }, `lesson ${number + 1} of ${this.all.length}`),
					el("span", { class: "grow" }),
					link(before, "Previous"),
					link(next, "Next"),
					el("a", { href: "#lessons" }, "All lessons"),
					el("a", { href: "#" }, "Back to live"),
				),
				el("p", {}, text),
				el("p", { class: "line muted" }, "The same engine as a server: ", el("code", {}, flags)),
			),
		);
		if (this.wanted) this.play();
		this.wanted = false;
	}

	play() {
		// From the beginning to the end, as fast as it was, until the moment is moved by hand.
		const begun = performance.now() - recorder.first;
		this.halt();
		stop(recorder.first);
		let at = stopped;
		this.timer = setInterval(() => {
			const over = at >= recorder.last;
			if (over || stopped !== at) this.halt();
			else stop(performance.now() - begun);
			at = stopped;
		}, LESSON_FRAME_MS);
	}

	halt() {
		clearInterval(this.timer);
		this.timer = 0;
	}

	button(text, onclick, label) {
		return el("button", { type: "button", "aria-label": label, onclick }, text);
	}
}
