"""A model's text is told by its parts, the same however it was cut into tokens."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.engine.outputs import Part, PartReader, Piece
from app.engine.request import Tool, ToolCalls
from app.engine.wire import TextForm, Thoughts
from app.parsing.readers import HermesReader, ListedReader, NamedReader, ThoughtReader, readers
from tests.engine.harness import engine_request

READERS: dict[str, Callable[[], PartReader]] = {
    "hermes": HermesReader,
    "llama3": ListedReader,
    "forced": lambda: ListedReader(forced=True),
    "named": lambda: NamedReader("f"),
    "thoughts": lambda: ThoughtReader(None),
    "thoughts and calls": lambda: ThoughtReader(HermesReader()),
    "thoughts that may come": lambda: ThoughtReader(HermesReader(), begun=False),
}
WEATHER = '{"name": "weather", "arguments": {"city": "Rome", "note": "a } \\" {"}}'


def read(reader: PartReader, tokens: Sequence[str]) -> list[Piece]:
    """The pieces, joined where they are of one part."""
    told: list[Piece] = []
    for part, text in [*(piece for token in tokens for piece in reader.feed(token)), *reader.finish()]:
        if told and told[-1][0] == part:
            told[-1] = part, told[-1][1] + text
        else:
            told.append((part, text))
    return [(part, text) for part, text in told if text or part is not None]


def call(number: int, name: str, arguments: str) -> Piece:
    return Part("call", number, name), arguments


ARGUMENTS = '{"city": "Rome", "note": "a } \\" {"}'


def test_a_call_in_tags_is_a_call_and_the_text_before_it_a_text() -> None:
    text = f"Let me see.\n<tool_call>\n{WEATHER}\n</tool_call>"
    assert read(HermesReader(), [text]) == [(None, "Let me see.\n"), call(0, "weather", ARGUMENTS)]


def test_several_calls_are_numbered_and_what_stands_between_them_is_not_told() -> None:
    text = f"<tool_call>{WEATHER}</tool_call>\nand\n<tool_call>{WEATHER}</tool_call> done"
    assert read(HermesReader(), [text]) == [call(0, "weather", ARGUMENTS), call(1, "weather", ARGUMENTS)]


def test_the_name_is_told_before_the_arguments_are_over() -> None:
    reader = HermesReader()
    told = reader.feed('<tool_call>{"name": "weather", "arguments": {"ci')
    assert told == [call(0, "weather", ""), call(0, "weather", '{"ci')]


@pytest.mark.parametrize("inner", ["no JSON", '{"arguments": {}}', '{"name": 3, "arguments": {}}', "[]", ""])
def test_what_is_no_call_stays_text(inner: str) -> None:
    text = f"<tool_call>{inner}</tool_call> and so on"
    assert read(HermesReader(), [text]) == [(None, text)]


def test_arguments_may_stand_before_the_name() -> None:
    text = '<tool_call>{"arguments": {"a": 1}, "name": "f"}</tool_call>'
    assert read(HermesReader(), [text]) == [call(0, "f", '{"a": 1}')]


def test_the_last_tag_may_be_missing() -> None:
    assert read(HermesReader(), [f"<tool_call>{WEATHER}"]) == [call(0, "weather", ARGUMENTS)]


def test_a_call_that_is_cut_off_leaves_all_of_the_reply_as_text_for_whole_answers() -> None:
    text = '<tool_call>{"name": "f", "arguments": {"a'
    assert read(HermesReader(), [text]) == [call(0, "f", '{"a'), (Part("call", 0, raw=text), "")]


@pytest.mark.parametrize("key", ["arguments", "parameters"])
@pytest.mark.parametrize("before", ["", "\n ", "<|python_tag|>"])
def test_llama_writes_its_calls_as_bare_json(before: str, key: str) -> None:
    text = f'{before}{{"name": "f", "{key}": {{"a": [1]}}}}; {{"name": "g", "{key}": {{}}}}'
    assert read(ListedReader(), [text]) == [call(0, "f", '{"a": [1]}'), call(1, "g", "{}")]


@pytest.mark.parametrize(
    "text", ["Hello {there}", '{"a": 1}', '{"a": 1} {"name": "f"}', "<|pyth", "{", " \n"]
)
def test_of_llama_anything_else_is_text(text: str) -> None:
    assert read(ListedReader(), [text]) == [(None, text)]


def test_a_forced_choice_is_a_list_of_calls() -> None:
    text = '[{"name": "f", "parameters": {"a": 1}}, {"name": "g", "parameters": 2.5}]'
    assert read(ListedReader(forced=True), [text]) == [call(0, "f", '{"a": 1}'), call(1, "g", "2.5")]


def test_a_forced_list_that_is_cut_off_before_its_first_name_tells_a_stream_nothing() -> None:
    assert read(ListedReader(forced=True), ['[{"na']) == [(Part("call", 0, raw='[{"na'), "")]


def test_all_that_a_named_tool_gets_are_arguments() -> None:
    assert read(NamedReader("f"), ['{"a"', ": 1}"]) == [call(0, "f", '{"a": 1}')]


NAMED = ToolCalls(tools=(Tool("f"),), least=1, named=True)
BEGUN, POSSIBLE = Thoughts(end_id=2), Thoughts(end_id=2, begin_id=1)


@pytest.mark.parametrize(
    ("thoughts", "text", "told"),
    [
        (BEGUN, "Hm</think>{}", [(Part("reasoning"), "Hm"), call(0, "f", "{}")]),
        (POSSIBLE, "<think>Hm</think>{}", [(Part("reasoning"), "Hm"), call(0, "f", "{}")]),
        (POSSIBLE, "{}", [call(0, "f", "{}")]),
        (None, "{}", [call(0, "f", "{}")]),
    ],
)
def test_a_call_that_must_be_made_may_follow_thoughts(
    thoughts: Thoughts | None, text: str, told: list[Piece]
) -> None:
    form = TextForm(json_schema="{}", thoughts=thoughts)
    reader = readers("hermes")(engine_request(tool_calls=NAMED, form=form, reasoning=True))
    assert reader is not None and read(reader, [text]) == told


@pytest.mark.parametrize("begin", ["", "<think>", "\n<think>"])
def test_thoughts_end_with_their_tag(begin: str) -> None:
    told = read(ThoughtReader(None), [f"{begin}Hm <b>.</think>\n\nYes"])
    assert told == [(Part("reasoning"), "Hm <b>."), (None, "\n\nYes")]


def test_thoughts_that_do_not_end_are_all_there_is() -> None:
    assert read(ThoughtReader(HermesReader()), ["<think>Hm </thi"]) == [(Part("reasoning"), "Hm </thi")]


@pytest.mark.parametrize("text", ["<think>Hm</think>\n{}", " <think>Hm</think>\n{}"])
def test_thoughts_that_need_not_come_are_told_by_their_tag(text: str) -> None:
    assert read(ThoughtReader(None, begun=False), [text]) == [(Part("reasoning"), "Hm"), (None, "\n{}")]


@pytest.mark.parametrize("text", ["{}", "<thi", "", "\n", "<b>"])
def test_without_their_tag_they_have_not_come(text: str) -> None:
    assert read(ThoughtReader(None, begun=False), [text]) == ([(None, text)] if text else [])


def test_a_call_may_follow_thoughts() -> None:
    told = read(ThoughtReader(HermesReader()), [f"Hm</think>So<tool_call>{WEATHER}</tool_call>"])
    assert told == [(Part("reasoning"), "Hm"), (None, "So"), call(0, "weather", ARGUMENTS)]


SCRAPS = st.sampled_from(
    [
        *("<tool_call>", "</tool_call>", "<think>", "</think>", "<|python_tag|>", "<tool", "</", "<"),
        *("{", "}", "[", "]", '"', "\\", ",", ";", ":", " ", "\n", "text", "3.5", "null"),
        *(WEATHER, '{"name": "f", "parameters": ', '{"a": [1, "]"]}', '"name"', '"arguments"', "{}", '""'),
    ]
)
TEXTS = st.lists(SCRAPS, max_size=12).map("".join)


@pytest.mark.parametrize("kind", READERS)
@given(data=st.data())
def test_any_cut_of_a_text_has_the_same_parts(kind: str, data: st.DataObject) -> None:
    text = data.draw(TEXTS)
    places = sorted(data.draw(st.sets(st.integers(0, len(text)))))
    tokens = [text[a:b] for a, b in zip([0, *places], [*places, len(text)], strict=True)]
    make = READERS[kind]
    assert read(make(), tokens) == read(make(), [text]) == read(make(), list(text))


@given(st.dictionaries(st.text(max_size=5), st.integers() | st.text() | st.none(), max_size=4), st.booleans())
def test_arguments_are_told_as_they_were_written(arguments: dict[str, object], tight: bool) -> None:
    separators = (",", ":") if tight else (", ", ": ")
    written = json.dumps({"name": "f", "arguments": arguments}, separators=separators)
    [(part, told)] = read(HermesReader(), list(f"<tool_call>{written}</tool_call>"))
    assert (part, json.loads(told)) == (Part("call", 0, "f"), arguments)
