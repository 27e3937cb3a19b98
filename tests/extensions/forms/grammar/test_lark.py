"""Lark's EBNF: what is read, what is derived, and what is refused."""

import json
import re
from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.extensions.forms.grammar.lark import COMMON_TERMINALS
from app.extensions.forms.schema import SchemaError
from tests.extensions.forms.grammar.deriving import grammar, text, texts

JSON = """
// as Lark's tutorial has it
?start: value
?value: dict | list | string | SIGNED_NUMBER -> number
      | "true" | "false" | "null"   # words
list : "[" [value ("," value)*] "]"
dict : "{" [pair ("," pair)*] "}"
pair : string ":" value
string : ESCAPED_STRING
%import common.ESCAPED_STRING
%import common.INT -> SIGNED_NUMBER  // a zero in front is not valid JSON
%import common (WS, NUMBER)
%ignore WS
"""


def test_json_grammar_generates_valid_json_apart_from_leading_zeros() -> None:
    for derived in texts(grammar(JSON), seeds=60):
        json.loads(re.sub(r"\b0+(?=\d)", "", derived))


@pytest.mark.parametrize(
    ("source", "pattern"),
    [
        ('start: "a" B?\nB: "b".."d"', "a[b-d]?"),
        ('start: "Hello"i /[0-9]{2}/', r"hello\d\d"),
        ('start: ("x" | "y")~2..3', "[xy]{2,3}"),
        ('start: ["a"] "b"~3 -> named\n     | "c" -> other', "a?bbb|c"),
        ("start: /A+/i", "(?i:a+)"),
        ('start.2: _inner\n!_inner: "x"+ // more', "x+"),
        ("start: |", ""),
        (r'start: "\n\"\\ \u00e9"', '\n"\\\\ \u00e9'),
        ('start:\n    "a"\n    "b"\nNAME: "c"', "ab"),
    ],
)
def test_text_generated_from_lark_matches_the_equivalent_regex(source: str, pattern: str) -> None:
    for derived in texts(grammar(source)):
        assert re.fullmatch(pattern, derived, re.DOTALL), derived


def test_imported_common_terminals_of_lark_generate_matching_texts() -> None:
    for name in COMMON_TERMINALS:
        read = grammar(f"start: THIS\n%import common.{name} -> THIS")
        assert all(
            re.fullmatch(COMMON_TERMINALS[name], derived) for derived in texts(read, seeds=5)
        )


@pytest.mark.parametrize(
    ("source", "flaw"),
    [
        ("root := nope nope", "line 1"), ("", "the grammar has no rule 'start'"),
        ("start: foo", "the grammar has no rule 'foo'"),
        ("start: (((", "expected )"), ("start: /(/", "is invalid"), ('start: "b".."a"', "character range"),
        ('start: "a"~5..2', "minimum repeat count"), (r'start: "\u12"', "invalid escape"),
        ('start: "a"\nstart: "b"', "is defined twice"), ("start: A\n%import .files.A", "can be imported"),
        ("start: A\n%import common.NOPE -> A", "does not contain NOPE"),
        ("start: A\n%declare A", "can be imported"),
        ("start: a{x}\na{y}: y", "unexpected character"), ('start: A\nA: A "x"', "never terminates"),
        ("start: " + "/a/ " * 400, "there are too many regular expressions"),
    ],
)  # fmt: skip
def test_invalid_grammar_is_rejected(source: str, flaw: str) -> None:
    with pytest.raises(SchemaError, match=re.escape(flaw)):
        grammar(source)


def test_exponentially_growing_terminals_are_processed_quickly() -> None:
    doubled = "\n".join(f"T{k}: T{k + 1} T{k + 1}" for k in range(400))
    with pytest.raises(SchemaError, match="too long"):
        grammar(f'start: T0\n{doubled}\nT400: "x"')


@given(st.text(alphabet='abAB"[]()|*+?~:/. \\\n#%->19', max_size=40))
@settings(max_examples=25, deadline=None)
def test_lark_compiler_raises_only_schema_errors_for_any_text(body: str) -> None:
    with suppress(SchemaError):
        assert isinstance(text(grammar(f"start: {body}"), 20), str)
