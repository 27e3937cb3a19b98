"""Rules and settings of run time, kept for the next worker of a rank.

The arbiter opens an unlinked file for each rank, which its workers inherit. A worker appends each
change, and a worker that replaces a crashed one reads the changes. A reload of the settings opens
new files. Start reading at `KeptChanges`.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence, Set
from dataclasses import dataclass, field
from typing import TypeAlias, cast

import msgspec

from config.untrusted import UntrustedDataError, decode_untrusted

log = logging.getLogger(__name__)
MAX_FILE_BYTES = 8 << 20
"""Size above which a file is written anew with the rules in force."""
Record: TypeAlias = dict[str, object]


@dataclass
class EarlierChanges:
    """The changes that an earlier worker has left."""

    rules: dict[int, Record] = field(default_factory=dict)
    """The rules in force by their ids, in order."""
    last_id: int = 0
    """The highest id of all rules so far, which a new rule must not reuse."""
    settings: Record = field(default_factory=dict)
    """Live settings that were changed."""


class KeptChanges:
    """The file of this worker's rank: a JSON record in each line."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._end = os.fstat(descriptor).st_size
        self._has_failed = False
        self.earlier = self._load()
        self._settings = dict(self.earlier.settings)
        self._last_id = self.earlier.last_id

    @property
    def is_too_large(self) -> bool:
        """True when the file should be written anew."""
        return self._end > MAX_FILE_BYTES

    def _load(self) -> EarlierChanges:
        earlier = EarlierChanges()
        for line in os.pread(self._descriptor, self._end, 0).splitlines():
            try:
                record = decode_untrusted(line, type=dict[str, object])
            except UntrustedDataError:  # the earlier worker was killed while it wrote
                continue
            _apply(record, earlier)
        return earlier

    def append(self, *records: Record) -> None:
        """Adds records. A full disk is logged once, and nothing is kept then."""
        data = b"".join(msgspec.json.encode(record) + b"\n" for record in records)
        self._write(data)

    def keep_rules(self, old_ids: Set[int], rules: Sequence[Record]) -> None:
        """Keeps the rules in force after a change; `old_ids` were in force before."""
        new_ids = {cast(int, rule["id"]) for rule in rules}
        self._last_id = max(self._last_id, *new_ids, *old_ids, 0)
        # Rules are restored in the order of the records, so a rule in between needs a new file.
        appended = [rule for rule in rules if rule["id"] not in old_ids]
        is_appended = list(rules[len(rules) - len(appended) :]) == appended
        if not rules or self.is_too_large or not is_appended:
            self.rewrite(rules)
            return
        removed: Record = {"removed": sorted(old_ids - new_ids)}
        records: list[Record] = [{"rule": rule} for rule in appended]
        self.append(removed, *records)

    def rewrite(self, rules: Sequence[Record]) -> None:
        """Replaces all records by these rules, and the settings."""
        os.ftruncate(self._descriptor, 0)
        self._end = 0
        records: list[Record] = [{"rule": rule} for rule in rules]
        self.append({"settings": self._settings, "last_id": self._last_id}, *records)

    def keep_settings(self, settings: Record) -> None:
        """Keeps the changed live settings, where they differ from the last call's."""
        if settings != self._settings:
            self._settings = settings
            self.append({"settings": settings})

    def _write(self, data: bytes) -> None:
        if self._has_failed:
            return
        try:
            self._end += os.pwrite(self._descriptor, data, self._end)
        except OSError as error:
            self._has_failed = True
            log.warning("rules will be lost when this worker restarts: %s", error)


def _apply(record: Record, earlier: EarlierChanges) -> None:
    """Applies a change."""
    rule = record.get("rule")
    if isinstance(rule, dict):
        earlier.rules[rule["id"]] = rule
        earlier.last_id = max(earlier.last_id, rule["id"])
    last_id = record.get("last_id")
    if isinstance(last_id, int):
        earlier.last_id = max(earlier.last_id, last_id)
    removed = record.get("removed")
    if isinstance(removed, list):
        for rule_id in removed:
            earlier.rules.pop(rule_id, None)
    used = record.get("used")
    if isinstance(used, list) and used[0] in earlier.rules:
        earlier.rules[used[0]]["uses"] = used[1]
    settings = record.get("settings")
    if isinstance(settings, dict):
        earlier.settings = settings
