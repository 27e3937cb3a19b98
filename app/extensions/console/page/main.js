"use strict";
// The page: it reads the stream, keeps the record, and shows the moment of now or one of before.

const SELDOM_MS = 10000; // between pictures of a server that does nothing

let recorder = new Recorder(),
	model = null,
	axis = null,
	views = null,
	panels = null,
	strip = null,
	lessons = null,
	stopped = null,
	quiet = { rest: "", since: 0, drawn: 0 },
	report = false,
	asked = 0,
	asking = null,
	said = 0;

const headers = () =>
	sessionStorage.getItem("key")
		? {
				"X-Admin-Key": sessionStorage.getItem("key"),
				Authorization: `Bearer ${sessionStorage.getItem("key")}`,
			}
		: {};

async function ask(method, path, body) {
	// Paths of the console are short, others begin with a slash; all are relative, so a proxy may put a path in front.
	const url = path.startsWith("/") ? path.slice(1) : `admin/console/${path}`;
	try {
		const response = await fetch(url, {
			method,
			headers: {
				...headers(),
				...(body === undefined ? {} : { "Content-Type": "application/json" }),
			},
			body: body === undefined ? undefined : JSON.stringify(body),
		});
		const text = await response.text();
		let told = null;
		try {
			told = text ? JSON.parse(text) : {};
		} catch {
			told = {};
		}
		const wrong = told && told.error;
		return {
			status: response.status,
			body: told,
			error: response.ok ? "" : (wrong && (wrong.message || wrong)) || `status ${response.status}`,
		};
	} catch {
		return { status: 0, body: null, error: "the server does not answer" };
	}
}

async function follow() {
	// For ever: read the stream, and begin again when it ends.
	for (let wait = 500; ; wait = Math.min(8000, wait * 2)) {
		try {
			const response = await fetch("admin/console/stream", { headers: headers() });
			if (response.status === 401) {
				await askKey();
				wait = 250;
				continue;
			}
			if (!response.ok) {
				const told = await response.json().catch(() => null);
				say((told && told.error && told.error.message) || `status ${response.status}`);
			} else {
				wait = 250;
				await read(response.body.getReader());
				say("the stream ended");
			}
		} catch (error) {
			if (!(error instanceof TypeError)) console.error(error);
			say("the server does not answer");
		}
		await new Promise((done) => setTimeout(done, wait));
	}
}

async function read(reader) {
	const decoder = new TextDecoder();
	let rest = "";
	for (;;) {
		const { value, done } = await reader.read();
		if (done) return;
		rest += decoder.decode(value, { stream: true });
		let end;
		while ((end = rest.indexOf("\n\n")) >= 0) {
			const event = rest.slice(0, end),
				line = event.indexOf("\ndata: ");
			rest = rest.slice(end + 2);
			if (line >= 0) take(event.slice(7, line), event.slice(line + 7));
		}
	}
}

function take(kind, text) {
	if (report) return; // a recording was opened: the page is about that until it is loaded again
	if (kind === "picture") {
		const next = new Model(JSON.parse(text)),
			same = model && Math.abs(next.began - model.began) < 1 && next.at >= model.at;
		model = next;
		if (same) recorder.goOn(model, text);
		else {
			recorder.begin(model);
			stopped = null;
		}
		if (!panels || !same) begin();
	} else if (model) {
		const frame = JSON.parse(text);
		model.apply(frame);
		recorder.add(frame, text, model);
		if (isStill(text)) return;
	}
	soon();
}

function isStill(text) {
	// Whether it can wait: nothing has changed but the time, and what was drawn last is recent enough for its scale.
	const rest = text.slice(text.indexOf(",")),
		span = axis.length;
	if (rest !== quiet.rest || model.bars.size > model.over.length)
		Object.assign(quiet, { rest, since: model.at });
	const most =
		quiet.since === model.at
			? 0
			: model.at - quiet.since < span
				? Math.min(SELDOM_MS, span / 40)
				: SELDOM_MS;
	return model.at - quiet.drawn < most;
}

function begin() {
	const { server } = model;
	views = views || {
		bars: new BarsView(axis, (number) => views.detail.show(number, shown())),
		steps: new StepsView(axis),
		blocks: new BlocksView(),
		overview: new Overview(axis),
		curves: [],
		spreads: new Spreads(),
		routes: new RoutesView(),
		detail: new Detail(),
	};
	for (const id of ["tiles", "charts"]) $(id).replaceChildren();
	axis.parts = axis.parts.filter((part) => part.place.isConnected);
	axis.zoomed = axis.selected = null;
	Object.assign(views, {
		tiles: new Tiles(),
		curves: CURVES.map((it) => new Chart(axis, it)),
		heats: HEATS.map((it) => new Heat(axis, it)),
	});
	views.detail.ask = report ? null : ask;
	views.bars.moment = null;
	panels = new Panels(report ? null : ask, model);
	strip = new Strip(report ? null : ask, panels);
	$("model").textContent = server.model;
	$("facts").textContent = [
		server.plays && `simulates vLLM ${server.plays}`,
		server.profile && `profile ${server.profile}`,
		server.told,
	]
		.filter(Boolean)
		.join(" · ");
	$("window").lastElementChild.hidden = !report;
	const ranks = Object.entries(server.ranks || {});
	$("rank-label").hidden = ranks.length < 2;
	$("rank").replaceChildren(
		...ranks.map(([rank, port]) =>
			el(
				"option",
				{ value: port, selected: Number(rank) === server.rank },
				`${rank} (port ${port})`,
			),
		),
	);
}

function shown() {
	return stopped === null ? model : recorder.at(stopped);
}

function say(text) {
	$("state").textContent = text;
	$("state").className = "pill gone";
}

function soon() {
	if (!asked)
		asked = requestAnimationFrame(() => {
			asked = 0;
			render();
		});
}

function render() {
	if (!model || !views || (compared && compared.shown)) return;
	const now = shown(),
		points = recorder.points.filter((point) => point.at <= now.at);
	if (!points.length) return;
	quiet.drawn = model.at;
	axis.follow(now, recorder.known, recorder.last);
	const then = past(now),
		latency = views.spreads.latency(now, recorder.samples);
	if (performance.now() > said) {
		$("state").textContent = report ? "report" : stopped === null ? now.state : "recorded";
		$("state").className = `pill ${report || stopped !== null ? "still" : now.state}`;
	}
	views.tiles.render(now, points, latency, recorder.summary);
	views.bars.render(then);
	views.steps.render(then, points);
	views.blocks.render(now);
	views.spreads.render(latency);
	for (const chart of views.curves) chart.render(points);
	for (const heat of views.heats) heat.render(recorder.ends, now.at);
	views.overview.render(recorder.points);
	views.routes.render(now, axis);
	showSums(then, axis);
	axis.render();
	strip.render(model);
	if (lessons) lessons.render();
	panels.render(now);
	if (stopped === null) views.detail.render(now);
	slide(now);
}

function past(now) {
	// What is zoomed into and has been forgotten since is shown as it was then.
	const zoom = axis.zoomed;
	return zoom && now.since > zoom.from && zoom.to < now.at ? recorder.at(zoom.to) : now;
}

function slide(now) {
	const first = recorder.first,
		last = recorder.last;
	$("slider").min = first;
	$("slider").max = last;
	$("slider").step = 1;
	if (document.activeElement !== $("slider") || stopped === null)
		$("slider").value = stopped === null ? last : stopped;
	$("moment").textContent = report ? `${ago(now.at - first)} of ${ago(last - first)}` : moment(now);
	$("live").textContent = report ? "End" : stopped === null ? "Live" : "Back to live";
	$("live").setAttribute("aria-pressed", stopped === null);
}

function moment(now) {
	return report
		? `after ${ago(now.at - recorder.first)}`
		: stopped === null
			? "now"
			: `${ago(recorder.last - now.at)} ago`;
}

function stop(moment) {
	stopped = moment === null ? null : Math.max(recorder.first, Math.min(recorder.last, moment));
	if (stopped === null) recorder.shown = null;
	soon();
}

function askKey() {
	asking ??= new Promise((done) => {
		const dialog = $("key");
		dialog.showModal();
		dialog.onclose = () => {
			sessionStorage.setItem("key", $("key-text").value.trim());
			$("key-text").value = "";
			asking = null;
			done();
		};
	});
	return asking;
}

function theme(next) {
	document.documentElement.dataset.theme = next;
	readColours();
	if (compared) compared.redraw();
	soon();
}

function openReport(file, name = "this recording") {
	// A recording, or a page with one or two in it. What cannot be shown changes nothing.
	const before = { recorder, model, report },
		use = (it) => {
			({ recorder, model, report } = it);
			if (model) begin();
		};
	try {
		const next = new Recorder(),
			text = recordingOf(file),
			[head] = headOf(text);
		if (head.comparison) openComparison(head, text);
		takeNotes(head);
		if (head.comparison) return;
		use({ recorder: next, model: next.read(text), report: name });
		$("window").value = $("span").value = "0";
		stop(model.began === null ? busiest(recorder.points) : null); // at its last moment a simulation is idle
		render();
	} catch (error) {
		use(before);
		warn(typeof error === "string" ? error : "This file is not a recording of the console.");
	}
}

function key(event) {
	if (
		compared &&
		compared.shown &&
		event.key === "Escape" &&
		model &&
		event.target.id !== "notes" &&
		!document.querySelector("dialog[open]")
	)
		compared.alone();
	if (compared && compared.shown && !"t?".includes(event.key)) return;
	if (
		event.ctrlKey ||
		event.metaKey ||
		event.altKey ||
		/^(INPUT|TEXTAREA|SELECT)$/.test(event.target.tagName) ||
		document.querySelector("dialog[open]")
	) {
		if (event.key === "Escape" && event.target.id === "filter") event.target.blur();
		return;
	}
	const digit = "1234567890".indexOf(event.key);
	if (event.key === " " && event.target.tagName !== "BUTTON") {
		event.preventDefault();
		if (lessons && lessons.lesson) lessons.toggle();
		else stop(stopped === null ? model.at : null);
	} else if ("+-ws".includes(event.key)) axis.scale("+w".includes(event.key) ? 0.5 : 2);
	else if (event.key === "a" || event.key === "d") axis.pan(event.key === "a" ? -0.25 : 0.25);
	else if (event.shiftKey && /^Arrow(Left|Right)$/.test(event.key))
		axis.pan(event.key === "ArrowLeft" ? -0.25 : 0.25);
	else if (event.key === "ArrowLeft" || event.key === "ArrowRight") {
		if (stopped !== null) stop(stopped + (event.key === "ArrowLeft" ? -250 : 250));
	} else if (event.key === "/") {
		event.preventDefault();
		$("filter").focus();
	} else if (event.key === "Escape" && views) {
		if (views.detail.hide() || axis.reset()) return;
		if (axis.selected) axis.select(null);
		else if (views.bars.moment !== null) views.bars.list(null);
	} else if (event.key === "t") $("theme").click();
	else if (event.key === "?") $("help").showModal();
	else if (event.key === "p" && !report && model)
		ask("POST", model.state === "paused" ? "resume" : "pause?mode=keep");
	else if (digit >= 0 && event.key !== "" && panels) panels.open(digit, true);
}

function start() {
	const dark = matchMedia("(prefers-color-scheme: dark)");
	axis = new TimeAxis(() => {
		if (model && views) render();
	});
	theme(localStorageGet("theme") || (dark.matches ? "dark" : "light"));
	dark.addEventListener("change", () => {
		if (!localStorageGet("theme")) theme(dark.matches ? "dark" : "light");
	});
	$("theme").addEventListener("click", () => {
		const next = document.documentElement.dataset.theme === "dark" ? "light" : "dark";
		localStorageSet("theme", next);
		theme(next);
	});
	$("help-button").addEventListener("click", () => $("help").showModal());
	$("live").addEventListener("click", () =>
		stop(stopped === null && !report ? model && model.at : null),
	);
	$("slider").addEventListener("input", () => {
		const at = Number($("slider").value);
		if (axis.zoomed && (at < axis.zoomed.from || at > axis.zoomed.to)) axis.zoomed = null;
		stop(at);
	});
	$("span").addEventListener("input", () => {
		axis.zoomed = null;
		soon();
	});
	$("save").addEventListener("click", () => {
		if (model || compared) save();
	});
	$("notes-button").addEventListener("click", () => {
		showNotes($("notes-panel").hidden);
		$("notes").focus();
	});
	$("compare").addEventListener("click", () => {
		if (compared && !compared.shown) compared.show();
		else $("compare-files").click();
	});
	$("compare").hidden = $("lessons-link").hidden = !!recorded;
	$("compare-files").addEventListener("change", async () => {
		await compareFiles([...$("compare-files").files]);
		$("compare-files").value = "";
	});
	$("open").addEventListener("click", () => $("file").click());
	$("file").addEventListener("change", async () => {
		const file = $("file").files[0];
		if (file) openReport(await file.text().catch(() => ""), file.name.replace(/\.[^.]*$/, ""));
		$("file").value = ""; // the same one may be opened again
	});
	$("window").addEventListener("input", soon);
	$("rank").addEventListener("change", () => {
		location.port = $("rank").value;
	});
	addEventListener("keydown", key);
	addEventListener("resize", () => {
		if (compared && compared.shown) compared.redraw();
		soon();
	});
	if (recorded) openReport(recorded.text);
	else {
		follow();
		lessons = new Lessons();
		lessons.route();
	}
}

function localStorageGet(name) {
	try {
		return localStorage.getItem(name);
	} catch {
		return null;
	}
}
function localStorageSet(name, value) {
	try {
		localStorage.setItem(name, value);
	} catch {
		/* a file has none in some browsers */
	}
}

start();
