"""Token ids become a chat or a completion again."""

from functools import cache
from typing import Any

import pytest

from app.core.server.flask.application import Understudy
from tests.application import app_of

CHAT = "/v1/chat/completions/derender"
TEXT = "/v1/completions/derender"
MESSAGES = [{"role": "user", "content": "hi"}]
TOOL = {"type": "function", "function": {"name": "ping", "parameters": {"type": "object"}}}
REQUEST = {"messages": MESSAGES, "tools": [TOOL]}
CALL = '<tool_call>\n{"name": "ping", "arguments": {"a": 1}}\n</tool_call>'


@cache
def application(*flags: str) -> Understudy:
    return app_of("--force-dummy-tokenizer", "--enable-scale-out", *flags)


def post(path: str, body: Any, *flags: str) -> Any:
    return application(*flags).test_client().post(path, json=body)


PARSER = ("--tool-call-parser", "hermes")


def ids_of(text: str) -> list[int]:
    return post("/tokenize", {"prompt": text}).get_json()["tokens"]  # type: ignore[no-any-return]


def answer(ids: list[int], **fields: Any) -> dict[str, Any]:
    return {
        "request_id": "r",
        "choices": [{"index": 0, "token_ids": ids, "finish_reason": "stop", **fields}],
    }


TEXTS = ["Hello there, world", "naïve 😀 done"]


@pytest.mark.parametrize("text", TEXTS)
def test_derendering_token_ids_returns_the_original_text(text: str) -> None:
    ids = ids_of(text)
    body = {"generate_responses": [answer(ids), answer(ids)], "prompt_tokens": [3, 4]}
    whole = post(TEXT, body).get_json()
    assert [choice["text"] for choice in whole["choices"]] == [text, text]
    assert [choice["index"] for choice in whole["choices"]] == [0, 1]
    assert (whole["usage"]["prompt_tokens"], whole["usage"]["completion_tokens"]) == (
        7,
        2 * len(ids),
    )
    chat = post(CHAT, {"generate_response": answer(ids), "prompt_tokens": 3}).get_json()
    assert chat["choices"][0]["message"]["content"] == text and chat["id"] == "r"


def test_tool_parser_extracts_calls_from_derendered_text() -> None:
    ids = ids_of(CALL)
    chat_fields = {"chat_request": REQUEST}
    [choice] = post(CHAT, {"generate_response": answer(ids), **chat_fields}, *PARSER).get_json()[
        "choices"
    ]
    assert (choice["message"]["content"], choice["finish_reason"]) == (None, "stop")
    assert choice["message"]["tool_calls"][0]["function"] == {
        "name": "ping",
        "arguments": '{"a": 1}',
    }


def test_derendered_logprobs_contain_the_texts_of_their_token_ids() -> None:
    ids = ids_of("Hello there")
    entries = [
        {
            "token_id": token_id,
            "logprob": -1.0,
            "top_logprobs": [{"token_id": token_id, "logprob": -1.0}],
        }
        for token_id in ids
    ]
    generated = answer(ids, logprobs={"content": entries})
    chat = post(CHAT, {"generate_response": generated}).get_json()["choices"][0]["logprobs"][
        "content"
    ]
    assert "".join(entry["token"] for entry in chat) == "Hello there"
    assert (
        bytes(chat[0]["bytes"]).decode() == chat[0]["token"] == chat[0]["top_logprobs"][0]["token"]
    )
    text = post(TEXT, {"generate_responses": [generated]}).get_json()["choices"][0]["logprobs"]
    assert text["text_offset"][:2] == [0, len(chat[0]["token"])]


ONE = answer([5])
IN_BODY = "body.DerenderChatRequest"
REFUSED: list[tuple[str, Any, str, str | None]] = [
    (CHAT, {}, "Bad Request", f"{IN_BODY}.generate_response"),
    (CHAT, {"generate_response": {}}, "Bad Request", f"{IN_BODY}.generate_response.choices"),
    (TEXT, {}, "Bad Request", "body.generate_responses"),
    (TEXT, {"generate_responses": []}, "BadRequestError", None),
    (TEXT, {"generate_responses": [ONE], "prompt_tokens": [1, 2]}, "Bad Request", "body"),
    (TEXT, {"generate_responses": [answer([])]}, "BadRequestError", None),
    (TEXT, {"generate_responses": [ONE], "model": "x"}, "NotFoundError", "model"),
    (CHAT, {"generate_response": ONE}, "BadRequestError", None),
    (CHAT, {"stream": "yes", "generate_response": ONE}, "Bad Request", f"{IN_BODY}.stream"),
]


def test_invalid_or_overlong_derender_requests_are_rejected() -> None:
    for path, body, kind, param in REFUSED:
        error = post(path, body, *PARSER).get_json()["error"]
        assert (error["type"], error["param"]) == (kind, param), body
    long = [5] * 40_000
    for path, body in (
        (CHAT, {"generate_response": answer(long)}),
        (TEXT, {"generate_responses": [ONE], "prompt_token_ids": [long]}),
    ):
        assert post(path, body).status_code == 400, "more than the context"


def test_logprob_text_of_a_split_character_belongs_to_its_last_token() -> None:
    ids = ids_of("a \N{WAVING HAND SIGN}")
    last = ids[-1]
    other = ids_of("\N{BEAR FACE}")[-1]
    entries = [
        {
            "token_id": token,
            "logprob": -1.0,
            "top_logprobs": [
                {"token_id": token, "logprob": -1.0},
                {"token_id": other, "logprob": -2.0},
            ],
        }
        for token in ids
    ]
    generated = answer(ids, logprobs={"content": entries})
    content = post(CHAT, {"generate_response": generated}).get_json()["choices"][0]["logprobs"][
        "content"
    ]
    assert "".join(entry["token"] for entry in content) == "a \N{WAVING HAND SIGN}"
    assert content[-1]["token"].endswith("\N{WAVING HAND SIGN}") and last != other
    assert all("\N{REPLACEMENT CHARACTER}" not in str(entry) for entry in content)
    assert content[0]["top_logprobs"][1]["token"] == ""
