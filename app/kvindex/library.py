"""Tokenizers by the name of their model, loaded when they are first asked for, or found in a folder."""

from __future__ import annotations

import os
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path

from cachetools import LRUCache, TTLCache
from gevent import monkey

from app.clock.pause import call_off_hub, wait_off_hub
from app.tokenization.base import Tokenizer, TokenizerError, TokenizerLoadError, TokenizerServiceError

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
        # Held while the disk is read: whoever asks meanwhile waits for it, beside the event loop.
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
    """Nobody knows a tokenizer for the model that a request names: its mistake, status 404."""


class TokenizerLibrary:
    """Finds the tokenizer of a model: a ready one, a loaded one, or one to load. For threads and greenlets.

    A model is loaded once, however many ask for it, and never in the event loop. Who asks waits for
    `timeout_s` at most; the load goes on, and its tokenizer is there for whoever asks later.

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
        self._loading: dict[str, Future[Tokenizer]] = {}
        self._places = threading.Semaphore(LOADS_AT_ONCE)
        self._lock = threading.Lock()

    @property
    def size_bytes(self) -> int:
        """What the loaded tokenizers and the remembered failures take, rather too much than too little."""
        with self._lock:
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
        ready = self._ready.get(model)
        if ready is not None:
            return ready
        with self._lock:
            loaded = self._loaded.get(model)
            if loaded is not None:
                return loaded
            failure = self._failed.get(model)
            if failure is not None:
                raise _again(failure)
            future = self._loading.get(model) or self._start(model)
        return self._wait(model, future)

    def _wait(self, model: str, future: Future[Tokenizer]) -> Tokenizer:
        try:
            failure = wait_off_hub(future.exception, self._timeout_s)
        except TimeoutError:
            raise TokenizerServiceError(
                f"The tokenizer of the model {_shown(model)} was not loaded within {self._timeout_s:g} s."
            ) from None
        if failure is not None:
            raise _again(failure)
        return future.result()

    def _start(self, model: str) -> Future[Tokenizer]:
        if self._is_hopeless(model):
            raise _unknown(model)
        if len(self._loading) >= WAITING_LOADS:
            raise TokenizerServiceError("Too many tokenizers are being loaded; try again later.")
        future: Future[Tokenizer] = Future()
        # A greenlet where gevent is at work; a daemon, as a load that hangs must not keep the process alive.
        threading.Thread(target=self._run, args=(model, future), name="tokenizer", daemon=True).start()
        self._loading[model] = future
        return future

    def _is_hopeless(self, model: str) -> bool:
        return model not in self._sources and self._discovery is None and not self._is_on_hub(model)

    def _is_on_hub(self, model: str) -> bool:
        return self._hub and ".." not in model and HUB_NAME.fullmatch(model) is not None

    def _run(self, model: str, future: Future[Tokenizer]) -> None:
        outcome: Tokenizer | TokenizerLoadError
        try:
            with self._places:
                outcome = call_off_hub(self._outcome, model)
        except BaseException as error:  # such as the end of the greenlet
            outcome = _failure(model, error)
        with self._lock:
            del self._loading[model]
            if not isinstance(outcome, TokenizerLoadError):
                with suppress(ValueError):  # larger than all of them may be: not remembered
                    self._loaded[model] = outcome
            elif len(model) <= LONGEST_NAME:
                self._failed[model] = outcome
        if isinstance(outcome, TokenizerLoadError):
            future.set_exception(outcome)
        else:
            future.set_result(outcome)

    def _outcome(self, model: str) -> Tokenizer | TokenizerLoadError:
        # What is raised in a native thread, gevent prints.
        try:
            return self._find_and_load(model)
        except BaseException as error:
            return _failure(model, error)

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


def _again(error: BaseException) -> BaseException:
    """An error of its own for each who is told: a traceback grows with every raise."""
    return type(error)(str(error))


def _unknown(model: str) -> UnknownModelError:
    return UnknownModelError(f"There is no tokenizer for the model {_shown(model)}.")


def _shown(model: str) -> str:
    return f"`{model if len(model) <= LONGEST_NAME else model[:LONGEST_NAME] + '…'}`"
