"""Errors of `--profile auto` on measured cells: other models, devices and number formats.

`python -m benchmarks.cells ../shared/truth/cells [--model NAME] [--each]`. A cell is a run of a
real server at one concurrency: mean TTFT and mean TPOT. The load is that of the cell's client. Each
file (`cells.csv`, `cells-2.csv`) has a table of its own, and cells that are refused are counted by
their reason.
"""

from __future__ import annotations

import argparse
import csv
import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import cache, partial
from pathlib import Path
from random import Random
from statistics import mean, median

import msgspec
from msgspec import Struct

from app.extensions.costs.datasheet import datasheet_profile
from app.extensions.costs.engine_options import EngineOptions
from app.extensions.costs.repacks import find_config
from benchmarks.measured_cell import MeasuredCell
from benchmarks.recipes import as_started, recipe_of
from config import ConfigError
from workbench.load.loads import LoadTrace
from workbench.runs.simulation import Simulation, SimulationPlan

FILES = ("cells.csv", "cells-2.csv")
REQUESTS_A_PLACE = 10
"""Requests that the client sends for each in flight."""
APART_S = 0.0002
TURNAROUND_S = 0.001
MAX_IN_FLIGHT = 512
MIN_OUTPUT_TOKENS = 500
"""Least output of a cell whose client is not documented: its TPOT hardly depends on the client."""
KIMI_NVFP4 = "nvidia/Kimi-K2.5-NVFP4"
KIMI_INT4 = "moonshotai/Kimi-K2.5"
MISLABELED = frozenset([("llama-3.1-8b-fp8", "h200", ""), ("gpt-oss-120b", "h100", "512")])
"""Model, device and concurrency (empty for all) that cannot be what their label says."""


class Cell(MeasuredCell, frozen=True, kw_only=True):
    """One measurement, with the options of its server."""

    @property
    def options(self) -> EngineOptions:
        """Options of the server."""
        version = self.vllm
        if not re.match(r"\d", version):  # a nightly build
            version = ""
        recipe = recipe_of(self)
        has_expert_ranks = recipe.enable_expert_parallel
        if has_expert_ranks is None:
            has_expert_ranks = self.ep > 1
        return EngineOptions(
            tensor_parallel_size=1 if recipe.has_single_ranks else self.tensor_parallel,
            data_parallel_size=self.dp_attention,
            enable_expert_parallel=has_expert_ranks,
            kv_cache_dtype=recipe.kv_cache_dtype,
            gpu_memory_utilization=recipe.gpu_memory_utilization,
            max_cudagraph_capture_size=recipe.max_cudagraph_capture_size,
            moe_backend=recipe.moe_backend,
            has_tf32=recipe.has_tf32,
            vllm_version=version,
        )


class Result(Struct, frozen=True, kw_only=True):
    """Errors of a cell as shares of the measured values; negative: the simulation is too fast."""

    tpot: float | None = None
    ttft: float | None = None
    refusal: str = ""


def read_cells(folder: Path, files: Iterable[str] = FILES) -> Iterator[Cell]:
    """Yields the cells with a mean TPOT and a load that is known."""
    for name in files:
        with (folder / name).open() as file:
            for row in csv.DictReader(file):
                cell = as_started(read_cell(name, row))
                if is_usable(cell):
                    yield cell


def read_cell(file: str, row: dict[str, str]) -> Cell:
    """Returns the cell of a row."""
    return Cell(
        file=file,
        model=row["model"],
        device=row["device"],
        tensor_parallel=int(row["tensor_parallel"]),
        ep=int(row.get("ep") or 1),
        dp_attention=int(row.get("dp_attention") or 1),
        input_tokens=int(row["input_tokens"]),
        output_tokens=int(row["output_tokens"]),
        concurrency=int(row["concurrency"]),
        vllm=row["vllm"],
        client=row["client"],
        measured=row.get("measured", ""),
        ttft_ms=number_or_none(row["ttft_ms"]),
        tpot_ms=number_or_none(row["tpot_ms"]),
        source=row.get("source", ""),
    )


def number_or_none(text: str) -> float | None:
    """Returns the number, None for an empty text."""
    return float(text) if text else None


def is_usable(cell: Cell) -> bool:
    """Returns whether the cell says what was measured under which load."""
    for concurrency in ("", str(cell.concurrency)):
        if (cell.model, cell.device, concurrency) in MISLABELED:
            return False
    if cell.tpot_ms is None or cell.concurrency > MAX_IN_FLIGHT:
        return False
    if cell.client == "unknown":
        return cell.output_tokens >= MIN_OUTPUT_TOKENS
    return cell.client in ("inferencemax", "bench_latency")


def load(cell: Cell, a_place: int = REQUESTS_A_PLACE) -> LoadTrace:
    """Returns the trace of a cell.

    InferenceMAX draws lengths uniformly from 0.8 to 1 of the cell's; `vllm bench latency` sends a
    batch of equal requests; other clients send equal requests.
    """
    rng = Random(1)
    trace = LoadTrace("cell")
    if cell.client == "bench_latency":
        a_place = 1
    for number in range(a_place * cell.concurrency):
        trace.arrival_s.append(number * APART_S)
        for lengths, longest in (
            (trace.input_tokens, cell.input_tokens),
            (trace.output_tokens, cell.output_tokens),
        ):
            if cell.client == "inferencemax":
                lengths.append(rng.randint(int(0.8 * longest), longest))
            else:
                lengths.append(longest)
    return trace


def simulated_ms(folder: Path, a_place: int, cell: Cell) -> tuple[float, float]:
    """Returns mean TPOT and mean TTFT of the simulation; repeated cells are simulated once.

    Raises:
        ConfigError: The model, the device or the options are refused.
    """
    source = "int4" if is_in_int4(cell) else ""
    # The date stays: the options of some servers changed on a day.
    question = msgspec.structs.replace(cell, file="", ttft_ms=None, tpot_ms=None, source=source)
    return _simulated_ms(folder, a_place, question)


def forget_simulations() -> None:
    """Forgets what was simulated with other constants."""
    _simulated_ms.cache_clear()


@cache
def _simulated_ms(folder: Path, a_place: int, cell: Cell) -> tuple[float, float]:
    config = read_config(folder, cell)
    places = cell.concurrency
    recipe = recipe_of(cell)
    limits = {
        "max_num_seqs": recipe.max_num_seqs or -(-places // cell.dp_attention),
        "max_num_batched_tokens": max(recipe.max_num_batched_tokens, places),
        "enable_prefix_caching": False,
    }
    profile = datasheet_profile(config, cell.device, cell.options, origin=cell.model, limits=limits)
    plan = SimulationPlan(profile=profile, in_flight=places, turnaround_s=TURNAROUND_S)
    trace = load(cell, a_place)
    run = Simulation(trace, plan, lambda done: None).run()
    ttft_s = [first - send for send, first in zip(run.send_s, run.first_s, strict=True)]
    if cell.client == "bench_latency":  # the table divides the batch's time by its tokens
        tpot_s = (max(run.last_s) - min(run.send_s)) / cell.output_tokens
        return 1000 * tpot_s, 1000 * mean(ttft_s)
    spans = zip(run.first_s, run.last_s, trace.output_tokens, strict=True)
    gaps_s = [(last - first) / (tokens - 1) for first, last, tokens in spans]
    return 1000 * mean_of_rounds(gaps_s, places), 1000 * mean_of_rounds(ttft_s, places)


def read_config(folder: Path, cell: Cell) -> object:
    """Returns the content of the `config.json` of a cell's model."""
    if cell.model == "kimi-k2.5":  # the file of the folder lacks the format of the weights
        return find_config(KIMI_INT4 if is_in_int4(cell) else KIMI_NVFP4)
    return json.loads((folder / "models" / f"{cell.model}.json").read_text())


def is_in_int4(cell: Cell) -> bool:
    """Returns whether a cell's model had weights of 4-bit integers, by the name of its source."""
    return "int4" in cell.source


def mean_of_rounds(values: Sequence[float], places: int) -> float:
    """Returns the mean of the client's requests, of which fewer rounds were simulated.

    The first request of each place is sent at once with all others, and waits for them. It counts
    one in `REQUESTS_A_PLACE`.
    """
    first = mean(values[:places])
    if len(values) == places:
        return first
    return first + (1 - 1 / REQUESTS_A_PLACE) * (mean(values[places:]) - first)


def compare(folder: Path, a_place: int, cell: Cell) -> Result:
    """Simulates a cell and returns its errors."""
    try:
        tpot_ms, ttft_ms = simulated_ms(folder, a_place, cell)
    except ConfigError as error:
        return Result(refusal=str(error))
    tpot = None
    ttft = None
    if cell.tpot_ms is not None:
        tpot = tpot_ms / cell.tpot_ms - 1
    if cell.ttft_ms is not None and cell.client == "inferencemax":
        ttft = ttft_ms / cell.ttft_ms - 1
    return Result(tpot=tpot, ttft=ttft)


def figures(errors: Sequence[float]) -> str:
    """Returns median and p90 of the absolute errors in %, and the median error with its sign."""
    if not errors:
        return "- | - | -"
    sizes = sorted(map(abs, errors))
    values = [median(sizes), sizes[int(0.9 * len(sizes))], median(errors)]
    return " | ".join(f"{100 * value:.1f}" for value in values)


def row(name: str, results: Sequence[Result]) -> str:
    """Returns a row of the table."""
    tpot = [result.tpot for result in results if result.tpot is not None]
    ttft = [result.ttft for result in results if result.ttft is not None]
    return f"| {name} | {len(tpot)} | {figures(tpot)} | {figures(ttft)} |"


def print_table(cells: Sequence[Cell], results: Sequence[Result]) -> None:
    """Prints the errors of each group and of all cells, then the refusals by reason."""
    groups: dict[str, list[Result]] = defaultdict(list)
    refusals: Counter[str] = Counter()
    for cell, result in zip(cells, results, strict=True):
        if result.refusal:
            refusals[result.refusal] += 1
            continue
        groups[cell.group].append(result)
        groups["all"].append(result)
        groups["all, held out" if cell.is_held_out else "all, fitted"].append(result)
    print("| cells | number | TPOT median % | p90 % | bias % | TTFT median % | p90 % | bias % |")
    print("|---|---:|---:|---:|---:|---:|---:|---:|")
    for name, group in sorted(groups.items()):
        print(row(name, group))
    for reason, count in refusals.items():
        print(f"refused: {count} cells: {reason}")


def append_results(path: Path, cells: Sequence[Cell], results: Sequence[Result]) -> None:
    """Appends a JSON line for each cell, with its errors."""
    with path.open("ab") as file:
        for cell, result in zip(cells, results, strict=True):
            line = msgspec.structs.asdict(cell) | msgspec.structs.asdict(result)
            line["has_expert_ranks"] = cell.options.enable_expert_parallel
            file.write(msgspec.json.encode(line) + b"\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--files", nargs="+", default=FILES, help="files with cells [%(default)s]")
    parser.add_argument("--model", default="", help="only models whose name contains this")
    parser.add_argument("--each", action="store_true", help="print each cell, too")
    parser.add_argument(
        "--max-in-flight", type=int, default=MAX_IN_FLIGHT, help="only cells with at most so many"
    )
    parser.add_argument(
        "--a-place", type=int, default=REQUESTS_A_PLACE, help="requests for each in flight"
    )
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--out", type=Path, help="write each cell with its errors as JSON lines")
    options = parser.parse_args()
    if options.out is not None:
        options.out.write_bytes(b"")
    with ProcessPoolExecutor(options.processes) as pool:
        for file in options.files:
            cells = [
                cell
                for cell in read_cells(options.folder, [file])
                if options.model in cell.model and cell.concurrency <= options.max_in_flight
            ]
            results = list(pool.map(partial(compare, options.folder, options.a_place), cells))
            if options.out is not None:
                append_results(options.out, cells, results)
            if options.each:
                for cell, result in zip(cells, results, strict=True):
                    print(f"{cell.group}, {cell.input_tokens} / {cell.output_tokens},", end=" ")
                    print(f"{cell.concurrency} in flight: {row('', [result])}")
            print(f"\n{file}")
            print_table(cells, results)


if __name__ == "__main__":
    main()
