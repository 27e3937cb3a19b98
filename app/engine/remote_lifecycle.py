"""What an operator does to an engine in a process of its own: it does so itself, for all workers."""

from __future__ import annotations

from collections.abc import Collection

import gevent
from gevent.event import AsyncResult, Event

from app.engine.errors import CallerLeft, CommandFailed
from app.engine.remote import RemoteEngine
from app.engine.wire import Answer, Command, PauseMode


class RemoteLifecycle:
    """See `Operations`. Every method may raise EngineDead, or CommandFailed with what the engine says.

    How it stands is what the engine told last, or what our own command has changed since.
    """

    def __init__(self, engine: RemoteEngine) -> None:
        self._engine = engine

    @property
    def is_sleeping(self) -> bool:
        """See `Operations`."""
        return self._engine.load.sleep_level is not None

    @property
    def paused(self) -> bool:
        """See `Operations`."""
        return self._engine.load.paused

    def sleep(self, level: int, mode: PauseMode, caller_left: Event) -> None:
        """See `Operations`. Weights and cache are freed at levels 1 and 2."""
        self._do(Command(name="sleep", level=level, mode=mode), caller_left)
        self._engine.load.paused, self._engine.load.sleep_level = True, level
        self._engine.recorder.sleeping(level)
        self._engine.recorder.slept("sleep", 0.0)

    def release_cache(self) -> None:
        """See `Operations`. CommandFailed: memory is freed by `sleep`."""
        raise CommandFailed("This engine frees the memory of its KV cache when it sleeps at level 1 or 2.")

    def wake_up(self, tags: Collection[str] | None) -> bool:
        """See `Operations`."""
        named = None if tags is None else tuple(tags)
        awake = bool(self._do(Command(name="wake_up", tags=named)).value)
        if awake:
            self._engine.load.paused, self._engine.load.sleep_level = False, None
            self._engine.recorder.sleeping(None)
        self._engine.recorder.slept("wake", 0.0)
        return awake

    def pause(self, mode: PauseMode, caller_left: Event, clear_cache: bool = True) -> None:
        """See `Operations`."""
        self._do(Command(name="pause", mode=mode, clear=clear_cache), caller_left)
        self._engine.load.paused = True

    def resume(self) -> None:
        """See `Operations`."""
        self._do(Command(name="resume"))
        self._engine.load.paused = False

    def reset_prefix_cache(self, under_requests: bool = False) -> bool:
        """See `Operations`."""
        return bool(self._do(Command(name="reset_prefix_cache", clear=under_requests)).value)

    def drain(self) -> None:
        """See `Operations`: of this worker."""
        self._engine.drain()

    def _do(self, command: Command, caller_left: Event | None = None) -> Answer:
        answer: AsyncResult[Answer] = self._engine.command(command)
        gevent.wait([answer] if caller_left is None else [answer, caller_left], count=1)
        if not answer.ready():
            raise CallerLeft
        told: Answer = answer.get()
        if told.error is not None:
            raise CommandFailed(told.error)
        return told
