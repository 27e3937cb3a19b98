"""A server without the folder of an extension starts, and answers a chat."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from app.core.built_in import BUILT_IN
from tests.running_server import ROOT

CHAT = """
import sys
from app.core.application import create_app
from config.loader import load

client = create_app(load(("--force-dummy-tokenizer",), {})).test_client()
message = {"role": "user", "content": "Hello!"}
answer = client.post("/v1/chat/completions", json={"messages": [message]})
print(answer.status_code, answer.get_json()["choices"][0]["message"]["role"])
"""
PACKAGES = ("app", "config")


@pytest.mark.parametrize("name", BUILT_IN)
def test_a_server_without_an_extension_answers_a_chat(name: str, tmp_path: Path) -> None:
    for package in PACKAGES:
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / package, tmp_path / package, ignore=ignored)
    shutil.rmtree(tmp_path / "app" / "extensions" / name)
    command = [sys.executable, "-c", CHAT]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=50)
    assert done.stdout == "200 assistant\n", done.stderr
