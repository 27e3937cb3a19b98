"""The book of a server: made of its settings once, and read again when a file changes."""

from __future__ import annotations

import time
from collections.abc import Callable
from random import Random
from typing import cast

import gevent

from app.clock.pause import call_off_hub
from app.schema import SchemaError, Schemas
from app.schema.document import JSON
from app.script.action import Accepts
from app.script.at_work import RuleAtWork
from app.script.book import ScriptBook, check_calls, log
from app.script.errors import ScriptError
from app.script.reading import read_script
from config.declaration import ConfigError
from config.sections.reply import ScriptSettings

LOOKS_S = 1.0
"""How often files are looked at for changes."""


def open_book(
    settings: ScriptSettings, schemas: Schemas, rng: Random, now: Callable[[], float]
) -> ScriptBook:
    """The scripts of the settings. ConfigError for one that cannot be used."""
    try:
        return ScriptBook(settings.files, rng, now, time.time, accepting(schemas))
    except ScriptError as error:
        raise ConfigError(f"setting script: {error}") from None


def check_scripts(settings: ScriptSettings) -> None:
    """ConfigError for the first script that cannot be used. Warnings are left to who opens it."""
    for _, path in settings.files:
        try:
            script = read_script(path)
            rules = [
                RuleAtWork(path, number, rule, number, 0.0) for number, rule in enumerate(script.rules, 1)
            ]
            check_calls(rules, script, accepting(Schemas()))
        except ScriptError as error:
            raise ConfigError(f"setting script: {error}") from None


def accepting(schemas: Schemas) -> Accepts:
    """What tells whether a schema accepts a value. ScriptError for a schema that is none."""

    def accepts(schema: object, value: object) -> bool:
        try:
            return schemas.compile(schema, lenient=True).accepts(cast(JSON, value))
        except SchemaError as error:
            raise ScriptError(f"a schema of a tool cannot be used: {error}") from None

    return accepts


class ScriptWatch:
    """Reads changed files again as long as the worker lives, and says at its end which rules were unused."""

    def __init__(self, book: ScriptBook) -> None:
        self._book = book
        self._greenlet: gevent.Greenlet | None = None

    def start(self) -> None:
        """Begin to look."""
        self._greenlet = gevent.spawn(self._look)

    def close(self) -> None:
        """Look no more, and say which rules have never answered."""
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
            except Exception:  # whatever a file has made of us, the next version of it is read
                log.exception("a script could not be read again")
