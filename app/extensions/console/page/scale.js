"use strict";
// Numbers for axes: round steps, ticks, bins of equal width.

const BINS_SHOWN = 32;

function nice(least) {
	// 1, 2 or 5 times a power of ten.
	const ten = 10 ** Math.floor(Math.log10(least));
	return [1, 2, 5, 10].find((k) => k * ten >= least * 0.999) * ten;
}

function niceBelow(most) {
	// The greatest such number up to a limit.
	const ten = 10 ** Math.floor(Math.log10(most * 1.001));
	return [5, 2, 1].find((k) => k * ten <= most * 1.001) * ten;
}

function ticksTo(most, step) {
	// Multiples of a step, from 0 up to the greatest value.
	return Array.from({ length: Math.floor((most / step) * 1.0001) + 1 }, (_, k) => k * step);
}

function binsOf(rows, top) {
	// Counts of sorted rows [value, count] in bins of equal, round width; the last bin has what is greater.
	const width = nice(top / BINS_SHOWN),
		counts = Array(Math.max(1, Math.ceil((top / width) * 0.999)) + 1).fill(0);
	for (const [value, count] of rows)
		counts[Math.min(counts.length - 1, Math.max(0, Math.ceil(value / width - 1e-9) - 1))] += count;
	return { width, counts };
}

function rateSince(figures, before, names, seconds) {
	// Change of the sum of some figures per second; 0 without time.
	const change = names.reduce((sum, name) => sum + figures[name] - before[name], 0);
	return seconds > 0 ? Math.max(0, change) / seconds : 0;
}
