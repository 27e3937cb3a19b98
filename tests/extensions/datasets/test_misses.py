"""A dataset that does not have a prompt says so, or rejects the request."""

import json
import logging
from pathlib import Path
from typing import Any

import pytest

from app import create_app
from app.core.cli import main
from app.core.settings import load

CHAT = "/v1/chat/completions"
HEADER = "X-Understudy-Dataset"
KNOWN = {"messages": [{"role": "user", "content": "Who are you?"}]}
UNKNOWN = {"messages": [{"role": "user", "content": "Who am I?"}]}
FLAGS = ("--journal", "10", "--served-model-name", "m")
REPLY = "A stand-in for a model."


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dataset")
    source = folder / "talks.json"
    turns = [{"from": "human", "value": "Who are you?"}, {"from": "gpt", "value": REPLY}]
    source.write_text(json.dumps([{"conversations": turns}]))
    file = folder / "talks.sqlite3"
    assert main(["dataset", "--input", str(source), "--output", str(file)]) == 0
    return file


def client_of(dataset: Path, *flags: str) -> Any:
    return create_app(load([*FLAGS, "--dataset-path", str(dataset), *flags], {})).test_client()


def journal_of(client: Any) -> list[dict[str, Any]]:
    entries: list[dict[str, Any]] = client.get("/admin/journal").get_json()["entries"]
    return entries


@pytest.mark.parametrize("is_stream", [False, True], ids=["whole", "streamed"])
def test_answer_to_an_unknown_prompt_has_a_header(dataset: Path, is_stream: bool) -> None:
    client = client_of(dataset)
    known = client.post(CHAT, json={**KNOWN, "stream": is_stream})
    assert HEADER not in known.headers
    unknown = client.post(CHAT, json={**UNKNOWN, "stream": is_stream})
    assert unknown.status_code == 200
    assert unknown.headers[HEADER] == "miss"


def test_journal_names_requests_with_unknown_prompts(dataset: Path) -> None:
    client = client_of(dataset)
    client.post(CHAT, json=KNOWN)
    client.post(CHAT, json=UNKNOWN)
    assert [entry["dataset_miss"] for entry in journal_of(client)] == [False, True]


@pytest.mark.parametrize("miss", ["random", "error"])
def test_log_names_the_first_unknown_prompt_only(
    dataset: Path, miss: str, caplog: pytest.LogCaptureFixture
) -> None:
    client = client_of(dataset, "--dataset-miss", miss)
    caplog.clear()  # earlier tests may have set the level of the start's lines
    with caplog.at_level(logging.WARNING, "app.extensions.datasets"):
        for body in (KNOWN, UNKNOWN, UNKNOWN):
            client.post(CHAT, json=body)
    [line] = [record.getMessage() for record in caplog.records]
    assert line.startswith(f"dataset {dataset}: a prompt is not in it, and ")


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (CHAT, UNKNOWN),
        (CHAT, {**UNKNOWN, "stream": True}),
        (CHAT, {**UNKNOWN, "n": 2}),
        ("/v1/completions", {"prompt": ["Who are you?", "Who am I?"]}),
        ("/v1/messages", {**UNKNOWN, "model": "m", "max_tokens": 9}),
        ("/v1/responses", {"input": "Who am I?"}),
    ],
)
def test_unknown_prompt_is_rejected_on_demand(
    dataset: Path, path: str, body: dict[str, Any]
) -> None:
    client = client_of(dataset, "--dataset-miss", "error")
    answer = client.post(path, json=body)
    assert answer.status_code == 400
    assert answer.headers[HEADER] == "miss"
    error = answer.get_json()["error"]
    assert error["message"] == "The dataset does not contain a reply to this prompt."
    [entry] = journal_of(client)
    assert entry["dataset_miss"]
    known = client.post(CHAT, json=KNOWN).get_json()
    assert known["choices"][0]["message"]["content"] == REPLY


def test_model_without_a_dataset_has_no_misses(dataset: Path) -> None:
    names = ("--served-model-name", "a", "b", "--dataset-miss", "error")
    client = create_app(load(["--dataset-path", f"other={dataset}", *names], {})).test_client()
    answer = client.post(CHAT, json=UNKNOWN)
    assert answer.status_code == 200
    assert HEADER not in answer.headers


def test_dataset_miss_without_a_dataset_is_a_conflict() -> None:
    with pytest.raises(Exception, match="dataset-miss.* must be used together with dataset-path"):
        load(["--dataset-miss", "error"], {})
