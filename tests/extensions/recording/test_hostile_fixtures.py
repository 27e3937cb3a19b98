"""Hostile fixtures of other tools: the import reads them, or refuses them with one line.

The command is that of `app.extensions.scripts`.
"""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from app.core.cli import main
from tests.extensions.recording.recordings import chat
from tests.extensions.recording.test_imported_cassettes import ASKED, MESSAGE, RESPONSE
from tests.extensions.recording.test_imported_scripts import CALL, COMMAND
from tests.hostile_files import damaged_files, retyped_documents

CHOICE = {
    "index": 0,
    "message": {"role": "assistant", "content": "Hello", "tool_calls": [CALL]},
    "finish_reason": "tool_calls",
}


def exchange(path: str, sent: object, received: object, method: str = "POST") -> dict[str, Any]:
    return {
        "request": {"method": method, "uri": f"https://x.test/v1/{path}", "parsed_body": sent},
        "response": {"status": {"code": 200}, "parsed_body": received},
    }


QUEUED = {"object": "response", "id": "resp_1", "status": "queued", "output": []}
CASSETTE = {
    "interactions": [
        exchange("chat/completions", chat("Hi"), {"choices": [CHOICE]}),
        exchange("responses", ASKED, QUEUED),
        exchange("responses/resp_1", None, {**RESPONSE, "id": "resp_1"}, method="GET"),
        exchange("messages", chat("Hi"), MESSAGE),
        exchange("embeddings", {"input": ["a"]}, {"data": [{"index": 0, "embedding": [0.5]}]}),
    ]
}
AIMOCK = {
    "fixtures": [
        {
            "match": {"userMessage": "u", "systemMessage": ["s"], "sequenceIndex": 1},
            "response": {"content": "c", "toolCalls": [{"name": "f", "arguments": {"a": 1}}]},
            "streamingProfile": {"ttft": 5, "tps": 10},
            "chaos": {"dropRate": 0.5},
        },
        {"match": {"toolCallId": "c"}, "response": {"error": {"message": "m"}, "status": 429}},
        {"match": {"inputText": "x"}, "response": {"embedding": [1, 2]}},
    ]
}
LITELLM = {
    "model_list": [
        {"model_name": "a", "litellm_params": {"mock_response": "hi", "mock_delay": 0.5}},
        {"model_name": "b", "litellm_params": {"mock_timeout": True, "timeout": 3}},
        {"model_name": "c", "litellm_params": {"mock_tool_calls": [CALL]}},
    ]
}


@pytest.mark.parametrize("document", [CASSETTE, AIMOCK, LITELLM], ids=["vcr", "aimock", "litellm"])
@pytest.mark.parametrize("suffix", [".json", ".yaml"])
def test_damaged_fixtures_are_read_or_refused(
    tmp_path: Path, document: Any, suffix: str, capsys: pytest.CaptureFixture[str]
) -> None:
    contents = damaged_files(json.dumps(document).encode())
    if suffix == ".yaml":
        contents = damaged_files(yaml.safe_dump(document).encode())
    for name, content in contents.items():
        check_import(tmp_path / f"f{suffix}", content, name, capsys)


@pytest.mark.parametrize("document", [CASSETTE, AIMOCK, LITELLM], ids=["vcr", "aimock", "litellm"])
def test_script_of_fixtures_with_other_types_is_valid(
    tmp_path: Path, document: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, changed in retyped_documents(document):
        check_import(tmp_path / "f.json", json.dumps(changed).encode(), name, capsys)


def check_import(path: Path, content: bytes, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Imports a file; its script, if any, has to be valid, and its error one line."""
    script = path.with_name("script.yaml")
    path.write_bytes(content)
    status = main([*COMMAND, str(path), "--out", str(script)])
    *_, last_line = capsys.readouterr().err.splitlines()
    if status == 0:
        assert main(["script", "check", str(script)]) == 0, name
        script.unlink()
    else:
        assert last_line.startswith(f"error: {path}") or "no rule could be imported" in last_line
    capsys.readouterr()
