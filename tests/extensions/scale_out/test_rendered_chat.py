"""A rendered chat that is sent to generate has the reply of the chat itself."""

from functools import cache
from os.path import commonprefix
from pathlib import Path
from shutil import copyfile
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer
from werkzeug.test import Client

from app.core.text.huggingface import EMBEDDED
from app.extensions.scale_out.rendered_chat import common_length
from tests.application import app_of
from vllm_facts.reasoning_marks import PARSER_MARKS

CHAT = "/v1/chat/completions"
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Get weather for a city",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    },
}
NAMED = {"type": "function", "function": {"name": "get_weather"}}
STRICT = {**WEATHER, "function": {**WEATHER["function"], "strict": True}}  # type: ignore[dict-item]
CALL = {
    "id": "1",
    "type": "function",
    "function": {"name": "get_weather", "arguments": '{"city": "Rome"}'},
}
QUESTION = {"role": "user", "content": "What is the weather in Paris, and get_weather of Rome?"}
AFTER_RESULT = [
    QUESTION,
    {"role": "assistant", "content": None, "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "1", "content": "rain, get_weather"},
]
CHATML = (
    "{% for message in messages %}"
    "<|im_start|>{{ 'user' if message.role == 'tool' else message.role }}\n"
    "{% if message.role == 'tool' %}<tool_response>{{ message.content }}</tool_response>"
    "{% else %}{{ message.content or '' }}{% endif %}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
FIRST_HAS_TOOLS = (
    "{% for message in messages %}[{{ message.role }}]"
    "{% if loop.first and tools %}{{ tools | tojson }}\n\n{% endif %}{{ message.content }}"
    "{% endfor %}{% if add_generation_prompt %}[assistant]{% endif %}"
)


@cache
def client_of(version: str, parser: str) -> Client:
    return app_of(
        *("--force-dummy-tokenizer", "--enable-scale-out", "--vllm-version", version),
        *("--enable-auto-tool-choice", "--tool-call-parser", "hermes"),
        *("--reasoning-parser", parser),
    ).test_client()


def posted(client: Client, path: str, body: Any) -> Any:
    answer = client.post(path, json=body)
    assert answer.status_code == 200, answer.text
    return answer.get_json()


def parts_of(choice: Any) -> tuple[Any, ...]:
    message = choice["message"]
    calls = [call["function"] for call in message.get("tool_calls") or ()]
    return (
        choice["token_ids"],
        choice["finish_reason"],
        message["content"],
        message.get("reasoning"),
        calls,
    )


@pytest.mark.parametrize("parser", ["deepseek_r1", "qwen3"])
@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"max_tokens": 7},
        {"max_tokens": 256, "temperature": 0.8, "seed": 42, "n": 2},
        {"max_tokens": 100, "stop": ["e"]},
        {"chat_template_kwargs": {"enable_thinking": False}},
        {"reasoning_effort": "none"},
        {"thinking_token_budget": 3, "max_tokens": 60},
        {"tools": [WEATHER]},
        {"tools": [WEATHER], "max_tokens": 300, "tool_choice": "none"},
        {"tools": [WEATHER], "max_tokens": 300, "tool_choice": "required"},
        {"tools": [WEATHER], "max_tokens": 300, "tool_choice": NAMED},
        {"tools": [STRICT, WEATHER], "max_tokens": 300},
        {"tools": [WEATHER], "tool_choice": "required", "parallel_tool_calls": False},
        {"tools": [WEATHER], "messages": AFTER_RESULT},
        {"tools": [WEATHER], "messages": AFTER_RESULT, "tool_choice": "required"},
        {"tools": [WEATHER], "messages": [*AFTER_RESULT, QUESTION]},
        {"messages": [QUESTION], "structured_outputs": {"regex": "a{3}"}},
    ],
)
def test_rendered_chat_has_the_same_reply_as_the_chat(parser: str, fields: dict[str, Any]) -> None:
    client = client_of("0.33", parser)
    body = {"messages": [QUESTION], "temperature": 0, "return_token_ids": True, **fields}
    chat = posted(client, CHAT, body)
    rendered = posted(client, f"{CHAT}/render", body)
    derendered = posted(client, "/inference/v1/generate", {**rendered, "output_mode": "derender"})
    assert [*map(parts_of, derendered["choices"])] == [*map(parts_of, chat["choices"])]
    tokens = posted(client, "/inference/v1/generate", rendered)
    texts = posted(client, "/inference/v1/generate", {**rendered, "output_mode": "text"})
    for choice, of_chat in zip(texts["choices"], chat["choices"], strict=True):
        assert choice["token_ids"] == of_chat["token_ids"]
        if "stop" not in fields:
            text = posted(client, "/detokenize", {"tokens": choice["token_ids"]})["prompt"]
            assert choice["text"] == text.removesuffix("<|endoftext|>")
    assert [choice["token_ids"] for choice in tokens["choices"]] == [
        choice["token_ids"] for choice in chat["choices"]
    ]


def test_version_0_32_renders_the_thoughts_of_a_chat() -> None:
    client = client_of("0.32", "qwen3")
    for kwargs in ({}, {"enable_thinking": False}):
        body = {
            "messages": [QUESTION],
            "temperature": 0,
            "return_token_ids": True,
            "chat_template_kwargs": kwargs,
        }
        chat = posted(client, CHAT, body)
        rendered = posted(client, f"{CHAT}/render", body)
        answer = posted(client, "/inference/v1/generate", rendered)
        assert answer["choices"][0]["token_ids"] == chat["choices"][0]["token_ids"]


@pytest.mark.parametrize("version", ["0.32", "0.33"])
@pytest.mark.parametrize("parser", ["deepseek_v3", "qwen3"])
def test_form_decides_the_text_from_the_first_token_if_thoughts_are_not_included(
    version: str, parser: str
) -> None:
    client = client_of(version, parser)
    body = {
        "messages": [QUESTION],
        "include_reasoning": False,
        "chat_template_kwargs": {"thinking": True, "enable_thinking": True},
        "structured_outputs": {"choice": ["yes", "no"]},
    }
    rendered = posted(client, f"{CHAT}/render", body)
    assert rendered["reasoning_ended"] is True
    answer = posted(client, "/inference/v1/generate", rendered)
    ids = answer["choices"][0]["token_ids"]
    text = posted(client, "/detokenize", {"tokens": ids})["prompt"]
    assert text.removesuffix("<|endoftext|>") in ("yes", "no")


@pytest.mark.parametrize("template", [CHATML, FIRST_HAS_TOOLS])
@pytest.mark.parametrize(
    "messages",
    [
        [QUESTION],
        [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "Hello"}, QUESTION],
        AFTER_RESULT,
        [*AFTER_RESULT, QUESTION],
    ],
)
def test_question_is_found_in_prompts_of_other_templates(
    template: str, messages: list[dict[str, Any]], tmp_path: Path
) -> None:
    file = tmp_path / "template.jinja"
    file.write_text(template)
    client = app_of(
        *("--force-dummy-tokenizer", "--enable-scale-out", "--vllm-version", "0.33"),
        *("--enable-auto-tool-choice", "--tool-call-parser", "hermes"),
        *("--chat-template", str(file)),
    ).test_client()
    body = {"messages": messages, "tools": [WEATHER], "temperature": 0, "return_token_ids": True}
    chat = posted(client, CHAT, body)
    has_question = messages[-1] is QUESTION
    assert bool(chat["choices"][0]["message"].get("tool_calls")) == has_question
    rendered = posted(client, f"{CHAT}/render", body)
    derendered = posted(client, "/inference/v1/generate", {**rendered, "output_mode": "derender"})
    assert parts_of(derendered["choices"][0]) == parts_of(chat["choices"][0])


@pytest.mark.parametrize("parser", sorted(PARSER_MARKS))
@pytest.mark.parametrize("is_special", [False, True])
def test_marks_of_the_parser_surround_thoughts_if_the_vocabulary_has_them(
    parser: str, is_special: bool, tmp_path: Path
) -> None:
    marks = PARSER_MARKS[parser]
    tokenizer = Tokenizer.from_file(str(EMBEDDED / "tokenizer.json"))
    tokenizer.add_tokens([AddedToken(mark, special=is_special) for mark in marks])
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    for name in ("tokenizer_config.json", "chat_template.jinja"):
        copyfile(EMBEDDED / name, tmp_path / name)
    client = app_of(
        *("--tokenizer", str(tmp_path), "--enable-scale-out", "--vllm-version", "0.33"),
        *("--reasoning-parser", parser),
    ).test_client()
    ids = [tokenizer.token_to_id(mark) for mark in marks]
    body = {"messages": [QUESTION], "thinking_token_budget": 5, "return_token_ids": True}
    chat = posted(client, CHAT, body)["choices"][0]
    assert (chat["token_ids"][0], chat["token_ids"][6]) == (ids[0], ids[1])
    assert not any(mark in str(chat["message"]) for mark in marks)
    response = {
        "request_id": "r",
        "choices": [{"index": 0, "token_ids": chat["token_ids"], "finish_reason": "stop"}],
    }
    answer = posted(
        client, f"{CHAT}/derender", {"generate_response": response, "chat_request": body}
    )
    message = answer["choices"][0]["message"]
    assert message["reasoning"] == chat["message"]["reasoning"]
    assert message["content"] == chat["message"]["content"]
    ended = {**body, "messages": [{"role": "user", "content": "".join(marks)}]}
    assert posted(client, f"{CHAT}/render", ended)["reasoning_ended"] is True


def test_marks_that_are_no_tokens_are_those_of_most_parsers() -> None:
    client = client_of("0.33", "seed_oss")
    body = {"messages": [QUESTION], "thinking_token_budget": 5, "return_token_ids": True}
    ids = posted(client, CHAT, body)["choices"][0]["token_ids"]
    marks = posted(client, "/tokenize", {"prompt": "<think></think>"})["tokens"]
    assert [ids[0], ids[6]] == marks


@given(st.text("ab", max_size=9), st.text("ab", max_size=9))
def test_common_length_is_that_of_the_common_beginning(first: str, second: str) -> None:
    assert common_length(first, second) == len(commonprefix([first, second]))
