"""Compares how both versions treat the client's requests: the silent breaks first."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from app.core.base.error_body import error_fields, error_message
from vllm_facts.names import read_names
from vllm_facts.version_order import ends_between
from workbench.rehearse.client_code import ClientCode
from workbench.rehearse.items import Differences, Item, counted, listed, place_of, reason_of
from workbench.rehearse.runs import Run
from workbench.rehearse.traffic import Pair, Traffic
from workbench.rehearse.undo import EditedRequest, Upgrade

MAX_ERROR_LENGTH = 300


class RequestComparison:
    """Compares how both versions read the requests of the client."""

    def __init__(self, upgrade: Upgrade, code: ClientCode, old: Run, new: Run) -> None:
        self._upgrade = upgrade
        self._code = code
        self._old = old
        self._new = new

    def differences(self, pairs: Sequence[Pair]) -> Differences:
        """Returns the ignored fields, the requests that fail, and other readings."""
        differences = Differences()
        self._add_ignored(pairs, differences)
        self._add_failures(pairs, differences)
        self._add_readings(pairs, differences)
        return differences

    def _add_ignored(self, pairs: Sequence[Pair], differences: Differences) -> None:
        """Adds the fields that only the old version reads."""
        for path, names in self._new.ignored.items():
            lost = names - self._old.ignored.get(path, frozenset())
            for name, senders in _senders(pairs, path, lost).items():
                edits = list(self._edits_without(senders, name))
                has_replacement = _sends_replacement(edits)
                key = name.rpartition(".")[2]
                reason = self._reason(path, key, edits)
                file, line = place_of(self._code.place(key), senders[0].route)
                message = f"vLLM {self._new.version} ignores the field `{name}` of "
                message += f"{counted(len(senders), 'request')} without an error"
                fix = _advice(edits[0]) if edits else f"remove `{name}`; it has no effect any more"
                item = Item(
                    kind="request field", file=file, line=line, message=message, why=reason, fix=fix
                )
                # Without a reason, the field is one that no version declares for all its requests.
                differences.add(item, breaks=bool(reason) and not has_replacement)

    def _edits_without(self, senders: Iterable[Traffic], name: str) -> Iterator[EditedRequest]:
        """Yields what the old version reads instead of a field."""
        for traffic in senders:
            for edit in self._upgrade.edited_requests(traffic):
                if name in edit.sent and name not in edit.read:
                    yield edit

    def _reason(self, path: str, name: str, edits: Sequence[EditedRequest]) -> str:
        if edits:
            return reason_of(*edits[0].change)
        change = self._upgrade.naming(path, [name])
        if change is not None:
            return reason_of(*change)
        return removal_of(name, self._old.version, self._new.version)

    def _add_failures(self, pairs: Sequence[Pair], differences: Differences) -> None:
        """Adds requests that the old version answers, and the new one rejects."""
        groups: defaultdict[tuple[str, str], list[Pair]] = defaultdict(list)
        for pair in pairs:
            if pair.old.is_success and not pair.new.is_success:
                groups[pair.new.route, error_message(pair.new.body)].append(pair)
            elif not pair.old.is_success and pair.new.status != pair.old.status:
                differences.add(self._other_status(pair), breaks=False)
        for (route, error), failures in groups.items():
            pair = failures[0]
            fields = self._fields_of_error(pair.new)
            edits = self._edits_of(pair.old, fields)
            message = f"vLLM {self._new.version} answers {pair.new.status} instead of "
            message += f"{pair.old.status} to {counted(len(failures), 'request')}: "
            message += error_text(error)
            change = edits[0].change if edits else self._upgrade.naming(pair.new.path, fields)
            places = [self._code.place(field) for field in fields]
            place = next((place for place in places if place is not None), None)
            file, line = place_of(place, route)
            item = Item(
                kind="request",
                file=file,
                line=line,
                message=message if line == 0 else f"{route}: {message}",
                why=reason_of(*change) if change is not None else "",
                fix=_advice(edits[0]) if edits else "",
            )
            differences.add(item, breaks=True)

    def _edits_of(self, traffic: Traffic, fields: Sequence[str]) -> list[EditedRequest]:
        """Returns what the old version reads instead, of the rejected fields if it does so."""
        edits = list(self._upgrade.edited_requests(traffic))
        rejected = [
            edit
            for edit in edits
            if any(edit.sent.get(name) != edit.read.get(name) for name in fields)
        ]
        return rejected or edits

    def _fields_of_error(self, traffic: Traffic) -> list[str]:
        """Returns the fields of the request that an error names."""
        param = error_fields(traffic.body).get("param")
        if not isinstance(param, str) or not isinstance(traffic.request, dict):
            return []
        return [name for name in param.replace("[", ".").split(".") if name in traffic.request]

    def _other_status(self, pair: Pair) -> Item:
        message = f"an error has the status {pair.new.status} instead of {pair.old.status}"
        if pair.new.is_success:
            message = f"a request that failed with {pair.old.status} gets an answer"
        return Item(kind="request", file=pair.new.route, message=message)

    def _add_readings(self, pairs: Sequence[Pair], differences: Differences) -> None:
        """Adds the fields whose meaning changed, beside those that are ignored now."""
        for pair in pairs:
            if not pair.succeeds:
                continue
            for edit in self._upgrade.edited_requests(pair.old):
                lost = edit.sent.keys() - edit.read.keys()
                if lost & self._new.ignored.get(pair.new.path, frozenset()):
                    continue
                names = sorted({*lost, *_changed(edit)})
                item = Item(
                    kind="behavior",
                    file=pair.new.route,
                    message=f"{listed(names)} has another effect",
                    why=reason_of(*edit.change),
                )
                differences.add(item, breaks=False)


def error_text(error: str) -> str:
    """Returns the message of an error as one line."""
    return " ".join(error.split())[:MAX_ERROR_LENGTH] or "without a message"


def error_of(answer: Traffic) -> str:
    """Returns the status of an error, with its message."""
    return f"{answer.status} {error_text(error_message(answer.body))}"


def removal_of(name: str, old: str, new: str) -> str:
    """Returns which release removed a field from its classes; empty if the history lacks it."""
    releases = ends_between(read_names(), name, old, new)
    return f"vLLM {releases[0]} removed `{name}`." if releases else ""


def _senders(pairs: Iterable[Pair], path: str, names: Iterable[str]) -> Mapping[str, list[Traffic]]:
    """Returns the requests of the old run with each of the fields that both versions answer."""
    senders: defaultdict[str, list[Traffic]] = defaultdict(list)
    for pair in pairs:
        if pair.old.path != path or not pair.succeeds:
            continue
        for name in names:
            if _has(pair.old.request, name.split(".")):
                senders[name].append(pair.old)
    return dict(sorted(senders.items()))


def _has(value: Any, names: Sequence[str]) -> bool:
    """Returns whether a request has a field with a value at a path such as `tools[].strict`."""
    if not names:
        return value is not None
    name = names[0].removesuffix("[]")
    if not isinstance(value, dict) or value.get(name) is None:
        return False
    member = value[name]
    if names[0].endswith("[]") and isinstance(member, list):
        return any(_has(item, names[1:]) for item in member)
    return _has(member, names[1:])


def _sends_replacement(edits: Sequence[EditedRequest]) -> bool:
    """Returns whether the requests have what replaces a field, too.

    Then the old version only drops the field, and moves its value nowhere.
    """
    return bool(edits) and not any(name for edit in edits for name in _changed(edit))


def _changed(edit: EditedRequest) -> Iterator[str]:
    for name, value in edit.read.items():
        if name not in edit.sent or edit.sent[name] != value:
            yield name


def _advice(edit: EditedRequest) -> str:
    """Returns how to change a request so that the new version does what the old one does."""
    removed = sorted(edit.sent.keys() - edit.read.keys())
    added = []
    for name in sorted(_changed(edit)):
        value = edit.read[name]
        members = [f"{name}.{key}" for key in value] if isinstance(value, dict) else [name]
        added += members
    if removed and added:
        return f"send {listed(added)} instead of {listed(removed)}"
    if removed:
        return f"remove {listed(removed)}"
    return f"change {listed(added)} to a value that the new version accepts"
