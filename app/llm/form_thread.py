"""Forms are compiled in threads of their own: a large schema takes seconds, in which others are served."""

from __future__ import annotations

from collections.abc import Callable
from queue import SimpleQueue
from threading import Thread
from typing import Final

from app.engine.wire import TextForm
from app.llm.errors import RequestError
from app.llm.sampler import Form


class Compiling:
    """A form on its way. `is_done` tells that `form` or `error` is there; with `unwanted` it need not be."""

    __slots__ = ("error", "form", "is_done", "text", "unwanted")

    def __init__(self, text: TextForm) -> None:
        self.text = text
        self.form: Form | None = None
        self.error: str | None = None
        self.is_done = self.unwanted = False


AT_ONCE: Final = 2
"""So that one which takes long holds up no other."""


class FormThreads:
    """Compile `AT_ONCE` forms. The threads begin with the first ones, and end with the process."""

    def __init__(self, compile: Callable[[TextForm], Form]) -> None:
        self._compile = compile
        self._queue: SimpleQueue[Compiling] = SimpleQueue()
        self._threads: list[Thread] = []

    def put(self, text: TextForm) -> Compiling:
        if len(self._threads) < AT_ONCE:
            self._threads.append(Thread(target=self._run, name="forms", daemon=True))
            self._threads[-1].start()
        compiling = Compiling(text)
        self._queue.put(compiling)
        return compiling

    def _run(self) -> None:
        while True:
            compiling = self._queue.get()
            if not compiling.unwanted:
                self._do(compiling)
            compiling.is_done = True

    def _do(self, compiling: Compiling) -> None:
        try:
            compiling.form = self._compile(compiling.text)
        except RequestError as error:
            compiling.error = str(error)
        except BaseException as error:  # a panic of the library is no Exception
            compiling.error = f"The form that is asked for could not be compiled: {type(error).__name__}."
