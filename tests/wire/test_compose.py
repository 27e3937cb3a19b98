"""The compose files: valid, careful, and true outside of containers, too."""

import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import requests
import yaml

from tests.running_server import ROOT, running_gunicorn, running_image
from tests.test_compose import COMPOSE, SERVICES

MOVED = ROOT / "deploy" / "docker-compose.vllm.yml"
ROUTED = ROOT / "deploy" / "routers" / "docker-compose.yml"


@pytest.mark.parametrize("file", [COMPOSE, MOVED, ROUTED], ids=["all", "vllm", "routers"])
def test_compose_files_satisfy_the_compose_specification(file: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "check_jsonschema",
        "--builtin-schema",
        "vendor.compose-spec",
        str(file),
    ]
    checked = subprocess.run(command, capture_output=True, text=True, timeout=50, check=False)
    assert checked.returncode == 0, checked.stdout + checked.stderr


def test_vllm_compose_service_runs_after_changing_only_its_image() -> None:
    service = yaml.safe_load(MOVED.read_text())["services"]["vllm"]
    words = shlex.split(service["command"])
    port = words[words.index("--port") + 1]
    assert service["image"] == "understudy" and service["ports"] == [f"{port}:{port}"]
    assert service["healthcheck"]["test"] == [
        "CMD",
        "curl",
        "-f",
        f"http://localhost:{port}/health",
    ]
    assert "--no-install-recommends curl" in (ROOT / "Dockerfile").read_text()
    environment = service["environment"] | {"HF_TOKEN": ""}
    published = next(k for k, word in enumerate(words) if word == "--kv-events-config")
    words[published + 1] = words[published + 1].replace("5557", "0")  # whichever is free here
    with running_image(*words, env=environment) as server:
        card = requests.get(f"{server.url}/v1/models", timeout=20).json()["data"][0]
        assert (card["id"], card["root"], card["max_model_len"]) == ("qwen3", "Qwen/Qwen3-8B", 8000)
        body = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 30}
        answer = requests.post(f"{server.url}/v1/chat/completions", json=body, timeout=20).json()
        assert answer["choices"][0]["message"]["reasoning"]
        assert requests.get(f"{server.url}/kv_event_sources", timeout=20).json()["0"]["topic"] == ""


def test_fault_rules_of_the_failing_service_are_applied() -> None:
    variables = SERVICES["failing"]["environment"]
    with running_gunicorn(env={"SIM_FAULT_RULES": variables["SIM_FAULT_RULES"]}) as server:
        body = {"prompt": "hi", "max_tokens": 1}
        got = [
            requests.post(f"{server.url}/v1/completions", json=body, timeout=20).status_code
            for _ in range(7)
        ]
        assert got == [200, 200, 200, 200, 503, 200, 429]


def scored(url: str, prompt: dict[str, str]) -> set[str]:
    """The pods of which the index knows that they have the beginning of this prompt."""
    return set(requests.post(f"{url}/score_completions", json=prompt, timeout=20).json())
