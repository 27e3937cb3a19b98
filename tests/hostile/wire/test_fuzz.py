"""Odd requests to every route: none gets a 500, and none is left behind in the server.

Five thousand of them in CI, and a part of those elsewhere.
"""

import json
from contextlib import closing
from http.client import HTTPConnection, HTTPException
from typing import Any

import pytest

from tests.hostile.fuzzing import FuzzedRequest, Fuzzer
from tests.hostile.raw_client import PATIENCE_S, get
from tests.hostile.stressed_server import stressed_indexer, stressed_server
from tests.running_server import ROOT

WEATHER_SCRIPT = ROOT / "examples/scripts/weather.yaml"
FAULTS = (
    {"action": "error", "status": 429, "retry_after": 1, "every": 11},
    {"action": "disconnect", "after": 2, "every": 13},
    {"action": "truncate", "every": 17},
    {"action": "malformed-chunk", "every": 19},
    {"action": "stall", "seconds": 0.05, "every": 23},
)
EVERYTHING = (
    *("--server-dev-mode", "--profiling", "--enable-scale-out", "--allow-runtime-lora-updating"),
    *(
        "--enable-responses-store",
        "--force-dummy-tokenizer",
        "--max-model-len",
        "1024",
        "--max-loras",
        "4",
    ),
)
SERVERS = {
    "generate": (2100, (*EVERYTHING, "--enable-kvcache", "--kv-index")),
    "prefill and decode": (
        900,
        (
            *("--fast-path=false", "--reasoning-parser", "qwen3", "--omni"),
            *(
                *EVERYTHING,
                "--enable-kvcache",
                "--kv-connector",
                "nixl",
                "--kv-load-failure-policy",
                "recompute",
                "--script",
                str(WEATHER_SCRIPT),
            ),
            *("--kv-cache-transfer-latency", "5ms", "--fault-rules", json.dumps(FAULTS)),
        ),
    ),
    "pooling": (1300, (*EVERYTHING, "--task", "pooling", "--fast-path=false")),
    "sglang": (
        500,
        (
            *("--dialect=sglang", "--force-dummy-tokenizer", "--max-model-len=1024"),
            *("--enable-kvcache", "--data-parallel-size=2", "--data-parallel-mode=internal"),
        ),
    ),
    "indexer": (700, ("--force-dummy-tokenizer",)),
}
"""How many requests each gets, and its flags."""
SEED = 20261120
PART = 0.15
"""Share of the requests that every run makes."""
SHARES = (PART, pytest.param(1.0, marks=pytest.mark.ci))
SHUTTING = ("/admin/drain", "/sleep", "/pause", "/admin/config", "/admin/choke")
"""What keeps a server from serving what comes after it, or makes it slow."""
OWN_500S = (
    *(
        "/release_kv_cache_memory",
        "/collective_rpc",
        "/scale_elastic_ep",
        "/init_weight_transfer_engine",
    ),
    *(
        "/start_weight_update",
        "/start_draft_weight_update",
        "/update_weights",
        "/finish_weight_update",
    ),
)
"""Where vLLM itself answers 500:

no pause is complete, no method or size exists, no trainer is configured.
"""


@pytest.mark.timeout(300)
@pytest.mark.parametrize("share", SHARES)
@pytest.mark.parametrize("name", SERVERS)
def test_no_fuzzed_request_returns_500(name: str, share: float) -> None:
    number, flags = SERVERS[name]
    with (stressed_indexer if name == "indexer" else stressed_server)(*flags) as server:
        document = json.loads(get(server.port, "/openapi.json").body)
        with closing(Client(server.port)) as client:
            for request in Fuzzer(document, SEED, SHUTTING + OWN_500S).requests(
                round(number * share)
            ):
                client.ask(request)
            if name == "generate":
                ask_operators_routes(client, document, share)


def ask_operators_routes(client: "Client", document: dict[str, Any], share: float) -> None:
    """What changes or stops a server, each followed by what undoes it."""
    paths = {path: document["paths"][path] for path in SHUTTING if path != "/admin/config"}
    for request in Fuzzer({**document, "paths": paths}, SEED).requests(round(100 * share)):
        client.ask(request)
        for path in ("/resume", "/wake_up"):
            client.ask(FuzzedRequest("POST", path, {}, b""))
        client.ask(FuzzedRequest("DELETE", "/admin/choke", {}, None))


class Client:
    """A connection that is opened again when it was closed on purpose; AssertionError for a 500."""

    def __init__(self, port: int) -> None:
        self._connection = HTTPConnection("127.0.0.1", port, timeout=PATIENCE_S)

    def close(self) -> None:
        self._connection.close()

    def ask(self, request: FuzzedRequest) -> None:
        status, body = self.answer(request)
        assert status != 500 and b'"code":500' not in body, (request, body[:500])

    def answer(self, request: FuzzedRequest) -> tuple[int, bytes]:
        """Status and body; 0 for a disconnect that was asked for, or a head that no server takes."""
        connection = self._connection
        try:
            connection.putrequest(request.method, request.path, skip_accept_encoding=True)
            for name, value in request.headers.items():
                connection.putheader(name, value)
            if request.body is not None:
                connection.putheader("Content-Length", str(len(request.body)))
            connection.endheaders(request.body)
            with closing(connection.getresponse()) as response:
                return response.status, response.read()
        except (HTTPException, ConnectionError):
            connection.close()
            return 0, b""
