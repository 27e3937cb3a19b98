"""How each parser reads a text, whole and token by token."""

import json
from collections.abc import Sequence
from typing import Any

import pytest

from app.core.engine.request import ToolFunction
from app.extensions.tool_calls import llama
from app.extensions.tool_calls.json_prefix import ArgumentHold
from app.extensions.tool_calls.parser import Delta
from app.extensions.tool_calls.parsers import HERMES, PARSERS
from app.extensions.tool_calls.python_prefix import is_too_long, open_brackets
from app.extensions.tool_calls.qwen import QWEN_FORM, arguments_of

WEATHER = ToolFunction(
    "get_weather",
    {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}},
)
ROME = '{"city": "Rome"}'
HERMES_ROME = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Rome"}}\n</tool_call>'
HERMES_PING = '<tool_call>{"name": "ping", "arguments": {}}</tool_call>'
QWEN_ROME = (
    "<tool_call>\n<function=get_weather>\n<parameter=city>\nRome\n</parameter>\n"
    "</function>\n</tool_call>"
)
Calls = dict[int, tuple[str, str]]


def whole(name: str, text: str) -> tuple[str, Calls]:
    parsed = PARSERS.get(name, HERMES).parse(text, (WEATHER,))
    return parsed.content, {number: tuple(call) for number, call in enumerate(parsed.calls)}  # type: ignore[misc]


def streamed(name: str, tokens: Sequence[str]) -> tuple[str, Calls]:
    """What a client puts together; the end is a token without a text."""
    stream = PARSERS.get(name, HERMES).stream((WEATHER,))
    deltas: list[Delta | None] = [stream.feed(token, is_last=False) for token in tokens]
    deltas.append(stream.feed("", is_last=True))
    content = ""
    calls: Calls = {}
    for delta in filter(None, deltas):
        content += delta.content or ""
        for call in delta.calls:
            known_name, arguments = calls.get(call.number, ("", ""))
            calls[call.number] = (
                known_name + (call.name or ""),
                arguments + (call.arguments or ""),
            )
    return content, calls


CASES: list[tuple[str, str, Any, Any]] = [
    ("hermes", "just text", ("just text", {}), None),
    ("hermes", HERMES_ROME, ("", {0: ("get_weather", ROME)}), None),
    (
        "hermes",
        f"Sure. {HERMES_ROME}\n{HERMES_PING}",
        ("Sure. ", {0: ("get_weather", ROME), 1: ("ping", "{}")}),
        None,
    ),
    ("hermes", f"{HERMES_PING} done", ("", {0: ("ping", "{}")}), None),
    ("hermes", HERMES_PING.removesuffix("</tool_call>"), ("", {0: ("ping", "{}")}), None),
    (
        "hermes",
        f'{HERMES_PING}<tool_call>{{"name": "f", "arguments": {{"a',
        (f'{HERMES_PING}<tool_call>{{"name": "f", "arguments": {{"a', {}),
        ("", {0: ("ping", "{}"), 1: ("f", '{"a')}),
    ),
    (
        "hermes",
        '<tool_call>{"name": "ping", "parameters": {}}</tool_call>',
        ('<tool_call>{"name": "ping", "parameters": {}}</tool_call>', {}),
        ("", {0: ("ping", "")}),
    ),
    ("hermes", "a < b <tool", ("a < b <tool", {}), ("a < b ", {})),
    (
        "llama3_json",
        '{"name": "get_weather", "parameters": {"city": "Rome"}}; {"name": "f", "arguments": [1]}',
        ("", {0: ("get_weather", ROME), 1: ("f", "[1]")}),
        None,
    ),
    (
        "llama3_json",
        'Sure. {"name": "ping", "parameters": {}}',
        ("", {0: ("ping", "{}")}),
        ('Sure. {"name": "ping", "parameters": {}}', {}),
    ),
    (
        "llama3_json",
        '<|python_tag|>{"name": "get_weather", "parameters": {"city": "Rome"}}',
        ("", {0: ("get_weather", ROME)}),
        None,
    ),
    ("llama3_json", '{"a": 1}', ('{"a": 1}', {}), ("", {})),
    (
        "pythonic",
        '[get_weather(city="Rome", days=-2), ping()]',
        ("", {0: ("get_weather", '{"city": "Rome", "days": -2}'), 1: ("ping", "{}")}),
        None,
    ),
    (
        "pythonic",
        "[f(a=(1, 2), b={'x': null}, c=f'y', d=True)]",
        ("", {0: ("f", '{"a": [1, 2], "b": {"x": null}, "c": "y", "d": true}')}),
        None,
    ),
    ("pythonic", "[f(1)]", ("[f(1)]", {}), ("", {0: ("f", "{}")})),
    ("pythonic", "[get_weather(city=", ("[get_weather(city=", {}), ("", {})),
    ("pythonic", "Sure. [ping()]", ("Sure. [ping()]", {}), None),
    ("qwen3_coder", "just text", ("just text", {}), None),
    ("qwen3_coder", QWEN_ROME, ("", {0: ("get_weather", ROME)}), None),
    (
        "qwen3_coder",
        "<function=get_weather><parameter=days>\n4\n</parameter><parameter=city>4</parameter>"
        "</function>",
        ("", {0: ("get_weather", '{"days": 4, "city": "4"}')}),
        None,
    ),
    (
        "qwen3_coder",
        "<function=get_weather><parameter=days>two</parameter>",
        ("", {0: ("get_weather", '{"days": "two"}')}),
        None,
    ),
    ("mistral", "just text", ("just text", {}), None),
    (
        "mistral",
        '[TOOL_CALLS]get_weather[ARGS]{"city": "Rome"}[TOOL_CALLS]ping{}',
        ("", {0: ("get_weather", ROME), 1: ("ping", "{}")}),
        None,
    ),
    (
        "mistral",
        'Sure. [TOOL_CALLS]ping{"a": {"b": 1}} done',
        ("Sure.", {0: ("ping", '{"a": {"b": 1}}')}),
        ("Sure. ", {0: ("ping", '{"a": {"b": 1}} done')}),
    ),
]


@pytest.mark.parametrize(("name", "text", "expected", "_streamed"), CASES)
def test_text_of_each_parser_format_is_parsed_into_tool_calls(
    name: str, text: str, expected: Any, _streamed: Any
) -> None:
    assert whole(name, text) == expected


def test_truncated_llama_call_is_text_in_a_non_streamed_response() -> None:
    text = '{"name": "get_weather", "parameters": {"city": "Ro'
    assert whole("llama3_json", text) == (text, {})
    assert streamed("llama3_json", [*text]) == ("", {0: ("get_weather", '{"city": "R')})


@pytest.mark.parametrize("size", [1, 3, 7])
@pytest.mark.parametrize(("name", "text", "expected", "differing"), CASES)
def test_streamed_tool_calls_are_parsed_however_the_text_is_split(
    name: str, text: str, expected: Any, differing: Any, size: int
) -> None:
    tokens = [text[start : start + size] for start in range(0, len(text), size)]
    if name == "llama3_json":
        tag = "<|python_tag|>"
        if text.startswith(tag):
            text = text.removeprefix(tag)
            tokens = [tag, *(text[start : start + size] for start in range(0, len(text), size))]
    assert streamed(name, tokens) == (differing or expected)


@pytest.mark.parametrize("is_partial", [False, True])
@pytest.mark.parametrize(
    "tag", ["<parameter=a", "<parameter=a>", "<parameter", "< ", "</parameter>"]
)
def test_malformed_qwen_tags_are_parsed_in_linear_time(tag: str, is_partial: bool) -> None:
    """The regexes that read 668 of these tags took half a minute."""
    arguments = json.loads(arguments_of(tag * 20_000, is_partial))
    assert [*arguments] == (["a"] if tag.endswith("a>") else [])


@pytest.mark.parametrize(
    ("markup", "closed", "is_open"),
    [
        ("<parameter=a>1</parameter><parameter=b>2", {"a": "1"}, {"b": "2"}),
        ("<parameter=a>1<parameter=b>2</parameter>", {"a": "1", "b": "2"}, {}),
        ("< parameter = a>\n1\n< / parameter >\n", {"a": "1"}, {}),
        ("<parameter=a<parameter=b>1</parameter>", {"a<parameter=b": "1"}, {}),
        ("<parameter=a</parameter>1", {}, {"a</parameter": "1"}),
        ("<parameter=>1</parameter><parameter=>2", {"": "1"}, {}),
        ("</parameter>1<parameter=a>1</parameter><parameter=b", {"a": "1"}, {}),
    ],
)
def test_qwen_parameter_ends_at_its_closing_tag_or_at_the_next_opening_tag(
    markup: str, closed: Any, is_open: Any
) -> None:
    assert json.loads(arguments_of(markup, False)) == closed
    assert json.loads(arguments_of(markup, True)) == closed | is_open


def test_qwen_call_with_5000_parameters_is_converted_at_most_4_times(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A conversion for each tag of a text with 2,000 parameters took ten seconds."""
    conversions: list[int] = []

    def convert(markup: str, is_partial: bool) -> str:
        conversions.append(len(markup))
        return arguments_of(markup, is_partial)

    monkeypatch.setattr(QWEN_FORM, "convert", convert)
    text = "<function=f>" + "<parameter=a>1</parameter>" * 5_000
    assert whole("qwen3_coder", f"{text}</function>")[1] == {0: ("f", '{"a": "1"}')}
    assert len(conversions) == 1
    conversions.clear()
    assert streamed("qwen3_coder", [text, "</function>"])[1] == {0: ("f", '{"a": "1"}')}
    assert len(conversions) <= 4


SURROGATES = {"a": "\ud800", "\udfff": ["\ud83d", "\u00e9"]}


@pytest.mark.parametrize("name", ["qwen3_coder", "mistral"])
def test_lone_surrogates_in_tool_arguments_are_escaped(name: str) -> None:
    value = json.dumps(SURROGATES)
    text = f"<function=get_weather><parameter=days>{value}</parameter></function>"
    if name == "mistral":
        text = f'[TOOL_CALLS]get_weather[ARGS]{{"days": "1", "city": {value}}}'
    schema = {"type": "object", "properties": {"city": {}, "days": {"type": ["object", "integer"]}}}
    tools = (ToolFunction("get_weather", schema),)
    [(_, arguments)] = PARSERS[name].parse(text, tools).calls
    assert SURROGATES in json.loads(arguments.encode()).values()
    stream = PARSERS[name].stream(tools)
    sent = ""
    for position, character in enumerate(text, 1):
        delta = stream.feed(character, position == len(text))
        for call in delta.calls if delta else ():
            sent += call.arguments or ""
    assert SURROGATES in json.loads(sent.encode()).values()


def test_closing_braces_are_held_back_however_the_text_is_split() -> None:
    text = '{"a": "\\"}\\\\", "b": [{}]}}'
    for first in range(len(text) + 1):
        for second in range(first, len(text) + 1):
            hold = ArgumentHold()
            certain = "".join(map(hold.feed, (text[:first], text[first:second], text[second:])))
            assert (certain, hold.release()) == (text[:-2], "}}")


def test_many_llama_calls_are_parsed_in_linear_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Brackets up to the end of the text were counted for each call: nine seconds for these."""
    counted: list[int] = []

    def has_open_brackets(text: str, start: int) -> bool:
        counted.append(start)
        return original(text, start)

    original = llama.has_open_brackets
    monkeypatch.setattr(llama, "has_open_brackets", has_open_brackets)
    call = '{"name": "f", "parameters": {"a":1}}'
    expected = ("", {0: ("f", '{"a": 1}')})
    assert streamed("llama3_json", [call, "", "", *["; " + call] * 3])[1][0] == expected[1][0]
    counted.clear()
    stream = llama.LlamaStream()
    assert stream.feed(f"{call}; " * 20_000, is_last=False) is None
    assert counted == [0]
    for separator in ("[{", '["', "}{"):
        counted.clear()
        llama.LlamaStream().feed(f"{call}{separator}" * 10_000, is_last=False)
        assert len(counted) < 20


def test_pythonic_call_list_with_too_many_calls_is_returned_as_text() -> None:
    calls = f"[{'f(), ' * 100_000}f()]"
    assert whole("pythonic", calls) == (calls, {})
    assert streamed("pythonic", [calls]) == ("", {})
    text = "word, " * 100_000
    expected = {0: ("f", json.dumps({"text": text}))}
    assert whole("pythonic", f'[f(text="{text}")]') == ("", expected)
    assert streamed("pythonic", [f'[f(text="{text}', '")', "]"]) == ("", expected)


@pytest.mark.parametrize("quote", ("'", '"', "'''", '"""'))
@pytest.mark.parametrize("prefix", ("f", "F", "rf", "fR"))
def test_f_string_expressions_count_toward_the_length_limit(prefix: str, quote: str) -> None:
    expressions = "{1}" * 500
    assert is_too_long(f"[f(text={prefix}{quote}{expressions}{quote})]")
    assert not is_too_long(f"[f(text={quote}{expressions}{quote})]")
    assert not is_too_long(f"[f(text={prefix}{quote}{{1}}{quote})]")


@pytest.mark.parametrize("text", ["[f(a='" + "\\'" * 200_000, "[f(a='" + "\\" * 400_000])
def test_python_escapes_are_parsed_in_linear_time(text: str) -> None:
    assert open_brackets(text) == ["[", "(", "'"]


@pytest.mark.parametrize("value", ["[1]", "1.5e3", '"a, \\"]"', "null", "{}", '{"b": [true]}'])
def test_llama_call_with_lists_is_parsed_however_the_text_is_split(value: str) -> None:
    text = f'{{"name": "f", "parameters": {{"a": [{value}, {value}], "b": {value}}}}}'
    expected = {0: ("f", json.dumps(json.loads(text)["parameters"]))}
    for end in range(len(text)):
        assert streamed("llama3_json", ["{", "", text[1:end], text[end:]])[0] == ""
    assert streamed("llama3_json", [*text, "", ""]) == ("", expected)
