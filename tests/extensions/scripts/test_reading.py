"""A script that is wrong says so in one line; one that would fill any memory or never end is
refused.
"""

import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.extensions.scripts import matching
from app.extensions.scripts.reader import MAX_SCRIPT_BYTES, convert_script, read_script
from app.extensions.scripts.rules import Script, ScriptError
from app.extensions.scripts.script_file import RuleState
from config.declaration import ConfigError
from config.yaml_file import MAX_LEVELS, parse_yaml
from tests.extensions.scripts.requests import Books, reply_text, request

WRONG = {
    "": "Object missing required field `rules`",
    "rules: []": "rules: Expected `array` of length >= 1",
    "{rules: [{then: pass}], colour: 1}": "unknown key 'colour'",
    "{rules: [{then: pass}], text: a}": "a.yaml: unknown key 'text'; it belongs elsewhere: write then: {",
    "rules: [{then: {text: a, model: m}}]": "unknown key 'model'; it belongs elsewhere: write when: {model",
    "rules: [{then: {text: a, at_least: 1}}]": "unknown key 'at_least'; it belongs elsewhere: write when",
    "rules: [{when: {contains: a}, then: pass}]": "unknown key 'contains'; it belongs elsewhere: write"
    " when: {message: {contains: ",
    "rules: [{then: pass}, {name: x, then: {txt: a}}]": "rule 2 (x): then: unknown key 'txt'; did you mean",
    "rules: [{when: {message: {contians: a}}, then: pass}]": "when.message: unknown key 'contians'",
    "rules: [{then: {text: 5}}]": "rule 1: then.text: Expected `str | null`, got `int`",
    "rules: [{when: {turn: 0}, then: pass}]": "when.turn: Expected `int` >= 1",
    "rules: [{when: {api: chats}, then: pass}]": "when.api: must be one of chat, completions, responses",
    "rules: [{then: pas}]": "then: must be 'pass' or a mapping, got 'pas'",
    "rules: [{then: {}}]": "then: is empty",
    "rules: [{then: {pass: true, text: a}}]": "then: pass leaves the reply to the reply mode, so text",
    "rules: [{then: {text: a, embedding: [1]}}]": "then: text and embedding cannot be combined",
    "rules: [{then: {tool_calls: [{arguments: {}}]}}]": "then.tool_calls.0: Object missing required field",
    "rules: [{when: {message: {regex: '('}}, then: pass}]": "rule 1: invalid regex '('",
    "rules: [{then: {text: '{{ nme }}'}}]": "then.text: template '{{ nme }}': unknown name 'nme'",
    "rules: [{then: {text: '{{ match.a }}'}}]": "the match has no group 'a'; the rule has no regex",
    "rules: "
    "[{then: {text: '{% for a in message %}{% endfor %}'}}]": "For is not supported in a script (line 1)",
    "rules: [{then: {json: {a: '{{ b }}'}}}]": "then.json.a: template '{{ b }}': unknown name 'b'",
    "rules: [{then: {json: 2026-01-01}}]": "then.json: date is not valid in JSON; put the value in quotes",
    "rules: [{then: {fault: {action: eror}}}]": "then.fault: unknown action 'eror'; did you mean error?",
    "rules: [{then: {fault: {status: 503}}}]": "then.fault: a rule needs an action, as in {action: error, s",
    "[{then: {text: a}}]": "must be a mapping that contains rules, got list: write rules: [{when: {message: ",
    "rules: [{then: {text: a, delays: {per_token: soon}}}]": "then.delays.per_token: must be a duration",
    "{rules: [{then: pass}], rules: []}": "rules is specified twice",
}
KEYS = [
    *(
        "rules",
        "when",
        "then",
        "name",
        "message",
        "role",
        "exact",
        "regex",
        "turn",
        "nth",
        "count",
        "per",
    ),
    *(
        "text",
        "json",
        "tool_calls",
        "arguments",
        "delays",
        "before",
        "fault",
        "action",
        "usage",
        "pass",
        "x",
    ),
]
SCALARS = st.one_of(
    *(st.none(), st.booleans(), st.integers(), st.floats(), st.dates(), st.binary(max_size=3)),
    st.sampled_from(["pass", "error", "chat", "{{ match[1] }}", "{{ 1", "(", "a", "1s", ""]),
)
SOON_S = 30
"""What takes for ever takes longer."""
TENS = [
    "x0: &x0 [1, 1, 1, 1, 1, 1, 1, 1, 1, 1]",
    *(f"x{k}: &x{k} [{', '.join([f'*x{k - 1}'] * 10)}]" for k in range(1, 9)),
]
BOMB = "\n".join(["rules:", "- then:", "    json:", *(f"      {line}" for line in TENS)])
MANY_KEYS = f"a: &a {{{', '.join(f'k{k}: 1' for k in range(1_000))}}}"
MANY_MERGES = [f"b{k}: {{<<: *a}}" for k in range(510)]
MERGES = [f"a{k}: &a{k} {{<<: [{', '.join([f'*a{k - 1}'] * 10)}]}}" for k in range(1, 12)]
EVIL = {
    "aliases of aliases": (BOMB, "has more than 500000 values"),
    # PyYAML 6.0.4 and later remove repeated keys of merges, and the file is not large then.
    "merges of merges": (
        "\n".join(["a0: &a0 {x: 1}", *MERGES]),
        "more than 500000 keys|unknown key 'a0'",
    ),
    "merges of many keys": ("\n".join([MANY_KEYS, *MANY_MERGES]), "more than 500000 keys"),
    "json in itself": ("rules: [{then: {json: &a [*a]}}]", "nested more than 100 levels"),
    "brackets": ("rules: " + "[" * 800, "cannot be parsed"),
    "a long number": (f"rules: [{{then: {{json: {'9' * 5_000}}}}}]", "cannot be parsed"),
    "half a character": ('rules: [{then: {text: "\\ud800"}}]', "unpaired surrogate"),
    "an object of Python": ("rules: !!python/object/apply:os.system [ls]", "cannot be parsed"),
    "an infinite score": ("rules: [{then: {score: .inf}}]", "then.score: numbers must be finite"),
}


def compile_rules(script: Script, path: str) -> None:
    for number, rule in enumerate(script.rules, 1):
        RuleState(path, number, rule, number, 0.0)


@pytest.mark.parametrize("text", WRONG)
def test_error_for_an_invalid_script_states_the_position(tmp_path: Path, text: str) -> None:
    path = tmp_path / "a.yaml"
    path.write_text(text)
    with pytest.raises(ScriptError) as raised:
        compile_rules(read_script(str(path)), str(path))
    line = str(raised.value)
    assert WRONG[text] in line
    assert line.startswith(f"script {path}") and "\n" not in line


def test_missing_or_oversized_script_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(ScriptError, match="cannot be read: No such file"):
        read_script(str(tmp_path / "none.yaml"))
    large = tmp_path / "large.yaml"
    large.write_bytes(b"#" * (MAX_SCRIPT_BYTES + 1))
    with pytest.raises(ScriptError, match="larger than 2 MiB"):
        read_script(str(large))


def lists_and_maps(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    maps = st.dictionaries(st.sampled_from([*KEYS, 1, None]), inner, max_size=4)
    return st.one_of(st.lists(inner, max_size=3), maps)


VALUES = st.recursive(SCALARS, lists_and_maps, max_leaves=12)
RULES = st.fixed_dictionaries({"then": VALUES}, optional={"when": VALUES, "name": VALUES})


@settings(deadline=None, max_examples=25)
@given(st.one_of(VALUES, st.fixed_dictionaries({"rules": st.lists(RULES, min_size=1, max_size=3)})))
def test_script_document_of_any_shape_raises_only_one_line_script_errors(document: Any) -> None:
    try:
        if isinstance(document, dict):
            compile_rules(convert_script(document, "a.yaml"), "a.yaml")
    except ScriptError as error:
        assert "\n" not in str(error)


@pytest.mark.parametrize("name", EVIL)
def test_hostile_file_is_rejected_quickly_with_a_one_line_error(tmp_path: Path, name: str) -> None:
    text, reason = EVIL[name]
    path = tmp_path / "a.yaml"
    path.write_text(text)
    begun_s = time.process_time()
    with pytest.raises(ScriptError) as refused:
        compile_rules(read_script(str(path)), str(path))
    line = str(refused.value)
    assert any(each in line for each in reason.split("|")), line
    assert "\n" not in line
    assert time.process_time() - begun_s < SOON_S


def test_settings_file_has_the_same_yaml_parser_limits_as_a_script(tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    path.write_text("port: &a [*a]")
    with pytest.raises(ConfigError, match="nested more than 100 levels"):
        parse_yaml(str(path))
    path.write_text("port: " + "[" * (MAX_LEVELS - 1) + "]" * (MAX_LEVELS - 1))
    assert isinstance(parse_yaml(str(path)), dict)


@pytest.mark.parametrize(
    ("action", "why"),
    [
        ("'{{ message" + " | json" * 30 + " }}'", "more than 262144 characters"),
        (
            "'{{ 3 | round(999999999) * " + " * ".join(["9" * 300] * 30) + " }}'",
            "of up to 1024 bits",
        ),
        ("'{{ 1e308 * 10 | float }}'", "JSON cannot represent"),
    ],
)
def test_template_that_exceeds_its_limits_fails_only_its_request(
    books: Books, action: str, why: str
) -> None:
    book = books.open(f"rules: [{{then: {{json: {action}}}}}]")
    with pytest.raises(Exception, match=why):
        reply_text(book, request('"' * 1000))


def test_number_of_rule_counters_stays_bounded_over_thousands_of_requests(books: Books) -> None:
    """Counters of keys and conversations are bounded, and there is nothing else that grows."""
    counted = "{when: {nth: {count: 2, per: %s}}, then: {text: again}}"
    regex_rule = "{when: {message: {regex: 'm(?P<n>.+)'}}, then: {text: '{{ match.n }}'}}"
    book = books.open(f"rules: [{counted % 'conversation'}, {counted % 'key'}, {regex_rule}]")
    for number in range(5000):
        assert reply_text(book, request(f"m{number}", key=f"key:{number}")) == str(number)
    assert book.size_bytes == book.limit_bytes
    assert [rule["answered"] for rule in book.report()["files"][0]["rules"]] == [0, 0, 5000]


def test_long_text_is_searched_outside_the_event_loop(
    books: Books, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A search looks at its time now and then only, and may go through a long text many times
    before.
    """
    searched = list[int]()

    def beside(search: Any, text: str, **options: Any) -> Any:
        searched.append(len(text))
        return search(text, **options)

    monkeypatch.setattr(matching, "call_off_hub", beside)
    book = books.open("rules: [{when: {message: {regex: ' +$'}}, then: {text: found}}]")
    long = "x" * (matching.MAX_LOOP_SEARCH_CHARACTERS + 1) + " "
    assert [reply_text(book, request(text)) for text in ("x ", long, "x")] == [
        "found",
        "found",
        None,
    ]
    assert searched == [len(long)]
