"""The simulated performer: decides at arrival what to say, and plays it when a place is free."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from zlib import crc32

import msgspec

from app.events import Event, Failed, Finish, Started, Tokens
from app.generation import Generation
from app.simulation.clock import Clock
from app.simulation.latency import Latency
from app.simulation.lengths import reply_length
from app.simulation.logprobs import prompt_logprobs, reply_logprobs
from app.simulation.pacer import Pacer
from app.simulation.stops import Script, stopped
from app.simulation.text import Phrasebook
from app.tokenization import Tokenizer

Emit = Callable[[Event], None]


class Simulation:
    """Performs generations in mode `random` or `echo` (simulator.md section 5).

    `rng` is the server's own stream of randomness for lengths and texts; a request with a seed, or
    with temperature 0, gets a stream of its own and so repeats itself.
    """

    def __init__(
        self,
        mode: str,
        tokenizer: Tokenizer,
        phrasebook: Phrasebook,
        latency: Latency,
        pacer: Pacer,
        clock: Clock,
        rng: Random,
    ) -> None:
        self._mode = mode
        self._tokenizer = tokenizer
        self._phrasebook = phrasebook
        self._latency = latency
        self._pacer = pacer
        self._clock = clock
        self._rng = rng

    def prepare(self, generation: Generation) -> Play:
        """Decide the whole reply now, so that replies depend on arrival order and on nothing else."""
        said = self._echoed(generation) if self._mode == "echo" else self._composed(generation)
        return Play(
            generation, stopped(said, generation), self._tokenizer, self._latency, self._pacer, self._clock
        )

    def _composed(self, generation: Generation) -> Script:
        rng = self._stream(generation)
        most = generation.max_tokens
        count = most if generation.ignore_eos else reply_length(most, generation.limited, rng)
        count = max(count, generation.min_tokens)
        ids, texts = self._phrasebook.compose(count, rng)
        return Script(texts, ids, Finish("length" if count >= most else "stop"))

    def _echoed(self, generation: Generation) -> Script:
        """The text as it came, whatever the limit; `length` tells that the limit was reached (5.2)."""
        ids = self._tokenizer.encode(generation.echo_text)
        reached = generation.limited and len(ids) >= generation.max_tokens
        return Script(self._tokenizer.pieces(ids), ids, Finish("length" if reached else "stop"))

    def _stream(self, generation: Generation) -> Random:
        """The randomness of one reply: the server's, or one that request and prompt determine."""
        if generation.seed is None and not generation.greedy:
            return self._rng
        prompt = crc32(msgspec.json.encode(generation.prompt_ids))
        return Random((generation.seed or 0) * 2**32 + prompt)


class Play:
    """One reply on its way: emits `Started`, then each token at its due moment.

    Moments are absolute: start + time to first token + the sum of the waits so far. Tokens that
    have become due together leave in one event.
    """

    # Thousands of plays take their turns one after another: each must touch little memory.
    __slots__ = (
        "_alone",
        "_clock",
        "_due_s",
        "_emit",
        "_finish",
        "_generation",
        "_ids",
        "_index",
        "_latency",
        "_logprobs",
        "_pacer",
        "_position",
        "_texts",
        "_tokenizer",
    )

    def __init__(
        self,
        generation: Generation,
        script: Script,
        tokenizer: Tokenizer,
        latency: Latency,
        pacer: Pacer,
        clock: Clock,
    ) -> None:
        self._generation = generation
        self._index, self._alone = generation.index, generation.together == 1
        self._texts, self._ids, self._finish = script.texts, script.ids, script.finish
        self._tokenizer = tokenizer
        self._latency = latency
        self._pacer = pacer
        self._clock = clock
        self._position = 0
        self._due_s = 0.0
        self._emit: Emit | None = None
        self._logprobs = (
            reply_logprobs(tokenizer, script.ids, generation.logprobs)
            if generation.logprobs is not None
            else None
        )

    def start(self, emit: Emit, at_s: float) -> None:
        """A place is ours since `at_s`; what is due already is emitted before this returns."""
        self._emit = emit
        now_s = self._clock.now()
        self._due_s = at_s + self._latency.time_to_first_token(len(self._generation.prompt_ids))
        due_s = self.turn(now_s) if self._due_s <= now_s else self._due_s
        if due_s is not None:
            self._pacer.add(due_s, self)

    def cancel(self) -> None:
        """Emit nothing more. The wheel forgets us when our slot comes."""
        self._emit = None

    def fail(self, error: Exception) -> None:
        emit, self._emit = self._emit, None
        if emit is not None:
            emit(Failed(self._index, error))

    def turn(self, now_s: float) -> float | None:
        emit = self._emit
        if emit is None:
            return None
        if self._position == 0:
            emit(self._started())
            if self._emit is None:  # cancelled by who was told
                return None
        start, total = self._position, len(self._texts)
        stop, at_s, next_s = start + 1, self._due_s, self._due_s
        while stop < total:
            next_s += self._latency.inter_token()
            if next_s > now_s or not self._alone:
                break
            at_s = next_s
            stop += 1
        self._position, self._due_s = stop, next_s
        logprobs = None if self._logprobs is None else self._logprobs[start:stop]
        texts, ids = self._texts[start:stop], self._ids[start:stop]
        if stop < total:
            emit(Tokens(self._index, texts, ids, at_s, logprobs))
            # Choices that are late together take turns: none goes back before the moment of the others.
            return next_s if next_s > now_s else now_s
        emit(Tokens(self._index, texts, ids, at_s, logprobs, self._finish))
        self._emit = None
        return None

    def _started(self) -> Started:
        wanted, ids = self._generation.prompt_logprobs, self._generation.prompt_ids
        entries = None
        if wanted is not None:
            entries = prompt_logprobs(self._tokenizer, ids, wanted)
        return Started(self._index, self._due_s, 0, entries)
