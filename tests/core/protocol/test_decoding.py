"""From bytes to a request, and every way in which bytes are no request."""

import json
import math
from typing import ClassVar

import pytest
from msgspec import Struct

from app.core.protocol.chat import ChatCompletionRequest
from app.core.protocol.coercion import ConversionError
from app.core.protocol.convert import convert_value
from app.core.protocol.decoding import RawRequest, Request, UnparsableBodyError, decode
from app.core.protocol.tokenize import TokenizeChatRequest
from app.core.server.http.errors import ApiError, bad_request
from tests.core.protocol.refused import chat

JSON = "application/json"
HELLO = [{"role": "user", "content": "hi"}]


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
        (b"[]", "body"),
        (b"{", "body.1"),
        (b'{"a":1,}', "body.7"),
        (b'{"a":1, }', "body.8"),
        (b"{'a':1}", "body.1"),
        (b'{"a":1} x', "body.8"),
        (b"{}", "body.messages"),
    ],
)
def test_error_for_an_invalid_json_body_states_the_position(body: bytes, param: str) -> None:
    assert answer(refusal(body)) == (400, "Bad Request", param)


@pytest.mark.parametrize(
    "body", [b'{"a":"\xff"}', b"[" * 100_000, b'{"a":' * 100_000, b'{"a":' + b"1" * 5000 + b"}"]
)
def test_unparsable_body_returns_the_parse_error_of_fastapi(body: bytes) -> None:
    error = refusal(body)
    assert isinstance(error, UnparsableBodyError)
    assert list(json.loads(error.body())) == ["detail"]


@pytest.mark.parametrize("offset", [0, 1, 4299, 4300, 4301, 9000])
def test_integer_with_too_many_digits_is_rejected_even_in_an_unknown_field(offset: int) -> None:
    def body(value: bytes) -> bytes:
        return b'{"messages":%b,%b"unknown":%b}' % (messages, b" " * offset, value)

    messages = json.dumps(HELLO).encode()
    assert isinstance(refusal(body(b"[" + b"1" * 4301 + b"]")), UnparsableBodyError)
    assert isinstance(refusal(body(b"-" + b"7" * 20_000)), UnparsableBodyError)
    for number in (b"1" * 4300, b'"' + b"1" * 9000 + b'"', b"0." + b"3" * 9000):
        assert decode(body(number), JSON, ChatCompletionRequest).messages == HELLO


@pytest.mark.parametrize(
    "content_type", [None, "", "text/plain", "application/jsonx", "application/json ;a"]
)
def test_error_for_a_wrong_content_type_has_no_param(content_type: str | None) -> None:
    assert answer(refusal(b'{"messages":[]}', content_type)) == (400, "Bad Request", None)


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-32"])
def test_bodies_in_utf_8_utf_16_and_utf_32_are_accepted(encoding: str) -> None:
    body = json.dumps({"messages": [{"role": "user", "content": "é"}]}, ensure_ascii=False).encode(
        encoding
    )
    assert decode(body, JSON, ChatCompletionRequest).messages[0]["content"] == "é"


@pytest.mark.parametrize(
    ("field", "value", "read"),
    [
        ("n", "5", 5),
        ("n", "1_0", 10),
        ("n", True, 1),
        ("temperature", 1, 1.0),
        ("length_penalty", -(10**400), -math.inf),
        ("stream", "yes", True),
        ("stream", 0, False),
        ("logit_bias", {"5": "2"}, {"5": 2.0}),
        ("stop_token_ids", ["5"], [5]),
        ("top_logprobs", None, 0),
    ],
)
def test_field_value_of_a_compatible_type_is_converted(
    field: str, value: object, read: object
) -> None:
    got = getattr(chat(**{field: value}), field)
    assert got == read and type(got) is type(read)


@pytest.mark.parametrize(
    ("field", "value", "param"),
    [
        ("n", "x", "body.n"),
        ("n", float("nan"), "body.n"),
        ("stream", " true", "body.stream"),
        ("stop", ["a"] * 5, "body.stop"),
        ("stop_token_ids", [1, "a"], "body.stop_token_ids.1"),
        ("logit_bias", {"1": "a"}, "body.logit_bias.1"),
        ("documents", [{"a": 1}], "body.documents.0.a"),
        ("tools", [{"function": {}}], "body.tools.0.function.name"),
        (
            "response_format",
            {"type": "json_schema", "json_schema": {"name": "a", "schema": 5}},
            "body.response_format.json_schema.schema",
        ),
    ],
)
def test_error_for_a_wrong_type_names_the_path_of_the_field(
    field: str, value: object, param: str
) -> None:
    assert answer(refusal(json.dumps({"messages": HELLO, field: value}).encode())) == (
        400,
        "Bad Request",
        param,
    )


def test_lone_surrogate_in_a_text_is_rejected() -> None:
    error = refusal(b'{"messages":[{"role":"user","content":"\\ud800"}]}')
    assert answer(error) == (400, "BadRequestError", None)
    whole = b'{"messages":[{"role":"user","content":"\\ud83d\\ude00"}]}'
    assert decode(whole, JSON, ChatCompletionRequest).messages[0]["content"] == "\U0001f600"


def test_lone_surrogate_in_a_number_list_is_rejected() -> None:
    with pytest.raises(ConversionError):
        convert_value(list[int], [1, "\ud800"])


def test_error_message_that_quotes_a_lone_surrogate_can_be_sent() -> None:
    assert (
        json.loads(bad_request("\ud800", "a\ud800").body())["error"]["message"]
        == "? (parameter=a?)"
    )


class Parameters(Struct, kw_only=True):
    later: int | None = None


class VersionedRequest(Request, kw_only=True):
    nested_parameters: ClassVar[str | None] = "parameters"
    parameters: Parameters
    later: int | None = None

    def check_rules(self: "VersionedRequest | RawRequest") -> None:
        """The fields of later versions have no rules."""
        if self.later is not None:
            raise bad_request("later must be absent", "later")


@pytest.mark.parametrize("value", [3, None, "no number"])
def test_fields_of_later_versions_have_no_effect_with_any_value(value: object) -> None:
    body = json.dumps({"later": value, "parameters": {"later": value}}).encode()
    request = decode(body, JSON, VersionedRequest, ignored_fields=("later", "other"))
    assert request == VersionedRequest(parameters=Parameters())


@pytest.mark.parametrize("kind", [ChatCompletionRequest, TokenizeChatRequest])
def test_calls_and_tools_of_messages_get_the_order_of_keys_that_templates_see(
    kind: type[ChatCompletionRequest | TokenizeChatRequest],
) -> None:
    function = {"more": 1, "name": "f", "arguments": "{}"}
    call = {"type": "function", "more": 2, "function": function, "id": "1"}
    tool_function = {"strict": True, "parameters": {}, "name": "f"}
    tool = {"type": "function", "function": tool_function}
    untyped_tool = {"type": "function", "function": tool_function | {"description": None}}
    conversation = [
        {"role": "assistant", "tool_calls": [call]},
        {"role": "developer", "content": "d", "tools": [tool]},
        {"role": "developer", "content": "d", "tools": [untyped_tool]},
    ]
    body = json.dumps({"model": "m", "messages": conversation}).encode()
    calls, tools, untyped_tools = decode(body, "application/json", kind).messages
    assert json.dumps(calls["tool_calls"]) == (
        '[{"id": "1", "function": {"arguments": "{}", "name": "f", "more": 1}, '
        '"type": "function", "more": 2}]'
    )
    assert json.dumps(tools["tools"]) == (
        '[{"function": {"name": "f", "parameters": {}, "strict": true}, "type": "function"}]'
    )
    assert json.dumps(untyped_tools["tools"]) == json.dumps([untyped_tool])
