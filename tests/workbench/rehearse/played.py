"""Runs of a client against applications of two versions in this process, and their verdict."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple

from app.core.server.flask.application import Understudy
from app.core.versions.chain import played_version
from app.extensions.journal.ignored_fields import IgnoredFields
from app.extensions.recording.exchange import (
    Exchange,
    RecordedAnswer,
    RecordedChunk,
    RecordedRequest,
    data_of,
)
from tests.application import app_of
from workbench.rehearse.client_code import ClientCode
from workbench.rehearse.items import Differences
from workbench.rehearse.runs import Run
from workbench.rehearse.verdict import Verdict, verdict_of

CHAT = "/v1/chat/completions"
MESSAGES = [{"role": "user", "content": "How do I bake bread?"}]
FLAGS = (
    *("--seed", "1", "--force-dummy-tokenizer", "--reasoning-parser", "qwen3"),
    *("--enable-auto-tool-choice", "--tool-call-parser", "hermes"),
)


class Sent(NamedTuple):
    """A request of the client."""

    path: str
    body: Mapping[str, Any] | None = None
    """None for a GET request."""


def chat(**fields: Any) -> Sent:
    """A request for a chat."""
    return Sent(CHAT, {"messages": MESSAGES, "max_tokens": 60, **fields})


@cache
def application(version: str) -> Understudy:
    """The application of a version, whose random replies depend on the requests alone."""
    return app_of(*FLAGS, "--vllm-version", version)


def run_of(version: str, requests: Sequence[Sent], status: int = 0, output: str = "") -> Run:
    """The run of a client that sends requests, whatever it is answered."""
    app = application(version)
    fields = IgnoredFields(lambda: app.routes, played_version(version))
    exchanges = []
    ignored: dict[str, frozenset[str]] = {}
    for sent in requests:
        body = b"" if sent.body is None else json.dumps(sent.body).encode()
        method = "GET" if sent.body is None else "POST"
        answer = app.test_client().open(
            sent.path, method=method, data=body or None, content_type="application/json"
        )
        ignored[sent.path] = ignored.get(sent.path, frozenset()).union(fields.find(sent.path, body))
        recorded_answer = RecordedAnswer(
            status=answer.status_code,
            headers=list(answer.headers.items()),
            head_s=0.0,
            chunks=[RecordedChunk(0.0, data_of(answer.get_data()))],
            end_s=0.0,
        )
        request = RecordedRequest(method, sent.path, body=data_of(body))
        exchanges.append(Exchange(0.0, request, recorded_answer))
    return Run(
        version=played_version(version).release,
        exchanges=exchanges,
        ignored=ignored,
        status=status,
        output=output,
    )


def rehearsed(old: str, new: str, code: str, *requests: Sent, status: int = 0) -> Verdict:
    """The verdict about a client with this code; `status` is that of the run after the upgrade."""
    texts = {"client.py": code} if code else {}
    return verdict_of(
        run_of(old, requests),
        run_of(new, requests, status),
        ClientCode(texts),
        of_files=Differences(),
    )
