"""Tokenizers by model, loaded once however many ask, and prompts tokenized in time or refused."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import TypeVar

from cachetools import LRUCache, TTLCache
from msgspec import Struct

from app.kvindex.metrics import IndexMetrics
from app.kvindex.prefix_store import MOST_CHUNKS, PrefixStore
from app.kvindex.prompt_tokens import PromptTokens
from app.kvindex.workers import Workers, WorkersBusy
from app.tokenization.base import PLAIN_CHAT, ChatOptions, Message, Tokenizer, TokenizerLoadError

T = TypeVar("T")
Load = Callable[[str], Tokenizer]
"""A model's name -> its tokenizer. TokenizerLoadError when there is none."""

MOST_FAILURES = 1_000


class TokenizationTimeout(Exception):
    """A prompt was not tokenized in time."""


class TokenizationBusy(Exception):
    """Too many prompts wait to be tokenized."""


class TokenizationSettings(Struct, frozen=True, kw_only=True):
    """`timeout_s` is for one prompt, loading its tokenizer included. A model without one is not looked for
    again for `forget_failure_s`. `prefix_chunks` of 0 remembers no texts."""

    workers: int = 5
    most_waiting: int = 1_000
    timeout_s: float = 10.0
    most_tokenizers: int = 20
    forget_failure_s: float = 10.0
    prefix_chunks: int = MOST_CHUNKS


class LoadedTokenizers:
    """The tokenizers that were used last, ready for prompts. Who asks for one that is being loaded waits."""

    def __init__(
        self,
        load: Callable[[str], PromptTokens],
        most: int,
        forget_failure_s: float,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._load = load
        self._loaded: LRUCache[str, PromptTokens] = LRUCache(most)
        self._failed: TTLCache[str, TokenizerLoadError] = TTLCache(MOST_FAILURES, forget_failure_s, timer=now)
        self._loading: dict[str, Future[PromptTokens]] = {}
        self._lock = threading.Lock()

    def get(self, model: str) -> PromptTokens:
        """The tokenizer of a model. Raises TokenizerLoadError when it has none."""
        with self._lock:
            known = self._loaded.get(model)
            if known is not None:
                return known
            failed = self._failed.get(model)
            if failed is not None:
                raise TokenizerLoadError(str(failed))
            waiting = self._loading.get(model)
            if waiting is None:
                mine = self._loading[model] = Future()
        return self._begin(model, mine) if waiting is None else waiting.result()

    def _begin(self, model: str, future: Future[PromptTokens]) -> PromptTokens:
        try:
            loaded = self._load(model)
        except BaseException as error:
            with self._lock:
                if isinstance(error, TokenizerLoadError):
                    self._failed[model] = error
                del self._loading[model]
            future.set_exception(error)
            raise
        with self._lock:
            self._loaded[model] = loaded
            del self._loading[model]
        future.set_result(loaded)
        return loaded


class Tokenization:
    """Prompts of any model as token ids.

    Every method may raise TokenizerError (no tokenizer for the model, or a prompt that cannot be used),
    `TokenizationTimeout` and `TokenizationBusy`.
    """

    def __init__(
        self,
        load: Load,
        settings: TokenizationSettings = TokenizationSettings(),  # noqa: B008 (immutable)
        metrics: IndexMetrics | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._settings, self._metrics, self._clock = settings, metrics or IndexMetrics(), clock
        store = PrefixStore(settings.prefix_chunks) if settings.prefix_chunks else None
        lock = threading.Lock()
        self._tokenizers = LoadedTokenizers(
            lambda model: PromptTokens(load(model), store, lock),
            settings.most_tokenizers,
            settings.forget_failure_s,
            clock,
        )
        self._workers = Workers(settings.workers, settings.most_waiting)

    def encode(self, model: str, text: str, add_special_tokens: bool = True) -> list[int]:
        """The tokens of a plain prompt."""
        return self._in_time(lambda: self._encode(model, text, add_special_tokens))

    def encode_chat(
        self, model: str, messages: Sequence[Message], options: ChatOptions = PLAIN_CHAT
    ) -> list[int]:
        """The tokens of a conversation."""
        return self._in_time(lambda: self._encode_chat(model, messages, options))

    def render_chat(self, model: str, messages: Sequence[Message], options: ChatOptions = PLAIN_CHAT) -> str:
        """The prompt of a conversation as text."""
        return self._in_time(
            lambda: self._render_chat(self._tokenizers.get(model).tokenizer, messages, options)
        )

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

    def _encode(self, model: str, text: str, add_special_tokens: bool) -> list[int]:
        prompts = self._tokenizers.get(model)
        began_s = self._clock()
        tokens = prompts.encode(text, add_special_tokens)
        self._metrics.tokenized(prompts.tokenizer.name, self._clock() - began_s, len(tokens))
        return tokens

    def _encode_chat(self, model: str, messages: Sequence[Message], options: ChatOptions) -> list[int]:
        tokenizer = self._tokenizers.get(model).tokenizer
        if tokenizer.longest_token is None:  # a remote one: its service does both in one call
            return tokenizer.encode_chat(messages, options)
        text = self._render_chat(tokenizer, messages, options)
        return self._encode(model, text, options.add_special_tokens)

    def _render_chat(self, tokenizer: Tokenizer, messages: Sequence[Message], options: ChatOptions) -> str:
        began_s = self._clock()
        text = tokenizer.render_chat(messages, options)
        self._metrics.rendered(tokenizer.name, self._clock() - began_s)
        return text
