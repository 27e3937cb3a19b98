"""Repeated measurements."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

Subject = TypeVar("Subject")
Figures = TypeVar("Figures")


def interleaved(
    subjects: Iterable[Subject], rounds: int, measure: Callable[[Subject], Figures]
) -> dict[Subject, list[Figures]]:
    """`rounds` measurements of each subject, taken in turns: a noisy minute then disturbs all alike."""
    seen: dict[Subject, list[Figures]] = {subject: [] for subject in subjects}
    for _ in range(rounds):
        for subject, figures in seen.items():
            figures.append(measure(subject))
    return seen
