"""An engine's sign of life, and how long it is missed."""

from __future__ import annotations

from pathlib import Path

from app.engine.core.heartbeat import EVERY_S, Heartbeat, HeartbeatMonitor


class Moved:
    """A clock that is moved by hand."""

    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def test_others_hear_the_last_beat(tmp_path: Path) -> None:
    now = Moved()
    engine, worker = (Heartbeat(f"ipc://{tmp_path}/engine", now) for _ in range(2))
    assert worker.last_s() is None and not worker.is_silent(1.0)
    engine.begin()
    now.now_s += 1.0
    assert not worker.is_silent(1.0)
    now.now_s += 0.5
    assert worker.last_s() == 100.0 and worker.is_silent(1.0)
    engine.beat()
    assert worker.last_s() == 101.5 and not worker.is_silent(1.0)


def test_it_is_not_written_for_every_layer(tmp_path: Path) -> None:
    now = Moved()
    heartbeat = Heartbeat(f"ipc://{tmp_path}/engine", now)
    heartbeat.begin()
    now.now_s += EVERY_S / 2
    heartbeat.beat()
    assert heartbeat.last_s() == 100.0
    now.now_s += EVERY_S
    heartbeat.beat()
    assert heartbeat.last_s() == now.now_s


def test_who_rests_is_not_missed(tmp_path: Path) -> None:
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


def test_silence_grows_with_every_look_until_the_next_beat() -> None:
    silence = HeartbeatMonitor(most_between_s=2.0)
    assert [silence.look(5.0, now_s) for now_s in (6.0, 7.0, 8.5)] == [0.0, 1.0, 2.5]
    assert silence.look(9.0, 9.5) == 0.0
    assert silence.look(9.0, 10.0) == 0.5
    assert silence.look(None, 11.0) == 0.0
    assert silence.look(None, 12.0) == 0.0


def test_who_was_stopped_together_with_the_engine_does_not_count_that_time() -> None:
    silence = HeartbeatMonitor(most_between_s=2.0)
    silence.look(5.0, 5.5)
    assert silence.look(5.0, 4000.0) == 2.0
