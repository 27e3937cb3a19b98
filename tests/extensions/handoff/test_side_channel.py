"""Connections of a side channel to its peers."""

import pytest

from app.core.base.background import BackgroundLoops
from app.extensions.handoff import channel
from app.extensions.handoff.channel import SideChannel
from app.extensions.handoff.messages import Heartbeat


def test_peer_that_was_asked_longest_ago_makes_room_for_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(channel, "MAX_PEERS", 2)
    side_channel = SideChannel("127.0.0.1", port=0, loops=BackgroundLoops())
    for port in (1, 2, 1, 3):
        is_sent = side_channel.send("127.0.0.1", port, Heartbeat(["request"]))
        assert is_sent, f"no connection for port {port}"

    ports = {port for _, port in side_channel._peers}
    side_channel.close()
    assert ports == {1, 3}, "the second peer was asked before the repeated question to the first"
