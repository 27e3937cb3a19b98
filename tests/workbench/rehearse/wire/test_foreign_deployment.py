"""A rehearsal of a stranger's deployment runs no code of it, and connects to no host."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.running_server import ROOT

MARK = 'import pathlib\npathlib.Path({path!r}).write_text("ran")\n'
MODULES = ("stranger", "json", "sitecustomize", "app/__init__", "config/__init__", "gunicorn")
CLIENT = """\
import json, os, urllib.request
body = {"model": "ours", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 2}
request = urllib.request.Request(
    os.environ["OPENAI_BASE_URL"] + "/chat/completions",
    json.dumps(body).encode(),
    {"Content-Type": "application/json"},
)
print(json.load(urllib.request.urlopen(request))["usage"]["prompt_tokens"])
"""


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A working folder with modules that leave a mark when they run, and a client beside it."""
    folder = tmp_path / "checkout"
    for module in MODULES:
        path = folder / f"{module}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(MARK.format(path=str(tmp_path / "ran")))
    # A model's folder of the stranger, whose files no tokenizer can be.
    model = folder / "Qwen" / "Qwen3-8B"
    model.mkdir(parents=True)
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json"):
        (model / name).write_text("[")
    (tmp_path / "client").mkdir()
    (tmp_path / "client" / "client.py").write_text(CLIENT)
    return folder


def rehearse(
    checkout: Path, name: str, text: str, variables: dict[str, str] | None = None
) -> tuple[int, dict[str, Any], str]:
    """Rehearses a deployment; returns status, report, and messages."""
    (checkout / name).write_text(text)
    words = ("--from", "0.32", "--to", "0.33", "--format", "json", name)
    client = (sys.executable, "-P", str(checkout.parent / "client" / "client.py"))
    done = subprocess.run(
        [sys.executable, "-P", "-m", "vllm_understudy", "rehearse", *words, "--", *client],
        cwd=checkout,
        env={"PATH": "/usr/bin:/bin", "PYTHONPATH": str(ROOT), **(variables or {})},
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, json.loads(done.stdout or "{}"), done.stderr


def manifest(checkout: Path, *options: str) -> str:
    """A pod with the options, and with a variable for the modules of the checkout."""
    container = {
        "name": "vllm",
        "image": "vllm/vllm-openai:v0.32.0",
        "args": ["Qwen/Qwen3-8B", "--served-model-name", "ours", *options],
        "env": [{"name": "PYTHONPATH", "value": str(checkout)}],
    }
    return yaml.safe_dump({"kind": "Pod", "spec": {"containers": [container]}})


def test_hostile_deployment_runs_nothing_and_asks_nobody(checkout: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setblocking(False)
        host = f"127.0.0.1:{listener.getsockname()[1]}"
        events = {"publisher": "zmq", "endpoint": f"tcp://{host}", "enable_kv_cache_events": True}
        options = (
            *("--middleware", "stranger.mw", "--tokenizer", "stranger/name"),
            *("--tool-parser-plugin", str(checkout / "stranger.py")),
            *("--tool-call-parser", "stranger", "--enable-auto-tool-choice"),
            *("--otlp-traces-endpoint", f"http://{host}/v1/traces"),
            *("--kv-events-config", json.dumps(events), "--tool-server", host),
            *("--ssl-keyfile", "/etc/shadow", "--uds", str(checkout / "socket")),
        )
        variables = {"HF_ENDPOINT": f"http://{host}", "HF_HOME": str(checkout.parent / "hub")}
        text = manifest(checkout, *options)
        status, report, log = rehearse(checkout, "pod.yaml", text, variables)
        with pytest.raises(BlockingIOError):
            listener.accept()
    assert not (checkout.parent / "ran").exists()
    assert not (checkout / "socket").exists()
    assert status == 2, log
    assert report["answer"].startswith("Not known: the stand-ins lack ")
    lost = ("--middleware", "--tokenizer", "--tool-parser-plugin", "--tool-call-parser")
    for option in (*lost, "--tool-server"):
        assert option in report["answer"]
    assert "--ssl-keyfile" not in report["answer"]


def test_template_of_the_checkout_reaches_the_stand_ins(checkout: Path) -> None:
    (checkout / "ours.jinja").write_text("{% for m in messages %}{% endfor %}" + "word " * 50)
    counts = []
    for options in ("", " --chat-template ours.jinja"):
        text = f"vllm serve Qwen/Qwen3-8B --served-model-name ours --max-model-len 99{options}\n"
        status, report, log = rehearse(checkout, "run.sh", text)
        assert (status, report["answer"]) == (0, "Ready to upgrade."), log
        counts.append([int(line) for line in log.splitlines() if line.isdecimal()])
    without_template, with_template = counts
    assert with_template[0] == with_template[1] >= 50 > max(without_template)
    assert not (checkout.parent / "ran").exists()
