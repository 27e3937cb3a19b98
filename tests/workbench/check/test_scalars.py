"""The places of characters in YAML and JSON strings of all styles, also of strings in strings."""

from __future__ import annotations

import json

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from workbench.check.documents import Value, read_documents
from workbench.check.json_nodes import read_json
from workbench.check.text import Text

ALPHABET = "ab: '\"\\\n#é\t😀"
STYLES = (None, "'", '"', "|")
WORDS = st.lists(st.sampled_from(["vllm", "--x", "1"]), min_size=1, max_size=12)


def wrongly_placed(value: Value, written: str) -> str:
    """Returns the characters whose places have another character; blanks and escapes apart."""
    lines = written.splitlines()
    content = value.content
    wrong = ""
    for offset, character in enumerate(content.text):
        place = content.place(offset)
        found = lines[place.line - 1][place.column - 1 : place.column]
        if not character.isspace() and found not in (character, "\\"):
            wrong += character
    return wrong


@pytest.mark.parametrize("style", STYLES)
@settings(deadline=None, max_examples=60)
@given(st.text(ALPHABET, min_size=1, max_size=60))
def test_character_of_a_yaml_string_has_its_place(style: str | None, text: str) -> None:
    written = yaml.dump({"k": [text]}, default_style=style, width=20, allow_unicode=True)
    [document] = read_documents(Text("a.yaml", written))
    [value] = document["k"]
    assert value.text == text
    assert wrongly_placed(value, written) == ""


@settings(deadline=None, max_examples=60)
@given(WORDS)
def test_character_of_a_folded_block_has_its_place(words: list[str]) -> None:
    written = yaml.dump({"k": [" ".join(words)]}, default_style=">", width=12)
    [document] = read_documents(Text("a.yaml", written))
    [value] = document["k"]
    assert wrongly_placed(value, written) == ""


@settings(deadline=None, max_examples=60)
@given(st.text(ALPHABET, min_size=1, max_size=60), st.booleans())
def test_character_of_a_json_string_has_its_place(text: str, is_ascii: bool) -> None:
    written = json.dumps({"k": [text]}, ensure_ascii=is_ascii, indent=1)
    [value] = read_json(Text("a.json", written))["k"]
    assert value.text == text
    assert wrongly_placed(value, written) == ""


@pytest.mark.parametrize("style", ["|", '"', "'"])
@settings(deadline=None, max_examples=40)
@given(st.text("ab :\n#", min_size=1, max_size=40))
def test_string_in_a_document_in_a_string_has_its_place(style: str, text: str) -> None:
    inner = json.dumps({"k": text}, indent=2)
    written = yaml.dump({"a.json": inner}, default_style=style, width=1000)
    [document] = read_documents(Text("a.yaml", written))
    value = read_json(document["a.json"].content)["k"]
    assert value.text == text
    assert wrongly_placed(value, written) == ""
