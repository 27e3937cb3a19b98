"""The rules of a server from the moment when there can be any: their routes and their resolver."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Protocol

from app.core.base.late_imports import import_modules
from app.core.server.http.errors import bad_request
from app.extensions.faults import Faults
from app.extensions.scripts.settings import ScriptSettings

if TYPE_CHECKING:
    from app.core.extensions import ServerParts
    from app.core.server.http.route import Route
    from app.extensions.scripts.kept import KeptChanges
    from app.extensions.scripts.resolver import ScriptResolver
    from app.extensions.scripts.rules import Script
    from app.extensions.scripts.script_file import RuleContext
    from app.extensions.scripts.script_set import ScriptSet

SCRIPT_MODULES = (
    "encodings.unicode_escape",
    "yaml",
    "regex",
    "app.extensions.forms.schema.keywords",
    "app.extensions.scripts.action",
    "app.extensions.scripts.script_set",
)
"""Modules that the first script needs, in the order of dependencies."""


class RuleOwner(Protocol):
    """The extension, as far as this module needs it."""

    parts: ServerParts
    scripts: ClassVar[Mapping[str, Script]]
    """The scripts that the arbiter has read, by their paths."""
    uses_folder: ClassVar[Path | None]
    """The answers of rules on all ranks; None for a single rank."""
    changes: KeptChanges | None
    """The changes that the workers of this rank keep; None until the file is read."""

    def changes_file(self) -> int | None:
        """Returns the file of the changes; None without an arbiter."""

    @property
    def has_arbiter(self) -> bool:
        """True in a worker, whose arbiter has opened the files."""

    def open(self) -> OpenedScripts:
        """Returns the rules."""


class OpenedScripts:
    """The rules from files and of run time, which may be none until some are set."""

    def __init__(self, owner: RuleOwner) -> None:
        """Reads the files, and restores the rules that an earlier worker has left.

        Raises:
            ApiError: 400, the model generates no text or is real.
            ConfigError: a file is invalid.
        """
        parts = owner.parts
        if not can_have_rules(parts):
            raise bad_request(
                "Rules for replies require the simulated engine and a model that generates text."
            )
        import_modules(*SCRIPT_MODULES)
        from app.extensions.scripts.script_set import open_scripts

        self._parts = parts
        earlier_scripts: Mapping[str, Script] = {}
        if owner.has_arbiter:
            earlier_scripts = owner.scripts
        self.script_set = open_scripts(
            parts.settings.section(ScriptSettings), _context(owner), earlier_scripts
        )
        self.script_set.on_change = self.use_rules
        store = changes_of(owner)
        if store is not None:
            self.script_set.added.restore(store)

    def resolver(self) -> ScriptResolver:
        """Returns what asks the rules."""
        from app.extensions.scripts.resolver import ScriptResolver

        parts = self._parts
        injector = parts.get(Faults).injector
        return ScriptResolver(
            self.script_set,
            parts.tokenizer,
            injector,
            max_model_len=parts.settings.model.max_model_len,
            unmatched=self._unmatched,
        )

    def _unmatched(self) -> str | None:
        return self._parts.live.current.section(ScriptSettings).unmatched

    def use_rules(self) -> None:
        """Asks the rules from now on, and decides anew whether they keep the fast path."""
        self.ask_rules()
        self._parts.live.change({})

    def ask_rules(self) -> None:
        """Asks the rules from now on, even if there are none."""
        self._parts.pipeline.scripts = self.resolver()

    def count_routes(self) -> list[Route]:
        """Returns the routes that show and restart the counts of rules."""
        from app.extensions.scripts.routes import script_routes

        return script_routes(self.script_set, self._parts.peers)


def _context(owner: RuleOwner) -> RuleContext:
    """Returns the parts of this worker that all rules use."""
    from app.extensions.scripts.script_file import RuleContext
    from app.extensions.scripts.script_set import SchemaCheck
    from app.extensions.scripts.shared_uses import SharedUses

    parts = owner.parts
    uses = None
    if owner.has_arbiter and owner.uses_folder is not None:
        uses = SharedUses(owner.uses_folder)
    return RuleContext(
        parts.streams("scripts"), parts.clock.now, SchemaCheck(parts.constraints), uses
    )


def load_rule_routes(owner: RuleOwner) -> list[Route]:
    """Returns the routes of rules, which open the rules at the first request."""
    from app.extensions.scripts.routes import rule_routes

    def open_book() -> ScriptSet:
        return owner.open().script_set

    return rule_routes(open_book, owner.parts.body, owner.parts.peers)


def can_have_rules(parts: ServerParts) -> bool:
    """Returns whether the engine of the server follows rules."""
    settings = parts.settings
    return not (settings.model.mm_encoder_only or settings.engine.is_real)


def changes_of(owner: RuleOwner) -> KeptChanges | None:
    """Returns the changes that the workers of this rank keep; None without an arbiter."""
    file = owner.changes_file()
    if file is not None and owner.changes is None:
        from app.extensions.scripts.kept import KeptChanges

        owner.changes = KeptChanges(file)
    return owner.changes


def resolver_at_start(owner: RuleOwner) -> ScriptResolver | None:
    """Restores what an earlier worker has left, and returns what asks the rules.

    Returns None if there are no rules.
    """
    store = changes_of(owner)
    parts = owner.parts
    if store is not None and store.earlier.settings:
        parts.live.change(store.earlier.settings)
    section = parts.live.current.section(ScriptSettings)
    has_rules = store is not None and bool(store.earlier.rules)
    if not can_have_rules(parts) or not (section.script or section.unmatched or has_rules):
        return None
    return owner.open().resolver()


def on_change(owner: RuleOwner) -> None:
    """Keeps the live settings for the next worker, and follows a change of `unmatched`."""
    parts = owner.parts
    settings = parts.live.current
    store = changes_of(owner)
    if store is not None:
        changed: dict[str, object] = {}
        for row in settings.table.rows:
            value = row.value(settings)
            if row.about.live and value != row.value(parts.settings):
                changed[row.name] = row.write(value)
        store.keep_settings(changed)
    section = settings.section(ScriptSettings)
    is_built = hasattr(parts, "pipeline")
    if section.unmatched and is_built and can_have_rules(parts):
        owner.open().ask_rules()
