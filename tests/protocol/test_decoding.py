"""From bytes to a request, and every way in which bytes are no request."""

import json
import math
from typing import Any

import pytest

from app.serving.http.errors import ApiError
from app.serving.protocol.admin import LoadAdapterRequest
from app.serving.protocol.chat import BatchChatRequest, ChatCompletionRequest
from app.serving.protocol.decoding import UnparsableBody, decode, decode_first
from app.serving.protocol.tokenize import (
    TOKENIZE_REQUESTS,
    DetokenizeRequest,
    TokenizeChatRequest,
    TokenizePromptRequest,
)

JSON = "application/json"
HELLO = [{"role": "user", "content": "hi"}]


def chat(**fields: Any) -> ChatCompletionRequest:
    return decode(json.dumps({"messages": HELLO, **fields}).encode(), JSON, ChatCompletionRequest)


def refusal(body: bytes, content_type: str | None = JSON) -> ApiError:
    with pytest.raises(ApiError) as caught:
        decode(body, content_type, ChatCompletionRequest)
    return caught.value


def answer(error: ApiError) -> tuple[int, str, str | None]:
    return error.status, error.type, error.param


@pytest.mark.parametrize(
    ("body", "param"),
    [
        (b"", "body"),
        (b"null", "body"),
        (b"[]", "body"),
        (b"  ", "body.2"),
        (b"{", "body.1"),
        (b'{"a":1,}', "body.7"),
        (b'{"a":1, }', "body.8"),
        (b"{'a':1}", "body.1"),
        (b'{"a":1} x', "body.8"),
        (b"\xff\xfe", "body.0"),
        (b"{}", "body.messages"),
    ],
)
def test_what_is_no_json_object_is_a_bad_request_at_its_place(body: bytes, param: str) -> None:
    assert answer(refusal(body)) == (400, "Bad Request", param)


@pytest.mark.parametrize(
    "body", [b'{"a":"\xff"}', b"[" * 100_000, b'{"a":' * 100_000, b'{"a":' + b"1" * 5000 + b"}"]
)
def test_what_cannot_even_be_tried_has_the_frameworks_own_body(body: bytes) -> None:
    error = refusal(body)
    assert isinstance(error, UnparsableBody)
    assert list(json.loads(error.body())) == ["detail"]


@pytest.mark.parametrize("content_type", [None, "", "text/plain", "application/jsonx", "application/json ;a"])
def test_another_content_type_is_refused_without_a_param(content_type: str | None) -> None:
    assert answer(refusal(b'{"messages":[]}', content_type)) == (400, "Bad Request", None)


def test_bad_json_is_complained_about_before_a_content_type_that_resembles_json() -> None:
    assert answer(refusal(b"{", "application/vnd.api+json")) == (400, "Bad Request", "body.1")
    assert answer(refusal(b"{}", "application/vnd.api+json")) == (400, "Bad Request", None)


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-32"])
def test_every_unicode_encoding_is_understood(encoding: str) -> None:
    body = json.dumps({"messages": [{"role": "user", "content": "é"}]}, ensure_ascii=False).encode(encoding)
    assert decode(body, JSON, ChatCompletionRequest).messages[0]["content"] == "é"


def test_the_last_of_duplicate_keys_wins() -> None:
    request = decode(b'{"n":"x","n":2,"messages":[]}', JSON, ChatCompletionRequest)
    assert request.n == 2


def test_unknown_fields_are_accepted() -> None:
    assert chat(guided_json={}, service_tier=5).messages == HELLO


@pytest.mark.parametrize(
    ("field", "value", "read"),
    [
        ("n", "5", 5),
        ("n", " 5 ", 5),
        ("n", "1_0", 10),
        ("n", "5.0", 5),
        ("n", 5.0, 5),
        ("n", True, 1),
        ("temperature", 1, 1.0),
        ("temperature", "1e-1", 0.1),
        ("length_penalty", -(10**400), -math.inf),
        ("length_penalty", 10**400, math.inf),
        ("stream", "yes", True),
        ("stream", "OFF", False),
        ("stream", 0, False),
        ("stream", 1.0, True),
        ("logit_bias", {"5": "2"}, {"5": 2.0}),
        ("stop_token_ids", ["5"], [5]),
        ("top_logprobs", None, 0),
        ("thinking_token_budget", -1, None),
        ("vllm_xargs", {"a": [1, "x", 2.5]}, {"a": [1, "x", 2.5]}),
    ],
)
def test_near_misses_are_converted(field: str, value: object, read: object) -> None:
    got = getattr(chat(**{field: value}), field)
    assert got == read and type(got) is type(read)


@pytest.mark.parametrize(
    ("field", "value", "param"),
    [
        ("n", "x", "body.n"),
        ("n", 1e300, "body.n"),
        ("n", float("nan"), "body.n"),
        ("temperature", "warm", "body.temperature"),
        ("stream", 2, "body.stream"),
        ("stream", " true", "body.stream"),
        ("bad_words", None, "body.bad_words"),
        ("stop", ["a"] * 5, "body.stop"),
        ("stop_token_ids", [1, "a"], "body.stop_token_ids.1"),
        ("logit_bias", {"1": "a"}, "body.logit_bias.1"),
        ("logit_bias", {"int": "a"}, "body.logit_bias"),
        ("logit_bias", {"a[0]": "a"}, "body.logit_bias"),
        ("documents", [{"a": 1}], "body.documents.0.a"),
        ("seed", 2**63, "body.seed"),
        ("truncate_prompt_tokens", -2, "body.truncate_prompt_tokens"),
        ("tools", [{"function": {}}], "body.tools.0.function.name"),
        ("tools", [{}], "body.tools.0.function"),
        ("response_format", {"type": "xml"}, "body.response_format.type"),
        (
            "response_format",
            {"type": "json_schema", "json_schema": {"name": "a", "schema": 5}},
            "body.response_format.json_schema.schema",
        ),
        ("structured_outputs", {"choice": [1]}, "body.structured_outputs.choice.0"),
    ],
)
def test_a_value_of_the_wrong_type_is_named_by_its_path(field: str, value: object, param: str) -> None:
    assert answer(refusal(json.dumps({"messages": HELLO, field: value}).encode())) == (
        400,
        "Bad Request",
        param,
    )


def test_of_several_wrong_fields_the_first_in_declaration_order_is_named() -> None:
    body = {"top_p": "y", "temperature": "x", "n": "z", "messages": HELLO}
    assert refusal(json.dumps(body).encode()).param == "body.n"


def test_own_rules_come_before_the_schema() -> None:
    body = {"messages": HELLO, "temperature": "x", "stream_options": {"include_usage": True}}
    assert answer(refusal(json.dumps(body).encode())) == (400, "BadRequestError", "stream_options")


def test_nan_and_infinity_are_numbers_until_a_rule_says_otherwise() -> None:
    body = b'{"messages":[],"temperature":NaN,"top_p":-Infinity,"min_p":1e999}'
    request = decode(body, JSON, ChatCompletionRequest)
    assert request.temperature != request.temperature
    assert (request.top_p, request.min_p) == (float("-inf"), float("inf"))


def test_half_a_surrogate_pair_is_not_accepted_as_text() -> None:
    error = refusal(b'{"messages":[{"role":"user","content":"\\ud800"}]}')
    assert answer(error) == (400, "BadRequestError", None)
    whole = b'{"messages":[{"role":"user","content":"\\ud83d\\ude00"}]}'
    assert decode(whole, JSON, ChatCompletionRequest).messages[0]["content"] == "\U0001f600"


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        ({"prompt": "x"}, TokenizePromptRequest),
        ({"prompt": ""}, TokenizePromptRequest),
        ({"messages": HELLO}, TokenizeChatRequest),
        ({"messages": HELLO, "prompt": "x"}, TokenizeChatRequest),
        ({"messages": HELLO, "add_special_tokens": "yes"}, TokenizeChatRequest),
        ({"messages": 5, "prompt": "x"}, TokenizePromptRequest),
    ],
)
def test_tokenize_takes_messages_or_a_text(body: dict[str, object], kind: type) -> None:
    assert isinstance(decode_first(json.dumps(body).encode(), JSON, TOKENIZE_REQUESTS), kind)


@pytest.mark.parametrize(
    ("body", "type", "param"),
    [
        ({}, "Bad Request", "body.prompt"),
        ({"prompt": ["a"]}, "Bad Request", "body.prompt"),
        ({"messages": 5}, "Bad Request", "body.prompt"),
        ({"messages": HELLO, "model": 5}, "Bad Request", "body.model"),
        (
            {"messages": HELLO, "continue_final_message": True, "add_generation_prompt": True},
            "BadRequestError",
            None,
        ),
    ],
)
def test_what_fits_no_form_of_tokenize_is_reported_for_the_text(
    body: dict[str, object], type: str, param: str | None
) -> None:
    with pytest.raises(ApiError) as caught:
        decode_first(json.dumps(body).encode(), JSON, TOKENIZE_REQUESTS)
    assert answer(caught.value) == (400, type, param)


@pytest.mark.parametrize(
    ("tokens", "param"),
    [
        (5, "body.tokens"),
        ([-1], "body.tokens.0"),
        ([1, 2**63], "body.tokens.1"),
        ([1.5], "body.tokens.0"),
        (None, "body.tokens"),
    ],
)
def test_detokenize_takes_natural_numbers(tokens: object, param: str) -> None:
    with pytest.raises(ApiError) as caught:
        decode(json.dumps({"tokens": tokens}).encode(), JSON, DetokenizeRequest)
    assert answer(caught.value) == (400, "Bad Request", param)


@pytest.mark.parametrize("name", ["", "a"])
@pytest.mark.parametrize("path", ["", "b"])
def test_an_adapter_needs_a_name_and_a_path(name: str, path: str) -> None:
    request = decode(json.dumps({"lora_name": name, "lora_path": path}).encode(), JSON, LoadAdapterRequest)
    if name and path:
        request.check_values()
        return
    with pytest.raises(ApiError) as caught:
        request.check_values()
    assert answer(caught.value) == (400, "InvalidUserInput", None)


@pytest.mark.parametrize(
    ("fields", "kind", "param"),
    [
        *(({"messages": messages}, "Bad Request", "body.messages") for messages in ([], {}, "hi", 5, None)),
        *(({"messages": [HELLO, one]}, "Bad Request", "body.messages.1") for one in ([], HELLO[0])),
        ({"tool_choice": "auto"}, "Bad Request", "body.tool_choice"),
        ({"use_beam_search": True}, "BadRequestError", "use_beam_search"),
        ({"logprob_token_ids": [1]}, "BadRequestError", "logprob_token_ids"),
        ({"n": 2}, "BadRequestError", "n"),
        ({"tools": []}, "BadRequestError", "tools"),
        ({"stream_options": {"include_usage": True}}, "BadRequestError", "stream_options"),
        ({"best_of": "x"}, "Bad Request", "body.best_of"),
        (
            {"kv_transfer_params": {"prompt_token_ids": [1]}},
            "BadRequestError",
            "kv_transfer_params.prompt_token_ids",
        ),
    ],
)
def test_a_batch_is_a_list_of_conversations_with_one_answer_each(
    fields: dict[str, object], kind: str, param: str
) -> None:
    with pytest.raises(ApiError) as caught:
        decode(json.dumps({"messages": [HELLO], **fields}).encode(), JSON, BatchChatRequest)
    assert answer(caught.value) == (400, kind, param)


def test_a_batch_neither_streams_nor_calls_whatever_it_asks_for() -> None:
    tools = [{"type": "function", "function": {"name": "f"}}]
    fields = {"messages": [HELLO], "stream": True, "tools": tools}
    asked = decode(json.dumps(fields).encode(), JSON, BatchChatRequest)
    assert (asked.stream, asked.tools, asked.tool_choice) == (False, None, "none")
