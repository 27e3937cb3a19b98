"""Steps of an upgrade whose changes are not known, so that silence is no promise."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from vllm_facts.history import History, version_number
from vllm_facts.version import FIRST, PATCHES, PROVEN
from vllm_facts.version_order import is_downgrade
from workbench.check.findings import Finding, Place
from workbench.check.rules import finding


def unknown_steps(old: str, new: str, history: History, place: Place) -> Iterator[Finding]:
    """Yields what an upgrade does not report, from `old` to `new`, such as 0.20 and 0.33.1.

    The `history` has the options, variables and metrics of each version that was read. If a version
    can be played, its behavior is known; some versions were also compared with servers.
    """
    if is_downgrade(old, new):
        message = (
            f"{new} is earlier than {old}: changes of behavior and of defaults are reported for "
            "upgrades alone"
        )
        yield finding("U606", place, message)
        return
    names = list(history.releases)
    first, last = (".".join(map(str, version_number(text))) for text in (old, new))
    steps = names[names.index(first) + 1 : names.index(last) + 1] if first in names else []
    unknown = [name for name in steps if name not in PATCHES or name == FIRST]
    if unknown:
        changed = f"that {_range(unknown)} changed"
        message = f"the behavior of APIs {changed} is not known, and not reported"
        yield finding("U606", place, message)
    unproven = [name for name in (first, last) if name in PATCHES and name not in PROVEN]
    if unproven and old != new:
        message = (
            f"the behavior of {' and '.join(dict.fromkeys(unproven))} was not compared with a "
            "server: changes that the sources of vLLM do not show are not reported"
        )
        yield finding("U606", place, message)
    for name in _unread(first, last, names):
        message = f"{name} was not read: its changes are reported as those of a later one"
        yield finding("U606", place, message)


def _unread(first: str, last: str, names: Sequence[str]) -> Iterator[str]:
    """Yields the minor versions between two that are not among `names`."""
    major, minor = version_number(first)
    last_major, last_minor = version_number(last)
    for number in range(minor + 1, last_minor if major == last_major else 0):
        if f"{major}.{number}" not in names:
            yield f"{major}.{number}"


def _range(names: Sequence[str]) -> str:
    """Returns versions as text, such as 0.21 to 0.32."""
    return " to ".join(dict.fromkeys((names[0], names[-1])))
