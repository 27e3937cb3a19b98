"""Failures by chance (simulator.md 11) and X-Return-Error (2.2)."""

from __future__ import annotations

from random import Random

import pytest

from app.serving.faults.fault import draw_failure, error_type, failure, returned_error
from config.sections.api import FAILURE_TYPES


@pytest.mark.parametrize(
    ("kind", "status", "error", "param"),
    [
        ("rate_limit", 429, "RateLimitError", None),
        ("invalid_api_key", 401, "AuthenticationError", None),
        ("context_length", 400, "BadRequestError", "messages"),
        ("server_error", 503, "InternalServerError", None),
        ("invalid_request", 400, "BadRequestError", "model"),
        ("model_not_found", 404, "NotFoundError", "model"),
    ],
)
def test_each_type_has_its_status_type_and_param(
    kind: str, status: int, error: str, param: str | None
) -> None:
    failed = failure(kind, "llama", 1000)
    assert (failed.status, failed.type, failed.param) == (status, error, param)
    assert failed.message and "{" not in failed.message


def test_the_model_that_is_not_found_is_none_that_is_served() -> None:
    assert "llama-nonexistent" in failure("model_not_found", "llama", 1000).message


def test_a_context_that_is_too_short_has_the_words_that_clients_look_for() -> None:
    told = failure("context_length", "llama", 1000).message
    assert told.startswith("This model's maximum context length is 1000 tokens")


def test_a_rate_of_nothing_never_fails_and_one_of_hundred_always() -> None:
    rng = Random(1)
    assert not any(draw_failure(0, (), rng) for _ in range(1000))
    assert all(draw_failure(100, (), rng) for _ in range(1000))


@pytest.mark.parametrize("rate", [1, 30, 99])
def test_so_many_percent_fail(rate: int) -> None:
    rng = Random(rate)
    failed = sum(draw_failure(rate, (), rng) is not None for _ in range(20_000))
    assert failed / 200 == pytest.approx(rate, abs=1.5)


def test_all_types_come_when_none_is_named_and_else_only_the_named_ones() -> None:
    rng = Random(1)
    assert {draw_failure(100, (), rng) for _ in range(300)} == set(FAILURE_TYPES)
    named = ("rate_limit", "server_error")
    assert {draw_failure(100, named, rng) for _ in range(300)} == set(named)


@pytest.mark.parametrize("status", [400, 404, 418, 422, 429, 500, 503, 599])
def test_a_request_gets_the_status_that_it_asks_for(status: int) -> None:
    error = returned_error(str(status))
    assert (error.status, error.type) == (status, error_type(status))


@pytest.mark.parametrize("text", ["oops", "4.5", "399", "600", "-500", "0", "5" * 5000, " ", "0x1f4", "٤٠٤"])
def test_what_is_no_status_of_an_error_is_a_bad_request(text: str) -> None:
    error = returned_error(text)
    assert (error.status, error.type) == (400, "BadRequestError")
    assert "X-Return-Error" in error.message
