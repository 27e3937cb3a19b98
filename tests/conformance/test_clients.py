"""litellm, instructor and langchain read our answers as they read those of vLLM."""

from __future__ import annotations

import pytest

from tests.conformance.clients import told_by
from tests.running_server import RunningServer, running_server

pytestmark = pytest.mark.clients


def test_litellm_completes_streams_and_maps_errors(vllm: RunningServer) -> None:
    told = told_by("litellm_client.py", vllm, "-W", "error::UserWarning")
    assert told["content"] == told["streamed"] != ""
    assert told["finish_reason"] == "length"
    prompt = told["usage"][0]
    assert told["usage"] == told["streamed_usage"] == [prompt, 6, prompt + 6]
    assert (told["text_tokens"], told["choices"], told["top_logprobs"]) == (6, 3, [2] * 6)
    assert (told["unknown_model"], told["wrong_value"]) == ("NotFoundError", "BadRequestError")


def test_litellm_knows_a_prompt_that_is_too_long(vllm: RunningServer) -> None:
    told = told_by("litellm_overflow_client.py", vllm)
    assert set(told) == {"a little", "far"}
    for errors in told.values():
        assert len(errors) == 5 and set(errors.values()) == {"ContextWindowExceededError"}, errors


def test_litellm_takes_an_injected_overflow_for_one() -> None:
    failing = ("--failure-injection-rate", "100", "--failure-types", "context_length")
    with running_server("--model", "tiny", *failing) as server:
        told = told_by("litellm_overflow_client.py", server)
    assert {error for errors in told.values() for error in errors.values()} == {"ContextWindowExceededError"}


def test_instructor_gets_nested_objects_that_satisfy_their_schema(vllm: RunningServer) -> None:
    told = told_by("instructor_client.py", vllm)
    assert set(told) == {"TOOLS", "JSON_SCHEMA"}
    assert all(len(recipes) == 5 for recipes in told.values())
    assert all(2 <= len(recipe["ingredients"]) <= 4 for recipes in told.values() for recipe in recipes)


def test_langchain_streams_calls_tools_and_parses(vllm: RunningServer) -> None:
    told = told_by("langchain_client.py", vllm)
    assert told["whole"] == told["streamed"] != ""
    assert told["usage"] == told["streamed_usage"] == 6
    assert told["call"] == told["streamed_call"] == "weather"
    assert isinstance(told["arguments"]["city"], str) and isinstance(told["streamed_arguments"]["city"], str)
    assert told["answer"]
    assert isinstance(told["verdict"]["good"], bool)
