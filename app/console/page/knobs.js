"use strict";
// A knob for every live setting, made from the server's own table.

class Knobs {
  constructor(ask, ranks) {
    this.ask = ask;
    this.all = ranks > 1 ? el("input", { type: "checkbox", checked: true }) : null;
  }

  async make() {
    const answer = await this.ask("GET", "knobs");
    if (answer.status !== 200) return el("p", { class: "bad" }, answer.error);
    const groups = new Map();
    for (const knob of answer.body) {
      if (!groups.has(knob.group)) groups.set(knob.group, []);
      groups.get(knob.group).push(knob);
    }
    const find = el("input", { type: "search", placeholder: "Find a setting", "aria-label": "Find a setting" });
    const parts = [...groups].map(([group, knobs]) => el("fieldset", {}, el("legend", {}, group), ...knobs.map((knob) => this.knob(knob))));
    find.addEventListener("input", () => {
      for (const part of parts) {
        let some = false;
        for (const row of part.querySelectorAll(".knob")) { row.hidden = !row.dataset.name.includes(find.value.trim().toLowerCase()); some = some || !row.hidden; }
        part.hidden = !some;
      }
    });
    return el("div", { class: "knobs" }, find, this.all ? el("label", { class: "check" }, this.all, " on all ranks") : null, ...parts);
  }

  knob(knob) {
    const id = `knob-${knob.name}`, told = el("small", { class: "muted" }), input = this.input(knob, id);
    const text = [knob.help, knob.unit && `Unit: ${knob.unit}.`, knob.limits && `It ${knob.limits}.`].filter(Boolean).join(" ");
    input.title = text;
    const apply = async () => {
      const value = this.value(knob, input);
      told.className = "muted";
      told.textContent = "…";
      const answer = await this.ask("POST", `/admin/config${this.all && this.all.checked ? "?ranks=all" : ""}`, { [knob.name]: value });
      told.className = answer.status === 200 ? "good" : "bad";
      told.textContent = answer.status === 200 ? "set" : answer.error;
      if (answer.status === 200) setTimeout(() => { told.textContent = ""; }, 2500);
    };
    input.addEventListener("change", apply);
    input.setAttribute("aria-describedby", `${id}-help`);
    return el("div", { class: "knob", "data-name": knob.name }, el("label", { htmlFor: id, title: text }, knob.name), input, told, el("small", { class: "muted help", id: `${id}-help` }, text));
  }

  input(knob, id) {
    if (knob.kind === "switch") return el("input", { type: "checkbox", id, checked: knob.value === true });
    if (knob.choices.length) {
      const select = el("select", { id }, ...knob.choices.map((choice) => el("option", { value: choice }, choice || "(empty)")));
      select.value = knob.value || "";
      return select;
    }
    if (knob.kind === "JSON") return el("textarea", { id, rows: 2, spellcheck: false, value: knob.value === null ? "" : JSON.stringify(knob.value) });
    const shown = knob.secret ? "" : Array.isArray(knob.value) ? knob.value.join(", ") : knob.value === null ? "" : String(knob.value);
    const given = { type: knob.secret ? "password" : "text", id, value: shown, autocomplete: "off", spellcheck: false };
    if (knob.kind.includes("number")) given.inputMode = "decimal";
    return el("input", { ...given, placeholder: knob.secret && knob.value && knob.value.length ? "set; type another one" : knob.optional ? "none" : "" });
  }

  value(knob, input) {
    // As YAML would have it: the server reads it by its own rules and says what is wrong.
    if (knob.kind === "switch") return input.checked;
    const text = input.value.trim();
    if (knob.optional && text === "") return null;
    if (knob.kind === "list") return text === "" ? [] : text.split(",").map((part) => part.trim());
    if (knob.kind.includes("number") && text !== "" && !Number.isNaN(Number(text))) return Number(text);
    return text;
  }
}
