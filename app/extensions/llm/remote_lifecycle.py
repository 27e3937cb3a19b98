"""An operator's commands to an engine in another process."""

from __future__ import annotations

from collections.abc import Collection

import gevent
from gevent.event import AsyncResult, Event

from app.core.base.overload import ClientLeftError
from app.core.engine.errors import CommandFailedError
from app.core.engine.sleep import PauseMode, PauseRules
from app.extensions.llm.remote_engine import RemoteEngine
from app.extensions.llm.wire import CommandResult, EngineCommand


class RemoteLifecycle:
    """Does what `Lifecycle` does, by messages.

    Every method may raise EngineDeadError, or CommandFailedError with the engine's message.
    """

    def __init__(self, engine: RemoteEngine, rules: PauseRules = PauseRules()) -> None:  # noqa: B008
        self._engine = engine
        self._rules = rules

    @property
    def is_sleeping(self) -> bool:
        """True while memory of the engine is freed."""
        return self._engine.load.sleep_level is not None

    @property
    def paused(self) -> bool:
        """True from a pause or sleep until a resume, or until all memory is back."""
        return self._engine.load.paused

    def sleep(self, level: int, mode: PauseMode, caller_left: Event) -> None:
        """See `Lifecycle`. Levels 1 and 2 free weights and cache."""
        self._run(EngineCommand(name="sleep", level=level, mode=mode), caller_left)
        self._engine.load.paused = True
        self._engine.load.sleep_level = level
        self._engine.recorder.sleeping(level)
        self._engine.recorder.slept("sleep", 0.0)

    def release_cache(self) -> None:
        """Always raises CommandFailedError: the engine frees its cache only asleep."""
        raise CommandFailedError(
            "This engine can free its KV cache only by sleeping at level 1 or 2."
        )

    def wake_up(self, tags: Collection[str] | None) -> bool:
        """See `Lifecycle`."""
        tag_names = None
        if tags is not None:
            tag_names = tuple(tags)
        command = EngineCommand(name="wake_up", tags=tag_names)
        is_awake = bool(self._run(command).value)
        if is_awake:
            self._engine.load.paused = False
            self._engine.refuses_requests = False
            self._engine.load.sleep_level = None
            self._engine.recorder.sleeping(None)
        self._engine.recorder.slept("wake", 0.0)
        return is_awake

    def pause(self, mode: PauseMode, caller_left: Event, clear_cache: bool = True) -> None:
        """See `Lifecycle`."""
        refuses = self._rules.refuses(mode)
        command = EngineCommand(name="pause", mode=mode, clear=clear_cache, refuse=refuses)
        self._run(command, caller_left)
        self._engine.load.paused = True
        self._engine.refuses_requests = refuses

    def resume(self) -> None:
        """Starts requests again."""
        self._run(EngineCommand(name="resume"))
        self._engine.load.paused = False
        self._engine.refuses_requests = False

    def reset_prefix_cache(self, under_requests: bool = False, external: bool = False) -> bool:
        """Empties the prefix cache; returns False if requests run, unless `under_requests`.

        There are no tiers outside of the device.
        """
        command = EngineCommand(name="reset_prefix_cache", clear=under_requests)
        return bool(self._run(command).value)

    def _run(self, command: EngineCommand, caller_left: Event | None = None) -> CommandResult:
        """Sends a command, and waits for its result or for `caller_left`."""
        answer: AsyncResult[CommandResult] = self._engine.command(command)
        awaited = [answer]
        if caller_left is not None:
            awaited.append(caller_left)
        gevent.wait(awaited, count=1)
        if not answer.ready():
            raise ClientLeftError
        result: CommandResult = answer.get()
        if result.error is not None:
            raise CommandFailedError(result.error)
        return result
