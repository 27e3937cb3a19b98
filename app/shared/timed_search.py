"""Searches of the `regex` package with a limit of their own processor time."""

from __future__ import annotations

from collections.abc import Callable
from time import thread_time
from typing import TypeVar

Result = TypeVar("Result")


def timed_search(
    search: Callable[..., Result], text: str, seconds: float, **options: bool
) -> Result:
    """Returns the result of `search`, a method of a compiled pattern, for `text`.

    The package measures the processor time of all threads. On a busy machine, a search of a few
    microseconds timed out while another thread tokenized a long text, and its request failed. Such
    a search is repeated until this thread has spent `seconds`.

    Raises:
        TimeoutError: The search itself takes longer.
    """
    deadline_s = thread_time() + seconds
    while True:
        try:
            return search(text, timeout=seconds, **options)
        except TimeoutError:
            if thread_time() >= deadline_s:
                raise
