"""Chokes the simulated engine for a while: fewer places, fewer KV blocks, or no starts at all.

Start reading at `Choke`. A choke is a tool for tests, which vLLM does not have.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import gevent
from gevent.event import Event
from msgspec import Meta, Struct
from msgspec.structs import replace

from app.core.api.admin import json_body
from app.core.api.peer_ranks import PeerRanks
from app.core.engine.engine import Engine
from app.core.engine.kvcache.cache import KVCacheManager
from app.core.engine.kvcache.counted_blocks import CountedBlocks
from app.core.engine.sequence_pool import SequencePool
from app.core.server.http.body_limits import BodyLimits
from app.core.server.http.context import RequestContext
from app.core.server.http.errors import bad_request, not_implemented
from app.core.server.http.route import Route, RouteDocs, action

if TYPE_CHECKING:
    from app.core.engine.client import EngineClient
    from app.core.engine.kvcache.block_pool import Block
    from app.core.engine.lifecycle import Operations
    from app.core.engine.step_executor import StepExecutor

CHOKE = "/admin/choke"
RETRY_S = 0.02
"""Interval at which a choke takes the blocks that were still in use, in seconds."""
MAX_SECONDS = 86_400


class ChokeRequest(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The remaining capacity of the engine; None leaves a part unchanged."""

    places: Annotated[int, Meta(ge=1)] | None = None
    """Sequences that may run at a time."""
    kv_blocks: Annotated[int, Meta(ge=0)] | None = None
    """Blocks of the KV cache that sequences may use."""
    paused: bool = False
    """No sequence starts; running ones continue."""
    seconds: Annotated[float, Meta(gt=0, le=MAX_SECONDS)] | None = None
    """The choke ends by itself after this time."""


class RanksQuery(Struct):
    """Query of a choke; the handlers read it without this type."""

    ranks: str = ""


class BlockHold:
    """Takes blocks of one engine's KV cache, so that sequences can use `usable` blocks.

    Blocks in use are taken as soon as they are released.
    """

    def __init__(self, blocks: KVCacheManager | CountedBlocks, usable: int) -> None:
        self._blocks = blocks
        self._wanted = max(0, blocks.capacity - usable)
        self._count = 0
        self._taken: list[Block] = []
        self._greenlet: gevent.Greenlet | None = None
        self._take()
        if self._count < self._wanted:
            self._greenlet = gevent.spawn(self._take_rest)

    def _take_rest(self) -> None:
        while self._count < self._wanted:
            gevent.sleep(RETRY_S)
            self._take()

    def _take(self) -> None:
        count = min(self._wanted - self._count, self._blocks.free)
        if count <= 0:
            return
        if isinstance(self._blocks, KVCacheManager):
            self._taken += self._blocks.pool.take(count)
        else:
            self._blocks.grow(self, count)
        self._count += count

    def release(self) -> None:
        """Gives the blocks back."""
        if self._greenlet is not None:
            self._greenlet.kill(block=False)
        if isinstance(self._blocks, KVCacheManager):
            self._blocks.pool.release(self._taken)
        elif self._count:
            self._blocks.release(self, self._count)
        self._taken = []
        self._count = self._wanted = 0


class Choke:
    """Chokes the engines of a server, and releases them. One choke replaces another."""

    def __init__(self, engine: EngineClient, lifecycle: Operations) -> None:
        self._engine = engine
        self._lifecycle = lifecycle
        self._request = ChokeRequest()
        self._holds: list[BlockHold] = []
        self._has_paused = False
        self._places: list[int] = []
        """Original places of the engines; empty while they are not choked."""
        self._end: gevent.Greenlet | None = None

    @property
    def _engines(self) -> Sequence[Engine]:
        """The simulated engines. Raises `ApiError` (501) for a real one."""
        engines = getattr(self._engine, "engines", [self._engine])
        if not all(isinstance(engine, Engine) for engine in engines):
            raise not_implemented("Choking requires the simulated engine.")
        return list(engines)

    def report(self) -> dict[str, object]:
        """Returns the choke in force, and the load of the engine."""
        request = self._request
        return {
            "choked": request != ChokeRequest(),
            "places": request.places,
            "kv_blocks": request.kv_blocks,
            "paused": request.paused,
            "running": self._engine.running,
            "waiting": self._engine.waiting,
        }

    def apply(self, request: ChokeRequest) -> None:
        """Chokes the engines, instead of an earlier choke.

        Raises:
            ApiError: 400 for a choke of nothing, or of blocks that the engine does not have; 501
                for a real engine.
        """
        engines = self._engines
        if request.places is None and request.kv_blocks is None and not request.paused:
            raise bad_request("A choke must specify places, kv_blocks, or paused.")
        blocks = [engine.executor.blocks for engine in engines]
        if request.kv_blocks is not None and None in blocks:
            raise bad_request(
                "kv_blocks requires a KV cache; start the server with --enable-kvcache or a "
                "profile."
            )
        self.release()
        self._request = request
        if request.places is not None:
            for engine in engines:
                original = places_of(engine)
                self._places.append(original)
                set_places(engine, min(original, request.places))
        if request.kv_blocks is not None:
            for pool in blocks:
                if isinstance(pool, KVCacheManager | CountedBlocks):
                    self._holds.append(BlockHold(pool, request.kv_blocks))
        if request.paused and not self._lifecycle.paused:
            self._has_paused = True
            self._lifecycle.pause("keep", Event(), clear_cache=False)
        if request.seconds is not None:
            self._end = gevent.spawn_later(request.seconds, self.release)

    def release(self) -> None:
        """Lets the engines go. A pause that the choke has not made continues."""
        end = self._end
        self._end = None
        if end is not None and end is not gevent.getcurrent():
            end.kill(block=False)
        for hold in self._holds:
            hold.release()
        self._holds = []
        if self._places:
            for engine, places in zip(self._engines, self._places, strict=True):
                set_places(engine, places)
        self._places = []
        if self._has_paused:
            self._has_paused = False
            self._lifecycle.resume()
        elif self._request != ChokeRequest() and not self._lifecycle.paused:
            for engine in self._engines:
                engine.executor.resume()  # starts what waits for places or blocks
        self._request = ChokeRequest()


def places_of(engine: Engine) -> int:
    """Returns how many sequences of an engine may run at a time."""
    executor = engine.executor
    if isinstance(executor, SequencePool):
        return executor.slots
    return executor.limits.max_num_seqs


def set_places(engine: Engine, places: int) -> None:
    """Sets how many sequences of an engine may run at a time; running ones keep their places."""
    executor = engine.executor
    if isinstance(executor, SequencePool):
        executor.slots = places
    else:
        _set_places_of_steps(executor, places)


def _set_places_of_steps(executor: StepExecutor, places: int) -> None:
    executor.scheduler.limits = replace(executor.limits, max_num_seqs=places)


def choke_routes(choke: Choke, body: BodyLimits, siblings: PeerRanks) -> list[Route]:
    """Returns the routes that choke the engine, and let it go."""

    def show(context: RequestContext) -> object:
        """The choke in force, and the load of the engine."""
        return siblings.answers(context, choke.report())

    def apply(context: RequestContext) -> object:
        """Chokes the engine: fewer `places` or `kv_blocks`, or `paused`, for some `seconds`."""
        data = body.read(context)
        choke.apply(json_body(data, ChokeRequest))
        return siblings.answers(context, choke.report(), data)

    def release(context: RequestContext) -> object:
        """Lets the engine go."""
        choke.release()
        return siblings.answers(context, choke.report())

    docs = RouteDocs(query=RanksQuery)
    apply_docs = RouteDocs(
        body=(ChokeRequest,), example={"places": 1, "seconds": 0.01}, query=RanksQuery
    )
    return [
        action(f"GET {CHOKE}", show, docs),
        action(f"POST {CHOKE}", apply, apply_docs),
        action(f"DELETE {CHOKE}", release, docs),
    ]
