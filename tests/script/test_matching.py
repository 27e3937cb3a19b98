"""Which requests a rule fits."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import convert

from app.serving.scripts.matching import Conditions, Groups, Request, TooSlow
from app.serving.scripts.rules import When
from tests.script.requests import request

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


def fits(when: dict[str, Any], asked: Request) -> bool:
    return Conditions(convert(when, When)).fits(asked, Groups())


@pytest.mark.parametrize(
    ("when", "holds"),
    [
        ({}, True),
        ({"model": "tiny"}, True),
        ({"model": ["a", "tiny"]}, True),
        ({"model": "tin"}, False),
        ({"api": "chat"}, True),
        ({"api": ["responses", "messages"]}, False),
        ({"message": "Three"}, True),
        ({"message": "three"}, False),
        ({"message": {"exact": "three", "ignore_case": True}}, True),
        ({"message": {"contains": ["x", "hre"]}}, True),
        ({"message": {"regex": "^T.*e$"}}, True),
        ({"message": {"regex": "^t", "ignore_case": True}}, True),
        ({"message": {"contains": "hre", "regex": "x"}}, False),
        ({"message": {"role": "user"}}, True),
        ({"message": {"role": "tool"}}, False),
        ({"message": {"role": "assistant", "exact": "two"}}, True),
        ({"message": {"which": "first", "exact": "one"}}, True),
        ({"message": {"which": "first", "role": "user", "exact": "Three"}}, False),
        ({"message": {"which": "any", "exact": "two"}}, True),
        ({"message": {"which": "any", "role": "user", "exact": "two"}}, False),
        ({"message": ["Three", {"which": "first", "exact": "one"}]}, True),
        ({"message": ["Three", {"which": "first", "exact": "two"}]}, False),
        ({"turn": 2}, True),
        ({"turn": [1, 3]}, False),
        ({"turn": {"at_least": 2, "at_most": 2}}, True),
        ({"turn": {"at_least": 3}}, False),
        ({"tool_result": False}, True),
        ({"tool_result": True}, False),
        ({"tools": False}, True),
        ({"tools": True}, False),
        ({"headers": {"x-team": None}}, False),
    ],
)
def test_a_chat_fits(when: dict[str, Any], holds: bool) -> None:
    assert fits(when, CHAT) is holds


@pytest.mark.parametrize(
    ("when", "holds"),
    [
        ({"tool_result": True}, True),
        ({"tool_result": "get_weather"}, True),
        ({"tool_result": "get_money"}, False),
        ({"tool_result": {"tool": "get_weather", "contains": "sun"}}, True),
        ({"tool_result": {"tool": "get_time", "contains": "sun"}}, False),
        ({"tools": True}, True),
        ({"tools": "get_time"}, True),
        ({"tools": ["get_time", "get_money"]}, False),
        ({"turn": 1}, True),
        ({"headers": {"X-Team": "red"}}, True),
        ({"headers": {"X-Team": {"regex": "^r"}}}, True),
        ({"headers": {"X-Team": "blue"}}, False),
        ({"message": {"role": "system", "contains": "brief"}}, True),
    ],
)
def test_a_conversation_with_tools_fits(when: dict[str, Any], holds: bool) -> None:
    assert fits(when, AGENT) is holds


def test_groups_are_those_of_the_regexes() -> None:
    when = {
        "message": {"role": "user", "regex": r"weather in (?P<city>\w+)"},
        "headers": {"x-team": {"regex": "(?P<first>.)"}},
    }
    conditions, groups = Conditions(convert(when, When)), Groups()
    assert conditions.groups == {"0", "1", "city", "first"}
    assert conditions.fits(AGENT, groups)
    assert groups.named == {"city": "Rome", "first": "r"}
    assert groups.numbered == ["r", "r"], "of the first regex that was looked at"


def test_a_regex_without_an_end_is_given_up() -> None:
    with pytest.raises(TooSlow):
        fits({"message": {"regex": "(a|aa)+$"}}, request("a" * 60 + "b"))


def test_the_first_condition_that_does_not_hold_is_named() -> None:
    conditions = Conditions(convert({"model": "tiny", "message": "x", "turn": 9}, When))
    assert conditions.misfit(CHAT, Groups()) == "turn"


@settings(deadline=None, max_examples=40)
@given(st.text(), st.text())
def test_contains_and_exact_are_what_they_say(text: str, part: str) -> None:
    assert fits({"message": part}, request(text)) is (text == part)
    assert fits({"message": {"contains": part}}, request(text)) is (part in text)
    assert fits({"message": {"contains": part}}, request(text + part + text))


@settings(deadline=None, max_examples=40)
@given(st.lists(st.tuples(st.sampled_from(["user", "assistant", "tool"]), st.text(max_size=3)), max_size=8))
def test_a_conversation_is_known_by_its_beginning(said: list[tuple[str, str]]) -> None:
    begun = [("system", "s"), ("user", "first")]
    one, other = request(*begun), request(*begun, *said)
    assert one.conversation == other.conversation
    assert one.conversation != request(("system", "t"), ("user", "first")).conversation
    assert one.conversation != request(*begun, key="key:2").conversation


@settings(deadline=None, max_examples=40)
@given(st.lists(st.sampled_from(["user", "assistant", "tool"]), max_size=8))
def test_turns_and_results_are_counted(roles: list[str]) -> None:
    asked = request(*((role, str(number)) for number, role in enumerate(roles)))
    assert asked.turn == max(1, roles.count("user"))
    results = [each.text for each in asked.tool_results]
    assert results == [str(number) for number in range(len(roles) - len(results), len(roles))]
    assert all(role == "tool" for role in roles[len(roles) - len(results) :])
    assert len(results) == len(roles) or roles[len(roles) - len(results) - 1] != "tool"
