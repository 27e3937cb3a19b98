"""A model's text is told by its parts, the same however it was cut into tokens."""

import json
from collections.abc import Sequence
from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.core.engine.outputs import Part, Piece
from app.extensions.tool_calls.parsing import Read, TextReader, named, required_calls, thoughts

READERS: dict[str, Read] = {
    "forced": required_calls,
    "named": named("f"),
    "thoughts": thoughts,
    "thoughts and calls": partial(thoughts, read_text=required_calls),
    "thoughts that may come": partial(thoughts, read_text=required_calls, begun=False),
}
WEATHER = '{"name": "weather", "arguments": {"city": "Rome", "note": "a } \\" {"}}'


def read(reader: TextReader, tokens: Sequence[str]) -> list[Piece]:
    """The pieces, joined where they are of one part."""
    pieces: list[Piece] = []
    for part, text in [
        *(piece for token in tokens for piece in reader.feed(token)),
        *reader.finish(),
    ]:
        if pieces and pieces[-1][0] == part:
            pieces[-1] = part, pieces[-1][1] + text
        else:
            pieces.append((part, text))
    return [(part, text) for part, text in pieces if text or part is not None]


def call(number: int, name: str, arguments: str) -> Piece:
    return Part("call", number, name), arguments


ARGUMENTS = '{"city": "Rome", "note": "a } \\" {"}'


THOUGHT = Part("reasoning")
CUT_OFF = '[{"name": "f", "arguments": {"a'
CALLED, AGAIN = (call(number, "weather", ARGUMENTS) for number in (0, 1))
TWO = [call(0, "f", '{"a": [1]}'), call(1, "g", "{}")]
CASES: list[tuple[str, str, list[Piece]]] = [
    ("forced", f"[{WEATHER}, {WEATHER}]", [CALLED, AGAIN]),
    ("forced", '[{"arguments": {"a": 1}, "name": "f"}]', [call(0, "f", '{"a": 1}')]),
    ("forced", CUT_OFF, [call(0, "f", '{"a'), (Part("call", 0, raw=CUT_OFF), "")]),
    ("forced", '[{"name": "f", "parameters": {"a": [1]}}, {"name": "g", "parameters": {}}]', TWO),
    ("forced", '[{"na', [(Part("call", 0, raw='[{"na'), "")]),  # nothing that a stream is told
    ("named", '{"a": 1}', [call(0, "f", '{"a": 1}')]),
    *(
        ("thoughts", f"{begin}Hm <b>.</think>\n\nYes", [(THOUGHT, "Hm <b>."), (None, "\n\nYes")])
        for begin in ("", "<think>", "\n<think>")
    ),
    ("thoughts and calls", "<think>Hm </thi", [(THOUGHT, "Hm </thi")]),
    *(
        (
            "thoughts that may come",
            f"{blank}<think>Hm</think>\nYes",
            [(THOUGHT, "Hm"), (None, "\nYes")],
        )
        for blank in ("", " ")
    ),
    *(
        ("thoughts that may come", text, [(None, text)] if text else [])
        for text in ("<thi", "", "\n", "<b>")
    ),
    (
        "thoughts and calls",
        f"Hm</think>[{WEATHER}]",
        [(THOUGHT, "Hm"), CALLED],
    ),
]


@pytest.mark.parametrize(("kind", "text", "pieces"), CASES)
def test_reasoning_and_tool_calls_are_separated_from_the_reply_text(
    kind: str, text: str, pieces: list[Piece]
) -> None:
    assert read(TextReader(READERS[kind]), [text]) == pieces


def test_tool_call_name_is_emitted_before_its_arguments_end() -> None:
    pieces = TextReader(required_calls).feed('[{"name": "weather", "arguments": {"ci')
    assert pieces == [call(0, "weather", ""), call(0, "weather", '{"ci')]


SCRAPS = st.sampled_from(
    [
        *(
            "<tool_call>",
            "</tool_call>",
            "<think>",
            "</think>",
            "<|python_tag|>",
            "<tool",
            "</",
            "<",
        ),
        *("{", "}", "[", "]", '"', "\\", ",", ";", ":", " ", "\n", "text", "3.5", "null"),
        *(
            WEATHER,
            '{"name": "f", "parameters": ',
            '{"a": [1, "]"]}',
            '"name"',
            '"arguments"',
            "{}",
            '""',
        ),
    ]
)
TEXTS = st.lists(SCRAPS, max_size=12).map("".join)


@pytest.mark.parametrize("kind", READERS)
@given(data=st.data())
@settings(max_examples=25, deadline=None)
def test_parsed_parts_do_not_depend_on_how_the_stream_is_split(
    kind: str, data: st.DataObject
) -> None:
    text = data.draw(TEXTS)
    places = sorted(data.draw(st.sets(st.integers(0, len(text)))))
    tokens = [text[a:b] for a, b in zip([0, *places], [*places, len(text)], strict=True)]
    cuts = (tokens, [text], list(text))
    cut, whole, single = (read(TextReader(READERS[kind]), cut_texts) for cut_texts in cuts)
    assert cut == whole == single


@given(
    st.dictionaries(st.text(max_size=5), st.integers() | st.text() | st.none(), max_size=4),
    st.booleans(),
)
@settings(max_examples=40, deadline=None)
def test_tool_call_arguments_are_emitted_verbatim(
    arguments: dict[str, object], tight: bool
) -> None:
    separators = (",", ":") if tight else (", ", ": ")
    written = json.dumps([{"name": "f", "arguments": arguments}], separators=separators)
    [(part, arguments_text)] = read(TextReader(required_calls), list(written))
    assert (part, json.loads(arguments_text)) == (Part("call", 0, "f"), arguments)
