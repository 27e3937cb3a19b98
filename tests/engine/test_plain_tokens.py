"""Whoever answers `Started` with a function gets plain tokens one by one, and misses nothing by it."""

from __future__ import annotations

import re
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from app.engine.core.outputs import EngineOutput, Part, Started, Tokens
from config.profile import Profile, SpeculationRates
from tests.engine.harness import Harness, engine_request
from tests.engine.stepped import PROFILE

SPECULATES = replace(PROFILE, speculation=SpeculationRates(acceptance=(1.0, 1.0)))
WALL_TIME = re.compile("_created|lora_requests_info")
Told = tuple[str, int, float, Part | None]


class Listener:
    """Takes the outputs of one choice, plain tokens by themselves if it `takes` them."""

    def __init__(self, takes: bool) -> None:
        self.takes = takes
        self.tokens: list[Told] = []
        self.by_themselves = 0
        self.finish: str | None = None

    def emit(self, output: EngineOutput) -> Any:
        if isinstance(output, Started):
            return self.take if self.takes else None
        assert isinstance(output, Tokens)
        self.tokens += [
            (text, token_id, output.at_s, output.part)
            for text, token_id in zip(output.texts, output.ids, strict=True)
        ]
        if output.finish is not None:
            assert self.finish is None
            self.finish = output.finish.reason
        return None

    def take(self, text: str, token_id: int, at_s: float) -> None:
        self.by_themselves += 1
        self.tokens.append((text, token_id, at_s, None))


def heard(takes: bool, blocks: int | None, request: dict[str, Any], **fields: Any) -> tuple[Listener, str]:
    """One request, heard to its end; and what was counted. `fields` are those of `Harness`."""
    harness, listener = Harness(blocks=blocks, **fields), Listener(takes)
    harness.engine.submit(
        [engine_request(arrival_s=harness.clock.now(), n=1, index=0, **request)], listener.emit
    )
    harness.clock.advance(2.0)
    text = harness.recorder.render()
    return listener, "\n".join(line for line in text.splitlines() if not WALL_TIME.search(line))


@settings(max_examples=25, deadline=None)
@given(
    gap_s=st.sampled_from([0.0, 0.0001, 0.003, 0.02]),
    jitter_s=st.sampled_from([0.0, 0.001]),
    ttft_s=st.sampled_from([0.0, 0.05]),
    tokens=st.integers(1, 60),
    reasoning=st.booleans(),
    blocks=st.sampled_from([None, 64]),
    profile=st.sampled_from([None, PROFILE, SPECULATES]),
)
def test_the_tokens_and_what_is_counted_are_the_same(
    gap_s: float,
    jitter_s: float,
    ttft_s: float,
    tokens: int,
    reasoning: bool,
    blocks: int | None,
    profile: Profile | None,
) -> None:
    latency: dict[str, Any] = {"inter_token_latency": gap_s, "time_to_first_token": ttft_s}
    latency["profile"] = profile
    latency["inter_token_latency_std_dev"] = min(jitter_s, gap_s * 0.3)
    request = {"max_tokens": tokens, "reasoning": reasoning}
    usual, counted = heard(False, blocks, request, **latency)
    plain, counted_plain = heard(True, blocks, request, **latency)
    assert plain.tokens == usual.tokens and len(plain.tokens) == tokens
    assert plain.by_themselves or tokens < 10 or gap_s < 0.001 or profile is SPECULATES or reasoning
    assert plain.finish == usual.finish == "length"
    assert counted_plain == counted


def test_a_listener_that_leaves_in_the_middle_is_told_nothing_more() -> None:
    harness, taken = Harness(inter_token_latency=0.01), list[str]()

    def take(text: str, token_id: int, at_s: float) -> None:
        taken.append(text)
        if len(taken) == 3:
            handle.abort()

    request = engine_request(arrival_s=harness.clock.now(), n=1, index=0, max_tokens=50)
    handle = harness.engine.submit([request], lambda output: take if isinstance(output, Started) else None)
    harness.clock.advance(2)
    assert len(taken) == 3 and harness.engine.running == 0
