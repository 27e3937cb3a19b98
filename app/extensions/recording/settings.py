"""Settings of the replay of recorded exchanges."""

from collections.abc import Iterator
from typing import Annotated, Literal

from msgspec import Meta

from config import Settings
from config.declaration import About, PositiveDuration, Section

Targets = Annotated[
    tuple[Annotated[str, Meta(pattern=r"\A((?!https?://)[^=]+=)?https?://[^/\s]")], ...],
    Meta(description="must have items such as http://host:8000 or model=https://KEY@host"),
]


class ReplaySettings(Section, frozen=True, kw_only=True):
    """Replies from a recording of `record --proxy`."""

    replay: str = ""
    """Recording whose responses are replayed when the same requests arrive. If this setting is
    empty, replay is disabled."""
    replay_miss: Literal["simulate", "not-found", "nearest", "record"] = "simulate"
    """Action taken when a request is not in the recording. If the value is simulate, the engine
    generates a reply. If the value is not-found, the request is rejected with status 404. If the
    value is nearest, the response to the most similar request is sent. If the value is record, a
    target responds, and its response is added to the recording. The X-Replay-Miss header overrides
    this setting."""
    replay_by: Literal["body", "turn"] = "body"
    """How requests are matched to the recording: by body (body) or by position in the conversation,
    regardless of the text (turn). The value turn is recommended for agents, whose requests contain
    dates, paths, and IDs."""
    target: Annotated[Targets, About(secret=True, repeated=True)] = ()
    """Servers that respond when replay-miss is set to record. Specify each server as URL, or as
    MODEL=URL to use it for only one model. To send a key, write it before the host:
    https://KEY@HOST. The flag can be repeated."""
    target_timeout: PositiveDuration = 300.0
    """Maximum time to wait for a target to respond or to send the next part of its response."""

    def conflicts(self, settings: Settings) -> Iterator[tuple[str, str]]:
        """Yields the conflicts of targets without a recording, and the other way round."""
        if self.replay_miss == "record" and not self.target:
            yield "replay-miss", "must be used together with target"
        if self.target and not self.replay:
            yield "target", "must be used together with replay"
        if self.replay_by == "turn" and self.replay_miss == "nearest":
            yield "replay-by", "cannot be combined with replay-miss nearest"
