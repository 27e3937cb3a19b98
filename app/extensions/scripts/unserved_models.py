"""Finds rules for models that a server does not serve: they never answer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from app.core.engine.lora import adapters_of
from app.extensions.scripts.settings import ScriptSettings
from config.declaration import MAX_SHOWN_LENGTH
from config.model_files import ALL_MODELS

if TYPE_CHECKING:
    from app.extensions.scripts.rules import Rule, Script
    from config import Settings

MAX_LISTED_MODELS = 10
"""Most models that the line names: a recording of a gateway has rules for dozens."""


def unserved_models_line(settings: Settings, scripts: Mapping[str, Script]) -> str:
    """Returns a line for the log; empty if each rule is for a model that is served.

    Adapters that are loaded while the server runs are not known yet.
    """
    model = settings.model
    if model.takes_any_name:
        return ""
    served = {*model.served_names}
    served.update(adapter.name for adapter in adapters_of(settings.lora, model))
    unserved: dict[str, None] = {}
    count = 0
    for file_model, path in settings.section(ScriptSettings).files:
        for rule in scripts[path].rules if path in scripts else ():
            names = tuple(_models_of(file_model, rule))
            if names and served.isdisjoint(names):
                unserved |= dict.fromkeys(names)
                count += 1
    if not unserved:
        return ""
    shown = [" ".join(name.split())[:MAX_SHOWN_LENGTH] for name in unserved]
    listed = ", ".join(shown[:MAX_LISTED_MODELS])
    if len(unserved) > MAX_LISTED_MODELS:
        listed += f", and {len(unserved) - MAX_LISTED_MODELS} more"
    return (
        f"scripts: {count} of the rules are for models that this server does not serve: {listed}"
        f" (served: {', '.join(model.served_names)}; add names with --served-model-name)"
    )


def _models_of(file_model: str, rule: Rule) -> Iterator[str]:
    """Yields the models whose requests a rule answers; none for a rule for all models."""
    if file_model != ALL_MODELS:
        yield file_model
    elif isinstance(rule.when.model, str):
        yield rule.when.model
    else:
        yield from rule.when.model or ()
