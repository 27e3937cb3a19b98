"""Rerankings, embeddings of Cohere and lists of prompts become rules; other servers are ignored.

The command is that of `app.extensions.scripts`.
"""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from app.core.cli import main
from tests.extensions.recording.recordings import chat
from tests.workbench.imports.test_import_losses import HELLO, parsed
from tests.workbench.imports.test_imported_scripts import COMMAND, fixture, imported, written

COHERE = "https://api.cohere.com"
OPENAI = "https://api.openai.com/v1"


def converted(folder: Path, *interactions: object) -> list[Any]:
    """The rules of a cassette."""
    script = folder / "script.yaml"
    document = {"interactions": interactions}
    file = written(folder / "cassette.yaml", document)
    assert main([*COMMAND, file, "--out", str(script)]) == 0
    rules: list[Any] = yaml.safe_load(script.read_text())["rules"]
    return rules


@pytest.mark.parametrize("path", ["/v1/rerank", "/v2/rerank"])
@pytest.mark.parametrize("key", ["results", "data"])
def test_reranking_keeps_the_order_of_its_documents(tmp_path: Path, path: str, key: str) -> None:
    sent = {"model": "m", "query": "q", "documents": ["a", {"text": "b"}, "c"], "top_n": 2}
    results = [{"index": 2, "relevance_score": 0.9}, {"index": 0, "relevance_score": 0.25}]
    rules = converted(tmp_path, parsed(COHERE + path, sent, {key: results}))
    assert [rule["then"] for rule in rules] == [{"score": 0.25}, {"score": 0.0}, {"score": 0.9}]
    assert rules[1]["when"] == {
        "api": "rerank",
        "model": "m",
        "message": [{"role": "user", "exact": "q"}, {"role": "document", "exact": "b"}],
    }


def test_embeddings_of_cohere_become_rules(tmp_path: Path) -> None:
    sent = {"model": "m", "texts": ["a", "b"], "input_type": "search_query"}
    vectors = {"float": [[1.0, 0.5], [0.25, 0.0]]}
    rules = converted(tmp_path, parsed(f"{COHERE}/v2/embed", sent, {"embeddings": vectors}))
    assert [rule["then"]["embedding"] for rule in rules] == [[1.0, 0.5], [0.25, 0.0]]
    assert [rule["when"]["message"]["exact"] for rule in rules] == ["a", "b"]


@pytest.mark.parametrize(
    ("sent", "received", "reason"),
    [
        ({"query": "q", "documents": ["a"]}, {"results": []}, "1 documents have the scores of []"),
        (
            {"query": "q", "documents": ["a"]},
            {"results": [{"index": 1, "relevance_score": 1}]},
            "1 documents have the scores of [1]",
        ),
        ({"documents": ["a"]}, {"results": []}, "the query is not a text"),
        (
            {"query": "q", "documents": [{"image": "x"}]},
            {"results": []},
            "the inputs are not texts",
        ),
    ],
    ids=["none", "another", "query", "image"],
)
def test_reranking_without_its_numbers_is_listed(
    tmp_path: Path, sent: Any, received: Any, reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    document = {"interactions": [parsed(f"{COHERE}/v2/rerank", sent, received)]}
    assert main([*COMMAND, written(tmp_path / "f.yaml", document)]) == 1
    assert reason in capsys.readouterr().err.splitlines()[0]


def test_completion_with_a_list_of_one_prompt_is_imported(tmp_path: Path) -> None:
    sent = {"model": "m", "prompt": ["Once"], "max_tokens": 4}
    received = {"choices": [{"index": 0, "finish_reason": "stop", "text": " upon"}]}
    client = imported(tmp_path, {"interactions": [parsed(f"{OPENAI}/completions", sent, received)]})
    for prompt in ("Once", ["Once"]):
        answer = client.post("/v1/completions", json={"model": "m", "prompt": prompt})
        assert answer.get_json()["choices"][0]["text"] == " upon"


def test_telemetry_is_ignored_and_models_of_other_apis_are_losses(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    gemini = "https://generativelanguage.googleapis.com/v1beta/models/g:generateContent"
    converted(
        tmp_path,
        parsed("https://telemetry.example.org/v1/traces", {"spans": []}, {}),
        parsed("https://tool.example.org/search", {"query": "q"}, {}),
        parsed(gemini, {"contents": []}, {}),
        parsed("https://other.example.org/v1/chat", {"messages": []}, {}),
        parsed("https://api.openai.com/v1/messages/count_tokens?beta=true", {}, {}),
        parsed(f"{OPENAI}/files", {}, {}),
        parsed(f"{OPENAI}/chat/completions", chat("Hi"), {"choices": [HELLO]}),
    )
    *lines, total = capsys.readouterr().err.splitlines()
    ignored = [line for line in lines if ": ignored: " in line]
    losses = [line for line in lines if ": left out: " in line]
    assert [line.partition("yaml: ")[2].partition(":")[0] for line in ignored] == [
        "interaction 1",
        "interaction 2",
    ]
    assert [line.partition("yaml: ")[2].partition(":")[0] for line in losses] == [
        "interaction 3",
        "interaction 4",
        "interaction 5",
        "interaction 6",
    ]
    assert "left out: the response has no count: " in losses[2]
    assert losses[3].endswith("(a script cannot answer it)")
    assert total == "imported rules: 1; not carried over: 4; ignored: 2"


def test_interaction_without_an_http_request_names_its_parts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    document = {"interactions": [{"request_sample": {}, "response_sample": {}}]}
    assert main([*COMMAND, written(tmp_path / "f.yaml", document)]) == 1
    line = capsys.readouterr().err.splitlines()[0]
    assert line.endswith("not an HTTP exchange: it has only request_sample, response_sample")


def test_comments_of_aimock_fixtures_are_not_losses(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    document = {"_comment": "c", "fixtures": [fixture({}, {"content": "A"}, _note="n", other=1)]}
    file = tmp_path / "f.json"
    file.write_text(json.dumps(document))
    assert main([*COMMAND, str(file)]) == 0
    assert capsys.readouterr().err.splitlines() == [
        f"{file}: fixture 1: other left out",
        "imported rules: 1; not carried over: 1",
    ]
