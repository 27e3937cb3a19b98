"""Answers of chats and completions before and after the releases that changed them."""

import json
from typing import Any

import pytest
from werkzeug.test import Client

from app.core.assembly.derived import publishing
from app.core.settings import load
from app.core.versions.releases.v0_10_1 import name_error
from tests.application import app_of

CHAT = "/v1/chat/completions"
COMPLETION = "/v1/completions"
BATCH = "/v1/chat/completions/batch"
GENERATE = "/inference/v1/generate"
TOOL = {"type": "function", "function": {"name": "ping", "parameters": {"type": "object"}}}
Body = dict[str, Any]
HELLO: Body = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 3}
FILE: Body = {"role": "user", "content": [{"type": "file", "file": {"file_id": "f"}}]}
WEATHER: Body = {"prompt": "The weather", "max_tokens": 3}


def client_of(version: str, *flags: str) -> Client:
    return app_of("--vllm-version", version, "--seed", "1", *flags).test_client()


def posted(client: Client, path: str, body: Body) -> tuple[int, Body]:
    answer = client.post(path, json=body)
    result: Body = json.loads(answer.data)
    return answer.status_code, result


def answer_of(client: Client, path: str, body: Body) -> Body:
    status, answer = posted(client, path, body)
    assert status == 200, answer
    return answer


def error_of(client: Client, path: str, body: Body) -> tuple[int, str, str | None]:
    status, answer = posted(client, path, body)
    error = answer["error"]
    return status, error["type"], error["param"]


def chunks_of(client: Client, path: str, body: Body) -> list[Body]:
    lines = client.post(path, json={**body, "stream": True}).text.split("\n\n")
    return [json.loads(line.removeprefix("data: ")) for line in lines[:-2]]


@pytest.mark.parametrize(
    ("path", "body", "release", "before", "after"),
    [
        pytest.param(
            CHAT,
            {**HELLO, "stream_options": {"include_usage": True}},
            ("0.26", "0.27"),
            (400, "Bad Request", "stream_options"),
            (400, "BadRequestError", "stream_options"),
            id="rules become errors of their own",
        ),
        pytest.param(
            CHAT,
            {**HELLO, "stream_options": {"include_usage": True}},
            ("0.13", "0.14"),
            (400, "Bad Request", None),
            (400, "Bad Request", "stream_options"),
            id="errors name their fields",
        ),
        pytest.param(
            COMPLETION,
            {"prompt": ""},
            ("0.22", "0.23"),
            (400, "Bad Request", None),
            (400, "Bad Request", "prompt"),
            id="rules name their fields",
        ),
        pytest.param(
            CHAT,
            {"messages": "hi"},
            ("0.23", "0.24"),
            (400, "Bad Request", None),
            (400, "Bad Request", "body.messages"),
            id="the schema names its fields",
        ),
        pytest.param(
            CHAT,
            {**HELLO, "bad_words": [""]},
            ("0.21", "0.22"),
            (500, "InternalServerError", None),
            (400, "BadRequestError", None),
            id="empty bad words",
        ),
        pytest.param(
            CHAT,
            {**HELLO, "logit_bias": {"a": 1}},
            ("0.24", "0.25"),
            (400, "BadRequestError", None),
            (400, "BadRequestError", "logit_bias"),
            id="keys of logit_bias",
        ),
        pytest.param(
            COMPLETION,
            {**WEATHER, "logprobs": "x"},
            ("0.26", "0.27"),
            (400, "BadRequestError", None),
            (400, "BadRequestError", "logprobs"),
            id="logprobs of a wrong type",
        ),
        pytest.param(
            CHAT,
            {"messages": [{"role": "user", "content": [{"type": "file", "file": {}}]}]},
            ("0.20", "0.21"),
            (501, "NotImplementedError", None),
            (400, "BadRequestError", "type"),
            id="parts of unknown types",
        ),
        pytest.param(
            CHAT,
            {**HELLO, "structured_outputs": {"json": {"type": "nonsense"}}},
            ("0.26", "0.27"),
            (400, "BadRequestError", None),
            (500, "InternalServerError", None),
            id="grammars that do not compile",
        ),
        pytest.param(
            CHAT,
            {**HELLO, "structured_outputs": {}},
            ("0.26", "0.27"),
            (400, "Bad Request", "body.structured_outputs"),
            (400, "BadRequestError", None),
            id="no constraint",
        ),
        pytest.param(
            CHAT,
            {**HELLO, "tools": []},
            ("0.26", "0.27"),
            (400, "Bad Request", "body"),
            (400, "BadRequestError", "tools"),
            id="no tools",
        ),
        pytest.param(
            "/invocations",
            {},
            ("0.26", "0.27"),
            (400, "BadRequestError", None),
            (400, "BadRequestError", "prompt"),
            id="invocations of nothing",
        ),
        pytest.param(
            CHAT,
            {**HELLO, "cache_salt": 5},
            ("0.27", "0.28"),
            (400, "BadRequestError", "cache_salt"),
            (400, "Bad Request", "body.cache_salt"),
            id="salts of a wrong type",
        ),
        pytest.param(
            CHAT,
            {**HELLO, "cache_salt": ""},
            ("0.29", "0.30"),
            (400, "Bad Request", "body.cache_salt"),
            (400, "BadRequestError", "cache_salt"),
            id="empty salts",
        ),
    ],
)
def test_errors_change_with_the_release(
    path: str,
    body: Body,
    release: tuple[str, str],
    before: tuple[int, str, str | None],
    after: tuple[int, str, str | None],
) -> None:
    old, new = release
    assert error_of(client_of(old), path, body) == before
    assert error_of(client_of(new), path, body) == after


@pytest.mark.parametrize(
    ("path", "body", "release", "before", "after"),
    [
        (CHAT, {**HELLO, "temperature": 3}, ("0.23", "0.24"), 200, 400),
        (CHAT, {**HELLO, "tools": []}, ("0.19", "0.20"), 200, 400),
        (COMPLETION, {**WEATHER, "max_tokens": None}, ("0.23", "0.24"), 500, 200),
        (CHAT, {**HELLO, "reasoning_effort": "none"}, ("0.17", "0.18"), 400, 200),
        ("/v1/embeddings", {"input": "hi"}, ("0.15", "0.16"), 200, 404),
        (CHAT, {**HELLO, "messages": [FILE]}, ("0.17", "0.18"), 400, 501),
        (COMPLETION, {**WEATHER, "best_of": 2}, ("0.11", "0.12"), 400, 200),
    ],
)
def test_acceptance_changes_with_the_release(
    path: str, body: Body, release: tuple[str, str], before: int, after: int
) -> None:
    old, new = release
    assert posted(client_of(old), path, body)[0] == before
    assert posted(client_of(new), path, body)[0] == after


def test_prompt_details_without_cached_tokens_are_null_before_024() -> None:
    flag = "--enable-prompt-tokens-details=true"
    usages = [answer_of(client_of(name, flag), CHAT, HELLO)["usage"] for name in ("0.23", "0.24")]
    assert usages[0]["prompt_tokens_details"] is None
    assert usages[1]["prompt_tokens_details"]["cached_tokens"] == 0
    body = {**HELLO, "stream_options": {"include_usage": True}}
    last = [chunks_of(client_of(name, flag), CHAT, body)[-1] for name in ("0.23", "0.24")]
    assert "prompt_tokens_details" not in last[0]["usage"]
    assert last[1]["usage"]["prompt_tokens_details"]["cached_tokens"] == 0


def test_messages_have_an_empty_list_of_calls_before_024() -> None:
    messages = [
        answer_of(client_of(name), CHAT, HELLO)["choices"][0]["message"]
        for name in ("0.23", "0.24")
    ]
    assert messages[0]["tool_calls"] == []
    assert list(messages[0])[-2:] == ["tool_calls", "reasoning"]
    assert "tool_calls" not in messages[1]


def test_fingerprints_begin_with_021() -> None:
    for path, body in ((CHAT, HELLO), (COMPLETION, WEATHER)):
        assert answer_of(client_of("0.20"), path, body)["system_fingerprint"] is None
        fingerprint = answer_of(client_of("0.21"), path, body)["system_fingerprint"]
        assert fingerprint.startswith("vllm-0.21.0-")


def test_chunks_of_completions_have_a_null_usage_before_021() -> None:
    first = [chunks_of(client_of(name), COMPLETION, WEATHER)[0] for name in ("0.20", "0.21")]
    assert first[0]["usage"] is None
    assert "usage" not in first[1]


def test_streamed_calls_change_with_024() -> None:
    body = {**HELLO, "max_tokens": 30, "tools": [TOOL]}
    named = {**body, "tool_choice": {"type": "function", "function": {"name": "ping"}}}
    flags = ("--enable-auto-tool-choice=true", "--tool-call-parser", "hermes")
    deltas: dict[str, list[Body]] = {}
    for version in ("0.20", "0.23", "0.24"):
        chunks = chunks_of(client_of(version, *flags), CHAT, named)
        deltas[version] = [chunk["choices"][0]["delta"] for chunk in chunks]
    for version in ("0.20", "0.23"):
        begun = deltas[version][1]
        assert "content" not in begun
        assert begun["tool_calls"][0]["function"]["name"] == "ping"
        assert begun["tool_calls"][0]["function"]["arguments"]
    assert deltas["0.24"][1]["content"] is None
    assert "arguments" not in deltas["0.24"][1]["tool_calls"][0]["function"]
    required = chunks_of(client_of("0.23", *flags), CHAT, {**body, "tool_choice": "required"})
    functions = [
        call["function"]
        for chunk in required
        for call in chunk["choices"][0]["delta"].get("tool_calls", ())
    ]
    assert functions[0] == {"name": "ping", "arguments": ""}
    assert all(function["name"] is None for function in functions[1:])


def test_thoughts_have_two_names_until_016() -> None:
    flags = ("--reasoning-parser", "qwen3")
    body = {**HELLO, "max_tokens": 60}
    names: dict[str, set[str]] = {}
    for version in ("0.10", "0.11.0", "0.11.1", "0.15", "0.16"):
        message = answer_of(client_of(version, *flags), CHAT, body)["choices"][0]["message"]
        names[version] = {name for name in message if name.startswith("reasoning")}
    both = {"reasoning", "reasoning_content"}
    assert names == {
        "0.10": {"reasoning_content"},
        "0.11.0": {"reasoning_content"},
        "0.11.1": both,
        "0.15": both,
        "0.16": {"reasoning"},
    }


@pytest.mark.parametrize(
    ("version", "fields", "is_constrained"),
    [
        ("0.10", {"guided_choice": ["yes"]}, True),
        ("0.11", {"guided_choice": ["yes"]}, True),
        ("0.12", {"guided_choice": ["yes"]}, False),
        ("0.10", {"structured_outputs": {"choice": ["yes"]}}, False),
        ("0.11", {"structured_outputs": {"choice": ["yes"]}}, True),
        ("0.12", {"structured_outputs": {"choice": ["yes"]}}, True),
    ],
)
def test_fields_of_constraints_change_with_011_and_012(
    version: str, fields: Body, is_constrained: bool
) -> None:
    answer = answer_of(client_of(version), CHAT, {**HELLO, "max_tokens": 9, **fields})
    text = answer["choices"][0]["message"]["content"]
    assert (text == "yes") == is_constrained


@pytest.mark.parametrize(
    ("version", "layout"),
    [
        ("0.10", "0.10.2"),
        ("0.13", "0.10.2"),
        ("0.14", "0.14"),
        ("0.16", "0.14"),
        ("0.17", "0.17"),
        ("0.18", "0.17"),
        ("0.19", "0.19"),
        ("0.20", "0.20"),
        ("0.21", "0.20"),
        ("0.22", "0.22"),
        ("0.23", "0.22"),
        ("0.24", "map"),
        ("0.33", "map"),
    ],
)
def test_kv_events_have_the_layout_of_the_version(version: str, layout: str) -> None:
    assert layout_of("--vllm-version", version) == layout


def test_setting_decides_the_layout_of_kv_events() -> None:
    assert layout_of("--vllm-version", "0.19", "--kv-events-format", "0.22") == "0.22"


def layout_of(*flags: str) -> str:
    settings = load(("--force-dummy-tokenizer", *flags), {})
    return publishing(settings.kvcache, settings.server, settings.api, model="tiny", rank=0).layout


def test_infinite_temperatures_are_accepted_before_024() -> None:
    body = json.dumps({**HELLO, "temperature": float("inf")})
    statuses = [
        client_of(version)
        .post(CHAT, data=body, headers={"Content-Type": "application/json"})
        .status_code
        for version in ("0.23", "0.24")
    ]
    assert statuses == [200, 400]


def test_errors_of_grammars_in_streams_have_words_before_027() -> None:
    body = {**HELLO, "structured_outputs": {"json": {"type": "nonsense"}}, "stream": True}
    for version, words in (("0.26", True), ("0.27", False)):
        text = client_of(version).post(CHAT, json=body).text
        assert ("nonsense" in text) == words


@pytest.mark.parametrize(("count", "after"), [(-1, 200), (-2, 400)])
def test_completions_cannot_have_all_log_probabilities_before_029(count: int, after: int) -> None:
    answers = [
        client_of(version, "--max-logprobs", "-1")
        .post(COMPLETION, json={**WEATHER, "logprobs": count})
        .status_code
        for version in ("0.28", "0.29")
    ]
    assert answers == [400, after]


@pytest.mark.parametrize(("version", "status"), [("0.25", 200), ("0.26", 500), ("0.31", 200)])
def test_choices_with_lines_fail_from_026_to_030(version: str, status: int) -> None:
    body = {**HELLO, "structured_outputs": {"choice": ["yes\nno"]}}
    assert posted(client_of(version), CHAT, body)[0] == status


def test_tools_beside_constraints_are_accepted() -> None:
    body = {**HELLO, "tools": [TOOL], "structured_outputs": {"choice": ["yes"]}}
    flags = ("--enable-auto-tool-choice=true", "--tool-call-parser", "hermes")
    assert posted(client_of("0.27", *flags), CHAT, body)[0] == 200


def test_errors_of_long_prompts_count_the_limit_up_to_031() -> None:
    body = {"prompt": [5] * 100, "max_tokens": 4}
    flags = ("--max-model-len", "64")
    older = posted(client_of("0.31", *flags), COMPLETION, body)[1]["error"]["message"]
    newer = posted(client_of("0.32", *flags), COMPLETION, body)[1]["error"]["message"]
    assert "you requested 4 output tokens and your prompt contains 100 input tokens" in older
    assert "your prompt contains 100 input tokens, which exceeds" in newer


@pytest.mark.parametrize(("version", "status"), [("0.29", 400), ("0.30", 200)])
def test_names_of_properties_are_constrained_since_030(version: str, status: int) -> None:
    schema = {"type": "object", "propertyNames": {"maxLength": 3}}
    body = {**HELLO, "max_tokens": 20, "structured_outputs": {"json": schema}}
    assert posted(client_of(version), CHAT, body)[0] == status


def test_role_of_developers_stays_before_023() -> None:
    messages = [{"role": "developer", "content": "be"}, *HELLO["messages"]]
    body = {"messages": messages, "max_tokens": 1}
    counts = [
        answer_of(client_of(version), CHAT, body)["usage"]["prompt_tokens"]
        for version in ("0.22", "0.23")
    ]
    assert counts[0] != counts[1]


@pytest.mark.parametrize(("version", "has_origins"), [("0.25", False), ("0.26", True)])
def test_errors_of_rules_are_open_to_browsers_since_026(version: str, has_origins: bool) -> None:
    answer = client_of(version).post(CHAT, json={**HELLO, "top_k": -2})
    assert answer.status_code == 400
    assert ("Vary" in answer.headers) == has_origins


def test_errors_of_handlers_are_open_to_browsers_before_026() -> None:
    answer = client_of("0.25").post(COMPLETION, json={**WEATHER, "suffix": "x"})
    assert answer.get_json()["error"]["message"] == "suffix is not currently supported"
    assert answer.get_json()["error"]["type"] == "BadRequestError"
    assert "Vary" in answer.headers


def test_faults_are_closed_to_browsers_of_other_origins() -> None:
    answer = client_of("0.27").post(CHAT, json="hi")
    assert answer.status_code == 500
    assert "Vary" not in answer.headers


def test_unforeseen_errors_are_texts_before_018() -> None:
    for version, media in (("0.17", "text/plain"), ("0.18", "application/json")):
        answer = client_of(version).post(CHAT, data="5", content_type="application/json")
        assert (answer.status_code, answer.mimetype) == (500, media)
    assert client_of("0.17").post(CHAT, json=5).text == "Internal Server Error"


def test_empty_stream_options_ask_for_usage_before_018() -> None:
    for version, has_usage in (("0.17", True), ("0.18", False)):
        last = chunks_of(client_of(version), CHAT, {**HELLO, "stream_options": {}})[-1]
        assert ("usage" in last) == has_usage


def test_each_delta_has_thoughts_of_the_former_name_from_0111_to_015() -> None:
    for version, has_name in (("0.11.0", False), ("0.11.1", True), ("0.15", True), ("0.16", False)):
        for chunk in chunks_of(client_of(version), CHAT, HELLO):
            for choice in chunk["choices"]:
                assert ("reasoning_content" in choice["delta"]) == has_name


def test_other_tasks_answer_with_an_error_before_016() -> None:
    client = client_of("0.15")
    assert "Embeddings API" in answer_of(client, "/v1/embeddings", {})["error"]["message"]
    assert client.get("/v1/embeddings").status_code == 405
    assert client.post("/score", data="{}").status_code == 400
    assert answer_of(client, "/invocations", HELLO)["object"] == "chat.completion"


@pytest.mark.parametrize(
    ("field", "value", "release"),
    [
        ("reasoning_effort", "minimal", ("0.20", "0.21")),
        ("temperature", 3, ("0.24", "0.23")),
        ("max_completion_tokens", 0, ("0.16", "0.15")),
    ],
)
def test_values_of_fields_are_refused_by_one_release_only(
    field: str, value: object, release: tuple[str, str]
) -> None:
    refusing, accepting = release
    body = {**HELLO, field: value}
    assert posted(client_of(refusing), CHAT, body)[0] == 400
    assert posted(client_of(accepting), CHAT, body)[0] == 200


@pytest.mark.parametrize(("version", "has_origins"), [("0.22", False), ("0.23", True)])
def test_errors_of_fields_are_open_to_browsers_since_023(version: str, has_origins: bool) -> None:
    answer = client_of(version).post(CHAT, json={**HELLO, "max_tokens": 10**6})
    assert answer.get_json()["error"]["type"] == "BadRequestError"
    assert answer.get_json()["error"]["param"]
    assert ("Vary" in answer.headers) == has_origins


def test_first_chunk_of_a_completion_has_its_prompt_before_011() -> None:
    for version, has_prompt in (("0.10", True), ("0.11", False)):
        first, *others = chunks_of(client_of(version), COMPLETION, WEATHER)
        assert bool(first["choices"][0]["prompt_token_ids"]) == has_prompt
        choices = [choice for chunk in (first, *others) for choice in chunk["choices"]]
        assert not any(choice.get("token_ids") for choice in choices)


def test_streams_with_echo_repeat_the_text_of_the_prompt_before_011() -> None:
    first = chunks_of(client_of("0.10"), COMPLETION, {**WEATHER, "echo": True})[0]["choices"][0]
    assert first["text"].startswith("The weather")
    assert first["prompt_token_ids"]


def test_json_object_stays_beside_a_schema_without_effect_before_015() -> None:
    form = {"type": "json_object", "json_schema": {"name": "unused"}}
    body = {**HELLO, "max_tokens": 60, "response_format": form}
    answer = answer_of(client_of("0.14"), CHAT, body)
    assert isinstance(json.loads(answer["choices"][0]["message"]["content"]), dict)


@pytest.mark.parametrize("prompt", [[1, -1], [[1], [2, -1]]])
def test_negative_ids_in_one_or_several_prompts_fail_before_011(prompt: list[Any]) -> None:
    statuses = [
        posted(client_of(version), COMPLETION, {**WEATHER, "prompt": prompt})[0]
        for version in ("0.10", "0.11")
    ]
    assert statuses == [500, 400]


def test_engines_get_no_negative_ids_of_requests_that_do_not_fit_the_schema() -> None:
    body = {**WEATHER, "prompt": [1, -1], "temperature": "hot"}
    status, answer = posted(client_of("0.10"), COMPLETION, body)
    assert status == 400
    assert "temperature" in answer["error"]["message"]


def test_functions_may_have_any_strict_before_024() -> None:
    tool = {"type": "function", "function": {"name": "ping", "strict": "x"}}
    body = {**HELLO, "tools": [tool], "tool_choice": "none"}
    statuses = [posted(client_of(version), CHAT, body)[0] for version in ("0.23", "0.24")]
    assert statuses == [200, 400]


def test_engines_fail_at_invalid_structural_tags_before_023() -> None:
    for tag in ("{}", '{"format": 5}', '{"structures": [{"begin": "<", "end": ">"}]}'):
        body = {**HELLO, "structured_outputs": {"structural_tag": tag}}
        statuses = [posted(client_of(version), CHAT, body)[0] for version in ("0.22", "0.23")]
        assert statuses == [500, 400]


def test_structural_tags_without_a_trigger_had_their_own_error_before_023() -> None:
    tag = {"type": "structural_tag", "structures": [], "triggers": ["<b"]}
    other = {**tag, "structures": [{"begin": "<a>", "schema": {}, "end": "</a>"}]}
    words = [
        (tag, "No structural tags found in the grammar spec."),
        (other, "Trigger <a> not found in triggers ['<b']"),
    ]
    for form, message in words:
        bodies = (
            {**HELLO, "response_format": form},
            {**HELLO, "structured_outputs": {"structural_tag": json.dumps(form)}},
        )
        for body in bodies:
            status, answer = posted(client_of("0.22"), CHAT, body)
            assert (status, answer["error"]["message"]) == (400, message)
            status, answer = posted(client_of("0.26"), CHAT, body)
            assert status == 400 and "structural_tag specification" in answer["error"]["message"]


def test_structural_tags_without_structures_or_trigger_as_a_real_0_10_2_answers_them() -> None:
    structure = {"begin": "<a>", "schema": {}, "end": "</a>"}
    ended = "EngineCore encountered an issue. See stack trace (above) for the root cause."
    expected = (
        ([], ["a"], 200, None),
        ([structure], [""], 500, ended),
        ([structure], [], 400, "Trigger <a> not found in triggers []"),
    )
    for structures, triggers, status, message in expected:
        form = {"type": "structural_tag", "structures": structures, "triggers": triggers}
        answer = posted(client_of("0.10.2"), CHAT, {**HELLO, "response_format": form})
        error = answer[1].get("error", {})
        assert (answer[0], error.get("message")) == (status, message)


def test_empty_conversations_fail_at_the_template_before_022() -> None:
    body = {**HELLO, "messages": [[]]}
    answers = [
        posted(client_of(version), "/v1/chat/completions/batch", body)[1]["error"]
        for version in ("0.21", "0.22")
    ]
    assert answers[0]["message"].startswith("Cannot apply chat template")
    assert "body.messages.0" in answers[1]["message"]


def test_invocations_cannot_truncate_completions_to_the_context_before_016() -> None:
    for version, statuses in (("0.15", [400, 200]), ("0.16", [200, 200])):
        client = client_of(version)
        bodies = [{**body, "truncate_prompt_tokens": -1} for body in (WEATHER, HELLO)]
        assert [posted(client, "/invocations", body)[0] for body in bodies] == statuses


@pytest.mark.parametrize("version", ["0.10", "0.16", "0.19", "0.21"])
@pytest.mark.parametrize("body", [[], "x", 5, None, [[]]])
def test_body_that_is_no_object_is_an_error_of_vllm(version: str, body: object) -> None:
    client = client_of(version, "--enable-scale-out")
    for path in (CHAT, BATCH, COMPLETION, GENERATE):
        answer = client.post(path, json=body)
        assert answer.status_code in (400, 404, 500), path
        assert "failed to handle" not in answer.get_data(as_text=True), path


@pytest.mark.parametrize(
    ("version", "words"),
    [
        ("0.11", "When response_format type is 'json_schema', the 'json_schema' field must be"),
        ("0.21", "Invalid structured_outputs structural_tag specification."),
    ],
)
def test_words_of_a_client_choose_no_status(version: str, words: str) -> None:
    client = client_of(version)
    assert client.post(CHAT, json={**HELLO, "model": words}).status_code == 404
    assert client.post(CHAT, json={**HELLO, "temperature": words}).status_code == 400


def test_other_errors_of_a_request_come_before_an_empty_prompt() -> None:
    client = client_of("0.21", "--enable-scale-out")
    generated = client.post(GENERATE, json={"token_ids": []})
    assert "sampling_params" in generated.get_data(as_text=True)
    batch = {"messages": [[]], "max_tokens": "x"}
    answer = client.post(BATCH, json=batch)
    assert "max_tokens" in answer.get_data(as_text=True)


@pytest.mark.parametrize(
    ("path", "body", "status", "start"),
    [
        (CHAT, {**HELLO, "max_tokens": 0}, 400, "max_tokens must be at least 1"),
        (COMPLETION, {**WEATHER, "model": "x"}, 404, "The model `x` does not exist."),
        ("/tokenize", {}, 400, "1 validation error"),
        ("/v1/responses", {"input": "a", "previous_response_id": "resp_0"}, 404, "Response with"),
    ],
)
def test_fields_of_an_error_have_no_name_before_0101(
    path: str, body: Body, status: int, start: str
) -> None:
    named = client_of("0.10.1").post(path, json=body)
    flat = client_of("0.10.0").post(path, json=body)
    assert (named.status_code, flat.status_code) == (status, status)
    fields = json.loads(named.data)["error"]
    assert fields["message"].startswith(start)
    assert json.loads(flat.data) == {"object": "error", **fields}


def test_errors_of_streams_have_had_a_name_before_0101() -> None:
    flat = {"object": "error", "message": "m", "type": "t", "param": None, "code": 500}
    chunk = {"object": "chat.completion.chunk", "choices": []}
    older = name_error({})
    assert [*older(("", flat))] == [("", {"error": flat})]
    assert [*older(("", chunk))] == [("", chunk)]


@pytest.mark.parametrize(("version", "status"), [("0.11.0", 400), ("0.11.1", 200)])
def test_arguments_of_plugins_are_lists_since_0111(version: str, status: int) -> None:
    body = {**HELLO, "vllm_xargs": {"a": ["b"]}}
    assert posted(client_of(version), CHAT, body)[0] == status


@pytest.mark.parametrize("version", ["0.10", "0.11", "0.16"])
def test_thoughts_of_qwen3_that_the_limit_ends_are_content_before_017(version: str) -> None:
    client = client_of(version, "--reasoning-parser", "qwen3")
    message = answer_of(client, CHAT, HELLO)["choices"][0]["message"]
    assert message["content"].startswith("<think>")
    assert not any(message.get(name) for name in ("reasoning", "reasoning_content"))
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks_of(client, CHAT, HELLO)]
    assert not any(delta.get("content") for delta in deltas)


@pytest.mark.parametrize(("version", "parser"), [("0.17", "qwen3"), ("0.11", "deepseek_r1")])
def test_other_thoughts_that_the_limit_ends_stay(version: str, parser: str) -> None:
    client = client_of(version, "--reasoning-parser", parser)
    message = answer_of(client, CHAT, HELLO)["choices"][0]["message"]
    assert message["content"] is None
    assert message["reasoning"]


@pytest.mark.parametrize("path", [CHAT, COMPLETION])
def test_bad_words_of_white_space_fail_before_029(path: str) -> None:
    body = {**HELLO, **WEATHER, "bad_words": ["a", " "]}
    del body["prompt" if path == CHAT else "messages"]
    older = (500, "InternalServerError", None)
    assert error_of(client_of("0.28"), path, body) == older
    assert error_of(client_of("0.29"), path, body) == (400, "BadRequestError", "bad_words")
    words = posted(client_of("0.28"), path, body)[1]["error"]["message"]
    assert words == "list index out of range"
