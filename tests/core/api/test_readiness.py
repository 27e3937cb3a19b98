"""When a load balancer may send requests to a server."""

from app.core.api.health import readiness
from app.core.base.background import BackgroundLoops
from tests.core.engine.harness import Harness


def test_server_is_ready_after_the_startup_duration() -> None:
    harness = Harness()
    is_ready = readiness(harness.engine, harness.clock, startup_s=5.0, loops=BackgroundLoops())
    assert not is_ready()
    harness.clock.advance(5.0)
    assert is_ready()


def test_withdrawn_or_draining_server_is_not_ready() -> None:
    withdrawn = Harness()
    draining = Harness()
    withdrawn.engine.withdrawn = True
    draining.engine.drain()
    for harness in (withdrawn, draining):
        assert not readiness(
            harness.engine, harness.clock, startup_s=0.0, loops=BackgroundLoops()
        )()
