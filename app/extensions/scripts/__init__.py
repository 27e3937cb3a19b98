"""Scripted replies: rules from files, and rules that are set at run time."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, TYPE_CHECKING, ClassVar

from app.core.extensions import Extension, late_routes
from app.extensions.scripts.settings import ScriptSettings

if TYPE_CHECKING:
    from app.core.base import Bounded
    from app.core.extensions import ServerParts
    from app.core.server.flask.application import BackgroundService
    from app.core.server.http.route import Route
    from app.extensions.scripts.kept import KeptChanges
    from app.extensions.scripts.opened import OpenedScripts
    from app.extensions.scripts.resolver import ScriptResolver
    from app.extensions.scripts.rules import Script
    from app.extensions.scripts.shared_uses import UsesFolders
    from config import Settings as AllSettings

RULES = "/admin/script/rules"


class Scripts(Extension):
    """Decides the replies to requests by rules."""

    name = "scripts"
    Settings = ScriptSettings
    requires = ("faults", "forms")
    files: ClassVar[Sequence[IO[bytes]]] = ()
    """A file for each rank, which its workers inherit from the arbiter; see `kept.py`."""
    uses_folders: ClassVar[UsesFolders | None] = None
    """The folders of the arbiter for the answers of rules; see `shared_uses.py`."""
    uses_folder: ClassVar[Path | None] = None
    """The answers of rules on all ranks. None for a single rank."""
    scripts: ClassVar[Mapping[str, Script]] = {}
    """The scripts that the arbiter has read, by their paths."""
    opened_by: ClassVar[int] = 0
    """Process that has opened them; 0 before."""

    def __init__(self, parts: ServerParts) -> None:
        super().__init__(parts)
        self._opened: OpenedScripts | None = None
        self.changes: KeptChanges | None = None
        parts.live.subscribe(self._on_settings)

    @classmethod
    def prepare(cls, settings: AllSettings) -> None:
        """Checks the files of rules, and opens the files of changes. Raises ConfigError."""
        with suppress(OSError):  # no folder for temporary files: nothing survives a crash
            cls.files = [TemporaryFile() for _ in settings.server.ranks]  # noqa: SIM115
            if len(settings.server.ranks) > 1:
                from app.extensions.scripts.shared_uses import UsesFolders

                cls.uses_folders = cls.uses_folders or UsesFolders()
                cls.uses_folder = cls.uses_folders.new()
            cls.opened_by = os.getpid()
        section = settings.section(ScriptSettings)
        if section.script:
            from app.extensions.scripts.script_set import check_scripts

            cls.scripts = check_scripts(section)

    @classmethod
    def startup_lines(cls, settings: AllSettings) -> Sequence[str]:
        """Returns a line about rules for models that the server does not serve."""
        if not cls.scripts:
            return ()
        from app.extensions.scripts.unserved_models import unserved_models_line

        line = unserved_models_line(settings, cls.scripts)
        return (line,) if line else ()

    def open(self) -> OpenedScripts:
        """Returns the rules, which may be none. Raises `ApiError` (400) without simulated text."""
        if self._opened is None:
            from app.extensions.scripts.opened import OpenedScripts

            self._opened = OpenedScripts(self)
        return self._opened

    def reply_rules(self) -> ScriptResolver | None:
        """Returns what asks the rules; None until there can be rules."""
        section = self.parts.settings.section(ScriptSettings)
        if not (section.script or section.unmatched or self._has_kept_changes()):
            return None
        from app.extensions.scripts.opened import resolver_at_start

        return resolver_at_start(self)

    @property
    def has_arbiter(self) -> bool:
        """True in a worker, whose arbiter has opened the files."""
        return self.opened_by not in (0, os.getpid())

    def changes_file(self) -> int | None:
        """Returns the descriptor of the file where the workers of this rank keep changes.

        None in the process that has opened it, which is no worker.
        """
        if not self.has_arbiter:
            return None
        return self.files[self.parts.settings.server.ranks.index(self.parts.rank)].fileno()

    def _has_kept_changes(self) -> bool:
        """Returns whether an earlier worker of this rank, which has crashed, has left changes."""
        file = self.changes_file()
        return file is not None and os.fstat(file).st_size > 0

    def _on_settings(self, settings: AllSettings) -> None:
        if settings is not self.parts.settings:
            from app.extensions.scripts.opened import on_change

            on_change(self)

    def keeps_fast_path(self, settings: AllSettings) -> bool:
        """Returns whether the rules never take long to decide about a plain request."""
        return self._opened is None or self._opened.script_set.decides_at_once

    def routes(self) -> Mapping[str, Sequence[Route]]:
        """Returns the routes that show and set rules."""
        methods = ("GET", "PUT", "POST", "DELETE")
        rules = late_routes(self._load_rules, *[f"{method} {RULES}" for method in methods])
        if self._opened is None:
            return {"rules": rules}
        counts = late_routes(self._opened.count_routes, "GET /admin/script", "DELETE /admin/script")
        return {"rules": rules, "script": counts}

    def _load_rules(self) -> list[Route]:
        from app.extensions.scripts.opened import load_rule_routes

        return load_rule_routes(self)

    def services(self) -> Sequence[BackgroundService]:
        """Returns the watch over the files of rules."""
        return () if self._opened is None else (self._opened.script_set.files,)

    def caches(self) -> Mapping[str, Bounded]:
        """Returns the counters of rules."""
        if self._opened is None:
            return {}
        return {"script counters": self._opened.script_set}
