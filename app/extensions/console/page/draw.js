"use strict";
// Small helpers: elements whose texts are texts, canvases that are sharp, colours of the theme, numbers for people.

const $ = (id) => document.getElementById(id);

function el(tag, attributes = {}, ...children) {
	const made = document.createElement(tag);
	for (const [name, value] of Object.entries(attributes)) {
		if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
		else if (name === "class") made.className = value;
		else if (name in made && name !== "list") made[name] = value;
		else made.setAttribute(name, value);
	}
	made.append(...children.filter((child) => child !== null && child !== undefined)); // strings become text nodes
	return made;
}

const box = (name, ...children) => el("div", { class: name }, ...children);
const span = (name, ...children) => el("span", { class: name }, ...children);
const para = (name, ...children) => el("p", { class: name }, ...children);

const COLOURS = {};

function readColours() {
	const style = getComputedStyle(document.documentElement);
	const names =
		"bg panel line text muted accent queued prefill transfer decode preempted failed cached free";
	for (const name of names.split(" ")) COLOURS[name] = style.getPropertyValue(`--${name}`).trim();
	COLOURS.dark = style.getPropertyValue("--dark").trim() === "1";
}

const phaseColour = (phase) => COLOURS[PHASES[phase]];

function surface(canvas, height) {
	// The context of a canvas as wide as its place, in CSS pixels.
	const width = Math.max(50, canvas.clientWidth || canvas.parentElement.clientWidth),
		scale = window.devicePixelRatio || 1;
	if (canvas.width !== Math.round(width * scale) || canvas.height !== Math.round(height * scale)) {
		canvas.width = Math.round(width * scale);
		canvas.height = Math.round(height * scale);
		canvas.style.height = `${height}px`;
	}
	const pen = canvas.getContext("2d");
	pen.setTransform(scale, 0, 0, scale, 0, 0);
	pen.clearRect(0, 0, width, height);
	pen.font = "11px ui-monospace, SFMono-Regular, Menlo, Consolas, monospace";
	pen.textBaseline = "middle";
	return [pen, width, height];
}

function aligned(pen, colour, align) {
	// The pen for a text of this colour.
	pen.fillStyle = colour;
	pen.textAlign = align;
	return pen;
}

function hue(number, alpha = 1) {
	// Neighbouring numbers get colours that are far apart.
	return `hsl(${Math.round((number * 137.508) % 360)} ${COLOURS.dark ? "62% 62%" : "58% 46%"} / ${alpha})`;
}

function whole(value) {
	return Math.round(value).toLocaleString("en-US");
}

function count(number, noun) {
	return `${whole(number)} ${noun}${number === 1 ? "" : "s"}`;
}

function short(value) {
	if (value >= 1e6) return `${(value / 1e6).toFixed(1)}M`;
	if (value >= 1e4) return `${(value / 1e3).toFixed(value >= 1e5 ? 0 : 1)}k`;
	return value >= 100 || Number.isInteger(value) ? whole(value) : value.toFixed(1);
}

function ms(value) {
	if (value === null || value === undefined || Number.isNaN(value)) return "–";
	if (value >= 9995) return `${(value / 1000).toFixed(1)} s`;
	if (value >= 999.5) return `${(value / 1000).toFixed(2)} s`;
	return value >= 99.95 ? `${value.toFixed(0)} ms` : `${value.toFixed(1)} ms`;
}

function brief(value) {
	// Milliseconds in six characters.
	return value >= 100000
		? `${Math.round(value / 1000)} s`
		: value >= 1000
			? `${(value / 1000).toFixed(value >= 10000 ? 1 : 2)} s`
			: `${Math.round(value)} ms`;
}

function ago(milliseconds) {
	const exact = Math.max(0, milliseconds / 1000),
		seconds = exact < 10 ? exact : Math.round(exact);
	if (seconds < 100) return `${seconds.toFixed(seconds < 10 ? 1 : 0)} s`;
	const minutes = Math.floor(seconds / 60);
	return minutes < 100
		? `${minutes} min ${seconds % 60} s`
		: `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
}

function legend(place, items) {
	// [colour, text] each, and what it means; made anew only when it has changed.
	const key = JSON.stringify(items);
	if (place.dataset.key === key) return;
	place.dataset.key = key;
	place.replaceChildren(
		...items.map(([colour, text, title = ""]) => {
			const spot = span("spot");
			spot.style.background = colour;
			return el("span", { class: "item", title }, spot, text);
		}),
	);
}
