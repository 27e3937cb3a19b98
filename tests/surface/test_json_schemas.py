"""The JSON Schemas for editors are up to date, and agree with the readers of the files."""

import json
import re
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from app.core.settings import settings_table
from app.extensions.scripts.reader import convert_script
from app.extensions.scripts.rules import ScriptError
from config.settings import Setting
from config.yaml_file import parse_yaml
from scripts import json_schemas

ROOT = Path(__file__).parents[2]
PROJECT = ROOT / "examples" / "project" / "understudy"
CONFIGURATION = jsonschema.Draft202012Validator(json_schemas.configuration_schema())
SCRIPT = jsonschema.Draft202012Validator(json_schemas.script_schema())
YAML_BLOCK = re.compile(r"^```yaml\n(.*?)^```", re.MULTILINE | re.DOTALL)
ROWS = settings_table().rows
WRONG_VALUES: dict[str, object] = {
    "whole number": "many",
    "number": "much",
    "switch": "maybe",
    "text": 7,
    "list": 7,
    "list of objects": 7,
    "duration": "soon",
    "size": "big",
    "JSON": "no JSON",
}


def errors(validator: jsonschema.Draft202012Validator, document: object) -> list[str]:
    """Returns the errors of a document, whose keys become texts as in JSON."""
    as_json = json.loads(json.dumps(document))
    return [f"{list(error.path)}: {error.message}" for error in validator.iter_errors(as_json)]


@pytest.mark.parametrize("path", list(json_schemas.files()), ids=lambda path: path.name)
def test_schema_is_up_to_date_and_valid(path: Path) -> None:
    text = json_schemas.files()[path]
    assert path.read_text("utf-8") == text, "run: python -m scripts.reference_pages"
    jsonschema.Draft202012Validator.check_schema(json.loads(text))


@pytest.mark.parametrize("path", sorted((ROOT / "config/examples").glob("*.yaml")), ids=str)
def test_configuration_examples_validate(path: Path) -> None:
    assert errors(CONFIGURATION, parse_yaml(str(path))) == []


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
        assert errors(SCRIPT, document) == []


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_schema_of_a_setting_accepts_its_default_and_rejects_a_wrong_value(row: Setting) -> None:
    schema = CONFIGURATION.schema["properties"][row.name]
    assert schema["description"] == row.help
    default = row.shown(row.default, masked=False)
    assert errors(CONFIGURATION, {row.name: default, row.name.replace("-", "_"): default}) == []
    wrong = WRONG_VALUES.get(row.kind.name, "none of the choices")
    assert errors(CONFIGURATION, {row.name: wrong})
    with pytest.raises(ValueError):
        row.read(wrong)


def test_unknown_setting_does_not_validate() -> None:
    assert "'prot' was unexpected" in errors(CONFIGURATION, {"prot": 1})[0]
    assert errors(CONFIGURATION, {"port": 0}) and errors(CONFIGURATION, {"port": 70_000})


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
    assert errors(SCRIPT, {"rules": [rule]})
    with pytest.raises(ScriptError):
        convert_script({"rules": [rule]}, "a.yaml")


def test_script_of_new_projects_names_its_schema() -> None:
    first = (PROJECT / "replies.yaml").read_text().splitlines()[0]
    name = first.removeprefix("# yaml-language-server: $schema=")
    assert PROJECT / name in json_schemas.files()
