"""Chat templates render as their authors expect, and cannot do more than render."""

import json
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from types import BuiltinMethodType
from typing import Any

import jinja2
import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jinja2.sandbox import ImmutableSandboxedEnvironment

from app.core.text.base import ChatOptions, ChatTemplateError, TokenizerInputError
from app.core.text.chat_template import ChatTemplates
from app.core.text.compiled_template import END_MARK, ChatTemplateCompiler, ToolWrappers
from app.core.text.huggingface import LocalTokenizer
from app.core.text.template_environment import ADDRESS, TemplateEnvironment, TemplateFunction
from tests.core.tokenization.renderer import RendererWithoutProcess

HI: list[Any] = [{"role": "user", "content": "hi"}]


def render(source: str, messages: list[Any] = HI, **options: Any) -> str:
    templates = ChatTemplates(
        {"default": source},
        {"bos_token": "<s>"},
        now=lambda: datetime(2024, 2, 29, 13, 5),
        renderer=RendererWithoutProcess(),
    )
    return templates.render(messages, ChatOptions(**options))


SAID = "{{ add_generation_prompt }}{{ documents }}{{ bos_token }}"
BLOCKS = """\
{% for m in messages %}
    {% if true %}
{{ m.role }}: {{ m['content'] }}
    {% endif %}
{% endfor %}"""
LEFT = "{% for n in [1, 2, 3] %}{% if n == 2 %}{% break %}{% endif %}{{ n }}{% endfor %}"
GOING_ON = "{% if add_generation_prompt %}go{% endif %}"
EXTRA: dict[str, Any] = {"add_generation_prompt": False, "documents": [1], "bos_token": "<B>"}


@pytest.mark.parametrize(
    ("source", "options", "text"),
    [
        (BLOCKS, {}, "user: hi\n"),
        ("{{ bos_token }}{{ strftime_now('%d %B %Y') }}{{ eos_token }}", {}, "<s>29 February 2024"),
        ("{{ {'a': '<é&>'} | tojson }}", {}, '{"a": "<é&>"}'),
        ("{{ [1] | tojson(indent=2) }}", {}, "[\n  1\n]"),
        (LEFT, {}, "1"),
        ("{% generation %}{{ messages[0].content }}{% endgeneration %}!", {}, "hi!"),
        (GOING_ON, {}, "go"),
        (GOING_ON, {"add_generation_prompt": False}, ""),
        ("{{ tools is none }}{{ documents is none }}", {}, "TrueTrue"),
        (
            "{{ tools | length }}{{ documents[0].text }}",
            {"tools": [{}], "documents": [{"text": "D"}]},
            "1D",
        ),
        ("{{ enable_thinking }}", {"chat_template_kwargs": {"enable_thinking": False}}, "False"),
        # What the request sets wins over the same name in the extra variables.
        (SAID, {"chat_template_kwargs": EXTRA}, "True[1]<B>"),
        # How a template is applied is no variable of it.
        (
            "{{ chat_template is defined }}",
            {"chat_template_kwargs": {"chat_template": "x"}},
            "False",
        ),
        ("{{ tokenize is defined }}", {"chat_template_kwargs": {"tokenize": None}}, "False"),
        ("{{ messages.__class__ }}{{ ''.__doc__ }}", {}, ""),
    ],
)
def test_chat_templates_can_use_the_features_of_transformers(
    source: str, options: dict[str, Any], text: str
) -> None:
    assert render(source, **options) == text


def test_rendering_errors_and_reserved_arguments_raise_a_template_error() -> None:
    for name in ("messages", "conversation", "tokenizer", "model_config"):
        with pytest.raises(ChatTemplateError, match=name):
            render("", chat_template_kwargs={name: "x"})
    with pytest.raises(ChatTemplateError, match="at least one message"):
        render("anything", [])
    with pytest.raises(ChatTemplateError, match="roles must take turns"):
        render("{{ raise_exception('roles must take turns') }}")
    assert issubclass(ChatTemplateError, (TokenizerInputError, ValueError))


WITHOUT_ADDRESS = (
    *(
        "{{ namespace }}{{ cycler }}{{ joiner }}{{ dict }}{{ range }}{{ lipsum }}{{ raise_exception }}",
    ),
    *(
        "{{ strftime_now }}{{ cycler('a') }}{{ joiner() }}{{ namespace(f=range) }}",
        "{{ self }}{{ range ~ 1 }}",
    ),
    *("{{ 'a'.upper }}{{ 'a'['upper'] }}{{ 'a' | attr('upper') }}{{ {}.items }}{{ 'a'.format }}",),
    *("{{ '%s %r' % (range, cycler) }}{{ '{} {!r} {.upper}'.format(range, cycler, 'a') }}",),
    *(
        "{{ [range, [joiner()]] }}{{ {'a': range} | string }}{{ [range] | join }}{{ [range] | pprint }}",
    ),
    *("{{ range | upper }}{{ 'x' | replace('x', range) }}{{ cycler | e }}{{ range | urlencode }}",),
    *("{% for m in messages %}{{ loop }}{{ loop.cycle }}{{ loop.changed }}{% endfor %}",),
    *("{% macro f() %}{{ caller }}{% endmacro %}{{ f }}{% call f() %}{% endcall %}",),
    *("{% block a %}{{ self.a }}{{ super }}{% endblock %}", "{% set f = range %}{{ f }}{{ (f,) }}"),
    *(
        "{{ raise_exception(range) }}",
        "{{ range(messages.clear) }}",
        "{{ {}[range].x }}",
        "{{ range + 1 }}",
    ),
    *(
        "{{ [1].index(range) }}",
        "{{ messages.nothing(cycler) }}",
        "{{ 3 | tojson }}{{ range | tojson }}",
    ),
)


@pytest.mark.parametrize("source", WITHOUT_ADDRESS)
def test_chat_templates_print_no_memory_addresses(source: str) -> None:
    try:
        text = render(source)
    except ChatTemplateError as error:
        text = str(error)
    assert text
    assert "0x" not in text


def test_chat_template_filters_return_no_memory_addresses() -> None:
    arguments: dict[str, Any] = {
        "attr": "upper",
        "batch": 2,
        "groupby": "role",
        "map": "upper",
        "rejectattr": "role",
        "selectattr": "role",
        "slice": 2,
    }
    environment = TemplateEnvironment(datetime.now)
    for name in environment.filters:
        argument = f"({arguments[name]!r})" if name in arguments else ""
        template = environment.from_string("{{ value | " + name + argument + " }}")
        for value in ("text", [{"role": "a"}], {"role": "a"}, 1.5):
            assert "0x" not in outcome_of(template, value=value), name


def test_template_functions_and_iterators_behave_as_in_jinja() -> None:
    source = (
        "{% set turn = cycler('a', 'b') %}{% set comma = joiner() %}{{ turn.next() }}{{ turn.next() }}"
        "{{ comma() }}{{ comma() }}{{ dict(a=1).a }}{{ range(3) | sum }}{{ 'a b'.split() | length }}"
        "{% for word in ['x', 'y'] | map('upper') %}{{ loop.index }}/{{ loop.length }}{{ word }}{% endfor %}"
        "{{ [2, 1] | reverse | list }}{{ range is callable }}{{ [1] | select is iterable }}"
        "{{ [1] | map('string') | first }}{{ 'b' in (['a', 'b'] | reject('none')) }}{{ '{:>3}'.format(1) }}"
    )
    assert render(source) == "ab, 1321/2X2/2Y[1, 2]TrueTrue1True  1"


def test_method_of_a_template_value_compares_equal_only_to_itself() -> None:
    assert (
        render("{% set m = {} %}{{ m.items == m['items'] }}{{ m.items == m.keys }}") == "TrueFalse"
    )


REACHING = (
    "{{ ''.__class__.__mro__[1].__subclasses__() }}", "{{ messages.append(1) }}",
    "{{ raise_exception.__globals__ }}{{ raise_exception.__globals__['json'] }}",
    "{{ cycler.__init__.__globals__.os.system('true') }}", "{{ range(10 ** 9) | list }}",
    "{{ '{0.__class__.__mro__[1]}'.format(1).nothing.at.all }}", "{{ strftime_now.__self__.x.y }}",
    "{% include '/etc/passwd' %}", "{% macro again() %}{{ again() }}{% endmacro %}{{ again() }}",
)  # fmt: skip


@pytest.mark.parametrize("source", REACHING)
def test_chat_template_that_reaches_python_internals_is_rejected(source: str) -> None:
    with pytest.raises(ChatTemplateError):
        render(source)


@pytest.mark.parametrize(
    "source",
    [
        *(
            "{% for %}",
            "{{ 1",
            "{% nonsense %}",
            "{{ 1 | nofilter }}",
            "(" * 10 + "{{" + "(" * 5_000,
        ),
        "{% if true %}" * 120 + "{% endif %}" * 120,  # Python refuses so many levels of indentation
    ],
)
def test_invalid_chat_template_is_rejected(source: str) -> None:
    with pytest.raises(ChatTemplateError, match="does not compile"):
        render(source)


ECHO = "{% for m in messages %}[{{ m.role }}]{{ m.content }}[/]{% endfor %}"
TRIM = ECHO.replace("m.content", "m.content | trim")
TALK: list[Any] = [
    {"role": "user", "content": "count"},
    {"role": "assistant", "content": "one, two, "},
]


def test_continued_final_message_is_rendered_without_its_end() -> None:
    options = {"continue_final_message": True, "add_generation_prompt": False}
    assert render(ECHO, TALK, **options) == "[user]count[/][assistant]one, two, "
    assert render(TRIM, TALK, **options) == "[user]count[/][assistant]one, two,"
    parts = [TALK[0], {"role": "assistant", "content": [{"type": "text", "text": "one"}]}]
    source = (
        "{% for m in messages %}{% for part in m.content %}{{ part.text }}|{% endfor %}{% endfor %}"
    )
    assert render(source, parts, **options) == "count|one"


def test_final_message_that_is_not_rendered_cannot_be_continued() -> None:
    options = {"continue_final_message": True, "add_generation_prompt": False}
    with pytest.raises(ChatTemplateError, match="does not render"):
        render("nothing", TALK, **options)
    with pytest.raises(ChatTemplateError, match="are not compatible"):
        render(ECHO, TALK, continue_final_message=True)
    image = [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]
    with pytest.raises(ChatTemplateError, match="contains text"):
        render(
            "{% for m in messages %}{% for p in m.content %}{% endfor %}{% endfor %}",
            image,
            **options,
        )


def test_chat_template_is_selected_by_its_name_or_by_the_presence_of_tools() -> None:
    templates = ChatTemplates({"default": "plain", "tool_use": "tools", "rag": "documents"}, {})
    for options, text in (
        ({}, "plain"),
        ({"tools": [{}]}, "tools"),
        ({"chat_template": "rag"}, "documents"),
        ({"chat_template": "tools"}, "tools"),
    ):
        assert templates.render(HI, ChatOptions(**options)) == text  # type: ignore[arg-type]
    templates = ChatTemplates({}, {})
    with pytest.raises(ChatTemplateError, match="nor the request has a chat template"):
        templates.render(HI)


def test_chat_template_is_found_in_each_supported_file_of_a_model_folder(
    tmp_path: Path, embedded: LocalTokenizer
) -> None:
    data = Path(__file__).parents[3] / "app/core/text/data"
    (tmp_path / "tokenizer.json").write_bytes((data / "tokenizer.json").read_bytes())

    def rendered(**options: Any) -> str:
        return LocalTokenizer.from_path(tmp_path).render_chat(HI, ChatOptions(**options))

    config = tmp_path / "tokenizer_config.json"
    config.write_text('{"chat_template": "one {{ eos_token }}", "eos_token": {"content": "<e>"}}')
    assert rendered() == "one <e>"
    named = [{"name": "default", "template": "list"}, {"name": "tool_use", "template": "with"}]
    config.write_text(json.dumps({"chat_template": named}))
    assert (rendered(), rendered(tools=[{}])) == ("list", "with")
    (tmp_path / "chat_template.jinja").write_text("file")
    assert rendered() == "file"


def test_embedded_template_renders_roles_tools_and_tool_calls(embedded: LocalTokenizer) -> None:
    call = {"type": "function", "id": "1", "function": {"name": "f", "arguments": '{"a": 1}'}}
    talk: list[Any] = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "1", "content": "7"},
    ]
    prompt = embedded.render_chat(
        talk, ChatOptions(tools=[{"type": "function", "function": {"name": "f"}}])
    )
    assert prompt.startswith("<|system|>\nYou can call")
    assert (
        '{"type": "function", "function": {"name": "f"}}\n<|endoftext|>\n<|system|>\nBe brief.'
        in prompt
    )
    assert prompt.endswith(
        '<|user|>\nhi<|endoftext|>\n<|assistant|>\n\n{"name": "f", "arguments": {"a": 1}}<|endoftext|>\n'
        "<|tool|>\n7<|endoftext|>\n<|assistant|>\n"
    )
    ids = embedded.encode_chat(HI)
    assert (
        embedded.decode(ids, skip_special_tokens=False)
        == "<|user|>\nhi<|endoftext|>\n<|assistant|>\n"
    )
    assert [ids[0], ids[-2]] == [2, 3]


def test_compiled_templates_stay_within_a_memory_limit() -> None:
    compiler = ChatTemplateCompiler({}, datetime.now, takes_media=True, limit_bytes=100_000)
    for number in range(50):
        assert compiler.compile(f"{number}").render(HI, ChatOptions()) == str(number)
        assert 0 < compiler.compiled.size_bytes <= compiler.compiled.limit_bytes


def test_tojson_filter_renders_thousands_of_tools_like_json_dumps() -> None:
    tools = [{"name": f"ä{n}", "n": [n, None, True, {"b": 1.5}]} for n in range(3_000)]
    assert render("{{ tools | tojson }}", tools=tools) == json.dumps(tools, ensure_ascii=False)
    assert render("{{ tools | tojson(indent=1) }}", tools=tools) == json.dumps(
        tools, ensure_ascii=False, indent=1
    )


NAMES = st.sampled_from(
    ["role", "content", "tool_calls", "items", "get", "update", "__class__", "__len__"]
)
VALUES = st.none() | st.booleans() | st.integers() | st.text(max_size=3)
MEMBERS = st.dictionaries(NAMES, VALUES | st.dictionaries(NAMES, VALUES, max_size=2), max_size=4)
USES = (
    "{{ m.%s }}", "{{ m.%s is defined }}{{ m.%s is none }}", "{{ m.%s or 'none' }}", "{{ m.%s.role }}",
    "{% for each in m.%s %}{{ each }}{% endfor %}", "{{ m.%s | length }}", "{{ m.%s == m['%s'] }}",
)  # fmt: skip
OURS = TemplateEnvironment(datetime.now)
JINJAS = ImmutableSandboxedEnvironment()


def outcome_of(template: jinja2.Template, **values: object) -> str:
    try:
        return template.render(**values)
    except Exception as error:
        return f"{type(error).__name__}: {error}"


@settings(max_examples=40, deadline=None)
@given(MEMBERS, NAMES, st.sampled_from(USES))
def test_template_attributes_resolve_as_in_the_jinja_sandbox(
    member: dict[str, Any], name: str, use: str
) -> None:
    source = use.replace("%s", name)
    ours = OURS.from_string(source)
    jinjas = JINJAS.from_string(source)
    for value in (member, [member], "text", None):
        expected = ADDRESS.sub("", outcome_of(jinjas, m=value))
        wrapper = TemplateFunction.__name__  # named in an error where a method is used as a value
        assert outcome_of(ours, m=value).replace(wrapper, BuiltinMethodType.__name__) == expected


@pytest.mark.parametrize(
    ("body", "depends_on_role_alone"),
    [
        (
            "<{{ message.role }}> {{ message['content'] }}{% if message.tool_calls %}!{% endif %}",
            True,
        ),
        ("{% for _ in [1, 2] %}{{ message.content }}{% endfor %}", True),
        ("{% set message = {'content': 'c'} %}{{ message.content }}", False),
        ("{{ message.content }}{{ strftime_now('%Y') }}", False),
        ("{{ message.content | upper }}", False),
        ("{% filter upper %}{{ message.content }}{% endfilter %}", False),
        ("{{ message | tojson }}", False),
        ("{{ message.content }}{% if 'a' in message.get('content') %}!{% endif %}", False),
        (
            "{{ message.content }}{% for _, value in message.items() %}{{ value | length }}{% endfor %}",
            False,
        ),
        ("{% autoescape true %}{{ message.content }}{% endautoescape %}", False),
        ("{{ message.content }}{{ messages | length }}", False),
    ],
)
def test_text_around_messages_is_cached_if_it_depends_only_on_the_role(
    body: str, depends_on_role_alone: bool
) -> None:
    source = (
        "{% for message in messages %}"
        + body
        + "{% endfor %}{% if add_generation_prompt %}>{% endif %}"
    )
    templates = ChatTemplates({"default": source}, {})
    compiled = templates.compiled(ChatOptions())
    for text in ("a", "b", "{{ x }}", "<END"):
        for role in ("user", "system"):
            message = {"role": role, "content": text}
            whole = compiled._run([message], {**compiled.variables, "add_generation_prompt": True})
            assert templates.render([message]) == whole
    assert compiled.wraps_content is depends_on_role_alone
    assert bool(compiled.wrappers) is depends_on_role_alone


TOOLS_SOURCE = (
    "{% for tool in tools or [] %}{{ tool | tojson }}{% endfor %}"
    "{% for message in messages %}<{{ message.role }}>{{ message.content }}{% endfor %}"
)
JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda values: st.lists(values, max_size=2) | st.dictionaries(st.text(max_size=5), values),
    max_leaves=4,
)


@settings(max_examples=30, deadline=None)
@given(
    st.lists(st.lists(st.dictionaries(st.text(max_size=5), JSON_VALUES), max_size=2), max_size=4),
    st.text(max_size=8) | st.just(END_MARK),
)
def test_rendering_with_cached_tool_prefixes_equals_rendering_without_them(
    tool_lists: list[list[dict[str, object]]], text: str
) -> None:
    templates = ChatTemplates({"default": TOOLS_SOURCE}, {})
    compiled = templates.compiled(ChatOptions())
    messages = [{"role": "user", "content": text}]
    for tools in tool_lists * 2:
        key = None
        with suppress(OverflowError):  # integers of more than 64 bits
            key = msgspec.msgpack.encode(tools)
        options = ChatOptions(tools=tools, tools_key=key)
        assert templates.render(messages, options) == compiled.render(messages, options)


def test_tools_with_numbers_of_different_types_are_cached_separately() -> None:
    templates = ChatTemplates({"default": TOOLS_SOURCE}, {})
    values = (1, 1.0, True, None, float("nan"), float("inf"), "1")
    for value in values:
        tools = [{"default": value}]
        options = ChatOptions(tools=tools, tools_key=msgspec.msgpack.encode(tools))
        prompt = templates.render(HI, options)
        assert prompt.startswith(json.dumps({"default": value}))
    assert len(templates.tool_wrappers) == len(values)


def test_cached_tool_prefixes_stay_within_a_memory_limit() -> None:
    wrappers = ToolWrappers(limit_bytes=5_000)
    for number in range(100):
        key = b"tool %d" % number
        wrappers.learn(("user", key), ("a" * number, "b"))
        assert ("user", key) in wrappers
        assert wrappers.size_bytes <= wrappers.limit_bytes
    wrappers.learn(("user", b""), ("a" * 5_000, "b"))
    assert ("user", b"") not in wrappers
