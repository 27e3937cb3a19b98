"use strict";
// Save and notes: one HTML file with a recording, or with both runs of a comparison, that opens anywhere.

const PLACE = 'id="recording">'; // in the page of a report; scripts that name it come behind

const recorded = (() => {
	// In a report: its recording, and the page around it before anything has changed there. Null from a server.
	const place = $("recording");
	if (!place) return null;
	const text = place.textContent;
	place.textContent = "";
	return { text, shell: `<!doctype html>\n${document.documentElement.outerHTML}` };
})();

function recordingOf(text) {
	// Lines of a recording: the file itself, or what a page holds.
	const at = text.trimStart().startsWith("<") ? text.indexOf(PLACE) : -1;
	return at < 0 ? text : text.slice(at + PLACE.length, text.indexOf("<\/script>", at));
}

function headOf(text) {
	// The first line, and where it ends.
	const end = text.indexOf("\n") < 0 ? text.length : text.indexOf("\n");
	return [JSON.parse(text.slice(0, end)), end];
}

function takeNotes(head) {
	$("notes").value = typeof head.notes === "string" ? head.notes : "";
	showNotes($("notes").value !== "");
}

function showNotes(on) {
	$("notes-panel").hidden = !on;
	$("notes-button").setAttribute("aria-expanded", on);
}

async function save() {
	const lines = compared && compared.shown ? compared.text() : recorder.text();
	const [head, end] = headOf(lines),
		notes = $("notes").value;
	const text = JSON.stringify({ ...head, notes: notes || undefined }) + lines.slice(end);
	try {
		const shell = recorded ? recorded.shell : await page("console/report.html"),
			at = shell.indexOf(PLACE) + PLACE.length;
		// Escaping "<", which JSON has only within strings, keeps the recording from closing its element.
		const blob = [shell.slice(0, at), text.replaceAll("<", "\\u003c"), shell.slice(at)].join("");
		saveAs(
			blob,
			"text/html",
			`console-${new Date().toISOString().slice(0, 19).replaceAll(":", "")}.html`,
		);
	} catch {
		warn("the server does not answer; nothing was saved");
	}
}

function saveAs(text, type, download) {
	const link = el("a", { href: URL.createObjectURL(new Blob([text], { type })), download });
	link.click();
	setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}

async function page(path) {
	const response = await fetch(path);
	if (!response.ok) throw response.status;
	return response.text();
}

function warn(text) {
	// For four seconds, where the state stands.
	say(text);
	said = performance.now() + 4000;
	setTimeout(() => {
		if (compared && compared.shown) compared.tell();
		else soon();
	}, 4100);
}
