"""`launch render MODEL`: a server that tokenizes and renders, and another one that uses it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import requests

from app.extensions.render_service.render_only import launch
from config import UsageError
from tests.hostile.raw_client import requests_by_way
from tests.running_server import RunningServer, running_image, running_server

CHAT = {"model": "tiny", "messages": [{"role": "user", "content": "Hello"}]}
PROMPT = {"model": "tiny", "prompt": "Hello"}


@pytest.fixture(scope="module")
def service() -> Iterator[RunningServer]:
    with running_image("vllm", "launch", "render", "tiny") as server:
        yield server


def status(service: RunningServer, path: str, body: object = None) -> int:
    method = "GET" if body is None else "POST"
    return requests.request(method, f"{service.url}{path}", json=body, timeout=20).status_code


def test_render_service_tokenizes_texts_and_renders_prompts(service: RunningServer) -> None:
    for path in ("/health", "/v1/models", "/version", "/metrics"):
        assert status(service, path) == 200
    assert status(service, "/tokenize", PROMPT) == 200
    rendered = requests.post(f"{service.url}/v1/completions/render", json=PROMPT, timeout=20)
    [prompt] = rendered.json()
    assert prompt["token_ids"]
    assert status(service, "/v1/chat/completions/render", CHAT) == 200


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", CHAT),
        ("/v1/completions", PROMPT),
        ("/inference/v1/generate", {"token_ids": [1], "sampling_params": {}}),
        ("/kv_event_sources", None),
        ("/admin/config", None),
    ],
)
def test_render_service_has_no_generation_routes(
    service: RunningServer, path: str, body: object
) -> None:
    method = "GET" if body is None else "POST"
    answer = requests.request(method, f"{service.url}{path}", json=body, timeout=20)
    assert (answer.status_code, answer.json()) == (404, {"detail": "Not Found"})


def test_server_tokenizes_with_the_render_service(service: RunningServer) -> None:
    with running_server("--render-url", service.url, "--model", "tiny") as server:
        answer = requests.post(f"{server.url}/v1/completions", json=PROMPT, timeout=20)
        assert answer.status_code == 200
        tokens = requests.post(f"{service.url}/tokenize", json=PROMPT, timeout=20).json()["count"]
        assert answer.json()["usage"]["prompt_tokens"] == tokens
    assert sum(requests_by_way(service.port).values()) > 0


def test_unknown_launch_component_is_rejected() -> None:
    with pytest.raises(UsageError, match="the launch command supports only the render component"):
        launch(["engine", "tiny"])
