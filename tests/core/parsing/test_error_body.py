"""The message in an error's body, and what the readers before this one returned."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.core.base.error_body import error_fields, error_message
from tests.hostile_data import hostile_contents

VLLM = {"error": {"message": "Too long.", "type": "BadRequestError", "param": None, "code": 400}}


def render_service(data: bytes) -> str:
    """Returns what the tokenizer of a render service read."""
    return str(json.loads(data)["error"]["message"])


def journal(data: bytes) -> str | None:
    """Returns what the journal read."""
    content = json.loads(data)
    error = content.get("error", content)
    message = content.get("detail")
    if isinstance(error, dict) and "message" in error:
        message = error["message"]
    return message if isinstance(message, str) else None


def console(data: bytes) -> str:
    """Returns what the console read."""
    body = json.loads(data)
    error = body.get("error") or body.get("message", "")
    return str(error.get("message", "") if isinstance(error, dict) else error)


def grpc(data: bytes) -> str:
    """Returns what the gRPC service read."""
    error = json.loads(data)["error"]
    return str(error.get("message", "") if isinstance(error, dict) else error)


@given(st.text(min_size=1), st.text())
def test_messages_are_those_of_all_earlier_readers(message: str, kind: str) -> None:
    data = json.dumps({"error": {"message": message, "type": kind}}).encode()
    assert error_message(data) == message, "the message itself"
    for reader in (render_service, journal, console, grpc):
        assert reader(data) == message, f"the reader of {reader.__name__}"
    fields = error_fields(data)
    assert fields == {"message": message, "type": kind}, "a recorded error's fields"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (VLLM, "Too long."),
        ({"error": "Unauthorized"}, "Unauthorized"),
        ({"detail": "Not Found"}, "Not Found"),
        ({"object": "error", "message": "Old form."}, "Old form."),
        ({"type": "error", "error": {"type": "api_error", "message": "Busy."}}, "Busy."),
        ({"error": {"type": "api_error"}}, ""),
        ({"error": {"message": 5}}, ""),
        ({"detail": [{"loc": ["body"]}]}, ""),
        ([1], ""),
        ("x", ""),
    ],
)
def test_message_is_found_in_each_form_of_error(content: Any, message: str) -> None:
    assert error_message(json.dumps(content).encode()) == message


@given(hostile_contents(json.dumps(VLLM).encode()))
def test_hostile_body_has_at_most_a_text(data: bytes) -> None:
    assert isinstance(error_message(data), str), "never an error"


def test_streams_and_empty_answers_have_no_message() -> None:
    assert error_message(None) == "", "a stream"
    assert error_message(b"") == "", "an empty body"
