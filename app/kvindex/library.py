"""Tokenizers by the name of their model, loaded when they are first asked for."""

import re
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future

from cachetools import LRUCache, TTLCache

from app.clock.pause import call_off_hub
from app.kvindex.discovery import Discovery
from app.tokenization.base import Tokenizer, TokenizerError, TokenizerLoadError, TokenizerServiceError

CAPACITY = 20
TIMEOUT_S = 5.0
FAILURE_S = 10.0
LOADS_AT_ONCE = 2
WAITING_LOADS = 64
"""Models that may be on their way; for a further one there is an error at once."""
REMEMBERED_FAILURES = 1_000
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
        ready: tokenizers by model, such as the server's own; they are never dropped.
        sources: model -> what `load` is given.
        discovery: where further models are looked for.
        hub: give `load` the names of all other models too, if they look like `organisation/name`.
        capacity: loaded tokenizers to keep; the one that was not used for longest is dropped.
        timeout_s: seconds that a request waits.
        failure_s: seconds for which a load that failed is not tried again.
        loads_at_once: loads that run at the same time.
        now: monotonic clock, seconds.
    """

    def __init__(
        self,
        load: Callable[[str], Tokenizer],
        *,
        ready: Mapping[str, Tokenizer] | None = None,
        sources: Mapping[str, str] | None = None,
        discovery: Discovery | None = None,
        hub: bool = False,
        capacity: int = CAPACITY,
        timeout_s: float = TIMEOUT_S,
        failure_s: float = FAILURE_S,
        loads_at_once: int = LOADS_AT_ONCE,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._load = load
        self._ready = dict(ready or {})
        self._sources = dict(sources or {})
        self._discovery = discovery
        self._hub = hub
        self._timeout_s = timeout_s
        self._loaded: LRUCache[str, Tokenizer] = LRUCache(capacity)
        self._failed: TTLCache[str, TokenizerLoadError] = TTLCache(REMEMBERED_FAILURES, failure_s, timer=now)
        self._loading: dict[str, Future[Tokenizer]] = {}
        self._places = threading.Semaphore(loads_at_once)
        self._lock = threading.Lock()

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
            failure = future.exception(self._timeout_s)
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
            if isinstance(outcome, TokenizerLoadError):
                self._failed[model] = outcome
            else:
                self._loaded[model] = outcome
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
