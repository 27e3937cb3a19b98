"""Prompts of any model as token ids, in time or refused; tokenizers by the names of their models."""

from __future__ import annotations

import os
import re
import time
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import count
from pathlib import Path
from sys import getsizeof
from typing import TypeVar
from weakref import WeakKeyDictionary

import gevent
from cachetools import LRUCache, TTLCache
from gevent import monkey
from gevent.event import AsyncResult
from gevent.lock import BoundedSemaphore
from msgspec import Struct

from app.clock.pause import call_off_hub
from app.kvcache.memo import Memo
from app.kvindex.metrics import IndexMetrics
from app.tokenization import LocalTokenizer
from app.tokenization.base import (
    PLAIN_CHAT,
    ChatOptions,
    Message,
    Tokenizer,
    TokenizerError,
    TokenizerLoadError,
    TokenizerServiceError,
)

T = TypeVar("T")
Find = Callable[[str], Tokenizer]
"""A model's name -> its tokenizer, as `TokenizerLibrary.get`. TokenizerError when there is none."""

MOST_WAITING = 1_000
"""Prompts that may wait for their turn."""
PROMPTS_BYTES = 48 << 20
"""Memory of the prompts whose token ids are remembered."""


class TokenizationTimeout(Exception):
    """A prompt was not tokenized in time."""


class TokenizationBusy(Exception):
    """Too many prompts wait to be tokenized."""


class TokenizationSettings(Struct, frozen=True, kw_only=True):
    """`timeout_s` is for one prompt; finding its tokenizer has a limit of its own.

    `workers` prompts are tokenized at a time. `prompts_bytes` bounds the memory of remembered prompts.
    """

    workers: int = 5
    most_waiting: int = MOST_WAITING
    timeout_s: float = 10.0
    prompts_bytes: int = PROMPTS_BYTES


class Tokenization:
    """Turns prompts into token ids, and remembers those of the latest prompts. For greenlets.

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
        self.prompts: Memo[tuple[int, bool, str], array[int]] = Memo(settings.prompts_bytes)
        self._numbers: WeakKeyDictionary[LocalTokenizer, int] = WeakKeyDictionary()
        self._next_number = count()
        self._workers = BoundedSemaphore(settings.workers)
        self._unfinished = 0

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

    def _in_time(self, work: Callable[[], T]) -> T:
        if self._unfinished >= self._settings.workers + self._settings.most_waiting:
            raise TokenizationBusy("Too many prompts wait to be tokenized.")
        self._unfinished += 1
        try:
            with gevent.Timeout(self._settings.timeout_s, TimeoutError), self._workers:
                return work()
        except TimeoutError:
            raise TokenizationTimeout(
                f"The prompt was not tokenized within {self._settings.timeout_s:g} seconds."
            ) from None
        finally:
            self._unfinished -= 1

    def _encode(self, tokenizer: Tokenizer, text: str, add_special_tokens: bool) -> list[int]:
        began_s = self._clock()
        tokens = self._tokens(tokenizer, text, add_special_tokens)
        self._metrics.tokenized(tokenizer.name, self._clock() - began_s, len(tokens))
        return tokens

    def _tokens(self, tokenizer: Tokenizer, text: str, add_special_tokens: bool) -> list[int]:
        """Token ids, remembered for tokenizers of this process; a remote one is called every time."""
        if not isinstance(tokenizer, LocalTokenizer):
            return tokenizer.encode(text, add_special_tokens)
        if tokenizer not in self._numbers:
            self._numbers[tokenizer] = next(self._next_number)
        key = self._numbers[tokenizer], add_special_tokens, text
        known = self.prompts.get(key)
        if known is not None:
            return known.tolist()
        ids = tokenizer.encode(text, add_special_tokens)
        packed = array("I", ids)
        if self.prompts.get(key) is None:
            self.prompts.put(key, packed, getsizeof(text) + getsizeof(packed))
        return ids

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


TOKENIZER_FILE = "tokenizer.json"
RESCAN_S = 10.0
"""Least seconds between two scans: a directory of models may be a slow network file system."""
REPOSITORY, SNAPSHOTS = "models--", "snapshots"


class Discovery:
    """Finds the tokenizer of a model, in a native thread; looks again for a missing one, but not too often.

    Args:
        directory: where models are mounted; may be missing, or filled later.
        now: monotonic clock, seconds.
    """

    def __init__(self, directory: Path, now: Callable[[], float]) -> None:
        self._directory = directory
        self._now = now
        self._found: dict[str, Path] = {}
        self._scan_from_s = now()
        # Held while the disk is read: other native threads wait for it, beside the event loop.
        self._scanning = monkey.get_original("threading", "Lock")()

    def find(self, model: str) -> Path | None:
        """The tokenizer file of `model`; None when it was not there at the last scan. May read the disk."""
        with self._scanning:
            if model not in self._found and self._now() >= self._scan_from_s:
                self._found = dict(discover(self._directory))
                self._scan_from_s = self._now() + RESCAN_S
            return self._found.get(model)


def discover(directory: Path) -> Iterator[tuple[str, Path]]:
    """Name and file of every tokenizer below `directory`; of several with a name, the current one comes last.

    Folders that cannot be read are passed over, links to folders not followed.
    """
    files = [
        Path(folder, TOKENIZER_FILE) for folder, _, names in os.walk(directory) if TOKENIZER_FILE in names
    ]
    for file in sorted(files, key=_age):
        yield model_name(file.parent.relative_to(directory)) or directory.name, file


def model_name(folder: Path) -> str:
    """`org/name` of `.../models--org--name/snapshots/<hash>`, else the path as it is; empty for `.`."""
    match folder.parts[-3:]:
        case (repository, snapshots, _) if repository.startswith(REPOSITORY) and snapshots == SNAPSHOTS:
            return repository.removeprefix(REPOSITORY).replace("--", "/", 1)
    return "/".join(folder.parts)


def _age(file: Path) -> tuple[bool, float, str]:
    """Sorts what `refs/main` of a repository points to last, else what was written last."""
    snapshot = file.parent
    try:
        current = snapshot.parents[1].joinpath("refs", "main").read_text("utf-8").strip() == snapshot.name
    except (OSError, ValueError, IndexError):
        current = False
    try:
        written_s = file.stat().st_mtime
    except OSError:
        written_s = 0.0
    return current, written_s, str(file)


LIMIT_BYTES = 2 << 30
"""Memory of loaded tokenizers: about twenty with 128,000 tokens each."""
TOKEN_BYTES = 320
"""Memory of one token of a vocabulary, with the merge that makes it; measured."""
MOST_FAILURES = 1024
FAILURE_BYTES = 2000
"""Memory of a remembered failure, with a name of `LONGEST_NAME` characters and its text."""
FAILURE_S = 10.0
"""For so long a load that failed is not tried again."""
LOADS_AT_ONCE = 2
WAITING_LOADS = 64
"""Models that may be on their way; for a further one there is an error at once."""
LONGEST_NAME = 200
"""Characters of a model's name that are repeated in an error."""
HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*", re.ASCII)


class UnknownModelError(TokenizerLoadError):
    """A request names a model that has no tokenizer: the client's mistake, status 404."""


class TokenizerLibrary:
    """Finds the tokenizer of a model: a ready one, a loaded one, or one to load. For greenlets.

    A model is loaded once, however many requests wait for it, and never in the event loop. A request waits
    for `timeout_s` at most; the load goes on, and later requests find its tokenizer.

    Args:
        load: folder, file or hub name -> tokenizer; may block and raise anything.
        timeout_s: seconds that a request waits.
        ready: tokenizers by model, such as the server's own; they are never dropped.
        sources: model -> what `load` is given.
        discovery: where further models are looked for.
        hub: give `load` the names of all other models too, if they look like `organisation/name`.
        limit_bytes: memory of loaded tokenizers; the one that was not used for longest is dropped.
        now: monotonic clock, seconds.
    """

    def __init__(
        self,
        load: Callable[[str], Tokenizer],
        *,
        timeout_s: float,
        ready: Mapping[str, Tokenizer] | None = None,
        sources: Mapping[str, str] | None = None,
        discovery: Discovery | None = None,
        hub: bool = False,
        limit_bytes: int = LIMIT_BYTES,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._load = load
        self._ready = dict(ready or {})
        self._sources = dict(sources or {})
        self._discovery = discovery
        self._hub = hub
        self._timeout_s = timeout_s
        self._loaded: LRUCache[str, Tokenizer] = LRUCache(limit_bytes, getsizeof=tokenizer_bytes)
        self._failed: TTLCache[str, TokenizerLoadError] = TTLCache(MOST_FAILURES, FAILURE_S, timer=now)
        self._loading: dict[str, AsyncResult[Tokenizer | TokenizerLoadError]] = {}
        self._places = BoundedSemaphore(LOADS_AT_ONCE)

    @property
    def size_bytes(self) -> int:
        """What the loaded tokenizers and the remembered failures take, rather too much than too little."""
        return int(self._loaded.currsize) + FAILURE_BYTES * len(self._failed)

    @property
    def limit_bytes(self) -> int:
        return int(self._loaded.maxsize) + FAILURE_BYTES * MOST_FAILURES

    def get(self, model: str) -> Tokenizer:
        """The tokenizer of `model`.

        Raises:
            UnknownModelError: there is none.
            TokenizerLoadError: it could not be loaded just now or a short time ago.
            TokenizerServiceError: it is not loaded in time, or too many others are being loaded.
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
            raise type(known)(str(known))  # one for each request: a traceback grows with every raise
        return known

    def _start(self, model: str) -> AsyncResult[Tokenizer | TokenizerLoadError]:
        if model not in self._sources and self._discovery is None and not self._is_on_hub(model):
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
        except BaseException as error:  # also the end of the greenlet
            outcome = _failure(model, error)
        del self._loading[model]
        if not isinstance(outcome, TokenizerLoadError):
            with suppress(ValueError):  # larger than all of them may be: not remembered
                self._loaded[model] = outcome
        elif len(model) <= LONGEST_NAME:
            self._failed[model] = outcome
        loading.set(outcome)

    def _find_and_load(self, model: str) -> Tokenizer:
        source = self._sources.get(model)
        if source is None and self._discovery is not None:
            found = self._discovery.find(model)
            source = None if found is None else str(found)
        if source is None and self._is_on_hub(model):
            source = model
        if source is None:
            raise _unknown(model)
        return self._load(source)


def tokenizer_bytes(tokenizer: Tokenizer) -> int:
    """Memory of a tokenizer: of its vocabulary, and of its own caches when they are full."""
    caches = sum(cache.limit_bytes for cache in tokenizer.caches.values())
    return caches + TOKEN_BYTES * (tokenizer.vocab_size or 0)


def _failure(model: str, error: BaseException) -> TokenizerLoadError:
    if isinstance(error, UnknownModelError):
        return error
    reason = str(error) if isinstance(error, TokenizerError) else f"{type(error).__name__}: {error}"
    return TokenizerLoadError(f"The tokenizer of the model {_shown(model)} cannot be loaded: {reason}")


def _unknown(model: str) -> UnknownModelError:
    return UnknownModelError(f"There is no tokenizer for the model {_shown(model)}.")


def _shown(model: str) -> str:
    return f"`{model if len(model) <= LONGEST_NAME else model[:LONGEST_NAME] + '…'}`"
