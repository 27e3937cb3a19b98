"""Gain of speculative decoding: whether `--profile auto` has its sign right on measured runs.

`python -m benchmarks.drafts [../shared/truth/cells]` prints a row for each measured run with drafts
that has a partner without them: both gains in tokens per second, measured and simulated. Runs come
from a public report (vLLM issue 20780) and from cells whose note has drafts and an acceptance.
"""

from __future__ import annotations

import argparse
import csv
import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import mean

from msgspec import Struct

from app.extensions.lab.costs.datasheet import datasheet_profile
from app.extensions.lab.costs.engine_options import EngineOptions
from app.extensions.lab.costs.known_models import read_model_config
from app.extensions.lab.costs.speculation import Speculation, read_speculation
from app.extensions.lab.fidelity.simulation import Simulation, SimulationPlan
from app.extensions.lab.load.loads import LoadTrace
from config import ConfigError

FILES = ("cells.csv", "cells-2.csv")
A_PLACE = 3
"""Simulated requests for each in flight."""
MAX_OUTPUT_TOKENS = 400
"""Longest simulated answer: TPOT hardly depends on more."""
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
    output_tokens: int
    concurrency: int


class DraftRun(Struct, frozen=True, kw_only=True):
    """A measured run with drafts, and its partner without."""

    server: Server
    method: str
    draft_count: int
    accepted_length: float
    tpot_ms: float
    plain_tpot_ms: float

    @property
    def gain(self) -> float:
        """Measured gain in tokens per second."""
        return self.plain_tpot_ms / self.tpot_ms - 1

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
        output_tokens=int(row["output_tokens"]),
        concurrency=int(row["concurrency"]),
    )


def simulated_gain(run: DraftRun, folder: Path | None) -> float:
    """Returns the simulated gain in tokens per second.

    Raises:
        ConfigError: The model, the device or the method is refused.
    """
    plain_ms = _simulated_tpot_ms(run.server, None, folder)
    return plain_ms / _simulated_tpot_ms(run.server, run.speculation, folder) - 1


def _simulated_tpot_ms(
    server: Server, speculation: Speculation | None, folder: Path | None
) -> float:
    model = server.model
    if folder is not None and (folder / "models" / f"{model}.json").exists():
        model = str(folder / "models" / f"{model}.json")
    options = EngineOptions(
        tensor_parallel_size=server.tensor_parallel,
        vllm_version=server.vllm,
        speculative_config=speculation,
    )
    profile = datasheet_profile(read_model_config(model), server.device, options, origin=model)
    plan = SimulationPlan(profile=profile, in_flight=server.concurrency, turnaround_s=0.001)
    load = LoadTrace("drafts")
    for _ in range(A_PLACE * server.concurrency):
        load.arrival_s.append(0.0)
        load.input_tokens.append(server.input_tokens)
        load.output_tokens.append(min(server.output_tokens, MAX_OUTPUT_TOKENS))
    _, tpot_s, _ = Simulation(load, plan, lambda done: None).run().latencies()
    return 1000 * mean(tpot_s)


def print_signs(runs: Sequence[DraftRun], folder: Path | None) -> int:
    """Prints a row for each run; returns how many signs are right."""
    right = 0
    print("| model, device | in flight | drafts | accepted | measured % | simulated % | sign |")
    print("|---|---:|---|---:|---:|---:|---|")
    for run in runs:
        server = run.server
        name = f"{server.model}, {server.device} tp {server.tensor_parallel}"
        try:
            gain = simulated_gain(run, folder)
        except ConfigError as error:
            print(f"refused: {name}: {error}")
            continue
        is_right = (gain > 0) == (run.gain > 0)
        right += is_right
        print(
            f"| {name} | {server.concurrency} | {run.draft_count} {run.method}"
            f" | {run.accepted_length:.2f} | {100 * run.gain:+.0f} | {100 * gain:+.0f}"
            f" | {'right' if is_right else 'wrong'} |"
        )
    print(f"signs: {right} of {len(runs)} right")
    return right


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, nargs="?", help="folder with measured cells")
    options = parser.parse_args()
    print_signs(list(reported_runs()), None)
    if options.folder is not None:
        runs = list(cell_runs(options.folder))
        if runs:
            print_signs(runs, options.folder)
        else:
            print(f"{options.folder}: no cell has drafts with their acceptance")


if __name__ == "__main__":
    main()
