"""The JSON Schemas for editors are up to date, and agree with the reader of the settings."""

import json
from pathlib import Path

import jsonschema
import pytest

from app.core.settings import settings_table
from app.extensions.project_files import json_schemas
from config.settings import Setting
from config.yaml_file import parse_yaml

ROOT = Path(__file__).parents[2]
CONFIGURATION = jsonschema.Draft202012Validator(json_schemas.configuration_schema())
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


@pytest.mark.parametrize("name", list(json_schemas.schema_files()))
def test_schema_is_valid(name: str) -> None:
    text = json_schemas.schema_files()[name]
    jsonschema.Draft202012Validator.check_schema(json.loads(text))


@pytest.mark.parametrize("path", sorted((ROOT / "config/examples").glob("*.yaml")), ids=str)
def test_configuration_examples_validate(path: Path) -> None:
    assert errors(CONFIGURATION, parse_yaml(str(path))) == []


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
