"""The simulated performer: decides at arrival what to say, and plays it when a place is free."""

from __future__ import annotations

from app.generation import Generation
from app.protocol.errors import bad_request
from app.simulation.author import Author
from app.simulation.clock import Clock
from app.simulation.latency import Latency
from app.simulation.pacer import Pacer
from app.simulation.play import Play
from app.simulation.prefix_cache import NO_HOLD, PrefixCache
from app.simulation.schema import SchemaError
from app.tokenization import Tokenizer


class Simulation:
    """Performs generations as the author writes them, at the pace that the latency sets."""

    def __init__(
        self,
        author: Author,
        tokenizer: Tokenizer,
        latency: Latency,
        pacer: Pacer,
        clock: Clock,
        cache: PrefixCache | None = None,
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
