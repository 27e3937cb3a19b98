"""Keep long library calls away from the event loop."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import ParamSpec, TypeVar

import gevent
from gevent import monkey

P = ParamSpec("P")
T = TypeVar("T")

SWITCH_S = 0.0005
"""How soon the event loop gets the GIL back from Python code in another thread. It loses it with every system
call, so that the interpreter's usual 5 ms would add up to 50 ms a request."""


def call_off_hub(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Call `function` in a native thread while other greenlets run; a plain call where gevent is not at work.

    Library calls that release the GIL leave the loop alone (`encode_batch` does, `encode` does not); from
    Python code the interpreter takes it away after `SWITCH_S`, which is set here for the whole process.
    """
    if not monkey.is_module_patched("socket"):
        return function(*args, **kwargs)
    sys.setswitchinterval(SWITCH_S)

    done: list[T] = []
    failed: list[BaseException] = []

    def attempt() -> None:
        # What is raised in a native thread, gevent prints.
        try:
            done.append(function(*args, **kwargs))
        except BaseException as error:
            failed.append(error)

    gevent.get_hub().threadpool.apply(attempt)
    if failed:
        raise failed[0]
    return done[0]
