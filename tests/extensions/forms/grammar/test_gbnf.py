"""GBNF: what is read, what is derived, and what is refused."""

import json
import re
from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.extensions.forms.schema import SchemaError
from tests.extensions.forms.grammar.deriving import grammar, text, texts

JSON = r"""
root   ::= object
value  ::= object | array | string | number | ("true" | "false" | "null") ws
object ::=
  "{" ws (
            string ":" ws value
    ("," ws string ":" ws value)*
  )? "}" ws
array  ::= "[" ws ( value ("," ws value)* )? "]" ws
string ::=
  "\"" (
    [^"\\\x7F\x00-\x1F] |
    "\\" (["\\bfnrt] | "u" [0-9a-c] [0-9a-fA-F]{3}) # escapes
  )* "\"" ws
number ::= ("-"? ([0-9] | [1-9] [0-9]{0,15})) ("." [0-9]+)? ws
# Optional space: by convention, applied in this grammar after literal chars when allowed
ws ::= | " " | "\n" [ \t]{0,20}
"""
"""As llama.cpp ships it, but for numbers with exponents."""


def test_json_grammar_generates_valid_json() -> None:
    values = [json.loads(derived) for derived in texts(grammar(JSON), seeds=60)]
    assert {} in values and any(len(derived) > 1 for derived in values)


def test_grammar_generates_exactly_the_sentences_of_its_rules() -> None:
    query = grammar(
        'root ::= "SELECT " column " FROM " table\ncolumn ::= "a" | "b"\ntable ::= "t1" | "t2"'
    )
    wanted = {f"SELECT {column} FROM {table}" for column in "ab" for table in ("t1", "t2")}
    assert {text(query, seed=seed) for seed in range(60)} == wanted


@pytest.mark.parametrize(
    ("body", "pattern"),
    [
        ('"a"+ "b"?', "a+b?"),
        ('"ab"{3}', "(ab){3}"),
        ("[x-z]{2,}", "[x-z]{2,}"),
        ("[^a-z]{1,4}", "[^a-z]{1,4}"),
        ('("x" | "y" | )+ "!"', "[xy]*!"),
        (r'"\x41\u00e9\U0001F600\n\""', 'A\u00e9\U0001f600\n"'),
        (r"[\]\\-]", r"[\]\\-]"),
        ('"a" # ::= "b"', "a"),
        ("other-rule.1\nother-rule.1 ::= [0-9]", "[0-9]"),
    ],
)
def test_text_generated_from_gbnf_matches_the_equivalent_regex(body: str, pattern: str) -> None:
    for derived in texts(grammar(f"root ::= {body}")):
        assert re.fullmatch(pattern, derived, re.DOTALL), derived


def test_generation_from_recursive_grammar_rules_terminates() -> None:
    left = grammar('root ::= root "+" root | [0-9]')
    assert all(re.fullmatch(r"\d(\+\d)*", derived) for derived in texts(left))
    assert {text(left, 0, seed) for seed in range(50)} <= set("0123456789")
    assert set(text(grammar('root ::= root root | "x" | ""'), 50)) <= {"x"}
    assert text(grammar("root ::= (root)*"), 50) == ""


def test_length_of_generated_text_is_limited_by_the_requested_size() -> None:
    nested = grammar('root ::= "(" root ")" | "x"')
    assert text(nested, 0) == "x"
    assert max(len(text(nested, 80, seed)) for seed in range(40)) > 8
    assert all(len(text(nested, 80, seed)) <= 80 for seed in range(40))
    assert text(grammar('root ::= a b\na ::= "xxx" | b "y"\nb ::= "z"')) == "zyz"


@pytest.mark.parametrize(
    ("source", "flaw"),
    [
        ("root ::= nope", "the grammar has no rule 'nope'"),
        ('start ::= "a"', "the grammar has no rule 'root'"),
        ("root ::= root", "never terminates"),
        ('root ::= "a"\nroot ::= "b"', "line 2, column 1: rule 'root' is defined twice"),
        ('root ::= "a', "line 1, column 10"), ("root ::= (", "expected )"),
        ('root ::= "a" )', "unexpected character"),
        ("root ::= [b-a]", "bad character range b-a"), ("root ::= []", "a character class is empty"),
        ('root ::= "a"{3,1}', "the minimum repeat count exceeds the maximum"),
        (r'root ::= "\q"', "unknown escape"),
        ('root ::= "a"{99999999}', "unexpected character"),
        (r'root ::= "\ud800"', "not represent a character"),
        ("root ::= a\na ::= b\nb ::= a", "never terminates"), ('root ::= "a"' + "*" * 9000, "too deep"),
        ("root ::= " + "(" * 5000 + '"a"' + ")" * 5000, "there are too many nested brackets"),
        ('root ::= ("a"{9000}){9000}', "too long"), ('root ::= "' + "a" * 60_000 + '"', "too long"),
    ],
)  # fmt: skip
def test_error_for_an_invalid_grammar_states_the_position(source: str, flaw: str) -> None:
    with pytest.raises(SchemaError, match=re.escape(flaw)):
        grammar(source)


def test_exponentially_growing_grammars_are_compiled_or_rejected() -> None:
    doubled = "\n".join(f"r{k + 1} ::= r{k} r{k}" for k in range(12))
    assert text(grammar(f'{doubled}\nr0 ::= "x"\nroot ::= r12')) == "x" * 2**12
    many = "\n".join(f"r{k + 1} ::= r{k} r{k}" for k in range(2000))
    with pytest.raises(SchemaError, match="too long"):
        grammar(f'{many}\nr0 ::= "x"\nroot ::= r2000')
    assert text(grammar('root ::= (""{9999}){9999}')) == ""


@given(st.text(alphabet='ab"[]()|*+?{}:=, \\\n#.-^0', max_size=40))
@settings(max_examples=25, deadline=None)
def test_gbnf_compiler_raises_only_schema_errors_for_any_text(body: str) -> None:
    with suppress(SchemaError):
        assert isinstance(text(grammar(f"root ::= {body}"), 20), str)
