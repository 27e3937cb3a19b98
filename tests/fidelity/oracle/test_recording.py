"""Recording goes on with another server when the engine of a release ends at a request."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest

from fidelity.oracle import answers, recording
from fidelity.oracle.cases import Case
from tests.http_server import Handler, serving

CASES = (
    Case(name="store", area="a", reason="", path="/store", body={}, keep={"STORED": "id"}),
    Case(name="end", area="a", reason="", path="/end", body={}),
    Case(name="read", area="a", reason="", method="GET", path="/stored/${STORED}"),
)


class StoringServer(Handler):
    """Knows only the response that it has stored itself; its engine ends at /end."""

    stored_ids: set[str]
    next_id = 0

    def do_POST(self) -> None:
        self.body()
        if self.path == "/end":
            return self.reply(500, recording.ENGINE_ENDED)
        StoringServer.next_id += 1
        self.stored_ids.add(f"/stored/{self.next_id}")
        return self.reply(200, json.dumps({"id": self.next_id}).encode())

    def do_GET(self) -> None:
        self.reply(200 if self.path in self.stored_ids else 404)


def test_values_that_cases_keep_are_those_of_the_server_that_is_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    @contextmanager
    def start(version: str, configuration: object) -> Iterator[SimpleNamespace]:
        handler = type("NewServer", (StoringServer,), {"stored_ids": set()})
        with serving(handler) as port:
            yield SimpleNamespace(port=port, log=lambda: "")

    monkeypatch.setattr(recording, "running_vllm", start)
    monkeypatch.setattr(recording, "cases_of", lambda *names: list(CASES))
    monkeypatch.setattr(recording, "_record_help", lambda version: None)
    monkeypatch.setattr(recording, "write_model", lambda folder: None)
    monkeypatch.setattr(recording, "write_adapter", lambda folder: None)
    for module in (recording, answers):
        monkeypatch.setattr(module, "STORE", tmp_path)
    assert recording.record("0.32.0", ["base"], is_repeated=True) == 0
    recorded = answers.read_answers("0.32.0", "base")
    assert [answer.answer.status for answer in recorded["read"]] == [200, 200]
    assert "end" not in recorded
