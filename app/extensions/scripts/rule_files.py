"""The script files of a server: read at the start, and again when they change."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import gevent
from msgspec import to_builtins

from app.core.base.clock.pause import call_off_hub
from app.extensions.scripts.reachability import unreachable
from app.extensions.scripts.rules import Script, ScriptError
from app.extensions.scripts.script_file import (
    FileRules,
    RuleContext,
    RuleState,
    ScriptFile,
    stamp_of,
)

log = logging.getLogger(__name__)
CHECK_INTERVAL_S = 1.0
"""Seconds between checks of the files for changes."""
MAX_LISTED_RULES = 20
"""Most rules that a message lists."""


class RuleFiles:
    """Reads script files, and reloads them when they change. A file for no model is for all."""

    def __init__(
        self,
        files: Sequence[tuple[str, str]],
        context: RuleContext,
        earlier_scripts: Mapping[str, Script],
        on_change: Callable[[], None],
    ) -> None:
        """Reads the files: pairs of a model, which may be empty, and a path.

        `earlier_scripts` are scripts that the arbiter has read, by their paths. `on_change` is
        called in a greenlet after rules have changed.

        Raises:
            ScriptError: A file is invalid, and was not read before.
        """
        self._context = context
        self._on_change = on_change
        self._watch: gevent.Greenlet | None = None
        self.files = [ScriptFile(model, path, context.rng) for model, path in files]
        for file in self.files:
            self._read_first(file, earlier_scripts.get(file.path))

    def __iter__(self) -> Iterator[ScriptFile]:
        return iter(self.files)

    def states(self) -> list[RuleState]:
        """Returns the rules of all files."""
        return [state for file in self.files for state in file.rules]

    def _read_first(self, file: ScriptFile, earlier: Script | None) -> None:
        """Uses the rules of a file.

        A worker that replaces a crashed one must start, even if the file has become invalid: it
        uses the rules that the arbiter has read.

        Raises:
            ScriptError: The file is invalid, and the arbiter has not read it.
        """
        try:
            self._use(file, *self._read(file))
        except ScriptError as error:
            if earlier is None:
                raise
            log.error("%s; using the rules from server startup", error)
            file.use(file.compile(earlier, self._context))
            file.error = str(error)

    def _read(self, file: ScriptFile) -> tuple[FileRules, list[str]]:
        """Returns the rules of a file, and warnings."""
        file_rules = file.read(self._context)
        warnings = []
        if file_rules.unchecked:
            warnings.append(
                f"script {file.path}: the tool calls of {_list_rules(file_rules.unchecked)} are "
                "checked only when requests offer the tools; add their schemas under `tools` to "
                "check them now"
            )
        flaw = unreachable(file_rules.rules, file_rules.rules)
        if flaw:
            warnings.append(flaw)
        return file_rules, warnings

    def _use(self, file: ScriptFile, file_rules: FileRules, warnings: Iterable[str]) -> None:
        for warning in warnings:
            log.warning("%s", warning)
        file.use(file_rules)

    def refresh(self) -> None:
        """Reloads changed files, and calls `on_change` before any request sees their rules.

        Compiles in a native thread. Logs errors, and keeps the old rules of an invalid file.
        """
        # Compiling many regexes takes longer than a turn of the event loop.
        changes, errors = call_off_hub(self._read_changes)
        for error in errors:
            log.error("%s; keeping the old rules", error)
        if changes:
            for file, file_rules, warnings in changes:
                self._use(file, file_rules, warnings)
                log.info("script %s: reloaded %d rules", file.path, len(file.rules))
            self._on_change()

    def _read_changes(
        self,
    ) -> tuple[list[tuple[ScriptFile, FileRules, list[str]]], list[ScriptError]]:
        """Runs in a native thread, where a log line could wait for the hub's lock forever."""
        changes = []
        errors = []
        for file in self.files:
            if file.stamp == stamp_of(file.path):
                continue
            try:
                changes.append((file, *self._read(file)))
            except ScriptError as error:
                errors.append(error)
        return changes, errors

    def start(self) -> None:
        """Starts to reload changed files, until `close`."""
        self._watch = gevent.spawn(self._watch_files)

    def _watch_files(self) -> None:
        while True:
            gevent.sleep(CHECK_INTERVAL_S)
            try:
                self.refresh()
            except Exception:  # an invalid file must not stop the watch
                log.exception("cannot reload scripts")

    def close(self) -> None:
        """Stops watching, and logs the rules that never answered."""
        if self._watch is not None:
            self._watch.kill(block=False)
        for line in self.unused():
            log.warning("%s", line)

    def restart(self) -> None:
        """Resets the counters of all rules."""
        for state in self.states():
            state.restart(self._context.now())

    def report(self) -> list[dict[str, object]]:
        """Returns the counts of each rule of each file."""
        return [
            {
                "path": file.path,
                "model": file.model or None,
                "error": file.error,
                "rules": [
                    {"rule": state.number, "name": state.rule.name, **to_builtins(state.counts)}
                    for state in file.rules
                ],
            }
            for file in self.files
        ]

    def unused(self) -> Iterator[str]:
        """Yields a line for each file with rules that never answered."""
        for file in self.files:
            unused_rules = [state for state in file.rules if not state.counts.answered]
            if unused_rules:
                share = f"{len(unused_rules)} of {len(file.rules)} rules never answered"
                yield f"script {file.path}: {share}: {_list_rules(unused_rules)}"


def _list_rules(rules: Sequence[RuleState]) -> str:
    labels: list[str] = []
    for state in rules[:MAX_LISTED_RULES]:
        label = f"rule {state.number}"
        if state.rule.name:
            label += f" ({state.rule.name})"
        labels.append(label)
    listed = ", ".join(labels)
    if len(rules) > MAX_LISTED_RULES:
        listed += " and others"
    return listed
