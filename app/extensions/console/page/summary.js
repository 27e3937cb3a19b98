"use strict";
// Of a whole simulation: its busiest moment, and the mean and the peak of each tile.

function busiest(points) {
	// The first moment with the most requests, running and waiting.
	const requests = (point) => point.figures.running + point.figures.waiting;
	let found = points[0];
	for (const point of points) if (requests(point) > requests(found)) found = point;
	return found.at;
}

function summaryOf(points, samples) {
	// Of each tile that has them, by its name: ["mean 12.4", "peak 31"].
	const lines = {};
	for (const tile of TILES.filter((it) => it.sum)) {
		const [mean, peak] = tile.latency
			? ofLatencies(samples, tile.latency)
			: ofCurve(points, tile.curve, tile.spark);
		if (peak !== null) lines[tile.name] = [`mean ${tile.sum(mean)}`, `peak ${tile.sum(peak)}`];
	}
	return lines;
}

function ofCurve(points, curve, spark = curve) {
	// The mean over time, in which each point counts with the time since the one before, and the peak of what a tile shows.
	let total = 0,
		peak = null;
	for (let k = 1; k < points.length; k++) {
		const value = curve(points[k]);
		total += value * (points[k].at - points[k - 1].at);
		peak = Math.max(peak ?? 0, spark(points[k]));
	}
	return [total / (points[points.length - 1].at - points[0].at), peak];
}

function ofLatencies(samples, name) {
	// The mean and the greatest of all latencies, in milliseconds.
	let total = 0,
		number = 0,
		peak = null;
	for (const sample of samples)
		pairs(sample[name], (value, count) => {
			total += (value / 10) * count;
			number += count;
			peak = Math.max(peak ?? 0, value / 10);
		});
	return [total / number, peak];
}
