"""Scripted replies in every API family, whole and streamed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
import requests

from tests.conformance.clients import openai_client, told_by
from tests.running_server import QUICK_STEPS, ROOT, RunningServer, running_server
from tests.sdks import anthropic, openai

SCRIPT = str(ROOT / "tests" / "conformance" / "script.yaml")
EXAMPLE = str(ROOT / "examples" / "scripts" / "weather.yaml")
FLAGS = ("--model=tiny", "--enable-scale-out", "--enable-prompt-tokens-details", "--script", SCRIPT)
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
CITIES = [{"city": "Rome"}, {"city": "Oslo"}]


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    """Requests share steps: `test_ways.py` proves that answers do not depend on that."""
    with running_server(*FLAGS, "--profile", str(QUICK_STEPS)) as server:
        yield server


@pytest.fixture
def client(server: RunningServer) -> Iterator[openai.OpenAI]:
    with openai_client(server, strict=False) as client:
        yield client


@pytest.fixture
def claude(server: RunningServer) -> Iterator[anthropic.Anthropic]:
    """Validates leniently: a streamed thought begins without a signature, as with vLLM."""
    with anthropic.Anthropic(
        base_url=server.url, auth_token="x", max_retries=0, timeout=20
    ) as client:
        yield client


def post(server: RunningServer, path: str, body: Any, **options: Any) -> requests.Response:
    return requests.post(server.url + path, json=body, timeout=20, **options)


def tokens_of(server: RunningServer, text: str) -> int:
    body = {"model": "tiny", "prompt": text, "add_special_tokens": False}
    count: int = post(server, "/tokenize", body).json()["count"]
    return count


def user(text: str) -> list[Any]:
    return [{"role": "user", "content": text}]


TOOL: Any = {"type": "function", "function": {"name": "get_weather", "parameters": SCHEMA}}


def chat(client: openai.OpenAI, text: str, stream: bool, **fields: Any) -> dict[str, Any]:
    """Text, thoughts, calls, end and usage of the answer."""
    create: Any = client.chat.completions.create
    if not stream:
        whole = create(model="tiny", messages=user(text), **fields)
        message = whole.choices[0].message
        calls = [
            (call.function.name, call.function.arguments, call.id)
            for call in message.tool_calls or ()
        ]
        thoughts = getattr(message, "reasoning", None) or ""
        return summary_of(
            message.content or "",
            thoughts,
            calls=calls,
            finish=whole.choices[0].finish_reason,
            usage=whole.usage,
        )
    reply_text = ""
    thoughts = ""
    finish = None
    usage = None
    called: dict[int, list[str]] = {}
    options = {"include_usage": True}
    for chunk in create(
        model="tiny", messages=user(text), stream=True, stream_options=options, **fields
    ):
        usage = chunk.usage or usage
        for choice in chunk.choices:
            reply_text += choice.delta.content or ""
            thoughts += getattr(choice.delta, "reasoning", None) or ""
            finish = choice.finish_reason or finish
            for call in choice.delta.tool_calls or ():
                parts = called.setdefault(call.index, ["", "", call.id or ""])
                parts[0] += call.function.name or ""
                parts[1] += call.function.arguments or ""
    return summary_of(reply_text, thoughts, calls=called.values(), finish=finish, usage=usage)


def summary_of(text: str, thoughts: str, calls: Any, finish: Any, usage: Any) -> dict[str, Any]:
    parsed = [(name, json.loads(arguments)) for name, arguments, _ in calls]
    ids = [call_id for *_, call_id in calls]
    return {
        **{"text": text, "thoughts": thoughts, "calls": parsed, "ids": ids},
        "finish": finish,
        "usage": usage,
    }


def is_given(ids: list[str]) -> bool:
    """Whether the second id is that of the script, and the first one drawn."""
    return ids[0].startswith("chatcmpl-tool-") and ids[1:] == ["call_1"]


streamed = pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])


@streamed
@pytest.mark.parametrize("text", ["Hi.", "Grüße an alle: 你好 👋🏽", "  two\tspaces  and more"])
def test_scripted_chat_returns_the_exact_text_and_token_count(
    server: RunningServer, client: openai.OpenAI, stream: bool, text: str
) -> None:
    answer = chat(client, f"repeat {text}", stream)
    assert (answer["text"], answer["finish"]) == (text, "stop")
    assert answer["usage"].completion_tokens == tokens_of(server, text) + 1  # the end of text
    cut = chat(client, f"repeat {text} and {text} again", stream, max_tokens=2)
    assert (cut["finish"], cut["usage"].completion_tokens) == ("length", 2)


@streamed
def test_scripted_chat_returns_reasoning_and_tool_calls(
    server: RunningServer, client: openai.OpenAI, stream: bool
) -> None:
    thinking = chat(client, "think", stream)
    assert (thinking["thoughts"], thinking["text"]) == ("Let me see.", "I see.")
    thought_tokens = tokens_of(server, "Let me see.") + tokens_of(server, "I see.")
    marks = 2  # <think> and </think>
    assert thinking["usage"].completion_tokens == thought_tokens + marks + 1
    calling = chat(client, "the weather?", stream, tools=[TOOL])
    assert calling["text"] == "Let me look."
    assert calling["calls"] == [("get_weather", city) for city in CITIES]
    assert calling["finish"] == "tool_calls" and is_given(calling["ids"])
    required = chat(client, "the weather?", stream, tools=[TOOL], tool_choice="required")
    assert len(required["calls"]) == 2


@streamed
def test_script_sets_the_content_usage_and_finish_reason_of_a_chat(
    client: openai.OpenAI, stream: bool
) -> None:
    answer = chat(client, "an object", stream, response_format={"type": "json_object"})
    assert json.loads(answer["text"]) == {"number": 42, "text": "chat"}
    usage = chat(client, "the bill", stream)["usage"]
    assert (usage.prompt_tokens, usage.completion_tokens, usage.total_tokens) == (1000, 500, 1500)
    assert usage.prompt_tokens_details.cached_tokens == 900
    filtered = chat(client, "filter", stream)
    assert (filtered["text"], filtered["finish"]) == ("I must not", "content_filter")
    silent = chat(client, "silence", stream)
    assert (silent["text"], silent["finish"], silent["usage"].completion_tokens) == ("", "stop", 1)


@streamed
def test_scripted_completion_returns_text_with_reasoning_markup(
    server: RunningServer, client: openai.OpenAI, stream: bool
) -> None:
    def complete(prompt: Any) -> list[str]:
        options: Any = {"stream": True} if stream else {}
        got: Any = client.completions.create(model="tiny", prompt=prompt, max_tokens=100, **options)
        texts: dict[int, str] = {}
        for part in got if stream else [got]:
            for choice in part.choices:
                texts[choice.index] = texts.get(choice.index, "") + choice.text
        return [texts[index] for index in sorted(texts)]

    assert complete("repeat one") == ["one"]
    assert complete(["repeat one", "think"]) == ["one", "<think>\nLet me see.\n</think>\n\nI see."]
    ids = post(server, "/tokenize", {"model": "tiny", "prompt": "repeat two"}).json()["tokens"]
    assert complete(ids) == ["two"]


@streamed
def test_scripted_response_has_an_item_for_each_part_of_the_reply(
    client: openai.OpenAI, stream: bool
) -> None:
    def respond(text: str, **fields: Any) -> Any:
        create: Any = client.responses.create
        if not stream:
            return create(model="tiny", input=text, **fields)
        *_, last = create(model="tiny", input=text, stream=True, **fields)
        return last.response

    assert respond("repeat Hi.").output_text == "Hi."
    assert [item.type for item in respond("think").output] == ["reasoning", "message"]
    tool = {"type": "function", "name": "get_weather", "parameters": SCHEMA}
    message, *calls = respond("the weather?", tools=[tool]).output
    assert message.content[0].text == "Let me look."
    assert [(call.name, json.loads(call.arguments)) for call in calls] == [
        ("get_weather", city) for city in CITIES
    ]
    assert is_given([call.call_id for call in calls])
    usage = respond("the bill").usage
    assert (usage.input_tokens, usage.output_tokens, usage.total_tokens) == (1000, 500, 1500)
    assert usage.input_tokens_details.cached_tokens == 900
    filtered = respond("filter")
    assert (filtered.status, filtered.incomplete_details.reason) == ("incomplete", "content_filter")


@streamed
def test_scripted_message_has_a_block_for_each_part_of_the_reply(
    claude: anthropic.Anthropic, stream: bool
) -> None:
    def message(text: str, **fields: Any) -> Any:
        body = {"model": "tiny", "max_tokens": 200, "messages": user(text), **fields}
        if not stream:
            return claude.messages.create(**body)
        with claude.messages.stream(**body) as events:
            return events.get_final_message()

    assert [block.text for block in message("repeat Hi.").content] == ["Hi."]
    thought, text = message("think").content
    assert (thought.thinking, text.text) == ("Let me see.", "I see.")
    reply = message("the weather?", tools=[{"name": "get_weather", "input_schema": SCHEMA}])
    first_block, *calls = reply.content
    assert (first_block.text, reply.stop_reason) == ("Let me look.", "tool_use")
    assert [(call.name, call.input) for call in calls] == [("get_weather", city) for city in CITIES]
    assert is_given([call.id for call in calls])
    assert message("filter").stop_reason == "refusal"
    usage = message("the bill").usage
    assert (usage.input_tokens, usage.cache_read_input_tokens, usage.output_tokens) == (
        100,
        900,
        500,
    )


@streamed
def test_scripted_faults_raise_rate_limit_and_connection_errors(
    server: RunningServer, client: openai.OpenAI, stream: bool
) -> None:
    with pytest.raises(openai.RateLimitError, match=r"Not now\.") as refused:
        chat(client, "refuse", stream)
    assert refused.value.response.headers["Retry-After"] == "7"
    body = {"model": "tiny", "messages": user("break"), "stream": True}
    with (
        pytest.raises(requests.RequestException),
        post(server, "/v1/chat/completions", body, stream=True) as got,
    ):
        list(got.iter_lines())
    verdict = requests.get(server.url + "/admin/verdict", timeout=20).json()
    (faults,) = [
        client_report["faults"]
        for client_report in verdict["clients"].values()
        if "disconnect" in client_report["faults"]
    ]
    assert faults["disconnect"] >= 1


@streamed
def test_failing_rule_returns_one_error_that_clients_do_not_retry(
    server: RunningServer, client: openai.OpenAI, stream: bool
) -> None:
    why = r"rule 11 \(failing template\): template .* failed: division by zero"
    with pytest.raises(openai.InternalServerError, match=why) as failed:
        chat(client, "divide", stream, tools=[TOOL])
    assert failed.value.response.headers["x-should-retry"] == "false"
    called = chat(client, "my money", stream, tools=[TOOL], max_tokens=2)
    assert called["usage"].completion_tokens == 2, (
        "a tool that is not offered is left to the next rule"
    )
    assert chat(client, "repeat Hi.", stream)["text"] == "Hi.", "nobody else's is lost"


def test_script_report_contains_the_number_of_uses_of_each_rule(
    server: RunningServer, client: openai.OpenAI
) -> None:
    requests.delete(server.url + "/admin/script", timeout=20)
    for text in ("repeat a", "repeat b", "think", "nothing fits"):
        chat(client, text, False, max_tokens=2)
    report = requests.get(server.url + "/admin/script", timeout=20).json()
    (file,) = report["files"]
    answered = {rule["name"]: rule["answered"] for rule in file["rules"] if rule["answered"]}
    assert (answered, report["unanswered"]) == ({"text": 2, "thought": 1}, 1)
    caches = requests.get(server.url + "/admin/memory", timeout=20).json()["caches"]
    assert caches["script counters"]["size_bytes"] <= caches["script counters"]["limit_bytes"]


@pytest.mark.clients
def test_scripted_pydantic_ai_agent_completes_its_tool_loop() -> None:
    with running_server("--model=tiny", "--script", EXAMPLE) as server:
        results = told_by("pydantic_ai_client.py", server)
    assert (set(results["cities"]), set(results["answers"])) == (
        {"Rome"},
        {"The weather: sun in Rome."},
    )
