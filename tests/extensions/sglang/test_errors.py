"""Errors in SGLang's forms."""

import json
import logging

import pytest

from app.extensions.sglang.errors import generate_error


def test_unexpected_generate_error_returns_500_and_is_logged_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.ERROR):
        response = generate_error(RuntimeError("the secret cause"))
    assert [record.message for record in caplog.records] == ["a request failed unexpectedly"]
    assert response.status == 500
    assert isinstance(response.body, bytes)
    assert json.loads(response.body) == {
        "object": "error",
        "message": "The server failed to handle the request.",
        "type": "500",
        "param": None,
        "code": 500,
    }
