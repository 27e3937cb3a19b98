"""The scripts of a server: picks the rule for a request and counts each rule's answers.

Files are read at start, and again when they change.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import count
from pathlib import Path
from random import Random
from typing import NamedTuple, TypedDict, cast

import gevent

from app.base.clock.pause import call_off_hub
from app.engine.forms.schema import SchemaError, Schemas
from app.engine.forms.schema.document import JSON
from app.serving.faults.fault import Fault
from app.serving.scripts.action import Accepts, Answer
from app.serving.scripts.matching import Request, TooSlow
from app.serving.scripts.reading import place, read_script
from app.serving.scripts.rule_state import Counters, RuleInput, RuleState
from app.serving.scripts.rules import Script, ScriptError, ScriptFailure
from config.declaration import ConfigError
from config.sections.reply import ScriptSettings

log = logging.getLogger(__name__)
Stamp = tuple[int, int, int]
"""Modification time in nanoseconds, size in bytes and inode of a file."""
LOOKS_S = 1.0
"""Seconds between checks of the files for changes."""


class Decision(NamedTuple):
    """A decision about a request: an answer, a fault, or both."""

    rule: RuleState
    answer: Answer | None
    fault: Fault | None


class RuleReport(TypedDict):
    """A rule in the body of GET /admin/script."""

    rule: int
    name: str
    answered: int
    failed: int
    too_slow: int
    unoffered: int
    """Matching requests that did not offer a tool that the rule calls."""


class FileReport(TypedDict):
    """A file in the body of GET /admin/script.

    `model` null: the file serves all models. `error`: why its newest version is not used.
    """

    path: str
    model: str | None
    error: str | None
    rules: list[RuleReport]


class ScriptReport(TypedDict):
    """The body of GET /admin/script; `unanswered` counts prompts that no rule has answered."""

    files: list[FileReport]
    unanswered: int


class ScriptFile:
    """A script file and its compiled rules; made by `ScriptBook`."""

    def __init__(self, model: str, path: str, rng: Random) -> None:
        self.model = model
        self.path = path
        self.rng = self._others = rng
        self.rules: Sequence[RuleState] = ()
        self.stamp: Stamp | None = None
        self.error = ""

    def load(self, uids: Iterator[int], now_s: float, accepts: Accepts) -> str:
        """Reads the file and returns a warning; empty without one. Unchanged rules keep their counters.

        ScriptError: the old rules stay.
        """
        stamp = stamp_of(self.path)
        try:
            script = read_script(self.path)
            rules = self._compiled(script, uids, now_s)
            check_calls(rules, script, accepts, self.path)
        except ScriptError as error:
            self.error = str(error)
            raise
        finally:
            self.stamp = stamp
        for number, rule in enumerate(rules, 1):
            rule.move(self.path, number)
        self.rules, self.error = rules, ""
        self.rng = self._others if script.seed is None else Random(f"script {script.seed}")
        return unchecked_calls(rules, script, self.path)

    def _compiled(self, script: Script, uids: Iterator[int], now_s: float) -> list[RuleState]:
        known: dict[str, list[RuleState]] = {}
        for each in reversed(self.rules):
            known.setdefault(repr(each.rule), []).append(each)
        rules: list[RuleState] = []
        for number, rule in enumerate(script.rules, 1):
            same = known.get(repr(rule))
            rules.append(same.pop() if same else RuleState(self.path, number, rule, next(uids), now_s))
        return rules


class ScriptBook:
    """All scripts of a server. `now` returns monotonic seconds, `unix` Unix seconds."""

    def __init__(
        self,
        files: Sequence[tuple[str, str]],
        rng: Random,
        now: Callable[[], float],
        unix: Callable[[], float],
        accepts: Accepts,
    ) -> None:
        """`files` lists model (empty for all) and path, in the order of evaluation.

        ScriptError, with one line, for an invalid file.
        """
        self._now = now
        self._unix = unix
        self._accepts = accepts
        self._uids = count()
        self.counters = Counters()
        self.unanswered = 0
        self.files = [ScriptFile(model, path, rng) for model, path in files]
        for file in self.files:
            self._load(file)

    def _load(self, file: ScriptFile) -> None:
        if warning := file.load(self._uids, self._now(), self._accepts):
            log.warning("%s", warning)

    @property
    def rules(self) -> int:
        return sum(len(file.rules) for file in self.files)

    def decide(self, request: Request, own: Random | None = None) -> Decision | None:
        """Returns the decision of the first matching rule; None without a match. Pauses through
        `request.breathe`.

        `own` draws the random values of a request with a seed or greedy decoding. ScriptFailure when the rule
        cannot answer.
        """
        for file in self.files:
            if file.model not in ("", request.model):
                continue
            for rule in file.rules:
                decision = self._asked(rule, request, own or file.rng)
                if decision is not None:
                    return decision
                request.breathe()
        self.unanswered += 1
        return None

    def _asked(self, rule: RuleState, request: Request, rng: Random) -> Decision | None:
        try:
            groups = rule.groups_of(request, rng, self.counters)
        except TooSlow as error:
            if not rule.slow:
                log.warning(
                    "%s: the regex %.60r takes too long, the rule is passed over", rule.place, str(error)
                )
            rule.slow += 1
            return None
        if groups is None:
            return None
        given = RuleInput(rng, self._now(), self._unix(), self._accepts)
        fault = rule.fault(request, given)
        if rule.only_fails:
            if fault is None:
                return None
            rule.answered += 1
            return Decision(rule, None, fault)
        try:
            answer = rule.answer(request, groups, given)
        except (ScriptFailure, ScriptError) as error:
            if not rule.failed:
                log.warning("%s: %s", rule.place, error)
            rule.failed += 1
            raise ScriptFailure(f"{rule.place}: {error}") from None
        rule.answered += 1
        return Decision(rule, answer, fault)

    def has_changed(self) -> bool:
        return any(file.stamp != stamp_of(file.path) for file in self.files)

    def refresh(self) -> None:
        """Reads changed files again. Logs errors, and keeps the old rules of an invalid file."""
        for file in self.files:
            if file.stamp == stamp_of(file.path):
                continue
            try:
                self._load(file)
            except ScriptError as error:
                log.error("%s; the rules of before stay", error)
            else:
                log.info("script %s: read again, %d rules", file.path, len(file.rules))

    def restart(self) -> None:
        self.counters.clear()
        self.unanswered = 0
        for file in self.files:
            for rule in file.rules:
                rule.restart(self._now())

    def report(self) -> ScriptReport:
        """Counts answers, failures and skips of each rule."""
        return {"files": [_file_report(file) for file in self.files], "unanswered": self.unanswered}

    def unused(self) -> Iterator[str]:
        """Yields a line for each file with rules that never answered."""
        for file in self.files:
            never = [_called(rule) for rule in file.rules if not rule.answered]
            if never:
                yield f"script {file.path}: {len(never)} of {len(file.rules)} rules never answered: " + (
                    ", ".join(never[:20]) + (" and others" if len(never) > 20 else "")
                )


def stamp_of(path: str) -> Stamp | None:
    """Returns the stamp of a file; None if the file cannot be read."""
    try:
        at = Path(path).stat()
    except OSError:
        return None
    return at.st_mtime_ns, at.st_size, at.st_ino


def check_calls(rules: Sequence[RuleState], script: Script, accepts: Accepts, path: str) -> None:
    """Raises ScriptError for the first call whose arguments break the script's schema of its tool."""
    for number, rule in enumerate(rules, 1):
        try:
            rule.action.check_calls(script.tools, accepts)
        except ScriptError as error:
            raise ScriptError(f"{place(path, number, rule.rule.name)}: {error}") from None


def unchecked_calls(rules: Sequence[RuleState], script: Script, path: str) -> str:
    """Returns a warning that names the rules with calls that no schema of the script checks; empty without
    any.
    """
    later = [_called(rule) for rule in rules if not script.tools.keys() >= set(rule.needed_tools)]
    if not later:
        return ""
    return (
        f"script {path}: the tool calls of {', '.join(later[:20])} are checked only when requests offer "
        "the tools; with their schemas under `tools` they are checked now"
    )


def _called(rule: RuleState) -> str:
    return f"rule {rule.number}" + (f" ({rule.rule.name})" if rule.rule.name else "")


def _file_report(file: ScriptFile) -> FileReport:
    rules: list[RuleReport] = [
        {
            "rule": rule.number,
            "name": rule.rule.name,
            "answered": rule.answered,
            "failed": rule.failed,
            "too_slow": rule.slow,
            "unoffered": rule.unoffered,
        }
        for rule in file.rules
    ]
    return {"path": file.path, "model": file.model or None, "error": file.error or None, "rules": rules}


def open_book(
    settings: ScriptSettings, schemas: Schemas, rng: Random, now: Callable[[], float]
) -> ScriptBook:
    """Opens the scripts of the settings. ConfigError for an invalid script."""
    try:
        return ScriptBook(settings.files, rng, now, time.time, accepting(schemas))
    except ScriptError as error:
        raise ConfigError(f"setting script: {error}") from None


def check_scripts(settings: ScriptSettings) -> None:
    """Raises ConfigError for the first invalid script. Logs no warnings; `open_book` does."""
    for _, path in settings.files:
        try:
            ScriptFile("", path, Random(0)).load(count(), 0.0, accepting(Schemas()))
        except ScriptError as error:
            raise ConfigError(f"setting script: {error}") from None


def accepting(schemas: Schemas) -> Accepts:
    """Returns a function that checks a value against a schema. The function raises ScriptError for an
    invalid schema.
    """

    def accepts(schema: object, value: object) -> bool:
        try:
            return schemas.compile(schema, lenient=True).accepts(cast(JSON, value))
        except SchemaError as error:
            raise ScriptError(f"a schema of a tool cannot be used: {error}") from None

    return accepts


class ScriptWatch:
    """Reads changed files again while the worker lives, and logs unused rules at its end."""

    def __init__(self, book: ScriptBook) -> None:
        self._book = book
        self._greenlet: gevent.Greenlet | None = None

    def start(self) -> None:
        self._greenlet = gevent.spawn(self._look)

    def close(self) -> None:
        """Stops watching, and logs the rules that never answered."""
        if self._greenlet is not None:
            self._greenlet.kill(block=False)
        for line in self._book.unused():
            log.warning("%s", line)

    def _look(self) -> None:
        while True:
            gevent.sleep(LOOKS_S)
            try:
                if self._book.has_changed():
                    call_off_hub(self._book.refresh)
            except Exception:  # an invalid file must not stop the watch
                log.exception("a script could not be read again")
