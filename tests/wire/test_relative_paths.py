"""Relative paths of settings begin at the folder in which a command was called."""

import json
import os
import shutil
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import requests
import yaml
from tokenizers import Tokenizer

from app.core.server.gunicorn.certificates import make_pair
from app.core.text.huggingface import EMBEDDED
from tests.extensions.datasets.files import make_file, row
from tests.extensions.recording.recordings import exchange, written
from tests.hostile.raw_client import wait_until
from tests.hostile.wire.test_start import successor_of
from tests.running_server import QUICK_STEPS, ROOT, free_port, running_command

CONFIG = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "hidden_size": 1024,
    "intermediate_size": 3072,
    "num_hidden_layers": 4,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "vocab_size": 4000,
    "max_position_embeddings": 512,
    "layer_types": ["full_attention", "sliding_attention"] * 2,
    "sliding_window": 128,
}
PLUGIN = """
from app.plugins import Plugin

API = 2
VERSION = "1.0"


class Silent(Plugin):
    name = "silent"

    def reply(self):
        return lambda request, random: None


EXTENSION = Silent
"""
WORD = "onewordofthistokenizer"
SHUT_OUT = """
import ctypes, os, sys

os.chmod(".", 0)
if os.geteuid() == 0:  # root may enter any folder, unless it gives up these capabilities
    for capability in (1, 2):  # CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH
        ctypes.CDLL(None).prctl(24, capability, 0, 0, 0)  # PR_CAPBSET_DROP
os.execv(sys.argv[1], sys.argv[1:])
"""
"""A program that calls its arguments in a folder that nobody may enter."""
RULES = "rules: [{when: {message: {contains: one}}, then: {text: two}}]"
SIMULATED: Mapping[str, object] = {
    "chat-template": "template.jinja",
    "dataset-path": ["replies.sqlite3"],
    "kv-index-pods": ["file:pods"],
    "kv-index-tokenizers": ["other=model"],
    "lora-modules": ["sql=./adapter"],
    "plugin": ["./plugin.py"],
    "profile": "profile.yaml",
    "script": ["rules.yaml"],
    "ssl-certfile": "tls.crt",
    "ssl-keyfile": "tls.key",
    "tokenizer": "model",
    "tokenizers-cache-dir": "hub",
}
"""Settings of a server with a profile."""
COMPUTED: Mapping[str, object] = {
    "device": "h100",
    "kv-cache-groups": "./model",
    "model-config": "model/config.json",
    "profile": "auto",
    "replay": "recording",
    "speculative-config": {"method": "eagle3", "model": "./draft", "num_speculative_tokens": 2},
}
"""Settings of a server whose profile is computed."""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with the files of all settings, and with modules whose names are the server's."""
    for name in ("model", "draft", "adapter", "hub"):
        (tmp_path / name).mkdir()
    for name in ("model", "draft"):
        (tmp_path / name / "config.json").write_text(json.dumps(CONFIG))
    tokenizer = Tokenizer.from_file(str(EMBEDDED / "tokenizer.json"))
    tokenizer.add_tokens([WORD])
    tokenizer.save(str(tmp_path / "model" / "tokenizer.json"))
    (tmp_path / "adapter" / "adapter_config.json").write_text('{"r": 8}')
    (tmp_path / "template.jinja").write_text(f"{{{{ messages[0].content }}}}{WORD}{WORD}")
    (tmp_path / "rules.yaml").write_text(RULES)
    shutil.copy(QUICK_STEPS, tmp_path / "profile.yaml")
    (tmp_path / "plugin.py").write_text(PLUGIN)
    (tmp_path / "pods").touch()
    certificate, key = make_pair(["localhost"])
    (tmp_path / "tls.crt").write_bytes(certificate)
    (tmp_path / "tls.key").write_bytes(key)
    make_file(tmp_path / "replies.sqlite3", [row([1], [2])])
    written(tmp_path / "recording", [exchange({"model": "m"}, (0, b"data: 1\n\n"))])
    for name in ("app", "config", "vllm_facts", "gunicorn", "wsgi"):
        (tmp_path / f"{name}.py").write_text("raise ImportError('a module of the user')")
    return tmp_path


def processes(pid: int) -> list[int]:
    """Returns the process ids of the arbiter `pid` and its workers."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [pid, *map(int, children)]


def ask(folder: Path, url: str, body: object = None) -> Any:
    """Returns the JSON of an answer; a server's certificate must be the one in `folder`."""
    method = "GET" if body is None else "POST"
    certificate = str(folder / "tls.crt")
    answer = requests.request(method, url, json=body, verify=certificate, timeout=20)
    assert answer.status_code == 200, answer.text
    return answer.json()


@pytest.mark.parametrize(("values", "scheme"), [(SIMULATED, "https"), (COMPUTED, "http")])
def test_server_finds_relative_paths_in_the_folder_of_its_command(
    folder: Path, values: Mapping[str, object], scheme: str
) -> None:
    (folder / "settings.yaml").write_text(yaml.safe_dump(dict(values)))
    port = free_port()
    command = [sys.executable, "-P", "-m", "app", "--model", "./model", "--port", str(port)]
    command += ["--config", "settings.yaml"]
    url = f"{scheme}://localhost:{port}"
    with running_command(command, port, {"PYTHONPATH": str(ROOT)}, cwd=folder) as server:
        _check_folder(server.process.pid, folder)
        model = ask(folder, f"{url}/v1/models")["data"][0]
        assert (model["id"], model["root"]) == ("./model", "./model")
        assert ask(folder, f"{url}/tokenize", {"prompt": f"{WORD}{WORD}"})["count"] == 2
        server.process.send_signal(signal.SIGHUP)
        wait_until(lambda: server.log().count("model: ./model;") == 2)
        _check_folder(server.process.pid, folder)
        # Each of the two ways to start a server again reads the settings again.
        server.process.send_signal(signal.SIGUSR2)
        wait_until(lambda: successor_of(server) is not None)
        successor = successor_of(server)
        assert successor is not None
        try:
            wait_until(lambda: len(processes(successor)) == 2)
            assert server.stop() == 0
            _check_folder(successor, folder)
            assert ask(folder, f"{url}/v1/models")["data"][0]["id"] == "./model"
        finally:
            os.kill(successor, signal.SIGTERM)


def test_script_template_and_adapter_are_read_in_the_folder_of_the_command(folder: Path) -> None:
    flags = [f"--{name}={value}" for name, value in SIMULATED.items() if isinstance(value, str)]
    flags += ["--lora-modules", "sql=./adapter", "--script", "rules.yaml"]
    port = free_port()
    command = [sys.executable, "-P", "-m", "app", "serve", "./model", "--port", str(port), *flags]
    with running_command(command, port, {"PYTHONPATH": str(ROOT)}, cwd=folder):
        url = f"https://localhost:{port}"
        messages = [{"role": "user", "content": WORD}]
        assert ask(folder, f"{url}/tokenize", {"messages": messages})["count"] == 3
        assert [model["root"] for model in ask(folder, f"{url}/v1/models")["data"]] == [
            "./model",
            "./adapter",
        ]
        answer = ask(folder, f"{url}/v1/chat/completions", {"model": "sql", "messages": messages})
        assert answer["choices"][0]["message"]["content"] == "two"


def _check_folder(pid: int, folder: Path) -> None:
    """Checks the working folder of the arbiter `pid` and of its workers."""
    for process in processes(pid):
        assert Path(f"/proc/{process}/cwd").readlink() == folder


def test_reload_survives_the_deletion_of_the_folder_of_the_command(tmp_path: Path) -> None:
    folder = tmp_path / "gone"
    folder.mkdir()
    port = free_port()
    command = [sys.executable, "-P", "-m", "app", "run", "--port", str(port)]
    with running_command(command, port, {"PYTHONPATH": str(ROOT)}, cwd=folder) as server:
        folder.rmdir()
        server.process.send_signal(signal.SIGHUP)
        wait_until(lambda: server.log().count("model: understudy-tiny;") == 2)
        url = f"http://127.0.0.1:{port}/v1/models"
        wait_until(lambda: requests.get(url, timeout=20).status_code == 200)
        assert server.process.poll() is None


def test_server_starts_in_a_folder_that_its_user_may_not_enter(tmp_path: Path) -> None:
    folder = tmp_path / "private"
    folder.mkdir()
    port = free_port()
    command = [sys.executable, "-P", "-c", SHUT_OUT]
    command += [sys.executable, "-P", "-m", "app", "run", "--port", str(port)]
    with running_command(command, port, {"PYTHONPATH": str(ROOT)}, cwd=folder) as server:
        _check_folder(server.process.pid, ROOT)
