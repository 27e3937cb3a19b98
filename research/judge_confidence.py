"""How often `plan --confidence` is wrong, and what its caution costs, on the measured cells.

    python -m benchmarks.cells ../shared/truth/cells --out cells.jsonl
    python research/judge_confidence.py cells.jsonl ../shared/truth/cells [--held-out]
        [--repeated | --known-bias | --hindsight]

The cells of one server at several concurrencies are a curve; between them latencies are taken to be
linear in logarithms. Servers for the same model and lengths compete: a fleet is a server with so
many requests in flight. For limits of TTFT and TPOT among the measured values, a fleet is called OK
if its simulated latencies times the factors of the confidence are within both. The residuals of the
server's own group are left out. Printed are the share of these fleets whose measured latencies
exceed a limit, and the price of a token of the cheapest one where it meets the limits, beside the
cheapest fleet that met them in reality. The lines for rising confidences are a curve of misses
against extra cost. `--repeated` prints the curve of a simulation that cannot be better: a second
run of each server; `--known-bias` that of one whose median error of each server is known, and
removed. `--hindsight` prints the constant margins that would have been the best for these loads.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from itertools import pairwise
from math import exp, log
from pathlib import Path
from random import Random
from statistics import fmean, median

sys.path.insert(0, str(Path(__file__).parents[1]))
import msgspec
from msgspec import Struct

from app.extensions.costs.error_model import (
    UPPER_80,
    ErrorModel,
    ErrorSpread,
    Situation,
    read_errors,
)
from benchmarks.residuals import JudgedCell, situation_of
from workbench.runs.intervals import Errors, confidence_factors

PRICES = {"h100": 2.5, "h200": 3.5, "b200": 5.5, "mi300x": 3.0, "a100": 1.5, "b300": 7.0}
QUANTILES = (0.15, 0.3, 0.45, 0.6, 0.75, 0.9)
MIN_POINTS = 3
STEP = 1.12
"""Ratio of one concurrency to the next."""
CONFIDENCES = (None, 0.5, 0.6, 0.7, 0.8, 0.85, 0.9, 0.92, 0.95, 0.97, 0.99)
SHOWN_CONFIDENCE = 0.9
"""Confidence whose misses are listed by server."""
MAX_MISSES = 0.08
MAX_COST = 0.35
"""Goals for the misses, and for the mean cost over the plain plan."""
KNOWN_BIAS_MARGINS = (0.0, 0.02, 0.04, 0.06, 0.08)
"""Margins of both latencies where the median error is known, as logarithms."""
TTFT_MARGINS = tuple(step / 50 for step in range(23))
TPOT_MARGINS = tuple(step / 100 for step in range(20))
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

    server: str
    point: Point
    real_price: float
    simulated_price: float

    def is_called_ok(self, limits: tuple[float, float], factors: tuple[float, float]) -> bool:
        return (
            factors[0] * self.point.simulated_ttft_ms <= limits[0]
            and factors[1] * self.point.simulated_tpot_ms <= limits[1]
        )

    def meets(self, limits: tuple[float, float]) -> bool:
        return self.point.ttft_ms <= limits[0] and self.point.tpot_ms <= limits[1]


Margins = Callable[[Fleet], tuple[float, float]]
"""Returns the factors of a fleet's simulated TTFT and TPOT."""


class Score(Struct, kw_only=True):
    """Choices of the cheapest fleet for all loads and limits."""

    possible: int = 0
    """Loads and limits that a fleet meets."""
    called: int = 0
    called_wrong: int = 0
    alone: int = 0
    """Choices from the fleets of one server at a time."""
    alone_wrong: int = 0
    chosen: int = 0
    chosen_wrong: Counter[str] = msgspec.field(default_factory=Counter)
    """Chosen fleets that miss, by their server."""
    costs: list[float] = msgspec.field(default_factory=list)
    """Cost over the cheapest fleet in reality, where the chosen one meets the limits."""
    plain_costs: list[float] = msgspec.field(default_factory=list)
    """Cost over the plain plan."""

    @property
    def misses(self) -> float:
        return self.chosen_wrong.total() / self.chosen

    @property
    def plain_cost(self) -> float:
        return fmean(self.plain_costs)

    def __str__(self) -> str:
        return (
            f"{self.called_wrong / self.called:.1%} of {self.called} OK miss; of {self.chosen}"
            f" bought fleets (of {self.possible} possible) {self.misses:.1%} miss, of the"
            f" cheapest of each server {self.alone_wrong / self.alone:.1%}; where they meet, they"
            f" cost {fmean(self.costs):.1%} more (median {median(self.costs):.1%});"
            f" {self.plain_cost:.1%} over the plain plan (median {median(self.plain_costs):.1%})"
        )


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
        name: ErrorSpread(
            center=0.0,
            half_width=UPPER_80 * deviation,
            distance=0.0,
            nearest="",
            chosen_center=0.0,
            chosen_half_width=UPPER_80 * deviation,
        )
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
        server=f"{cell.group}, {cell.input_tokens}/{cell.output_tokens}",
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


def plain(fleet: Fleet) -> tuple[float, float]:
    """Returns the factors of an exact simulation."""
    return 1.0, 1.0


def confident(confidence: float | None) -> Margins:
    """Returns the factors of a plan with this confidence."""
    if confidence is None:
        return plain
    return lambda fleet: confidence_factors(fleet.point.errors, confidence)


def constant(ttft_margin: float, tpot_margin: float) -> Margins:
    """Returns the factors of margins, which are logarithms."""
    factors = exp(max(ttft_margin, tpot_margin)), exp(tpot_margin)
    return lambda fleet: factors


def known_bias(servers: dict[str, list[list[Fleet]]], margin: float) -> Margins:
    """Returns the factors that remove the median error of each server, and a margin."""
    factors = {}
    for curves in servers.values():
        for fleets in curves:
            points = [fleet.point for fleet in fleets]
            factors[fleets[0].server] = (
                exp(margin) * median(point.ttft_ms / point.simulated_ttft_ms for point in points),
                exp(margin) * median(point.tpot_ms / point.simulated_tpot_ms for point in points),
            )
    return lambda fleet: factors[fleet.server]


def simulated_price(fleet: Fleet) -> float:
    return fleet.simulated_price


def judge(servers: dict[str, list[list[Fleet]]], margins: Margins) -> Score:
    score = Score()
    for curves in servers.values():
        group = [fleet for fleets in curves for fleet in fleets]
        factors = [margins(fleet) for fleet in group]
        for limits in questions(group):
            good = [fleet for fleet in group if fleet.meets(limits)]
            ok = [
                fleet
                for fleet, pair in zip(group, factors, strict=True)
                if fleet.is_called_ok(limits, pair)
            ]
            score.possible += bool(good)
            score.called += len(ok)
            score.called_wrong += sum(not fleet.meets(limits) for fleet in ok)
            if not ok:
                continue
            by_server = defaultdict(list)
            for fleet in ok:
                by_server[fleet.server].append(fleet)
            for fleets in by_server.values():
                score.alone += 1
                score.alone_wrong += not min(fleets, key=simulated_price).meets(limits)
            score.chosen += 1
            bought = min(ok, key=simulated_price)
            plain_fleets = [fleet for fleet in group if fleet.is_called_ok(limits, plain(fleet))]
            if plain_fleets:
                plain_price = min(map(simulated_price, plain_fleets))
                score.plain_costs.append(bought.simulated_price / plain_price - 1)
            if not bought.meets(limits):
                score.chosen_wrong[bought.server] += 1
                continue
            cheapest = min(fleet.real_price for fleet in good)
            score.costs.append(bought.real_price / cheapest - 1)
    return score


def print_curve(fleets: dict[str, list[list[Fleet]]]) -> None:
    """Prints the choices for rising confidences, and the servers that miss at one of them."""
    for confidence in CONFIDENCES:
        name = "exact" if confidence is None else f"{confidence:.0%}"
        score = judge(fleets, confident(confidence))
        print(f"{name:>6}: {score}")
        if confidence == SHOWN_CONFIDENCE:
            for server, misses in score.chosen_wrong.most_common():
                print(f"        {misses} {server}")


def print_hindsight(fleets: dict[str, list[list[Fleet]]]) -> None:
    """Prints the best constant margins for each of the two goals."""
    scores = {
        (ttft_margin, tpot_margin): judge(fleets, constant(ttft_margin, tpot_margin))
        for ttft_margin in TTFT_MARGINS
        for tpot_margin in TPOT_MARGINS
    }
    reliable = [margins for margins, score in scores.items() if score.misses <= MAX_MISSES]
    cheap = [margins for margins, score in scores.items() if score.plain_cost <= MAX_COST]
    cheapest = min(reliable, key=lambda margins: scores[margins].plain_cost)
    safest = min(cheap, key=lambda margins: scores[margins].misses)
    for name, margins in (
        (f"cheapest with at most {MAX_MISSES:.0%} of misses", cheapest),
        (f"fewest misses for at most {MAX_COST:.0%}", safest),
    ):
        print(f"{name}, TTFT +{margins[0]:.2f}, TPOT +{margins[1]:.2f}: {scores[margins]}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("cells", type=Path, help="result of benchmarks.cells --out")
    parser.add_argument("folder", type=Path, help="folder with models")
    parser.add_argument("--held-out", action="store_true", help="only cells that were not fitted")
    parser.add_argument(
        "--repeated", action="store_true", help="judge a second run of each server as simulation"
    )
    parser.add_argument(
        "--known-bias", action="store_true", help="remove the median error of each server"
    )
    parser.add_argument("--hindsight", action="store_true", help="search the best constant margins")
    options = parser.parse_args()
    if options.repeated:
        fleets = repeated_fleets(options.cells, held_out=options.held_out)
    else:
        fleets = read_fleets(options.cells, options.folder, held_out=options.held_out)
    print(f"{len(fleets)} loads, {sum(map(len, fleets.values()))} servers")
    if options.known_bias:
        for margin in KNOWN_BIAS_MARGINS:
            print(f"{margin:+.2f}: {judge(fleets, known_bias(fleets, margin))}")
    elif options.hindsight:
        print_hindsight(fleets)
    else:
        print_curve(fleets)


if __name__ == "__main__":
    main()
