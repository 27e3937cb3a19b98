"""Structural tags:

what is in the tags keeps to its format, and what is no structural tag is refused.
"""

import json
import re
from typing import Any

import jsonschema
import pytest

from app.extensions.forms.grammar.compiler import compile_structural_tag
from app.extensions.forms.schema import SchemaError, Schemas
from tests.extensions.forms.grammar.deriving import SPOKEN, tag, text, texts
from tests.extensions.forms.test_calls import WEATHER

LEGACY = {
    "structures": [
        {"begin": "<function=weather>", "schema": WEATHER, "end": "</function>"},
        {"begin": "<function=time>", "schema": {"const": "now"}, "end": "</function>"},
    ],
    "triggers": ["<function="],
}
ROUND = [{"begin": "(", "content": {"type": "regex", "pattern": "a"}, "end": ")"}]
ONCE = {"at_least_one": True, "stop_after_first": True}
Z = {"type": "const_string", "value": "z"}
TOKENS = {
    "type": "tag", "begin": {"type": "token", "token": "<s>"}, "content": {"type": "regex", "pattern": "1"},
    "end": {"type": "token", "token": "</s>"},
}  # fmt: skip
TAG = {"begin": "<t>", "content": {"type": "json_schema", "json_schema": WEATHER}, "end": "</t>"}


def test_legacy_structural_tag_generates_schema_values_inside_tags() -> None:
    seen = set()
    for derived in texts(tag(LEGACY)):
        calls = re.findall(r"<function=(\w+)>(.*?)</function>", derived)
        assert calls
        for name, inside in calls:
            seen.add(name)
            jsonschema.validate(
                json.loads(inside), WEATHER if name == "weather" else {"const": "now"}
            )
        outside = re.sub(r"<function=\w+>.*?</function>", "", derived)
        assert set(outside) <= set(SPOKEN)
    assert seen == {"weather", "time"}


@pytest.mark.parametrize(
    ("form", "pattern"),
    [
        ({"type": "const_string", "value": "a.b"}, r"a\.b"),
        ({"type": "regex", "pattern": "[a-c]{3}"}, "[a-c]{3}"),
        ({"type": "grammar", "grammar": 'root ::= "x" | "x" root'}, "x+"),
        ({"type": "grammar", "grammar": 'start: "y"+'}, "y+"),
        ({"type": "any_text"}, f"[{SPOKEN}]*"),
        (
            {"type": "tag", "begin": "<", "content": {"type": "any_text"}, "end": [">", "!"]},
            "<[^>!]*[>!]",
        ),
        (TOKENS, "<s>1</s>"),
        ({"type": "repeat", "min": 2, "max": 3, "content": Z}, "zz|zzz"),
        ({"type": "optional", "content": Z}, "z?"),
        ({"type": "plus", "content": Z}, "z+"),
        ({"type": "tags_with_separator", "separator": ",", "tags": ROUND}, r"\(a\)(,\(a\))*"),
        ({"type": "triggered_tags", "triggers": ["("], "tags": ROUND} | ONCE, r"\(a\)"),
    ],
)
def test_each_structural_tag_format_generates_matching_texts(
    form: dict[str, Any], pattern: str
) -> None:
    for derived in texts(tag({"type": "structural_tag", "format": form})):
        assert re.fullmatch(pattern, derived, re.DOTALL), derived


def test_triggered_tags_go_on_unless_they_stop_after_the_first() -> None:
    form = {"type": "triggered_tags", "triggers": ["("], "tags": ROUND}
    counts = [derived.count("(a)") for derived in texts(tag({"format": form}))]
    assert max(counts) > 1


def test_parts_of_a_structural_tag_are_generated_in_order() -> None:
    pair = {"type": "grammar", "grammar": 'root ::= item "," item\nitem ::= "i"'}
    other = {"type": "grammar", "grammar": 'root ::= item\nitem ::= "j"'}
    choice = {"type": "or", "elements": [other, {"type": "const_string", "value": "k"}]}
    form = {"type": "sequence", "elements": [pair, choice]}
    assert {text(tag({"format": form}), 5, seed) for seed in range(30)} == {"i,ij", "i,ik"}


@pytest.mark.parametrize(
    ("value", "flaw"),
    [
        ([], "Expected `object`"), ({}, "the structural tag has no format"),
        ({"format": {}}, "required field `type`"),
        ({"format": {"type": ["tag"]}}, "$.format.type"),
        ({"format": {"type": "poem"}}, "Invalid value 'poem'"),
        ({"format": {"type": "const_string"}}, "required field `value`"),
        ({"format": {"type": "json_schema", "json_schema": {"type": "x"}}}, "type"),
        ({"format": {"type": "json_schema", "json_schema": {}, "style": "qwen_xml"}}, "$.format.style"),
        ({"format": {"type": "grammar", "grammar": "root ::= ("}}, "expected )"),
        ({"format": {"type": "sequence", "elements": []}}, "length >= 1"),
        ({"format": TAG | {"type": "tag", "end": []}}, "length >= 1"),
        ({"structures": [], "triggers": ["<"]}, "length >= 1"),
        ({"structures": LEGACY["structures"], "triggers": ["<other"]}, "start with a trigger"),
        ({"structures": LEGACY["structures"], "triggers": []}, "does not start with a trigger"),
        ({"structures": [{"begin": "<"}], "triggers": ["<"]}, "required field `end`"),
        ({"structures": [{"begin": "<", "end": ">"}], "triggers": ["<"]}, "field `schema`"),
        ({"format": {"type": "repeat", "min": -1, "max": 2, "content": Z}}, ">= 0"),
    ],
)  # fmt: skip
def test_invalid_structural_tag_is_rejected(value: Any, flaw: str) -> None:
    with pytest.raises(SchemaError, match=re.escape(flaw)):
        tag(value)


def test_malformed_deeply_nested_or_oversized_structural_tag_is_rejected() -> None:
    deep: dict[str, Any] = {"type": "any_text"}
    for _ in range(200):
        deep = {"type": "optional", "content": deep}
    for source in (
        "{",
        "[" * 5000,
        json.dumps({"format": deep}),
        '{"format": "' + "a" * 60_000 + '"}',
    ):
        with pytest.raises(SchemaError):
            compile_structural_tag(source, Schemas())
