"""Writes config/vllm/history.json: when options, variables and metrics came, changed, and went.

    $ python -m scripts.version_diff.history [FOLDER]

The source distributions of `RELEASES` are downloaded one after the other, about 1 GB in total,
unless the folder has a folder with the name of the release and its package `vllm`. Of a version
without a source distribution, nothing is known: what came or went by the next version has both
numbers, as in "0.15 or 0.16".
"""

import ast
import re
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import msgspec

from config.vllm.history import FILE, History, Lifetime
from scripts.version_diff.download import download
from scripts.version_diff.environment import variable_facts
from scripts.version_diff.fact import UNKNOWN, Fact, by_key
from scripts.version_diff.metrics import metric_facts
from scripts.version_diff.options import option_facts
from scripts.version_diff.package import read_package
from scripts.version_diff.reading import read_facts
from scripts.version_diff.replacements import METRICS, replacements_in

READERS = (option_facts, variable_facts, metric_facts)
SOURCE = (
    "source distributions of vLLM on PyPI (Apache-2.0), read by scripts/version_diff/history.py"
)
RELEASES = (
    *("0.6.6.post1", "0.7.3", "0.8.5.post1", "0.9.2", "0.10.2", "0.11.2", "0.12.0", "0.13.0"),
    *("0.14.1", "0.16.0", "0.17.1", "0.18.1", "0.19.1", "0.20.2", "0.21.0", "0.22.1", "0.23.0"),
    *("0.24.0", "0.25.1", "0.26.0", "0.27.1", "0.28.0", "0.29.0", "0.30.0", "0.31.0", "0.32.0"),
    "0.33.0",
)
"""The latest patch release of each minor version since 0.6; 0.15 has no source distribution."""
NOTHING = frozenset(("None", "False", "''", "[]", "{}"))
"""Defaults that mean the same: vLLM wrote some of them in another way, and changed nothing."""
MAJOR = 0
"""The major version of all releases so far."""


def main(folder: Path | None) -> None:
    """Writes the file.

    Raises:
        DownloadError: A source distribution could not be downloaded.
    """
    facts: dict[int, list[Fact]] = {}
    replacements: dict[str, str] = {}
    for release in RELEASES:
        print(f"Reading {release} ...", flush=True)
        with tempfile.TemporaryDirectory(prefix="version-history-") as downloads:
            source = Path(downloads)
            if folder is not None and (folder / release).exists():
                source = folder / release
            else:
                source = download(release, source)
            package = read_package(source)
        facts[minor_of(release)] = read_facts(package, READERS)
        replacements |= replacements_in(package)
    history = history_of(facts, replacements)
    history.source = SOURCE
    history.releases = {_name(minor_of(release)): release for release in RELEASES}
    FILE.write_bytes(_lines(history))
    print(f"{FILE}: {FILE.stat().st_size} bytes")


def minor_of(release: str) -> int:
    """Returns the second number of a release, such as 6 for 0.6.6.post1."""
    return int(release.split(".")[1])


def history_of(
    facts_by_minor: Mapping[int, Iterable[Fact]], replacements: Mapping[str, str]
) -> History:
    """Returns the tables of minor versions, which are in order."""
    return History(
        options=_table("option", facts_by_minor, replacements),
        keys=_table("JSON key", facts_by_minor, replacements),
        variables=_table("environment variable", facts_by_minor, replacements),
        metrics=_table("metric", facts_by_minor, replacements),
    )


def _table(
    kind: str, facts_by_minor: Mapping[int, Iterable[Fact]], replacements: Mapping[str, str]
) -> dict[str, Lifetime]:
    names_by_minor = {
        minor: {fact.name for fact in facts if fact.kind == kind}
        for minor, facts in facts_by_minor.items()
    }
    last = max(names_by_minor)
    options_by_minor = {
        minor: {fact.name: fact for fact in by_key(facts).values() if fact.kind == kind == "option"}
        for minor, facts in facts_by_minor.items()
    }
    types = {}
    for fact in facts_by_minor[last]:
        if fact.kind == kind == "metric":
            types[fact.name] = fact.attributes.get("type", "")
    table = {}
    for name in sorted(set().union(*names_by_minor.values())):
        if name.startswith(UNKNOWN):
            continue
        presence = [name in names for names in names_by_minor.values()]
        replacement = ""
        if name not in names_by_minor[last]:
            replacement = METRICS.get(name) or replacements.get(name, UNKNOWN)
        table[name] = Lifetime(
            periods=list(_periods(presence, names_by_minor)),
            replacement=replacement,
            kind=types.get(name, ""),
            defaults=list(_defaults(name, options_by_minor)),
        )
    return table


def _defaults(
    name: str, facts_by_minor: Mapping[int, Mapping[str, Fact]]
) -> Iterator[tuple[str, str, str]]:
    """Yields the versions that changed the default of an option, with both values.

    A value that only vLLM's code knows says nothing: then the values before and after it count.
    """
    before: tuple[int, str] | None = None
    for minor, facts in facts_by_minor.items():
        fact = facts.get(name)
        text = UNKNOWN if fact is None else fact.attributes.get("default", UNKNOWN)
        if text.startswith(UNKNOWN) or text.endswith("()"):
            continue
        if before is not None and text != before[1] and not {text, before[1]} <= NOTHING:
            yield _change(before[0], minor), _shown(before[1]), _shown(text)
        before = minor, text


def _shown(text: str) -> str:
    """Returns how a command line writes a value of Python."""
    value = ast.literal_eval(text)
    if value is None:
        return ""
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, list):
        value = " ".join(map(str, value))
    return str(value) or "empty"


def _periods(presence: Iterable[bool], minors: Iterable[int]) -> Iterator[tuple[str, str]]:
    """Yields the versions in which a name came and went; an empty text for before and after."""
    came: str | None = None
    previous: int | None = None
    for is_present, minor in zip(presence, minors, strict=True):
        if is_present and came is None:
            came = _change(previous, minor)
        elif not is_present and came is not None:
            yield came, _change(previous, minor)
            came = None
        previous = minor
    if came is not None:
        yield came, ""


def _change(previous: int | None, minor: int) -> str:
    """Returns the versions in which a change after `previous` can have happened."""
    if previous is None:
        return ""
    return " or ".join(map(_name, range(previous + 1, minor + 1)))


def _name(minor: int) -> str:
    return f"{MAJOR}.{minor}"


def _lines(history: History) -> bytes:
    """Returns JSON with one line for each name, so that a new version changes few lines."""
    text = msgspec.json.encode(history)
    text = re.sub(rb'(\{|,)("[^"]+":\{"periods")', rb"\1\n\2", text)
    return re.sub(rb'\},("keys"|"variables"|"metrics")', rb"},\n\1", text) + b"\n"


if __name__ == "__main__":
    main(next(map(Path, sys.argv[1:]), None))
