"""A server with every route that is not there by default, and a client for it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest
import requests

from tests.running_server import RunningServer, running_server

MODEL = "base"


@dataclass(frozen=True, slots=True)
class Client:
    """Asks `server`; every call has a time limit."""

    server: RunningServer
    session: requests.Session

    def get(self, path: str, **options: Any) -> requests.Response:
        return self.session.get(self.server.url + path, timeout=20, **options)

    def post(self, path: str, body: Any = None, **options: Any) -> requests.Response:
        return self.session.post(self.server.url + path, json=body, timeout=20, **options)

    def complete(self, **fields: Any) -> Any:
        """A completion of exactly `max_tokens` tokens (1 when not given), which must succeed."""
        answer = self.post(
            "/v1/completions", {"prompt": "Hello there", "max_tokens": 1, "ignore_eos": True, **fields}
        )
        assert answer.status_code == 200, answer.text
        return answer.json()

    def chat(self, text: str = "Hello there", **fields: Any) -> Any:
        """A chat, which must succeed."""
        answer = self.post(
            "/v1/chat/completions", {"messages": [{"role": "user", "content": text}], **fields}
        )
        assert answer.status_code == 200, answer.text
        return answer.json()

    def metric(self, name: str, **labels: str) -> float:
        """Sum of the samples of `name` with `labels`."""
        wanted = [f'{key}="{value}"' for key, value in labels.items()]
        lines = [line for line in self.get("/metrics").text.splitlines() if line.startswith(name)]
        return sum(float(line.rpartition(" ")[2]) for line in lines if all(label in line for label in wanted))


@contextmanager
def served(*flags: str, **env: str) -> Iterator[Client]:
    """A client of a server with `flags`, as long as the block lasts."""
    with (
        running_server("--model", MODEL, "--force-dummy-tokenizer", *flags, env=env) as server,
        requests.Session() as session,
    ):
        yield Client(server, session)


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    """Development routes, scale-out, adapters that come and go, prompt details."""
    with served(
        *("--server-dev-mode", "--enable-scale-out", "--profiling", "--allow-runtime-lora-updating"),
        *("--enable-prompt-tokens-details", "--lora-modules", "first=/adapters/first"),
        *("--max-loras", "2"),
    ) as client:
        yield client
