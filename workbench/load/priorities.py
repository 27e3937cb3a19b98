"""Priorities of classes of requests, as with vLLM's scheduling policy `priority`.

A lower number is served first, and preempted last.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from random import Random

from msgspec import Struct

from config import ConfigError
from workbench.load.loads import LoadTrace

PATTERN = re.compile(r"([\w.-]{1,40})=(-?\d{1,6})(?:@(\d{0,3}(?:\.\d+)?)%)?", re.ASCII)


class PriorityClass(Struct, frozen=True, kw_only=True):
    """A class of requests."""

    name: str
    priority: int
    share: float | None = None
    """Share of a drawn load; None for the classes of a trace."""


def read_priority(text: str) -> PriorityClass:
    """Returns the class of `NAME=PRIORITY` or `NAME=PRIORITY@SHARE%`.

    Raises:
        ValueError: The text has another form; the message completes "the value ...".
    """
    match = PATTERN.fullmatch(text)
    if match is None:
        raise ValueError("must be NAME=PRIORITY, or NAME=PRIORITY@SHARE% for a generated load")
    share = None
    if match[3] is not None:
        share = float(match[3] or "nan") / 100
        if not 0 < share <= 1:
            raise ValueError("must have a share of more than 0% and at most 100%")
    return PriorityClass(name=match[1], priority=int(match[2]), share=share)


def check_priorities(classes: Sequence[PriorityClass], *, is_drawn: bool) -> None:
    """Checks that the classes belong together.

    Raises:
        ConfigError: A class is named twice, or the shares do not fit the load.
    """
    names = [part.name for part in classes]
    if len(set(names)) < len(names):
        raise ConfigError("--priorities: each class must have a unique name")
    shares = [part.share for part in classes if part.share is not None]
    if not is_drawn and shares:
        raise ConfigError("--priorities: the trace already has classes, so omit the shares")
    if is_drawn and (len(shares) < len(classes) or abs(sum(shares) - 1) > 1e-6):
        raise ConfigError(
            "--priorities: a generated load requires a share for each class, with a total of 100%"
        )


def assign_classes(load: LoadTrace, classes: Sequence[PriorityClass], seed: int) -> None:
    """Draws the class of each request of a drawn load; the turns of a session share one.

    Raises:
        ConfigError: A class of a trace has no priority.
    """
    if load.classes or classes[0].share is None:
        names = {part.name for part in classes}
        for name in load.classes or [""]:
            if name not in names:
                requests = f"class {name}" if name else "a request without a class"
                raise ConfigError(f"{load.origin}: {requests} has no priority in --priorities")
        return
    rng = Random(f"{seed}/classes")
    weights = [part.share or 0.0 for part in classes]
    load.classes = [part.name for part in classes]
    sessions: dict[int, int] = {}
    for number in range(len(load)):
        kind = rng.choices(range(len(classes)), weights)[0]
        if load.session:
            kind = sessions.setdefault(load.session[number], kind)
        load.kind.append(kind)
