"""Searches are limited by their own processor time."""

from collections.abc import Callable
from time import thread_time

import pytest
import regex

from app.shared.timed_search import timed_search

LIMIT_S = 0.01


def interrupted(search: Callable[..., object], times: int) -> Callable[..., object]:
    """Returns a search that times out at once for some `times`, as beside a busy thread."""
    remaining = iter(range(times))

    def run(text: str, timeout: float, **options: bool) -> object:
        if next(remaining, None) is not None:
            raise TimeoutError
        return search(text, timeout=timeout, **options)

    return run


def test_search_that_used_none_of_its_time_is_repeated() -> None:
    search = interrupted(regex.compile("(a|b){1,3}c").fullmatch, 5)
    assert timed_search(search, "abac", LIMIT_S) is not None
    assert timed_search(search, "abad", LIMIT_S) is None
    assert timed_search(search, "ab", LIMIT_S, partial=True) is not None


def test_slow_search_times_out() -> None:
    start_s = thread_time()
    with pytest.raises(TimeoutError):
        timed_search(regex.compile("(a|aa)+$").match, "a" * 60 + "b", LIMIT_S)
    assert thread_time() - start_s >= LIMIT_S
