"""Compares the answers of both versions: values that are gone, and streams in another order.

A value that is gone breaks a client that reads it. Which values it reads, no server sees. A
difference that a release explains is a break if the client's code names it, or if there is no code.
It is a break, too, if the command fails with the new version, and its output quotes the name. A
difference without a reason can be one of the replies: concurrent requests draw other random
numbers.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from app.core.base.error_body import error_message
from app.extensions.recording.comparison import (
    SHAPE_AND_CONSTANTS,
    ReceivedAnswer,
    shapes_of,
)
from vllm_facts.history import read_history
from workbench.check.findings import Place
from workbench.rehearse.client_code import ClientCode
from workbench.rehearse.failure import Failure
from workbench.rehearse.items import Differences, Item, counted, listed, place_of, reason_of
from workbench.rehearse.requests import error_text, removal_of
from workbench.rehearse.traffic import (
    Event,
    Pair,
    Traffic,
    has_value,
    leaves_of,
    name_of,
    prefixes_of,
)
from workbench.rehearse.undo import OlderAnswer, Upgrade, without_numbers

CONSTANTS = SHAPE_AND_CONSTANTS.values - {"code"}
"""Names of fields with constants of the protocol."""
FAMILY = "family "
QUOTED_NAME = re.compile(r"`(\w+)[^`]*`")
"""A name in the sentence of a release, perhaps with a value."""
QUOTED = re.compile(r"`([^`]+)`")
MAX_WORDS_LENGTH = 100
"""Characters of the words of an error that are shown."""
UNCOMPARED_HEADERS = frozenset(
    ("connection", "content-length", "date", "server", "transfer-encoding", "vary")
)
"""Headers of the connection and of the server's software."""
HEADER_OPTIONS = {"access-control-allow-origin": "--allowed-origins"}
"""The options that decide about headers."""
MESSAGE = "message"
"""The field of errors that clients show."""
MAX_NAMES = 5
"""Most names in a line."""
MAX_EXPLAINED = 50
"""Most answers of a route whose changes are looked for; each has other fields."""


class Paths(NamedTuple):
    """The paths of values in some answers, and of the objects around these values."""

    values: Mapping[str, object]
    """A value of each path that has one."""
    present: frozenset[str]
    """All paths, also those of null and of objects."""

    @classmethod
    def in_answers(cls, answers: Iterable[Traffic]) -> Paths:
        """Returns the paths in answers."""
        values: dict[str, object] = {}
        present: set[str] = set()
        for answer in answers:
            for path, leaf in leaves_of(answer.events):
                present.update(prefixes_of(path))
                if has_value(leaf):
                    values.setdefault(path, leaf)
        return cls(values, frozenset(present))


class AnswerComparison:
    """Compares the answers of both versions to the same requests."""

    def __init__(
        self, upgrade: Upgrade, code: ClientCode, versions: tuple[str, str], *, failure: Failure
    ) -> None:
        """`versions` are the old and the new one; `failure` is that of the command with the new."""
        self._upgrade = upgrade
        self._code = code
        self._old, self._new = versions
        self._failure = failure

    def differences(self, pairs: Sequence[Pair]) -> Differences:
        """Returns what is gone or changed in the answers, by route."""
        differences = Differences()
        routes: defaultdict[str, list[Pair]] = defaultdict(list)
        errors: defaultdict[str, list[Pair]] = defaultdict(list)
        for pair in pairs:
            if pair.succeeds:
                routes[pair.old.route].append(pair)
            elif not pair.old.is_success and not pair.new.is_success:
                errors[pair.old.route].append(pair)
        for route, of_route in routes.items():
            explained = self._explained(of_route)
            self._add_gone(route, of_route, explained, differences=differences)
            self._add_constants(route, of_route, differences)
            self._add_order(route, of_route, differences)
            self._add_headers(route, of_route, differences)
            self._add_metrics(of_route, differences)
            self._add_rest(route, explained, differences)
            self._add_new(route, of_route, differences)
        for route, of_route in errors.items():
            self._add_gone_of_errors(route, of_route, differences)
            self._add_words(route, of_route, differences)
        return differences

    def _explained(self, pairs: Iterable[Pair]) -> list[OlderAnswer]:
        """Returns the changes that concern the answers."""
        examples: dict[frozenset[str], Traffic] = {}
        for pair in pairs:
            fields = frozenset(path for path, leaf in leaves_of(pair.old.events) if has_value(leaf))
            if len(examples) < MAX_EXPLAINED:
                examples.setdefault(fields, pair.new)
        explained: list[OlderAnswer] = []
        for traffic in examples.values():
            explained += self._upgrade.older_answers(traffic)
        return explained

    def _add_gone(
        self,
        route: str,
        pairs: Sequence[Pair],
        explained: list[OlderAnswer],
        *,
        differences: Differences,
    ) -> None:
        """Adds values that only the old version sends."""
        old = Paths.in_answers(pair.old for pair in pairs)
        new = Paths.in_answers(pair.new for pair in pairs)
        for name, paths in _gone_names(old, new, has_failed=bool(self._failure)).items():
            cause = _cause(paths, explained)
            reason = self._reason(route, name, cause)
            if cause is not None:
                explained[:] = [answer for answer in explained if answer.change != cause.change]
            twin = _twin(paths[0], old, new, cause)
            is_other_type = any(path.removesuffix("[]") in new.present for path in paths)
            event = paths[0].rpartition(" $")[0]
            where = f"the `{event}` events of {route}" if event else f"the answers of {route}"
            message = f"`{name}` is gone from {where}"
            if is_other_type and _is_replaced(paths[0], new):
                message = f"`{name}` has another type in {where}"
            elif is_other_type:
                message = f"`{name}` has no value any more in {where}"
            place = self._place(name)
            if twin:
                place = self._code.unrepaired_place(name, twin)
            file, line = place_of(place, route)
            item = Item(
                kind="answer field",
                file=file,
                line=line,
                message=message,
                why=reason,
                fix=f"read `{twin}`, which has the same value" if twin else "",
            )
            is_repaired = bool(twin) and self._reads(name, twin)
            breaks = self._breaks(item) and not is_repaired
            differences.add(item, breaks=breaks or self._failure.quotes(name))

    def _add_gone_of_errors(
        self, route: str, pairs: Sequence[Pair], differences: Differences
    ) -> None:
        """Adds values that only errors of the old version have."""
        old = Paths.in_answers(pair.old for pair in pairs)
        new = Paths.in_answers(pair.new for pair in pairs)
        for name in _gone_names(old, new, has_failed=bool(self._failure)):
            file, line = place_of(self._place(name), route)
            item = Item(
                kind="answer field",
                file=file,
                line=line,
                message=f"`{name}` is gone from the errors of {route}",
                why=self._reason(route, name, None),
            )
            # Code that names it may read another answer: errors share names such as `message`.
            is_read = not self._code and bool(item.why or name == MESSAGE)
            differences.add(item, breaks=is_read or self._failure.quotes(name))

    def _add_words(self, route: str, pairs: Sequence[Pair], differences: Differences) -> None:
        """Adds errors that have other words, which some clients search."""
        for pair in pairs:
            old, new = (error_message(traffic.body) for traffic in pair)
            if without_numbers(old) == without_numbers(new):
                continue
            changes = [reason_of(*change) for change in self._upgrade.older_words(*pair)]
            why = " ".join(changes)
            places = map(self._place, QUOTED.findall(why))
            file, line = place_of(next(filter(None, places), None), route)
            message = f"an error of {route} says `{error_text(new)[:MAX_WORDS_LENGTH]}`"
            message += f" instead of `{error_text(old)[:MAX_WORDS_LENGTH]}`"
            item = Item(kind="behavior", file=file, line=line, message=message, why=why)
            differences.add(item, breaks=False)

    def _place(self, name: str) -> Place | None:
        """Returns where the code names a field, in the lines of a failure if they do."""
        return self._failure.place(name, self._code) or self._code.place(name)

    def _reads(self, name: str, twin: str) -> bool:
        """Returns whether the code is repaired: no file names the old field without the new one."""
        return bool(self._code) and self._code.unrepaired_place(name, twin) is None

    def _breaks(self, item: Item) -> bool:
        """Returns whether a difference concerns the client, as far as its code shows it."""
        return bool(item.why) and (item.line > 0 or not self._code)

    def _reason(self, route: str, name: str, cause: OlderAnswer | None) -> str:
        change = cause.change if cause is not None else None
        if change is None:
            change = self._upgrade.naming(route.partition(" ")[2], [name])
        if change is not None:
            return reason_of(*change)
        return removal_of(name, self._old, self._new)

    def _add_constants(self, route: str, pairs: Sequence[Pair], differences: Differences) -> None:
        """Adds constants of the protocol that only the old version sends."""
        values: dict[str, tuple[set[str], set[str]]] = {}
        for pair in pairs:
            for number, traffic in enumerate(pair):
                for path, leaf in leaves_of(traffic.events):
                    if name_of(path) in CONSTANTS and isinstance(leaf, str):
                        values.setdefault(path, (set(), set()))[number].add(leaf)
        for path, (old, new) in values.items():
            if not old - new or not new - old:
                continue
            name = name_of(path)
            gone = listed(sorted(old - new)[:MAX_NAMES])
            new_values = listed(sorted(new - old)[:MAX_NAMES])
            change = self._upgrade.naming(
                route.partition(" ")[2], sorted((old - new) | (new - old))
            )
            places = map(self._place, sorted(old - new))
            place = next((place for place in places if place is not None), None)
            file, line = place_of(place, route)
            item = Item(
                kind="answer field",
                file=file,
                line=line,
                message=f"`{name}` is {new_values} instead of {gone}",
                why=reason_of(*change) if change is not None else "",
            )
            differences.add(item, breaks=any(map(self._failure.quotes, old ^ new)))

    def _add_order(self, route: str, pairs: Sequence[Pair], differences: Differences) -> None:
        """Adds streams whose events have other names, or another order."""
        for pair in pairs:
            if not (pair.old.is_stream and pair.new.is_stream):
                continue
            old = _order_of(pair.old.events)
            new = _order_of(pair.new.events)
            if old == new:
                continue
            names = {event.name for event in pair.old.events if event.name}
            gone = [name for name in dict.fromkeys(old) if name in names and name not in new]
            places = [self._place(name) for name in gone]
            place = next((place for place in places if place is not None), None)
            change = self._upgrade.naming(pair.new.path, [*gone, *new])
            file, line = place_of(place, route)
            message = f"the events of a stream have another order: {_differing(old, new)}"
            if gone:
                message = f"streams of {route} have no {listed(gone[:MAX_NAMES])} any more"
            item = Item(
                kind="stream",
                file=file,
                line=line,
                message=message,
                why=reason_of(*change) if change is not None else "",
            )
            is_quoted = any(map(self._failure.quotes, gone))
            differences.add(item, breaks=is_quoted or (bool(gone) and self._breaks(item)))
            return

    def _add_headers(self, route: str, pairs: Sequence[Pair], differences: Differences) -> None:
        """Adds the headers that only the old version sends."""
        old, new = (_header_names(pair[number] for pair in pairs) for number in (0, 1))
        for name in sorted(old - new):
            spellings = (name, name.title())
            places = [self._failure.place(spelling, self._code) for spelling in spellings]
            has_failed = any(places) or any(map(self._failure.quotes, spellings))
            places += [self._code.place(spelling) for spelling in spellings]
            file, line = place_of(next(filter(None, places), None), route)
            option = HEADER_OPTIONS.get(name, "")
            item = Item(
                kind="behavior",
                file=file,
                line=line,
                message=f"the header {name} is gone from the answers of {route}",
                why=self._changed_default(option),
                fix=f"start the server with {option}" if option else "",
            )
            differences.add(item, breaks=has_failed or self._breaks(item))

    def _changed_default(self, option: str) -> str:
        """Returns which release changed the default of an option; empty if none did."""
        if not option:
            return ""
        lifetime = read_history().options.get(option)
        changed = lifetime and lifetime.changed_default(self._old, self._new)
        if not changed:
            return ""
        since, before, after = changed
        return f"{option} is {after or 'not set'} by default since vLLM {since}, and was {before}."

    def _add_metrics(self, pairs: Sequence[Pair], differences: Differences) -> None:
        """Adds the metrics that the command has read, and that are gone."""
        families: tuple[set[str], set[str]] = set(), set()
        for pair in pairs:
            for names, traffic in zip(families, pair, strict=True):
                names |= _families_of(traffic)
        gone = sorted(families[0] - families[1])
        named = [name for name in gone if self._code.place(name) is not None]
        for name in named:
            file, line = place_of(self._code.place(name), "")
            message = f"vLLM {self._new} has no metric {name}"
            differences.add(Item(kind="metric", file=file, line=line, message=message), breaks=True)
        others = [name for name in gone if name not in named]
        if others:
            verb = "is" if len(others) == 1 else "are"
            message = f"{counted(len(others), 'metric')} {verb} gone: {', '.join(others)}"
            item = Item(kind="metric", file=pairs[0].old.route, message=message)
            differences.add(item, breaks=not self._code)

    def _add_rest(
        self, route: str, explained: Iterable[OlderAnswer], differences: Differences
    ) -> None:
        """Adds the changes that concern the answers, and take away no value.

        They break the client if its failure quotes a name of the change.
        """
        for answer in explained:
            text = reason_of(*answer.change)
            quoted = [name for name in QUOTED_NAME.findall(text) if self._failure.quotes(name)]
            places = map(self._place, quoted)
            place = next((place for place in places if place is not None), None)
            file, line = place_of(place, route)
            item = Item(kind="behavior", file=file, line=line, message=text)
            differences.add(item, breaks=bool(quoted))

    def _add_new(self, route: str, pairs: Sequence[Pair], differences: Differences) -> None:
        old = Paths.in_answers(pair.old for pair in pairs).present
        new = Paths.in_answers(pair.new for pair in pairs).present
        names = sorted({name_of(path) for path in new - old})
        if names:
            shown = listed(names[:MAX_NAMES])
            further = f" and {len(names) - MAX_NAMES} more" if len(names) > MAX_NAMES else ""
            message = f"answers have new fields: {shown}{further}"
            item = Item(kind="answer field", file=route, message=message)
            differences.add(item, breaks=any(map(self._failure.quotes, names)))


def _header_names(answers: Iterable[Traffic]) -> set[str]:
    names: set[str] = set()
    for answer in answers:
        names.update(name.lower() for name, _ in answer.exchange.answer.headers)
    return names - UNCOMPARED_HEADERS


def _gone_names(old: Paths, new: Paths, *, has_failed: bool) -> dict[str, list[str]]:
    """Returns the names of values that are gone, with their paths.

    A client can also need an empty list, or null: its failure makes these count.
    """
    gone = [path for path in old.values if path not in new.values]
    if has_failed:
        gone += sorted(old.present - new.present - {*gone})
    names: dict[str, list[str]] = {}
    for path in gone:
        names.setdefault(name_of(_gone_part(path, new)), []).append(path)
    return names


def _gone_part(path: str, new: Paths) -> str:
    """Returns the largest object of a path that is gone; the path itself if only its value is."""
    gone = [prefix for prefix in prefixes_of(path) if prefix not in new.present]
    return gone[-1] if gone else path


def _is_replaced(path: str, new: Paths) -> bool:
    """Returns whether there are other values below or above a path."""
    return any(other.startswith((f"{path}.", f"{path}[")) for other in new.values)


def _cause(paths: Sequence[str], explained: Iterable[OlderAnswer]) -> OlderAnswer | None:
    """Returns the change without which an answer has a value at one of the paths."""
    for answer in explained:
        newer = dict(leaves_of(answer.newer))
        older = dict(leaves_of(answer.older))
        if any(path in older and path not in newer for path in paths):
            return answer
    return None


def _twin(path: str, old: Paths, new: Paths, cause: OlderAnswer | None) -> str:
    """Returns the field of the same object that has the value in the new version; empty for none.

    An older version sends the value beside the field, or the change of the release copies it.
    """
    sources = [old.values]
    if cause is not None:
        sources.insert(0, dict(leaves_of(cause.older)))
    parent = path.rpartition(".")[0]
    for values in sources:
        value = values.get(path)
        if not isinstance(value, str):
            continue
        for other in new.values:
            is_sibling = other != path and other.rpartition(".")[0] == parent
            if is_sibling and values.get(other) == value:
                return name_of(other)
    return ""


def _order_of(events: Iterable[Event]) -> list[str]:
    """Returns the kinds of the events of a stream, without repetitions.

    The kind of an event without a name is that of the fields of its delta that have a value.
    """
    order: list[str] = []
    for event in events:
        for kind in _kinds_of(event):
            if kind not in order[-1:]:
                order.append(kind)
    return order


def _kinds_of(event: Event) -> Iterator[str]:
    if event.name or not isinstance(event.data, dict):
        yield event.name
        return
    choices = event.data.get("choices")
    for choice in choices if isinstance(choices, list) else ():
        delta = choice.get("delta") if isinstance(choice, dict) else None
        if isinstance(delta, dict):
            for name, value in delta.items():
                if has_value(value):
                    yield name
            if choice.get("finish_reason"):
                yield "finish_reason"


def _differing(old: Sequence[str], new: Sequence[str]) -> str:
    """Returns the kinds of both orders, after those that are equal."""
    start = 0
    while start < min(len(old), len(new)) and old[start] == new[start]:
        start += 1
    old_kinds = ", ".join(old[start : start + MAX_NAMES]) or "the end"
    new_kinds = ", ".join(new[start : start + MAX_NAMES]) or "the end"
    return f"{new_kinds} instead of {old_kinds}"


def _families_of(traffic: Traffic) -> set[str]:
    """Returns the metrics of an answer in the text format of Prometheus."""
    if not traffic.body.startswith(b"# HELP"):
        return set()
    answer = traffic.exchange.answer
    shape = shapes_of(ReceivedAnswer(answer.status, answer.headers, traffic.body))[1]
    return {line.split(" ")[1] for line in shape if line.startswith(FAMILY)}
