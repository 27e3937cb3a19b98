"""The heartbeat of an engine process, and what the server makes of its silence."""

import os
import sys
from pathlib import Path

import pytest

from app.extensions.llm.heartbeat import Heartbeat, HeartbeatMonitor, is_ending


class Moved:
    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def test_idle_engine_sends_heartbeats(tmp_path: Path) -> None:
    now = Moved()
    heartbeat = Heartbeat(f"ipc://{tmp_path}/engine", now)
    heartbeat.begin()
    with heartbeat.resting():
        now.now_s += 1000
        heartbeat.beat()
        assert heartbeat.last_s() is None and not heartbeat.is_silent(1.0)
    assert heartbeat.last_s() == now.now_s
    heartbeat.stop()
    heartbeat.stop()
    assert not list(tmp_path.iterdir())


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have no /proc")
def test_process_counts_as_ending_if_it_does_not_exist() -> None:
    assert is_ending(2**31 - 1), "no process has this number"
    assert not is_ending(os.getpid())


def test_measured_silence_of_the_engine_grows_until_its_next_heartbeat() -> None:
    silence = HeartbeatMonitor(max_step_s=2.0)
    assert [silence.look(5.0, now_s) for now_s in (6.0, 7.0, 8.5)] == [0.0, 1.0, 2.5]
    assert silence.look(9.0, 9.5) == 0.0
    assert silence.look(9.0, 10.0) == 0.5
    assert silence.look(None, 11.0) == 0.0
    assert silence.look(None, 12.0) == 0.0


def test_suspended_monitor_does_not_count_its_own_pause() -> None:
    silence = HeartbeatMonitor(max_step_s=2.0)
    silence.look(5.0, 5.5)
    assert silence.look(5.0, 4000.0) == 2.0
