"""Faults of replayed answers."""

from pathlib import Path
from random import Random

import pytest

from app.core.server.http.errors import ApiError
from app.extensions.faults.injector import FaultInjector
from app.shared.virtual_clock import VirtualClock
from tests.extensions.recording.recordings import chat, exchange
from tests.extensions.recording.test_replay import STREAM, asking, came, replaying


def test_fault_applies_to_a_recorded_response_without_consuming_it(tmp_path: Path) -> None:
    recorded = [exchange(chat("Hi"), (0, text)) for text in (b"1", b"2")]
    with replaying(tmp_path, recorded, VirtualClock()) as replay:
        replay.faults = FaultInjector(Random(1), VirtualClock().now)
        with pytest.raises(ApiError) as struck:
            replay.begin(asking(chat("Hi"), **{"x-return-error": "503"}))
        assert struck.value.status == 503
        response = replay.begin(asking(chat("Hi")))
        assert response is not None
        assert response.body == b"1"
    clock = VirtualClock()
    with replaying(tmp_path, [exchange(chat("Hi"), *STREAM)], clock) as replay:
        replay.faults = FaultInjector(Random(1), clock.now)
        response = replay.begin(asking(chat("Hi"), **{"x-fault": "truncate; after=1"}))
        assert response is not None
        assert b"".join(piece for _, piece in came(clock, response, 3.0)) == b"data: 1\n\n"
