"""What the indexer is asked, and what becomes of its answers."""

from __future__ import annotations

import json
from typing import Any

import pytest

from app.fleet.routing import CHAT, COMPLETIONS, Incoming, Indexer
from app.load.policies import IndexerError
from tests.fleet import stubs

MESSAGES = [{"role": "user", "content": "Hello!"}]


def asked(path: str, body: object, answer: object) -> tuple[Any, list[tuple[str, dict[str, Any]]]]:
    """The scores of a request, and what was asked for them."""
    stub = stubs.Indexer(answer)
    text = body if isinstance(body, bytes) else json.dumps(body).encode()
    with stubs.serving(stub) as address:
        return Indexer(address).scores(Incoming(path, text)), stub.asked


def test_a_text_is_asked_for_as_text() -> None:
    body = {"model": "m", "prompt": "Once", "max_tokens": 3, "cache_salt": "s"}
    scores, questions = asked(COMPLETIONS, body, {"pod": 3.0})
    assert scores == {"pod": 3.0}
    assert questions == [("/score_completions", {"model": "m", "prompt": "Once", "cache_salt": "s"})]


def test_tokens_are_asked_for_as_tokens() -> None:
    answer = {"blocks": 2, "scores": {"pod": {"score": 1.8, "matched": 2}}}
    scores, questions = asked(COMPLETIONS, {"model": "m", "prompt": [1, 2, 3]}, answer)
    assert scores == {"pod": 1.8}
    assert questions == [("/score_tokens", {"model": "m", "tokens": [1, 2, 3]})]


@pytest.mark.parametrize("prompt", [["Once", "Twice"], ["Once"]])
def test_of_a_batch_the_first_prompt_counts(prompt: list[str]) -> None:
    assert asked(COMPLETIONS, {"prompt": prompt}, {})[1] == [("/score_completions", {"prompt": "Once"})]


def test_of_a_batch_of_tokens_too() -> None:
    assert asked(COMPLETIONS, {"prompt": [[1], [2]]}, {"scores": {}})[1][0][1] == {"tokens": [1]}


def test_a_conversation_is_asked_for_with_what_its_template_needs() -> None:
    tools = [{"type": "function", "function": {"name": "f"}}]
    body = {"model": "m", "messages": MESSAGES, "tools": tools, "temperature": 1, "stream": True}
    _, questions = asked(CHAT, body, {"pod": 1})
    expected = {"model": "m", "messages": MESSAGES, "tools": tools, "add_generation_prompt": True}
    assert questions == [("/score_chat_completions", expected)]


def test_null_means_no_scores() -> None:
    assert asked(COMPLETIONS, {"prompt": "short"}, None)[0] == {}


@pytest.mark.parametrize("body", [b"not JSON", b"[]", b"\xff", b'{"prompt": ""}', b'{"prompt": 5}', b"{}"])
def test_a_request_that_a_pod_will_refuse_is_not_asked_for(body: bytes) -> None:
    assert asked(COMPLETIONS, body, 500) == ({}, [])


@pytest.mark.parametrize("answer", [500, 404, b"no JSON", b"[1]", b'{"pod": "much"}', b""])
def test_a_wrong_answer_is_a_failure(answer: object) -> None:
    with pytest.raises(IndexerError):
        asked(COMPLETIONS, {"prompt": "Once"}, answer)


def test_an_indexer_that_is_away_is_a_failure() -> None:
    with pytest.raises(IndexerError, match="not answered"):
        Indexer(stubs.unused_address()).scores(Incoming(COMPLETIONS, b'{"prompt": "Once"}'))


def test_an_indexer_that_is_silent_is_a_failure() -> None:
    talker = stubs.Talker(b"")
    with stubs.talking(talker) as address, pytest.raises(IndexerError):
        Indexer(address, timeout_s=0.05).scores(Incoming(COMPLETIONS, b'{"prompt": "Once"}'))
    assert talker.client_left.wait(stubs.PATIENCE_S)
