"""`vllm_understudy.running_server`: a server for a `with` block, and what a test can ask of it."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
import requests

import vllm_understudy
from tests.sdks import openai
from vllm_understudy.running import flags


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[vllm_understudy.Server]:
    script = tmp_path_factory.mktemp("script") / "replies.yaml"
    script.write_text("rules: [{when: {nth: 1}, then: {text: first}}, {then: {text: again}}]")
    rules = [{"action": "stall", "model": "slow"}]
    with vllm_understudy.running_server(
        max_num_seqs=2, fault_rules=rules, admin_key="secret", script=str(script)
    ) as server:
        yield server


@pytest.fixture
def server(running: vllm_understudy.Server) -> Iterator[vllm_understudy.Server]:
    yield running
    running.reset()


def client(server: vllm_understudy.Server, retries: int) -> openai.OpenAI:
    return openai.OpenAI(base_url=server.base_url, api_key="any", max_retries=retries)


def ask(server: vllm_understudy.Server, retries: int = 0) -> str | None:
    messages = [{"role": "user", "content": "hi"}]
    answer = client(server, retries).chat.completions.create(
        model="understudy-tiny", messages=messages
    )
    return answer.choices[0].message.content


def test_verdict_counts_the_injected_faults_by_status_action_and_name(
    server: vllm_understudy.Server,
) -> None:
    server.fault("error", status=503, times=1)
    with pytest.raises(openai.InternalServerError):
        ask(server)
    server.fault("error", status=429, retry_after=1, times=1, name="once more")
    assert ask(server, retries=2)
    verdict = server.verdict()
    assert verdict.clean, verdict
    assert [verdict.count(counter) for counter in ("503", "429", "error", "once more")] == [1] * 4


def test_script_counters_restart_after_a_reset(server: vllm_understudy.Server) -> None:
    assert [ask(server), ask(server)] == ["first", "again"]
    server.reset()
    assert ask(server) == "first"


def test_client_that_ignores_retry_after_is_reported(server: vllm_understudy.Server) -> None:
    server.fault("error", status=429, retry_after=30)
    url = f"{server.base_url}/completions"
    body = {"prompt": "again", "max_tokens": 1}
    assert [requests.post(url, json=body, timeout=20).status_code for _ in range(4)] == [429] * 4
    verdict = server.verdict()
    assert not verdict.clean and verdict.count("requests") == 4
    assert "no_backoff" in str(verdict), verdict.findings


def test_reset_restores_the_fault_rules_that_the_server_started_with(
    server: vllm_understudy.Server,
) -> None:
    [first] = server.faults
    server.fault("error", status=500)
    server.fault("empty", every=2)
    assert [rule["action"] for rule in server.faults] == ["stall", "error", "empty"]
    server.clear_faults()
    assert server.faults == []
    server.reset()
    assert server.faults == [first]


def test_reset_forgets_clients_and_restores_settings(server: vllm_understudy.Server) -> None:
    server.configure(failure_injection_rate=100, failure_types=["server_error"])
    server.configure(failure_injection_rate=50)
    with pytest.raises(openai.APIStatusError):
        for _ in range(200):
            ask(server)
    assert server.verdict().clients
    server.reset()
    assert server.settings["failure-injection-rate"] == 0 and not server.settings["failure-types"]
    assert not server.verdict().clients and ask(server)


def test_invalid_settings_and_faults_raise_an_error(server: vllm_understudy.Server) -> None:
    with pytest.raises(vllm_understudy.ControlError, match="unknown setting 'nix'"):
        server.configure(nix=3)
    with pytest.raises(vllm_understudy.ControlError, match="max-num-seqs"):
        server.configure(max_num_seqs=3)
    with pytest.raises(vllm_understudy.ControlError, match="explode"):
        server.fault("explode")
    assert len(server.faults) == 1


def test_server_ends_at_the_end_of_the_with_block_even_after_an_error() -> None:
    with pytest.raises(ZeroDivisionError), vllm_understudy.running_server() as server:
        raise ZeroDivisionError
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", server.port), 1)
    assert not server.log_file.exists()
    with pytest.raises(vllm_understudy.ControlError):
        server.ask("GET", "/admin/config")


def test_failed_startup_raises_an_error_with_the_reason() -> None:
    with (
        pytest.raises(
            RuntimeError, match="unknown flag --max-num-seq; did you mean --max-num-seqs"
        ),
        vllm_understudy.running_server(max_num_seq=3),
    ):
        pass


def test_running_server_accepts_serve_arguments_and_settings(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "app").mkdir()
    (tmp_path / "app" / "__init__.py").write_text("raise SystemExit('of somebody else')")
    (tmp_path / "mine.yaml").write_text("max-num-seqs: 3\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(os.environ, "SIM_MAX_NUM_SEQS", "5")
    words = ("serve", "Qwen/Qwen3-8B", "--max-model-len", "8k")
    with vllm_understudy.running_server(
        *words, data_parallel_size=2, self_signed_certs=True
    ) as server:
        assert server.settings["max-model-len"] == 8000 and server.settings["max-num-seqs"] != 5
        server.fault("error", status=418)
        url = f"https://127.0.0.1:{server.port}/v1/completions"
        with pytest.warns(match="certificate"):
            answer = requests.post(
                url,
                json={"prompt": "hi"},
                headers={"X-data-parallel-rank": "1"},
                verify=False,
                timeout=20,
            )
        assert answer.status_code == 418
    with vllm_understudy.running_server(config="mine.yaml") as server:
        assert server.settings["max-num-seqs"] == 3


def test_python_settings_become_command_line_flags() -> None:
    settings = {
        "max_num_seqs": 2,
        "enable_kvcache": True,
        "model": "m",
        "api_key": ["a", "b"],
        "seed": None,
    }
    assert flags(settings) == [
        *("--max-num-seqs", "2", "--enable-kvcache", "true"),
        *("--model", "m", "--api-key", "a", "b"),
    ]
    assert flags({"fault_rules": [{"action": "stall"}]}) == [
        "--fault-rules",
        '[{"action": "stall"}]',
    ]
