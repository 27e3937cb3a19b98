"""What an engine in a process of its own says is answered as by vLLM, and what clients ask arrives
there.
"""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from app.core.engine.kvcache.events import BlockStored, EventBatch, encoder
from tests.application import app_of
from tests.extensions.llm.remote.served import SENTENCE, Peer, new_peer, served
from tests.hostile.raw_client import Wire, get, is_error, post, wait_for_value, wait_until
from tests.running_server import RunningServer

CHATS = "/v1/chat/completions"
HELLO: dict[str, Any] = {"messages": [{"role": "user", "content": "Hello"}]}
WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}},
            "required": ["city"],
        },
    },
}


def chat(server: RunningServer, **fields: Any) -> Any:
    answer = post(server.port, HELLO | fields, CHATS)
    assert answer.status == 200, answer.body
    return answer.json()


def events(server: RunningServer, **fields: Any) -> list[Any]:
    with Wire(server.port) as wire:
        return [*wire.post(HELLO | fields | {"stream": True}, CHATS).events()]


def test_stats_route_counts_served_requests_and_generated_tokens(
    remote: RunningServer, peer: Peer
) -> None:
    stats_before = get(remote.port, "/stats").json()
    tokens = chat(remote)["usage"]["completion_tokens"]
    after = get(remote.port, "/stats").json()
    assert (after["queue_length"], after["active_requests"]) == (0, 0)
    assert after["requests_served"] == stats_before["requests_served"] + 1
    assert after["total_tokens_generated"] == stats_before["total_tokens_generated"] + tokens
    assert 0 < after["average_response_time"] < 60
    assert "/stats" in get(remote.port, "/openapi.json").json()["paths"]


def test_script_rules_are_rejected_with_a_real_engine(remote: RunningServer) -> None:
    for path in ("/admin/script/rules", "/admin/script/rules?scope=a"):
        refused = get(remote.port, path)
        assert refused.status == 400
        assert refused.json()["error"]["message"].startswith(
            "Rules for replies require the simulated engine"
        )
    rule = {"rules": [{"then": {"text": "no"}}]}
    is_error(post(remote.port, rule, "/admin/script/rules"), 400, "BadRequestError")


def test_simulated_server_has_no_stats_route() -> None:
    assert app_of().test_client().get("/stats").status_code == 404


def test_chat_returns_the_text_of_the_real_engine(remote: RunningServer, peer: Peer) -> None:
    answer = chat(remote)
    [choice] = answer["choices"]
    assert (choice["message"]["content"], choice["finish_reason"]) == (SENTENCE, "stop")
    assert answer["usage"]["completion_tokens"] == -(-len(SENTENCE) // 4)
    assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] == 16


def test_every_sampling_field_is_sent_to_the_engine(remote: RunningServer, peer: Peer) -> None:
    sampling = {
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": 7,
        "min_p": 0.1,
        "repetition_penalty": 1.1,
        "presence_penalty": 0.2,
        "frequency_penalty": -0.3,
        "bad_words": ["no", "never"],
        "allowed_token_ids": [5, 6],
        "skip_special_tokens": False,
    }
    limits = {"min_tokens": 2, "max_tokens": 9, "ignore_eos": True, "seed": 11}
    stops = {"stop": ["x", "y"], "stop_token_ids": [4], "include_stop_str_in_output": True}
    chat(
        remote,
        **sampling,
        **limits,
        **stops,
        priority=3,
        logit_bias={"9": -2.5},
        cache_salt="s",
        prompt_logprobs=1,
    )
    order = peer.last
    others = {"logit_bias": {"9": -2.5}, "prompt_logprobs": 1}
    assert order["sampling"] == sampling | limits | stops | others
    assert (order["max_tokens"], order["priority"], order["cache_salt"]) == (9, 3, "s")


@pytest.mark.parametrize(
    ("fields", "form"),
    [
        ({"structured_outputs": {"regex": "a+"}}, {"regex": "a+"}),
        ({"structured_outputs": {"choice": ["a", "b"]}}, {"choices": ["a", "b"]}),
        (
            {"structured_outputs": {"json": {"type": "integer"}}},
            {"json_schema": '{"type":"integer"}'},
        ),
        ({"response_format": {"type": "json_object"}}, {"json_schema": '{"type": "object"}'}),
        ({"structured_outputs": {"grammar": 'root ::= "a"'}}, {"grammar": 'root ::= "a"'}),
    ],
)
def test_structured_output_constraint_is_sent_to_the_engine_unchanged(
    remote: RunningServer, peer: Peer, fields: Any, form: Any
) -> None:
    chat(remote, **fields)
    assert peer.last["form"] == form


def test_responses_contain_the_logprobs_of_the_real_engine(
    remote: RunningServer, peer: Peer
) -> None:
    [first, *_] = chat(remote, logprobs=True, top_logprobs=2)["choices"][0]["logprobs"]["content"]
    assert [entry["logprob"] for entry in first["top_logprobs"]] == [-0.5, -1.5]
    body = {"prompt": "Hello there", "max_tokens": 1, "prompt_logprobs": 1}
    logprobs = post(remote.port, body).json()["choices"][0]["prompt_logprobs"]
    assert logprobs[0] is None
    assert sorted((entry["rank"], entry["logprob"]) for entry in logprobs[1].values()) == [
        (1, -0.1),
        (7, -9.0),
    ]


def test_tool_calls_of_the_engine_are_parsed_while_streaming(
    remote: RunningServer, peer: Peer
) -> None:
    peer.says(
        'Let me see.<tool_call>\n{"name": "weather", "arguments": {"city": "Rome"}}\n</tool_call>'
    )
    message = chat(remote, tools=[WEATHER])["choices"][0]["message"]
    assert message["content"] == "Let me see."
    assert [call["function"] for call in message["tool_calls"]] == [
        {"name": "weather", "arguments": '{"city": "Rome"}'}
    ]
    choices = [event["choices"][0] for event in events(remote, tools=[WEATHER])]
    calls = [
        call["function"] for choice in choices for call in choice["delta"].get("tool_calls") or ()
    ]
    assert calls[0] == {"name": "weather"}
    assert "".join(call["arguments"] for call in calls[1:]) == '{"city": "Rome"}'
    assert len(calls) > 3
    assert choices[-1]["finish_reason"] == "tool_calls"


def test_json_schema_of_a_required_tool_call_is_sent_to_the_engine(
    remote: RunningServer, peer: Peer
) -> None:
    peer.says('[{"name": "weather", "parameters": {"city": "Rome"}}]')
    message = chat(remote, tools=[WEATHER], tool_choice="required")["choices"][0]["message"]
    assert message["tool_calls"][0]["function"] == {
        "name": "weather",
        "arguments": '{"city": "Rome"}',
    }
    schema = json.loads(peer.last["form"]["json_schema"])
    assert schema["items"]["anyOf"][0]["properties"]["name"]["enum"] == ["weather"]
    peer.says('{"city": "Oslo"}')
    named = {"type": "function", "function": {"name": "weather"}}
    message = chat(remote, tools=[WEATHER], tool_choice=named)["choices"][0]["message"]
    assert message["tool_calls"][0]["function"] == {
        "name": "weather",
        "arguments": '{"city": "Oslo"}',
    }
    assert json.loads(peer.last["form"]["json_schema"])["required"] == ["city"]


def test_rejected_request_returns_400_and_failed_request_returns_500(
    remote: RunningServer, peer: Peer
) -> None:
    peer.fails("No such thing.")
    is_error(post(remote.port, HELLO | {"seed": 400}, CHATS), 400, "BadRequestError")
    is_error(post(remote.port, HELLO, CHATS), 500, "InternalServerError")
    assert events(remote)[-1]["error"] == {
        "message": "No such thing.",
        "type": "InternalServerError",
        "param": None,
        "code": 500,
    }


@pytest.mark.parametrize(
    "fields",
    [
        {"kv_transfer_params": {"do_remote_decode": True}},
        {"cache_hit_threshold": 0.5},
        {"use_beam_search": True, "n": 2},
    ],
)
def test_fields_that_a_real_model_does_not_support_are_rejected(
    remote: RunningServer, fields: Any
) -> None:
    error = post(remote.port, HELLO | fields, CHATS).json()["error"]
    assert (error["code"], error["param"]) == (400, next(iter(fields)))


def test_client_disconnect_aborts_the_request_in_the_engine(
    remote: RunningServer, peer: Peer
) -> None:
    peer.says(SENTENCE * 20, pace_s=0.02)
    with Wire(remote.port) as wire:
        next(wire.post(HELLO | {"stream": True}, CHATS).events())
    wait_until(lambda: peer.orders[-1] == {"type": "abort", "keys": [peer.last["key"]]})


def test_metrics_route_reports_the_figures_of_the_real_engine(
    remote: RunningServer, peer: Peer
) -> None:
    def value(name: str) -> float:
        text = get(remote.port, "/metrics").body.decode()
        [number] = re.findall(rf"^vllm:{name}{{[^}}]*}} (\S+)$", text, re.M)
        return float(number)

    values_before = value("generation_tokens_total"), value("time_to_first_token_seconds_count")
    peer.says(SENTENCE, pace_s=0.4)
    with Wire(remote.port) as wire:
        stream = wire.post(HELLO | {"stream": True}, CHATS).events()
        next(stream)
        wait_for_value(value, "num_requests_running", equals=1)
        assert value("kv_cache_usage_perc") == 0.25
        peer.talks_at(0.0)
        assert len([*stream]) > 5
    wait_for_value(value, "num_requests_running", equals=0)
    tokens = value("generation_tokens_total") - values_before[0]
    assert (tokens, value("time_to_first_token_seconds_count") - values_before[1]) == (11, 1)
    assert value("num_preemptions_total") == 3
    assert value("prefix_cache_queries_total") == 2 * value("prefix_cache_hits_total") > 0
    assert value("iteration_tokens_total_sum") == 8 * value("iteration_tokens_total_count") > 0
    assert value("inter_token_latency_seconds_count") > 0


def test_operator_commands_are_sent_to_the_engine(remote: RunningServer, peer: Peer) -> None:
    assert post(remote.port, {}, "/pause?mode=keep").status == 200
    assert get(remote.port, "/is_paused").json() == {"is_paused": True}
    assert post(remote.port, {}, "/resume").status == 200
    assert get(remote.port, "/is_paused").json() == {"is_paused": False}
    assert post(remote.port, {}, "/sleep?level=1").status == 200
    assert get(remote.port, "/is_sleeping").json() == {"is_sleeping": True}
    assert post(remote.port, {}, "/wake_up").status == 200
    assert get(remote.port, "/is_sleeping").json() == {"is_sleeping": False}
    assert post(remote.port, {}, "/resume").status == 200
    assert post(remote.port, {}, "/reset_prefix_cache").json() == {"success": True}
    names = [order["name"] for order in peer.orders if order["type"] == "command"]
    assert names == ["pause", "resume", "sleep", "wake_up", "resume", "reset_prefix_cache"]
    assert chat(remote)["choices"][0]["message"]["content"] == SENTENCE


TOKENS = list(range(1, 33))


def test_blocks_that_the_real_engine_stores_are_added_to_the_kv_index(tmp_path: Path) -> None:
    peer = new_peer(tmp_path / "model")
    stored = BlockStored([11, 12], None, token_ids=TOKENS, block_size=16, lora_id=None)
    (peer.folder / "blocks").write_bytes(encoder("map")(EventBatch(1.0, [stored])))
    with served(peer, kv_index="true", kv_index_block_size="16", zmq_endpoint="") as server:
        body = {"tokens": [*TOKENS, 99], "model": "tiny"}

        def scores() -> dict[str, float]:
            answer = post(server.port, body, "/score_tokens")
            assert answer.status == 200, answer.body
            return {pod: score["matched"] for pod, score in answer.json()["scores"].items()}

        assert scores() == {}
        assert post(server.port, {"prompt": "Hello"}).status == 200
        wait_for_value(scores, equals={"pod": 2})
