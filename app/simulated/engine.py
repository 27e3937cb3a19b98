"""The simulated performer: decides at arrival what to say, and plays it when a place is free."""

from __future__ import annotations

from app.clock.clock import Clock
from app.clock.timer_wheel import TimerWheel
from app.engine.cache_manager import NO_HOLD, KVCacheManager
from app.engine.request import Generation
from app.engine.timing import Latency
from app.http.errors import bad_request
from app.schema import SchemaError
from app.simulated.model import SimulatedModel
from app.simulated.play import Play
from app.tokenization import Tokenizer


class Simulation:
    """Performs generations as the author writes them, at the pace that the latency sets."""

    def __init__(
        self,
        author: SimulatedModel,
        tokenizer: Tokenizer,
        latency: Latency,
        pacer: TimerWheel,
        clock: Clock,
        cache: KVCacheManager | None = None,
    ) -> None:
        self._author = author
        self._cache = cache
        self._tokenizer = tokenizer
        self._latency = latency
        self._pacer = pacer
        self._clock = clock

    def prepare(self, generation: Generation) -> Play:
        """Decide the whole reply now, so that replies depend on arrival order and on nothing else.

        ApiError 400 when a schema asks for what cannot be.
        """
        try:
            script = self._author.write(generation)
        except SchemaError as error:
            raise bad_request(f"No reply can have the form that is asked for: {error}.") from None
        hold = NO_HOLD if self._cache is None else self._cache.hold(generation)
        return Play(generation, script, hold, self._tokenizer, self._latency, self._pacer, self._clock)
