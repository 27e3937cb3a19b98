"""Fits corrections of the sum over kernels by (version, device, format) to measured cells.

    python research/fit_versions.py ../shared/truth/cells            # print the split and the fit
    python research/fit_versions.py ../shared/truth/cells --write    # and write adjustments.json

A group has one device, format of the weights, kind of model and version of vLLM. Rows measured on
2026-04-05 or later are left out, and so is every third group of (model, device, parallelism) by a
hash of its name; the split is printed. The constants of each group are fitted by Gauss-Newton
steps on the logarithms of TPOT and TTFT, with a pull toward no correction: a group of few cells
stays near the kernels.
"""

from __future__ import annotations

import argparse
import sys
from collections import defaultdict
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from itertools import repeat
from math import copysign, exp, log, sqrt
from pathlib import Path
from random import Random
from typing import TypeAlias

import numpy

sys.path.insert(0, str(Path(__file__).parents[1]))
import msgspec
from msgspec import Struct

from app.extensions.costs import adjustments
from app.extensions.costs.adjustment import Adjustment
from app.extensions.costs.adjustments import TABLE
from app.extensions.costs.engine_options import MAX_CAPTURE_SIZE
from app.extensions.costs.kernel_constants import KERNELS
from app.extensions.costs.kernel_sum import prompt_launch_us
from app.extensions.costs.situations import make_situation
from app.extensions.costs.version_rules import is_asynchronous
from benchmarks.cells import (
    REQUESTS_A_PLACE,
    Cell,
    forget_simulations,
    read_cells,
    read_config,
    simulated_ms,
)
from benchmarks.recipes import recipe_of
from config import ConfigError

MIN_CELLS = 4
MAX_CELLS = 18
"""Cells of a group that are fitted, spread over concurrency."""
MAX_CONCURRENCY = 128
SHIPPED = adjustments.shipped_adjustments()
SPREADS = numpy.array([12.0, 0.10, 0.20, 2.0])
"""Prior standard deviations: launch us, log decode, log prefill, front ms."""
BLACKWELL_FRONT_MS = 5.0
"""The last one on B200, where hosts differ by more."""
STEPS = numpy.array([5.0, 0.05, 0.1, 3.0])
PROMPT_LAUNCH_SPREAD_US = 250.0
"""Prior standard deviation of a fifth constant, of servers without CUDA graphs for prompts."""
PROMPT_LAUNCH_STEP_US = 50.0
STEP_LAUNCH_US = 450.0
"""Center of the prior of the least time of a layer in any step, for versions whose scheduler waits
for each step. Qwen3-235B on H200 takes 51 to 58 ms a token with 4 to 20 requests in flight: the
host launches each kernel.
"""
STEP_LAUNCH_SPREAD_US = 150.0
MAX_LOSS_SHARE = 0.9
"""A group has such a least time if the loss is at most this share of the loss without it."""
NOISE = {"tpot": 0.04, "ttft": 0.12}
OUTLIER = 1.5
"""Deviation in units of `NOISE` from which on a cell counts less."""
ITERATIONS = 2


Key: TypeAlias = tuple[str, str, bool, int]
"""Device, format of the weights, whether the model has experts, and minor version of vLLM."""


def key_of(cell: Cell, folder: Path) -> Key:
    config = read_config(folder, cell)
    place = make_situation(config, cell.device, cell.options)
    return place.device, place.weights, place.has_experts, place.version


def key_of_adjustment(adjustment: Adjustment) -> Key:
    return (
        adjustment.device,
        adjustment.weights,
        adjustment.has_experts,
        adjustment.version,
    )


class Prior(Struct, frozen=True):
    """Centers and standard deviations of the constants of a group, and steps of their slopes."""

    center: numpy.ndarray
    spreads: numpy.ndarray
    steps: numpy.ndarray
    has_prompt_launch: bool
    has_step_launch: bool

    def adjustment(self, key: Key, x: numpy.ndarray, cells: int = 0) -> Adjustment:
        """Returns the correction with the constants `x`."""
        more = [round(float(value), 1) for value in x[4:]]
        step_launch_us = more.pop() if self.has_step_launch else None
        prompt_launch_us = more.pop() if self.has_prompt_launch else None
        return make(key, x, prompt_launch_us, step_launch_us, cells)


def prior_of(key: Key, cells: list[Cell], *, has_step_launch: bool) -> Prior:
    center = numpy.zeros(4)
    spreads = SPREADS.copy()
    steps = STEPS
    if key[0] == "b200":
        spreads[3] = BLACKWELL_FRONT_MS
    has_prompt_launch = recipe_of(cells[0]).max_cudagraph_capture_size <= MAX_CAPTURE_SIZE
    if has_prompt_launch:
        center = numpy.append(center, prompt_launch_us(has_experts=key[2]))
        spreads = numpy.append(spreads, PROMPT_LAUNCH_SPREAD_US)
        steps = numpy.append(steps, PROMPT_LAUNCH_STEP_US)
    if has_step_launch:
        center = numpy.append(center, STEP_LAUNCH_US)
        spreads = numpy.append(spreads, STEP_LAUNCH_SPREAD_US)
        steps = numpy.append(steps, PROMPT_LAUNCH_STEP_US)
    return Prior(center, spreads, steps, has_prompt_launch, has_step_launch)


def make(
    key: Key,
    x: numpy.ndarray,
    launch_us: float | None,
    step_launch_us: float | None,
    cells: int,
) -> Adjustment:
    device, weights, has_experts, version = key
    return Adjustment(
        device=device,
        weights=weights,
        has_experts=has_experts,
        version=version,
        launch_us=round(float(x[0]), 2),
        decode=round(exp(x[1]), 4),
        prefill=round(exp(x[2]), 4),
        prompt_launch_us=launch_us,
        step_launch_us=step_launch_us,
        front_ms=round(float(x[3]), 3),
        cells=cells,
    )


def use(table: list[Adjustment]) -> None:
    """Lets the cost model see these corrections."""
    adjustments.shipped_adjustments = lambda: table
    forget_simulations()


def residuals(cells: list[Cell], folder: Path) -> numpy.ndarray:
    values = []
    for cell in cells:
        tpot_ms, ttft_ms = simulated_ms(folder, REQUESTS_A_PLACE, cell)
        values.append(softened(log(tpot_ms / cell.tpot_ms) / NOISE["tpot"]))
        if cell.ttft_ms is not None and cell.client == "inferencemax":
            values.append(softened(log(ttft_ms / cell.ttft_ms) / NOISE["ttft"]))
    return numpy.array(values)


def softened(deviations: float) -> float:
    """Returns a residual whose square grows linearly beyond `OUTLIER`: none decides alone."""
    square = 2 * OUTLIER**2 * (sqrt(1 + (deviations / OUTLIER) ** 2) - 1)
    return copysign(sqrt(square), deviations)


def fit(key: Key, cells: list[Cell], folder: Path) -> Adjustment:
    loss, adjustment = fit_with(key, cells, folder, has_step_launch=False)
    if not is_asynchronous(key[3]) and key[2]:
        other_loss, other = fit_with(key, cells, folder, has_step_launch=True)
        if other_loss <= MAX_LOSS_SHARE * loss:
            return other
    return adjustment


def fit_with(
    key: Key, cells: list[Cell], folder: Path, *, has_step_launch: bool
) -> tuple[float, Adjustment]:
    """Returns the least loss, and the correction that has it."""
    prior = prior_of(key, cells, has_step_launch=has_step_launch)
    center = prior.center
    spreads = prior.spreads
    x = center.copy()

    def loss(x: numpy.ndarray) -> tuple[float, numpy.ndarray]:
        use([prior.adjustment(key, x)])
        values = residuals(cells, folder)
        return float((values**2).sum() + (((x - center) / spreads) ** 2).sum()), values

    best, values = loss(x)
    start = best
    for _ in range(ITERATIONS):
        columns = []
        for index, step in enumerate(prior.steps):
            moved = x.copy()
            moved[index] += step
            columns.append((loss(moved)[1] - values) / step)
        slope = numpy.array(columns).T
        second = slope.T @ slope + numpy.diag(spreads**-2)
        move = -numpy.linalg.solve(second, slope.T @ values + (x - center) / spreads**2)
        for share in (1.0, 0.4):
            tried, tried_values = loss(x + share * move)
            if tried < best:
                best, values, x = tried, tried_values, x + share * move
                break
        else:
            break
    adjustment = prior.adjustment(key, x, len(cells))
    print(f"{key}: {len(cells)} cells, loss {start:.0f} to {best:.0f}: {adjustment}", flush=True)
    return best, adjustment


def different(cells: list[Cell]) -> list[Cell]:
    """Returns the cells without repeats."""
    by_place = {
        (cell.group, cell.input_tokens, cell.output_tokens, cell.concurrency): cell
        for cell in cells
    }
    return list(by_place.values())


def fitted_groups(cells: Iterable[Cell], folder: Path) -> dict[Key, list[Cell]]:
    """Returns the cells that are fitted, by the correction that they decide."""
    groups = defaultdict(list)
    for cell in cells:
        # Clients of data-parallel ranks do not agree on what their concurrency counts.
        if cell.is_held_out or cell.concurrency > MAX_CONCURRENCY or cell.dp_attention > 1:
            continue
        try:
            groups[key_of(cell, folder)].append(cell)
        except ConfigError:
            continue
    chosen = {}
    for key, group in sorted(groups.items()):
        Random(1).shuffle(group)
        distinct = different(group)[:MAX_CELLS]
        if len(distinct) >= MIN_CELLS and key[0] in KERNELS:
            chosen[key] = distinct
    return chosen


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--write", action="store_true", help="write adjustments.json")
    parser.add_argument("--only", default="", help="only groups whose name contains this")
    parser.add_argument("--processes", type=int, default=2)
    options = parser.parse_args()
    split = defaultdict(lambda: [0, 0])
    use([])
    cells = list(read_cells(options.folder))
    for cell in cells:
        split[cell.group][cell.is_held_out] += 1
    for name, (fitted, kept) in sorted(split.items()):
        print(f"split: {name}: {fitted} fitted, {kept} held out")
    groups = fitted_groups(cells, options.folder)
    fitted_keys = [key for key in groups if options.only in str(key)]
    with ProcessPoolExecutor(options.processes) as pool:
        fitted_table = dict(
            zip(
                fitted_keys,
                pool.map(
                    fit,
                    fitted_keys,
                    [groups[key] for key in fitted_keys],
                    repeat(options.folder),
                ),
                strict=True,
            )
        )
    kept_table = {key_of_adjustment(kept): kept for kept in SHIPPED}
    table = [fitted_table.get(key) or kept_table[key] for key in groups]
    if options.write:
        lines = b",\n".join(msgspec.json.encode(adjustment) for adjustment in table)
        TABLE.write_bytes(b"[\n" + lines + b"\n]\n")


if __name__ == "__main__":
    main()
