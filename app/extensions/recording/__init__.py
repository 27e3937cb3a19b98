"""Recorded exchanges: replayed, compared with a server, or recorded from one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from app.core.extensions import Extension, Position
from app.extensions.recording.settings import ReplaySettings

if TYPE_CHECKING:
    from app.core.api.reply_rules import ReplyRules
    from app.core.extensions import ServerParts
    from app.core.server.flask.application import BackgroundService
    from app.core.server.http.context import RequestContext
    from app.core.server.http.response import Response
    from app.core.server.http.route import Route
    from app.core.server.middleware.stack import Middleware
    from config import Settings as AllSettings


class Recordings(Extension):
    """Answers requests with recorded exchanges, and asks a target for missing ones."""

    name = "recording"
    Settings = ReplaySettings
    requires = ("journal",)

    def __init__(self, parts: ServerParts) -> None:
        from app.core.base.clock.clock import LiveClock
        from app.core.base.clock.timer_wheel import TimerWheel
        from app.extensions.journal import RequestJournal
        from app.extensions.recording.opening import open_replay
        from app.extensions.recording.replay import Replay, ReplayServices

        super().__init__(parts)
        recording, upstream = open_replay(parts.settings)
        self._upstream = upstream
        clock = LiveClock()  # a clock has one alarm; the engine uses that of `parts.clock`
        services = ReplayServices(
            body_limits=parts.body,
            wheel=TimerWheel(clock),
            now=clock.now,
            journal=parts.get(RequestJournal).journal,
            has_keys=self._has_keys,
            bears_key=parts.keys.bears_key,
        )
        miss = parts.settings.section(ReplaySettings).replay_miss
        self._replay = Replay(recording, services, miss, upstream)

    @classmethod
    def is_enabled(cls, settings: AllSettings) -> bool:
        """Returns whether a recording is set."""
        return bool(settings.section(ReplaySettings).replay)

    @classmethod
    def prepare(cls, settings: AllSettings) -> None:
        """Checks the recording and its targets. Raises ConfigError."""
        from app.extensions.recording.opening import open_replay

        recording, upstream = open_replay(settings, warns=False)  # the workers repeat warnings
        recording.close()
        if upstream is not None:
            upstream.file.close()

    def _has_keys(self) -> bool:
        return bool(self.parts.live.current.access.api_key)

    def keeps_fast_path(self, settings: AllSettings) -> bool:
        """Returns False: each request is looked up in the recording."""
        return False

    def middleware(self) -> Mapping[Position, Sequence[Middleware]]:
        """Returns the replay, which answers instead of the routes."""
        self._replay.faults = self.parts.pipeline.responder.faults
        self._replay.reply_rules = self._reply_rules
        return {Position.INNERMOST: [self._replay]}

    def _reply_rules(self) -> ReplyRules | None:
        return self.parts.pipeline.scripts

    def routes(self) -> Mapping[str, Sequence[Route]]:
        """Returns the route of the replay's counts."""
        from app.core.server.http.route import get

        return {"replay": [get("/admin/replay", self._report)]}

    def _report(self, context: RequestContext) -> Response:
        from app.core.server.http.response import json_response

        return json_response(self._replay.report())

    def services(self) -> Sequence[BackgroundService]:
        """Returns the recording, and the file that gets the exchanges with targets."""
        recording = self._replay.recording
        return (recording,) if self._upstream is None else (recording, self._upstream.file)
