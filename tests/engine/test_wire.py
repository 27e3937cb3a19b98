"""What a worker says to an engine in a process of its own."""

from __future__ import annotations

import msgspec
from msgspec.structs import asdict

from app.engine.wire import Command, EngineCoreOutput, EngineCoreRequest, EngineProcessOptions, Load, Sampling

NEEDED = {"key": 1, "request_id": "cmpl-1", "prompt_ids": [5, 6], "max_tokens": 7, "arrival_s": 0.5}


def test_an_order_that_asks_for_nothing_more_is_what_vllms_sampling_params_are_by_default() -> None:
    order = msgspec.msgpack.decode(
        msgspec.msgpack.encode({"type": "generate", **NEEDED}), type=EngineCoreRequest
    )
    assert msgspec.structs.asdict(order) == {
        **NEEDED,
        "min_tokens": 0,
        "ignore_eos": False,
        "stop": (),
        "stop_token_ids": (),
        "include_stop": False,
        "seed": None,
        "sampling": Sampling(),
        "logprobs": None,
        "prompt_logprobs": None,
        "form": None,
        "priority": 0,
        "cache_salt": None,
    }
    assert msgspec.structs.asdict(order.sampling) == {
        "temperature": 1.0,
        "top_p": 1.0,
        "top_k": 0,
        "min_p": 0.0,
        "repetition_penalty": 1.0,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "logit_bias": {},
        "allowed_token_ids": None,
        "bad_words": (),
        "skip_special_tokens": True,
    }


def test_an_order_takes_no_bytes_for_what_it_does_not_ask() -> None:
    order = msgspec.msgpack.encode(EngineCoreRequest(**NEEDED, seed=0))
    assert msgspec.msgpack.decode(order) == {"type": "generate", **NEEDED, "seed": 0}


def test_notices_and_commands_that_say_nothing_more_mean_nothing_more() -> None:
    notices = (EngineCoreOutput(key=1), Load(), Command(name="pause"))
    said = [
        {name: value for name, value in asdict(it).items() if value not in (0, None, False)} for it in notices
    ]
    assert said == [{"key": 1, "ids": [], "texts": []}, {}, {"name": "pause", "mode": "keep"}]


def test_an_engines_process_that_is_told_no_more_than_its_model_is_a_small_vllm() -> None:
    assert asdict(EngineProcessOptions(endpoint="ipc:///tmp/a", model="m")) == {
        "endpoint": "ipc:///tmp/a",
        "model": "m",
        "parent_pid": None,
        "device": "auto",
        "dtype": "auto",
        "num_blocks": 1024,
        "block_size": 16,
        "max_model_len": None,
        "max_num_seqs": 16,
        "max_num_batched_tokens": 512,
        "max_queue_size": 10_000,
        "enable_prefix_caching": True,
        "prefix_caching_hash_algo": "sha256",
        "hash_seed": None,
        "int_hashes": True,
        "seed": None,
        "threads": None,
        "kv_events": None,
        "log_level": "INFO",
    }
