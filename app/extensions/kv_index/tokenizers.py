"""Tokenizers of models by name: found in folders or on the hub, loaded on demand."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

import gevent
from cachetools import LRUCache, TTLCache
from gevent.event import AsyncResult
from gevent.lock import BoundedSemaphore
from msgspec import Struct

from app.core.base.clock.pause import call_off_hub
from app.core.text.base import Tokenizer, TokenizerError, TokenizerLoadError, TokenizerServiceError

TOKENIZER_FILE = "tokenizer.json"
LIMIT_BYTES = 2 << 30
"""Memory limit of loaded tokenizers, in bytes."""
TOKEN_BYTES = 320
"""Memory of a vocabulary's token with its merge (measured), in bytes."""
MAX_FAILURES = 1024
"""Maximum number of remembered failures."""
FAILURE_BYTES = 2000
"""Memory of a remembered failure, in bytes."""
FAILURE_S = 10.0
"""Time after a failure until the load is tried again, in seconds."""
MAX_LOADING = 2
"""Maximum number of loads at a time."""
MAX_PENDING = 64
"""Maximum number of models that load or wait; a further model is rejected."""
MAX_NAME_LENGTH = 200
"""Maximum length of a model's name in an error message, in characters."""
HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*", re.ASCII)


class UnknownModelError(TokenizerLoadError):
    """Raised for a model without a tokenizer: the client's mistake, status 404."""


class TokenizerSources(Struct, frozen=True, kw_only=True):
    """Sources of tokenizers.

    `ready` has loaded tokenizers by model, `by_model` the source of further models, and `folder`
    files of others. With `hub`, all names of the form `organization/name` are loaded, too.
    """

    ready: Mapping[str, Tokenizer] = {}
    by_model: Mapping[str, str] = {}
    folder: Path | None = None
    hub: bool = False

    def find(self, model: str) -> str | None:
        """Returns the source of a model's tokenizer; None for an unknown model."""
        source: str | None = self.by_model.get(model)
        if source is None and self.folder is not None:
            file = find_tokenizer(self.folder, model)
            if file is not None:
                source = str(file)
        if source is None and self.is_on_hub(model):
            source = model
        return source

    def may_have(self, model: str) -> bool:
        """Returns False for a model that is certainly unknown; does not look at files."""
        return model in self.by_model or self.folder is not None or self.is_on_hub(model)

    def is_on_hub(self, model: str) -> bool:
        """Returns True for a name that is looked up on the hub."""
        return self.hub and ".." not in model and HUB_NAME.fullmatch(model) is not None


class TokenizerLibrary:
    """Returns the tokenizer of a model: ready, loaded, or loaded now. Greenlets may share it.

    Requests for the same model share one load, which runs outside the event loop. A request waits
    at most `timeout_s`; the load continues, and later requests find the tokenizer.

    `load` gets a folder, file or hub name; it may block and raise anything. Loaded tokenizers are
    dropped above `limit_bytes`, the least recently used first. `now` is monotonic, in seconds.
    """

    def __init__(
        self,
        load: Callable[[str], Tokenizer],
        sources: TokenizerSources,
        *,
        timeout_s: float,
        limit_bytes: int = LIMIT_BYTES,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._load = load
        self._sources = sources
        self._timeout_s = timeout_s
        self._loaded: LRUCache[str, Tokenizer] = LRUCache(limit_bytes, getsizeof=tokenizer_bytes)
        self._failures: TTLCache[str, TokenizerLoadError] = TTLCache(
            MAX_FAILURES, FAILURE_S, timer=now
        )
        self._pending: dict[str, AsyncResult[Tokenizer | TokenizerLoadError]] = {}
        self._load_slots = BoundedSemaphore(MAX_LOADING)

    @property
    def size_bytes(self) -> int:
        """Memory of loaded tokenizers and remembered failures, in bytes; an upper estimate."""
        return int(self._loaded.currsize) + FAILURE_BYTES * len(self._failures)

    @property
    def limit_bytes(self) -> int:
        """Memory limit of loaded tokenizers and remembered failures, in bytes."""
        return int(self._loaded.maxsize) + FAILURE_BYTES * MAX_FAILURES

    def get(self, model: str) -> Tokenizer:
        """Returns the tokenizer of `model`.

        Raises:
            UnknownModelError: the model has no tokenizer.
            TokenizerLoadError: a load failed at most `FAILURE_S` ago.
            TokenizerServiceError: the load takes too long, or too many models load.
        """
        result = (
            self._sources.ready.get(model) or self._loaded.get(model) or self._failures.get(model)
        )
        if result is None:
            pending = self._pending.get(model) or self._start_load(model)
            result = pending.wait(self._timeout_s)
        if result is None:
            raise TokenizerServiceError(
                f"The tokenizer for the model {_quote(model)} was not loaded"
                f" within {self._timeout_s:g} s."
            )
        if isinstance(result, TokenizerLoadError):
            # A new error for each request: a traceback grows with every raise.
            raise type(result)(str(result))
        return result

    def _start_load(self, model: str) -> AsyncResult[Tokenizer | TokenizerLoadError]:
        if not self._sources.may_have(model):
            raise _unknown_model(model)
        if len(self._pending) >= MAX_PENDING:
            raise TokenizerServiceError("Too many tokenizers are being loaded; try again later.")
        pending = self._pending[model] = AsyncResult()
        gevent.spawn(self._run_load, model, pending)
        return pending

    def _run_load(self, model: str, pending: AsyncResult[Tokenizer | TokenizerLoadError]) -> None:
        result: Tokenizer | TokenizerLoadError
        try:
            with self._load_slots:
                result = call_off_hub(self._find_and_load, model)
        except UnknownModelError as error:
            result = error
        except BaseException as error:  # also when the greenlet is killed
            reason = str(error)
            if not isinstance(error, TokenizerError):
                reason = f"{type(error).__name__}: {error}"
            result = TokenizerLoadError(
                f"The tokenizer for the model {_quote(model)} cannot be loaded: {reason}"
            )
        del self._pending[model]
        if not isinstance(result, TokenizerLoadError):
            with suppress(ValueError):  # larger than the limit: not remembered
                self._loaded[model] = result
        elif len(model) <= MAX_NAME_LENGTH:
            self._failures[model] = result
        pending.set(result)

    def _find_and_load(self, model: str) -> Tokenizer:
        source = self._sources.find(model)
        if source is None:
            raise _unknown_model(model)
        return self._load(source)


def find_tokenizer(directory: Path, model: str) -> Path | None:
    """Finds a model's file below `directory`: by its path, or in a Hugging Face cache.

    The cache is `directory` or its folder `hub`; its current snapshot is used. Returns None without
    a file, and for a name that leads elsewhere.
    """
    if any(part in ("", ".", "..") for part in model.split("/")):
        return None
    files = [directory / model / TOKENIZER_FILE]
    if model == directory.name:
        files.append(directory / TOKENIZER_FILE)
    try:
        for cache in (directory, directory / "hub"):
            snapshots = cache / f"models--{model.replace('/', '--')}" / "snapshots"
            files += sorted(snapshots.glob(f"*/{TOKENIZER_FILE}"), key=_snapshot_age, reverse=True)
        return next((file for file in files if file.is_file()), None)
    except (OSError, ValueError):  # a name that no file can have
        return None


def _snapshot_age(file: Path) -> tuple[bool, float]:
    """Sorts the snapshot of a repository's `refs/main` last, the others by their time."""
    current = ""
    with suppress(OSError, ValueError):
        current = (file.parents[2] / "refs" / "main").read_text("utf-8").strip()
    return current == file.parent.name, file.stat().st_mtime


def tokenizer_bytes(tokenizer: Tokenizer) -> int:
    """Returns the memory of a tokenizer, in bytes: its vocabulary, and its caches when full."""
    caches = sum(cache.limit_bytes for cache in tokenizer.caches.values())
    return caches + TOKEN_BYTES * (tokenizer.vocab_size or 0)


def _unknown_model(model: str) -> UnknownModelError:
    return UnknownModelError(f"There is no tokenizer for the model {_quote(model)}.")


def _quote(model: str) -> str:
    if len(model) > MAX_NAME_LENGTH:
        model = model[:MAX_NAME_LENGTH] + "…"
    return f"`{model}`"
