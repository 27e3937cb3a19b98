"""One reply on its way."""

from __future__ import annotations

from collections.abc import Callable

from app.clock.clock import Clock
from app.clock.timer_wheel import TimerWheel
from app.engine.cache_manager import NO_HOLD, Hold
from app.engine.outputs import Event, Failed, Finish, Started, Tokens
from app.engine.reply import Script
from app.engine.request import Generation
from app.engine.timing import Latency
from app.simulated.logprobs import prompt_logprobs, reply_logprobs
from app.tokenization import Tokenizer

Emit = Callable[[Event], None]
CACHE_THRESHOLD = Finish("cache_threshold")


class Play:
    """Emits `Started`, then each token at its due moment.

    Moments are absolute: start + time to first token + the sum of the waits so far. Tokens that
    have become due together leave in one event, if they belong to the same part of the reply.
    """

    # Thousands of plays take their turns one after another: each must touch little memory.
    __slots__ = (
        "_alone",
        "_cached_tokens",
        "_clock",
        "_delays",
        "_due_s",
        "_emit",
        "_finish",
        "_generation",
        "_hold",
        "_ids",
        "_index",
        "_latency",
        "_logprobs",
        "_pacer",
        "_position",
        "_span",
        "_spans",
        "_texts",
        "_tokenizer",
    )

    def __init__(
        self,
        generation: Generation,
        script: Script,
        hold: Hold,
        tokenizer: Tokenizer,
        latency: Latency,
        pacer: TimerWheel,
        clock: Clock,
    ) -> None:
        self._generation = generation
        self._hold = hold
        self._cached_tokens = 0
        self._index, self._alone = generation.index, generation.together == 1
        self._texts, self._ids, self._finish = script.texts, script.ids, script.finish
        self._spans, self._span = script.spans, 0
        self._delays = dict(generation.delays) if generation.delays else None
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

    def fits(self) -> bool:
        """True when the cache has room for the prompt."""
        return self._hold.fits()

    def start(self, emit: Emit, at_s: float) -> None:
        """A place is ours since `at_s`; what is due already is emitted before this returns."""
        self._emit = emit
        now_s = self._clock.now()
        generation = self._generation
        prompt_tokens = len(generation.prompt_ids)
        self._cached_tokens = self._hold.begin()
        if self._cached_tokens < generation.least_hit_rate * prompt_tokens:
            self._refuse(emit, at_s)
            return
        self._due_s = at_s + self._latency.time_to_first_token(
            prompt_tokens, self._cached_tokens, remote=generation.remote_prefill
        )
        if self._delays is not None:
            self._due_s += self._delays.get(0, 0.0)
        due_s = self.turn(now_s) if self._due_s <= now_s else self._due_s
        if due_s is not None:
            self._pacer.add(due_s, self)

    def _refuse(self, emit: Emit, at_s: float) -> None:
        """Too little is cached: the reply is empty, and comes at once (simulator.md 13.7)."""
        self._emit = None
        self._hold.release()
        emit(Started(self._index, at_s, self._cached_tokens))
        emit(Tokens(self._index, (), (), at_s, None, CACHE_THRESHOLD))

    def cancel(self) -> None:
        """Emit nothing more. The wheel forgets us when our slot comes."""
        self._emit = None
        self._hold.release()

    def fail(self, error: Exception) -> None:
        emit, self._emit = self._emit, None
        self._hold.release()
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
        end, part = self._spans[self._span] if self._spans else (total, None)
        stop, at_s, next_s = start + 1, self._due_s, self._due_s
        while stop < end:
            next_s += self._wait(stop)
            if next_s > now_s or not self._alone:
                break
            at_s = next_s
            stop += 1
        else:
            if stop < total:  # the next token begins another part
                self._span += 1
                _, following = self._spans[self._span]
                drawn = following is not None and following.kind == "image"
                next_s += self._latency.image() if drawn else self._wait(stop)
        self._position, self._due_s = stop, next_s
        logprobs = None if self._logprobs is None else self._logprobs[start:stop]
        texts, ids = self._texts[start:stop], self._ids[start:stop]
        if self._hold is not NO_HOLD:
            self._hold.took(ids)
        if stop < total:
            emit(Tokens(self._index, texts, ids, at_s, logprobs, None, part))
            # Choices that are late together take turns: none goes back before the moment of the others.
            return next_s if next_s > now_s else now_s
        self._hold.release()
        emit(Tokens(self._index, texts, ids, at_s, logprobs, self._finish, part))
        self._emit = None
        return None

    def _wait(self, token: int) -> float:
        """Seconds between the token before `token` and that one."""
        if self._delays is None:
            return self._latency.inter_token()
        return self._latency.inter_token() + self._delays.get(token, 0.0)

    def _started(self) -> Started:
        wanted, ids = self._generation.prompt_logprobs, self._generation.prompt_ids
        entries = None
        if wanted is not None:
            entries = prompt_logprobs(self._tokenizer, ids, wanted)
        return Started(self._index, self._due_s, self._cached_tokens, entries)
