"""Errors and intervals of computed profiles on runs that people published (`people_runs.csv`).

    python -m benchmarks.people                 # errors of both halves
    python -m benchmarks.people --write         # residuals of the fitted half for the intervals
    python -m benchmarks.people --coverage      # coverage by level of evidence, on the other half

A row is a fact of its source: a server, a load, and mean latencies or tokens per second. Where a
source states no version, it is the newest one. One half of the servers, drawn with `SEED`, may be
seen by fits; the other half only judges.
"""

from __future__ import annotations

import argparse
import csv
import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from hashlib import sha256
from math import ceil, exp, log
from pathlib import Path
from random import Random
from statistics import mean, median

import msgspec
from msgspec import Struct

from app.core.engine.batch import Batch, SequenceState
from app.core.engine.profile import Profile
from app.core.engine.step_cost import StepCost
from app.extensions.costs.datasheet import datasheet_profile
from app.extensions.costs.engine_options import EngineOptions
from app.extensions.costs.error_model import Evidence, KnownError
from app.extensions.costs.published_errors import TABLE, PublishedErrors
from app.extensions.costs.repacks import find_config
from app.extensions.costs.situations import make_situation
from config import ConfigError
from vllm_facts.version import FIRST, parse_version
from workbench.load.loads import LoadTrace
from workbench.runs.simulation import Simulation, SimulationPlan

FILE = Path(__file__).with_name("people_runs.csv")
HELD_OUT = FILE.with_name("people_held_out.json")
"""Residuals of the half that only judges."""
SEED = "people-98"
"""Seed of the halves."""
TURNAROUND_S = 0.001
CHAT_SIGMA = 1.0
"""Standard deviation of the logarithm of ShareGPT's lengths."""
MIN_REQUESTS = 24
"""Fewest simulated requests of a load with few in flight, whose prompts have steps of their own."""
MAX_ROUNDS = 3
"""Most simulated requests for each in flight: later rounds repeat them."""


class Run(Struct, frozen=True, kw_only=True):
    """A published run."""

    source: str
    model: str
    device: str
    tensor_parallel: int
    pipeline_parallel: int
    vllm: str
    load: str
    """`serve` and `sharegpt` are the loads of `vllm bench serve`, `offline` a batch, and `decode` a
    rate of tokens while a fixed number of requests runs.
    """
    input_tokens: int
    output_tokens: int
    concurrency: int
    requests: int
    ttft_ms: float | None
    tpot_ms: float | None
    output_tput: float | None
    """Tokens of answers per second."""
    options: str
    note: str

    @property
    def server(self) -> str:
        """Name of the runs that share model, device and parallelism."""
        parallel = f"tp {self.tensor_parallel}"
        if self.pipeline_parallel > 1:
            parallel += f" pp {self.pipeline_parallel}"
        model = self.model.rpartition("/")[2]
        return f"{model}, {self.device}, {parallel}"

    @property
    def is_held_out(self) -> bool:
        """True for the half that fits do not see."""
        return sha256(f"{SEED} {self.server}".encode()).digest()[0] % 2 == 0

    @property
    def engine_options(self) -> EngineOptions:
        """Options of the server, as far as the source states them."""
        version = self.vllm
        if version and parse_version(version) < parse_version(FIRST):
            version = FIRST
        return EngineOptions(
            tensor_parallel_size=self.tensor_parallel,
            pipeline_parallel_size=self.pipeline_parallel,
            enable_expert_parallel="--enable-expert-parallel" in self.options,
            kv_cache_dtype=self._option("kv-cache-dtype") or "auto",
            enforce_eager="--enforce-eager" in self.options,
            vllm_version=version,
        )

    @property
    def limits(self) -> dict[str, int]:
        """Limits of the engine that the source states."""
        limits = {"enable_prefix_caching": 0}
        for name in ("max-num-seqs", "max-num-batched-tokens"):
            value = self._option(name)
            if value:
                limits[name.replace("-", "_")] = int(value)
        if "--async-scheduling" in self.options:
            limits["async_scheduling"] = 1
        return limits

    def _option(self, name: str) -> str:
        match = re.search(rf"--{name}[= ](\S+)", self.options)
        return match[1] if match else ""


class LevelCoverage(Struct, frozen=True, kw_only=True):
    """Coverage of the intervals of a level of evidence."""

    runs: int
    servers: int
    inside: float
    """Share of the runs inside of their interval."""
    factor: float
    """Median of the upper by the lower end."""


class Judged(Struct, frozen=True, kw_only=True):
    """A run with the ratios of measured to simulated figures, or the reason of a refusal."""

    run: Run
    tpot: float | None = None
    """Of the time per output token; of the throughput where the source has no latency."""
    ttft: float | None = None
    tput: float | None = None
    """Simulated tokens of answers per second."""
    refusal: str = ""


def read_runs(path: Path = FILE) -> list[Run]:
    """Returns the published runs."""
    with path.open() as file:
        return [_read_run(row) for row in csv.DictReader(file)]


def _read_run(row: dict[str, str]) -> Run:
    fields: dict[str, object] = dict(row)
    for name in ("ttft_ms", "tpot_ms", "output_tput"):
        fields[name] = float(row[name]) if row[name] else None
    for name in ("tensor_parallel", "pipeline_parallel", "input_tokens", "output_tokens"):
        fields[name] = int(row[name])
    for name in ("concurrency", "requests"):
        fields[name] = int(row[name])
    return msgspec.convert(fields, Run)


def judge(run: Run) -> Judged:
    """Simulates a run and returns its ratios."""
    try:
        profile = datasheet_profile(
            find_config(run.model),
            run.device,
            run.engine_options,
            origin=run.model,
            limits=run.limits,
        )
    except ConfigError as error:
        return Judged(run=run, refusal=str(error))
    if run.load == "decode":
        ratio = _decode_ratio(run, profile)
        assert run.tpot_ms is not None
        return Judged(run=run, tpot=ratio, tput=1000 * run.concurrency * ratio / run.tpot_ms)
    trace = _load(run)
    plan = SimulationPlan(profile=profile, in_flight=run.concurrency, turnaround_s=TURNAROUND_S)
    result = Simulation(trace, plan, lambda done: None).run()
    spans = zip(result.first_s, result.last_s, trace.output_tokens, strict=True)
    tpot_s = mean((last - first) / max(1, tokens - 1) for first, last, tokens in spans)
    ttft_s = mean(first - send for send, first in zip(result.send_s, result.first_s, strict=True))
    tput = sum(trace.output_tokens) / (max(result.last_s) - min(result.send_s))
    tpot = None
    if run.tpot_ms is not None:
        tpot = run.tpot_ms / (1000 * tpot_s)
    elif run.output_tput is not None:
        tpot = tput / run.output_tput
    is_whole = len(trace) == run.requests
    ttft = None
    if run.ttft_ms is not None and (is_whole or run.concurrency < run.requests):
        ttft = run.ttft_ms / (1000 * ttft_s)
    return Judged(run=run, tpot=tpot, ttft=ttft, tput=tput)


def _decode_ratio(run: Run, profile: Profile) -> float:
    """Returns measured over simulated time per token, while a number of requests runs.

    Fewer run at a time where the cache does not hold them all.
    """
    context = run.input_tokens + run.output_tokens // 2
    capacity = profile.engine.num_gpu_blocks * profile.engine.block_size
    running = max(1, min(run.concurrency, capacity // context, profile.engine.max_num_seqs))
    batch: Batch[SequenceState] = Batch()
    batch.tokens = running
    batch.sequences = running
    batch.context = running * context
    step_s = StepCost(profile.cost).seconds(batch, 0.0, idle=False)
    assert run.tpot_ms is not None
    return run.tpot_ms / (1000 * step_s * run.concurrency / running)


def _load(run: Run) -> LoadTrace:
    rng = Random(1)
    trace = LoadTrace("published run")
    count = min(run.requests, max(MIN_REQUESTS, MAX_ROUNDS * run.concurrency))
    for _ in range(count):
        trace.arrival_s.append(0.0)
        for lengths, length in (
            (trace.input_tokens, run.input_tokens),
            (trace.output_tokens, run.output_tokens),
        ):
            if run.load == "sharegpt":
                drawn = length * exp(rng.gauss(-(CHAT_SIGMA**2) / 2, CHAT_SIGMA))
                lengths.append(max(1, min(round(drawn), 1024)))
            else:
                lengths.append(length)
    return trace


def judge_all(runs: Sequence[Run], processes: int) -> list[Judged]:
    """Simulates runs in parallel."""
    with ProcessPoolExecutor(processes) as pool:
        return list(pool.map(judge, runs, chunksize=2))


def figures(ratios: Iterable[float | None]) -> str:
    """Returns number, median and p90 of the errors in %, and the median ratio."""
    known = [ratio for ratio in ratios if ratio is not None]
    if not known:
        return "0 | - | - | -"
    errors = sorted(abs(1 / ratio - 1) for ratio in known)
    p90 = errors[ceil(0.9 * len(errors)) - 1]
    bias = median(log(ratio) for ratio in known)
    return f"{len(known)} | {100 * median(errors):.1f} | {100 * p90:.1f} | {exp(bias):.2f}"


def print_errors(judged: Sequence[Judged]) -> None:
    """Prints the errors by half and by device, and the refusals."""
    groups: dict[str, list[Judged]] = defaultdict(list)
    refusals: Counter[str] = Counter()
    for each in judged:
        if each.refusal:
            refusals[f"{each.run.server}: {each.refusal}"] += 1
            continue
        half = "held out" if each.run.is_held_out else "fitted"
        groups[f"all, {half}"].append(each)
        groups[f"{each.run.device}, {half}"].append(each)
    print(
        "| runs | number | TPOT median % | p90 % | ratio | number | TTFT median % | p90 % | ratio |"
    )
    print("|---|---:|---:|---:|---:|---:|---:|---:|---:|")
    for name, group in sorted(groups.items()):
        tpot = figures(each.tpot for each in group)
        print(f"| {name} | {tpot} | {figures(each.ttft for each in group)} |")
    for reason, count in refusals.items():
        print(f"refused: {count}: {reason}")


def residuals(judged: Iterable[Judged]) -> Iterator[KnownError]:
    """Yields the residuals of runs that were simulated."""
    for each in judged:
        run = each.run
        if each.refusal:
            continue
        situation = make_situation(find_config(run.model), run.device, run.engine_options)
        yield KnownError(
            situation=msgspec.structs.replace(
                situation,
                concurrency=float(run.concurrency),
                input_tokens=float(run.input_tokens),
                output_tokens=float(run.output_tokens),
            ),
            group=f"{run.server}, vLLM {run.vllm or 'recent'}",
            tpot=_logarithm(each.tpot),
            ttft=_logarithm(each.ttft),
            source=run.source,
        )


def _logarithm(ratio: float | None) -> float | None:
    return None if ratio is None else round(log(ratio), 4)


def write_residuals(judged: Sequence[Judged]) -> None:
    """Writes the residuals of both halves: of one for the intervals, of the other for their test."""
    for path, is_held_out in ((TABLE, False), (HELD_OUT, True)):
        errors = list(residuals(each for each in judged if each.run.is_held_out == is_held_out))
        lines = b",\n".join(msgspec.json.encode(error) for error in errors)
        path.write_bytes(b"[\n" + lines + b"\n]\n")


def print_coverage(judged: Sequence[Judged]) -> None:
    """Prints the share of runs inside of their 80 % interval, by half and level of evidence."""
    halves = {
        "fitted": list(residuals(each for each in judged if not each.run.is_held_out)),
        "held out": list(residuals(each for each in judged if each.run.is_held_out)),
    }
    print("| half | figure | evidence | runs | servers | inside % | median factor |")
    print("|---|---|---|---:|---:|---:|---:|")
    for half, errors in halves.items():
        for figure in ("tpot", "ttft"):
            for level in reversed(Evidence):
                coverage = coverage_of(errors, halves["fitted"], figure=figure, level=level)
                if coverage is not None:
                    print(
                        f"| {half} | {figure} | {level.name} | {coverage.runs} |"
                        f" {coverage.servers} | {100 * coverage.inside:.0f} |"
                        f" {coverage.factor:.2f} |"
                    )


def coverage_of(
    errors: Sequence[KnownError], fitted: Sequence[KnownError], *, figure: str, level: Evidence
) -> LevelCoverage | None:
    """Returns the coverage of a level; None without runs.

    A level is judged by all runs that have evidence of this level, also by those with better
    evidence, which is left out. A run of the fitted half is judged by the other servers.
    """
    inside = []
    factors = []
    servers = set()
    for error in errors:
        residual = error.residual(figure)
        if residual is None:
            continue
        others = [other for other in fitted if other.group != error.group]
        spread = PublishedErrors(others).spread(error.situation, figure, level)
        if spread.evidence is not level:
            continue
        inside.append(abs(residual - spread.center) <= spread.half_width)
        factors.append(exp(2 * spread.half_width))
        servers.add(error.group)
    if not inside:
        return None
    return LevelCoverage(
        runs=len(inside), servers=len(servers), inside=mean(inside), factor=median(factors)
    )


def questions(judged: Iterable[Judged]) -> Iterator[str]:
    """Yields rows of a table: how many cards do so many users need, by a run and by us.

    The users are those of the run, times ten: a tenth of them keeps an engine as busy as it was.
    """
    seen = set()
    for each in judged:
        run = each.run
        measured = run.output_tput
        if run.load == "decode" and run.tpot_ms is not None:
            measured = 1000 * run.concurrency / run.tpot_ms
        if each.tput is None or measured is None or run.concurrency < 4 or run.server in seen:
            continue
        seen.add(run.server)
        users = 10 * run.concurrency
        devices = run.tensor_parallel * run.pipeline_parallel
        wanted = 10 * measured
        cards = devices * ceil(wanted / each.tput - 0.001)
        yield (
            f"| {run.model}, {run.device}, {users} users who get {wanted:,.0f} tokens/s |"
            f" {cards} | {10 * devices} | {each.tput / measured:.2f} | {run.source} |"
        )


def print_each(judged: Sequence[Judged]) -> Iterator[str]:
    """Yields a line for each run."""
    for each in judged:
        run = each.run
        half = "out" if run.is_held_out else "fit"
        ratios = " ".join(
            "-" if ratio is None else f"{ratio:.2f}" for ratio in (each.tpot, each.ttft)
        )
        load = f"{run.load} {run.input_tokens}/{run.output_tokens} x{run.concurrency}"
        yield f"{half} {ratios} {run.server} {run.vllm} {load} {run.options} {each.refusal[:90]}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--each", action="store_true", help="print each run, too")
    parser.add_argument("--device", default="", help="only devices whose name contains this")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--out", type=Path, help="write the ratios as JSON lines")
    parser.add_argument("--write", action="store_true", help="write residuals for intervals")
    parser.add_argument("--coverage", action="store_true", help="judge the intervals")
    parser.add_argument("--questions", action="store_true", help="print cards for users")
    options = parser.parse_args()
    runs = [run for run in read_runs() if options.device in run.device]
    judged = judge_all(runs, options.processes)
    if options.each:
        print("\n".join(print_each(judged)))
    if options.out is not None:
        options.out.write_text(
            "".join(json.dumps(msgspec.to_builtins(each)) + "\n" for each in judged)
        )
    if options.write:
        write_residuals(judged)
    if options.questions:
        print("\n".join(questions(judged)))
    if options.coverage:
        print_coverage(judged)
        return
    print_errors(judged)


if __name__ == "__main__":
    main()
