"use strict";
// A row for each route, and their total; latencies are those of choices that did not fail.

const ROUTE_HEADS = ["route", "requests", "failed", "p50", "p90", "p99", "mean", "min", "max"];
const ROUTE_RATES = ["output tokens", "requests/s", "failed/s"]; // the last two over five seconds

function routesOf(ends, from, to, now) {
	// Rows of numbers after the path; times are milliseconds, null without a request that did not fail.
	const routes = new Map([["total", []]]);
	for (let k = after(ends, from); k < ends.length && ends[k].at <= to; k++) {
		const { path } = ends[k];
		if (!routes.has(path)) routes.set(path, []);
		routes.get(path).push(ends[k]);
		routes.get("total").push(ends[k]);
	}
	const [total, ...rest] = [...routes].map(([path, its]) => {
		const sum = (value) => its.reduce((all, end) => all + value(end) * end.weight, 0),
			good = its.filter((end) => !end.failed).map((end) => [end.took, end.weight]),
			spread = new Spread(new Map(), []),
			recent = (end) => (end.at > now - MEAN_MS ? 1000 / MEAN_MS : 0);
		spread.take(good);
		return [
			path,
			sum(() => 1),
			sum((end) => end.failed),
			...[0.5, 0.9, 0.99].map((share) => spread.quantile(share)),
			spread.mean,
			good.length ? spread.rows[0][0] : null,
			good.length ? spread.rows[spread.rows.length - 1][0] : null,
			sum((end) => end.tokens),
			sum(recent),
			sum((end) => recent(end) * end.failed),
		];
	});
	return [...rest.sort((a, b) => b[1] - a[1]), total];
}

function csvOf(rows) {
	const text = (value) =>
		typeof value === "number"
			? String(Math.round(value * 1000) / 1000)
			: `"${String(value ?? "").replaceAll('"', '""')}"`;
	const heads = [
		...ROUTE_HEADS.slice(0, 3),
		...ROUTE_HEADS.slice(3).map((name) => `${name} ms`),
		...ROUTE_RATES,
	];
	return [heads, ...rows].map((row) => row.map(text).join(",") + "\r\n").join("");
}

class RoutesView {
	constructor() {
		this.body = el("tbody");
		this.at = -Infinity;
		$("routes").replaceChildren(table([...ROUTE_HEADS, ...ROUTE_RATES], this.body));
		$("routes-csv").onclick = () => saveAs(csvOf(this.rows), "text/csv", "routes.csv");
	}

	render(now, { selected, zoomed, whole: all }) {
		// Of the selected or zoomed time, else of all that is recorded.
		const { from, to } = selected || zoomed || { from: all.from - 1, to: now.at },
			key = `${from} ${to} ${recorder.ends.length}`;
		if (
			key === this.key ||
			(Math.abs(now.at - this.at) < Math.max(1000, recorder.ends.length / 20) && stopped === null)
		)
			return;
		this.key = key;
		this.at = now.at;
		this.rows = routesOf(recorder.ends, from, Math.min(to, now.at), now.at);
		this.body.replaceChildren(
			...this.rows.map(([path, ...values]) =>
				tr(path, ...values.map((value, k) => (k > 1 && k < 8 ? ms(value) : short(value)))),
			),
		);
	}
}
