"use strict";
// Requests as a table, which its headings sort.

const MOST_TABLE_ROWS = 100;

class RequestTable {
	constructor(bars) {
		this.bars = bars;
		this.body = el("tbody");
		this.heads = COLUMNS.map(({ key, heading }) =>
			el("th", {}, el("button", { onclick: () => this.sort(key) }, heading)),
		);
		$("request-table").append(
			el("table", {}, el("thead", {}, el("tr", {}, ...this.heads)), this.body),
		);
	}

	sort(key) {
		const { order } = this.bars;
		this.bars.order = { key, down: order && order.key === key ? !order.down : true };
		$("order").value = key;
		this.bars.render(this.bars.model);
	}

	render(rows, now) {
		// Elements are kept, so that who reads keeps the focus.
		const { order } = this.bars;
		this.heads.forEach((head, k) =>
			head.setAttribute(
				"aria-sort",
				order && order.key === COLUMNS[k].key ? (order.down ? "descending" : "ascending") : "none",
			),
		);
		this.rows = rows.slice(0, MOST_TABLE_ROWS);
		while (this.body.children.length > this.rows.length) this.body.lastChild.remove();
		while (this.body.children.length < this.rows.length) {
			const place = this.body.children.length,
				open = () => this.bars.show(this.rows[place].number),
				cells = COLUMNS.slice(1).map(() => cell(""));
			this.body.append(el("tr", {}, el("td", {}, el("button", { onclick: open })), ...cells));
		}
		this.rows.forEach((bar, row) => {
			COLUMNS.forEach(({ value, text }, k) => {
				const it = this.body.children[row].children[k],
					is = value(bar, now),
					now_ = is === null ? "" : text(is),
					place = k ? it : it.firstChild;
				if (place.textContent !== now_) place.textContent = now_;
			});
		});
	}
}
