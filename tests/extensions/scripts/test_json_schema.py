"""The JSON Schema of scripts accepts all examples, and no rule that the server rejects."""

import json
import re
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from app.extensions.project_files import json_schemas
from app.extensions.scripts.reader import convert_script
from app.extensions.scripts.rules import ScriptError
from config.yaml_file import parse_yaml

ROOT = Path(__file__).parents[3]
PROJECT = ROOT / "examples" / "project" / "understudy"
SCRIPT = jsonschema.Draft202012Validator(json_schemas.script_schema())
YAML_BLOCK = re.compile(r"^```yaml\n(.*?)^```", re.MULTILINE | re.DOTALL)


def errors(document: object) -> list[str]:
    """Returns the errors of a document, whose keys become texts as in JSON."""
    as_json = json.loads(json.dumps(document))
    return [f"{list(error.path)}: {error.message}" for error in SCRIPT.iter_errors(as_json)]


def documented_scripts() -> list[Any]:
    """Returns the scripts on all pages of the documentation."""
    blocks: list[Any] = []
    for page in sorted((ROOT / "docs").glob("*.md")):
        for text in YAML_BLOCK.findall(page.read_text("utf-8")):
            document = yaml.safe_load(text)
            if isinstance(document, dict) and "then" in text and "rules" in document:
                blocks.append(document)
    return blocks


def test_script_examples_validate() -> None:
    paths = [*(ROOT / "examples/scripts").glob("*.yaml"), PROJECT / "replies.yaml"]
    documents = [parse_yaml(str(path)) for path in paths] + documented_scripts()
    assert len(documents) > 5
    for document in documents:
        assert errors(document) == []


@pytest.mark.parametrize(
    "rule",
    [
        {"then": "answer"},
        {"then": {"txt": "a"}},
        {"then": {"text": 7}},
        {"then": {"text": "a"}, "times": 0},
        {"then": {"text": "a"}, "name": "n" * 65},
        {"then": {"text": "a"}, "when": {"mesage": "hi"}},
        {"then": {"text": "a"}, "when": {"chance": 2}},
        {"then": {"text": "a"}, "when": {"api": "chats"}},
        {"then": {"text": "a"}, "when": {"tools": 7}},
        {"then": {"tool_calls": {"name": "f"}}},
    ],
)
def test_wrong_rule_validates_neither_in_the_schema_nor_at_the_server(rule: Any) -> None:
    assert errors({"rules": [rule]})
    with pytest.raises(ScriptError):
        convert_script({"rules": [rule]}, "a.yaml")


def test_script_of_new_projects_names_its_schema() -> None:
    first = (PROJECT / "replies.yaml").read_text().splitlines()[0]
    name = first.removeprefix("# yaml-language-server: $schema=")
    assert name in json_schemas.schema_files()
