"""A reply that waits for nothing takes a shorter way through the engine. Nobody can tell by anything."""

from __future__ import annotations

import re
from typing import Any

from hypothesis import example, given, settings
from hypothesis import strategies as st

from app.engine.core.outputs import EngineOutput, Failed
from app.engine.core.request import EngineRequest
from tests.engine.harness import Harness, engine_request

FIELDS = st.fixed_dictionaries(
    {
        "max_tokens": st.integers(1, 60),
        "ignore_eos": st.booleans(),
        "limited": st.booleans(),
        "seed": st.none() | st.integers(0, 9),
        "prompt_ids": st.lists(st.integers(0, 99), max_size=9),
        "stop": st.sampled_from([(), ("a",), ("the", "o")]),
        "prompt_logprobs": st.none() | st.integers(0, 2),
        "reasoning": st.booleans(),
        "echo_text": st.sampled_from(["", "What goes in comes out."]),
    }
)


def watch_nothing(request: EngineRequest) -> None:
    """An observer: with one, a sequence is made."""


def outcome(asked: list[dict[str, Any]], mode: str, fails_at: int | None, longer_way: bool) -> Any:
    """All that comes out of an engine, and all that it counts but for Unix time."""
    harness = Harness(mode=mode)
    outputs: list[EngineOutput] = []

    def emit(output: EngineOutput) -> None:
        outputs.append(output)
        if len(outputs) - 1 == fails_at:
            raise ZeroDivisionError

    for number, fields in enumerate(asked):
        observers = (watch_nothing,) if longer_way else ()
        request = engine_request(request_id=str(number), observers=observers, **fields)
        handle = harness.engine.submit([request], emit)
        harness.clock.advance(1)  # thoughts and the reply are two turns
        assert handle.future.done()
    assert harness.is_idle() and not harness.engine._active
    told = [(type(it), it.index, str(it.error)) if isinstance(it, Failed) else _plain(it) for it in outputs]
    return told, re.sub(r"(?m)^(\S+_created|vllm:lora_requests_info)\{.*$", "", harness.recorder.render())


def _plain(output: EngineOutput) -> Any:
    """Lazy log probabilities are compared item by item, lists and tuples alike."""
    return [list(value) if hasattr(value, "__len__") else value for value in _values(output)]


def _values(output: Any) -> list[Any]:
    return [type(output).__name__, *(getattr(output, name) for name in output.__struct_fields__)]


@example(asked=[{}], mode="random", fails_at=0)
@example(asked=[{}], mode="random", fails_at=1)
@given(
    asked=st.lists(FIELDS, min_size=1, max_size=4),
    mode=st.sampled_from(["random", "echo"]),
    fails_at=st.none() | st.integers(0, 3),
)
@settings(max_examples=25, deadline=None)
def test_outputs_and_numbers_are_those_of_the_longer_way(
    asked: list[dict[str, Any]], mode: str, fails_at: int | None
) -> None:
    assert outcome(asked, mode, fails_at, False) == outcome(asked, mode, fails_at, True)


def test_behind_others_it_waits_like_them() -> None:
    harness = Harness(slots=1, inter_token_latency=0.1)
    harness.ask("slow")
    harness.engine.on_settings(Harness().settings)
    harness.ask("quick")
    assert harness.gauges() == (1, 1) and harness.of("quick") == []
    harness.clock.advance(10)
    assert harness.finish("quick") == "length"
