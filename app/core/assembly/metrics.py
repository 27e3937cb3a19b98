"""Builds the page of metrics: families of the engine, of HTTP and of the extensions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from app.core.base.metrics.instruments import Exposition
from app.core.versions.chain import simulated_version

if TYPE_CHECKING:
    from app.core.base.metrics.instruments import Families
    from app.core.extensions import ServerParts
    from app.core.server.middleware.http_metrics import HttpMetrics


def build_exposition(parts: ServerParts, http_metrics: HttpMetrics) -> Exposition:
    """Returns the page of metrics."""
    return Exposition(
        [*_families(parts), http_metrics.text, parts.loops.metrics_text], http_metrics.process_text
    )


def _families(parts: ServerParts) -> list[Families]:
    """Returns functions that render the metric families of the engine and of extensions."""
    families: list[Families] = []
    if not parts.settings.metrics.disable_log_stats:
        engine_families: Families = parts.recorder.render
        for extension in parts.extensions:
            engine_families = extension.engine_metrics(engine_families)
        families.append(_of_played_version(parts, engine_families))
    for extension in parts.extensions:
        families += extension.metrics()
    return families


def _of_played_version(parts: ServerParts, families: Families) -> Families:
    """Returns what renders the engine's families as the played version has them."""
    played = simulated_version(parts.settings.api)
    if played.has_families_of_code:
        return families
    from app.core.versions.families import FamilyRules, PastFamilies
    from vllm_facts.history import read_history

    rules = played.rules(FamilyRules)
    return PastFamilies(families, read_history(), played.release, rules).render
