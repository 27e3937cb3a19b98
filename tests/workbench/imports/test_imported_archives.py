"""HTTP Archives, recordings of nock, and mappings of WireMock become scripts.

The command is that of `app.extensions.scripts`.
"""

import gzip
import json
from base64 import b64encode
from pathlib import Path
from typing import Any

import pytest

from app.core.cli import main
from tests.extensions.recording.recordings import chat
from tests.hostile_files import retyped_documents
from tests.workbench.imports.test_imported_scripts import COMMAND, imported, text

HOST = "https://api.openai.com"
PATH = "/v1/chat/completions"
CHOICE = {"index": 0, "finish_reason": "stop", "message": {"content": "Recorded."}}
ANSWER = {"choices": [CHOICE]}
ENTRY: dict[str, Any] = {
    "request": {
        "method": "POST",
        "url": f"{HOST}{PATH}",
        "postData": {"mimeType": "application/json", "text": json.dumps(chat("Hi"))},
    },
    "response": {
        "status": 200,
        "headers": [{"name": "content-type", "value": "application/json"}],
        "content": {"text": json.dumps(ANSWER)},
    },
}
ENCODED = {
    **ENTRY,
    "response": {
        "status": 200,
        "headers": [],
        "content": {
            "text": b64encode(json.dumps(ANSWER).encode()).decode(),
            "encoding": "base64",
        },
    },
}
RECORDING: dict[str, Any] = {
    "scope": f"{HOST}:443",
    "method": "POST",
    "path": PATH,
    "body": chat("Hi"),
    "status": 200,
    "response": ANSWER,
    "rawHeaders": ["Content-Type", "application/json"],
}
COMPRESSED = {
    **RECORDING,
    "response": [gzip.compress(json.dumps(ANSWER).encode()).hex()],
    "rawHeaders": ["Content-Encoding", "gzip"],
}
STUB: dict[str, Any] = {
    "request": {
        "url": PATH,
        "method": "POST",
        "bodyPatterns": [{"equalToJson": json.dumps(chat("Hi")), "ignoreArrayOrder": True}],
    },
    "response": {"status": 200, "body": json.dumps(ANSWER)},
}
DOCUMENTS: dict[str, Any] = {
    "har": {"log": {"version": "1.2", "entries": [ENTRY]}},
    "har-base64": {"log": {"entries": [ENCODED]}},
    "nock": [RECORDING],
    "nock-gzip": [COMPRESSED],
    "wiremock": {"mappings": [STUB]},
    "wiremock-file": {**STUB, "response": {"jsonBody": ANSWER}},
}
GO_VCR = {
    "version": 2,
    "interactions": [
        {
            "id": 0,
            "request": {"body": json.dumps(chat("Hi")), "url": f"{HOST}{PATH}", "method": "POST"},
            "response": {"body": json.dumps(ANSWER), "status": "200 OK", "code": 200},
        }
    ],
}


@pytest.mark.parametrize("document", [*DOCUMENTS.values(), GO_VCR], ids=[*DOCUMENTS, "go-vcr"])
@pytest.mark.parametrize("suffix", [".json", ".har", ".yaml"])
def test_recorded_chat_is_answered_again(
    tmp_path: Path, document: Any, suffix: str, capsys: pytest.CaptureFixture[str]
) -> None:
    name = f"f{suffix}"
    if suffix == ".har":
        (tmp_path / name).write_text(json.dumps(document))
        assert main([*COMMAND, str(tmp_path / name)]) == 0
        assert "text: Recorded." in capsys.readouterr().out
    else:
        client = imported(tmp_path, document, name)
        assert text(client, "Hi") == "Recorded."
        assert capsys.readouterr().err.splitlines()[-1] == "imported rules: 1; not carried over: 0"


LOST = [
    (
        {"mappings": [STUB, {"request": {"url": PATH}, "response": {}}]},
        "mapping 2: left out: its request has no bodyPatterns with equalToJson or equalTo",
    ),
    (
        {"mappings": [STUB, {**STUB, "response": {"bodyFileName": "a.json"}}]},
        "mapping 2: left out: its reply is in the file that bodyFileName names",
    ),
    ({"log": {"entries": [ENTRY, 5]}}, "entry 2: left out: an item must be a mapping, got int"),
    ([RECORDING, {**RECORDING, "responseIsBinary": True}], "recording 2: left out: not an HTTP"),
]


@pytest.mark.parametrize(("document", "line"), LOST)
def test_item_that_cannot_be_imported_is_listed(
    tmp_path: Path, document: Any, line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    imported(tmp_path, document, "f.json")
    first, total = capsys.readouterr().err.splitlines()
    assert line in first
    assert total == "imported rules: 1; not carried over: 1"


@pytest.mark.parametrize("name", ["har", "nock", "wiremock"])
def test_values_of_other_types_are_read_or_refused_with_one_line(
    tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "f.json"
    for place, document in retyped_documents(DOCUMENTS[name]):
        path.write_text(json.dumps(document))
        assert main([*COMMAND, str(path), "--format", name]) in (0, 1), place
        assert "Traceback" not in capsys.readouterr().err, place
