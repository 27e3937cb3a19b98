"""Measured errors of computed profiles by situation: the table "when not to trust it".

A situation is the kind of model, the format of its weights, and the generation of the device. The
figures come from the residuals of `known_errors.json` and `published_errors.json`; docs/accuracy.md
has the same table.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from functools import cache
from math import exp

from msgspec import Struct

from app.extensions.costs.error_model import KnownError, Situation, read_errors
from app.extensions.costs.published_errors import read_published
from app.shared.statistics import quantile
from vllm_facts.devices import GENERATIONS

MIN_RUNS = 5
"""Fewest runs of a row of the table."""
FORMATS = {"fp8-block": "blockwise FP8", "nvfp4": "NVFP4", "mxfp4": "MXFP4", "bf16": "BF16"}
"""Names of the formats of weights, beside those in capital letters."""
GENERATION_NAMES = {"cdna": "CDNA"}
"""Names of generations, beside those with one capital letter."""
PAGE = "docs/accuracy.md#when-not-to-trust-it"


class ErrorShares(Struct, frozen=True):
    """Absolute errors of a latency, as shares of the measured values."""

    runs: int
    median: float
    p90: float

    def __str__(self) -> str:
        return f"{self.median:.0%} (p90 {self.p90:.0%})"


class MeasuredErrors(Struct, frozen=True, kw_only=True):
    """Errors of the servers of one situation."""

    situation: str
    servers: int
    """Number of pairs of model and device, with their parallelism and version."""
    tpot: ErrorShares | None
    ttft: ErrorShares | None
    """None with fewer than `MIN_RUNS` runs whose client is documented."""

    def __str__(self) -> str:
        parts = [
            f"{name} {shares} in {shares.runs} runs"
            for name, shares in (("TPOT", self.tpot), ("TTFT", self.ttft))
            if shares is not None
        ]
        if not parts:
            return f"measured errors: no server like this was measured ({self.situation}; {PAGE})"
        if self.ttft is None:
            parts.append("TTFT was not measured")
        return f"measured errors: {self.situation}: {', '.join(parts)} ({PAGE})"


def errors_table() -> str:
    """Returns the rows as the Markdown table of docs/accuracy.md."""
    lines = [
        "| model, weights, device | servers | runs | TPOT median | p90 | TTFT median | p90 |",
        "|---|---:|---:|---:|---:|---:|---:|",
    ]
    for row in measured_errors():
        cells = [row.situation, str(row.servers), str(row.tpot.runs) if row.tpot else "-"]
        for shares in (row.tpot, row.ttft):
            cells += ["-", "-"]
            if shares is not None:
                cells[-2:] = [f"{shares.median:.0%}", f"{shares.p90:.0%}"]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def errors_like(situation: Situation) -> MeasuredErrors:
    """Returns the row that applies to a situation; without figures if nothing was measured."""
    name = situation_name(situation)
    for row in measured_errors():
        if row.situation == name:
            return row
    return MeasuredErrors(situation=name, servers=0, tpot=None, ttft=None)


@cache
def measured_errors() -> tuple[MeasuredErrors, ...]:
    """Returns the rows of the table, those with the largest errors of TTFT first."""
    by_name: dict[str, list[KnownError]] = defaultdict(list)
    for error in (*read_errors(), *read_published()):
        by_name[situation_name(error.situation)].append(error)
    rows = [
        MeasuredErrors(
            situation=name,
            servers=len({error.group for error in errors}),
            tpot=_shares(error.tpot for error in errors),
            ttft=_shares(error.ttft for error in errors),
        )
        for name, errors in by_name.items()
    ]
    measured = [row for row in rows if row.tpot is not None]
    return tuple(sorted(measured, key=_worst_first))


def situation_name(situation: Situation) -> str:
    """Returns the name of a situation in the table."""
    kind = "mixture of experts" if situation.has_experts else "dense"
    if situation.data_parallel:
        kind += " with data parallelism"
    weights = FORMATS.get(situation.weights, situation.weights.upper())
    generation = GENERATIONS.get(situation.device, situation.device)
    generation = GENERATION_NAMES.get(generation, generation.capitalize())
    return f"{kind}, {weights}, {generation}"


def _worst_first(row: MeasuredErrors) -> tuple[float, str]:
    """Returns a key that sorts by the errors of TTFT; rows without them come last."""
    return (-row.ttft.p90 if row.ttft is not None else 0.0, row.situation)


def _shares(residuals: Iterable[float | None]) -> ErrorShares | None:
    """Returns the errors of residuals; None for fewer than `MIN_RUNS`."""
    errors = sorted(abs(exp(-residual) - 1) for residual in residuals if residual is not None)
    if len(errors) < MIN_RUNS:
        return None
    return ErrorShares(runs=len(errors), median=quantile(errors, 0.5), p90=quantile(errors, 0.9))
