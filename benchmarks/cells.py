"""Errors of `--profile auto` on measured cells: other models, devices and number formats.

`python -m benchmarks.cells ../shared/truth/cells [--model NAME] [--each]`. A cell is a run of a
real server at one concurrency: mean TTFT and TPOT. The load is that of InferenceMAX: 10 requests
for each one in flight.
"""

from __future__ import annotations

import argparse
import csv
import json
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from random import Random
from statistics import median

from app.extensions.lab.costs.datasheet import datasheet_profile
from app.extensions.lab.fidelity.simulation import Simulation, SimulationPlan
from app.extensions.lab.load.loads import LoadTrace

REQUESTS_A_PLACE = 10
APART_S, TURNAROUND_S = 0.0002, 0.001
MOST_IN_FLIGHT = 64
Cell = Mapping[str, str]
Errors = tuple[float, float]
"""Of TPOT and TTFT, as shares of the measured one; negative: the simulation is too fast."""


def cells(folder: Path) -> Iterator[Cell]:
    """The cells whose client is known, up to 64 in flight."""
    with (folder / "cells.csv").open() as file:
        for cell in csv.DictReader(file):
            if cell["client"] == "inferencemax" and int(cell["concurrency"]) <= MOST_IN_FLIGHT:
                yield cell


def load(cell: Cell, a_place: int = REQUESTS_A_PLACE) -> LoadTrace:
    """The trace of a cell: lengths drawn uniformly from 0.8 to 1 of the cell's."""
    rng, trace = Random(1), LoadTrace("cell")
    for number in range(a_place * int(cell["concurrency"])):
        trace.arrival_s.append(number * APART_S)
        for lengths, name in (
            (trace.input_tokens, "input_tokens"),
            (trace.output_tokens, "output_tokens"),
        ):
            longest = int(cell[name])
            lengths.append(rng.randint(int(0.8 * longest), longest))
    return trace


def errors(folder: Path, a_place: int, cell: Cell) -> Errors:
    config = json.loads((folder / "models" / f"{cell['model']}.json").read_text())
    devices, places = int(cell["tensor_parallel"]), int(cell["concurrency"])
    limits = {
        "max_num_seqs": places,
        "max_num_batched_tokens": 8192,
        "enable_prefix_caching": False,
    }
    profile = datasheet_profile(
        config,
        cell["device"],
        devices,
        origin=cell["model"],
        vllm_version=cell["vllm"],
        limits=limits,
    )
    plan = SimulationPlan(profile=profile, in_flight=places, turnaround_s=TURNAROUND_S)
    trace = load(cell, a_place)
    run = Simulation(trace, plan, lambda done: None).run()
    spans = list(zip(run.send_s, run.first_s, run.last_s, trace.output_tokens, strict=True))
    ttft_ms = 1000 * sum(first - send for send, first, _, _ in spans) / len(spans)
    tpot_ms = (
        1000 * sum((last - first) / (tokens - 1) for _, first, last, tokens in spans) / len(spans)
    )
    return tpot_ms / float(cell["tpot_ms"]) - 1, ttft_ms / float(cell["ttft_ms"]) - 1


def line(name: str, found: Sequence[Errors]) -> str:
    """A row: median and p90 of the absolute errors in %, and their median with its sign."""
    figures: list[float] = []
    for errors in zip(*found, strict=True):
        sizes = sorted(map(abs, errors))
        figures += median(sizes), sizes[int(0.9 * len(sizes))], median(errors)
    return (
        f"| {name} | {len(found)} | "
        + " | ".join(f"{100 * figure:.1f}" for figure in figures)
        + " |"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--model", default="", help="only models whose name contains this")
    parser.add_argument("--each", action="store_true", help="print each cell, too")
    parser.add_argument(
        "--a-place", type=int, default=REQUESTS_A_PLACE, help="requests for each in flight"
    )
    given = parser.parse_args()
    rows = [cell for cell in cells(given.folder) if given.model in cell["model"]]
    with ProcessPoolExecutor(2) as pool:
        found = list(pool.map(partial(errors, given.folder, given.a_place), rows))
    groups: dict[str, list[Errors]] = defaultdict(list)
    for cell, error in zip(rows, found, strict=True):
        name = f"{cell['model']}, {cell['device']}, tp {cell['tensor_parallel']}"
        groups[name].append(error)
        groups["dense" if cell["model"].startswith("llama") else "mixtures"].append(error)
        if given.each:
            at = (
                f"{cell['input_tokens']} / {cell['output_tokens']}, {cell['concurrency']} in flight"
            )
            print(f"{name}, {at}: TPOT {error[0]:+.1%}, TTFT {error[1]:+.1%}")
    print("| cells | number | TPOT median % | p90 % | bias % | TTFT median % | p90 % | bias % |")
    print("|---|---:|---:|---:|---:|---:|---:|---:|")
    for name, its in sorted(groups.items()):
        print(line(name, its))


if __name__ == "__main__":
    main()
