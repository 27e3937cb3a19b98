"""What breaks ends alone: no place is lost, and nobody behind is stopped."""

from typing import Any

import pytest

from app.core.base.overload import ClientLeftError
from app.core.engine.outputs import EngineOutput, Failed
from app.core.engine.request import EngineRequest, Reply, SequenceOutcome
from tests.core.engine.harness import Harness, engine_request, stepped

SLOW = {"time_to_first_token": 0.5, "inter_token_latency": 0.1}


def finished(harness: Harness, reason: str) -> float:
    return harness.metric("request_success_total", finished_reason=reason)


@pytest.mark.parametrize("fails_at", [0, 1, 2, 5, None])
def test_failing_output_callback_frees_the_slot_of_the_request(
    fails_at: int | None,
) -> None:
    """Event number `fails_at` cannot be told, or none at all; 5 is the last token."""
    harness = Harness(slots=1, **SLOW)
    heard: list[EngineOutput] = []

    def emit(event: EngineOutput) -> None:
        heard.append(event)
        if fails_at is None or len(heard) == fails_at + 1:
            raise UnicodeEncodeError("utf-8", "\ud800", 0, 1, "a text that cannot be sent")

    harness.engine.submit([engine_request()], emit)
    harness.ask("behind")
    harness.clock.advance(10)
    assert harness.finish("behind") == "length"
    assert harness.is_idle()
    assert isinstance(heard[-1], Failed) and finished(harness, "error") == 1


@pytest.mark.parametrize("timing", [{}, {"inter_token_latency": 0.1}], ids=["at once", "slow"])
def test_sequence_whose_client_leaves_while_it_starts_is_aborted_without_a_log_line(
    timing: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    harness = Harness(slots=1, **timing)

    def emit(event: EngineOutput) -> None:
        if type(event) is not Failed:
            raise ClientLeftError

    harness.engine.submit([engine_request()], emit)
    harness.clock.advance(10)
    assert harness.is_idle() and not caplog.records
    assert (finished(harness, "abort"), finished(harness, "error")) == (1, 0)


def test_request_that_fails_during_preparation_takes_no_slot(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    harness = Harness()
    model = harness.engine.model
    original = model.reply

    def reply(request: EngineRequest) -> Reply:
        if request.index == 2:
            raise ZeroDivisionError
        return original(request)

    monkeypatch.setattr(model, "reply", reply)
    with pytest.raises(ZeroDivisionError):
        harness.ask(choices=3)
    assert harness.is_idle() and harness.events == []


def test_output_callback_that_raises_or_aborts_does_not_stop_the_engine() -> None:
    harness = stepped()
    doomed = harness.ask("doomed", max_tokens=20)

    def ends_the_other(event: object) -> None:
        doomed.abort()

    def breaks(event: object) -> None:
        raise RuntimeError("nobody takes it")

    for name, emit in (("ends", ends_the_other), ("breaks", breaks)):
        harness.engine.submit([engine_request(request_id=name, cache_hit_threshold=0.5)], emit)
    harness.ask("good", max_tokens=6)
    harness.clock.advance(2)
    assert harness.finish("good") == "length" and not harness.outputs("doomed")
    assert harness.metric("request_success_total", finished_reason="error") == 1
    assert harness.is_idle()


def test_failing_engine_observer_does_not_affect_other_observers() -> None:
    harness = Harness(slots=1, **SLOW)

    def failing(outcome: SequenceOutcome) -> None:
        raise RuntimeError("broken")

    notifications: list[EngineOutput | SequenceOutcome] = []
    observed_request = engine_request(
        observers=[lambda request: failing, lambda request: notifications.append]
    )
    harness.engine.submit([observed_request], notifications.append)
    harness.ask("behind")
    harness.clock.advance(30)
    assert [isinstance(notification, SequenceOutcome) for notification in notifications].index(
        True
    ) == len(notifications) - 1
    assert harness.finish("behind") == "length" and harness.is_idle()
