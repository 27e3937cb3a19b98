"""Derendering many choices decodes the prompt once, and pauses now and then."""

from collections.abc import Sequence

import pytest

from app.core.api import pipeline
from app.core.base.clock import pause
from app.core.text.huggingface import LocalTokenizer
from tests.extensions.scale_out.test_derender import CHAT, REQUEST, TEXT, post

CHOICES = 300
PROMPT = [5] * 50
PARSERS = ("--tool-call-parser", "hermes", "--reasoning-parser", "qwen3")


@pytest.fixture(name="pauses")
def _pauses(monkeypatch: pytest.MonkeyPatch) -> list[None]:
    """One item for each pause."""
    pauses: list[None] = []
    for module in (pause, pipeline):
        monkeypatch.setattr(module, "pause_if_possible", lambda: pauses.append(None))
    return pauses


def test_derendering_several_choices_decodes_their_prompt_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    decoded: list[Sequence[int]] = []
    decode = LocalTokenizer.decode

    def counted(
        tokenizer: LocalTokenizer, ids: Sequence[int], skip_special_tokens: bool = True
    ) -> str:
        decoded.append(ids)
        return decode(tokenizer, ids, skip_special_tokens)

    monkeypatch.setattr(LocalTokenizer, "decode", counted)
    body = {
        "chat_request": REQUEST,
        "generate_response": {"choices": choices_with(tokens=2)},
        "prompt_token_ids": PROMPT,
    }
    assert len(post(CHAT, body, *PARSERS).get_json()["choices"]) == CHOICES
    assert decoded.count(PROMPT) == 1
    assert len(decoded) == CHOICES + 1


@pytest.mark.parametrize("tokens", [1, 200])
def test_other_greenlets_run_while_many_choices_are_derendered(
    pauses: list[None], tokens: int
) -> None:
    generated = {"choices": choices_with(tokens)}
    for path, body in (
        (CHAT, {"generate_response": generated}),
        (TEXT, {"generate_responses": [generated]}),
    ):
        pauses.clear()
        assert len(post(path, body).get_json()["choices"]) == CHOICES
        assert len(pauses) >= (2 if tokens == 1 else 6)


def test_other_greenlets_run_while_many_logprobs_are_derendered(pauses: list[None]) -> None:
    entry = {"token_id": 5, "logprob": -1.0, "top_logprobs": [{"token_id": 6, "logprob": -2.0}]}
    choices = choices_with(tokens=1)
    for choice in choices:
        choice["logprobs"] = {"content": [entry] * 20}
    assert post(CHAT, {"generate_response": {"choices": choices}}).status_code == 200
    assert len(pauses) >= 10


def choices_with(tokens: int) -> list[dict[str, object]]:
    """Choices of an answer, each with as many `tokens`."""
    return [
        {"index": index, "token_ids": [6] * tokens, "finish_reason": "stop"}
        for index in range(CHOICES)
    ]
