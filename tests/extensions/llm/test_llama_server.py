"""A server before llama.cpp: `understudy llm MODEL.gguf`, KV events, aborts, and files that end
the library's process.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from app.extensions.llm.llama_cpp import huge_pages
from tests.extensions.llm.test_server import ONE_THREAD, engine_of, serving
from tests.extensions.llm.tiny_gguf import make_gguf
from tests.hostile.raw_client import Wire, metric, post, running, wait_for_value
from tests.running_server import ROOT, RunningServer, free_port

pytestmark = [pytest.mark.engine, pytest.mark.timeout(300)]
CHATS = "/v1/chat/completions"


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_gguf(tmp_path_factory.mktemp("gguf") / "tiny.gguf", "llama3.2")


@pytest.fixture(scope="module")
def server(path: Path) -> Iterator[RunningServer]:
    with serving(path, "--seed", "3", "--kv-cache-size", "128") as server:
        yield server


def completion(server: RunningServer, **fields: Any) -> Any:
    answer = post(server.port, {"prompt": [5, 6, 7], "max_tokens": 12} | fields)
    assert answer.status == 200, answer.body
    return answer.json()


def test_chat_uses_the_template_of_the_file(server: RunningServer) -> None:
    body = {
        "messages": [{"role": "user", "content": "ab"}],
        "max_tokens": 8,
        "logprobs": True,
        "top_logprobs": 2,
    }
    answer = post(server.port, body, CHATS)
    assert answer.status == 200, answer.body
    reply = answer.json()
    # "user: ab\nassistant:" in the file's vocabulary of letters.
    assert reply["usage"]["prompt_tokens"] == 20
    assert len(reply["choices"][0]["logprobs"]["content"]) == reply["usage"]["completion_tokens"]


@pytest.mark.skipif(not huge_pages.SYSTEM_FILE.exists(), reason="huge pages of Linux")
def test_engine_process_asks_for_huge_pages(server: RunningServer) -> None:
    environ = Path(f"/proc/{engine_of(server)}/environ").read_bytes().split(b"\0")
    [(name, value)] = huge_pages.ENVIRONMENT.items()
    assert f"{name}={value}".encode() in environ


def test_second_prompt_hits_the_cache(server: RunningServer) -> None:
    prompt = [*range(10, 110)]
    options = {"prompt": prompt, "temperature": 0, "return_token_ids": True}
    first = completion(server, **options)
    second = completion(server, **options)
    assert first["choices"][0]["token_ids"] == second["choices"][0]["token_ids"]
    assert metric(server.port, "vllm:prefix_cache_hits_total") >= 96


def test_seeded_and_structured_replies(server: RunningServer) -> None:
    options = {"temperature": 1.0, "seed": 7, "n": 2, "return_token_ids": True}
    replies = [
        [choice["token_ids"] for choice in completion(server, **options)["choices"]]
        for _ in range(2)
    ]
    assert replies[0] == replies[1] and replies[0][0] != replies[0][1]
    form = completion(server, structured_outputs={"choice": ["abc", "abd"]})
    assert form["choices"][0]["text"] in ("abc", "abd")


def test_client_that_leaves_frees_its_blocks(server: RunningServer) -> None:
    body = {"prompt": [5] * 40, "max_tokens": 900, "ignore_eos": True, "stream": True}
    for _ in range(3):
        with Wire(server.port) as wire:
            next(wire.post(body).events())
    wait_for_value(running, server.port, equals=0)
    assert completion(server)["usage"]["completion_tokens"] > 0


def test_beam_search_is_rejected_by_name(server: RunningServer) -> None:
    answer = post(server.port, {"prompt": [5], "use_beam_search": True})
    assert answer.status == 400 and b"beam" in answer.body


def run_llm(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "app", "llm", *words],
        cwd=ROOT,
        env=os.environ | ONE_THREAD,
        capture_output=True,
        text=True,
        timeout=120,
    )


def test_file_that_ends_the_library_stops_the_start_with_one_line(
    path: Path, tmp_path: Path
) -> None:
    """An assertion of llama.cpp ends its process, which is not the server's."""
    content = make_gguf(tmp_path / "granite.gguf", "granite").read_bytes()
    key = b"granite.rope.dimension_count"
    position = content.index(key) + len(key) + 4
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(content[:position] + bytes([8]) + content[position + 1 :])
    process = run_llm(str(broken), "--port", str(free_port()))
    assert process.returncode == 1
    errors = [line for line in process.stderr.splitlines() if "setting model" in line]
    assert (
        len(errors) == 1
        and str(broken) in errors[0]
        and "the engine process has ended" in errors[0]
    )


def test_truncated_file_stops_the_start_with_one_line(path: Path, tmp_path: Path) -> None:
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(path.read_bytes()[:-100])
    process = run_llm(str(broken), "--port", str(free_port()))
    assert process.returncode == 1
    [line] = [line for line in process.stderr.splitlines() if "setting model" in line]
    assert "is truncated: it ends within the tensor" in line


def test_command_without_a_model_prints_its_usage() -> None:
    process = run_llm()
    assert process.returncode == 2 and process.stderr.startswith("usage: understudy llm MODEL")
    assert run_llm("--help").stdout.startswith("usage: understudy llm MODEL")
