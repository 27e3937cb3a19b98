"""The fields of requests that the played version of vLLM does not have."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.core.server.flask.application import Understudy
from app.core.versions.chain import played_version
from app.extensions.journal.ignored_fields import IgnoredFields
from tests.application import app_of
from vllm_facts.version import NEWEST

CHAT = "/v1/chat/completions"
MESSAGES = "/v1/messages"
RESPONSES = "/v1/responses"
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=10,
)


@cache
def application(version: str) -> Understudy:
    return app_of("--force-dummy-tokenizer", "--vllm-version", version, "--journal", "10")


def ignored(version: str, path: str, **body: Any) -> list[str]:
    app = application(version)
    fields = IgnoredFields(lambda: app.routes, played_version(version))
    return fields.find(path, json.dumps(body).encode())


@pytest.mark.parametrize(
    ("version", "names"),
    [
        ("0.10", ["structured_outputs"]),
        ("0.11", []),
        ("0.12", ["guided_json"]),
        ("0.33", ["guided_json"]),
    ],
)
def test_constraints_have_another_name_since_0_12(version: str, names: list[str]) -> None:
    body: dict[str, Any] = {"guided_json": {"type": "object"}, "structured_outputs": {"json": {}}}
    assert ignored(version, CHAT, messages=[], **body) == names


def test_fields_of_objects_have_paths() -> None:
    tool = {"type": "function", "function": {"name": "f", "parameters": {"x": 1}}, "other": 1}
    options = {"include_usage": True, "interval": 2}
    names = ignored("0.33", CHAT, stream_options=options, tools=[tool, tool])
    assert names == ["stream_options.interval", "tools[].other"]


def test_field_without_a_value_is_not_named() -> None:
    assert ignored("0.33", CHAT, guided_json=None, best_of=1) == ["best_of"]


def test_tag_of_an_object_is_one_of_its_fields() -> None:
    thinking = {"type": "enabled", "budget_tokens": 1024}
    assert ignored("0.33", MESSAGES, max_tokens=9, messages=[], thinking=thinking) == []


def test_fields_of_free_objects_are_not_named() -> None:
    extra = {"chat_template_kwargs": {"x": 1}, "vllm_xargs": {"y": 2}, "logit_bias": {"5": 1}}
    assert ignored("0.33", CHAT, **extra) == []
    assert ignored("0.33", "/v1/unknown", x=1) == []


@pytest.mark.parametrize("path", [CHAT, MESSAGES, RESPONSES, "/v1/completions", "/tokenize"])
def test_no_field_of_an_example_is_ignored_by_the_newest_version(path: str) -> None:
    [route] = [route for route in application(NEWEST).routes if route.path == path]
    assert ignored(NEWEST, path, **dict(route.loaded().docs.example)) == []


@given(body=JSON, path=st.sampled_from([CHAT, MESSAGES, RESPONSES]))
def test_any_body_has_a_list_of_names(body: Any, path: str) -> None:
    app = application("0.12")
    fields = IgnoredFields(lambda: app.routes, played_version("0.12"))
    names = fields.find(path, json.dumps(body).encode())
    assert len(names) == len(set(names))
    assert fields.find(path, b"{") == []


def test_journal_names_the_ignored_fields() -> None:
    client = application("0.12").test_client()
    body = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1, "guided_regex": "a"}
    assert client.post(CHAT, json=body).status_code == 200
    answer: Any = client.get("/admin/journal").json
    assert answer["entries"][-1]["ignored_fields"] == ["guided_regex"]
