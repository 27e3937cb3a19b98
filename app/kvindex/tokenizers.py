"""Prompts of any model as token ids, in time or refused."""

from __future__ import annotations

import queue
import threading
import time
from array import array
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from itertools import count
from sys import getsizeof
from typing import TypeVar
from weakref import WeakKeyDictionary

from msgspec import Struct

from app.clock.pause import wait_off_hub
from app.kvcache.memo import Bounded, Memo
from app.kvindex.metrics import IndexMetrics
from app.tokenization import LocalTokenizer
from app.tokenization.base import PLAIN_CHAT, ChatOptions, Message, Tokenizer

MOST_WAITING = 1_000
"""Prompts that may wait for a worker."""
PROMPTS_BYTES = 48 << 20
"""Memory of the prompts whose token ids are remembered."""

T = TypeVar("T")
Find = Callable[[str], Tokenizer]
"""A model's name -> its tokenizer, soon, as `TokenizerLibrary.get`. TokenizerError when there is none."""


class TokenizationTimeout(Exception):
    """A prompt was not tokenized in time."""


class TokenizationBusy(Exception):
    """Too many prompts wait to be tokenized."""


class TokenizationSettings(Struct, frozen=True, kw_only=True):
    """`timeout_s` is for one prompt; finding its tokenizer has a limit of its own.

    `prompts_bytes` bounds the memory of prompts whose token ids are remembered.
    """

    workers: int = 5
    most_waiting: int = MOST_WAITING
    timeout_s: float = 10.0
    prompts_bytes: int = PROMPTS_BYTES


class PromptCache:
    """Token ids of the prompts used last, for each tokenizer of this process; for threads and greenlets."""

    def __init__(self, limit_bytes: int = PROMPTS_BYTES) -> None:
        self.prompts: Memo[tuple[int, bool, str], array[int]] = Memo(limit_bytes)
        self._numbers: WeakKeyDictionary[LocalTokenizer, int] = WeakKeyDictionary()
        self._next = count()
        self._lock = threading.Lock()

    def encode(self, tokenizer: Tokenizer, text: str, add_special_tokens: bool) -> list[int]:
        """Returns, and raises, the same as `tokenizer.encode`. A remote tokenizer is always asked."""
        if not isinstance(tokenizer, LocalTokenizer):
            return tokenizer.encode(text, add_special_tokens)
        with self._lock:
            if tokenizer not in self._numbers:
                self._numbers[tokenizer] = next(self._next)
            key = self._numbers[tokenizer], add_special_tokens, text
            known = self.prompts.get(key)
        if known is not None:
            return known.tolist()
        ids = tokenizer.encode(text, add_special_tokens)
        packed = array("I", ids)
        with self._lock:
            if self.prompts.get(key) is None:
                self.prompts.put(key, packed, getsizeof(text) + getsizeof(packed))
        return ids


class Tokenization:
    """Turns prompts into token ids, and remembers those of the latest prompts.

    Every method may raise TokenizerError (no tokenizer for the model, or a prompt that cannot be used),
    `TokenizationTimeout` and `TokenizationBusy`.
    """

    def __init__(
        self,
        find: Find,
        settings: TokenizationSettings = TokenizationSettings(),  # noqa: B008 (immutable)
        metrics: IndexMetrics | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._find, self._settings = find, settings
        self._metrics, self._clock = metrics or IndexMetrics(), clock
        self._prompts = PromptCache(settings.prompts_bytes)
        self._workers = Workers(settings.workers, settings.most_waiting)

    def encode(self, model: str, text: str, add_special_tokens: bool = True) -> list[int]:
        """The tokens of a plain prompt."""
        tokenizer = self._find(model)
        return self._in_time(lambda: self._encode(tokenizer, text, add_special_tokens))

    def encode_chat(
        self, model: str, messages: Sequence[Message], options: ChatOptions = PLAIN_CHAT
    ) -> list[int]:
        """The tokens of a conversation."""
        tokenizer = self._find(model)
        return self._in_time(lambda: self._encode_chat(tokenizer, messages, options))

    def render_chat(self, model: str, messages: Sequence[Message], options: ChatOptions = PLAIN_CHAT) -> str:
        """The prompt of a conversation as text."""
        tokenizer = self._find(model)
        return self._in_time(lambda: self._render_chat(tokenizer, messages, options))

    @property
    def caches(self) -> Mapping[str, Bounded]:
        """Memory of remembered prompts, by name."""
        return {"prompt tokens": self._prompts.prompts}

    def close(self) -> None:
        self._workers.close()

    def _in_time(self, work: Callable[[], T]) -> T:
        try:
            return self._workers.call(work, self._settings.timeout_s)
        except WorkersBusy:
            raise TokenizationBusy("Too many prompts wait to be tokenized.") from None
        except TimeoutError:
            raise TokenizationTimeout(
                f"The prompt was not tokenized within {self._settings.timeout_s:g} seconds."
            ) from None

    def _encode(self, tokenizer: Tokenizer, text: str, add_special_tokens: bool) -> list[int]:
        began_s = self._clock()
        tokens = self._prompts.encode(tokenizer, text, add_special_tokens)
        self._metrics.tokenized(tokenizer.name, self._clock() - began_s, len(tokens))
        return tokens

    def _encode_chat(
        self, tokenizer: Tokenizer, messages: Sequence[Message], options: ChatOptions
    ) -> list[int]:
        if tokenizer.longest_token is None:  # a remote one: its service does both in one call
            return tokenizer.encode_chat(messages, options)
        text = self._render_chat(tokenizer, messages, options)
        return self._encode(tokenizer, text, options.add_special_tokens)

    def _render_chat(self, tokenizer: Tokenizer, messages: Sequence[Message], options: ChatOptions) -> str:
        began_s = self._clock()
        text = tokenizer.render_chat(messages, options)
        self._metrics.rendered(tokenizer.name, self._clock() - began_s)
        return text


class WorkersBusy(Exception):
    """So much work waits that no more is taken."""


class Workers:
    """At most `count` threads, started when needed; they do not keep the process from ending.

    Under gevent they are greenlets. At most `most_waiting` calls wait for one.
    """

    def __init__(self, count: int, most_waiting: int = MOST_WAITING) -> None:
        if count < 1:
            raise ValueError("work needs a worker")
        self._count, self._threads, self._unfinished = count, 0, 0
        self._work: queue.Queue[Callable[[], None] | None] = queue.Queue(most_waiting)
        self._lock = threading.Lock()

    def call(self, function: Callable[[], T], timeout_s: float) -> T:
        """What `function` returns or raises.

        TimeoutError when that takes too long: it may then go on unheard. WorkersBusy when too many wait.
        """
        future: Future[T] = Future()
        try:
            self._work.put_nowait(partial(_fulfil, future, function))
        except queue.Full:
            raise WorkersBusy from None
        self._staff()
        try:
            return wait_off_hub(future.result, timeout_s)
        finally:
            future.cancel()

    def close(self) -> None:
        """Let the threads end when they have done what waits."""
        for _ in range(self._threads):
            with suppress(queue.Full):
                self._work.put_nowait(None)

    def _staff(self) -> None:
        """Start a thread if there is more work than threads: any of those may be stuck for good."""
        with self._lock:
            self._unfinished += 1
            if self._unfinished <= self._threads or self._threads >= self._count:
                return
            self._threads += 1
        threading.Thread(target=self._run, name="kvindex-tokenizer", daemon=True).start()

    def _run(self) -> None:
        while (work := self._work.get()) is not None:
            work()
            with self._lock:
                self._unfinished -= 1


def _fulfil(future: Future[T], function: Callable[[], T]) -> None:
    if future.set_running_or_notify_cancel():
        try:
            future.set_result(function())
        except BaseException as error:
            future.set_exception(error)
