"""Gain of speculative decoding: whether `--profile auto` has its sign right on measured runs.

`python -m benchmarks.drafts [../shared/truth/cells]` prints a row for each measured run with drafts
that has a partner without them: both gains in tokens per second, measured and simulated. Runs come
from a public report (vLLM issue 20780), from a sweep over drafts and concurrencies
(`draft_runs.csv`), and from cells whose note has drafts and an acceptance.

`draft_runs.csv` has figures of the public repository GloriaXimingLu/inferencex-profiling, commit
237385b: gpt-oss-120b with nvidia/gpt-oss-120b-Eagle3-v3 and vLLM 0.22 on one H200. Its load is that
of InferenceMAX: about 7,200 random prompt tokens and 900 of the answer, `concurrency` requests in
flight, 10 for each place. The accepted length is the mean gap between messages divided by the mean
TPOT. `counted_length` comes from the server's counters, which include the client's warm-up.
Repeats without drafts differ by 0.1 to 0.5 %. With drafts there are no repeats. `power_w` is the
mean power of the device, which was recorded without drafts and with seven.
"""

from __future__ import annotations

import argparse
import csv
import json
import re
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from random import Random
from statistics import mean, median

from msgspec import Struct

from app.extensions.costs.datasheet import datasheet_profile
from app.extensions.costs.engine_options import EngineOptions
from app.extensions.costs.power_constants import MEASURED
from app.extensions.costs.repacks import find_config
from app.extensions.costs.speculation import Speculation, read_speculation
from config import ConfigError
from workbench.load.loads import LoadTrace
from workbench.load.progress import ignore_progress
from workbench.runs.simulation import (
    Simulation,
    SimulationOutcome,
    SimulationPlan,
)
from workbench.runs.summary import summarize

FILES = ("cells.csv", "cells-2.csv")
A_PLACE = 3
"""Simulated requests for each in flight, at least."""
MAX_OUTPUT_TOKENS = 400
"""Longest simulated answer of most runs: TPOT hardly depends on more."""
SWEEP = Path(__file__).with_name("draft_runs.csv")
SWEEP_A_PLACE = 10
"""Requests of the sweep for each in flight."""
SWEEP_REQUESTS = 200
"""Simulated requests of the sweep, if each place has `A_PLACE` at least."""
SWEEP_SHORTEST = 0.8
"""Shortest prompt and answer of the sweep, as a share of the longest."""
FIT_CONCURRENCIES = (2, 4, 16, 64)
"""Runs of the sweep by which `drafting.py` was chosen."""
HELD_OUT_CONCURRENCIES = (1, 8, 32, 128, 256)
PLAIN_MS = 7.07
REPORTED = {
    "eagle": {
        2: (2.10, 4.37),
        3: (2.29, 4.29),
        4: (2.39, 4.48),
        5: (2.43, 4.71),
        6: (2.45, 4.94),
        7: (2.47, 5.20),
    },
    "eagle3": {
        2: (2.36, 4.32),
        3: (2.79, 4.09),
        4: (3.08, 4.05),
        5: (3.32, 4.13),
        6: (3.46, 4.20),
        7: (3.54, 4.29),
    },
}
"""Method -> drafts -> accepted length and TPOT in ms: Llama 3.1 8B on one H100, MT-Bench, one
request at a time; `PLAIN_MS` without drafts.
"""
DRAFTS = re.compile(r"(?:drafts?|speculative[\w ]*|spec[\w ]*)\W{0,3}(\d+)|(\d+)[ -]drafts?", re.I)
ACCEPTANCE = re.compile(r"accept[a-z_ ]*\W{0,3}(\d+(?:\.\d+)?)(\s*%)?", re.I)


class Server(Struct, frozen=True, kw_only=True):
    """A server and its load, without drafts."""

    model: str
    device: str
    tensor_parallel: int
    vllm: str
    input_tokens: int
    """Longest prompt."""
    output_tokens: int
    """Longest answer."""
    concurrency: int
    requests: int
    """Requests to simulate."""
    shortest: float = 1.0
    """Shortest prompt and answer, as a share of the longest."""
    limits: tuple[tuple[str, int], ...] = ()
    """Limits of the engine that differ from vLLM's defaults."""


class DraftRun(Struct, frozen=True, kw_only=True):
    """A measured run with drafts, and its partner without."""

    server: Server
    method: str
    draft_count: int
    accepted_length: float
    tpot_ms: float
    plain_tpot_ms: float
    output_rate: float | None = None
    """Tokens per second of all requests; None if not reported."""
    plain_output_rate: float | None = None

    @property
    def gain(self) -> float:
        """Measured gain in tokens per second of a request."""
        return self.plain_tpot_ms / self.tpot_ms - 1

    @property
    def output_gain(self) -> float | None:
        """Measured gain in tokens per second of all requests."""
        if self.output_rate is None or self.plain_output_rate is None:
            return None
        return self.output_rate / self.plain_output_rate - 1

    @property
    def speculation(self) -> Speculation | None:
        """The configuration, with the measured acceptance."""
        fields = {
            "method": self.method,
            "model": "drafter",
            "num_speculative_tokens": self.draft_count,
            "rejection_sample_method": "synthetic",
            "synthetic_acceptance_length": self.accepted_length,
        }
        return read_speculation(json.dumps(fields))


def reported_runs() -> Iterator[DraftRun]:
    """Yields the runs of the public report."""
    server = Server(
        model="meta-llama/Llama-3.1-8B-Instruct",
        device="h100",
        tensor_parallel=1,
        vllm="0.11",
        input_tokens=100,
        output_tokens=256,
        concurrency=1,
        requests=A_PLACE,
    )
    for method, runs in REPORTED.items():
        for count, (length, tpot_ms) in runs.items():
            yield DraftRun(
                server=server,
                method=method,
                draft_count=count,
                accepted_length=length,
                tpot_ms=tpot_ms,
                plain_tpot_ms=PLAIN_MS,
            )


def sweep_runs() -> Iterator[DraftRun]:
    """Yields the runs of the sweep over drafts and concurrencies."""
    with SWEEP.open() as file:
        rows = list(csv.DictReader(file))
    plain = {row["concurrency"]: row for row in rows if row["drafts"] == "0"}
    for row in rows:
        count = int(row["drafts"])
        if not count:
            continue
        concurrency = int(row["concurrency"])
        requests = min(SWEEP_REQUESTS, SWEEP_A_PLACE * concurrency)
        server = Server(
            model="openai/gpt-oss-120b",
            device="h200",
            tensor_parallel=1,
            vllm="0.22.0",
            input_tokens=8000,
            output_tokens=1000,
            concurrency=concurrency,
            requests=max(requests, A_PLACE * concurrency),
            shortest=SWEEP_SHORTEST,
            limits=(
                ("max_num_seqs", 256),
                ("max_num_batched_tokens", 8192),
                ("max_model_len", 10240),
            ),
        )
        partner = plain[row["concurrency"]]
        yield DraftRun(
            server=server,
            method="eagle3",
            draft_count=count,
            accepted_length=float(row["accepted_length"]),
            tpot_ms=float(row["tpot_ms"]),
            plain_tpot_ms=float(partner["tpot_ms"]),
            output_rate=float(row["output_tokens_per_s"]),
            plain_output_rate=float(partner["output_tokens_per_s"]),
        )


def cell_runs(folder: Path) -> Iterator[DraftRun]:
    """Yields the runs with drafts among the measured cells."""
    rows = []
    for name in FILES:
        with (folder / name).open() as file:
            rows += list(csv.DictReader(file))
    plain = {}
    for row in rows:
        if row["tpot_ms"] and drafts_of(row.get("note") or "") is None:
            plain[server_of(row)] = float(row["tpot_ms"])
    for row in rows:
        drafts = drafts_of(row.get("note") or "")
        if drafts is None or not row["tpot_ms"]:
            continue
        server = server_of(row)
        if server in plain:
            count, length = drafts
            yield DraftRun(
                server=server,
                method="eagle3",
                draft_count=count,
                accepted_length=length,
                tpot_ms=float(row["tpot_ms"]),
                plain_tpot_ms=plain[server],
            )


def drafts_of(note: str) -> tuple[int, float] | None:
    """Returns the drafts of a cell and their accepted length; None without drafts.

    An acceptance in % or below 1 is the share of all drafts that were accepted.
    """
    drafts = DRAFTS.search(note)
    acceptance = ACCEPTANCE.search(note)
    if drafts is None or acceptance is None:
        return None
    count = int(drafts[1] or drafts[2])
    value = float(acceptance[1])
    if not count:
        return None
    if acceptance[2]:
        value /= 100
    if value < 1:
        value = 1 + count * value
    return count, min(value, count + 1.0)


def server_of(row: dict[str, str]) -> Server:
    """Returns the server of a cell."""
    return Server(
        model=row["model"],
        device=row["device"],
        tensor_parallel=int(row["tensor_parallel"]),
        vllm=row["vllm"] if re.match(r"\d", row["vllm"]) else "",
        input_tokens=int(row["input_tokens"]),
        output_tokens=min(int(row["output_tokens"]), MAX_OUTPUT_TOKENS),
        concurrency=int(row["concurrency"]),
        requests=A_PLACE * int(row["concurrency"]),
    )


def simulated_gains(run: DraftRun, folder: Path | None) -> tuple[float, float]:
    """Returns the simulated gains in tokens per second, of a request and of all requests.

    Raises:
        ConfigError: The model, the device or the method is refused.
    """
    plain_ms, plain_rate = _simulated_speed(run.server, None, folder)
    tpot_ms, rate = _simulated_speed(run.server, run.speculation, folder)
    return plain_ms / tpot_ms - 1, rate / plain_rate - 1


def power_errors() -> dict[int, list[float]]:
    """Returns the errors of the power as shares, by number of drafts; negative is too low."""
    watts = {}
    with SWEEP.open() as file:
        for row in csv.DictReader(file):
            if row["power_w"]:
                watts[int(row["drafts"]), int(row["concurrency"])] = float(row["power_w"])
    errors: dict[int, list[float]] = {0: [], 7: []}
    for run in sweep_runs():
        if run.draft_count != 7:
            continue
        for count, speculation in ((0, None), (7, run.speculation)):
            server = run.server
            summary = summarize(_outcome_of(server, speculation, None), "auto")
            simulated_w = MEASURED[server.device].mean_w(summary.running.mean)
            errors[count].append(simulated_w / watts[count, server.concurrency] - 1)
    return errors


def _simulated_speed(
    server: Server, speculation: Speculation | None, folder: Path | None
) -> tuple[float, float]:
    """Returns the mean TPOT in ms, and the output tokens per second of all requests."""
    outcome = _outcome_of(server, speculation, folder)
    _, tpot_s, _ = outcome.latencies()
    return 1000 * mean(tpot_s), sum(outcome.load.output_tokens) / outcome.length_s


@cache
def _outcome_of(
    server: Server, speculation: Speculation | None, folder: Path | None
) -> SimulationOutcome:
    model = server.model
    if folder is not None and (folder / "models" / f"{model}.json").exists():
        model = str(folder / "models" / f"{model}.json")
    options = EngineOptions(
        tensor_parallel_size=server.tensor_parallel,
        vllm_version=server.vllm,
        speculative_config=speculation,
    )
    profile = datasheet_profile(
        find_config(model), server.device, options, origin=model, limits=dict(server.limits)
    )
    plan = SimulationPlan(profile=profile, in_flight=server.concurrency, turnaround_s=0.001)
    return Simulation(_load_of(server), plan, ignore_progress).run()


def _load_of(server: Server) -> LoadTrace:
    """Returns the requests of a client, whose lengths are drawn uniformly."""
    rng = Random("drafts")
    load = LoadTrace("drafts")
    for _ in range(server.requests):
        load.arrival_s.append(0.0)
        load.input_tokens.append(_drawn_length(rng, server.input_tokens, server.shortest))
        load.output_tokens.append(_drawn_length(rng, server.output_tokens, server.shortest))
    return load


def _drawn_length(rng: Random, longest: int, shortest: float) -> int:
    return rng.randint(round(shortest * longest), longest)


def print_signs(runs: Sequence[DraftRun], folder: Path | None) -> int:
    """Prints a row for each run; returns how many signs are right."""
    right = 0
    print(
        "| model, device | in flight | drafts | accepted | measured % | simulated % | sign"
        " | of all: measured % | simulated % |"
    )
    print("|---|---:|---|---:|---:|---:|---|---:|---:|")
    for run in runs:
        server = run.server
        name = f"{server.model}, {server.device} tp {server.tensor_parallel}"
        try:
            gain, output_gain = simulated_gains(run, folder)
        except ConfigError as error:
            print(f"refused: {name}: {error}")
            continue
        is_right = (gain > 0) == (run.gain > 0)
        right += is_right
        of_all = ""
        if run.output_gain is not None:
            of_all = f"{100 * run.output_gain:+.1f}"
        print(
            f"| {name} | {server.concurrency} | {run.draft_count} {run.method}"
            f" | {run.accepted_length:.2f} | {100 * run.gain:+.0f} | {100 * gain:+.0f}"
            f" | {'right' if is_right else 'wrong'} | {of_all} | {100 * output_gain:+.1f} |"
        )
    print(f"signs: {right} of {len(runs)} right")
    return right


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, nargs="?", help="folder with measured cells")
    options = parser.parse_args()
    print_signs(list(reported_runs()), None)
    sweep = list(sweep_runs())
    groups = {"runs held out": HELD_OUT_CONCURRENCIES, "runs of the fit": FIT_CONCURRENCIES}
    for title, concurrencies in groups.items():
        print(f"\n{title}:")
        print_signs([run for run in sweep if run.server.concurrency in concurrencies], None)
    for count, errors in power_errors().items():
        size = median(map(abs, errors))
        print(
            f"power with {count} drafts: {100 * size:.0f} % (median of {len(errors)} runs),"
            f" {100 * min(errors):+.0f} to {100 * max(errors):+.0f} %"
        )
    if options.folder is not None:
        runs = list(cell_runs(options.folder))
        if runs:
            print_signs(runs, options.folder)
        else:
            print(f"{options.folder}: no cell has drafts with their acceptance")


if __name__ == "__main__":
    main()
