"""Telling how a download goes on."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

from tqdm import tqdm

EVERY_S = 5.0
EVERY_SHARE = 0.1
MEGABYTE = 1_000_000

Advance = Callable[[int], object]
"""Takes the number of bytes that have come."""
Progress = Callable[[int, int | None], AbstractContextManager[Advance]]
"""Begins with the bytes that were there already, and the size in the end if it is known."""

logger = logging.getLogger(__name__)


def shown(name: str) -> Progress:
    """A bar where somebody looks at a terminal, else a line in the log now and then."""
    if sys.stderr.isatty():
        return lambda have, total: bar(name, have, total)
    return lambda have, total: lines(name, have, total, time.monotonic)


@contextmanager
def bar(name: str, have: int, total: int | None) -> Iterator[Advance]:
    """A bar on stderr."""
    with tqdm(
        desc=name, initial=have, total=total, unit="B", unit_scale=True, dynamic_ncols=True
    ) as progress:
        yield progress.update


@contextmanager
def lines(name: str, have: int, total: int | None, now: Callable[[], float]) -> Iterator[Advance]:
    """A line in the log every `EVERY_S` seconds of `now` or `EVERY_SHARE` of the file."""
    begun_s = told_s = now()
    done = told = have

    def advance(count: int) -> None:
        nonlocal done, told, told_s
        done += count
        now_s = now()
        if now_s - told_s >= EVERY_S or (total and done - told >= EVERY_SHARE * total):
            logger.info("%s", line(name, done, total, (done - have) / max(now_s - begun_s, 1e-9)))
            told, told_s = done, now_s

    yield advance


def line(name: str, done: int, total: int | None, per_s: float) -> str:
    """What a line says; `per_s` in bytes."""
    speed = f"{per_s / MEGABYTE:.1f} MB/s"
    if not total:
        return f"download of {name}: {done / MEGABYTE:.1f} MB, {speed}"
    left_s = (total - done) / max(per_s, 1e-9)
    return (
        f"download of {name}: {done / total:.0%} of {total / MEGABYTE:.1f} MB, {speed}, {left_s:.0f} s left"
    )
