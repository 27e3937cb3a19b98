"""Messages from token ids as a chat has them: by generate itself, and by the derender routes."""

from functools import cache
from typing import Any

import pytest
from werkzeug.test import Client, TestResponse

from tests.application import app_of

GENERATE = "/inference/v1/generate"
CHAT = "/v1/chat/completions/derender"
COMPLETIONS = "/v1/completions/derender"
HELLO = [{"role": "user", "content": "hi"}]
PING = {"type": "function", "function": {"name": "ping", "parameters": {"type": "object"}}}
NAMED = {"type": "function", "function": {"name": "ping"}}
CALL = '<tool_call>\n{"name": "ping", "arguments": {"a": 1}}\n</tool_call>'
PARSER = ("--enable-auto-tool-choice", "--tool-call-parser", "hermes")


@cache
def client_of(version: str, *flags: str) -> Client:
    common = ("--force-dummy-tokenizer", "--enable-scale-out")
    return app_of("--vllm-version", version, *common, *flags).test_client()


def ids_of(text: str) -> list[int]:
    tokens: list[int] = client_of("0.33").post("/tokenize", json={"prompt": text}).json["tokens"]  # type: ignore[index]
    return tokens


def generate(client: Client, sampling: dict[str, Any], **fields: Any) -> TestResponse:
    body = {"token_ids": [5, 6], "sampling_params": sampling, "output_mode": "derender"}
    return client.post(GENERATE, json=body | fields)


def generated(client: Client, sampling: dict[str, Any], **fields: Any) -> dict[str, Any]:
    answer = generate(client, sampling, **fields)
    assert answer.status_code == 200, answer.text
    assert answer.json is not None
    assert answer.json["output_mode"] == "derender"
    [choice] = answer.json["choices"]
    assert isinstance(choice, dict)
    return choice


def error_of(answer: TestResponse) -> dict[str, Any]:
    assert answer.status_code == 400
    assert answer.json is not None
    error: dict[str, Any] = answer.json["error"]
    return error


def test_derender_mode_without_a_parser_returns_the_text_as_content() -> None:
    sampling = {"max_tokens": 2, "ignore_eos": True, "seed": 1}
    choice = generated(client_of("0.33"), sampling)
    body = {"token_ids": [5, 6], "sampling_params": sampling, "output_mode": "text"}
    answer = client_of("0.33").post(GENERATE, json=body)
    assert answer.json is not None
    assert choice["message"]["content"] == answer.json["choices"][0]["text"]
    assert list(choice)[-3:] == ["weight_versions", "message", "logprobs"]
    assert "text" not in choice


def test_tool_calls_are_parsed_with_the_parse_context() -> None:
    sampling = {"max_tokens": 99, "structured_outputs": {"choice": [CALL]}}
    context = {"tools": [PING], "tool_choice": "auto"}
    choice = generated(client_of("0.33", *PARSER), sampling, parse_context=context)
    assert choice["finish_reason"] == "tool_calls"
    [call] = choice["message"]["tool_calls"]
    assert call["function"] == {"name": "ping", "arguments": '{"a": 1}'}
    assert call["id"].startswith("chatcmpl-tool-")
    context["tool_choice"] = "none"
    choice = generated(client_of("0.33", *PARSER), sampling, parse_context=context)
    assert (choice["finish_reason"], choice["message"]["content"]) == ("stop", CALL)


def test_reply_with_a_named_tool_choice_ends_with_finish_reason_stop() -> None:
    sampling = {"max_tokens": 99, "structured_outputs": {"choice": [CALL]}}
    context = {"tools": [PING], "tool_choice": NAMED}
    choice = generated(client_of("0.33", *PARSER), sampling, parse_context=context)
    assert choice["finish_reason"] == "stop"
    assert choice["message"]["tool_calls"][0]["function"]["name"] == "ping"


def test_token_ids_and_logprobs_are_omitted_if_reasoning_is_hidden() -> None:
    sampling = {"max_tokens": 2, "logprobs": 1, "ignore_eos": True}
    shown = generated(client_of("0.33", *PARSER), sampling, parse_context={})
    assert len(shown["token_ids"]) == len(shown["logprobs"]["content"]) == 2
    hidden = generated(
        client_of("0.33", *PARSER), sampling, parse_context={"include_reasoning": False}
    )
    assert (hidden["token_ids"], hidden["logprobs"]) == (None, None)


@pytest.mark.parametrize(("logprobs", "alternatives"), [(0, 0), (2, 2)])
def test_logprobs_have_as_many_alternatives_as_requested(logprobs: int, alternatives: int) -> None:
    choice = generated(client_of("0.33"), {"max_tokens": 1, "logprobs": logprobs})
    [entry] = choice["logprobs"]["content"]
    assert len(entry["top_logprobs"]) == alternatives


def test_setting_logprob_token_ids_enables_logprobs() -> None:
    choice = generated(client_of("0.33"), {"max_tokens": 1, "logprob_token_ids": [7, 8]})
    assert len(choice["logprobs"]["content"]) == 1


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"stream": True}, None),
        ({}, None),
        ({"parse_context": {"tool_choice": NAMED}}, "tool_choice"),
        ({"parse_context": {"later": 1}}, "body"),
        ({"parse_context": {"history_tool_call_cnt": -1}}, "body.parse_context.history_tool_call_cnt"),
        ({"parse_context": 1}, "body.parse_context"),
    ],
)  # fmt: skip
def test_invalid_derender_requests_are_rejected(fields: dict[str, Any], param: str | None) -> None:
    answer = generate(client_of("0.33", *PARSER), {"max_tokens": 1}, **fields)
    assert error_of(answer)["param"] == param


def test_unknown_parse_context_fields_are_ignored_in_token_mode() -> None:
    fields = {"parse_context": {"later": 1}, "output_mode": "tokens"}
    assert generate(client_of("0.33"), {"max_tokens": 1}, **fields).status_code == 200


def test_derender_mode_requires_detokenization() -> None:
    answer = generate(client_of("0.33"), {"max_tokens": 1, "detokenize": False})
    assert error_of(answer)["param"] == "body"
    answer = generate(client_of("0.33", "--tokens-only"), {"max_tokens": 1})
    assert "tokenizer" in error_of(answer)["message"]


def test_version_0_32_has_neither_derender_mode_nor_a_parse_context() -> None:
    client = client_of("0.32")
    assert error_of(generate(client, {"max_tokens": 1}))["param"] == "body.output_mode"
    for context in ({}, 1, {"later": 1}):
        fields = {"output_mode": "text", "parse_context": context}
        assert generate(client, {"max_tokens": 1}, **fields).status_code == 200


def answer_of(ids: list[int], **fields: Any) -> dict[str, Any]:
    choice = {"index": 0, "token_ids": ids, "finish_reason": "stop", **fields}
    return {"request_id": "r", "choices": [choice], "prompt_token_ids": [7]}


def chat_choice(client: Client, ids: list[int], chat: dict[str, Any], **fields: Any) -> Any:
    body = {
        "generate_response": answer_of(ids, **fields),
        "chat_request": {"messages": HELLO, **chat},
    }
    answer = client.post(CHAT, json=body)
    assert answer.status_code == 200, answer.text
    assert answer.json is not None
    return answer.json["choices"][0]


def test_derendered_tool_calls_obey_the_tool_fields_of_the_chat_request() -> None:
    ids = ids_of(CALL + "\n" + CALL)
    chat = {"tools": [PING], "parallel_tool_calls": False}
    choice = chat_choice(client_of("0.33", *PARSER), ids, chat)
    assert choice["finish_reason"] == "tool_calls"
    [call] = choice["message"]["tool_calls"]
    assert call["id"].startswith("chatcmpl-tool-")
    assert choice["weight_versions"] is None
    choice = chat_choice(client_of("0.33", *PARSER), ids, chat, finish_reason="length")
    assert choice["finish_reason"] == "length"
    choice = chat_choice(client_of("0.32", *PARSER), ids, chat)
    assert (choice["finish_reason"], len(choice["message"]["tool_calls"])) == ("stop", 2)
    assert "weight_versions" not in choice


def test_derendered_chat_omits_logprobs_if_reasoning_is_hidden() -> None:
    candidates = [{"token_id": token, "logprob": -1.0} for token in (5, 6, 7)]
    logprobs = {"content": [{"token_id": 5, "logprob": -1.0, "top_logprobs": candidates}]}
    chat: dict[str, Any] = {"logprobs": True, "top_logprobs": 1}
    for version, count in (("0.33", 1), ("0.32", 3)):
        choice = chat_choice(client_of(version), [5], chat, logprobs=logprobs)
        assert len(choice["logprobs"]["content"][0]["top_logprobs"]) == count
    chat["include_reasoning"] = False
    assert chat_choice(client_of("0.33", *PARSER), [5], chat, logprobs=logprobs)["logprobs"] is None
    assert chat_choice(client_of("0.32", *PARSER), [5], chat, logprobs=logprobs)["logprobs"]


def test_derendered_completion_contains_token_ids_since_version_0_33() -> None:
    candidates = [{"token_id": token, "logprob": -1.0} for token in (5, 6, 7)]
    logprobs = {"content": [{"token_id": 5, "logprob": -1.0, "top_logprobs": candidates}]}
    body = {
        "generate_responses": [answer_of([5], logprobs=logprobs)],
        "completion_request": {"prompt": "hi", "logprobs": 1, "return_token_ids": True},
    }
    answer = client_of("0.33").post(COMPLETIONS, json=body)
    assert answer.json is not None
    [choice] = answer.json["choices"]
    assert (choice["prompt_token_ids"], choice["token_ids"]) == ([7], [5])
    assert len(choice["logprobs"]["top_logprobs"][0]) == 2
    answer = client_of("0.32").post(COMPLETIONS, json=body)
    assert answer.json is not None
    [choice] = answer.json["choices"]
    assert (choice["prompt_token_ids"], choice["token_ids"]) == (None, None)


@pytest.mark.parametrize(
    ("request_fields", "text", "stop_reason"),
    [
        ({}, "one two three", None),
        ({"stop": "two"}, "one ", "two"),
        ({"stop": ["three", "two"]}, "one ", "two"),
        ({"stop": "two", "include_stop_str_in_output": True}, "one two", "two"),
        ({"stop": "two", "min_tokens": 99}, "one two three", None),
        ({"stop": "four"}, "one two three", None),
    ],
)
def test_derendered_text_ends_before_its_stop_string(
    request_fields: dict[str, Any], text: str, stop_reason: str | None
) -> None:
    choice = chat_choice(client_of("0.33"), ids_of("one two three"), request_fields)
    assert (choice["message"]["content"], choice["stop_reason"]) == (text, stop_reason)


def test_derendered_text_ends_before_its_stop_token() -> None:
    ids = ids_of("one x")
    stop = {"stop_token_ids": ids[-1:]}
    for version, text, reason in (("0.33", "one", ids[-1]), ("0.32", "one x", None)):
        choice = chat_choice(client_of(version), ids, stop)
        assert (choice["message"]["content"], choice["stop_reason"]) == (text, reason)
    choice = chat_choice(client_of("0.33"), ids, stop | {"include_stop_str_in_output": True})
    assert choice["message"]["content"] == "one x"
    choice = chat_choice(client_of("0.33"), ids, stop, finish_reason="length")
    assert (choice["message"]["content"], choice["stop_reason"]) == ("one x", None)


def event_of(version: str, path: str, request: dict[str, Any], **fields: Any) -> TestResponse:
    body = {"stream": True, "generate_chunk": answer_of(**fields), **request}
    return client_of(version).post(path, json=body)


@pytest.mark.parametrize(
    ("path", "request_fields"),
    [
        (CHAT, {"chat_request": {"messages": HELLO, "stop": "two"}}),
        (COMPLETIONS, {"completion_request": {"prompt": "hi", "stop": ["two"]}}),
    ],
)
def test_streamed_derendering_rejects_stop_strings(
    path: str, request_fields: dict[str, Any]
) -> None:
    ids = ids_of("one")
    assert "stop" in error_of(event_of("0.33", path, request_fields, ids=ids))["message"]
    assert event_of("0.32", path, request_fields, ids=ids).status_code == 200


def test_text_of_a_streamed_derender_chunk_ends_before_its_stop_token() -> None:
    ids = ids_of("one x")
    completion = {"prompt": "hi", "stop_token_ids": ids[-1:], "return_token_ids": True}
    answer = event_of("0.33", COMPLETIONS, {"completion_request": completion}, ids=ids)
    assert answer.json is not None
    chunk = answer.json["chunk"]
    assert list(chunk)[-1] == "kv_transfer_params"
    [choice] = chunk["choices"]
    assert (choice["text"], choice["stop_reason"]) == ("one", ids[-1])
    assert (choice["prompt_token_ids"], choice["token_ids"]) == ([7], ids)
    chat = {"messages": HELLO, "stop_token_ids": ids[-1:], "return_token_ids": True}
    answer = event_of("0.33", CHAT, {"chat_request": chat}, ids=ids)
    assert answer.json is not None
    chunk = answer.json["chunk"]
    assert chunk["choices"][0]["delta"]["content"] == "one"
    assert (chunk["prompt_token_ids"], chunk["kv_transfer_params"]) == ([7], None)
    assert chunk["choices"][0]["weight_versions"] is None
