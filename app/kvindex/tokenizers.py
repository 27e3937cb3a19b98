"""Tokenization of prompts for any model, within a time limit; tokenizers by model."""

from __future__ import annotations

import re
import time
from array import array
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from sys import getsizeof
from typing import TypeVar

import gevent
from cachetools import LRUCache, TTLCache
from gevent.event import AsyncResult
from gevent.lock import BoundedSemaphore

from app.base.clock.pause import call_off_hub
from app.engine.kvcache.memo import Memo
from app.kvindex.metrics import IndexMetrics
from app.text.base import (
    PLAIN_CHAT,
    ChatOptions,
    Message,
    Tokenizer,
    TokenizerError,
    TokenizerLoadError,
    TokenizerServiceError,
)
from app.text.huggingface import LocalTokenizer

T = TypeVar("T")

WORKERS, MOST_WAITING = 5, 1_000
"""Prompts that are tokenized at a time, and most prompts that wait."""
PROMPTS_BYTES = 48 << 20
"""Memory of prompts with remembered token ids, in bytes."""


class TokenizationTimeout(Exception):
    """Raised when a prompt was not tokenized in time."""


class TokenizationBusy(Exception):
    """Raised when too many prompts wait for tokenization."""


class Tokenization:
    """Converts prompts to token ids, and remembers the latest prompts. For greenlets.

    Every method may raise TokenizerError (no tokenizer for the model, or an unusable prompt),
    `TokenizationTimeout` and `TokenizationBusy`.
    """

    def __init__(
        self,
        find: Callable[[str], Tokenizer],
        metrics: IndexMetrics,
        timeout_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`find` is `TokenizerLibrary.get`.

        `timeout_s` limits one prompt, without loading its tokenizer.
        """
        self._find, self._metrics, self._timeout_s, self._clock = find, metrics, timeout_s, clock
        self.prompts: Memo[tuple[str, bool, str], array[int]] = Memo(PROMPTS_BYTES)
        """Model, special tokens or not, and text -> token ids."""
        self._workers = BoundedSemaphore(WORKERS)
        self._unfinished = 0

    def encode(self, model: str, text: str, add_special_tokens: bool = True) -> list[int]:
        tokenizer = self._find(model)
        return self._in_time(lambda: self._encode(model, tokenizer, text, add_special_tokens))

    def encode_chat(
        self, model: str, messages: Sequence[Message], options: ChatOptions = PLAIN_CHAT
    ) -> list[int]:
        tokenizer = self._find(model)
        if tokenizer.longest_token is None:  # a remote tokenizer: one call renders and tokenizes
            return self._in_time(lambda: tokenizer.encode_chat(messages, options))

        def work() -> list[int]:
            text = self._render_chat(tokenizer, messages, options)
            return self._encode(model, tokenizer, text, options.add_special_tokens)

        return self._in_time(work)

    def render_chat(
        self, model: str, messages: Sequence[Message], options: ChatOptions = PLAIN_CHAT
    ) -> str:
        tokenizer = self._find(model)
        return self._in_time(lambda: self._render_chat(tokenizer, messages, options))

    def _in_time(self, work: Callable[[], T]) -> T:
        if self._unfinished >= WORKERS + MOST_WAITING:
            raise TokenizationBusy("Too many prompts wait to be tokenized.")
        self._unfinished += 1
        try:
            with gevent.Timeout(self._timeout_s, TimeoutError), self._workers:
                return work()
        except TimeoutError:
            raise TokenizationTimeout(
                f"The prompt was not tokenized within {self._timeout_s:g} seconds."
            ) from None
        finally:
            self._unfinished -= 1

    def _encode(
        self, model: str, tokenizer: Tokenizer, text: str, add_special_tokens: bool
    ) -> list[int]:
        """Returns token ids, cached for tokenizers in this process; a remote tokenizer is always
        called.
        """
        began_s = self._clock()
        if isinstance(tokenizer, LocalTokenizer):
            key = model, add_special_tokens, text
            known = self.prompts.get(key)
            if known is None:
                known = array("I", tokenizer.encode(text, add_special_tokens))
                self.prompts.put(key, known, getsizeof(text) + getsizeof(known))
            ids = known.tolist()
        else:
            ids = tokenizer.encode(text, add_special_tokens)
        self._metrics.tokenized(tokenizer.name, self._clock() - began_s, len(ids))
        return ids

    def _render_chat(
        self, tokenizer: Tokenizer, messages: Sequence[Message], options: ChatOptions
    ) -> str:
        began_s = self._clock()
        text = tokenizer.render_chat(messages, options)
        self._metrics.rendered(tokenizer.name, self._clock() - began_s)
        return text


TOKENIZER_FILE = "tokenizer.json"


def find_tokenizer(directory: Path, model: str) -> Path | None:
    """Finds a model's file below `directory`: by its path, or the current snapshot of a Hugging
    Face cache.

    The cache is `directory` or its folder `hub`. Returns None without a file, and for a name that
    leads elsewhere.
    """
    if any(part in ("", ".", "..") for part in model.split("/")):
        return None
    files = [directory / model / TOKENIZER_FILE]
    if model == directory.name:
        files.append(directory / TOKENIZER_FILE)
    try:
        for cache in (directory, directory / "hub"):
            snapshots = cache / f"models--{model.replace('/', '--')}" / "snapshots"
            files += sorted(snapshots.glob(f"*/{TOKENIZER_FILE}"), key=_age, reverse=True)
        return next((file for file in files if file.is_file()), None)
    except (OSError, ValueError):  # a name that no file can have
        return None


def _age(file: Path) -> tuple[bool, float]:
    """Sort key:

    the snapshot of a repository's `refs/main` comes last, otherwise the latest file.
    """
    current = ""
    with suppress(OSError, ValueError):
        current = (file.parents[2] / "refs" / "main").read_text("utf-8").strip()
    return current == file.parent.name, file.stat().st_mtime


LIMIT_BYTES, TOKEN_BYTES = 2 << 30, 320
"""Memory of loaded tokenizers, and of a vocabulary's token with its merge (measured), in bytes."""
MOST_FAILURES, FAILURE_BYTES, FAILURE_S = 1024, 2000, 10.0
"""Remembered failures: how many, memory of one in bytes, seconds until the load is tried again."""
LOADS_AT_ONCE, WAITING_LOADS = 2, 64
"""Loads at a time, and most models that load or wait; a further model is refused at once."""
LONGEST_NAME = 200
"""Most characters of a model's name in an error message."""
HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*", re.ASCII)


class UnknownModelError(TokenizerLoadError):
    """Raised for a model without a tokenizer: the client's mistake, status 404."""


class TokenizerLibrary:
    """Finds the tokenizer of a model: ready, loaded, or loaded now. For greenlets.

    Requests for the same model share one load, which runs outside the event loop. A request waits
    at most `timeout_s`; the load continues, and later requests find the tokenizer.

    `load` gets a folder, file or hub name; it may block and raise anything. `ready` tokenizers are
    never dropped, loaded ones are above `limit_bytes`, the least recently used first. `sources` has
    the argument of `load` by model, `folder` has further files, and with `hub` all other names of
    the form `organisation/name` are loaded, too. `now` is monotonic, in seconds.
    """

    def __init__(
        self,
        load: Callable[[str], Tokenizer],
        *,
        timeout_s: float,
        ready: Mapping[str, Tokenizer] | None = None,
        sources: Mapping[str, str] | None = None,
        folder: Path | None = None,
        hub: bool = False,
        limit_bytes: int = LIMIT_BYTES,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._load, self._timeout_s = load, timeout_s
        self._ready, self._sources = dict(ready or {}), dict(sources or {})
        self._folder, self._hub = folder, hub
        self._loaded: LRUCache[str, Tokenizer] = LRUCache(limit_bytes, getsizeof=tokenizer_bytes)
        self._failed: TTLCache[str, TokenizerLoadError] = TTLCache(
            MOST_FAILURES, FAILURE_S, timer=now
        )
        self._loading: dict[str, AsyncResult[Tokenizer | TokenizerLoadError]] = {}
        self._places = BoundedSemaphore(LOADS_AT_ONCE)

    @property
    def size_bytes(self) -> int:
        """Memory of loaded tokenizers and remembered failures, in bytes; an upper estimate."""
        return int(self._loaded.currsize) + FAILURE_BYTES * len(self._failed)

    @property
    def limit_bytes(self) -> int:
        return int(self._loaded.maxsize) + FAILURE_BYTES * MOST_FAILURES

    def get(self, model: str) -> Tokenizer:
        """Returns the tokenizer of `model`.

        Raises UnknownModelError for a model without one, TokenizerLoadError for a load that failed
        at most FAILURE_S ago, and TokenizerServiceError if the load takes too long or too many
        models load.
        """
        known = self._ready.get(model) or self._loaded.get(model) or self._failed.get(model)
        if known is None:
            loading = self._loading.get(model) or self._start(model)
            known = loading.wait(self._timeout_s)
        if known is None:
            raise TokenizerServiceError(
                f"The tokenizer of the model {_shown(model)} was not loaded within {self._timeout_s:g} s."
            )
        if isinstance(known, TokenizerLoadError):
            raise type(known)(
                str(known)
            )  # a new error for each request: a traceback grows with every raise
        return known

    def _start(self, model: str) -> AsyncResult[Tokenizer | TokenizerLoadError]:
        if model not in self._sources and self._folder is None and not self._is_on_hub(model):
            raise _unknown(model)
        if len(self._loading) >= WAITING_LOADS:
            raise TokenizerServiceError("Too many tokenizers are being loaded; try again later.")
        loading = self._loading[model] = AsyncResult()
        gevent.spawn(self._run, model, loading)
        return loading

    def _is_on_hub(self, model: str) -> bool:
        return self._hub and ".." not in model and HUB_NAME.fullmatch(model) is not None

    def _run(self, model: str, loading: AsyncResult[Tokenizer | TokenizerLoadError]) -> None:
        outcome: Tokenizer | TokenizerLoadError
        try:
            with self._places:
                outcome = call_off_hub(self._find_and_load, model)
        except UnknownModelError as error:
            outcome = error
        except BaseException as error:  # also the end of the greenlet
            reason = (
                str(error)
                if isinstance(error, TokenizerError)
                else f"{type(error).__name__}: {error}"
            )
            outcome = TokenizerLoadError(
                f"The tokenizer of the model {_shown(model)} cannot be loaded: {reason}"
            )
        del self._loading[model]
        if not isinstance(outcome, TokenizerLoadError):
            with suppress(ValueError):  # larger than the limit: not remembered
                self._loaded[model] = outcome
        elif len(model) <= LONGEST_NAME:
            self._failed[model] = outcome
        loading.set(outcome)

    def _find_and_load(self, model: str) -> Tokenizer:
        source: str | Path | None = self._sources.get(model)
        if source is None and self._folder is not None:
            source = find_tokenizer(self._folder, model)
        if source is None and self._is_on_hub(model):
            source = model
        if source is None:
            raise _unknown(model)
        return self._load(str(source))


def tokenizer_bytes(tokenizer: Tokenizer) -> int:
    """Returns the memory of a tokenizer, in bytes: its vocabulary, and its caches when full."""
    caches = sum(cache.limit_bytes for cache in tokenizer.caches.values())
    return caches + TOKEN_BYTES * (tokenizer.vocab_size or 0)


def _unknown(model: str) -> UnknownModelError:
    return UnknownModelError(f"There is no tokenizer for the model {_shown(model)}.")


def _shown(model: str) -> str:
    return f"`{model if len(model) <= LONGEST_NAME else model[:LONGEST_NAME] + '…'}`"
