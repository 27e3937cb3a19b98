"""Tests that start a process: a server, a command, Redis.

They are found before they run, by following what they call. One that was not found fails under --fast.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from functools import cache, partial
from types import CodeType, FunctionType, ModuleType

import pytest

from app.lab.fleet.fleet import running_fleet
from app.lab.fleet.processes import Processes

STARTERS = (subprocess, subprocess.Popen, subprocess.run, os.fork, Processes, running_fleet)
"""Whoever refers to one of these starts processes."""
FOLLOWED = ("tests.", "benchmarks.", "vllm_understudy.")
"""Modules whose functions and classes are followed."""
CACHED = type(cache(print))
FOLLOWABLE = (FunctionType, ModuleType, type, partial, property, classmethod, staticmethod, CACHED)
EVENTS = frozenset(("subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn", "os.system"))
"""The interpreter's own events of a process that starts (PEP 578)."""


def starts_process(item: pytest.Function) -> bool:
    """Whether a test, one of its fixtures or anything that these call in `tests` refers to a starter."""
    definitions = item._fixtureinfo.name2fixturedefs
    fixtures = [definition.func for name in item.fixturenames for definition in definitions.get(name, ())]
    seen: set[int] = set()
    waiting: list[object] = [item.function, *fixtures]
    while waiting:
        value = waiting.pop()
        if any(value is starter for starter in STARTERS):
            return True
        if id(value) not in seen:
            seen.add(id(value))
            waiting += _referred_to(value)
    return False


@cache
def _referred_to(value: object) -> tuple[object, ...]:
    """What can be called of what a function's code names, or of what a class has."""
    if isinstance(value, partial):
        return (value.func,)
    found: list[object] = []
    if isinstance(value, type) and value.__module__.startswith(FOLLOWED):
        found += vars(value).values()
    function = _innermost(value)
    if function is not None and function.__module__.startswith(FOLLOWED):
        names = set(_names(function.__code__))
        known = [function.__globals__[name] for name in names if name in function.__globals__]
        modules = [value for value in known if isinstance(value, ModuleType)]
        found += known
        found += [vars(module).get(name) for module in modules for name in names]
        found += [cell.cell_contents for cell in function.__closure__ or ()]
    # Not isinstance: proxies answer for somebody else.
    return tuple(value for value in found if issubclass(type(value), FOLLOWABLE))


def _innermost(value: object) -> FunctionType | None:
    """The function under decorators: properties, fixtures, context managers, Hypothesis."""
    while True:
        value = getattr(value, "fget", None) or getattr(value, "__func__", value)
        generated = getattr(value, "hypothesis", None)
        inner = getattr(generated, "inner_test", None) or getattr(value, "__wrapped__", None)
        if inner is None:
            return value if isinstance(value, FunctionType) else None
        value = inner


def _names(code: CodeType) -> Iterator[str]:
    """All names that a function's code uses, those of the functions within it too."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)


FONTS = "fc-list"
"""What matplotlib calls, once on a machine, to know its fonts; cma loads it where it is there."""


def refuse_process(event: str, arguments: tuple[object, ...]) -> None:
    """An audit hook under which a test fails that starts a process, whatever errors it expects."""
    if event in EVENTS and "PYTEST_CURRENT_TEST" in os.environ and arguments[:1] != (FONTS,):
        pytest.fail(f"a test that is not marked `server` starts a process: {event} {arguments[:2]}")
