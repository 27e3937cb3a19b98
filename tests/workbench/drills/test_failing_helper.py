"""A failure that cannot be played ends the drill with one line."""

import gevent
import pytest
from gevent.event import Event

from tests import stubs
from workbench.drills.command import run_guarded
from workbench.fleet.processes import FleetError


def test_drill_player_error_ends_the_load_without_a_traceback(
    capfd: pytest.CaptureFixture[str],
) -> None:
    def play() -> None:
        raise FleetError("pod 1 does not start")

    def send_load() -> None:
        gevent.spawn(run_guarded, play, gevent.getcurrent())
        Event().wait()

    caught = []

    def drill() -> None:
        try:
            send_load()
        except FleetError as error:
            caught.append(str(error))

    gevent.spawn(drill).join(timeout=stubs.PATIENCE_S)
    assert caught == ["pod 1 does not start"]
    assert capfd.readouterr().err == ""
