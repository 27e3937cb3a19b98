"use strict";
// The last five minutes: frames as they came, copies of the model to begin from, points for the charts.

const RECORD_MS = 300000, MOST_BYTES = 48 << 20, COPY_EVERY_MS = 20000;

class Recorder {
  constructor() { this.reset(); this.endless = false; }

  reset() {
    this.frames = []; // {at, text}
    this.copies = []; // {at, model}: the state after the frame of that moment
    this.points = []; // {at, figures, ttft, itl, rates}
    this.bytes = 0;
  }

  begin(model) {
    this.reset();
    this.copies.push({ at: model.at, model: model.clone() });
    this.point(model);
  }

  add(text, model) {
    this.frames.push({ at: model.at, text });
    this.bytes += text.length;
    if (model.at - this.copies[this.copies.length - 1].at >= this.spacing) this.copies.push({ at: model.at, model: model.clone() });
    this.point(model);
    if (!this.endless) this.forget(model.at);
  }

  get spacing() { return this.endless ? Math.max(COPY_EVERY_MS, this.length / 12) : COPY_EVERY_MS; }

  point(model) {
    const figures = { ...model.figures }, last = this.points[this.points.length - 1];
    const seconds = last ? (model.at - last.at) / 1000 : 0;
    const rate = (name) => (seconds > 0 ? Math.max(0, figures[name] - last.figures[name]) / seconds : 0);
    const ended = (all) => all.stop + all.length + all.error + all.abort + all.repetition;
    const rates = {
      generated: rate("generated"), prompt: rate("prompt"), preemptions: rate("preemptions"),
      ended: seconds > 0 ? Math.max(0, ended(figures) - ended(last.figures)) / seconds : 0,
    };
    for (const name of ["ttft", "itl"]) rates[name] = this.middle(name, model) ?? (last ? last.rates[name] : 0);
    this.points.push({ at: model.at, figures, ttft: model.ttft, itl: model.itl, rates, pods: model.pods });
  }

  middle(name, model) {
    // The median of the last seconds, of a histogram that only grows; null when nothing came.
    const before = this.points[Math.max(0, this.points.length - 12)];
    if (!before || !before[name].length) return null;
    return quantile(model.bounds[name].map((bound) => bound * 1000), model[name].map((count, k) => Math.max(0, count - before[name][k])), 0.5);
  }

  forget(now) {
    const first = now - RECORD_MS;
    while (this.frames.length && this.copies.length > 1 && (this.copies[1].at <= first || this.bytes > MOST_BYTES)) {
      this.copies.shift();
      const from = this.copies[0].at;
      let gone = 0;
      while (gone < this.frames.length && this.frames[gone].at <= from) this.bytes -= this.frames[gone++].text.length;
      this.frames.splice(0, gone);
    }
    let old = 0;
    while (old < this.points.length && this.points[old].at < first) old++;
    if (old > 40) this.points.splice(0, old);
  }

  get first() { return this.copies.length ? this.copies[0].at : 0; }
  get last() { return this.frames.length ? this.frames[this.frames.length - 1].at : this.first; }

  at(moment) {
    // The model at a moment. What was shown just before goes on from there.
    const shown = this.shown;
    let copy = this.copies[0];
    for (const each of this.copies) if (each.at <= moment) copy = each;
    const model = shown && shown.at <= moment && shown.at >= copy.at ? shown : copy.model.clone();
    const from = this.place(model.at);
    for (let k = from; k < this.frames.length && this.frames[k].at <= moment; k++) model.apply(JSON.parse(this.frames[k].text));
    this.shown = model;
    return model;
  }

  place(moment) {
    let low = 0, high = this.frames.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this.frames[middle].at <= moment) low = middle + 1; else high = middle;
    }
    return low;
  }

  text() {
    // A file of lines: a picture, then the frames behind it.
    const first = this.copies[0];
    const later = this.frames.filter((frame) => frame.at > first.at).map((frame) => frame.text);
    return [JSON.stringify(first.model.picture()), ...later].join("\n");
  }

  read(text) {
    const lines = text.split("\n").filter((line) => line.trim());
    const picture = JSON.parse(lines[0]);
    if (picture.version !== 1 || !picture.frame) throw new Error("this is no recording of version 1");
    const model = new Model(picture);
    this.begin(model);
    this.endless = true;
    this.length = lines.length > 1 ? JSON.parse(lines[lines.length - 1]).at - model.at : 0;
    for (const line of lines.slice(1)) {
      model.apply(JSON.parse(line));
      this.add(line, model);
    }
    return model;
  }
}
