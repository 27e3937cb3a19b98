"""Results as Markdown, ready to be pasted into docs/benchmarks.md."""

from __future__ import annotations

import os
import platform
import statistics
import time
from collections.abc import Iterable, Sequence
from dataclasses import fields
from math import isnan
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from benchmarks import cores

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

Figures = TypeVar("Figures", bound="DataclassInstance")


def medians(rounds: Sequence[Figures]) -> Figures:
    """Field by field, of dataclasses that hold nothing but numbers. ValueError without rounds."""
    if not rounds:
        raise ValueError("no rounds")
    kind = type(rounds[0])
    return kind(
        **{
            name: statistics.median(getattr(round_, name) for round_ in rounds)
            for name in _names(kind)
        }
    )


def _names(kind: type[DataclassInstance]) -> list[str]:
    return [field.name for field in fields(kind)]


def number(value: float, digits: int = 2, unit: str = "") -> str:
    """1234.5 as 1,234.50; nothing known (NaN) as a dash."""
    return "–" if isnan(value) else f"{round(value, digits) + 0.0:,.{digits}f}{unit}"


def share(value: float) -> str:
    """0.5 as 50 %."""
    return number(value * 100, 0, " %")


def ratio(value: float, reference: float) -> str:
    """`value` in units of `reference`."""
    return number(value / reference if reference else float("nan"), 2, "x")


def middle_ratio(values: Sequence[float], references: Sequence[float]) -> str:
    """The median of the ratios round by round: neighbours in time have the same noise.

    ValueError without rounds, or with some of one side only.
    """
    return ratio(statistics.median(a / b for a, b in zip(values, references, strict=True)), 1.0)


def show(
    title: str, columns: Sequence[str], rows: Iterable[Sequence[str]], warnings: Iterable[str] = ()
) -> None:
    """Print a table with its title, and below it each warning once."""
    print(f"\n### {title}\n")
    print("| " + " | ".join(columns) + " |")
    print("|---" + "|---:" * (len(columns) - 1) + "|")
    for row in rows:
        print("| " + " | ".join(row) + " |")
    print()
    for warning in dict.fromkeys(warnings):
        print(f"WARNING: {warning}")


def show_machine() -> None:
    """Print where and when: figures of two machines, or of two days, are not to be compared."""
    model = next((line for line in _cpu_info() if line.startswith("model name")), ": unknown CPU")
    print(
        f"{time.strftime('%Y-%m-%d')}, {os.cpu_count()} x {model.partition(':')[2].strip()}, "
        f"{platform.system()} {platform.release()}, Python {platform.python_version()}, "
        f"load average {os.getloadavg()[0]:.1f}"
    )
    if cores.shared():
        print("WARNING: one core for client and server: they take each other's time")


def _cpu_info() -> list[str]:
    try:
        return Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return []
