"""Builds the engines of the ranks, and joins them to one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy
from typing import TYPE_CHECKING, Any

from app.core.assembly.derived import publishing
from app.core.assembly.engine import add_cache, build_recorder, simulated_engine, simulation_of
from app.core.base.clock.clock import LiveClock
from app.core.base.clock.random_streams import Streams
from app.core.engine.lifecycle import Lifecycle
from app.core.extensions import OtherEngine
from app.core.protocol.versions import Feature, simulated_version
from app.extensions.data_parallel.engine import BalancedEngine
from app.extensions.data_parallel.ranks import RankCaches, RankRecorder

if TYPE_CHECKING:
    from app.core.engine.kvcache.events import EventSource
    from app.core.engine.kvcache.publisher import Publisher
    from app.core.extensions import ServerParts


class RankEvents:
    """Passes on the KV events of all ranks. Each batch has the number of its rank."""

    def __init__(self, publishers: Sequence[Publisher]) -> None:
        self._publishers = publishers

    def listen(self, listener: Callable[[str, int, Any], None]) -> None:
        """Calls `listener` with topic, sequence number and batch of all later events."""
        for publisher in self._publishers:
            publisher.listen(listener)


def parts_of_rank(first: ServerParts, rank: int) -> ServerParts:
    """Returns the parts of a rank: a copy of the `first` rank's, with a separate cache."""
    settings = first.settings
    parts = copy(first)
    parts.rank = rank
    parts.clock = LiveClock()  # a clock has one alarm, which the engine's timer wheel sets
    parts.streams = Streams(settings.reply.seed, rank)
    parts.recorder = build_recorder(parts, beside=first.recorder)
    parts.kv_events = publishing(settings.kvcache, parts.server, settings.model.model, rank)
    add_cache(parts)
    return parts


def build_engines(ranks: Sequence[ServerParts]) -> OtherEngine:
    """Returns the engines of `ranks`, with their commands and events, as one engine."""
    first = ranks[0]
    settings = first.settings
    simulation = simulation_of(first)
    engines = [simulated_engine(parts, simulation) for parts in ranks]
    recorder = RankRecorder(settings, [parts.recorder for parts in ranks], first.rank)
    engine = BalancedEngine(settings.scheduling, recorder, engines)
    caches = [parts.cache for parts in ranks if parts.cache is not None]
    lifecycle = Lifecycle(
        engine,
        recorder,
        RankCaches(caches) if caches else None,
        refuses_in_pause=simulated_version(settings.api).has(Feature.REFUSAL_IN_PAUSE),
    )
    publishers = [parts.publisher for parts in ranks if parts.publisher is not None]
    event_source: EventSource | None = None
    if publishers:
        event_source = RankEvents(publishers)
    return OtherEngine(engine, lifecycle, event_source=event_source)
