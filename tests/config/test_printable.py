"""Texts of strangers are printed without control characters, and without commands of a CI."""

import json
import sys
from io import StringIO

import pytest
from hypothesis import given
from hypothesis import strategies as st

from config.printable import PrintableStream, one_line, printable, printable_output, trusted_stream

HOSTILE = st.text(
    st.sampled_from("a:#[] \t\n\r\x1b\x07\x85\x9b\u2028\u202e\ud800") | st.characters(), max_size=60
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("plain", "plain"),
        ("Grüße 日本 \U0001f642\ttab\n", "Grüße 日本 \U0001f642\ttab\n"),
        ("\x1b]0;pwn\x07\x1b[2J", "\\u001b]0;pwn\\u0007\\u001b[2J"),
        ("hidden\rshown", "hidden\\u000dshown"),
        ("\x9b2J\x7f\x85", "\\u009b2J\\u007f\\u0085"),
        ("\u202eright to left", "\\u202eright to left"),
        ("\ud800", "\\ud800"),
    ],
)
def test_control_characters_are_escaped(text: str, expected: str) -> None:
    assert printable(text) == expected


def test_text_in_a_line_has_no_line_ends() -> None:
    assert one_line("a\nfake: all good\t") == "a\\u000afake: all good\\u0009"


@given(HOSTILE)
def test_escaped_text_can_be_encoded_and_stays_the_same_when_escaped_again(text: str) -> None:
    line = one_line(text)
    line.encode()
    assert len(line.splitlines()) <= 1
    assert one_line(line) == line


@given(HOSTILE)
def test_json_with_escapes_has_the_same_value(text: str) -> None:
    assert json.loads(printable(json.dumps(text, ensure_ascii=False))) == text


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        (["::error::x"], "\\u003a:error::x"),
        (["a\n  ::error::x\n"], "a\n  \\u003a:error::x\n"),
        (["  ", "::error::x"], "  \\u003a:error::x"),
        (["a", "::b"], "a::b"),
        (["a\n", "##[group]b"], "a\n\\u0023#[group]b"),
        (["##vso[task]"], "\\u0023#vso[task]"),
        (["## Title\n", "x::y"], "## Title\nx::y"),
        (["\x1b", "::x"], "\\u001b::x"),
    ],
)
def test_lines_are_no_commands_of_a_ci(texts: list[str], expected: str) -> None:
    output = StringIO()
    stream = PrintableStream(output)
    for text in texts:
        assert stream.write(text) == len(text)
    assert output.getvalue() == expected


@given(st.lists(HOSTILE, max_size=5))
def test_no_line_begins_with_a_command_however_it_is_divided(texts: list[str]) -> None:
    output = StringIO()
    stream = PrintableStream(output)
    for text in texts:
        stream.write(text)
    for line in output.getvalue().split("\n"):
        assert not line.lstrip().startswith(("::", "##[", "##vso["))
    assert "\x1b" not in output.getvalue()


def test_all_that_a_command_prints_is_escaped(capsys: pytest.CaptureFixture[str]) -> None:
    with printable_output(), printable_output():
        print("\x1b[2J")
        print("\x1b[3J", file=sys.stderr)
        print("::notice::ours", file=trusted_stream(sys.stdout))
    print("\x1b[1m after the command")
    output = capsys.readouterr()
    assert output.out == "\\u001b[2J\n::notice::ours\n\x1b[1m after the command\n"
    assert output.err == "\\u001b[3J\n"
