"""A server that was started with vLLM's own command line."""

import os
from collections.abc import Iterator

import pytest
import requests

from app import entrypoint
from app.core.cli import listed_commands
from tests.client import in_process
from tests.running_server import RunningServer, running_image
from vllm_facts import image

LINE = [
    "--model", "org/model", "--served-model-name", "one", "two", "--gpu-memory-utilization", "0.9",
    "--max-model-len", "1k", "--tensor-parallel-size", "4", "--root-path", "/models/one", "-cc.mode", "3",
    "--kv-transfer-config", '{"kv_connector": "NixlConnector", "kv_role": "kv_both"}',
]  # fmt: skip


@pytest.fixture(scope="module")
def moved() -> Iterator[RunningServer]:
    with running_image(*LINE, env={"VLLM_NIXL_SIDE_CHANNEL_PORT": "5700"}) as server:
        yield server


def test_serve_command_line_determines_the_model_name_and_the_settings(
    moved: RunningServer,
) -> None:
    cards = requests.get(f"{moved.url}/v1/models", timeout=20).json()["data"]
    assert [(card["id"], card["root"], card["max_model_len"]) for card in cards] == [
        ("one", "org/model", 1000),
        ("two", "org/model", 1000),
    ]
    message = (
        "warning: accepted, changes nothing here: --compilation-config, --gpu-memory-utilization\n"
    )
    assert moved.log().count(message) == 1


def test_prefix_cache_is_on_by_default_as_in_vllm(moved: RunningServer) -> None:
    body = {"prompt": "word " * 100, "max_tokens": 1}
    for _ in range(2):
        assert requests.post(f"{moved.url}/v1/completions", json=body, timeout=20).ok
    metrics = requests.get(f"{moved.url}/metrics", timeout=20).text
    hits = next(
        line for line in metrics.splitlines() if line.startswith("vllm:prefix_cache_hits_total")
    )
    assert float(hits.rpartition(" ")[2]) > 0


def test_prefill_returns_the_configured_side_channel_port(
    moved: RunningServer,
) -> None:
    body = {"prompt": "hi", "max_tokens": 1, "kv_transfer_params": {"do_remote_decode": True}}
    params = requests.post(f"{moved.url}/v1/completions", json=body, timeout=20).json()[
        "kv_transfer_params"
    ]
    assert (params["remote_port"], params["tp_size"]) == (5700, 4)


def test_requests_are_served_with_and_without_the_root_path(moved: RunningServer) -> None:
    for path, status in (
        ("/models/one/v1/models", 200),
        ("/v1/models", 200),
        ("/models/one/nothing", 404),
        ("/models/onev1/models", 404),
        ("/models/one/models/one/v1/models", 404),
    ):
        assert requests.get(moved.url + path, timeout=20).status_code == status


def test_api_key_is_required_below_the_root_path() -> None:
    with in_process("--root-path", "/x/", "--api-key", "k") as client:
        for path in ("/v1/models", "/x/v1/models"):
            assert client.get(path).status_code == 401
            assert client.get(path, headers={"Authorization": "Bearer k"}).status_code == 200
        body = {"prompt": "hi", "max_tokens": 1}
        assert client.post("/x/v1/completions", body).status_code == 401


def test_image_accepts_the_arguments_of_the_vllm_image(monkeypatch: pytest.MonkeyPatch) -> None:
    programs, started = {"gunicorn", "sh", "python3"}, list[list[str]]()
    monkeypatch.setattr(image.shutil, "which", lambda name: name if name in programs else None)
    monkeypatch.setattr(os, "execvp", lambda program, words: started.append([program, *words]))
    served = ["serve", "--model", "m"]
    for words, expected in (
        (["--model", "m"], served),
        (["m", "--port", "1"], ["serve", "m", "--port", "1"]),
        (["serve", "m"], ["serve", "m"]),
        (["vllm", "serve", "m"], ["serve", "m"]),
        (["vllm"], ["serve", "--help"]),
        (["python3", "-m", "vllm.entrypoints.openai.api_server", "--model", "m"], served),
        (["fleet", "--pods", "3"], ["fleet", "--pods", "3"]),
        (["gunicorn", "wsgi:app"], None),
        (["sh", "-c", "vllm serve m"], None),
        ([], None),
    ):
        assert image.words_of(words, listed_commands()) == expected
    assert image.SERVE in listed_commands()
    for words in ([], ["sh", "-c", "true"]):  # a program takes the entry point over
        entrypoint.run(words)
    assert started == [["gunicorn", "gunicorn", "wsgi:app"], ["sh", "sh", "-c", "true"]]
