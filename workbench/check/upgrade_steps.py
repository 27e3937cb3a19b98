"""Steps of an upgrade whose changes are not known, so that silence is no promise."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from vllm_facts.history import History, version_number
from workbench.check.findings import Finding, Place
from workbench.check.rules import finding


def unknown_steps(
    old: str, new: str, history: History, described: Sequence[str], place: Place
) -> Iterator[Finding]:
    """Yields what an upgrade does not report, from version `old` to `new`, such as 0.20 and 0.33.

    The `history` has the options, variables and metrics of each version that was read. The behavior
    of the `described` versions is known, oldest first.
    """
    first = version_number(old)
    last = version_number(new)
    known_from = max(first, version_number(described[0]))
    if first < known_from:
        unknown = _range(_next(first), min(known_from, last))
        message = f"the behavior of APIs that {unknown} changed is not known, and not reported"
        yield finding("U606", place, message)
    for number in range(first[1] + 1, last[1] if first[0] == last[0] else 0):
        version = f"{last[0]}.{number}"
        if version not in history.releases:
            message = f"{version} was not read: its changes are reported as those of a later one"
            yield finding("U606", place, message)


def _next(number: tuple[int, int]) -> tuple[int, int]:
    return number[0], number[1] + 1


def _range(first: tuple[int, int], last: tuple[int, int]) -> str:
    """Returns versions as text, such as 0.21 to 0.32."""
    texts = [f"{major}.{minor}" for major, minor in (first, last)]
    return " to ".join(dict.fromkeys(texts))
