"use strict";
// The strip of steps: tokens of prompts and of decodes against the budget, and what each step took.

const STRIP = 120, LANE = 56, STRIP_HEAD = 14;

class StepsView {
  constructor() { this.canvas = $("steps"); }

  render(model, points) {
    if (model.pods.length) {
      this.lanes(model, points);
      return;
    }
    const shared = model.server.shared_steps, seconds = shared ? Math.min(10, Number($("span").value)) : Number($("span").value);
    const [pen, width, height] = surface(this.canvas, STRIP), from = model.at - seconds * 1000;
    const rows = model.steps.filter(([begin, took]) => begin + took > from);
    const most = Math.max(model.server.budget, ...rows.map((row) => row[2] + row[3]), 1);
    const low = height - 4, high = low - STRIP_HEAD - 4;
    const y = (tokens) => low - high * Math.sqrt(tokens / most), x = (at) => (at - from) / (seconds * 1000) * width;
    this.lines(pen, most, y, width);
    for (const [begin, took, prompts, decodes] of rows) {
      const left = x(begin), wide = Math.max(1, x(begin + took) - left - (took / seconds > 4 ? 1 : 0));
      pen.fillStyle = COLOURS.decode;
      pen.fillRect(left, y(decodes), wide, low - y(decodes));
      if (!prompts) continue;
      pen.fillStyle = COLOURS.prefill;
      pen.fillRect(left, y(prompts + decodes), wide, y(decodes) - y(prompts + decodes));
    }
    if (shared) this.costs(pen, rows, x, low, high, width);
    this.labels(pen, most, y);
    this.tell(model, rows[rows.length - 1], seconds);
  }

  lanes(model, all) {
    const seconds = Number($("span").value), from = model.at - seconds * 1000, points = all.filter((point) => point.at > from);
    const [pen, width] = surface(this.canvas, model.pods.length * LANE), x = (at) => (at - from) / (seconds * 1000) * width;
    const most = Math.max(1, ...points.map((point) => Math.max(...point.pods.map((row) => row[0] + row[1]))));
    model.pods.forEach(([running, waiting, used, cached, state], pod) => {
      const low = (pod + 1) * LANE - 12, curve = (value) => {
        pen.beginPath();
        for (const point of points) pen.lineTo(x(point.at), low - (LANE - STRIP_HEAD - 14) * value(point.pods[pod]));
      };
      for (const [colour, value] of [[COLOURS.preempted, (row) => (row[0] + row[1]) / most], [COLOURS.decode, (row) => row[0] / most]]) {
        curve(value);
        for (const end of [width, x(points[0].at)]) pen.lineTo(end, low);
        pen.fillStyle = colour;
        pen.fill();
      }
      pen.fillStyle = COLOURS.prefill;
      for (const [begin, took, prompts, , , of] of model.steps) {
        if (of !== pod || !prompts || begin + took < from) continue;
        pen.globalAlpha = 0.2 + 0.8 * Math.min(1, prompts / model.server.budget);
        pen.fillRect(x(begin), low + 2, Math.max(1, x(begin + took) - x(begin)), 6);
      }
      pen.globalAlpha = 1;
      curve((row) => row[2]);
      pen.strokeStyle = COLOURS.transfer;
      pen.stroke();
      pen.fillStyle = COLOURS.text;
      pen.textAlign = "left";
      pen.fillText(`pod ${pod}${state}: ${running} running, ${waiting} waiting, KV cache ${whole(used * 100)} %, prompts cached ${whole(cached * 100)} %`, 4, pod * LANE + 8);
    });
    $("steps-title").textContent = "Pods";
    $("steps-last").textContent = `up to ${most} requests; last ${seconds} s`;
    this.canvas.setAttribute("aria-label", "Pods");
    legend($("steps-legend"), [[COLOURS.decode, "running"], [COLOURS.preempted, "waiting"], [COLOURS.prefill, "prefill, darker for more of the budget"], [COLOURS.transfer, "KV cache"]]);
  }

  lines(pen, most, y, width) {
    pen.strokeStyle = COLOURS.line;
    for (const share of [1, 0.25, 0.0625]) {
      const at = Math.round(y(most * share)) + 0.5;
      pen.setLineDash(share === 1 ? [4, 3] : []);
      pen.beginPath();
      pen.moveTo(0, at);
      pen.lineTo(width, at);
      pen.stroke();
    }
    pen.setLineDash([]);
  }

  labels(pen, most, y) {
    pen.textAlign = "left";
    pen.lineWidth = 3;
    pen.strokeStyle = COLOURS.panel;
    pen.fillStyle = COLOURS.muted;
    for (const share of [1, 0.25, 0.0625]) {
      pen.strokeText(whole(most * share), 4, y(most * share) - 6);
      pen.fillText(whole(most * share), 4, y(most * share) - 6);
    }
    pen.lineWidth = 1;
  }

  costs(pen, rows, x, low, high, width) {
    const most = Math.max(...rows.map((row) => row[1]), 0.001) * 1.15;
    pen.strokeStyle = COLOURS.preempted;
    pen.lineWidth = 1.5;
    pen.beginPath();
    for (const [begin, took] of rows) {
      pen.moveTo(x(begin), low - high * (took / most));
      pen.lineTo(Math.max(x(begin) + 1, x(begin + took)), low - high * (took / most));
    }
    pen.stroke();
    pen.lineWidth = 1;
    pen.fillStyle = COLOURS.muted;
    pen.textAlign = "right";
    if (rows.length) pen.fillText(ms(most / 1.15), width - 4, low - high / 1.15 - 7);
  }

  tell(model, last, seconds) {
    const shared = model.server.shared_steps;
    $("steps-title").textContent = shared ? "Steps" : "Tokens computed";
    $("steps-last").textContent = !last ? `none in the last ${seconds} s`
      : shared ? `${whole(last[2])} prefill + ${whole(last[3])} decode of ${whole(model.server.budget)} tokens, ${whole(last[4])} sequences, ${ms(last[1])}; last ${seconds} s`
        : `requests have latencies of their own: no steps; by quarter of a second, last ${seconds} s`;
    const items = [[COLOURS.prefill, "prefill tokens"], [COLOURS.decode, "decode tokens"]];
    legend($("steps-legend"), shared ? [...items, [COLOURS.preempted, "what it took"], ["transparent", "dashed: the budget (heights as square roots)"]] : items);
    this.canvas.setAttribute("aria-label", $("steps-last").textContent);
  }
}
