"""Builds the parts of a port: the engines of its ranks as one, or a supervisor of all ports.

`parts_of_port` decides between the two.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import copy
from typing import TYPE_CHECKING, Any, Protocol

from msgspec.structs import replace

from app.core.assembly.derived import publishing
from app.core.assembly.engine import add_cache, build_recorder, simulated_engine, simulation_of
from app.core.base.clock.clock import LiveClock
from app.core.base.clock.random_streams import Streams
from app.core.engine.lifecycle import Lifecycle
from app.core.engine.sleep import PauseRules
from app.core.extensions import OtherEngine
from app.core.versions.chain import simulated_version
from app.extensions.data_parallel.engine import BalancedEngine
from app.extensions.data_parallel.ranks import RankCaches, RankRecorder

if TYPE_CHECKING:
    from app.core.base import Bounded
    from app.core.engine.kvcache.events import EventSource
    from app.core.engine.kvcache.publisher import Publisher
    from app.core.extensions import ServerParts
    from app.core.server.flask.application import BackgroundService


class PortParts(Protocol):
    """Parts that the extension adds to the server of a port."""

    def engine(self) -> OtherEngine | None:
        """Returns the engine of the port; None for the engine of one rank."""

    def services(self) -> Sequence[BackgroundService]:
        """Returns background tasks."""

    def caches(self) -> Mapping[str, Bounded]:
        """Returns bounded memory by name."""


def parts_of_port(first: ServerParts) -> PortParts:
    """Returns the parts of a port. `first` has the parts of its first rank."""
    if first.server.engines_per_port > 1:
        return EnginesOfPort(first)
    from app.extensions.data_parallel.supervisor import SupervisedPort

    return SupervisedPort(first)


class EnginesOfPort:
    """The simulated engines of several ranks. Each request runs on one engine.

    Every engine has its own recorder, KV cache, publisher of KV events, adapter slots and random
    numbers. Tokenizer, model, loaded adapters and HTTP server are shared.
    """

    def __init__(self, first: ServerParts) -> None:
        self._first = first
        self._further: list[ServerParts] = []
        """The parts of each rank after the first one, whose parts are the server's own."""

    def engine(self) -> OtherEngine:
        """Returns the engines of all ranks as one engine."""
        for rank in self._first.server.engine_ranks[1:]:
            self._further.append(parts_of_rank(self._first, rank))
        return build_engines([self._first, *self._further])

    def services(self) -> Sequence[BackgroundService]:
        """Returns the publishers of the ranks after the first one."""
        return [parts.publisher for parts in self._further if parts.publisher is not None]

    def caches(self) -> Mapping[str, Bounded]:
        """Returns the memory of the ranks after the first one."""
        caches: dict[str, Bounded] = {}
        for parts in self._further:
            for owner in (parts.cache, parts.publisher):
                if owner is not None:
                    for name, cache in owner.caches.items():
                        caches[f"{name}, rank {parts.rank}"] = cache
        return caches


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
    kv_events = publishing(
        settings.kvcache, parts.server, settings.api, model=settings.model.model, rank=rank
    )
    parts.kv_events = replace(kv_events, encode=first.kv_events.encode)
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
        simulated_version(settings.api).rules(PauseRules),
    )
    publishers = [parts.publisher for parts in ranks if parts.publisher is not None]
    event_source: EventSource | None = None
    if publishers:
        event_source = RankEvents(publishers)
    return OtherEngine(engine, lifecycle, event_source=event_source)
