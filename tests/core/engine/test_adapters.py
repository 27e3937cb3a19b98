"""Who runs when adapters are few: the orders of simulator.md section 20, on a virtual clock."""

from collections.abc import Sequence
from typing import Any

import pytest

from app.core.engine.outputs import Tokens
from app.core.engine.profile import read_profile
from config.settings import LoraSettings, StepSettings
from tests.core.engine.harness import Harness

ALL = [f"l{number}" for number in range(1, 6)]
NOTHING_YET = 0.0


def harness(slots: int, max_loras: int, ttft: float = 0.5) -> Harness:
    return Harness(
        slots=slots, max_waiting=2000, adapters=ALL, max_loras=max_loras, time_to_first_token=ttft
    )


def finished(served: Harness) -> list[str]:
    return [
        name
        for name, event in served.events
        if isinstance(event, Tokens) and event.finish is not None
    ]


def play(served: Harness, arrivals: Sequence[tuple[float, str | None]]) -> list[str]:
    """Requests `0`, `1` ... at moments in seconds, each with its adapter; how they end."""
    now = NOTHING_YET
    for number, (arrival_s, adapter) in enumerate(arrivals):
        served.clock.advance(arrival_s - now)
        now = arrival_s
        served.ask(str(number), max_tokens=1, adapter=adapter)
    served.clock.advance(1000)
    assert served.is_idle()
    return finished(served)


def every(step: float, adapters: Sequence[str | None]) -> list[tuple[float, str | None]]:
    return [(number * step, adapter) for number, adapter in enumerate(adapters)]


def test_requests_for_the_loaded_adapter_run_first() -> None:
    adapters = ["l1", "l1", "l2", "l3", "l4", "l1", "l2", "l3", "l4"]
    assert play(harness(1, 1), every(0, adapters)) == list("015263748")


@pytest.mark.parametrize(
    ("slots", "max_loras", "order"),
    [
        (5, 1, ["0", "1", "2", "7", "3", "4", "5", "6"]),
        (1, 5, ["0", "1", "2", "7", "3", "4", "5", "6"]),
        (2, 1, ["0", "1", "2", "7", "3", "4", "5", "6"]),
        (5, 5, ["0", "1", "2", "3", "4", "5", "6", "7"]),
    ],
)
def test_request_for_a_loaded_adapter_overtakes_requests_for_another_one(
    slots: int, max_loras: int, order: list[str]
) -> None:
    arrivals: list[tuple[float, str | None]] = [(0, "l1")] * 3 + [(0.1, "l2")] * 4 + [(0.5, "l1")]
    assert play(harness(slots, max_loras, ttft=1.0), arrivals) == order


def test_base_model_request_overtakes_requests_that_wait_for_an_adapter() -> None:
    served = harness(2, 1)
    assert play(served, [(0, "l1"), (0, "l2"), (0.1, None)]) == ["0", "2", "1"]


def test_waiting_request_of_an_unloaded_adapter_still_waits_for_a_slot() -> None:
    served = harness(2, 1)
    served.ask("0", max_tokens=1, adapter="l1")
    served.ask("1", max_tokens=1, adapter="l2")
    served.adapters.discard("l2")
    served.ask("2", max_tokens=1)
    assert served.gauges() == (2, 1)
    assert list(served.lora) == ["l1"], "the request for the base model took the place"
    served.clock.advance(10)
    assert sorted(finished(served)) == ["0", "1", "2"]
    assert list(served.lora) == []


@pytest.mark.parametrize("timing", ["requests", "steps"])
def test_room_for_another_adapter_is_zero_while_max_loras_are_in_use(timing: Any) -> None:
    served = Harness(
        slots=3,
        max_waiting=0,
        adapters=ALL,
        max_loras=1,
        profile=read_profile("qwen3-14b-h100") if timing == "steps" else None,
        sections={"steps": StepSettings(timing=timing)},
        inter_token_latency=1.0,
    )
    rooms = [served.engine.room(adapter) for adapter in (None, "l1", "l2")]
    assert rooms == [3, 3, 3]
    served.ask("a", adapter="l1", max_tokens=5)
    served.clock.advance(0.02)
    assert served.gauges() == (1, 0)
    rooms = [served.engine.room(adapter) for adapter in (None, "l1", "l2")]
    assert rooms == [2, 2, 0]
    served.clock.advance(10)
    assert [served.engine.room(adapter) for adapter in (None, "l1", "l2")] == [3, 3, 3]


IN_ORDER = {"lora": LoraSettings(prefer_resident_adapters=False)}
STEPS = {"steps": StepSettings(timing="steps")}


@pytest.mark.parametrize(
    "sections", [IN_ORDER, STEPS], ids=["latencies of requests", "shared steps"]
)
def test_requests_run_in_arrival_order_without_adapter_preference(
    sections: dict[str, Any],
) -> None:
    served = Harness(
        slots=1,
        adapters=ALL,
        max_loras=1,
        profile=read_profile("qwen3-14b-h100") if sections is STEPS else None,
        sections=sections,
        time_to_first_token=0.5,
    )
    adapters = ["l1", "l2", "l1", None, "l3", "l1"]
    assert play(served, every(0, adapters)) == list("012345")


def test_request_beyond_the_adapter_limit_keeps_its_queue_position() -> None:
    served = Harness(
        slots=3,
        adapters=ALL,
        max_loras=1,
        profile=read_profile("qwen3-14b-h100"),
        sections=STEPS,
    )
    served.ask("0", max_tokens=40, adapter="l1")
    served.clock.advance(0.05)
    served.ask("1", max_tokens=1, adapter="l2")
    served.ask("2", max_tokens=60, adapter="l1")
    served.ask("3", max_tokens=1)
    served.clock.advance(0.1)
    assert finished(served) == ["3"]
    served.clock.advance(10)
    assert finished(served) == ["3", "0", "2", "1"]
