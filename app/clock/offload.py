"""Keep long library calls away from the event loop."""

from __future__ import annotations

from collections.abc import Callable
from typing import ParamSpec, TypeVar

import gevent
from gevent import monkey

P = ParamSpec("P")
T = TypeVar("T")


def call_off_hub(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Call `function` in a native thread while other greenlets run; a plain call where gevent is not at work.

    Library calls that release the GIL leave the loop alone (`encode_batch` does, `encode` does not); of
    Python's own code the interpreter takes the GIL away every 5 ms.
    """
    if not monkey.is_module_patched("socket"):
        return function(*args, **kwargs)

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
