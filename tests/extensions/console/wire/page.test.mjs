// What the console's page computes, without a browser: test_page_scripts.py runs this with node.
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import path from "node:path";
import { test } from "node:test";
import vm from "node:vm";

const FOLDER = process.env.PAGE;
// None of these files touches the page when it is loaded, and their functions for figures never do.
const FILES =
  "model past moments recorder scale draw filter sums tiles routes summary quantiles heat density".split(
    " ",
  );
const page = vm.createContext({ document: { getElementById: () => null } });
for (const name of FILES)
  vm.runInContext(readFileSync(path.join(FOLDER, `${name}.js`), "utf8"), page);

const of = (name) => vm.runInContext(name, page);
const plain = (value) => JSON.parse(JSON.stringify(value));
const call = (name, ...values) => plain(of(name)(...values));

const NAMES =
  "running waiting cache_usage preemptions generated prompt cached queries hits stop length abort error repetition refused".split(
    " ",
  );
const SERVER = { places: 4, shared_steps: true, budget: 8192, blocks: 0, block_size: 16 };

function figures(values) {
  return NAMES.map((name) => values[name] ?? 0);
}

function picture(frame = {}) {
  return {
    version: 2,
    began: 1000,
    server: SERVER,
    names: NAMES,
    ttft_bounds: [],
    itl_bounds: [],
    since: 0,
    frame: { at: 0, figures: figures({}), ...frame },
  };
}

function recording(frames, first = {}) {
  const lines = [picture(first), ...frames].map((line) => JSON.stringify(line)),
    recorder = new (of("Recorder"))();
  return [recorder, recorder.read(lines.join("\n"))];
}

function bar(number, arrival, more = {}) {
  const { path: route = "/v1/completions", prompt = 100, adapter = null } = more;
  return [number, `cmpl-${number}`, 0, prompt, 50, arrival, adapter, route, 1];
}

test("ticks are round and end at or below the greatest value", () => {
  assert.deepEqual(call("niceBelow", 76), 50);
  assert.deepEqual(call("niceBelow", 0.2), 0.2);
  assert.deepEqual(call("ticksTo", 100, call("niceBelow", 100 / 2)), [0, 50, 100]);
  assert.deepEqual(call("ticksTo", 76, call("niceBelow", 76 / 2)), [0, 20, 40, 60]);
});

test("bins have one round width, a value at a limit belongs below it, and the last bin is open", () => {
  const rows = [
    [0, 1],
    [5, 2],
    [5.1, 3],
    [159, 4],
    [1000, 5],
  ];
  const { width, counts } = call("binsOf", rows, 160);
  assert.equal(width, 5);
  assert.equal(counts.length, 33);
  assert.deepEqual([counts[0], counts[1], counts[31], counts[32]], [3, 3, 4, 5]);
});

test("a steady rate is shown as it is, however its ends fall into frames", () => {
  const frames = [];
  for (let k = 1; k <= 60; k++) {
    const stop = Math.floor(k * 0.25 * 14);
    frames.push({ at: k * 250, figures: figures({ stop, generated: stop * 100 }) });
  }
  const [recorder] = recording(frames),
    rates = recorder.points.slice(40);
  const tile = of("TILES").find(({ name }) => name === "Requests");
  assert.deepEqual([...new Set(rates.map((point) => tile.value(point)))], ["14.0/s"]);
  const quarters = new Set(rates.map((point) => Math.round(point.rates.ended)));
  assert.deepEqual([...quarters].sort(), [12, 16]);
});

test("an end-to-end latency is that of a choice that did not fail", () => {
  const ended = [
    [1, "length", 400, 10, 0, 100, 200, 400],
    [2, "abort", 300, 2, 0, 100, 200, 300],
  ];
  const [recorder] = recording([
    { at: 250, figures: figures({}), new: [bar(1, 0), bar(2, 50)] },
    { at: 500, figures: figures({ length: 1, abort: 1 }), ended },
  ]);
  assert.deepEqual(plain(recorder.samples.at(-1).e2e), [4000, 1]);
  assert.deepEqual(plain(recorder.ends.map(({ took, failed }) => [took, failed])), [
    [250, true],
    [400, false],
  ]);
});

test("ends that a new picture repeats are noted once", () => {
  const ended = [[1, "stop", 400, 10, 0, 100, 200, 400]];
  const [recorder] = recording([
    { at: 500, figures: figures({ stop: 1 }), new: [bar(1, 0)], ended },
    picture({ at: 750, figures: figures({ stop: 1 }), new: [bar(1, 0)], ended }),
  ]);
  assert.equal(recorder.ends.length, 1);
});

test("a heat map counts by powers of two and columns of time", () => {
  const ends = [
    { at: 10, tokens: 1, weight: 1 },
    { at: 20, tokens: 3, weight: 2 },
    { at: 110, tokens: 4, weight: 1 },
    { at: 300, tokens: 4, weight: 1 },
  ];
  const heat = of("heatOf")(ends, (end) => end.tokens, 0, 200, 100);
  assert.deepEqual(plain(heat.columns.map((column) => [...column])), [
    [
      [0, 1],
      [1, 2],
    ],
    [[2, 1]],
  ]);
  assert.deepEqual([heat.low, heat.high, heat.most], [0, 2, 2]);
});

test("routes have rows with latencies of what did not fail, and a total", () => {
  const end = (at, route, took, failed = false) => ({
    at,
    path: route,
    took,
    failed,
    tokens: 5,
    weight: 1,
  });
  const ends = [
    end(1000, "/v1/completions", 100),
    end(2000, '/v1/"x"', 50),
    end(8000, "/v1/completions", 300),
    end(9000, "/v1/completions", 1, true),
  ];
  const rows = call("routesOf", ends, 0, 10000, 10000);
  assert.deepEqual(rows[0], [
    ...["/v1/completions", 3, 1, 300, 300, 300, 200, 100, 300],
    ...[15, 0.4, 0.2],
  ]);
  assert.deepEqual(rows.at(-1).slice(0, 3), ["total", 4, 1]);
  const lines = call("csvOf", rows).split("\r\n");
  assert.equal(lines.length, 5);
  assert.match(lines[0], /^"route","requests","failed","p50 ms"/);
  assert.equal(lines[1], '"/v1/completions",3,1,300,300,300,200,100,300,15,0.4,0.2');
  assert.match(lines[2], /^"\/v1\/""x""",1,0,/);
});

test("a filter combines words with comparisons of columns, and headings sort", () => {
  const [, model] = recording([
    {
      at: 5000,
      figures: figures({}),
      new: [bar(1, 0), bar(2, 100, { path: "/v1/chat/completions", prompt: 9 }), bar(3, 200)],
      ended: [
        [1, "length", 4000, 10, 0, 100, 200, 4000],
        [2, "stop", 1000, 2, 0, 100, 500, 1000],
      ],
    },
  ]);
  const bars = [...model.bars.values()],
    found = (text) => bars.filter((it) => of("filterOf")(text)(it, 5000)).map((it) => it.number);
  assert.deepEqual(found(""), [1, 2, 3]);
  assert.deepEqual(found("path:chat"), [2]);
  assert.deepEqual(found("took>3s"), [1, 3]);
  assert.deepEqual(found("took>3s cmpl-3"), [3]);
  assert.deepEqual(found("ttft<300"), [1]);
  assert.deepEqual(found("state:queued"), [3]);
  const by = (key, down) => of("sorted")(bars, { key, down }, 5000).map((it) => it.number);
  assert.deepEqual(by("took", true), [3, 1, 2]);
  assert.deepEqual(by("ttft", false), [1, 2, 3], "without a first token, last");
  assert.deepEqual(by("ttft", true), [2, 1, 3]);
});

test("sums of a selection count only what lies in it", () => {
  const [, model] = recording([
    {
      at: 1000,
      figures: figures({}),
      new: [bar(1, 0), bar(2, 900)],
      ended: [[1, "length", 800, 10, 0, 100, 300, 800]],
      steps: [
        [100, 200, 64, 0, 1],
        [300, 20, 0, 1, 1],
        [700, 20, 0, 1, 1],
      ],
    },
  ]);
  const sums = call("sumsOf", model, 200, 500);
  assert.deepEqual([sums.requests, sums.ended, sums.steps, sums.decode], [1, 0, 1, 1]);
  assert.deepEqual(sums.phases, [
    ["prefill", 1, 100, 100],
    ["decode", 1, 200, 200],
  ]);
});

test("a transfer stays visible when its request has ended", () => {
  const frames = [
    { at: 250, figures: figures({}), new: [bar(1, 0)], phases: [[1, 2, 100, 0]] },
    { at: 500, figures: figures({}), ended: [[1, "length", 450, 10, 0, 300, 320, 450]] },
  ];
  const [, model] = recording(frames);
  assert.deepEqual(plain(model.bars.get(1).parts), [
    [0, 0],
    [2, 100],
    [1, 300],
    [3, 320],
  ]);
  frames[0].phases = [[1, 2, 300, 0]];
  const [, whole] = recording(frames);
  assert.deepEqual(
    plain(whole.bars.get(1).parts),
    [
      [0, 0],
      [2, 300],
      [3, 320],
    ],
    "without steps of its own, the transfer takes the place of the prefill",
  );
});

test("the phase at a moment is that of a running request, too", () => {
  const [, model] = recording([
    {
      at: 1000,
      figures: figures({}),
      new: [bar(1, 0), bar(2, 500)],
      phases: [
        [1, 1, 100, 0],
        [1, 3, 300, 0],
        [2, 1, 600, 0],
      ],
      tokens: [1, 7],
      computed: [2, 64],
    },
  ]);
  const at = (number, moment) => call("phaseAt", model.bars.get(number), moment, model.at);
  assert.equal(at(1, 50), "queued for 100 ms");
  assert.equal(at(1, 200), "prefill for 200 ms");
  assert.equal(at(1, 400), "decode for 700 ms so far, 7 of 50 tokens");
  assert.equal(at(1, 5000), "decode for 700 ms so far, 7 of 50 tokens");
  assert.equal(at(2, 700), "prefill for 400 ms so far, 64 of 100 prompt tokens");
  assert.equal(at(2, 100), "", "it has not arrived");
});

test("a stream has holes where its engine ran a long step", () => {
  const [, model] = recording([
    {
      at: 1000,
      figures: figures({}),
      new: [bar(1, 0), bar(2, 0)],
      phases: [
        [1, 3, 50, 0],
        [2, 3, 450, 0],
      ],
      steps: [
        [100, 50, 10, 1, 1],
        [150, 300, 900, 1, 2],
        [450, 400, 900, 1, 2, 1],
        [450, 20, 0, 2, 2],
      ],
    },
  ]);
  const stalls = call("stallsOf", model, 0, 1000);
  assert.deepEqual(stalls, [
    [150, 450, 900, 0],
    [450, 850, 900, 1],
    [470, 1000, null, 0],
    [850, 1000, null, 1],
  ]);
  const holes = (number) =>
    call("holesOf", model.bars.get(number), model.bars.get(number).first, 1000, stalls, SERVER);
  assert.deepEqual(holes(1), [stalls[0], stalls[2]]);
  assert.deepEqual(holes(2), [stalls[2]], "it began after the long step");
});

test("a step that is not over stalls its streams until now", () => {
  const steps = [[200, 900, 500, 1, 1]],
    at = (moment) =>
      call("stallsOf", recording([{ at: moment, figures: figures({}), steps }])[1], 0, moment);
  assert.deepEqual(at(700), [[200, 700, null, 0]]);
  assert.deepEqual(at(1150), [[200, 1100, 500, 0]]);
});

test("the longest gap between tokens of a frame is a point of a curve", () => {
  const [recorder] = recording([
    { at: 250, figures: figures({}), itl: [120, 3, 9000, 1] },
    { at: 500, figures: figures({}) },
  ]);
  assert.deepEqual(plain(recorder.points.map((point) => point.rates.longest)), [null, 900, null]);
});

test("percentiles of two runs are subtracted one by one", () => {
  const hundred = Array.from({ length: 100 }, (_, k) => k),
    rows = call(
      "quantileDifferences",
      hundred,
      hundred.map((value) => value * 2),
    );
  assert.equal(rows.length, 99);
  assert.deepEqual(rows[49], [50, 50, 100, 50]);
  assert.deepEqual(call("quantileDifferences", [], hundred), []);
});

test("percentiles are exact, and waits count", () => {
  const spread = new (of("Spread"))(new Map([[100, 3]]), [500], 1);
  assert.deepEqual([spread.quantile(0.5), spread.quantile(0.9), spread.total], [10, 500, 4]);
  assert.equal(spread.within(10), 0.75);
  assert.equal(spread.mean, 132.5);
});

test("figures of the time before come from the picture, and gaps are known from the frames on", () => {
  const past = [[-500, ...figures({ generated: 10 })]];
  const frame = { at: 250, figures: figures({ generated: 30 }), itl: [120, 3] };
  const lines = [{ ...picture(), past }, frame].map((line) => JSON.stringify(line)),
    recorder = new (of("Recorder"))();
  recorder.read(lines.join("\n"));
  assert.deepEqual(plain(recorder.points.map((point) => [point.at, point.figures.generated])), [
    [-500, 10],
    [0, 0],
    [250, 30],
  ]);
  assert.deepEqual(plain(recorder.points.map((point) => point.rates.itl)), [null, null, 12]);
});

test("a saved recording shows the same when it is opened again", () => {
  const [recorder, model] = recording([
    { at: 500, figures: figures({ running: 1 }), new: [bar(1, 0)], phases: [[1, 3, 200, 0]] },
    { at: 750, figures: figures({ running: 1 }), tokens: [1, 7] },
  ]);
  const again = new (of("Recorder"))().read(recorder.text());
  assert.deepEqual(plain(again.picture()), plain(model.picture()));
});
