"""Fixtures of other tools become scripts that a server accepts, and that reply as the tools do."""

import json
from base64 import b64encode
from collections.abc import Callable, Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import yaml

from app import create_app
from app.core.cli import main
from app.core.settings import load
from app.extensions.recording.to_script import distinguish
from app.extensions.scripts.reader import convert_script
from tests.extensions.recording.recordings import CHAT, chat
from workbench.imports.aimock import import_aimock
from workbench.imports.cassette import import_cassette
from workbench.imports.imported_script import ImportedScript, ImportFormatError
from workbench.imports.litellm import import_litellm

COMMAND = ("script", "import")
TOOLS = [{"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}]
MODELS = ("m", "gpt", "one", "busy", "caller", "other")
CALL = {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": '{"a": 1}'}}


def written(path: Path, document: object) -> str:
    path.write_text(json.dumps(document) if path.suffix == ".json" else yaml.safe_dump(document))
    return str(path)


def imported(folder: Path, document: object, name: str = "fixtures.yaml") -> Any:
    """A client of a server with the script that the command makes of `document`."""
    script = folder / "script.yaml"
    assert main([*COMMAND, written(folder / name, document), "--out", str(script)]) == 0
    flags = ["--force-dummy-tokenizer", "--served-model-name", *MODELS, "--script", str(script)]
    return create_app(load(flags, {})).test_client()


def reply(client: Any, *texts: str, **fields: Any) -> Any:
    """The message of the reply, or the status of an error."""
    answer = client.post(CHAT, json=chat(*texts, **fields))
    if answer.status_code != 200:
        return answer.status_code
    return answer.get_json()["choices"][0]["message"]


def text(client: Any, *texts: str, **fields: Any) -> Any:
    return reply(client, *texts, **fields)["content"]


def fixture(match: dict[str, Any], response: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {"match": match, "response": response, **fields}


def test_imported_aimock_fixtures_match_message_parts_and_call_tools(tmp_path: Path) -> None:
    call = {"name": "weather", "arguments": {"city": "Rome"}, "id": "call_1"}
    document = {
        "fixtures": [
            fixture({"toolCallId": "call_1"}, {"content": "Sunny {{today}}."}),
            fixture({"userMessage": "weather"}, {"toolCalls": [call]}),
            fixture({"userMessage": "busy"}, {"error": {"message": "Later"}, "status": 429}),
        ]
    }
    client = imported(tmp_path, document, "fixtures.json")
    message = reply(client, "the weather, please", tools=TOOLS)
    assert json.loads(message["tool_calls"][0]["function"]["arguments"]) == {"city": "Rome"}
    messages = [
        {"role": "user", "content": "the weather, please"},
        message,
        {"role": "tool", "tool_call_id": "call_1", "content": "sun"},
    ]
    assert text(client, messages=messages, tools=TOOLS) == "Sunny {{today}}."
    assert reply(client, "are you busy?") == 429


def test_imported_aimock_sequence_answers_in_the_order_of_its_indices(tmp_path: Path) -> None:
    match = {"userMessage": "joke"}
    document = {
        "fixtures": [
            fixture({**match, "sequenceIndex": 1}, {"content": "two"}),
            fixture({**match, "sequenceIndex": 0}, {"content": "one"}),
            fixture(match, {"content": "many"}),
        ]
    }
    client = imported(tmp_path, document, "fixtures.json")
    assert [text(client, "a joke") for _ in range(4)] == ["one", "two", "many", "many"]


def test_imported_mockllm_prompts_match_regardless_of_letter_case(
    tmp_path: Path,
) -> None:
    document = {"responses": {"what is 2+2?": "9"}, "defaults": {"unknown_response": "No idea."}}
    client = imported(tmp_path, document)
    assert text(client, "What is 2+2?") == "9"
    assert text(client, "What is 3+3?") == "No idea."


def test_last_matching_rule_of_an_imported_mock_llm_script_applies(
    tmp_path: Path,
) -> None:
    def rule(match: str, content: object, status: int = 200) -> dict[str, Any]:
        response = {"status": status, "content": json.dumps(content)}
        return {"path": CHAT, "match": match, "response": response}

    def choice(content: str) -> dict[str, Any]:
        return {"choices": [{"message": {"role": "assistant", "content": content}}]}

    last = "body.messages[-1].content"
    document = {
        "rules": [
            rule("@", choice("You said {{jmes request body.messages[-1].content}}.")),
            rule(f"contains({last}, 'hello')", choice("Hi {% there.")),
            rule(f"contains({last}, 'hello') && body.model == 'gpt'", choice("Hi from gpt.")),
            rule(f"{last} == 'fail'", {"error": {"message": "Wrong key"}}, 401),
        ]
    }
    client = imported(tmp_path, document)
    assert text(client, "hello!") == "Hi {% there."
    assert text(client, "hello!", model="gpt") == "Hi from gpt."
    assert text(client, "Bye") == "You said Bye."
    assert reply(client, "fail") == 401


def test_imported_litellm_mocks_answer_for_their_models(tmp_path: Path) -> None:
    def model(name: str, **parameters: Any) -> dict[str, Any]:
        return {"model_name": name, "litellm_params": {"model": "openai/x", **parameters}}

    document = {
        "model_list": [
            model("*", mock_response="Anything."),
            model("one", mock_response="From one."),
            model("busy", mock_response="litellm.RateLimitError"),
            model("caller", mock_tool_calls=[CALL]),
        ]
    }
    client = imported(tmp_path, document)
    assert text(client, "Hi", model="one") == "From one."
    assert text(client, "Hi", model="other") == "Anything."
    assert reply(client, "Hi", model="busy") == 429
    calls = reply(client, "Hi", model="caller", tools=TOOLS)["tool_calls"]
    assert calls[0]["function"] == {"name": "weather", "arguments": '{"a": 1}'}


def interaction(uri: str, sent: object, body: object, **response: Any) -> dict[str, Any]:
    return {
        "request": {"method": "POST", "uri": uri, "body": json.dumps(sent), "headers": {}},
        "response": {"status": {"code": 200, "message": "OK"}, "headers": {}, "body": body}
        | response,
    }


CHOICE = {"choices": [{"index": 0, "message": {"content": "From VCR."}, "finish_reason": "stop"}]}


def test_imported_ruby_vcr_cassette_answers_its_recorded_request(tmp_path: Path) -> None:
    body = {"encoding": "UTF-8", "base64_string": b64encode(json.dumps(CHOICE).encode()).decode()}
    request = {
        "method": "post",
        "uri": "https://x.openai.azure.com/openai/deployments/d/chat/completions?api-version=1",
        "body": {"encoding": "UTF-8", "string": json.dumps(chat("Chat?"))},
    }
    exchange = {"request": request, "response": {"status": {"code": 200}, "body": body}}
    client = imported(tmp_path, {"http_interactions": [exchange], "recorded_with": "VCR 6"})
    assert text(client, "Chat?") == "From VCR."


def test_positions_of_parts_that_cannot_be_imported_are_listed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    document = {
        "fixtures": [
            fixture({"userMessage": "a", "responseFormat": "x"}, {"content": "A"}, chunkSize=3),
            fixture({"endpoint": "image"}, {"image": {"url": "u"}}),
            "no fixture",
        ]
    }
    file = written(tmp_path / "f.json", document)
    assert main([*COMMAND, file, "--out", str(tmp_path / "s.yaml")]) == 0
    assert capsys.readouterr().err.splitlines() == [
        f"{file}: fixture 1: chunkSize left out",
        f"{file}: fixture 1: match: responseFormat left out",
        f"{file}: fixture 2: left out: endpoint image",
        f"{file}: fixture 3: left out: fixture 3 must be a mapping, got str",
        "imported rules: 1; not carried over: 4",
    ]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.json", "{", "not a format that I know (it is not valid: "),
        ("a.json", '{"interactions": [', "a.json: is not valid: "),
        ("a.yaml", "interactions: [", "a.yaml: is not valid: "),
        ("a.yaml", "a: [", "not a format that I know; I read"),
        ("a.yaml", "just text", "not a format that I know; I read fixtures of aimock, "),
        ("a.json", "{}", "not a format that I know; I read"),
        ("a.json", "[" * 100_000, "is not valid"),
        ("a.json", '{"fixtures": []}', "no rule could be imported"),
        ("a.json", '{"llm": {"fixtures": "b.json"}}', "import its fixtures from b.json instead"),
        ("a.yaml", "rules: " + "[\n" * 5_000, "is not valid"),
        ("a.yaml", "rules: !!python/object/apply:os.getcwd []", "is not valid"),
        ("missing.json", None, "cannot be read: No such file"),
    ],
)
def test_file_that_cannot_be_imported_is_reported_in_one_line(
    tmp_path: Path,
    name: str,
    content: str | None,
    message: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    file = tmp_path / name
    if content is not None:
        file.write_text(content)
    status = main([*COMMAND, str(file)])
    error = capsys.readouterr().err.splitlines()[-1]
    assert status == 1
    assert message in error


CHAOTIC = {
    "fixtures": [
        fixture(
            {"userMessage": "a", "systemMessage": ["b"], "toolCallId": "c", "sequenceIndex": 0},
            {"content": "x", "toolCalls": [{"name": "w", "arguments": {"a": 1}}], "usage": {}},
            latency=5,
            streamingProfile={"ttft": 1, "tps": 2},
            chaos={"dropRate": 0.5},
        ),
        fixture({}, {"blocks": [{"type": "text", "text": "t"}], "reasoning": "r"}),
        fixture({"inputText": "a", "endpoint": "embedding"}, {"embedding": [0.1]}),
        fixture({}, {"error": {"message": "m"}, "status": 429, "retryAfter": 3}),
    ]
}
MOCKS = {
    "model_list": [
        {"model_name": "a", "litellm_params": {"mock_response": CHOICE, "mock_delay": 1}},
        {"model_name": "b", "litellm_params": {"mock_tool_calls": [CALL]}},
    ]
}
CASSETTE = {
    "interactions": [
        interaction("https://a/v1/chat/completions", chat("Hi"), {"string": json.dumps(CHOICE)})
    ]
}
ODD_VALUES = (None, -1, 1e300, float("nan"), True, "", "\ud800", [None], {"a": 1})


def places(value: Any, place: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The places of all values within a value."""
    if place:
        yield place
    if isinstance(value, dict):
        for key, member in value.items():
            yield from places(member, (*place, key))
    elif isinstance(value, list):
        for index, member in enumerate(value):
            yield from places(member, (*place, index))


def with_value(document: Any, place: tuple[Any, ...], value: object) -> Any:
    changed = deepcopy(document)
    parent = changed
    for step in place[:-1]:
        parent = parent[step]
    parent[place[-1]] = value
    return changed


@pytest.mark.parametrize(
    ("read", "document"),
    [(import_aimock, CHAOTIC), (import_litellm, MOCKS), (import_cassette, CASSETTE)],
)
def test_imported_file_with_an_invalid_value_yields_only_valid_rules(
    read: Callable[[object, ImportedScript], object], document: Any
) -> None:
    for place in places(document):
        for value in ODD_VALUES:
            script = ImportedScript()
            try:
                read(with_value(document, place, value), script)
            except ImportFormatError:
                assert len(place) == 1, place
            if script.rules:
                distinguish(script.rules)
                convert_script({"rules": script.rules}, "script")
