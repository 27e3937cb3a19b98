"""Tokens of tool calls, which a receiver may take one by one."""

import pytest

from app.core.engine.outputs import EngineOutput, Part, Started, TakeToken, Tokens
from app.core.engine.request import STOP, Reply
from tests.core.engine.harness import PROFILE, START_S, Harness, engine_request

TEXTS = ["a", "b", "c", "d", "e", "f", "g", "h"]
OPENING = Part("call", 0)
NAMED = Part("call", 0, "get_weather")
REPLY_SPANS = [(2, None), (3, OPENING), (7, NAMED), (8, None)]


class Receiver:
    """Receives outputs, and takes the tokens of named calls by themselves."""

    def __init__(self) -> None:
        self.taken: list[tuple[str, int]] = []
        self.times_s: list[float] = []
        self.shown: list[tuple[str, Part | None]] = []

    def emit(self, output: EngineOutput) -> TakeToken | None:
        if isinstance(output, Tokens):
            self.shown += [(text, output.part) for text in output.texts]
            self.times_s.append(output.at_s)
            if output.part == NAMED:
                return self.take
        elif isinstance(output, Started):
            self.times_s.clear()
        return None

    def take(self, text: str, token_id: int, at_s: float) -> None:
        self.taken.append((text, token_id))
        self.shown.append((text, NAMED))
        self.times_s.append(at_s)


def run(harness: Harness, **fields: object) -> Receiver:
    """Runs a request for a reply with a call to its end."""
    receiver = Receiver()
    ids = list(range(len(TEXTS)))
    request = engine_request(max_tokens=len(TEXTS), **fields)
    harness.engine.run([request], [Reply(TEXTS, ids, STOP, list(REPLY_SPANS))], receiver.emit)
    for _ in range(40):
        harness.clock.advance(1)
    assert harness.is_idle()
    assert harness.metric("generation_tokens_total") == len(TEXTS)
    return receiver


def test_shortcut_for_tool_call_tokens_delivers_each_token_when_it_is_due() -> None:
    receiver = run(Harness(inter_token_latency=1.0, time_to_first_token=2.0))
    assert receiver.taken == [("e", 4), ("f", 5)]
    assert "".join(text for text, _ in receiver.shown) == "".join(TEXTS)
    assert [part for _, part in receiver.shown] == [None] * 2 + [OPENING] + [NAMED] * 4 + [None]
    due_s = [START_S + 2 + number for number in range(len(TEXTS))]
    assert receiver.times_s == pytest.approx(due_s)


def test_shortcut_for_tool_call_tokens_is_also_used_with_step_timing() -> None:
    receiver = run(Harness(profile=PROFILE))
    assert receiver.taken == [("e", 4), ("f", 5)]
    assert "".join(text for text, _ in receiver.shown) == "".join(TEXTS)


def test_delayed_reply_does_not_use_the_shortcut_for_tool_call_tokens() -> None:
    harness = Harness(inter_token_latency=1.0, time_to_first_token=2.0)
    receiver = run(harness, delays=((4, 5.0),))
    assert receiver.taken == []
    assert receiver.times_s[-1] == pytest.approx(START_S + 2 + 7 + 5)
