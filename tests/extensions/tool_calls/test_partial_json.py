"""Incomplete JSON is read as partial-json-parser reads it, which vLLM's parser of Llama uses."""

import json
from json import JSONDecodeError, JSONDecoder
from typing import Any

import partial_json_parser
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from partial_json_parser.core.exceptions import PartialJSON
from partial_json_parser.core.options import Allow

from app.extensions.tool_calls.partial_json import has_open_brackets, loads_first

TEXTS = st.text(st.characters(codec="utf-8") | st.sampled_from('"\\/{}[]:, \n;'), max_size=8)
NUMBERS = st.integers() | st.floats(allow_nan=False, allow_infinity=False)
VALUES = st.recursive(
    st.none() | st.booleans() | NUMBERS | TEXTS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=4),
    max_leaves=6,
)
CALLS = st.fixed_dictionaries({"name": TEXTS, "parameters": st.dictionaries(TEXTS, VALUES)})
LAYOUTS: tuple[dict[str, Any], ...] = (
    {},
    {"indent": 2},
    {"separators": (",", ":")},
    {"ensure_ascii": False},
)
REJECTED = "rejected"


def vllm_loads(text: str, allow_cut_text: bool) -> object:
    """`partial_json_loads` of vllm/tool_parsers/utils.py (Apache-2.0), with its caller's flags."""
    flags = Allow.ALL if allow_cut_text else Allow.ALL & ~Allow.STR
    try:
        return partial_json_parser.loads(text, flags), len(text)
    except JSONDecodeError as error:
        if "Extra data" not in error.msg:
            return REJECTED
    except PartialJSON:
        return REJECTED
    return JSONDecoder().raw_decode(text)


def our_loads(text: str, allow_cut_text: bool) -> object:
    try:
        is_open = has_open_brackets(text, 0)
        return loads_first(text, 0, is_open=is_open, allow_cut_text=allow_cut_text)
    except ValueError:
        return REJECTED


@pytest.mark.parametrize("allow_cut_text", [False, True])
@settings(max_examples=60, deadline=None)
@given(call=CALLS, layout=st.sampled_from(LAYOUTS), data=st.data())
def test_beginning_of_a_call_is_read_as_in_vllm(
    allow_cut_text: bool, call: object, layout: dict[str, Any], data: st.DataObject
) -> None:
    text = json.dumps(call, **layout)
    beginning = text[: data.draw(st.integers(1, len(text)), "end")]
    assert our_loads(beginning, allow_cut_text) == vllm_loads(beginning, allow_cut_text)


@pytest.mark.parametrize("allow_cut_text", [False, True])
@settings(max_examples=60, deadline=None)
@given(
    first=CALLS,
    separator=st.sampled_from(["; ", ";", "\n", " , ", ""]),
    second=CALLS,
    data=st.data(),
)
def test_first_of_several_calls_ends_where_it_ends_in_vllm(
    allow_cut_text: bool, first: object, separator: str, second: object, data: st.DataObject
) -> None:
    start = json.dumps(first) + separator
    text = start + json.dumps(second)
    beginning = text[: data.draw(st.integers(len(start), len(text)), "end")]
    assert our_loads(beginning, allow_cut_text) == vllm_loads(beginning, allow_cut_text)
