"use strict";
// The map of KV blocks, coloured by what they are or whose they are.

class BlocksView {
	constructor() {
		this.canvas = $("blocks");
		axis.attachTip(this.canvas, (event) => this.hint(event));
		$("blocks-by").addEventListener("input", () => {
			if (this.model) this.render(this.model);
		});
	}

	render(model) {
		this.model = model;
		const { server } = model,
			used = Math.round(model.figures.cache_usage * server.blocks);
		$("blocks-size").textContent = server.blocks
			? `${whole(used)} of ${whole(server.blocks)} used`
			: "";
		if (!server.blocks) {
			this.empty(
				"No KV cache is simulated. Enable it with --enable-kvcache, or simulate steps with --profile.",
			);
			return;
		}
		const cells = server.numbered ? model.blocks.length : server.blocks;
		const width = this.canvas.clientWidth || this.canvas.parentElement.clientWidth;
		const size = Math.max(2, Math.min(13, Math.floor(Math.sqrt((width * 230) / cells)))),
			across = Math.floor(width / size);
		const each = Math.max(1, Math.ceil(cells / (across * 170))); // of very large caches a cell is several blocks
		const rows = Math.ceil(cells / each / across);
		const [pen] = surface(this.canvas, rows * size + 2);
		this.cells = { size, across, each, owners: [] };
		if (server.numbered) this.numbered(pen, model, size, across, each);
		else this.counted(pen, model, size, across, each, cells);
	}

	hint(event) {
		// The block under the pointer: its state, and whose it is.
		if (!this.cells || !this.model.server.blocks) return [];
		const { size, across, each, owners } = this.cells,
			column = Math.floor(event.offsetX / size),
			cell = Math.floor(event.offsetY / size) * across + column,
			{ model } = this;
		if (column >= across) return [];
		const block = cell * each,
			state = model.blocks[block],
			bar = model.bars.get(model.server.numbered ? model.owners[block] : owners[cell]);
		if (!model.server.numbered) return bar ? [`held by ${bar.id}`] : [];
		if (state === undefined || !block) return [];
		const whose =
			state === FREE || !model.owners[block]
				? ""
				: `${state === HELD ? "held by" : "last held by"} ${bar ? `${bar.id}${bar.adapter ? `, ${bar.adapter}` : ""}` : "an earlier request"}`;
		return [
			`block ${whole(block)}${each > 1 ? ` to ${whole(block + each - 1)}` : ""}: ${["free", "cached", "held", "shared"][state]}`,
			whose,
		].filter(Boolean);
	}

	empty(text) {
		const [pen, width, height] = surface(this.canvas, 60);
		pen.fillStyle = COLOURS.muted;
		pen.textAlign = "center";
		const words = text.split(". ");
		words.forEach((line, k) =>
			pen.fillText(line, width / 2, height / 2 + (k - (words.length - 1) / 2) * 16),
		);
		this.canvas.setAttribute("aria-label", text);
		legend($("blocks-legend"), []);
	}

	numbered(pen, model, size, across, each) {
		const by = $("blocks-by").value,
			gap = size > 4 ? 1 : 0,
			counts = [0, 0, 0, 0];
		for (let block = 1; block < model.blocks.length; block++) counts[model.blocks[block]]++;
		for (let cell = 0; cell * each < model.blocks.length; cell++) {
			let block = cell * each;
			for (let k = block; k < Math.min(block + each, model.blocks.length); k++)
				if (model.blocks[k] > model.blocks[block]) block = k;
			if (block === 0 && each === 1) continue; // vLLM's null block
			const at = [(cell % across) * size, Math.floor(cell / across) * size, size - gap, size - gap];
			pen.fillStyle = this.colour(model, block, by);
			pen.fillRect(...at);
			if (model.blocks[block] === SHARED && size > 5 && by !== "state") {
				pen.fillStyle = COLOURS.text;
				pen.fillRect(at[0] + size / 2 - 1.5, at[1] + size / 2 - 1.5, 2, 2);
			}
		}
		for (const [block, when] of model.flashes) {
			pen.globalAlpha = Math.max(0, 1 - (model.at - when) / FLASH_MS);
			const cell = Math.floor(block / each);
			pen.fillStyle = COLOURS.failed;
			pen.fillRect(
				(cell % across) * size,
				Math.floor(cell / across) * size,
				size - gap,
				size - gap,
			);
		}
		pen.globalAlpha = 1;
		this.tell(model, by, counts, each);
	}

	colour(model, block, by) {
		const state = model.blocks[block];
		if (state === FREE) return COLOURS.free;
		if (by === "state")
			return [COLOURS.free, COLOURS.cached, COLOURS.decode, COLOURS.transfer][state];
		const alpha = state === CACHED ? 0.35 : 1,
			owner = model.owners[block],
			bar = model.bars.get(owner);
		if (by === "request") return hue(owner, alpha);
		if (by === "prefix")
			return bar && bar.first_block
				? hue(bar.first_block, alpha)
				: state === CACHED
					? COLOURS.cached
					: COLOURS.queued;
		return bar && bar.adapter
			? hue(textNumber(bar.adapter), alpha)
			: state === CACHED
				? COLOURS.cached
				: COLOURS.queued;
	}

	counted(pen, model, size, across, each, cells) {
		const gap = size > 4 ? 1 : 0,
			by = $("blocks-by").value;
		let cell = 0,
			held = 0;
		const put = (colour, owner) => {
			this.cells.owners.push(owner);
			pen.fillStyle = colour;
			pen.fillRect(
				(cell % across) * size,
				Math.floor(cell / across) * size,
				size - gap,
				size - gap,
			);
			cell++;
		};
		for (const bar of model.bars.values()) {
			if (bar.end !== null || !bar.held || bar.phase === PREEMPTED || bar.phase === QUEUED)
				continue;
			held += bar.held;
			while (cell * each < held)
				put(
					by === "state"
						? COLOURS.decode
						: by === "adapter"
							? bar.adapter
								? hue(textNumber(bar.adapter))
								: COLOURS.queued
							: hue(bar.number),
					bar.number,
				);
		}
		const found =
			model.began === null
				? Math.max(0, Math.round(model.figures.cache_usage * model.server.blocks) - held)
				: 0;
		while (cell * each < held + found && cell * each < cells) put(COLOURS.transfer);
		while (cell * each < cells) put(COLOURS.free);
		legend($("blocks-legend"), [
			[COLOURS.free, "free"],
			[COLOURS.decode, `held ${whole(held)}`],
			...(found ? [[COLOURS.transfer, `found in the cache ${whole(found)}`]] : []),
			["transparent", "blocks are counted, not identified"],
		]);
		this.canvas.setAttribute("aria-label", `${held} blocks held`);
	}

	tell(model, by, counts, each) {
		const free = model.server.blocks - counts[CACHED] - counts[HELD] - counts[SHARED];
		const words = [
			["free", free, COLOURS.free],
			["cached", counts[CACHED], COLOURS.cached],
			["held", counts[HELD], COLOURS.decode],
			["shared", counts[SHARED], COLOURS.transfer],
		];
		const items =
			by === "state"
				? words.map(([name, count, colour]) => [colour, `${name} ${whole(count)}`])
				: [
						[
							"transparent",
							`${words.map(([name, count]) => `${name} ${whole(count)}`).join(", ")}; pale: cached; a dot: shared`,
						],
					];
		if (by === "adapter")
			for (const name of Object.keys(model.adapters)) items.push([hue(textNumber(name)), name]);
		items.push([COLOURS.failed, "just evicted"]);
		items.push(["transparent", `${model.server.block_size} tokens each`]);
		if (each > 1) items.push(["transparent", `a cell is ${each} blocks`]);
		if (model.blocks.length < model.server.blocks)
			items.push([
				"transparent",
				`the first ${whole(model.blocks.length)} of ${whole(model.server.blocks)}`,
			]);
		legend($("blocks-legend"), items);
		this.canvas.setAttribute(
			"aria-label",
			words.map(([name, count]) => `${count} ${name}`).join(", "),
		);
	}
}

function textNumber(text) {
	let number = 7;
	for (let k = 0; k < text.length; k++) number = (number * 31 + text.charCodeAt(k)) % 9973;
	return number;
}
