"""Which requests a rule fits; templates fill in what they know, and neither run long nor reach
beyond it.
"""

from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import convert

from app.extensions.scripts.matched_request import MatchedRequest
from app.extensions.scripts.matching import Conditions, Groups
from app.extensions.scripts.rules import RuleFailureError, ScriptError, When
from app.extensions.scripts.template import Template
from app.extensions.scripts.template_environment import RandomFunctions
from app.extensions.scripts.template_limits import MAX_CHARACTERS
from tests.extensions.scripts.requests import request

AGENT = request(
    ("system", "Be brief."),
    "What is the weather in Rome?",
    ("assistant", ""),
    ("tool", "sunny", "get_weather"),
    ("tool", "nine", "get_time"),
    tools={"get_weather": {}, "get_time": {}},
    headers={"x-team": "red"},
)
CHAT = request("one", ("assistant", "two"), "Three")
VALUES: dict[str, Any] = {
    "match": {"city": "rome", "0": "in rome", 0: "in rome"},
    "message": "hello",
    "user": "hi",
    "tool_result": "",
    "model": "tiny",
    "api": "chat",
    "turn": 2,
    "count": 3,
    "now": "2023-11-14T22:13:20+00:00",
    "unix": 1_700_000_000.0,
    "header": {"x": "y"}.get,
}


def fits(when: dict[str, Any], matched_request: MatchedRequest) -> bool:
    return not Conditions(convert(when, When)).first_mismatch(matched_request, Groups())


@pytest.mark.parametrize(
    ("when", "holds"),
    [
        ({}, True),
        ({"model": ["a", "tiny"]}, True),
        ({"model": "tin"}, False),
        ({"api": ["responses", "messages"]}, False),
        ({"message": "Three"}, True),
        ({"message": "three"}, False),
        ({"message": {"exact": "three", "ignore_case": True}}, True),
        ({"message": {"contains": ["x", "hre"]}}, True),
        ({"message": {"regex": "^t", "ignore_case": True}}, True),
        ({"message": {"contains": "hre", "regex": "x"}}, False),
        ({"message": {"role": "tool"}}, False),
        ({"message": {"role": "assistant", "exact": "two"}}, True),
        ({"message": {"which": "first", "exact": "one"}}, True),
        ({"message": {"which": "first", "role": "user", "exact": "Three"}}, False),
        ({"message": {"which": "any", "role": "user", "exact": "two"}}, False),
        ({"message": ["Three", {"which": "first", "exact": "one"}]}, True),
        ({"message": ["Three", {"which": "first", "exact": "two"}]}, False),
        ({"turn": [1, 3]}, False),
        ({"turn": {"at_least": 2, "at_most": 2}}, True),
        ({"turn": {"at_least": 3}}, False),
        ({"tool_result": False}, True),
        ({"tools": True}, False),
        ({"headers": {"x-team": None}}, False),
    ],
)
def test_rule_conditions_match_a_chat_only_if_it_has_the_stated_properties(
    when: dict[str, Any], holds: bool
) -> None:
    assert fits(when, CHAT) is holds


@pytest.mark.parametrize(
    ("when", "holds"),
    [
        ({"tool_result": "get_weather"}, True),
        ({"tool_result": "get_money"}, False),
        ({"tool_result": {"tool": "get_weather", "contains": "sun"}}, True),
        ({"tool_result": {"tool": "get_time", "contains": "sun"}}, False),
        ({"tools": "get_time"}, True),
        ({"tools": ["get_time", "get_money"]}, False),
        ({"headers": {"X-Team": {"regex": "^r"}}}, True),
        ({"headers": {"X-Team": "blue"}}, False),
    ],
)
def test_tool_and_header_conditions_match_only_requests_that_meet_them(
    when: dict[str, Any], holds: bool
) -> None:
    assert fits(when, AGENT) is holds


def test_regex_groups_of_conditions_contain_the_matched_texts() -> None:
    when = {
        "message": {"role": "user", "regex": r"weather in (?P<city>\w+)"},
        "headers": {"x-team": {"regex": "(?P<first>.)"}},
    }
    conditions = Conditions(convert(when, When))
    groups = Groups()
    assert conditions.groups == {"0", "1", "city", "first"}
    assert not conditions.first_mismatch(AGENT, groups)
    assert groups.texts.items() >= {("city", "Rome"), ("first", "r")}
    assert [groups.texts[number] for number in (0, "1")] == ["r", "r"], (
        "of the first regex that was looked at"
    )


def filled(source: str, seed: int = 1, **values: Any) -> object:
    return Template(source).value({**VALUES, **RandomFunctions(Random(seed)).by_name(), **values})


@pytest.mark.parametrize(
    ("source", "value"),
    [
        ("{{ match.city | title }}", "Rome"),
        ("{{ match[0] }}", "in rome"),
        ("{{ count * 2 }}", 6),
        ("{{ count * 2 }} times", "6 times"),
        ("{% if turn > 1 %}again{% else %}first{% endif %}", "again"),
        ("{{ header('X') or 'none' }}", "none"),
        ("{{ message ~ user | upper }}", "helloHI"),
        ("{{ {'a': [1, message]} }}", {"a": [1, "hello"]}),
        ("{{ {'a': 1} | json }} ", '{"a": 1} '),
        ("{{ unix | date('%Y') }}", "2023"),
        ("{{ message | replace('l', 'L') | truncate(4) }}", "heLL"),
        ("{# nothing #}a", "a"),
    ],
)
def test_template_expressions_can_use_groups_counts_headers_and_filters(
    source: str, value: object
) -> None:
    assert filled(source) == value


@pytest.mark.parametrize(
    "source",
    [
        *("{{ message * 9 }}", "{{ '%9999999d' % 3 }}", "{{ message.__class__ }}", "{{ 1 / 0 }}"),
        *("{{ choose() }}", "{{ unix | date('%999Y') }}"),
    ],
)
def test_failing_template_fails_only_its_request(source: str) -> None:
    with pytest.raises(RuleFailureError, match="failed"):
        filled(source)


@pytest.mark.parametrize(
    "source",
    [
        *(
            "{% for a in message %}x{% endfor %}",
            "{{ 2 ** 9 }}",
            "{% set a = 1 %}",
            "{{ message.upper() }}",
        ),
        *(
            "{{ range(9) }}",
            "{% include 'a' %}",
            "{{ message | sort }}",
            "{{ message is mapping }}",
        ),
        *("{{ " + "1 + " * 3000 + "1 }}", "{{ " + "(" * 500 + "1" + ")" * 500 + " }}"),
    ],
)
def test_templates_that_could_take_unbounded_time_are_rejected_at_startup(source: str) -> None:
    with pytest.raises(ScriptError, match="template"):
        Template(source)


def test_length_of_a_rendered_text_is_limited() -> None:
    long = "x" * (MAX_CHARACTERS // 2)
    assert filled("{{ message }}", message=long) == long
    for source in (
        "{{ message }}{{ message }}{{ message }}",
        "{{ message | replace('x', 'xyz') }}",
    ):
        with pytest.raises(RuleFailureError, match="exceed|more than"):
            filled(source, message=long)


@settings(deadline=None, max_examples=25)
@given(st.text())
def test_message_that_contains_template_syntax_is_inserted_as_plain_text(text: str) -> None:
    assert filled("<{{ message }}>", message=text) == f"<{text}>"
    assert filled("{{ message }}", message=text) == text


@settings(deadline=None, max_examples=25)
@given(st.text(alphabet="{}%#|.()[]'\" ab1+*~-_", max_size=40))
def test_any_template_source_renders_text_or_raises_a_one_line_error(source: str) -> None:
    try:
        template = Template(source)
        assert isinstance(template.text({**VALUES, **RandomFunctions(Random(1)).by_name()}), str)
    except (ScriptError, RuleFailureError) as error:
        assert "\n" not in str(error)
