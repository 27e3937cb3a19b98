"""The journal: the last requests and their replies, for tests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING

from app.core.extensions import Extension, Position, late_routes
from app.core.versions.chain import simulated_version
from app.extensions.journal.settings import JournalSettings

if TYPE_CHECKING:
    from app.core.extensions import ServerParts
    from app.core.server.http.route import Route
    from app.core.server.middleware.stack import Middleware
    from app.extensions.journal.ignored_fields import IgnoredFields
    from app.extensions.journal.journal import Journal

DEFAULT_ENTRIES = 1000
"""Entries of a server with a console or with scripts, where the setting names no number."""


class RequestJournal(Extension):
    """Keeps the last requests, with their replies, for GET /admin/journal."""

    name = "journal"
    Settings = JournalSettings
    journal: Journal

    def __init__(self, parts: ServerParts) -> None:
        from app.extensions.journal.journal import Journal

        super().__init__(parts)
        settings = parts.settings
        max_entries = settings.section(JournalSettings).journal
        if max_entries is None:
            wants_entries = settings.get("console", False) or bool(settings.get("script", ()))
            max_entries = DEFAULT_ENTRIES if wants_entries else 0
        self.journal = Journal(
            max_entries,
            now=parts.clock.now,
            bears_key=parts.keys.bears_key,
            ignored_fields=self._ignored_fields,
        )

    def middleware(self) -> Mapping[Position, Sequence[Middleware]]:
        """Returns the journal, which also notes requests that are refused."""
        return {Position.OUTSIDE: [self.journal]}

    def routes(self) -> Mapping[str, Sequence[Route]]:
        """Returns the routes that show and clear the journal."""
        return {"journal": late_routes(self._load, "GET /admin/journal", "DELETE /admin/journal")}

    @cached_property
    def _fields(self) -> IgnoredFields:
        # Few clients look, and these classes take a millisecond to read.
        from app.extensions.journal.ignored_fields import IgnoredFields

        return IgnoredFields(self.parts.routes, simulated_version(self.parts.settings.api))

    def _ignored_fields(self, path: str, body: bytes) -> Sequence[str]:
        return self._fields.find(path, body)

    def _load(self) -> list[Route]:
        from app.extensions.journal.routes import journal_routes

        release = simulated_version(self.parts.settings.api).release
        return journal_routes(self.journal, self.parts.peers, release)
