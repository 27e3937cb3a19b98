"""MooncakeConnector and MoRIIOConnector over real ports, with the parameters of their routers."""

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple

import pytest
import requests
import zmq
from msgspec import msgpack

from tests.client import Client, served
from tests.running_server import free_port
from tests.stubs import eventually
from tests.waits import wait_for_log, wait_for_metric

PROMPT = list(range(100, 180))
"""Five of the eight blocks of a pod."""
CACHE = ("--enable-kvcache", "--kv-cache-size", "9", "--max-model-len", "128")
USAGE = "vllm:kv_cache_usage_perc"
HITS = "vllm:external_prefix_cache_hits_total"


def prefill(client: Client, **params: Any) -> dict[str, Any]:
    transfer = {"do_remote_decode": True, **params}
    return client.complete(prompt=PROMPT, max_tokens=1, kv_transfer_params=transfer)


def decode(client: Client, headers: dict[str, str] | None = None, **params: Any) -> Any:
    body = {
        "prompt": PROMPT,
        "max_tokens": 3,
        "ignore_eos": True,
        "kv_transfer_params": {"do_remote_prefill": True, **params},
    }
    return client.post("/v1/completions", body, headers=headers or {})


class MooncakePods(NamedTuple):
    """A prefill pod with its bootstrap server, and a decode pod."""

    prefill: Client
    decode: Client
    bootstrap: str

    def params(self, transfer_id: str) -> dict[str, Any]:
        """What the router sends to the decode pod."""
        entries = requests.get(f"{self.bootstrap}/query", timeout=20).json()
        return {
            "transfer_id": transfer_id,
            "remote_engine_id": entries["0"]["engine_id"],
            "remote_bootstrap_addr": self.bootstrap,
        }


@contextmanager
def mooncake_pod(bootstrap_port: int, *flags: str) -> Iterator[Client]:
    ports = ("--kv-side-channel-port", str(free_port()))
    bootstrap = ("--mooncake-bootstrap-port", str(bootstrap_port))
    local = ("--kv-connector", "mooncake", "--kv-side-channel-host", "127.0.0.1")
    with served(*CACHE, *local, *ports, *bootstrap, *flags) as client:
        yield client


@pytest.fixture(scope="module")
def mooncake() -> Iterator[MooncakePods]:
    port = free_port()
    with (
        mooncake_pod(port, "--kv-role", "kv_producer") as prefilling,
        mooncake_pod(port, "--kv-role", "kv_consumer") as decoding,
    ):
        yield MooncakePods(prefilling, decoding, f"http://127.0.0.1:{port}")


@pytest.mark.parametrize("first", ["prefill", "decode"])
def test_matching_mooncake_transfer_ids_link_a_prefill_to_its_decode(
    mooncake: MooncakePods, first: str
) -> None:
    transfer = mooncake.params(f"transfer of {first}")
    transfer_id = transfer["transfer_id"]
    hits = mooncake.decode.metric(HITS)
    with ThreadPoolExecutor(2) as pool:
        if first == "decode":
            decoding = pool.submit(decode, mooncake.decode, **transfer)
            wait_for_metric(mooncake.decode.server.port, "vllm:num_requests_running", 1)
        answer = prefill(mooncake.prefill, transfer_id=transfer_id)
        if first == "prefill":
            assert mooncake.prefill.metric(USAGE) == 5 / 8
            decoding = pool.submit(decode, mooncake.decode, **transfer)
        assert decoding.result(20).json()["usage"]["completion_tokens"] == 3
    assert answer["kv_transfer_params"] is None
    if first == "prefill":
        assert mooncake.decode.metric(HITS) - hits == len(PROMPT)
    assert mooncake.prefill.metric(USAGE) == mooncake.decode.metric(USAGE) == 0


def test_mooncake_decode_of_an_unknown_engine_fails(mooncake: MooncakePods) -> None:
    wrong = {**mooncake.params("t"), "remote_engine_id": "unknown"}
    assert decode(mooncake.decode, **wrong).status_code == 500
    assert "remote engine_id unknown not found" in mooncake.decode.server.log()
    closed = {**wrong, "remote_bootstrap_addr": f"http://127.0.0.1:{free_port()}"}
    assert decode(mooncake.decode, **closed).status_code == 500
    assert mooncake.decode.metric(USAGE) == 0


def test_bootstrap_server_registers_engines_and_lists_them(mooncake: MooncakePods) -> None:
    registration = {"engine_id": "e", "dp_rank": 7, "tp_rank": 0, "pp_rank": 0, "addr": "tcp://h:1"}
    url = f"{mooncake.bootstrap}/register"
    assert requests.post(url, json=registration, timeout=20).json() == {"status": "ok"}
    assert requests.post(url, json={"engine_id": 5}, timeout=20).status_code == 422
    assert requests.post(url, data=b"\xff", timeout=20).status_code == 422
    assert requests.get(f"{mooncake.bootstrap}/unknown", timeout=20).status_code == 404
    entries = requests.get(f"{mooncake.bootstrap}/query", timeout=20).json()
    assert entries["7"] == {"engine_id": "e", "worker_addr": {"0": {"0": "tcp://h:1"}}}
    assert entries["0"]["worker_addr"]["0"]["0"].startswith("tcp://127.0.0.1:")


def test_occupied_bootstrap_port_is_reported_in_one_line(mooncake: MooncakePods) -> None:
    port = int(mooncake.bootstrap.rpartition(":")[2])
    with mooncake_pod(port) as pod:
        assert pod.complete(prompt=PROMPT)["choices"]
        wait_for_log(pod.server, f"bootstrap port {port}")
        lines = [line for line in pod.server.log().splitlines() if "bootstrap port" in line]
        assert len(lines) == 1


def test_all_data_parallel_ranks_register_with_one_bootstrap_server() -> None:
    port = free_port()
    ranks = ("--data-parallel-size", "2", "--data-parallel-mode", "internal")
    with mooncake_pod(port, *ranks):

        def engines() -> dict[str, Any]:
            entries: dict[str, Any] = requests.get(
                f"http://127.0.0.1:{port}/query", timeout=20
            ).json()
            return entries

        def are_both_registered() -> bool:
            return engines().keys() == {"0", "1"}

        eventually(are_both_registered)
        ids = {entry["engine_id"] for entry in engines().values()}
        assert len(ids) == 2


@contextmanager
def moriio_pod(role: str, proxy: str, *flags: str) -> Iterator[Client]:
    with served(
        *CACHE,
        *("--kv-connector", "moriio", "--kv-role", role, "--moriio-proxy", proxy),
        *("--kv-side-channel-host", "127.0.0.1", "--kv-side-channel-port", str(free_port())),
        *flags,
    ) as client:
        yield client


@pytest.fixture(scope="module")
def proxy() -> Iterator["zmq.Socket[bytes]"]:
    """The socket of a router that receives heartbeats."""
    with zmq.Context() as context, context.socket(zmq.ROUTER) as socket:
        socket.linger = 0
        socket.bind_to_random_port("tcp://127.0.0.1")
        yield socket


class MoriioPods(NamedTuple):
    """A prefill pod, a decode pod, and their heartbeats by role."""

    prefill: Client
    decode: Client
    heartbeats: dict[str, dict[str, Any]]


@pytest.fixture(scope="module")
def moriio(proxy: "zmq.Socket[bytes]") -> Iterator[MoriioPods]:
    address = proxy.getsockopt_string(zmq.LAST_ENDPOINT)
    with ExitStack() as stack:
        prefilling = stack.enter_context(moriio_pod("kv_producer", address))
        decoding = stack.enter_context(moriio_pod("kv_consumer", address, "--moriio-read-mode"))
        heartbeats: dict[str, dict[str, Any]] = {}
        while heartbeats.keys() != {"P", "D"}:
            assert proxy.poll(20_000)
            heartbeat = msgpack.decode(proxy.recv_multipart()[-1])
            heartbeats[heartbeat["type"]] = heartbeat
        yield MoriioPods(prefilling, decoding, heartbeats)


def test_moriio_pods_send_their_role_and_addresses_to_the_router(
    moriio: MoriioPods,
) -> None:
    for role, client, mode in (("P", moriio.prefill, "WRITE"), ("D", moriio.decode, "READ")):
        heartbeat = moriio.heartbeats[role]
        assert heartbeat["http_address"] == client.url.removeprefix("http://")
        assert heartbeat["zmq_address"].startswith("host:127.0.0.1,handshake:6301,notify:")
        assert (heartbeat["dp_size"], heartbeat["tp_size"]) == (1, 1)
        assert heartbeat["transfer_mode"] == mode


def test_moriio_decode_reads_blocks_with_the_parameters_from_its_prefill(
    moriio: MoriioPods,
) -> None:
    params = prefill(moriio.prefill, transfer_id="read")["kv_transfer_params"]
    assert list(params) == [
        "do_remote_prefill",
        "do_remote_decode",
        "remote_block_ids",
        "remote_engine_id",
        "remote_host",
        "remote_handshake_port",
        "remote_notify_port",
        "remote_dp_rank",
        "remote_dp_rank_override",
        "remote_dp_size",
        "remote_dp_size_local",
        "tp_size",
        "transfer_id",
    ]
    assert (params["transfer_id"], len(params["remote_block_ids"][0])) == ("read", 5)
    assert decode(moriio.decode, **params).json()["usage"]["completion_tokens"] == 3
    assert moriio.prefill.metric(USAGE) == 0


def test_moriio_decode_finds_its_prefill_by_the_request_id(moriio: MoriioPods) -> None:
    addresses = (moriio.heartbeats["P"]["zmq_address"], moriio.heartbeats["D"]["zmq_address"])
    request_id = "___prefill_addr_{}___decode_addr_{}_{}".format(*addresses, "0" * 32)
    with ThreadPoolExecutor(1) as pool:
        headers = {"X-Request-Id": request_id}
        decoding = pool.submit(decode, moriio.decode, headers, transfer_id="write")
        prefill(moriio.prefill, transfer_id="write")
        assert decoding.result(20).json()["usage"]["completion_tokens"] == 3
    wait_for_metric(moriio.prefill.server.port, USAGE, 0)


def test_moriio_decode_without_an_address_fails(moriio: MoriioPods) -> None:
    failed = decode(moriio.decode, transfer_id="nowhere")
    assert (failed.status_code, json.loads(failed.text)["error"]["code"]) == (500, 500)
    for port in ("x", "1" * 5000):
        request_id = f"___prefill_addr_host:h,notify:{port}___decode_addr_d_" + "0" * 32
        odd = {"X-Request-Id": request_id}
        assert decode(moriio.decode, odd, transfer_id="nowhere").status_code == 500
