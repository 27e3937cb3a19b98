"""Client libraries of Python and of JavaScript read our answers as they read those of vLLM."""

from typing import Any

import pytest

from tests.conformance.clients import told_by, told_by_node
from tests.running_server import RunningServer, running_server

python = pytest.mark.clients
node = pytest.mark.node


@python
def test_litellm_completes_streams_and_maps_errors(vllm: RunningServer) -> None:
    told = told_by("litellm_client.py", vllm)
    assert told["content"] == told["streamed"] != ""
    assert told["finish_reason"] == "length"
    prompt = told["usage"][0]
    assert told["usage"] == told["streamed_usage"] == [prompt, 6, prompt + 6]
    assert (told["text_tokens"], told["choices"], told["top_logprobs"]) == (6, 3, [2] * 6)
    assert (told["unknown_model"], told["wrong_value"]) == ("NotFoundError", "BadRequestError")


@python
def test_litellm_knows_a_prompt_that_is_too_long(vllm: RunningServer) -> None:
    told = told_by("litellm_client.py", vllm, "too long")
    assert set(told) == {"a little", "far"}
    for errors in told.values():
        assert len(errors) == 5 and set(errors.values()) == {"ContextWindowExceededError"}, errors


@python
def test_litellm_takes_an_injected_overflow_for_one() -> None:
    failing = ("--failure-injection-rate", "100", "--failure-types", "context_length")
    with running_server("--model", "tiny", *failing) as server:
        told = told_by("litellm_client.py", server, "too long")
    assert {error for errors in told.values() for error in errors.values()} == {
        "ContextWindowExceededError"
    }


@python
def test_instructor_gets_nested_objects_that_satisfy_their_schema(vllm: RunningServer) -> None:
    told = told_by("instructor_client.py", vllm)
    assert set(told) == {
        f"{mode}{many}" for mode in ("TOOLS", "JSON_SCHEMA") for many in ("", "_ITERABLE")
    }
    for mode in ("TOOLS", "JSON_SCHEMA"):
        assert len(told[mode]) == 5
        assert all(2 <= len(recipe["ingredients"]) <= 4 for recipe in told[mode])
        groups = told[f"{mode}_ITERABLE"]
        assert all(groups) and all(user for users in groups for user in users), (
            "nothing is empty by chance"
        )


@python
def test_langchain_streams_calls_tools_and_parses(vllm: RunningServer) -> None:
    told = told_by("langchain_client.py", vllm)
    assert told["whole"] == told["streamed"] != ""
    assert told["usage"] == told["streamed_usage"] == 6
    assert told["call"] == told["streamed_call"] == "weather"
    assert isinstance(told["arguments"]["city"], str) and isinstance(
        told["streamed_arguments"]["city"], str
    )
    assert told["answer"]
    assert isinstance(told["verdict"]["good"], bool)


def is_weather(call: Any) -> bool:
    name, arguments = call
    return name == "weather" and isinstance(arguments["city"], str)


@python
def test_llama_index_calls_tools_within_forty_tokens(vllm: RunningServer) -> None:
    told = told_by("llama_index_client.py", vllm)
    assert told["whole"] == told["streamed"] != ""
    assert told["usage"] == 6
    assert told["text"] and told["streamed_text"]
    for ((name, arguments),) in told["calls"]:
        assert name == "weather" and isinstance(arguments["days"], int)
    assert 1 <= told["verdict"]["grade"] <= 6


@python
def test_pydantic_ai_runs_agents(vllm: RunningServer) -> None:
    told = told_by("pydantic_ai_client.py", vllm)
    assert told["whole"] == told["streamed"] != ""
    assert told["usage"] == [6, 6]
    assert told["cities"] and all(told["answers"])
    assert set(told["verdicts"]) == {"ToolOutput", "NativeOutput"}
    assert all(1 <= verdict["grade"] <= 6 for verdict in told["verdicts"].values())
    assert told["unknown_model"] == 404


@node
def test_the_openai_package_of_npm_streams_calls_and_maps_errors(vllm: RunningServer) -> None:
    told = told_by_node("openai.mjs", vllm)
    assert told["models"] == ["tiny"]
    assert told["whole"] == told["streamed"] == told["gathered"] != ""
    assert told["usage"] == told["gathered_usage"] == 6
    assert is_weather(told["call"]) and is_weather(told["streamed_call"])
    assert told["answered"] == "assistant"
    assert list(told["parsed"]) == ["city"]
    assert told["text"]
    assert told["responses"] == ["response.created", "response.completed"]
    assert told["unknown_model"] == ["NotFoundError", 404, "model"]
    assert told["wrong_value"] == ["BadRequestError", 400, "temperature"]


@node
def test_the_ai_sdk_streams_runs_tools_and_parses(vllm: RunningServer) -> None:
    told = told_by_node("ai_sdk.mjs", vllm)
    streamed, calling = told["streamed"], told["streamed_calls"]
    assert told["whole"] == streamed["text"] != ""
    assert told["finish"] == streamed["finish"] == "length"
    assert told["usage"] == streamed["usage"] == 6
    assert told["calls"] and all(map(is_weather, told["calls"]))
    assert told["results"] == [f"sun in {arguments['city']}" for _, arguments in told["calls"]]
    assert calling["finish"] == "tool-calls" and all(map(is_weather, calling["calls"]))
    assert streamed["failures"] == calling["failures"] == []
    assert 1 <= told["agent_steps"] <= 3
    whole, last = told["object"], told["streamed_object"]
    assert set(whole) == {"city", "days"} and last[0] == last[1]
    assert told["unknown_model"] == ["AI_APICallError", 404, False]
    assert told["wrong_value"] == ["AI_APICallError", 400, False]
