"""The body, status and type of each kind of error."""

import json

import pytest

from app.serving.http import errors
from app.serving.http.errors import ApiError


def test_the_body_is_compact_json_with_message_type_param_and_code_in_this_order() -> None:
    body = errors.bad_request("too hot", "temperature").body()
    assert body == (
        b'{"error":{"message":"too hot","type":"BadRequestError","param":"temperature","code":400}}'
    )


def test_an_error_without_a_field_has_a_null_param() -> None:
    assert json.loads(errors.unavailable("full").body())["error"]["param"] is None


@pytest.mark.parametrize(
    ("error", "status", "type"),
    [
        (errors.bad_request("m"), 400, "BadRequestError"),
        (errors.malformed("m"), 400, "Bad Request"),
        (errors.not_found("m"), 404, "NotFoundError"),
        (errors.too_large("m"), 413, "Request Entity Too Large"),
        (errors.too_many("m"), 429, "RateLimitError"),
        (errors.internal("m"), 500, "InternalServerError"),
        (errors.not_implemented("m"), 501, "NotImplementedError"),
        (errors.unavailable("m"), 503, "Service Unavailable"),
        (errors.retryable("m"), 503, "ServiceUnavailableError"),
    ],
)
def test_each_kind_has_its_status_and_type(error: ApiError, status: int, type: str) -> None:
    written = json.loads(error.body())["error"]
    assert (error.status, written["code"], written["type"]) == (status, status, type)


def test_a_full_waiting_list_can_say_when_to_come_back() -> None:
    assert errors.too_many("full", retry_after_s=3).headers == {"Retry-After": "3"}
    assert not errors.too_many("full").headers


def test_a_message_that_quotes_half_a_surrogate_pair_can_still_be_sent() -> None:
    assert json.loads(errors.bad_request("\ud800", "a\ud800").body())["error"]["message"] == "?"
