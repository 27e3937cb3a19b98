"""How often `plan --confidence` is wrong, and what its caution costs, on the measured cells.

    python -m benchmarks.cells ../shared/truth/cells --out cells.jsonl
    python research/judge_confidence.py cells.jsonl ../shared/truth/cells [--held-out] [--repeated]

The cells of one server at several concurrencies are a curve; between them latencies are taken to be
linear in logarithms. Servers for the same model and lengths compete: a fleet is a server with so
many requests in flight. For limits of TTFT and TPOT among the measured values, a fleet is called OK
if its simulated latencies times the factors of the confidence are within both. The residuals of the
server's own group are left out. Printed are the share of these fleets whose measured latencies
exceed a limit, and the price of a token of the cheapest one where it meets the limits, beside the
cheapest fleet that met them in reality. The lines for rising confidences are a curve of misses
against extra cost. `--repeated` prints the curve of a simulation that cannot be better: a second
run of each server.
"""

from __future__ import annotations

import argparse
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator
from itertools import pairwise
from math import exp, log
from pathlib import Path
from random import Random
from statistics import fmean, median

sys.path.insert(0, str(Path(__file__).parents[1]))
import msgspec
from msgspec import Struct

from app.extensions.lab.costs.error_model import (
    UPPER_80,
    ErrorModel,
    ErrorSpread,
    Situation,
    read_errors,
)
from app.extensions.lab.fidelity.intervals import Errors, confidence_factors
from benchmarks.residuals import JudgedCell, situation_of

PRICES = {"h100": 2.5, "h200": 3.5, "b200": 5.5, "mi300x": 3.0, "a100": 1.5, "b300": 7.0}
QUANTILES = (0.15, 0.3, 0.45, 0.6, 0.75, 0.9)
MIN_POINTS = 3
STEP = 1.12
"""Ratio of one concurrency to the next."""
CONFIDENCES = (None, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95)
REPEAT_DEVIATIONS = {"ttft": 0.052, "tpot": 0.009}
"""Standard deviations of a run from another one of the same server, as logarithms.

135 pairs of cells differ by 3.5 and 0.6 % (median), which is 0.67 standard deviations.
"""
DRAWS = 12


class Point(Struct, frozen=True, kw_only=True):
    """A server with so many requests in flight."""

    concurrency: float
    ttft_ms: float
    tpot_ms: float
    simulated_ttft_ms: float
    simulated_tpot_ms: float
    errors: Errors


class Fleet(Struct, frozen=True, kw_only=True):
    """A point with what it costs."""

    point: Point
    real_price: float
    simulated_price: float

    def is_called_ok(self, limits: tuple[float, float], confidence: float | None) -> bool:
        point = self.point
        ttft_factor, tpot_factor = 1.0, 1.0
        if confidence is not None:
            ttft_factor, tpot_factor = confidence_factors(point.errors, confidence)
        return (
            ttft_factor * point.simulated_ttft_ms <= limits[0]
            and tpot_factor * point.simulated_tpot_ms <= limits[1]
        )

    def meets(self, limits: tuple[float, float]) -> bool:
        return self.point.ttft_ms <= limits[0] and self.point.tpot_ms <= limits[1]


def between(left: float, right: float, share: float) -> float:
    return exp(log(left) + share * (log(right) - log(left)))


def curve(points: list[Point], errors_at: Callable[[float], Errors]) -> Iterator[Point]:
    """Yields points between the measured ones."""
    for left, right in pairwise(points):
        ratio = right.concurrency / left.concurrency
        steps = max(1, round(log(ratio) / log(STEP)))
        for step in range(steps):
            share = step / steps
            concurrency = between(left.concurrency, right.concurrency, share)
            yield Point(
                concurrency=concurrency,
                errors=errors_at(concurrency),
                **{
                    name: between(getattr(left, name), getattr(right, name), share)
                    for name in ("ttft_ms", "tpot_ms", "simulated_ttft_ms", "simulated_tpot_ms")
                },
            )
    yield points[-1]


def read_servers(path: Path, *, held_out: bool) -> dict[tuple[str, int, int], list[JudgedCell]]:
    servers = defaultdict(list)
    for line in path.read_bytes().splitlines():
        cell = msgspec.json.decode(line, type=JudgedCell)
        if cell.refusal or cell.tpot is None or cell.ttft is None:
            continue
        if cell.is_held_out or not held_out:
            servers[cell.group, cell.input_tokens, cell.output_tokens].append(cell)
    return servers


def read_fleets(path: Path, folder: Path, *, held_out: bool) -> dict[str, list[list[Fleet]]]:
    """Returns the fleets of each server, by model and lengths; repeated cells are one point."""
    errors = read_errors()
    fleets = defaultdict(list)
    for (group, input_tokens, output_tokens), cells in sorted(
        read_servers(path, held_out=held_out).items()
    ):
        model = ErrorModel([error for error in errors if error.group != group])
        situation = situation_of(cells[0], folder)

        def errors_at(
            concurrency: float, model: ErrorModel = model, situation: Situation = situation
        ) -> Errors:
            place = msgspec.structs.replace(situation, concurrency=concurrency)
            return Errors(model.spread(place, "ttft"), model.spread(place, "tpot"))

        points = measured_points(cells, errors_at)
        if len(points) >= MIN_POINTS:
            name = f"{cells[0].model} {input_tokens}/{output_tokens}"
            fleets[name].append([make_fleet(cells[0], point) for point in curve(points, errors_at)])
    return fleets


def measured_points(cells: list[JudgedCell], errors_at: Callable[[float], Errors]) -> list[Point]:
    """Returns the points of a server that were measured."""
    points = []
    for concurrency in sorted({cell.concurrency for cell in cells}):
        repeats = [cell for cell in cells if cell.concurrency == concurrency]
        points.append(
            Point(
                concurrency=concurrency,
                ttft_ms=exp(fmean(log(cell.ttft_ms) for cell in repeats)),
                tpot_ms=exp(fmean(log(cell.tpot_ms) for cell in repeats)),
                simulated_ttft_ms=repeats[0].ttft_ms * (1 + repeats[0].ttft),
                simulated_tpot_ms=repeats[0].tpot_ms * (1 + repeats[0].tpot),
                errors=errors_at(concurrency),
            )
        )
    return points


def repeated_fleets(path: Path, *, held_out: bool) -> dict[str, list[list[Fleet]]]:
    """Returns the fleets as `read_fleets` does, with a second run of each server as simulation.

    The second run is drawn `DRAWS` times, with the deviations of repeated runs.
    """
    spreads = {
        name: ErrorSpread(center=0.0, half_width=UPPER_80 * deviation, distance=0.0, nearest="")
        for name, deviation in REPEAT_DEVIATIONS.items()
    }
    errors = Errors(spreads["ttft"], spreads["tpot"])
    random = Random(1)
    fleets = defaultdict(list)
    for draw in range(DRAWS):
        for (_, input_tokens, output_tokens), cells in sorted(
            read_servers(path, held_out=held_out).items()
        ):
            points = measured_points(cells, lambda concurrency: errors)
            if len(points) < MIN_POINTS:
                continue
            ttft_factor = exp(random.gauss(0.0, REPEAT_DEVIATIONS["ttft"]))
            tpot_factor = exp(random.gauss(0.0, REPEAT_DEVIATIONS["tpot"]))
            second_run = [
                msgspec.structs.replace(
                    point,
                    simulated_ttft_ms=ttft_factor * point.ttft_ms,
                    simulated_tpot_ms=tpot_factor * point.tpot_ms,
                )
                for point in points
            ]
            name = f"{cells[0].model} {input_tokens}/{output_tokens}, draw {draw}"
            fleets[name].append(
                [make_fleet(cells[0], point) for point in curve(second_run, lambda _: errors)]
            )
    return fleets


def make_fleet(cell: JudgedCell, point: Point) -> Fleet:
    devices = cell.options.tensor_parallel_size * cell.dp_attention

    def price(ttft_ms: float, tpot_ms: float) -> float:
        request_s = (ttft_ms + tpot_ms * (cell.output_tokens - 1)) / 1000
        tokens_an_hour = 3600 * point.concurrency * cell.output_tokens / request_s
        return PRICES[cell.device] * devices / tokens_an_hour * 1e6

    return Fleet(
        point=point,
        real_price=price(point.ttft_ms, point.tpot_ms),
        simulated_price=price(point.simulated_ttft_ms, point.simulated_tpot_ms),
    )


def questions(fleets: list[Fleet]) -> Iterator[tuple[float, float]]:
    """Yields limits of TTFT and TPOT among the measured values."""
    ttft = sorted(fleet.point.ttft_ms for fleet in fleets)
    tpot = sorted(fleet.point.tpot_ms for fleet in fleets)
    for ttft_share in QUANTILES:
        for tpot_share in QUANTILES:
            yield ttft[int(ttft_share * len(ttft))], tpot[int(tpot_share * len(tpot))]


def judge(servers: dict[str, list[list[Fleet]]], confidence: float | None) -> str:
    called = missed = answered = bought_wrong = asked = 0
    ratios = []
    plain_ratios = []
    for curves in servers.values():
        group = [fleet for fleets in curves for fleet in fleets]
        for limits in questions(group):
            good = [fleet for fleet in group if fleet.meets(limits)]
            ok = [fleet for fleet in group if fleet.is_called_ok(limits, confidence)]
            asked += bool(good)
            called += len(ok)
            missed += sum(not fleet.meets(limits) for fleet in ok)
            if not ok:
                continue
            answered += 1
            bought = min(ok, key=lambda fleet: fleet.simulated_price)
            plain = [fleet for fleet in group if fleet.is_called_ok(limits, None)]
            if plain:
                plain_bought = min(plain, key=lambda fleet: fleet.simulated_price)
                plain_ratios.append(bought.simulated_price / plain_bought.simulated_price - 1)
            if not bought.meets(limits):
                bought_wrong += 1
                continue
            cheapest = min(fleet.real_price for fleet in good)
            ratios.append(bought.real_price / cheapest - 1)
    return (
        f"{missed / called:.1%} of {called} OK miss; of {answered} bought fleets (of {asked}"
        f" possible) {bought_wrong / answered:.1%} miss; where they meet, they cost"
        f" {fmean(ratios):.1%} more (median {median(ratios):.1%}); {fmean(plain_ratios):.1%} over the"
        f" plain plan (median {median(plain_ratios):.1%})"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("cells", type=Path, help="result of benchmarks.cells --out")
    parser.add_argument("folder", type=Path, help="folder with models")
    parser.add_argument("--held-out", action="store_true", help="only cells that were not fitted")
    parser.add_argument(
        "--repeated", action="store_true", help="judge a second run of each server as simulation"
    )
    options = parser.parse_args()
    if options.repeated:
        fleets = repeated_fleets(options.cells, held_out=options.held_out)
    else:
        fleets = read_fleets(options.cells, options.folder, held_out=options.held_out)
    print(f"{len(fleets)} loads, {sum(map(len, fleets.values()))} servers")
    for confidence in CONFIDENCES:
        name = "exact" if confidence is None else f"{confidence:.0%}"
        print(f"{name:>6}: {judge(fleets, confidence)}")


if __name__ == "__main__":
    main()
