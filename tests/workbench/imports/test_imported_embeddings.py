"""Embeddings of a cassette.

The command is that of `app.extensions.scripts`.
"""

import json
from base64 import b64encode
from pathlib import Path
from struct import pack

from app import create_app
from app.core.cli import main
from app.core.settings import load
from tests.workbench.imports.test_imported_scripts import COMMAND, interaction
from tests.workbench.imports.test_imported_scripts import written as fixtures_written


def test_embeddings_of_a_cassette_become_a_rule_for_each_input(tmp_path: Path) -> None:
    packed = b64encode(pack("<2f", 0.5, -0.25)).decode()
    received = {"data": [{"index": 1, "embedding": packed}, {"index": 0, "embedding": [1, 2]}]}
    sent = {"model": "m", "input": ["a", "b"]}
    document = {
        "interactions": [interaction("https://x/v1/embeddings", sent, json.dumps(received))]
    }
    script = tmp_path / "script.yaml"
    file = fixtures_written(tmp_path / "f.yaml", document)
    assert main([*COMMAND, file, "--out", str(script)]) == 0
    flags = ["--force-dummy-tokenizer", "--served-model-name", "m", "--script", str(script)]
    client = create_app(load([*flags, "--task=embed"], {})).test_client()
    answer = client.post("/v1/embeddings", json={"model": "m", "input": ["b", "a"]}).get_json()
    assert [item["embedding"] for item in answer["data"]] == [[0.5, -0.25], [1.0, 2.0]]
