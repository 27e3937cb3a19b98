"""A script that is wrong says so in one line, with file, rule and key."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.serving.scripts.rules import MOST_BYTES, ScriptError, read_script, script_of
from app.serving.scripts.script_set import RuleState

WRONG = {
    "": "the mapping is missing required field rules",
    "- a": "must be a mapping with rules, got list",
    "rules: []": "rules: expected list of length >= 1",
    "rule: []": "unknown key 'rule'; did you mean rules?",
    "{rules: [{then: pass}], colour: 1}": "unknown key 'colour'; there are rules, seed, tools",
    "rules: [{then: pass, wen: {}}]": "rule 1: unknown key 'wen'; did you mean when?",
    "rules: [{then: pass}, {name: x, then: {txt: a}}]": "rule 2 (x): then: unknown key 'txt'; did you mean",
    "rules: [{when: {message: {contians: a}}, then: pass}]": "when.message: unknown key 'contians'",
    "rules: [{when: {nth: {count: {at_leat: 1}}}, then: pass}]": "when.nth.count: unknown key 'at_leat'",
    "rules: [{when: {headers: {X: {a: 1}}}, then: pass}]": "when.headers.?: unknown key 'a'; there are exact",
    "rules: [{then: {text: 5}}]": "rule 1: then.text: expected str, got int",
    "rules: [{when: {turn: 0}, then: pass}]": "when.turn: expected int >= 1",
    "rules: [{when: {chance: 2}, then: pass}]": "when.chance: expected float <= 1.0",
    "rules: [{when: {api: chats}, then: pass}]": "when.api: must be one of chat, completions, responses",
    "rules: [{when: {nth: {count: 1, per: user}}, then: pass}]": "when.nth.per: must be one of server, key",
    "rules: [{then: pas}]": "then: must be 'pass' or a mapping, got 'pas'",
    "rules: [{then: {}}]": "then: is empty",
    "rules: [{then: {usage: {prompt_tokens: 1}}}]": "then: says nothing",
    "rules: [{then: {pass: true, text: a}}]": "then: pass leaves what is said to the mode below, so text",
    "rules: [{then: {text: a, embedding: [1]}}]": "then: text and embedding exclude each other",
    "rules: [{then: {text: a, json: {}}}]": "then: text and json exclude each other",
    "rules: [{then: {tool_calls: [{arguments: {}}]}}]": "then.tool_calls.0: the mapping is missing",
    "rules: [{when: {message: {regex: '('}}, then: pass}]": "rule 1: the regex '(' is not understood",
    "rules: [{then: {text: '{{ nme }}'}}]": "then.text: template '{{ nme }}': unknown name 'nme'",
    "rules: [{then: {text: '{{ match.a }}'}}]": "there is no group 'a' in match; the rule has no regex",
    "rules: [{then: {text: '{% for a in message %}{% endfor %}'}}]": "a loop (line 1) is not possible",
    "rules: [{then: {text: '{{'}}]": "then.text: template '{{'",
    "rules: [{then: {json: {a: '{{ b }}'}}}]": "then.json.a: template '{{ b }}': unknown name 'b'",
    "rules: [{then: {json: 2026-01-01}}]": "then.json: date is not JSON; put it in quotes",
    "rules: [{then: {json: [.nan]}}]": "then.json: float is not JSON",
    "rules: [{then: {fault: {action: eror}}}]": "then.fault: no action 'eror'; did you mean error?",
    "rules: [{then: {fault: {action: error, status: 20}}}]": "then.fault: error: Expected `int` >= 400",
    "rules: [{then: {text: a, delays: {per_token: soon}}}]": "then.delays.per_token: must be a duration",
    "rules: [{then: {text: a, delays: {before: {0: 1s}}}}]": "expected int >= 1",
    "rules: [{then: pass}, {then: pass": "cannot be parsed",
    "{rules: [{then: pass}], rules: []}": "rules is given twice",
}


@pytest.mark.parametrize("text", WRONG)
def test_what_is_wrong_is_said_in_one_line_with_its_place(tmp_path: Path, text: str) -> None:
    path = tmp_path / "a.yaml"
    path.write_text(text)
    with pytest.raises(ScriptError) as raised:
        for number, rule in enumerate(read_script(str(path)).rules, 1):
            RuleState(str(path), number, rule, number, 0.0)
    line = str(raised.value)
    assert WRONG[text] in line
    assert line.startswith(f"script {path}: ") and "\n" not in line


def test_a_file_that_is_not_there_or_too_large_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ScriptError, match="cannot be read: No such file"):
        read_script(str(tmp_path / "none.yaml"))
    large = tmp_path / "large.yaml"
    large.write_bytes(b"#" * (MOST_BYTES + 1))
    with pytest.raises(ScriptError, match="are more than the"):
        read_script(str(large))


KEYS = [
    *("rules", "when", "then", "name", "message", "role", "exact", "regex", "turn", "nth", "count", "per"),
    *("text", "json", "tool_calls", "arguments", "delays", "before", "fault", "action", "usage", "pass", "x"),
]
SCALARS = st.one_of(
    *(st.none(), st.booleans(), st.integers(), st.floats(), st.dates(), st.binary(max_size=3)),
    st.sampled_from(["pass", "error", "chat", "{{ match[1] }}", "{{ 1", "(", "a", "1s", ""]),
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.sampled_from([*KEYS, 1, None]), inner, max_size=4)
    ),
    max_leaves=12,
)
RULES = st.fixed_dictionaries({"then": VALUES}, optional={"when": VALUES, "name": VALUES})


@settings(deadline=None, max_examples=50)
@given(st.one_of(VALUES, st.fixed_dictionaries({"rules": st.lists(RULES, min_size=1, max_size=3)})))
def test_no_document_does_more_than_work_or_be_refused_in_one_line(document: Any) -> None:
    try:
        if isinstance(document, dict):
            for number, rule in enumerate(script_of(document, "a.yaml").rules, 1):
                RuleState("a.yaml", number, rule, number, 0.0)
    except ScriptError as error:
        assert "\n" not in str(error)
