"""Texts of a form: whatever a random model would like to say, they have it."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.core.engine.choice_request import TextForm
from app.extensions.llm.errors import RequestError
from app.extensions.llm.library import make_engine
from app.extensions.llm.llm import LLM
from app.extensions.llm.sampling_params import SamplingParams, StructuredOutputsParams
from tests.extensions.llm.process import Worker, engine_process

pytestmark = [pytest.mark.engine, pytest.mark.timeout(300)]

Schema = dict[str, object]
CLOSED: Schema = {"additionalProperties": False}
NAMES = st.sampled_from(["a", "b", "long name", "ä"])
NUMBERS = st.integers(0, 5)


def text_of(least_length: int, extra_length: int) -> Schema:
    return {"type": "string", "minLength": least_length, "maxLength": least_length + extra_length}


def range_of_a_hundred(low: int) -> Schema:
    return {"type": "integer", "minimum": low, "maximum": low + 99}


LEAVES: st.SearchStrategy[Schema] = st.one_of(
    st.sampled_from([{"type": "boolean"}, {"type": "null"}, {"type": "string", "format": "date"}]),
    st.just({"type": "string", "pattern": "^[a-f]{2}-[0-9]{1,3}$"}),
    st.builds(range_of_a_hundred, st.integers(-1000, 1000)),
    st.builds(text_of, NUMBERS, NUMBERS),
    st.fixed_dictionaries(
        {"enum": st.lists(st.sampled_from([1, "x", None, 'q"', "日本"]), min_size=1)}
    ),
    st.sampled_from([{"const": constant} for constant in (3, "two words", {"k": [1]}, True)]),
)


def nested(inner: st.SearchStrategy[Schema]) -> st.SearchStrategy[Schema]:
    def array(items: Schema, least_items: int, extra_items: int) -> Schema:
        return {
            "type": "array",
            "items": items,
            "minItems": least_items,
            "maxItems": least_items + extra_items,
        }

    def an_object(properties: Schema, count: int) -> Schema:
        required = list(properties)[:count]
        return {"type": "object", "properties": properties, "required": required} | CLOSED

    return st.one_of(
        st.builds(array, inner, st.integers(0, 2), st.integers(0, 2)),
        st.builds(an_object, st.dictionaries(NAMES, inner, max_size=3), st.integers(0, 3)),
        st.fixed_dictionaries({"anyOf": st.lists(inner, min_size=1, max_size=3)}),
    )


SCHEMAS = st.recursive(LEAVES, nested, max_leaves=6)


@pytest.fixture(scope="module")
def llm(model: str) -> Iterator[LLM]:
    with LLM(model, "cpu", num_blocks=256, max_seq_length=900) as opened:
        yield opened


def say(llm: LLM, seed: int = 0, **form: object) -> tuple[str, object]:
    """Text and reason of the end, at a temperature at which nothing would make sense."""
    wanted = StructuredOutputsParams(**form)
    params = SamplingParams(temperature=1.0, seed=seed, max_tokens=800, structured_outputs=wanted)
    result = llm.generate_single("Say it:", params)
    return str(result["generated_text"]), result.get("error") or result["finish_reason"]


@settings(max_examples=25, deadline=None)
@given(SCHEMAS, st.integers(0, 10**6))
def test_json_output_satisfies_its_schema(llm: LLM, schema: Schema, seed: int) -> None:
    text, reason = say(llm, seed, json=schema)
    assert reason == "stop", text
    jsonschema.validate(json.loads(text), schema)


def test_regex_output_matches_its_pattern(llm: LLM) -> None:
    for pattern in (r"(yes|no)( sir)?", r"\d{4}-\d\d", "[α-ω]{2,5}!", r"a/b\\c", "^anchored$"):
        text, reason = say(llm, 1, regex=pattern)
        assert re.fullmatch(pattern, text) and reason == "stop"


@settings(max_examples=15, deadline=None)
@given(
    st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=12), min_size=1),
    st.integers(),
)
def test_choice_output_is_one_of_the_choices(llm: LLM, choices: list[str], seed: int) -> None:
    text, reason = say(llm, abs(seed), choice=choices)
    assert text in choices and reason == "stop"


def test_lark_and_gbnf_grammars_constrain_the_output(llm: LLM) -> None:
    lark = 'start: "SELECT " column (", " column) ~ 1..3\ncolumn: /c[0-9](~1..3)?/'
    gbnf = 'root ::= "SELECT " column ", " column\ncolumn ::= "c" [0-9]'
    for grammar in (lark, gbnf):
        text, reason = say(llm, grammar=grammar)
        assert re.fullmatch(r"SELECT c\d(~1..3)?(, c\d(~1..3)?){1,3}", text) and reason == "stop"


@pytest.mark.parametrize(
    ("grammar", "right", "wrong"),
    [
        ('?start: word "!" | "no"\n?word: "yes"', "yes!", "yes"),
        ('root ::= "\\U00000041" [\\U00000042-\\U00000044]+', "ACD", "AE"),
        ('root ::= "\\U0001F600" tail\ntail ::= "\\\\U" # root.2', "\U0001f600\\U", "\U0001f600"),
        ('root ::= a.b "." a.c\na.b ::= "x"\na.c ::= [a.b]', "x..", "x.x"),
    ],
)
def test_converted_grammars_allow_the_same_texts_as_the_originals(
    llm: LLM, grammar: str, right: str, wrong: str
) -> None:
    form = TextForm(grammar=grammar)
    assert may_be_said(llm, form, right) and not may_be_said(llm, form, wrong)


def test_json_object_mode_writes_an_object(llm: LLM) -> None:
    likely = dict.fromkeys(llm.engine.inputs.tokenizer.encode("}", False), 50.0)
    wanted = StructuredOutputsParams(json_object=True)
    greedy = SamplingParams(
        temperature=0.0, max_tokens=300, structured_outputs=wanted, logit_bias=likely
    )
    assert isinstance(
        json.loads(str(llm.generate_single("Say it:", greedy)["generated_text"])), dict
    )


TAG = {"begin": "<f=a>", "schema": {"type": "integer", "minimum": 0, "maximum": 99}, "end": "</f>"}


def tagged(content: Schema) -> Schema:
    return {"type": "tag", "begin": "<f=a>", "content": content, "end": "</f>"}


NUMBER: Schema = {"type": "json_schema", "json_schema": TAG["schema"]}
ANY: Schema = {"type": "any_text"}
GRAMMAR: Schema = {"type": "grammar", "grammar": 'start: "y" z\nz: "z"{1,2}'}


def literal(value: str) -> Schema:
    return {"type": "const_string", "value": value}


def triggered(**fields: object) -> Schema:
    return {"type": "triggered_tags", "triggers": ["<f="], "tags": [tagged(NUMBER)], **fields}


@pytest.mark.parametrize(
    ("format", "right", "wrong"),
    [
        (tagged(ANY), ["<f=a></f>", "<f=a>x < y\n</f>"], ["", "<f=a>", "<f=a></f>x"]),
        (tagged(NUMBER), ["<f=a>7</f>"], ["<f=a>x</f>", "<f=a>700</f>"]),
        (triggered(), ["", "x", "x<f=a>1</f>y<f=a>2</f>"], ["<f=b>1</f>", "<f=a>x</f>", "<f=a>1"]),
        (triggered(at_least_one=True), ["x<f=a>1</f>y"], ["", "x"]),
        (
            triggered(at_least_one=True, stop_after_first=True),
            ["x<f=a>1</f>"],
            ["x", "<f=a>1</f>y"],
        ),
        (
            {
                "type": "sequence",
                "elements": [ANY, literal("END"), {"type": "regex", "pattern": "a/b+"}],
            },
            ["ENDa/b", "x ENDa/bbb"],
            ["END", "x", "a/b"],
        ),
        ({"type": "or", "elements": [literal("x"), GRAMMAR]}, ["x", "yz", "yzz"], ["", "y", "xyz"]),
        ({"type": "repeat", "min": 1, "max": 2, "content": literal("x")}, ["x", "xx"], ["", "xxx"]),
        (
            {"type": "optional", "content": {"type": "plus", "content": literal("x")}},
            ["", "xx"],
            ["y"],
        ),
        (
            {
                "type": "tags_with_separator",
                "separator": ",",
                "tags": [tagged(NUMBER)],
                "at_least_one": True,
            },
            ["<f=a>1</f>", "<f=a>1</f>,<f=a>2</f>"],
            ["", "<f=a>1</f><f=a>2</f>"],
        ),
    ],
)
def test_structural_tags_allow_exactly_the_texts_of_their_format(
    llm: LLM, format: Schema, right: list[str], wrong: list[str]
) -> None:
    form = TextForm(structural_tag=json.dumps({"type": "structural_tag", "format": format}))
    for text in right:
        assert may_be_said(llm, form, text), text
    for text in wrong:
        assert not may_be_said(llm, form, text), text


def test_legacy_structural_tags_constrain_the_output(llm: LLM) -> None:
    text, _ = say(llm, structural_tag=json.dumps({"structures": [TAG], "triggers": ["<f="]}))
    assert all(re.match(r"a>\d{1,2}(</f>|$)", tail) for tail in text.split("<f=")[1:])


def may_be_said(llm: LLM, form: TextForm, text: str) -> bool:
    """Whether each token may come after those before it, and then the end."""
    tokenizer = llm.engine.inputs.tokenizer
    matcher = llm.engine.inputs.compile(form)
    assert tokenizer is not None
    for token_id in tokenizer.encode(text, False):
        if not matcher.mask()[token_id]:
            return False
        matcher.add(token_id)
    return all(bool(matcher.mask()[end]) for end in llm.engine.inputs.eos_token_ids)


@pytest.mark.parametrize(
    "form",
    [
        {"json": '{"type": "nothing"}'},
        {"json": "{"},
        {"json": {"type": "array", "uniqueItems": True}},
        {"json": {"type": "array", "maxItems": 10**9}},
        {"json": '{"items":' * 5000 + "{}" + "}" * 5000},
        {"json": {"$ref": "#"}},
        {"json": {"$ref": "http://localhost/x"}},
        {"regex": "(?=x)y"},
        {"regex": "(" * 5000 + "a" + ")" * 5000},
        {"grammar": 'start: %json {"type": "array", "max\\u0049tems": 1000000000}'},
        {"grammar": "start: " + "(" * 5000 + '"a"' + ")" * 5000},
        {"grammar": "start: nowhere"},
        {"choice": ["x" * 99, "y"] * 5000},
        {"structural_tag": '{"format":' + '{"type": "tag", "content":' * 5000},
        {"structural_tag": '{"format": {"type": "poem"}}'},
        {"structural_tag": '{"structures": [{"begin": "x", "end": "y"}], "triggers": ["z"]}'},
    ],
)
def test_invalid_constraint_is_rejected_with_a_short_error(llm: LLM, form: Schema) -> None:
    wanted = StructuredOutputsParams(**form)
    with pytest.raises(RequestError) as raised:
        next(llm.generate_stream("a", SamplingParams(structured_outputs=wanted)))
    assert len(str(raised.value)) < 400 and "\n" not in str(raised.value)
    assert len(say(llm, regex="[ab]{3}")[0]) == 3


def test_structured_output_parameters_need_exactly_one_constraint() -> None:
    for form in ({}, {"regex": "a", "json_object": True}, {"choice": []}):
        with pytest.raises(RequestError):
            StructuredOutputsParams(**form)


def test_stop_strings_and_min_tokens_apply_to_constrained_output(llm: LLM) -> None:
    """Stop strings come first; least lengths are kept while the form leaves a way; ends are not
    ignored.
    """

    def ended(pattern: str, **options: Any) -> tuple[object, object]:
        params = SamplingParams(
            seed=3, structured_outputs=StructuredOutputsParams(regex=pattern), **options
        )
        result = llm.generate_single("Say it:", params)
        return result["generated_text"], result["finish_reason"]

    assert ended("aaaa;bbbb", stop=[";"]) == ("aaaa", "stop")
    assert ended("abc", ignore_eos=True) == ("abc", "stop")
    assert ended("abc", min_tokens=90) == ("abc", "stop")
    text, reason = ended("[ab]{1,50}", min_tokens=12, max_tokens=12)
    assert reason == "length" and len(text) >= 12
    assert ended("[ab]{9}", max_tokens=2)[1] == "length"
    several = SamplingParams(
        seed=2, n=4, structured_outputs=StructuredOutputsParams(regex="[a-z]{6,9}")
    )
    texts = [str(result["generated_text"]) for result in llm.generate(["Say it:"], several)]
    assert len(set(texts)) == 4 and all(re.fullmatch("[a-z]{6,9}", text) for text in texts)


def test_structured_output_constraint_survives_preemption(
    model: str,
) -> None:
    free = SamplingParams(temperature=0.0, max_tokens=40, ignore_eos=True)
    form = StructuredOutputsParams(regex="[a-z ]{60,70}")
    formed = SamplingParams(temperature=1.0, seed=5, structured_outputs=form)
    alone, tight = (make_engine(model, "cpu", num_blocks=blocks) for blocks in (256, 10))
    replies = []
    for engine in (alone, tight):
        texts = {"free": "", "formed": ""}
        engine.add_request("free", [5] * 60, free, priority=-1)
        engine.add_request("formed", [6] * 60, formed)
        while engine.has_work:
            for output in engine.step():
                texts[output.sequence.request_id] += "".join(output.update.texts)
        replies.append(texts)
    assert tight.scheduler.preemptions and not alone.scheduler.preemptions
    assert replies[0] == replies[1] and re.fullmatch("[a-z ]{60,70}", replies[0]["formed"])


HEAVY = [
    {"type": "string", "pattern": f"(a|b){{{min_length},{min_length + 500}}}"}
    for min_length in range(1, 30)
]
EXPLODING = {
    "allOf": [{"type": "object", "properties": {"p": form}} for form in HEAVY],
    "required": ["p"],
}
"""Of these the library computes for minutes, in gigabytes."""


def test_exponentially_large_grammar_does_not_affect_the_next_request(model: str) -> None:
    with (
        engine_process(Path(model), max_model_len=512) as engine,
        Worker(engine.options.endpoint) as worker,
    ):
        for key in (3, 4):
            worker.generate(key, [9], 8, form=TextForm(json_schema=json.dumps(EXPLODING)))
            [refusal] = worker.wait(key)
            assert refusal.is_refused and "too long" in str(refusal.error)
        worker.generate(5, [9], 8, form=TextForm(regex="[ab]{3}"), ignore_eos=False)
        assert re.fullmatch("[ab]{3}", worker.whole(5)[1])


def test_request_without_allowed_tokens_does_not_affect_the_next_one(
    llm: LLM,
) -> None:
    wanted = StructuredOutputsParams(regex="abc")
    result = llm.generate_single(
        "a", SamplingParams(structured_outputs=wanted, allowed_token_ids=[5])
    )
    assert result["finish_reason"] == "error" and "left" in str(result["error"])
    assert say(llm, regex="abc") == ("abc", "stop")
