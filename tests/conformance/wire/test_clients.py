"""Client libraries of Python and of JavaScript read our answers as they read those of vLLM."""

from typing import Any

import pytest

from tests.conformance.clients import told_by, told_by_node
from tests.running_server import RunningServer, running_server

python = pytest.mark.clients
node = pytest.mark.node
LITELLM_LIMIT_S = 150.0


@pytest.fixture(scope="module")
def litellm_results(vllm: RunningServer) -> Any:
    """What litellm makes of all requests: its import takes longer than they do."""
    failing = ("--failure-injection-rate", "100", "--failure-types", "context_length")
    with running_server("--model", "tiny", *failing) as overflowing:
        return told_by("litellm_client.py", vllm, overflowing.url, limit_s=LITELLM_LIMIT_S)


@python
@pytest.mark.timeout(180)  # for all requests of litellm, beside a busy machine
def test_litellm_reads_replies_and_raises_the_mapped_errors(
    litellm_results: Any,
) -> None:
    results = litellm_results["answers"]
    assert results["content"] == results["streamed"] != ""
    assert results["finish_reason"] == "length"
    prompt = results["usage"][0]
    assert results["usage"] == results["streamed_usage"] == [prompt, 6, prompt + 6]
    assert (results["text_tokens"], results["choices"], results["top_logprobs"]) == (6, 3, [2] * 6)
    assert (results["unknown_model"], results["wrong_value"]) == (
        "NotFoundError",
        "BadRequestError",
    )


@python
@pytest.mark.timeout(180)
def test_litellm_maps_an_overlong_prompt_to_context_window_exceeded(litellm_results: Any) -> None:
    results = litellm_results["too long"]
    assert set(results) == {"a little", "far"}
    for errors in results.values():
        assert len(errors) == 5 and set(errors.values()) == {"ContextWindowExceededError"}, errors


@python
@pytest.mark.timeout(180)
def test_litellm_maps_an_injected_overflow_to_context_window_exceeded(litellm_results: Any) -> None:
    results = litellm_results["overflowing"]
    assert {error for errors in results.values() for error in errors.values()} == {
        "ContextWindowExceededError"
    }


@python
def test_instructor_gets_nested_objects_that_satisfy_their_schema(vllm: RunningServer) -> None:
    results = told_by("instructor_client.py", vllm)
    assert set(results) == {
        f"{mode}{many}" for mode in ("TOOLS", "JSON_SCHEMA") for many in ("", "_ITERABLE")
    }
    for mode in ("TOOLS", "JSON_SCHEMA"):
        assert len(results[mode]) == 5
        assert all(2 <= len(recipe["ingredients"]) <= 4 for recipe in results[mode])
        groups = results[f"{mode}_ITERABLE"]
        assert all(groups) and all(user for users in groups for user in users), (
            "nothing is empty by chance"
        )


@python
def test_langchain_reads_text_tool_calls_and_structured_output(vllm: RunningServer) -> None:
    results = told_by("langchain_client.py", vllm)
    assert results["whole"] == results["streamed"] != ""
    assert results["usage"] == results["streamed_usage"] == 6
    assert results["call"] == results["streamed_call"] == "weather"
    assert isinstance(results["arguments"]["city"], str) and isinstance(
        results["streamed_arguments"]["city"], str
    )
    assert results["answer"]
    assert isinstance(results["verdict"]["good"], bool)


def is_weather(call: Any) -> bool:
    name, arguments = call
    return name == "weather" and isinstance(arguments["city"], str)


@python
def test_llama_index_reads_text_tool_calls_and_structured_output(
    vllm: RunningServer,
) -> None:
    results = told_by("llama_index_client.py", vllm)
    assert results["whole"] == results["streamed"] != ""
    assert results["usage"] == 6
    assert results["text"] and results["streamed_text"]
    for ((name, arguments),) in results["calls"]:
        assert name == "weather" and isinstance(arguments["days"], int)
    assert 1 <= results["verdict"]["grade"] <= 6


@python
def test_pydantic_ai_agents_get_tool_calls_and_typed_results(vllm: RunningServer) -> None:
    results = told_by("pydantic_ai_client.py", vllm)
    assert results["whole"] == results["streamed"] != ""
    assert results["usage"] == [6, 6]
    assert results["cities"] and all(results["answers"])
    assert set(results["verdicts"]) == {"ToolOutput", "NativeOutput"}
    assert all(1 <= verdict["grade"] <= 6 for verdict in results["verdicts"].values())
    assert results["unknown_model"] == 404


@node
def test_openai_npm_package_reads_replies_and_raises_the_mapped_errors(
    vllm: RunningServer,
) -> None:
    results = told_by_node("openai.mjs", vllm)
    assert results["models"] == ["tiny"]
    assert results["whole"] == results["streamed"] == results["gathered"] != ""
    assert results["usage"] == results["gathered_usage"] == 6
    assert is_weather(results["call"]) and is_weather(results["streamed_call"])
    assert results["answered"] == "assistant"
    assert list(results["parsed"]) == ["city"]
    assert results["text"]
    assert results["responses"] == ["response.created", "response.completed"]
    assert results["unknown_model"] == ["NotFoundError", 404, "model"]
    assert results["wrong_value"] == ["BadRequestError", 400, "temperature"]


@node
def test_vercel_ai_sdk_reads_text_tool_calls_and_objects(vllm: RunningServer) -> None:
    results = told_by_node("ai_sdk.mjs", vllm)
    streamed = results["streamed"]
    calling = results["streamed_calls"]
    assert results["whole"] == streamed["text"] != ""
    assert results["finish"] == streamed["finish"] == "length"
    assert results["usage"] == streamed["usage"] == 6
    assert results["calls"] and all(map(is_weather, results["calls"]))
    assert results["results"] == [
        f"sun in {arguments['city']}" for _, arguments in results["calls"]
    ]
    assert calling["finish"] == "tool-calls" and all(map(is_weather, calling["calls"]))
    assert streamed["failures"] == calling["failures"] == []
    assert 1 <= results["agent_steps"] <= 3
    whole = results["object"]
    last = results["streamed_object"]
    assert set(whole) == {"city", "days"} and last[0] == last[1]
    assert results["unknown_model"] == ["AI_APICallError", 404, False]
    assert results["wrong_value"] == ["AI_APICallError", 400, False]
