"""Repeated measurements."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

Subject = TypeVar("Subject")
Figures = TypeVar("Figures")


def interleaved(
    subjects: Iterable[Subject], rounds: int, measure: Callable[[Subject], Figures]
) -> dict[Subject, list[Figures]]:
    """`rounds` measurements of each subject, taken in turns: a noisy minute then disturbs all
    alike.

    Every second round goes backwards, so that nobody's turn is always behind the same other's.
    """
    seen: dict[Subject, list[Figures]] = {subject: [] for subject in subjects}
    for turn in range(rounds):
        for subject in reversed(seen) if turn % 2 else seen:
            seen[subject].append(measure(subject))
    return seen
