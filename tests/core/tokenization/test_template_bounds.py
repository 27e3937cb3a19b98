"""The event loop runs a template of the model only as far as it is quick and small."""

import time
from collections.abc import Mapping
from datetime import datetime
from typing import Any

import gevent
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.core.base.clock.pause import SharedWork
from app.core.base.fair_slots import SlotsBusyError
from app.core.text.base import PLAIN_CHAT, ChatOptions, ChatTemplateError, TemplateOverrunError
from app.core.text.chat_template import CHATS_AFTER_OVERRUN, ChatTemplates
from app.core.text.compiled_template import ChatTemplateCompiler, ConversationSize
from app.core.text.template_bounds import BoundedContext
from app.core.text.template_protocol import RenderRequest

HI: list[Any] = [{"role": "user", "content": "hi"}]
TWICE = "{% for i in range(60) %}{% set ns.x = "
NAMESPACE = "{% set ns = namespace(x='aa', y=2, z=[1]) %}"
LOOPS = "{% for i in range(99999) %}{% for j in range(99999) %}"
MACRO = "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(90) }}"
ENDLESS = {
    "loop": LOOPS + "{% endfor %}{% endfor %}",
    "loop over nothing": LOOPS.replace("j in range(99999)", "j in range(99999) if false")
    + "{% endfor %}{% endfor %}",
    "loop of a recursive tree": "{% for i in range(99999) recursive %}"
    "{% if loop.depth < 4 %}{{ loop(range(99999)) }}{% endif %}{% endfor %}",
    "macro": MACRO,
    "call block": "{% macro f() %}{{ caller() }}{% endmacro %}"
    + LOOPS
    + "{% call f() %}a{% endcall %}{% endfor %}{% endfor %}",
    "map": LOOPS + "{{ range(9999) | map('string') | list | length }}{% endfor %}{% endfor %}",
    "lazy filters": "{{ range(99999)" + " | map('string') | select" * 60 + " | list | length }}",
    "generator": "{% for i in range(99999) | map('abs') %}"
    "{% for j in range(99999) | select if false %}{% endfor %}{% endfor %}",
    "search": "{% for i in range(99999) %}{{ 'ab' in 'a' * 200000 }}{% endfor %}",
    "macro as an argument": LOOPS
    + "{{ ['a'] | map('replace', 'a', 'aa') | join }}{% endfor %}{% endfor %}",
}
HUGE = {
    "repeated text": "{{ 'a' * 10 ** 9 }}",
    "repeated list": "{{ ([1] * 10 ** 9) | length }}",
    "number": "{{ 10 ** 10 ** 8 }}",
    "product": NAMESPACE + TWICE.replace("ns.x", "ns.y") + "ns.y * ns.y %}{% endfor %}",
    "sum": NAMESPACE + TWICE + "ns.x + ns.x %}{% endfor %}{{ ns.x }}",
    "join": NAMESPACE + TWICE + "ns.x ~ ns.x %}{% endfor %}{{ ns.x }}",
    "list": NAMESPACE + TWICE + "[ns.x, ns.x] %}{% endfor %}{{ ns.x }}",
    "tuple": NAMESPACE + TWICE + "(ns.x, ns.x) %}{% endfor %}{{ ns.x }}",
    "dict": NAMESPACE + TWICE + "{1: ns.x, 2: ns.x} %}{% endfor %}{{ ns.x }}",
    "keys": NAMESPACE + TWICE + "{(i, 1): ns.x} %}{% endfor %}{{ ns.x }}",
    "dict of arguments": NAMESPACE + TWICE + "dict(a=ns.x, b=ns.x) %}{% endfor %}{{ ns.x }}",
    "namespaces": NAMESPACE + TWICE + "namespace(a=ns.x, b=ns.x) %}{% endfor %}{{ ns.x }}",
    "block": NAMESPACE
    + "{% for i in range(60) %}{% set ns.x %}{{ ns.x }}{{ ns.x }}{% endset %}{% endfor %}",
    "JSON of JSON": "{{ messages" + " | tojson" * 60 + " }}",
    "indented JSON": "{{ messages | tojson(indent=10 ** 9) }}",
    "separated JSON": "{{ messages | tojson(separators=('a' * 9999, ':')) }}",
    "indent": "{{ 'a' | indent(10 ** 9, first=true) }}",
    "width": "{{ '%1000000000d' % 1 }}",
    "star": "{{ '%*d' | format(10 ** 9, 1) }}",
    "braces": "{{ '{:>1000000000}'.format(1) }}",
    "map that fills": "{{ ['a'] | map('center', 10 ** 9) | list }}",
    "filter": "{{ 'a' | center(10 ** 9) }}",
    "method": "{{ 'a'.zfill(10 ** 9) }}",
    "member": "{{ 'a'['zfill'](10 ** 9) }}",
    "attribute": "{{ 'a' | attr('zfill') }}",
    "bytes": "{{ (1).to_bytes(10 ** 9, 'big') }}",
    "rounding": "{{ 1 | round(-(10 ** 9)) }}",
    "replace": "{{ ('a' * 99999) | replace('a', 'a' * 99999) }}",
    "replace by a method": "{{ ('a' * 99999).replace('', 'a' * 99999) }}",
    "join by a method": "{{ ('a' * 99999).join('a' * 99999) }}",
    "join by a filter": "{{ ('a' * 99999) | join('a' * 99999) }}",
    "words": "{{ lipsum(n=10 ** 6) }}",
    "date": "{{ strftime_now('%Y' * 99999) }}",
    "source": "a" * 60_000,
    "syntax": "{{ a }}" * 6_000,
    "negations": "{{ " + "not " * 300 + "a }}",
    "levels": "{% if true %}" * 99
    + "{% endif %}" * 99
    + "{{ "
    + "(" * 150
    + "a"
    + ")" * 150
    + " }}",
    "operands": NAMESPACE + "{{ " + " + ".join(["ns.x"] * 100) + " }}",
}


TEXTS = st.text(alphabet="ab \n{%</>é😀", max_size=30)
MESSAGES = st.lists(
    st.fixed_dictionaries(
        {"role": st.sampled_from(["system", "user", "assistant"]), "content": TEXTS}
    ),
    min_size=1,
    max_size=6,
)
USUAL = (
    "{{ 'a'[[1]] is defined }}{{ 5[{}] is defined }}{{ 'a'['b'] is defined }}",
    "{% for m in messages %}{{ '<' + m.role + '>\n' + m.content | trim + '</>' }}{% endfor %}",
    "{% for m in messages[1:] %}{{ loop.index ~ loop.length ~ m['content'] }}{% endfor %}",
    "{% set ns = namespace(last=0) %}{% for m in messages[::-1] %}{% if m.role == 'user' %}"
    "{% set ns.last = ns.last + loop.index0 * 2 % 3 %}{% endif %}{% endfor %}{{ ns.last }}",
    "{{ [{'role': 'x'}] + messages | selectattr('role', 'equalto', 'user') | list }}",
    "{% macro show(m, tag='a') %}{{ m.content.split('a')[-1].lstrip('\n') }}{{ tag }}{% endmacro %}"
    "{% for m in messages if m.content %}{{ show(m) }}{{ caller is defined }}{% endfor %}",
    "{{ messages | map(attribute='content') | join(', ') | replace('a', 'bb') | upper }}",
    "{{ '%s and %s' | format(messages[0].role, 1) }}{{ '{} {}'.format(messages[0].content, 2) }}",
    "{{ messages | tojson(indent=4) }}{{ messages[0].items() | list }}{{ 'a,b'.split(',') }}",
    "{% set text %}{% for m in messages %}{{ m.content }}{% endfor %}{% endset %}{{ text | length }}",
    "{% for m in messages %}{% if loop.last %}{% break %}{% endif %}{{ m.nothing.at_all }}{% endfor %}",
    "{% call(x) run() %}{{ x }}{% endcall %}{% macro run() %}{{ caller(messages[0].role) }}{% endmacro %}",
    "{{ messages[0].content[:2] }}{{ messages[0].content.x is defined }}{{ messages[0]['content']['y'] }}",
    "{% filter upper %}{{ messages[0].role }}{% endfilter %}{{ 2 ** 10 }}{{ '=' * 20 }}{{ [0] * 3 }}",
)


def compiler(is_bounded: bool) -> ChatTemplateCompiler:
    return ChatTemplateCompiler({}, lambda: datetime(2024, 2, 29), True, is_bounded=is_bounded)


@pytest.mark.parametrize("source", [*ENDLESS.values(), *HUGE.values()], ids=[*ENDLESS, *HUGE])
def test_template_is_stopped_before_it_takes_long_or_makes_something_large(source: str) -> None:
    template = compiler(is_bounded=True).compile(source)
    if not template.is_too_large:
        with pytest.raises(TemplateOverrunError):
            template.render(HI, ChatOptions())


@pytest.mark.parametrize("source", ENDLESS.values(), ids=ENDLESS)
def test_template_of_a_long_conversation_is_stopped_in_its_thread(source: str) -> None:
    template = compiler(is_bounded=True).compile(source)
    size = ConversationSize(characters=1_000, is_long=True)
    with pytest.raises(TemplateOverrunError):
        template.render(HI, ChatOptions(), size)


def test_time_of_a_long_conversation_grows_with_it_up_to_ten_seconds() -> None:
    context = compiler(is_bounded=True).compile("").template.new_context()
    assert isinstance(context, BoundedContext)
    for characters, seconds in ((100_000, 2.0), (500_000, 10.0), (25_000_000, 10.0)):
        context.allow(characters, is_long=True)
        assert context.cpu_s == pytest.approx(seconds)


def test_text_around_a_message_is_not_learned_from_an_endless_template() -> None:
    source = "{% for m in messages %}{{ m.content }}{% endfor %}" + ENDLESS["loop"]
    template = compiler(is_bounded=True).compile(source)
    assert template.wraps_content
    assert template.plain(HI) is None


class Renderer:
    """Stands for the process: counts what it gets."""

    def __init__(self) -> None:
        self.requests: list[RenderRequest] = []
        self.has_room = True

    def render(self, request: RenderRequest) -> str:
        if not self.has_room:
            raise SlotsBusyError
        self.requests.append(request)
        if request.source == ENDLESS["loop"]:
            raise ChatTemplateError("The chat template takes too long.")
        return "rendered"


@pytest.mark.parametrize("tools", [None, [{"type": "function"}]])
def test_process_renders_what_follows_a_template_that_was_stopped(
    tools: Any, caplog: pytest.LogCaptureFixture
) -> None:
    renderer = Renderer()
    templates = ChatTemplates({"default": ENDLESS["loop"], "rag": "a"}, {}, renderer=renderer)
    for count in range(1, CHATS_AFTER_OVERRUN + 1):
        with pytest.raises(ChatTemplateError, match="takes too long"):
            templates.render(HI, ChatOptions(tools=tools, tools_key=tools and b"tools"))
        assert len(renderer.requests) == count
        assert templates.render(HI, ChatOptions(chat_template="rag")) == "a"
    assert len(caplog.messages) == 1
    with pytest.raises(ChatTemplateError):  # tried again, as a machine may have been busy
        templates.render(HI)
    assert len(caplog.messages) == 2


def test_conversations_that_wait_for_a_stopped_template_do_not_run_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Sixty chats at once would otherwise take ten milliseconds of the loop each."""
    renderer = Renderer()
    templates = ChatTemplates({"default": ENDLESS["map"]}, {}, renderer=renderer)
    templates._work = SharedWork(time.perf_counter, max_work_s=0.0)
    done = gevent.joinall([gevent.spawn(templates.render, HI) for _ in range(20)], timeout=20)
    assert [greenlet.value for greenlet in done] == ["rendered"] * 20
    assert len(renderer.requests) == 20
    assert len(caplog.messages) == 1


def test_conversations_for_which_the_process_has_no_room_do_not_count() -> None:
    """A flood of them would return the template to the event loop."""
    renderer = Renderer()
    templates = ChatTemplates({"default": HUGE["source"]}, {}, renderer=renderer)
    assert templates.render(HI) == "rendered"
    left = dict(templates._handed_over)
    renderer.has_room = False
    with pytest.raises(SlotsBusyError):
        templates.render(HI)
    assert templates._handed_over == left == {HUGE["source"]: CHATS_AFTER_OVERRUN - 1}


def test_template_that_is_too_large_for_the_event_loop_runs_in_the_process() -> None:
    renderer = Renderer()
    templates = ChatTemplates({"default": HUGE["source"]}, {}, renderer=renderer)
    assert templates.render(HI) == "rendered"
    assert renderer.requests[0].source == HUGE["source"]


class CountedWork(SharedWork):
    """Counts the pieces of work, whose turns `tests/core/clock/test_shared_work.py` has."""

    __slots__ = ("pieces",)

    def __init__(self) -> None:
        super().__init__(time.perf_counter)
        self.pieces = 0

    def __enter__(self) -> None:
        super().__enter__()
        self.pieces += 1


@pytest.mark.parametrize(
    ("options", "pieces"),
    [
        (PLAIN_CHAT, 0),  # the texts around a single message are known
        (ChatOptions(tools=[{}], tools_key=b"[{}]"), 1),
        (ChatOptions(add_generation_prompt=False), 1),
    ],
)
def test_templates_share_the_work_in_a_turn_of_the_loop(options: ChatOptions, pieces: int) -> None:
    templates = ChatTemplates({"default": "{% for m in messages %}{{ m.content }}{% endfor %}"}, {})
    work = templates._work = CountedWork()
    assert templates.render(HI, options) == "hi"
    assert work.pieces == pieces


def outcome_of(is_bounded: bool, source: str, messages: list[Mapping[str, Any]]) -> str:
    try:
        return compiler(is_bounded).compile(source).render(messages, ChatOptions())
    except ChatTemplateError as error:
        return str(error)


@settings(max_examples=100, deadline=None)
@given(st.sampled_from(USUAL), MESSAGES)
def test_bounded_template_renders_as_an_unbounded_one(
    source: str, messages: list[Mapping[str, Any]]
) -> None:
    assert outcome_of(True, source, messages) == outcome_of(False, source, messages)
