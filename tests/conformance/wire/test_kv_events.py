"""A subscriber that decodes as vLLM's own does reads our events, in the layouts of old and new
versions.

The structs are declared here once more, from the table of versions (kv-cache specification, 2.4),
and refuse a field too many, so that nothing is taken for granted that our own ones say.
"""

import json
import time
from typing import Any

import msgspec
import pytest
import requests
import zmq
from msgspec import defstruct

from tests.client import served
from tests.conformance.recording import ENVIRONMENT, FLAGS, KV_EVENTS
from tests.running_server import free_port, running_server

PATIENCE_S = 20.0
PROMPT = list(range(1, 70))
HASHES = list[int | bytes]
KINDS = {"BlockStored", "BlockRemoved", "AllBlocksCleared"}
STORED: list[tuple[str, Any]] = [
    ("block_hashes", HASHES),
    ("parent_block_hash", int | bytes | None),
    ("token_ids", list[int]),
    ("block_size", int),
    ("lora_id", int | None),
]
MEDIUM: list[tuple[str, Any]] = [("medium", str | None)]
NAME: list[tuple[str, Any]] = [("lora_name", str | None)]
EXTRA: list[tuple[str, Any]] = [("extra_keys", list[list[Any] | None] | None)]
GROUP: list[tuple[str, Any]] = [("group_idx", int | None)]
KIND: list[tuple[str, Any]] = [
    ("kv_cache_spec_kind", str | None),
    ("kv_cache_spec_sliding_window", int | None),
]
LAYOUTS: dict[str, tuple[list[tuple[str, Any]], list[tuple[str, Any]]]] = {
    "0.9.0": (STORED, []),
    "0.10.2": ([*STORED, *MEDIUM], MEDIUM),
    "0.14": ([*STORED, *MEDIUM, *NAME], MEDIUM),
    "0.22": ([*STORED, *MEDIUM, *NAME, *EXTRA, *GROUP, *KIND], [*MEDIUM, *GROUP]),
    "map": ([*STORED, *MEDIUM, *NAME, *EXTRA, *GROUP, *KIND], [*MEDIUM, *GROUP]),
}


def batch_of(layout: str) -> type[Any]:
    in_arrays = layout != "map"
    optional = set() if in_arrays else {name for name, _ in [*EXTRA, *GROUP, *KIND]}
    options: dict[str, Any] = {"array_like": in_arrays, "tag": True, "forbid_unknown_fields": True}

    def event(name: str, fields: list[tuple[str, Any]]) -> Any:
        struct_fields = [
            (field, kind, None) if field in optional else (field, kind) for field, kind in fields
        ]
        return defstruct(name, struct_fields, **options)

    stored, removed = LAYOUTS[layout]
    events = (
        event("BlockStored", stored)
        | event("BlockRemoved", [("block_hashes", HASHES), *removed])
        | event("AllBlocksCleared", [])
    )
    fields: list[tuple[str, Any]] = [("ts", float), ("events", list[events])]  # type: ignore[valid-type]
    rank: list[tuple[str, Any]] = [] if layout == "0.9.0" else [("data_parallel_rank", int | None)]
    return defstruct("KVEventBatch", [*fields, *rank], array_like=True, forbid_unknown_fields=True)


def published(layout: str) -> list[Any]:
    """Events of a server until there was one of each kind, decoded."""
    decoder = msgspec.msgpack.Decoder(batch_of(layout))
    port = free_port()
    prompt_start = 0
    flags = (
        "--enable-kvcache",
        "--kv-cache-size",
        "8",
        "--kv-events-format",
        layout,
        "--server-dev-mode",
    )
    bound = ("--zmq-endpoint", f"tcp://*:{port}", "--event-flush-interval", "0s")
    events: list[Any] = []
    with (
        served(*flags, *bound) as client,
        zmq.Context() as context,
        context.socket(zmq.SUB) as socket,
    ):
        socket.linger = 0
        socket.subscribe("kv@")
        socket.connect(f"tcp://127.0.0.1:{port}")
        end = time.monotonic() + PATIENCE_S
        while {type(event).__name__ for event in events} != KINDS:
            assert time.monotonic() < end, events
            client.complete(prompt=[prompt_start + 100, *PROMPT])
            prompt_start += 1
            if prompt_start % 3 == 0:
                client.post("/reset_prefix_cache")
            while socket.poll(50):
                events += decoder.decode(socket.recv_multipart()[2]).events
    return events


@pytest.mark.shared
@pytest.mark.parametrize("timing", ["requests", "steps"])
def test_kv_event_batches_match_those_of_a_real_vllm(timing: str) -> None:
    cache = ("--enable-kvcache", "--block-size=32", "--prefix-caching-hash-algo=sha256")
    with zmq.Context() as context, context.socket(zmq.SUB) as socket:
        socket.linger = 0
        socket.subscribe("kv@")
        endpoint = f"tcp://127.0.0.1:{socket.bind_to_random_port('tcp://127.0.0.1')}"
        events = ("--zmq-endpoint", endpoint, "--event-flush-interval=0s")
        flags = (*FLAGS, *cache, *events, "--timing", timing)
        with running_server(*flags, env=ENVIRONMENT) as server, requests.Session() as session:
            for case in json.loads(KV_EVENTS.read_text()):
                answer = session.post(
                    server.url + case["path"], json=case["request"], timeout=PATIENCE_S
                )
                assert answer.status_code == case["status"], answer.text
                batches = []
                while socket.poll(
                    1000 * PATIENCE_S if len(batches) < len(case["batches"]) else 100
                ):
                    batches.append(msgspec.msgpack.decode(socket.recv_multipart()[2])[1])
                assert batches == case["batches"], case["name"]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_vllm_event_decoder_reads_the_published_events(layout: str) -> None:
    stored = [event for event in published(layout) if type(event).__name__ == "BlockStored"]
    for event in stored:
        assert len(event.token_ids) == 16 * len(event.block_hashes)
        assert event.block_size == 16 and event.lora_id is None
    assert any(event.token_ids[1:] == PROMPT[: len(event.token_ids) - 1] for event in stored)
