"""Replies that a script has decided:

the same tokens as their text, in parts, within every limit.
"""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.core.engine.outputs import Tokens
from app.core.engine.profile import read_profile
from app.core.engine.request import ScriptedReply
from config.settings import StepSettings
from tests.core.engine.harness import Harness, embedded_tokenizer

PROFILE = read_profile("qwen3-14b-h100")
CALL = ("get_weather", '{"city": "Rome"}')


def played(script: ScriptedReply, **fields: Any) -> Harness:
    harness = Harness()
    harness.ask(**{"script": script, "max_tokens": 4000, "limited": False, **fields})
    harness.clock.advance(1000)
    return harness


def parts(tokens: list[Tokens]) -> list[tuple[str, str]]:
    merged: list[tuple[str, str]] = []
    for event in tokens:
        kind = "text" if event.part is None else f"{event.part.kind} {event.part.name}".strip()
        text = "".join(event.texts)
        if merged and merged[-1][0] == kind:
            merged[-1] = kind, merged[-1][1] + text
        elif text:
            merged.append((kind, text))
    return merged


def counted(tokens: list[Tokens]) -> int:
    return sum(len(event.ids) for event in tokens)


def length(text: str) -> int:
    return len(embedded_tokenizer().encode(text))


@settings(max_examples=15, deadline=None)
@given(st.text(max_size=60))
def test_scripted_text_is_emitted_verbatim(text: str) -> None:
    harness = played(ScriptedReply(text=text))
    assert harness.said() == text
    assert counted(harness.tokens()) == length(text) + 1  # the end of text
    assert harness.finish() == "stop"


def test_parts_of_a_scripted_reply_are_emitted_in_order() -> None:
    script = ScriptedReply(reasoning="Hm. Rome?", text="Let me look.", calls=(CALL, ("b", "{}")))
    harness = played(script)
    expected = [
        ("reasoning", "Hm. Rome?"),
        ("text", "Let me look."),
        ("call get_weather", CALL[1]),
        ("call b", "{}"),
    ]
    assert parts(harness.tokens()) == expected
    assert harness.finish() == "stop"
    markup = embedded_tokenizer().decode(
        [token for event in harness.tokens() for token in event.ids]
    )
    assert "<tool_call>" in markup and json.loads(CALL[1])["city"] in markup


def test_reasoning_and_tool_calls_become_markup_in_a_text_only_response() -> None:
    script = ScriptedReply(reasoning="Hm.", text="Let me look.", calls=(CALL,), in_parts=False)
    harness = played(script)
    reply = harness.said()
    assert reply.startswith("<think>\nHm.\n</think>\n\nLet me look.<tool_call>\n")
    assert all(event.part is None for event in harness.tokens())
    assert counted(harness.tokens()) == length(reply) + 1  # the end of text


def test_token_limit_truncates_any_scripted_reply() -> None:
    script = ScriptedReply(reasoning="Hm. Rome?", text="Let me look.", calls=(CALL,))
    whole = counted(played(script).tokens())
    for limit in (1, 2, 3, 5, 8, 13, 20, 30, whole):
        harness = played(script, max_tokens=limit, limited=True)
        assert counted(harness.tokens()) == min(limit, whole)
        assert harness.finish() == ("length" if limit < whole else "stop")
    script = ScriptedReply(text="Let me look.")
    whole = length("Let me look.")
    full = played(script, max_tokens=whole, limited=True)
    assert (counted(full.tokens()), full.said(), full.finish()) == (whole, script.text, "length")


def test_script_sets_the_finish_reason_unless_a_limit_ends_the_reply() -> None:
    reasons: list[Any] = ["length", "abort", "content_filter"]
    for reason in reasons:
        assert played(ScriptedReply(text="So it is.", finish=reason)).finish() == reason
    cut = played(
        ScriptedReply(text="So it is.", finish="content_filter"), max_tokens=2, limited=True
    )
    assert cut.finish() == "length"


@pytest.mark.parametrize("timing", ["requests", "steps"])
def test_scripted_delays_shift_the_token_times(timing: str) -> None:
    stepped = {
        "sections": {"steps": StepSettings(timing="steps")},
        "profile": PROFILE,
        "blocks": 40,
    }
    moments: list[list[float]] = []
    for script in (
        ScriptedReply(text="So it is, and so it was."),
        ScriptedReply(
            text="So it is, and so it was.",
            first_token_s=1.0,
            per_token_s=0.25,
            token_delays={3: 2.0},
        ),
    ):
        harness = Harness(**(stepped if timing == "steps" else {"inter_token_latency": 0.01}))
        harness.ask(
            script=script, max_tokens=100, delays=((2, 0.5),) if script.token_delays else ()
        )
        harness.clock.advance(100)
        assert harness.said() == script.text
        moments.append([event.at_s for event in harness.tokens()])
    plain, waited = moments
    assert len(plain) == len(waited) >= 5
    for number in range(len(waited)):
        wait = 1.0 + 0.25 * number + 0.5 * (number >= 2) + 2.0 * (number >= 3)
        assert waited[number] - plain[number] == pytest.approx(wait, abs=1e-6)


def test_script_without_a_reply_sets_only_the_delays() -> None:
    unscripted = Harness()
    unscripted.ask(max_tokens=4)
    unscripted.clock.advance(10)
    harness = played(ScriptedReply(passes=True, per_token_s=1.0), max_tokens=4, limited=True)
    assert harness.said() == unscripted.said()
    first, *_, last = harness.tokens()
    assert last.at_s - first.at_s == pytest.approx(3.0)
