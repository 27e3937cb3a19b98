"""The token count in the usage of a rule is compared with the limit of a request."""

import json
from pathlib import Path
from typing import Any

import pytest

from app import create_app
from app.core.settings import load

TEXT = "Indubitably, heterogeneous microarchitectures notwithstanding"


def choice_and_tokens(
    folder: Path, then: dict[str, Any], *flags: str, **body: Any
) -> tuple[str, str, int]:
    """Text, finish reason and completion tokens of the answer of a rule."""
    script = folder / "script.yaml"
    script.write_text(json.dumps({"rules": [{"then": then}]}))
    app = create_app(load(["--force-dummy-tokenizer", "--script", str(script), *flags], {}))
    body = {"messages": [{"role": "user", "content": "Hi"}], **body}
    answer = app.test_client().post("/v1/chat/completions", json=body).get_json()
    [choice] = answer["choices"]
    text = choice["message"]["content"]
    return text, choice["finish_reason"], answer["usage"]["completion_tokens"]


@pytest.mark.parametrize("finish", ["stop", "length"])
def test_reply_within_the_limit_by_the_count_of_its_rule_is_whole(
    tmp_path: Path, finish: str
) -> None:
    then = {"text": TEXT, "finish_reason": finish, "usage": {"completion_tokens": 5}}
    assert choice_and_tokens(tmp_path, then, max_tokens=5) == (TEXT, finish, 5)


def test_reply_with_reasoning_is_whole_within_the_limit(tmp_path: Path) -> None:
    then = {"text": TEXT, "reasoning": TEXT, "usage": {"completion_tokens": 5}}
    assert choice_and_tokens(tmp_path, then, max_tokens=5) == (TEXT, "stop", 5)


def test_context_still_limits_a_reply(tmp_path: Path) -> None:
    then = {"text": TEXT * 10, "usage": {"completion_tokens": 5}}
    text, finish, _ = choice_and_tokens(tmp_path, then, "--max-model-len", "48", max_tokens=5)
    assert len(TEXT) < len(text) < len(TEXT * 10)
    assert finish == "length"


def test_short_reply_reports_a_count_above_the_limit(tmp_path: Path) -> None:
    then = {"text": "Hi", "usage": {"completion_tokens": 1_000_000}}
    assert choice_and_tokens(tmp_path, then, max_tokens=5) == ("Hi", "stop", 1_000_000)


def test_rule_that_leaves_the_reply_to_the_mode_does_not_extend_it(tmp_path: Path) -> None:
    then = {"pass": True, "usage": {"completion_tokens": 2}}
    text, finish, tokens = choice_and_tokens(
        tmp_path, then, "--mode", "echo", messages=[{"role": "user", "content": TEXT}], max_tokens=3
    )
    assert (text, finish, tokens) == (TEXT, "length", 2)
