"""Answers to forms with a sound, against those of a real vLLM with a tiny random model."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest

from tests.application import app_of
from tests.extensions.media.speech.forms import form
from tests.extensions.media.speech.tiny_model import FLAGS, write_model
from tests.extensions.media.test_sounds import wav

FILE = Path(__file__).parent / "recorded" / "vllm-0.32.json"
RECORDED = json.loads(FILE.read_text("utf-8"))
"""Requests in the order in which vLLM got them.

The text of an answer has no meaning, and its length is that of random tokens.
"""


def file_of(case: dict[str, Any]) -> bytes | None:
    """Returns the file of a form."""
    file = case["file"]
    if file is None:
        return None
    if "text" in file:
        return str(file["text"]).encode()
    data = wav(round(file["seconds"] * file["rate"]), file["rate"], channels=file["channels"])
    return data[: file.get("bytes", len(data))]


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    """Our answer by the name of the request."""
    folder = tmp_path_factory.mktemp("models") / "tiny-whisper"
    write_model(folder)
    flags = (*FLAGS, "--task", "transcription", "--vllm-version", "0.32")
    client = app_of("--model", str(folder), *flags).test_client()
    collected: dict[str, Any] = {}
    for case in RECORDED:
        if "json" in case:
            sent = json.dumps(case["json"]) if case["json"] is not None else ""
            body, content_type = sent.encode(), "application/json"
        elif case.get("encoded"):
            body = urlencode([tuple(field) for field in case["fields"]]).encode()
            content_type = "application/x-www-form-urlencoded"
        else:
            body, content_type = form(case["fields"], file_of(case))
        collected[case["name"]] = client.open(
            case["path"],
            method=case.get("method", "POST"),
            data=body,
            content_type=content_type,
            headers={"X-Request-Id": "id1"},
        )
    yield collected


@pytest.mark.parametrize("case", RECORDED, ids=[case["name"] for case in RECORDED])
def test_status_and_body_are_those_of_vllm(case: dict[str, Any], answers: dict[str, Any]) -> None:
    answer = answers[case["name"]]
    text = answer.get_data(as_text=True)
    assert answer.status_code == case["status"], text
    if "chunks" in case:
        check_stream(text, case["chunks"])
        return
    body = json.loads(text)
    assert list(body) == case["keys"]
    for name, value in case["answer"].items():
        assert body[name] == value


def check_stream(text: str, expected: list[dict[str, Any]]) -> None:
    """Compares the ends of clips and the usage: the number of tokens is random."""
    *lines, done, end = text.split("\n\n")
    assert (done, end) == ("data: [DONE]", "")
    chunks = [json.loads(line.removeprefix("data: ")) for line in lines]
    kept: list[dict[str, Any]] = []
    for chunk in chunks:
        chunk["created"] = 0
        if any("finish_reason" not in choice for choice in chunk["choices"]):
            assert [*chunk["choices"][0]] == ["delta"]
            continue
        kept.append(chunk)
    assert len(kept) == len(expected)
    for ours, chunk in zip(kept, expected, strict=True):
        assert list(ours) == list(chunk)
        if "usage" in chunk:
            assert list(ours["usage"]) == list(chunk["usage"])
            assert ours["usage"]["prompt_tokens"] == chunk["usage"]["prompt_tokens"]
            ours["usage"] = chunk["usage"]
        for choice in (*ours["choices"], *chunk["choices"]):
            # A random model ends at once.
            choice["finish_reason"] = "length"
            choice["delta"] = {"content": ""}
        assert ours == chunk
