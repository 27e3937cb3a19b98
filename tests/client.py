"""A client of servers, in this process or their own, with every route that is off by default."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import requests
from requests.adapters import BaseAdapter

from app.core.server.flask.application import Understudy
from scripts.surface import is_flag
from tests.application import app_of
from tests.running_server import SEED, RunningServer, running_server

MODEL = "base"
EVERY_ROUTE = (
    *filter(is_flag, ("--server-dev-mode", "--enable-scale-out", "--profiling")),
    "--allow-runtime-lora-updating",
    *(
        "--enable-prompt-tokens-details",
        "--lora-modules",
        "first=/adapters/first",
        "--max-loras",
        "2",
    ),
)
IN_PROCESS = "http://in.process"


@dataclass(frozen=True, slots=True)
class Client:
    """Asks a server; every call has a time limit."""

    session: requests.Session
    url: str
    running: RunningServer | None = None
    in_process_app: Understudy | None = None

    @property
    def server(self) -> RunningServer:
        assert self.running is not None, "it is in this process"
        return self.running

    @property
    def app(self) -> Understudy:
        assert self.in_process_app is not None, "it is in another process"
        return self.in_process_app

    def get(self, path: str, **options: Any) -> requests.Response:
        return self.session.get(self.url + path, timeout=20, **options)

    def post(self, path: str, body: Any = None, **options: Any) -> requests.Response:
        return self.session.post(self.url + path, json=body, timeout=20, **options)

    def delete(self, path: str) -> requests.Response:
        return self.session.delete(self.url + path, timeout=20)

    def complete(self, **fields: Any) -> Any:
        """A completion of exactly `max_tokens` tokens (1 when not given), which must succeed."""
        answer = self.post(
            "/v1/completions",
            {"prompt": "Hello there", "max_tokens": 1, "ignore_eos": True, **fields},
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
        return sum(
            float(line.rpartition(" ")[2])
            for line in lines
            if all(label in line for label in wanted)
        )


def events(answer: requests.Response) -> list[dict[str, Any]]:
    lines = (
        line.removeprefix("data: ")
        for line in answer.text.splitlines()
        if line.startswith("data: {")
    )
    return [json.loads(line) for line in lines]


class Adapter(BaseAdapter):
    """Asks `app` in this process, for `requests`."""

    def __init__(self, app: Understudy) -> None:
        super().__init__()
        self.client = app.test_client()

    def send(self, request: requests.PreparedRequest, *_: Any, **__: Any) -> requests.Response:
        answer_of_app = self.client.open(
            request.path_url,
            method=request.method,
            headers=[*request.headers.items()],
            data=request.body,
        )
        answer = requests.Response()
        answer.status_code = answer_of_app.status_code
        answer._content = answer_of_app.data
        answer.encoding = "utf-8"
        answer.headers.update(answer_of_app.headers.items())
        return answer

    def close(self) -> None:
        """Nothing is open."""


@contextmanager
def in_process(*flags: str) -> Iterator[Client]:
    """A client of an application with `flags`."""
    app = app_of("--model", MODEL, "--force-dummy-tokenizer", "--seed", SEED, *flags)
    with requests.Session() as session:
        session.mount(IN_PROCESS, Adapter(app))
        yield Client(session, IN_PROCESS, in_process_app=app)


@contextmanager
def served(*flags: str, **env: str) -> Iterator[Client]:
    """A client of a server with `flags`, as long as the block lasts."""
    with (
        running_server("--model", MODEL, "--force-dummy-tokenizer", *flags, env=env) as server,
        requests.Session() as session,
    ):
        yield Client(session, server.url, server)
