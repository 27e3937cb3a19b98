"""Each router as docs/routers.md configures it: prefixes are found, ranks and handoffs work."""

from __future__ import annotations

import json
import os
import random
import re
import shlex
import subprocess
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import requests
import yaml

from tests.hostile.waits import wait_for_log_count
from tests.needs import CLIENTS_PYTHON, SERVERS_BIN
from tests.running_server import ROOT, RunningServer, free_port, running_command, running_image
from tests.servers.routers import recipe_of, routed

WORDS = ("alpha", "beta", "gamma", "delta", "epsilon", "zeta", "eta", "theta")
SESSIONS = 12
TURNS = 12
FLAGS = ("--enable-scale-out", "--enable-prompt-tokens-details", "--kv-cache-size=4000")
NIXL = json.dumps({"kv_connector": "NixlConnector", "kv_role": "kv_both"})
ROUTERS = pytest.mark.routers


def series(server: RunningServer, name: str) -> dict[str, float]:
    """Sums of a metric by rank."""
    page = requests.get(f"{server.url}/metrics", timeout=20).text
    sums: Counter[str] = Counter()
    for rank, number in re.findall(rf'^{name}\{{engine="(\d)".*\}} (\S+)$', page, re.M):
        sums[rank] += float(number)
    return dict(sums)


@pytest.fixture(scope="module")
def event_ports() -> list[int]:
    return [free_port(), free_port()]


@pytest.fixture
def servers(event_ports: list[int]) -> Iterator[list[RunningServer]]:
    """Two servers with empty caches, as on the page."""
    with ExitStack() as stack:
        running = []
        for port in event_ports:
            config = {"enable_kv_cache_events": True, "endpoint": f"tcp://*:{port}", "topic": ""}
            events = ("--kv-events-config", json.dumps(config))
            server = running_image("serve", "tiny", *FLAGS, *events)
            running.append(stack.enter_context(server))
        yield running


def system_prompt(session: int) -> list[dict[str, str]]:
    text = " ".join(random.Random(session).choices(WORDS, k=250))
    return [{"role": "system", "content": text}]


def question(turn: int) -> dict[str, str]:
    return {"role": "user", "content": f"Question {turn}"}


class Sessions:
    """Clients with long prompts of their own, which take turns in random order."""

    def __init__(self, router: RunningServer) -> None:
        self._url = f"{router.url}/v1/chat/completions"
        draw = random.Random(1)
        self._clients = [requests.Session() for _ in range(SESSIONS)]
        self._order = [session for session in range(SESSIONS) for _ in range(TURNS)]
        draw.shuffle(self._order)

    def cached_share(self) -> float:
        """Sends all requests, and returns the share of their prompts that was cached."""
        usages = [self._ask(turn, session) for turn, session in enumerate(self._order)]
        cached = sum(usage["prompt_tokens_details"]["cached_tokens"] for usage in usages)
        return cached / sum(usage["prompt_tokens"] for usage in usages)

    def _ask(self, turn: int, session: int) -> Any:
        messages = [*system_prompt(session), question(turn)]
        body = {"model": "tiny", "messages": messages, "max_tokens": 2}
        headers = {"X-Session-ID": f"session {session}"}
        answer = self._clients[session].post(self._url, json=body, headers=headers, timeout=20)
        assert answer.status_code == 200, answer.text
        usage = answer.json()["usage"]
        usage["prompt_tokens_details"] = usage["prompt_tokens_details"] or {"cached_tokens": 0}
        return usage


def assert_all_used(servers: Sequence[RunningServer]) -> None:
    assert all(series(server, "vllm:generation_tokens_total")["0"] > 0 for server in servers)


@pytest.mark.parametrize(
    "name",
    [
        pytest.param("envoy", marks=ROUTERS),
        pytest.param("traefik", marks=ROUTERS),
        pytest.param("caddy", marks=pytest.mark.caddy),
        pytest.param("nginx", marks=pytest.mark.nginx),
        pytest.param("haproxy", marks=pytest.mark.haproxy),
    ],
)
def test_session_requests_are_routed_to_their_cached_prefixes(
    name: str, servers: list[RunningServer], tmp_path: Path
) -> None:
    with routed(name, tmp_path, servers) as router:
        assert Sessions(router).cached_share() >= 0.85
        assert_all_used(servers)


@pytest.mark.clients
@pytest.mark.timeout(180)  # litellm takes long to import on a busy machine
def test_litellm_routes_sessions_to_their_cached_prefixes(servers: list[RunningServer]) -> None:
    """Its proxy passes the configuration to the router that is asked here."""
    config = yaml.safe_load(recipe_of("litellm", 0, servers))
    sessions = [
        [[*system_prompt(session), question(turn)] for turn in range(8)]
        for session in range(SESSIONS)
    ]
    command = [str(CLIENTS_PYTHON), str(Path(__file__).with_name("litellm_sessions.py"))]
    done = subprocess.run(
        command,
        input=json.dumps([config, sessions]),
        env={**os.environ, "LITELLM_LOCAL_MODEL_COST_MAP": "True"},
        capture_output=True,
        text=True,
        timeout=170,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    cached, total = json.loads(done.stdout.splitlines()[-1])
    assert cached / total >= 0.85, "the first of 8 turns is not cached"
    assert_all_used(servers)


@ROUTERS
@pytest.mark.parametrize("name", ["sglang-router", "vllm-router cache_aware"])
def test_routers_that_compare_texts_find_cached_prefixes(
    name: str, servers: list[RunningServer], tmp_path: Path
) -> None:
    with routed(name, tmp_path, servers) as router:
        assert Sessions(router).cached_share() >= 0.85


@ROUTERS
def test_vllm_router_finds_cached_prefixes_by_kv_events(
    servers: list[RunningServer], event_ports: list[int], tmp_path: Path
) -> None:
    with routed("vllm-router kv_aware", tmp_path, servers, event_ports) as router:
        assert Sessions(router).cached_share() >= 0.85
    assert not any("is rejected" in server.log() for server in servers)


@ROUTERS
def test_random_routing_finds_under_85_percent_of_prompt_tokens_in_caches(
    servers: list[RunningServer], tmp_path: Path
) -> None:
    flags = ("--policy", "random")
    with routed("vllm-router cache_aware", tmp_path, servers, flags=flags) as router:
        assert Sessions(router).cached_share() < 0.85
        assert_all_used(servers)


@ROUTERS
@pytest.mark.parametrize("stream", [False, True])
def test_vllm_router_uses_all_ranks_of_a_server(stream: bool, tmp_path: Path) -> None:
    words = ("serve", "tiny", "--data-parallel-size=2", "--inter-token-latency=2ms")
    with (
        running_image(*words) as server,
        routed("vllm-router ranks", tmp_path, [server]) as router,
        ThreadPoolExecutor(12) as pool,
    ):

        def complete(number: int) -> int:
            body = {"model": "tiny", "prompt": f"Hello {number}", "max_tokens": 4}
            fields = {"ignore_eos": True, "stream": stream}
            url = f"{router.url}/v1/completions"
            return requests.post(url, json=body | fields, timeout=20).status_code

        assert list(pool.map(complete, range(120))) == [200] * 120
        assert series(server, "vllm:generation_tokens_total") == {"0": 240.0, "1": 240.0}


@ROUTERS
def test_vllm_router_transfers_prefills_to_the_decode_server(tmp_path: Path) -> None:
    with ExitStack() as stack:
        servers = []
        for _ in range(2):
            side_channel = {"VLLM_NIXL_SIDE_CHANNEL_PORT": str(free_port())}
            server = running_image("serve", "tiny", "--kv-transfer-config", NIXL, env=side_channel)
            servers.append(stack.enter_context(server))
        router = stack.enter_context(routed("vllm-router prefill-decode", tmp_path, servers))
        assert_handed_over(router, servers)


def assert_handed_over(router: RunningServer, servers: Sequence[RunningServer]) -> None:
    """Twenty requests whose prompts one server computes, and the other one reads."""
    for number in range(20):
        body = {"model": "tiny", "prompt": [number] * 64, "max_tokens": 4, "ignore_eos": True}
        answer = requests.post(f"{router.url}/v1/completions", json=body, timeout=20)
        assert answer.status_code == 200
        assert answer.json()["usage"]["completion_tokens"] == 4
    prefill, decode = servers
    assert series(prefill, "vllm:generation_tokens_total") == {"0": 20.0}
    assert series(decode, "vllm:external_prefix_cache_hits_total") == {"0": 20 * 64.0}
    usages = [series(server, "vllm:kv_cache_usage_perc") for server in servers]
    assert usages == [{"0": 0.0}, {"0": 0.0}]


@ROUTERS
def test_vllm_router_transfers_prefills_with_mooncake(tmp_path: Path) -> None:
    bootstrap_port = free_port()
    environment = {
        "VLLM_MOONCAKE_BOOTSTRAP_PORT": str(bootstrap_port),
        "VLLM_NIXL_SIDE_CHANNEL_HOST": "127.0.0.1",
    }
    with ExitStack() as stack:
        servers = []
        for role in ("kv_producer", "kv_consumer"):
            config = json.dumps({"kv_connector": "MooncakeConnector", "kv_role": role})
            environment["VLLM_NIXL_SIDE_CHANNEL_PORT"] = str(free_port())
            words = ("serve", "tiny", "--kv-transfer-config", config)
            servers.append(stack.enter_context(running_image(*words, env=environment)))
        ports = {8998: bootstrap_port}
        router = routed("vllm-router mooncake", tmp_path, servers, other_ports=ports)
        assert_handed_over(stack.enter_context(router), servers)


@ROUTERS
@pytest.mark.parametrize("reads", [True, False], ids=["read", "write"])
def test_vllm_router_transfers_prefills_with_moriio(reads: bool, tmp_path: Path) -> None:
    ping_port = free_port()
    environment = {"VLLM_NIXL_SIDE_CHANNEL_HOST": "127.0.0.1"}
    with ExitStack() as stack:
        servers = []
        for role in ("kv_producer", "kv_consumer"):
            extra = {
                "proxy_ip": "127.0.0.1",
                "proxy_ping_port": ping_port,
                "notify_port": free_port(),
                "read_mode": reads,
            }
            connector = {"kv_connector": "MoRIIOConnector", "kv_role": role}
            config = json.dumps({**connector, "kv_connector_extra_config": extra})
            words = ("serve", "tiny", "--kv-transfer-config", config)
            servers.append(stack.enter_context(running_image(*words, env=environment)))
        ports = {9600: ping_port}
        router = routed("vllm-router moriio", tmp_path, servers, other_ports=ports)
        running = stack.enter_context(router)
        wait_for_log_count(running, "Add ", len(servers))
        assert_handed_over(running, servers)


COMPOSE = yaml.safe_load((ROOT / "deploy" / "routers" / "docker-compose.yml").read_text())
MANIFESTS = ("ranks.yaml", "prefill-decode.yaml")


def words_of_compose(service: str) -> list[str]:
    return shlex.split(COMPOSE["services"][service]["command"])


def words_of_manifest(name: str) -> list[str]:
    """The arguments of the container of a deployment."""
    for file in MANIFESTS:
        documents = (ROOT / "deploy" / "routers" / file).read_text()
        for described in yaml.safe_load_all(documents):
            if described["kind"] == "Deployment" and described["metadata"]["name"] == name:
                [container] = described["spec"]["template"]["spec"]["containers"]
                return [str(word) for word in container["args"]]
    raise AssertionError(name)


@ROUTERS
@pytest.mark.parametrize("prefix", ["", "understudy-"])
@pytest.mark.parametrize(
    ("router", "names"),
    [
        ("ranks-router", ["ranks"]),
        ("handoff-router", ["prefill", "decode"]),
    ],
)
def test_deployed_router_commands_forward_completions(
    prefix: str, router: str, names: list[str]
) -> None:
    """Those of the compose file, and those of the manifests; outside of containers."""
    words_of = words_of_compose
    if prefix:
        words_of = words_of_manifest
        names = [f"understudy-{name}" for name in names]
        if router == "handoff-router":
            names = [name.replace("understudy-", "understudy-handoff-") for name in names]
    words = words_of(prefix + router)
    with ExitStack() as stack:
        for name in names:
            environment = {"VLLM_NIXL_SIDE_CHANNEL_HOST": "127.0.0.1"}
            environment["VLLM_NIXL_SIDE_CHANNEL_PORT"] = str(free_port())
            server = running_image(*words_of(name), env=environment)
            port = stack.enter_context(server).port
            words = [
                word.replace(f"http://{name}:8000", f"http://127.0.0.1:{port}") for word in words
            ]
        port = free_port()
        command = [str(SERVERS_BIN / "vllm-router"), "--port", str(port), *words]
        command += ["--prometheus-port", str(free_port()), "--worker-startup-check-interval", "1"]
        running = stack.enter_context(running_command(command, port, {}))
        for number in range(10):
            body = {"model": "tiny", "prompt": f"Hello {number}", "max_tokens": 2}
            answer = requests.post(f"{running.url}/v1/completions", json=body, timeout=20)
            assert answer.status_code == 200


def test_router_recipes_use_the_documented_ports() -> None:
    recipe = recipe_of("vllm-router kv_aware", 1, [], ())
    assert "--port 1 " in recipe and "127.0.0.1:8001=tcp://127.0.0.1:5557" in recipe
