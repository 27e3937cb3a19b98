"""What came, went and changed between two versions: `differences`, as text and as JSON."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import groupby
from operator import attrgetter
from pathlib import PurePosixPath
from typing import Literal, get_args

from scripts.version_diff.fact import Fact, Kind, by_key

Change = Literal["came", "went", "changed"]
SIGNS: dict[Change, str] = {"came": "+", "went": "-", "changed": "~"}
HEADINGS: dict[str, str] = {
    "option": "Options of vllm serve",
    "JSON key": "Keys of options that take a JSON object",
    "environment variable": "Environment variables",
    "field": "Fields of requests and responses",
    "route": "Routes",
    "metric": "Metrics",
    "KV event": "KV events",
    "tool parser": "Tool parsers",
    "reasoning parser": "Reasoning parsers",
    "quantization": "Quantizations",
    "architecture": "Architectures",
    "suffix": "Ends of architectures",
    "error": "Texts of errors",
    "code": "Functions whose code changed, by folder",
}
SETS = ("choices", "labels", "buckets", "keys", "parameters")
"""Attributes with items, separated by commas, of which only the changed ones are printed."""
CHANGES_ONLY = ("code",)
"""Kinds of which only changes are of interest: new code is reached from changed code."""


@dataclass(frozen=True, slots=True)
class Difference:
    """A difference.

    Attributes:
        owners: What the name belongs to, such as the classes with a field.
        old: Attributes that the older version had; of a change, only those that changed.
        new: Those of the newer version.
        area: Of code, the folder with its file in the newer version.
    """

    kind: Kind
    change: Change
    name: str
    owners: tuple[str, ...]
    old: Mapping[str, str]
    new: Mapping[str, str]
    area: str = ""

    @property
    def place(self) -> int:
        """Place of the kind in a list."""
        kinds: tuple[str, ...] = get_args(Kind)
        return kinds.index(self.kind)

    def line(self) -> str:
        """Returns the difference as a line of text. `code_lines` has those of code."""
        text = f"{SIGNS[self.change]} {self.name}"
        if self.owners:
            text += f" of {', '.join(self.owners)}"
        details = "; ".join(_details(self))
        if details:
            text += f": {details}"
        return text


def differences(old_facts: Iterable[Fact], new_facts: Iterable[Fact]) -> list[Difference]:
    """Returns differences by kind and name; those of several owners that are alike are one."""
    owners: dict[tuple[object, ...], list[str]] = {}
    differences: dict[tuple[object, ...], Difference] = {}
    old_by_key = by_key(old_facts)
    new_by_key = by_key(new_facts)
    _merge_classes(old_by_key, new_by_key)
    for difference in _all_differences(old_by_key, new_by_key):
        key = (
            difference.kind,
            difference.change,
            difference.name,
            tuple(difference.old.items()),
            tuple(difference.new.items()),
        )
        differences.setdefault(key, difference)
        owners.setdefault(key, []).extend(difference.owners)
    merged = [
        Difference(
            kind=difference.kind,
            change=difference.change,
            name=difference.name,
            owners=tuple(sorted(owners[key])),
            old=difference.old,
            new=difference.new,
            area=difference.area,
        )
        for key, difference in differences.items()
    ]
    merged.sort(key=attrgetter("name", "change"))
    return sorted(merged, key=attrgetter("place"))


def text_of(differences: Iterable[Difference]) -> str:
    """Returns a list with a heading for each kind."""
    lines: list[str] = []
    for kind, group in groupby(differences, attrgetter("kind")):
        lines += ["", f"# {HEADINGS[kind]}"]
        if kind == "code":
            lines += code_lines(group)
        elif kind == "error":
            lines += [difference.line() for difference in group]
        else:
            lines += _lines_of_names(group)
    return "\n".join(lines[1:])


def _lines_of_names(differences: Iterable[Difference]) -> list[str]:
    """Returns a line for each difference; names without details share the first lines."""
    names: dict[str, list[str]] = {}
    lines = []
    for difference in differences:
        line = difference.line()
        if ": " in line:
            lines.append(line)
        else:
            names.setdefault(line[0], []).append(line[2:])
    return [*(f"{sign} {', '.join(names[sign])}" for sign in sorted(names)), *lines]


def code_lines(differences: Iterable[Difference]) -> list[str]:
    """Returns a line for each folder with changed functions.

    Public functions lead to the private ones that they call, so these are named only where no
    public function of the folder changed.
    """
    folders: dict[str, list[Difference]] = {}
    for difference in differences:
        folders.setdefault(difference.area, []).append(difference)
    lines = []
    for folder in sorted(folders):
        public_parts = []
        private_parts = []
        for difference in folders[folder]:
            changes = list(_function_changes(difference))
            public_changes = [change for change in changes if not is_private(change)]
            if public_changes:
                public_parts.append(_code_part(difference, public_changes))
            else:
                private_parts.append(_code_part(difference, changes))
        lines.append(f"~ {folder}: {'; '.join(public_parts or private_parts)}")
    return lines


def is_private(function_change: str) -> bool:
    """Says whether a change, such as `+_find`, is that of a private function."""
    return function_change.lstrip("+-").startswith("_")


def _code_part(difference: Difference, function_changes: Iterable[str]) -> str:
    """Returns functions with their class, or with the name of their file."""
    return f"{PurePosixPath(difference.name).name} {' '.join(function_changes)}"


def _merge_classes(
    old_facts: dict[tuple[str, str, str], Fact], new_facts: dict[tuple[str, str, str], Fact]
) -> None:
    """Replaces the fields of classes that only one version has by one fact for each class."""
    old_owners = {fact.owner for fact in old_facts.values()}
    new_owners = {fact.owner for fact in new_facts.values()}
    for facts, other_owners in ((old_facts, new_owners), (new_facts, old_owners)):
        classes: dict[tuple[Kind, str], dict[str, str]] = {}
        for key, fact in list(facts.items()):
            if fact.owner not in other_owners:
                attributes = classes.setdefault((fact.kind, fact.owner), {})
                attributes[fact.name] = "; ".join(fact.attributes.values())
                del facts[key]
        for (kind, name), attributes in classes.items():
            facts[(kind, "", name)] = Fact(kind, name, attributes=attributes)


def _all_differences(
    old_facts: Mapping[tuple[str, str, str], Fact], new_facts: Mapping[tuple[str, str, str], Fact]
) -> Iterator[Difference]:
    for key, fact in old_facts.items():
        if key not in new_facts and fact.kind not in CHANGES_ONLY:
            yield _difference(fact, "went", old=fact.attributes, new={})
    for key, fact in new_facts.items():
        old_fact = old_facts.get(key)
        if old_fact is None:
            if fact.kind not in CHANGES_ONLY:
                yield _difference(fact, "came", old={}, new=fact.attributes)
            continue
        changed = [
            name
            for name in {**old_fact.attributes, **fact.attributes}
            if old_fact.attributes.get(name) != fact.attributes.get(name)
        ]
        if changed:
            yield _difference(
                fact,
                "changed",
                old={name: old_fact.attributes.get(name, "") for name in changed},
                new={name: fact.attributes.get(name, "") for name in changed},
            )


def _difference(
    fact: Fact, change: Change, *, old: Mapping[str, str], new: Mapping[str, str]
) -> Difference:
    owners = tuple(filter(None, [fact.owner]))
    return Difference(
        kind=fact.kind,
        change=change,
        name=fact.name,
        owners=owners,
        old=old,
        new=new,
        area=fact.area,
    )


def _details(difference: Difference) -> Iterator[str]:
    if difference.change == "went":
        return
    if difference.kind in ("field", "KV event") and not difference.owners:
        yield f"a class with {', '.join(difference.new)}"
        return
    if difference.change == "came":
        for name, value in difference.new.items():
            if value and not (name == "pooling" and value == "no"):
                yield f"{name} {value}"
        return
    for name in difference.old:
        old = difference.old[name]
        new = difference.new[name]
        if name in SETS and old and new:
            yield f"{name} {' '.join(_item_changes(old, new))}"
        else:
            yield f"{name} {old or 'none'} -> {new or 'none'}"


def _item_changes(old: str, new: str) -> Iterator[str]:
    old_items = old.split(", ")
    new_items = new.split(", ")
    for item in new_items:
        if item not in old_items:
            yield f"+{item}"
    for item in old_items:
        if item not in new_items:
            yield f"-{item}"


def _function_changes(difference: Difference) -> Iterator[str]:
    for name in sorted(difference.old):
        if not difference.old[name]:
            yield f"+{name}"
        elif not difference.new[name]:
            yield f"-{name}"
        else:
            yield name
