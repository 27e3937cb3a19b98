"""Scripted replies: rules from files, and rules that are set at run time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from app.core.base.late_imports import import_modules
from app.core.extensions import Command, Extension
from app.core.server.http.late_routes import late_routes
from app.extensions.faults import Faults
from app.extensions.scripts.settings import ScriptSettings

if TYPE_CHECKING:
    from app.core.base import Bounded
    from app.core.extensions import ServerParts
    from app.core.server.flask.application import BackgroundService
    from app.core.server.http.route import Route
    from app.extensions.scripts.resolver import ScriptResolver
    from app.extensions.scripts.script_set import ScriptSet
    from config import Settings as AllSettings

SCRIPT_MODULES = (
    "encodings.unicode_escape",
    "yaml",
    "regex",
    "app.extensions.forms.schema.keywords",
    "app.extensions.scripts.action",
    "app.extensions.scripts.script_set",
)
"""Modules that the first script needs, in the order of dependencies."""
RULES = (
    "GET /admin/script/rules",
    "PUT /admin/script/rules",
    "POST /admin/script/rules",
    "DELETE /admin/script/rules",
)
COUNTS = ("GET /admin/script", "DELETE /admin/script")


class Scripts(Extension):
    """Decides the replies to requests by rules."""

    name = "scripts"
    Settings = ScriptSettings
    requires = ("faults", "forms")

    def __init__(self, parts: ServerParts) -> None:
        super().__init__(parts)
        self._script_set: ScriptSet | None = None
        settings = parts.settings
        self._is_possible = not (settings.model.mm_encoder_only or settings.engine.is_real)
        section = settings.section(ScriptSettings)
        self._is_needed = self._is_possible and bool(section.script or section.unmatched)

    @classmethod
    def prepare(cls, settings: AllSettings) -> None:
        """Checks the files of rules. Raises ConfigError."""
        section = settings.section(ScriptSettings)
        if section.script:
            from app.extensions.scripts.script_set import check_scripts

            check_scripts(section)

    @classmethod
    def commands(cls) -> Mapping[str, Command]:
        """Returns the command that checks and tries scripts."""
        about = "check and try scripted replies, or make a script of a recording"
        return {"script": Command(_run_command, about)}

    def open(self) -> ScriptSet:
        """Returns the rules, which may be none until some are set at run time.

        Raises:
            ApiError: 400, the model generates no text or is real.
        """
        if not self._is_possible:
            from app.core.server.http.errors import bad_request

            raise bad_request(
                "Rules for replies need the simulated engine, and a model that generates text."
            )
        import_modules(*SCRIPT_MODULES)
        if self._script_set is None:
            from app.extensions.scripts.script_set import open_scripts

            parts = self.parts
            self._script_set = open_scripts(
                parts.settings.section(ScriptSettings),
                parts.constraints,
                parts.streams("scripts"),
                parts.clock.now,
            )
            self._script_set.on_reload = self._use_rules
        return self._script_set

    def reply_rules(self) -> ScriptResolver | None:
        """Returns what asks the rules; None until there can be rules."""
        if self._is_needed:
            self.open()
        return self._resolver()

    def _resolver(self) -> ScriptResolver | None:
        if self._script_set is None:
            return None
        from app.extensions.scripts.resolver import ScriptResolver

        parts = self.parts
        injector = parts.get(Faults).injector
        return ScriptResolver(self._script_set, parts.tokenizer, injector, self._unmatched)

    def _unmatched(self) -> str | None:
        return self.parts.live.current.section(ScriptSettings).unmatched

    def _use_rules(self) -> None:
        """Asks the rules from now on, and decides anew whether they keep the fast path."""
        self.parts.pipeline.scripts = self._resolver()
        self.parts.live.change({})

    def _open_at_run_time(self) -> ScriptSet:
        script_set = self.open()
        if self.parts.pipeline.scripts is None:
            self.parts.pipeline.scripts = self._resolver()
        return script_set

    def keeps_fast_path(self, settings: AllSettings) -> bool:
        """Returns whether the rules never take long to decide about a plain request."""
        if settings.section(ScriptSettings).unmatched and self._is_possible:
            self._open_at_run_time()
        return self._script_set is None or self._script_set.decides_at_once

    def routes(self) -> Mapping[str, Sequence[Route]]:
        """Returns the routes that show and set rules."""
        blueprints: dict[str, Sequence[Route]] = {"rules": late_routes(self._load_rules, *RULES)}
        if self._script_set is not None:
            blueprints["script"] = late_routes(self._load_counts, *COUNTS)
        return blueprints

    def _load_rules(self) -> list[Route]:
        from app.extensions.scripts.routes import rule_routes

        parts = self.parts
        return rule_routes(self._open_at_run_time, self._use_rules, parts.body, parts.peers)

    def _load_counts(self) -> list[Route]:
        from app.extensions.scripts.routes import script_routes

        return script_routes(self.open(), self.parts.peers)

    def services(self) -> Sequence[BackgroundService]:
        """Returns the watch over the files of rules."""
        return () if self._script_set is None else (self._script_set,)

    def caches(self) -> Mapping[str, Bounded]:
        """Returns the counters of rules."""
        return {} if self._script_set is None else {"script counters": self._script_set}


def _run_command(argv: Sequence[str]) -> int:
    from app.extensions.scripts.command import run
    from app.extensions.scripts.resolver import messages_of

    return run(argv, messages_of)
