"""Chat templates: Jinja in a sandbox, with the environment of transformers, as their authors expect."""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from operator import attrgetter
from threading import Lock
from typing import Any, NoReturn

import jinja2
import jinja2.ext
from cachetools import LRUCache, cachedmethod
from jinja2 import nodes
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from app.base.clock.pause import call_off_hub
from app.text.base import PLAIN_CHAT, ChatOptions, ChatTemplateError, Message
from app.text.conversation import (
    PLAIN_ROLES,
    ContentFormat,
    Conversation,
    detect_content_format,
    developer_as_system,
    parse_messages,
    surrounds_content,
)
from app.text.files import DEFAULT_TEMPLATE

TEMPLATES_BYTES = 8 << 20
"""Memory limit of compiled templates, as trusted requests may bring their own."""
COMPILED_BYTES, CHARACTER_BYTES = 8_000, 6
"""Most memory of a compiled template, and of each character of its source; measured."""
LONG_CHAT, MANY_MESSAGES = 20_000, 400
"""Members and characters, and messages, above which a conversation is rendered in a native thread."""
LONG_JSON = 20_000
"""Members and characters of a value from which its JSON is written in pieces."""
RESERVED = frozenset({"conversation", "messages", "tokenizer", "model_config"})
"""Names that a request's `chat_template_kwargs` must not set."""
IGNORED = ("chat_template", "tokenize")
"""Names in `chat_template_kwargs` that have no effect."""
CHANGING = re.compile("strftime_now|lipsum|random")
"""Names in a template that may give equal conversations different prompts."""
DICT_ATTRIBUTES = frozenset(dir(dict))
END_MARK = "END_OF_WHAT_TO_CONTINUE "
"""Mark after the final message, to find and cut the text that the template adds behind the message."""


@dataclass(frozen=True, slots=True)
class CompiledTemplate:
    template: jinja2.Template
    variables: Mapping[str, object]
    content_format: ContentFormat
    knows_developer: bool
    takes_media: bool
    size_bytes: int
    surrounds: bool
    """The template puts constant texts around the content of a single message; see `surrounds_content`."""
    around: dict[str, tuple[str, str] | None] = field(default_factory=dict)
    """These texts by role, learnt at first use; None for a role whose content is not printed once."""

    def render(self, messages: Sequence[Message], options: ChatOptions) -> str:
        """Returns the prompt of a conversation; ChatTemplateError, with the template's reason, otherwise."""
        if options.continue_final_message and options.add_generation_prompt:
            raise ChatTemplateError("continue_final_message and add_generation_prompt exclude each other.")
        conversation = parse_messages(messages, self.content_format, self.takes_media)
        if not self.knows_developer:
            conversation = developer_as_system(conversation)
        variables = {**self.variables, **_variables(options)}
        if not options.continue_final_message:
            return self._rendered(conversation, variables)
        final, marked = _mark_final_text(conversation)
        rendered, mark = self._rendered(marked, variables), END_MARK.strip()
        if mark not in rendered or final.strip() not in rendered:
            raise ChatTemplateError("continue_final_message: the template does not show the final message.")
        prompt = rendered[: rendered.rindex(mark)]
        # A template that strips messages has removed the mark's blank, and would have removed the text's.
        return prompt if rendered.startswith(END_MARK, len(prompt)) else prompt.rstrip()

    def plain(self, messages: Sequence[Message]) -> str | None:
        """Returns the prompt of a single message under plain options; None if the template has to run."""
        if not self.surrounds or len(messages) != 1 or len(messages[0]) != 2:
            return None
        role, content = messages[0].get("role"), messages[0].get("content")
        if not isinstance(role, str) or role not in PLAIN_ROLES or not isinstance(content, str):
            return None
        if role not in self.around:
            variables = {**self.variables, "add_generation_prompt": True}
            before, *behind = self._rendered([{"role": role, "content": END_MARK}], variables).split(END_MARK)
            self.around[role] = (before, behind[0]) if len(behind) == 1 else None
        around = self.around[role]
        return None if around is None else content.join(around)

    def _rendered(self, conversation: Conversation, variables: dict[str, object]) -> str:
        # `Template.render` would walk over the chained globals of the environment each time.
        template = self.template
        variables["messages"] = conversation
        context = template.environment.context_class(
            template.environment, variables, template.name, template.blocks
        )
        try:
            return "".join(template.root_render_func(context))
        except Exception as error:  # a template is a program, and may fail in any way
            raise ChatTemplateError(f"The chat template refused the conversation: {error}") from error


class ChatTemplates:
    """The chat templates of one tokenizer, compiled at their first use.

    `sources` are Jinja sources by name (`default`, `tool_use` ...), `special_tokens` variables of each, as
    `bos_token`; `now` is local time; `takes_media`: the model reads more than text.
    """

    def __init__(
        self,
        sources: Mapping[str, str],
        special_tokens: Mapping[str, str],
        now: Callable[[], datetime] = datetime.now,
        takes_media: bool = True,
        limit_bytes: int = TEMPLATES_BYTES,
    ) -> None:
        self._sources = sources
        self._takes_media = takes_media
        self.tells_time = any(map(CHANGING.search, sources.values()))
        """True when a template reads the clock or draws: equal conversations may give different prompts."""
        self._special_tokens = special_tokens
        self._environment = _environment(now)
        self.limit_bytes = limit_bytes
        self._compiled: LRUCache[str, CompiledTemplate]
        self._compiled = LRUCache(limit_bytes, getsizeof=lambda compiled: compiled.size_bytes)
        self._lock = Lock()

    def render(self, messages: Sequence[Message], options: ChatOptions = PLAIN_CHAT) -> str:
        """Returns the prompt of a conversation; a native thread renders a long one."""
        if options is PLAIN_CHAT and (prompt := self._default.plain(messages)) is not None:
            return prompt
        given = messages, options.tools, options.documents, options.chat_template_kwargs
        is_long = len(messages) > MANY_MESSAGES or json_length(given, LONG_CHAT) == LONG_CHAT
        render = self.of(options).render
        return call_off_hub(render, messages, options) if is_long else render(messages, options)

    @cached_property
    def _default(self) -> CompiledTemplate:
        return self.of(PLAIN_CHAT)

    def of(self, options: ChatOptions) -> CompiledTemplate:
        return self._compile(self._source(options))

    @property
    def size_bytes(self) -> int:
        return int(self._compiled.currsize)

    def _source(self, options: ChatOptions) -> str:
        """Returns the request's template (source or name), else `tool_use` for tools, else `default`."""
        if options.chat_template is not None:
            return self._sources.get(options.chat_template, options.chat_template)
        if options.tools is not None and "tool_use" in self._sources:
            return self._sources["tool_use"]
        try:
            return self._sources[DEFAULT_TEMPLATE]
        except KeyError:
            raise ChatTemplateError("The tokenizer has no chat template, and the request none.") from None

    @cachedmethod(attrgetter("_compiled"), lock=attrgetter("_lock"))
    def _compile(self, source: str) -> CompiledTemplate:
        try:
            tree = self._environment.parse(source)
            template = self._environment.from_string(source)
        except (jinja2.TemplateError, RecursionError) as error:
            raise ChatTemplateError(f"The chat template does not compile: {error}") from error
        variables = {**template.globals, "tools": None, "documents": None, **self._special_tokens}
        knows_developer = re.search("""["']developer["']""", source) is not None
        size_bytes = COMPILED_BYTES + CHARACTER_BYTES * len(source)
        return CompiledTemplate(
            template,
            variables,
            detect_content_format(tree),
            knows_developer,
            self._takes_media,
            size_bytes,
            surrounds_content(tree) and CHANGING.search(source) is None,
        )


def _variables(options: ChatOptions) -> dict[str, object]:
    variables = dict(options.chat_template_kwargs or ())
    if refused := variables and sorted(RESERVED & variables.keys()):
        raise ChatTemplateError(f"chat_template_kwargs must not set {', '.join(refused)}.")
    for name in IGNORED if variables else ():
        variables.pop(name, None)
    if options.tools is not None:
        variables["tools"] = options.tools
    if options.documents is not None:
        variables["documents"] = list(options.documents)
    variables["add_generation_prompt"] = options.add_generation_prompt
    return variables


def _mark_final_text(conversation: Conversation) -> tuple[str, Conversation]:
    """Returns the text of the final message, and the conversation with `END_MARK` behind that text."""
    message = copy(conversation[-1])
    content = message["content"]
    if isinstance(content, str):
        message["content"] = content + END_MARK
        return content, [*conversation[:-1], message]
    for index, part in reversed([*enumerate(content)]):
        if "text" in part:
            marked = part | {"text": part["text"] + END_MARK}
            message["content"] = [*content[:index], marked, *content[index + 1 :]]
            return part["text"], [*conversation[:-1], message]
    raise ChatTemplateError("continue_final_message needs a final message with text in it.")


class GenerationTag(jinja2.ext.Extension):
    """`{% generation %}...{% endgeneration %}`: marks the assistant's text; has no effect here."""

    tags = {"generation"}

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body, lineno=line)


class TemplateEnvironment(ImmutableSandboxedEnvironment):
    """Sandbox with fast look-up of dict members."""

    def getattr(self, obj: Any, attribute: str) -> Any:
        """Returns the same as Jinja, which first tries the Python attribute, then the key."""
        if type(obj) is dict and attribute not in DICT_ATTRIBUTES:
            return obj[attribute] if attribute in obj else self.undefined(obj=obj, name=attribute)
        return super().getattr(obj, attribute)


def _environment(now: Callable[[], datetime]) -> TemplateEnvironment:
    environment = TemplateEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[GenerationTag, "jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = lambda form: now().strftime(form)
    return environment


def _to_json(
    value: object,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Returns plain JSON for prompts, while Jinja's own filter escapes for HTML."""
    encoder = json.JSONEncoder(
        ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )
    if json_length(value, LONG_JSON) < LONG_JSON:
        return encoder.encode(value)
    return "".join(encoder.iterencode(value))  # takes ten times as long, but can be interrupted


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def json_length(value: object, most: int) -> int:
    """Estimates the members and characters in the JSON of `value`; returns `most` for more."""
    length, waiting = 0, [value]
    for each in waiting:  # the list grows meanwhile
        length += 1
        if isinstance(each, str | list | tuple | dict):
            length += len(each)
        if length >= most:
            return most
        if isinstance(each, dict):
            waiting += each.values()
        elif isinstance(each, list | tuple):
            waiting += each
    return length
