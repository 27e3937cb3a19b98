"""Each rank of a server publishes KV events in SGLang's form."""

from typing import Any

import msgspec
import pytest
import zmq

from tests.client import Client, served
from tests.running_server import free_port

ATTEMPTS = 600
"""Requests, one each tenth of a second, until a publisher has connected."""


def first_batch(client: Client, socket: "zmq.Socket[bytes]", rank: int) -> list[bytes]:
    """The first message of a rank, which gets other prompts until it is connected."""
    for number in range(ATTEMPTS):
        fields = {"input_ids": [rank * ATTEMPTS + number] * 32, "routed_dp_rank": rank}
        assert client.post("/generate", fields).status_code == 200
        if socket.poll(100):
            return socket.recv_multipart(zmq.NOBLOCK)
    raise AssertionError("no event has come")


@pytest.mark.timeout(120)
def test_every_rank_publishes_maps_with_signed_hashes() -> None:
    port = free_port(2)
    flags = (
        "--enable-kvcache",
        "--event-flush-interval=0",
        f"--zmq-endpoint=tcp://127.0.0.1:{port}",
    )
    ranks = ("--data-parallel-size=2", "--data-parallel-mode=internal")
    with zmq.Context() as context, served("--dialect=sglang", *flags, *ranks) as client:
        for rank in range(2):
            with context.socket(zmq.SUB) as socket:
                socket.linger = 0
                socket.subscribe("")
                socket.bind(f"tcp://127.0.0.1:{port + rank}")
                topic, sequence, payload = first_batch(client, socket, rank)
            assert topic.startswith(b"kv@") and len(sequence) == 8
            batch: list[Any] = msgspec.msgpack.decode(payload)
            _, events, attn_dp_rank = batch
            assert attn_dp_rank == rank
            stored = next(event for event in events if event["type"] == "BlockStored")
            assert {"block_hashes", "token_ids", "lora_id", "medium"} < set(stored)
            assert "extra_keys" not in stored and "lora_name" not in stored
            assert all(-(2**63) <= number < 2**63 for number in stored["block_hashes"])
