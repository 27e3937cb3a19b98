"""A reply that waits for nothing takes a shorter way through the engine.

Nobody can tell by anything.
"""

import re
from typing import Any

from hypothesis import example, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from app.core.engine.constraints import Constraints
from app.core.engine.outputs import EngineOutput, Failed, Part, Started, Tokens
from app.core.engine.profile import Profile, SpeculationRates
from app.core.engine.request import EngineRequest, SequenceOutcome, Watch
from tests.core.engine.harness import PROFILE, Harness, engine_request

FIELDS: dict[str, st.SearchStrategy[Any]] = {
    "max_tokens": st.integers(1, 60),
    "ignore_eos": st.booleans(),
    "limited": st.booleans(),
    "seed": st.none() | st.integers(0, 9),
    "prompt_ids": st.lists(st.integers(0, 99), max_size=9),
    "stop": st.sampled_from([(), ("a",), ("the", "o")]),
    "logprobs": st.none() | st.integers(0, 3),
    "prompt_logprobs": st.none() | st.integers(0, 2),
    "reasoning": st.booleans(),
    "echo_text": st.sampled_from(["", "What goes in comes out."]),
}


DELAYED_BEYOND_THE_END = ((10**6, 1.0),)
"""A delay that never comes: with it, a sequence is made."""


def outcome(
    requests: list[dict[str, Any]],
    mode: str,
    fails_at: int | None,
    longer_way: bool,
    schemas: Constraints | None = None,
) -> Any:
    """All that comes out of an engine, and all that it counts but for Unix time and the wait for a
    turn.
    """
    harness = Harness(mode=mode, schemas=schemas)
    outputs: list[EngineOutput] = []
    outcomes: list[SequenceOutcome] = []

    def observe(request: EngineRequest) -> Watch | None:
        return outcomes.append if int(request.request_id) % 2 else None

    def emit(output: EngineOutput) -> None:
        outputs.append(output)
        if len(outputs) - 1 == fails_at:
            raise ZeroDivisionError

    for number, fields in enumerate(requests):
        delays = DELAYED_BEYOND_THE_END if longer_way else ()
        request = engine_request(
            request_id=str(number), observers=(observe,), delays=delays, **fields
        )
        handle = harness.engine.submit([request], emit)
        harness.clock.advance(1)  # the longer way takes a turn for thoughts and one for the reply
        assert handle.future.done()
    assert harness.is_idle() and not harness.engine._active
    outputs_by_kind = [
        (type(event), event.index, str(event.error)) if isinstance(event, Failed) else _plain(event)
        for event in outputs
    ]
    clocked = r"(?m)^(\S+_created|vllm:lora_requests_info|vllm:e2e_request_latency_seconds_(sum|bucket))\{.*$"
    outcomes = [replace(outcome, ended_s=0.0) for outcome in outcomes]
    return outputs_by_kind, outcomes, re.sub(clocked, "", harness.recorder.render())


ONE_WAY = ("is_followed", "queued_s", "scheduled_s")


def _plain(output: EngineOutput) -> Any:
    """Lazy log probabilities are compared item by item, lists and tuples alike."""
    return [list(value) if hasattr(value, "__len__") else value for value in _values(output)]


def _values(output: Any) -> list[Any]:
    """Returns the fields that answers show: `is_followed` is the difference between both ways."""
    names = [name for name in output.__struct_fields__ if name not in ONE_WAY]
    values = [type(output).__name__, *(getattr(output, name) for name in names)]
    if isinstance(output, Started):
        for moment_s in (output.queued_s, output.scheduled_s):
            values.append(0.0 if moment_s is None else output.at_s - moment_s)
    return values


@example(requests=[{}, {"reasoning": True, "max_tokens": 60}], mode="random", fails_at=3)
@example(requests=[{}], mode="random", fails_at=0)
@example(requests=[{}], mode="random", fails_at=1)
@given(
    requests=st.lists(st.fixed_dictionaries(FIELDS), min_size=1, max_size=4),
    mode=st.sampled_from(["random", "echo"]),
    fails_at=st.none() | st.integers(0, 3),
)
@settings(max_examples=30, deadline=None)
def test_immediate_replies_have_the_outputs_and_metrics_of_paced_replies(
    requests: list[dict[str, Any]], mode: str, fails_at: int | None
) -> None:
    assert outcome(requests, mode, fails_at, False) == outcome(requests, mode, fails_at, True)


def test_immediate_request_waits_behind_queued_requests() -> None:
    harness = Harness(slots=1, inter_token_latency=0.1)
    harness.ask("slow")
    harness.engine.timing.apply(Harness().settings.latency)
    harness.ask("quick")
    assert harness.gauges() == (1, 1) and harness.outputs("quick") == []
    harness.clock.advance(10)
    assert harness.finish("quick") == "length"


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


def heard(
    takes: bool, blocks: int | None, request: dict[str, Any], **fields: Any
) -> tuple[Listener, str]:
    """One request, heard to its end; and what was counted. `fields` are those of `Harness`."""
    harness = Harness(blocks=blocks, **fields)
    listener = Listener(takes)
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
def test_immediate_replies_count_the_same_tokens_as_paced_replies(
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
    constant = not jitter_s and gap_s > 0.001 or profile is PROFILE
    assert plain.by_themselves or not constant or profile is SPECULATES or tokens < 3 or reasoning
    assert plain.finish == usual.finish == "length"
    assert counted_plain == counted
