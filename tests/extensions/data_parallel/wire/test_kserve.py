"""The command lines of KServe's templates for data parallel: a leader, and workers without a port.

From `config/llmisvcconfig/config-llm-worker-data-parallel.yaml` of KServe, with 4 ranks on 2 nodes.
"""

from __future__ import annotations

import re
import signal
import subprocess
import sys

import requests

from tests.config.wire.test_headless import listening_ports
from tests.conformance.clients import openai_client
from tests.running_server import ROOT, running_image

NAMES = ("llm", "publishers/ns/models/llm")
SHARED = (
    *("serve", "/mnt/models", "--skip-model-check", "--served-model-name", *NAMES),
    "--enable-expert-parallel",
    *(
        "--tensor-parallel-size",
        "2",
        "--data-parallel-size",
        "4",
        "--data-parallel-size-local",
        "2",
    ),
    *("--data-parallel-address", "10.0.0.1", "--data-parallel-rpc-port", "5555"),
    *("--disable-access-log-for-endpoints", "/health,/metrics,/ping", "--shutdown-timeout", "15"),
)


def test_leader_serves_all_ranks_on_one_port() -> None:
    leader = (*SHARED, "--api-server-count", "8", "--data-parallel-start-rank", "0")
    with (
        running_image(*leader) as server,
        openai_client(server, strict=False) as client,
    ):
        for name in NAMES:
            answer = client.completions.create(model=name, prompt="Hello", max_tokens=2)
            assert re.match(r"vllm-[\d.]+-tp2-dp4-", answer.system_fingerprint)
        page = requests.get(f"{server.url}/metrics", timeout=20).text
        assert set(re.findall(r'engine="(\d)"', page)) == set("0123")


def test_hybrid_node_serves_only_its_own_ranks() -> None:
    node = (*SHARED, "--data-parallel-start-rank", "2", "--data-parallel-hybrid-lb")
    with (
        running_image(*node) as server,
        openai_client(server, strict=False) as client,
    ):
        for rank in (0, 1):
            headers = {"X-data-parallel-rank": str(rank)}
            client.completions.create(model="llm", prompt="Hello", extra_headers=headers)
        page = requests.get(f"{server.url}/metrics", timeout=20).text
        finished = re.findall(
            r'^vllm:request_prompt_tokens_count\{engine="(\d)".*\} (\S+)$', page, re.M
        )
        assert finished == [("2", "1.0"), ("3", "1.0")]


def test_worker_node_opens_no_port_and_exits_on_sigterm() -> None:
    words = (*SHARED, "--port", "8000", "--data-parallel-start-rank", "2", "--headless")
    command = [sys.executable, "-m", "app.entrypoint", *words]
    with subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True) as worker:
        try:
            assert worker.stderr is not None
            while not worker.stderr.readline().startswith("headless: "):
                assert worker.poll() is None
            assert listening_ports(worker.pid) == set()
            worker.send_signal(signal.SIGTERM)
            assert worker.wait(20) == 0
        finally:
            worker.kill()
